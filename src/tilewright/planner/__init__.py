"""Choosing a plan without measuring: each kernel that could compute a problem, what limits it, its predicted time."""
