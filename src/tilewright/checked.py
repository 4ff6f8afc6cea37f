"""The checked run of a kernel: exact bounds, races and uninitialised reads, which no result shows."""

from __future__ import annotations

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.emulator_runtime import MAX_CLUSTER
from tilewright.epilogue.code import BoundEpilogue
from tilewright.kernel_file import KernelFile
from tilewright.plan_base import Plan
from tilewright.plan_parts import PartsPlan
from tilewright.run import Operands, launch_arguments, source_for

MOST_BLOCKS = 256  # of a larger grid only the edges are checked for bounds: inside, every block has the same accesses


def check(
    emulator: EmulatorBackend,
    kernel: KernelFile,
    plan: Plan,
    operands: Operands,
    epilogue: BoundEpilogue | None = None,
) -> int:
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
    source = source_for(emulator, kernel, plan, epilogue)
    args = launch_arguments(emulator, plan, operands, epilogue)
    launch = (emulator, source, grid, plan.block, args, plan.shared_bytes)
    check_bounds(*launch, blocks, cluster=plan.cluster)
    if isinstance(plan, PartsPlan):
        # What blocks leave each other is the same without clusters, of which the emulator runs one at a time.
        alone = plan.alone()
        args_alone = launch_arguments(emulator, alone, operands, epilogue)
        check_races(
            emulator,
            source_for(emulator, kernel, alone, epilogue),
            alone.grid(problem),
            plan.block,
            args_alone,
            alone.shared_bytes,
            alone.neighbours(problem),
            together=MAX_CLUSTER,
        )
    if plan.shared_bytes:
        check_races(*launch, sorted({plan.interior_block(problem), grid[0] - 1}), cluster=plan.cluster)
    return len(blocks)
