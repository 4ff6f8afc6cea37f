"""Choosing a plan without measuring: every kernel that could compute a problem, what limits it, and its predicted time."""
