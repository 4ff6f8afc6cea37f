"""Epilogues: what a kernel does to its fp32 accumulators before it rounds and stores them."""
