"""Measuring a GPU for the planner: microbenchmarks, their raw readings, and the constants that follow from them.

The flow is ``probes`` (kernels of ``cuda/probes`` and their launches) -> ``memory``, ``rates`` and ``power`` (the
microbenchmarks, each a list of readings) -> ``readings`` -> ``fit`` and ``fit_power`` (plain arithmetic, no GPU) -> a
``Calibration``. ``session`` runs the microbenchmarks, each in a process of its own.
"""
