"""The checked run of a kernel: exact bounds, races and uninitialised reads, which no result shows."""

from __future__ import annotations

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.emulator_runtime import MAX_CLUSTER
from tilewright.kernel_file import KernelFile
from tilewright.plan_base import Plan
from tilewright.plan_parts import PartsPlan
from tilewright.run import Operands, arguments, source_for, workspace_arguments

MOST_BLOCKS = 256  # of a larger grid only the edges are checked for bounds: inside, every block has the same accesses


def check(emulator: EmulatorBackend, kernel: KernelFile, plan: Plan, operands: Operands) -> int:
    """Run a kernel under the emulator's checks and return how many blocks were checked for bounds.

    Bounds are checked in all blocks, or along the edges of C in a large grid; races in the block nearest the middle
    and in the last one, which is ragged where M or N is. Blocks that leave each other partial sums run in turns, as
    many as the emulator can hold, so that races between them are found. Raises ``EmulatorFault`` with what is wrong
    and where.
    """
    problem = operands.problem
    grid = plan.grid(problem)
    blocks = list(range(grid[0])) if grid[0] <= MOST_BLOCKS else plan.edge_blocks(problem)
    if not blocks:
        return 0
    source = source_for(emulator, kernel, plan)
    args = [*arguments(plan, operands), *workspace_arguments(emulator, plan, problem)]
    launch = (emulator, source, grid, plan.block, args, plan.shared_bytes)
    check_bounds(*launch, blocks, cluster=plan.cluster)
    if isinstance(plan, PartsPlan):
        # What blocks leave each other is the same without clusters, of which the emulator runs one at a time.
        alone = plan.alone()
        rest = (alone.grid(problem), plan.block, arguments(alone, operands))
        shared = (*rest[:2], [*rest[2], *workspace_arguments(emulator, alone, problem)], alone.shared_bytes)
        check_races(
            emulator, source_for(emulator, kernel, alone), *shared, alone.neighbours(problem), together=MAX_CLUSTER
        )
    if plan.shared_bytes:
        check_races(*launch, sorted({plan.interior_block(problem), grid[0] - 1}), cluster=plan.cluster)
    return len(blocks)
