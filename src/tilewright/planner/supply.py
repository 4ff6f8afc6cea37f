"""What HBM needs to deliver at its bandwidth: enough bytes on their way, and a moment to begin.

The first constants are of a study of kernels on an H200 that read weights through a TMA ring with 32 to 176 KB in
flight an SM, the others of this project's sweep.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.planner.raster import Floats
from tilewright.problem import Problem

RAMP_US = 0.5
"""Of a kernel of parts or of swap-AB, what is neither launch, first load nor bytes: until all SMs load at once."""
DRAIN_US = 0.6
"""After its last load: what is under way is multiplied, stored, and the last block ends."""
DRAW_BYTES_PER_S = 85e9
"""What one SM draws from HBM: 64 SMs with a tile each do not reach the bandwidth, 128 that share K do."""
# The next two are of a few dependent launches, ROUNDED of all of the sweep (docs/notebook/2026-11-30-held-out.md).
CROWDED = 0.5
"""Of what the SM with most blocks has more than the others, what the others wait for. In a dependent launch blocks
start wherever the kernel before leaves room: several an SM then fill some SMs and leave others few."""
DRIFT = 0.035
"""Of the weights that lone blocks of swap-AB read in a dependent launch, what HBM reads as if again: blocks that start
one by one open its pages out of step. At 90 to 235 MB such launches are no faster, or slower, than others."""
RUN_BYTES = 4
"""What a run of bytes of a line of a matrix, asked for at one time, costs HBM more than its length, in bytes: a page is
opened for each. Of swap-AB's steps of 64, 128 and 256 K; all of the sweep."""
ROUNDED = 0.15
"""Of a grid whose blocks start as others end, what of its last round is as if it were whole."""
EXPONENT = 4
"""Of the norm by which work that goes on at once delays each other where it comes near."""
# From here on: of the sweep, development third (docs/notebook/2026-11-30-sweep.md); of all its shapes ASKEW_SHARED,
# IN_LINE and what ASKEW is now (docs/notebook/2026-11-30-held-out.md).
BEGIN_AND_END_US = 1.9
"""Of a kernel of tiles, what is neither launch, first load, main loop nor epilogue, whatever bounds it: until all SMs
are given their rate, and from the last store until the grid has ended."""
TILES_TURNAROUND_US = 0.75
"""From when a stage of a tile's ring is free until the load that fills it again has come."""
SAME_LINES = 1.4
"""How much faster than lines of its own an SM is given those that others ask for at the same time."""
MULTICAST = 0.92
"""What reaches each block of a cluster in a main loop, of what the probe of multicast loads does."""
LINE_BYTES, SECTOR_BYTES = 128, 32
FILL = 4.6
"""What a byte of a box beyond the edge of a matrix costs, of which nothing is read, in bytes that are."""
HALF_TILE = 0.525
"""Of a tile's multiplications, the time of those of half: its blocks of rows are one behind the other."""
ASKEW = 1.7
"""What a row of a box costs that does not begin with a line of L2, in rows that do: 128 bytes then lie in two lines."""
ASKEW_SHARED = 1.15
"""The same of a multicast load, whose two lines are read once for all blocks that receive them."""
IN_LINE = 0.25
"""Of what rows cost more that begin within a sector, that of rows that begin with one, but not with a line."""
APART = 0.12
"""By how much a cluster is slowed whose blocks load different lines: each waits for the other's too."""


def askew(problem: Problem, cost: float = ASKEW) -> tuple[float, float]:
    """What a byte of A and of B costs: ``cost`` where rows begin within a sector, 1 where they begin with a line of L2.

    In between, where they begin with a sector, ``IN_LINE`` of what is more.
    """

    def of(leading: int) -> float:
        apart = leading * problem.dtype.itemsize
        return 1.0 if apart % LINE_BYTES == 0 else cost if apart % SECTOR_BYTES else 1 + IN_LINE * (cost - 1)

    return of(problem.lda), of(problem.ldb)


def together(parts: Sequence[Floats]) -> Floats:
    """How long work takes that goes on at once: its longest, or 1.19 times that where two are as long."""
    longest = np.maximum.reduce(parts)
    scaled = np.maximum(longest, 1e-30)
    norm = sum(((part / scaled) ** EXPONENT for part in parts), start=np.zeros_like(longest)) ** (1 / EXPONENT)
    found: Floats = np.maximum(longest * norm, longest)  # the norm may be less by rounding
    return found


def under_ring(multiplied: Floats, supplied: Floats) -> Floats:
    """How long a tile takes whose ring is filled while it is multiplied: the longer, or 1.09 times it where both are.

    The same norm with an exponent of 8, as a ring evens out what comes unevenly; by squares, for it is asked often.
    """
    longest = np.maximum(multiplied, supplied)
    eighth: Floats = np.minimum(multiplied, supplied) / np.maximum(longest, 1e-30)
    for _ in range(3):
        eighth = eighth * eighth
    found: Floats = longest * np.sqrt(np.sqrt(np.sqrt(1 + eighth)))
    return found
