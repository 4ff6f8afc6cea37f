"""What a kernel pays for beside its bytes at the rates of L2 and HBM: lines, edges, clusters, beginning and ending."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.planner.raster import Floats
from tilewright.problem import Problem

AS_ALONE = 1.7
"""How much faster than lines of its own an SM is given those that all SMs ask for at the same time: about as if alone.
The probe of L2 has 70.92 bytes a clock, and 70.93 alone, beside 37.97, which is 1.87; a kernel of one wave had 65
(docs/notebook/2026-11-30-ranking.md). So it is where blocks start together and ask for the same until they end, as lone
blocks of one wave do."""
DRAW_BYTES_PER_S = 85e9
"""What one SM draws from HBM, from a study of kernels on an H200 that read weights through a TMA ring with 32 to 176 KB
in flight an SM: 64 SMs with a tile each do not reach the bandwidth, 128 that share K do."""
MULTICAST_TRANSPORT = 0.5
"""Of the energy of a byte from L2 to an SM, what multicast does not save: it reads L2 once, and brings the byte to each
block. An assumption, between two that 170 plans in slots of 110 ms bracket (docs/notebook/2026-11-30-ranking.md)."""
BEFORE_FIRST = 0.5
"""Of what a kernel takes beside launch, loads, products and stores, the part before its first bytes, which a dependent
launch hides with the launch; the rest is after its last: an assumption."""
SECTOR_BYTES = 32
ASKEW = 2.0
"""What a row of a box costs that begins within a sector of L2, in rows that do not: its 128 bytes lie in two lines. One
that begins with a sector has no sector more; and a multicast load reads both lines once for all blocks."""
# From here on fitted, to the sweep; docs/planner.md says what each is worth.
FILL = 5.0
"""What a byte of a box beyond the edge of a matrix costs, of which nothing is read, in bytes that are."""
BEGIN_AND_END_US = 2.8
"""Of a kernel of tiles, what is neither launch, first load, main loop nor epilogue, whatever bounds it: until all SMs
are given their rate, and from the last store until the grid has ended."""
SAME_LINES = 1.3
"""How much faster than lines of its own an SM is given those that some others ask for at about the same time."""
APART = 0.12
"""By how much a cluster is slowed whose blocks load different lines: each waits for the other's too."""
# The next two to a few dependent launches (docs/notebook/2026-11-30-held-out.md).
CROWDED = 0.5
"""Of what the SM with most blocks has more than the others, what the others wait for. In a dependent launch blocks
start wherever the kernel before leaves room: several an SM then fill some SMs and leave others few."""
DRIFT = 0.035
"""Of the weights that lone blocks of swap-AB read in a dependent launch, what HBM reads as if again for each 64 rows
that an SM reads at a time: blocks that start one by one open its pages out of step. At 235 MB tiles of 64 rows gain
from such a launch and those of 128 do not."""
RUN_BYTES = 4
"""What a run of bytes of a line of a matrix, asked for at one time, costs HBM more than its length, in bytes: a page is
opened for each. Of swap-AB's steps of 64, 128 and 256 K; of the main kernel it was a hundredth of the time, and is left
out."""


def askew(problem: Problem) -> tuple[float, float]:
    """What a byte of A and of B costs that a block loads by itself: ``ASKEW`` where rows begin within a sector."""

    def of(leading: int) -> float:
        return ASKEW if leading * problem.dtype.itemsize % SECTOR_BYTES else 1.0

    return of(problem.lda), of(problem.ldb)


def fourth(values: Floats) -> Floats:
    """The fourth power of times: of these the sum is taken where work that comes near each other delays each other."""
    return np.square(np.square(values))


def fourth_root(values: Floats) -> Floats:
    """The inverse of ``fourth``."""
    return np.sqrt(np.sqrt(values))


def together(parts: Sequence[Floats]) -> Floats:
    """How long work takes that goes on at once: its longest, or 1.19 times that where two are as long."""
    return fourth_root(sum((fourth(part) for part in parts), start=np.zeros(())))


def under_ring(multiplied_8: Floats, supplied_8: Floats) -> Floats:
    """How long a tile takes whose ring is filled while it is multiplied: the longer, or 1.09 times it where both are.

    The same norm with an exponent of 8, as a ring evens out what comes unevenly; of both the eighth powers, as it is
    asked often, for clocks by which only one of them changes, by a factor.
    """
    return np.sqrt(fourth_root(multiplied_8 + supplied_8))
