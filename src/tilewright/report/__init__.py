"""What was found, as a person reads it: the climb's table, the difference between two rungs."""
