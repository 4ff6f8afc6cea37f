"""Checks of a kernel that no GPU run shows: races, uninitialised reads, and accesses outside the operands' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.backends.base import Dim3, Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_observer import RaceReport, Watched, place_of, watch
from tilewright.errors import EmulatorFault
from tilewright.source import KernelSource

# As RaceKind in race.hpp: a name, and what the earlier and the later party did.
_RACES = (
    ("write-write race", "wrote", "wrote"),
    ("read-then-overwrite race", "read", "wrote"),
    ("write-then-read race", "wrote", "read"),
)
_UNINITIALISED = len(_RACES)


def check_bounds(
    backend: EmulatorBackend,
    source: KernelSource,
    grid: Dim3,
    block: Dim3,
    args: Sequence[Any],
    shared_bytes: int,
    blocks: Sequence[int] | None = None,
    *,
    cluster: int = 1,
) -> None:
    """Run the ``blocks`` named (all when None) with every access checked against exact ranges.

    A global access has to lie inside a row of a matrix: neither in the padding of its leading dimension nor behind its
    end. Raises ``EmulatorFault`` of kind ``out-of-bounds`` or ``misaligned`` that names matrix, row, column, thread and
    source line. For a large grid, the blocks along the edges of C are the ones worth checking.
    """
    watched = watch(backend, source, grid, block, args, shared_bytes, mode="bounds", blocks=blocks, cluster=cluster)
    if watched.fault is not None:
        raise watched.fault


def check_races(
    backend: EmulatorBackend,
    source: KernelSource,
    grid: Dim3,
    block: Dim3,
    args: Sequence[Any],
    shared_bytes: int,
    blocks: Sequence[int] | None = None,
    *,
    cluster: int = 1,
) -> None:
    """Run the ``blocks`` named (all when None) and look for shared-memory accesses that no barrier orders.

    Bounds are checked, too. Raises ``EmulatorFault`` of kind ``race``, else the one that ended the run, else one of
    kind ``uninitialised``; its text names the shared byte, both threads and both source lines of every finding. Blocks
    that access single bytes of shared memory run twice, and what they add to memory is then added twice.
    """
    cell_bytes = min((arg.dtype.itemsize for arg in args if isinstance(arg, Matrix)), default=4)
    watched = None
    while watched is None or watched.finer_cell_bytes:
        cell_bytes = watched.finer_cell_bytes if watched else min(cell_bytes, 4)
        watched = watch(
            backend,
            source,
            grid,
            block,
            args,
            shared_bytes,
            mode="race",
            blocks=blocks,
            cluster=cluster,
            cell_bytes=cell_bytes,
        )
    races = [r for r in watched.races if r.kind != _UNINITIALISED]
    if races:
        raise EmulatorFault("race", _findings(watched, races)) from watched.fault
    if watched.fault is not None:
        raise watched.fault
    if watched.races:
        raise EmulatorFault("uninitialised", _findings(watched, watched.races))


def _findings(watched: Watched, reports: Sequence[RaceReport]) -> str:
    """Each finding once for its pair of source lines, however often the compiler copied them."""
    first: dict[tuple[Any, ...], RaceReport] = {}
    times: dict[tuple[Any, ...], int] = {}
    for report in reports:
        places = (place_of(watched.kernel, report.first_pc), place_of(watched.kernel, report.second_pc))
        key = (report.kind, report.first_is_copy, report.second_is_copy, *places)
        first.setdefault(key, report)
        times[key] = times.get(key, 0) + report.times
    lines = [_describe(report, key[-2], key[-1], times[key]) for key, report in first.items()]
    return lines[0] if len(lines) == 1 else f"{len(lines)} findings\n  " + "\n  ".join(lines)


def _describe(report: RaceReport, first_place: str, second_place: str, times: int) -> str:
    where = f"shared+{report.offset}" + (f" of block rank {report.rank}" if report.rank else "")
    second = _party(report.second_rank, report.second_thread, report.second_is_copy)
    if report.kind == _UNINITIALISED:
        text = f"{where} is read but nobody wrote it: {second} read at {second_place}"
    else:
        name, first_did, second_did = _RACES[report.kind]
        first = _party(report.first_rank, report.first_thread, report.first_is_copy)
        text = (
            f"{name} at {where}: {first} {first_did} at {first_place}, {second} {second_did} at {second_place}, "
            "and no barrier is between"
        )
    again = f"; {times} such accesses" if times > 1 else ""
    return f"{text} [block {','.join(map(str, report.block))}]{again}"


def _party(rank: int, thread: int, is_copy: int) -> str:
    owner = f"thread {thread}" + (f" of block rank {rank}" if rank else "")
    return f"a cp.async of {owner}" if is_copy else owner
