"""What HBM needs to deliver at its bandwidth: enough bytes on their way, and a moment to begin.

The constants are of a study of kernels on an H200 that read weights through a TMA ring with 32 to 176 KB in flight an
SM: time against bytes gives what a kernel takes beside them, time against bytes in flight the turnaround.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.planner.raster import Floats

TURNAROUND_US = 1.05
"""From when a buffer is free until the load that fills it again has come from HBM, while all SMs load."""
RAMP_US = 0.5
"""What of the time of a kernel that HBM bounds is neither launch, first load nor bytes: until all SMs load at once."""
DRAIN_US = 0.6
"""After its last load: what is under way is multiplied, stored, and the last block ends."""
DRAW_BYTES_PER_S = 85e9
"""What one SM draws from HBM: 64 SMs with a tile each do not reach the bandwidth, 128 that share K do."""
EXPONENT = 4
"""Of the norm by which work that goes on at once delays each other where it comes near."""


def together(parts: Sequence[Floats]) -> Floats:
    """How long work takes that goes on at once: its longest, or 1.19 times that where two are as long."""
    longest = np.maximum.reduce(parts)
    scaled = np.maximum(longest, 1e-30)
    norm = sum(((part / scaled) ** EXPONENT for part in parts), start=np.zeros_like(longest)) ** (1 / EXPONENT)
    found: Floats = np.maximum(longest * norm, longest)  # the norm may be less by rounding
    return found
