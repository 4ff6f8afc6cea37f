"""The checked run of a kernel: exact bounds, races and uninitialised reads, which no result shows."""

from __future__ import annotations

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.kernel_file import KernelFile
from tilewright.plan_base import Plan
from tilewright.run import Operands, arguments, source_for

MOST_BLOCKS = 256  # of a larger grid only the edges are checked for bounds: inside, every block has the same accesses


def check(emulator: EmulatorBackend, kernel: KernelFile, plan: Plan, operands: Operands) -> int:
    """Run a kernel under the emulator's checks and return how many blocks were checked for bounds.

    Bounds are checked in all blocks, or along the edges of C in a large grid; races in the block nearest the middle
    and in the last one, which is ragged where M or N is. Raises ``EmulatorFault`` with what is wrong and where.
    """
    problem = operands.problem
    grid = plan.grid(problem)
    blocks = list(range(grid[0])) if grid[0] <= MOST_BLOCKS else plan.edge_blocks(problem)
    if not blocks:
        return 0
    source = source_for(emulator, kernel, plan)
    launch = (emulator, source, grid, plan.block, arguments(plan, operands), plan.shared_bytes)
    check_bounds(*launch, blocks, cluster=plan.cluster)
    if plan.shared_bytes:
        check_races(*launch, sorted({plan.interior_block(problem), grid[0] - 1}), cluster=plan.cluster)
    return len(blocks)
