"""The kernel families, one a module. Each registers itself when it is imported (``planner.family``)."""
