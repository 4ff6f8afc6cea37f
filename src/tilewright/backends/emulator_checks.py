"""Checks of a kernel that no GPU run shows: races, uninitialised reads, and accesses outside the operands' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.backends.base import Dim3, Matrix, Packed
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_observer import RaceParty, RaceReport, Watched, place_of, watch
from tilewright.errors import EmulatorFault
from tilewright.source import KernelSource

# As RaceKind, Agent and Deed in race_report.hpp.
_WRITE_WRITE, _READ_THEN_OVERWRITE, _WRITE_THEN_READ, _UNINITIALISED, _UNFENCED, _EXIT = range(6)
_RACES = {
    _WRITE_WRITE: "write-write race",
    _READ_THEN_OVERWRITE: "read-then-overwrite race",
    _WRITE_THEN_READ: "write-then-read race",
}
_THREAD, _CP_ASYNC, _TMA_LOAD, _TMA_STORE, _WGMMA = range(5)
_DEEDS = ("read", "wrote", "updated", "initialised", "used", "exited")
_IN_OPERAND = 1 << 31  # kInOperand
_READ, _INITIALISED, _USED = (_DEEDS.index(deed) for deed in ("read", "initialised", "used"))


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
    together: int = 1,
) -> None:
    """Run the ``blocks`` named (all when None) and look for shared-memory accesses that no barrier orders.

    With ``together`` so many blocks of a grid without clusters run in turns, in the order they are named in, and what
    one of them does to the operands in global memory is held against the others; so it is in a cluster.

    Bounds are checked, too. Raises ``EmulatorFault`` of kind ``race``, else the one that ended the run, else one of
    kind ``uninitialised``; its text names the shared byte, both threads and both source lines of every finding. Blocks
    that access single bytes of shared memory run twice, and what they add to memory is then added twice.
    """
    by_pointer = [arg for arg in args if isinstance(arg, Matrix)]
    by_pointer += [matrix for arg in args if isinstance(arg, Packed) for matrix in arg.matrices]
    cell_bytes = min((matrix.dtype.itemsize for matrix in by_pointer), default=4)
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
            together=together,
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
        places = (place_of(watched.kernel, report.first.pc), place_of(watched.kernel, report.second.pc))
        key = (report.kind, report.first.agent, report.second.agent, *places)
        first.setdefault(key, report)
        times[key] = times.get(key, 0) + report.times
    lines = [_describe(report, key[-2], key[-1], times[key]) for key, report in first.items()]
    return lines[0] if len(lines) == 1 else f"{len(lines)} findings\n  " + "\n  ".join(lines)


def _describe(report: RaceReport, first_place: str, second_place: str, times: int) -> str:
    is_mbarrier = not {report.first.deed, report.second.deed}.isdisjoint({_INITIALISED, _USED})
    if report.rank & _IN_OPERAND:
        where = f"matrix {report.rank ^ _IN_OPERAND}, byte {report.offset}"
    else:
        where = f"{'mbarrier ' if is_mbarrier else ''}shared+{report.offset}" + _of_block(report.rank)
    first = f"{_party(report.first)} {_DEEDS[report.first.deed]} at {first_place}"
    second = f"{_party(report.second)} {_DEEDS[report.second.deed]} at {second_place}"
    if report.kind == _UNINITIALISED:
        text = f"{where} is read but nobody wrote it: {second}"
    elif report.kind == _EXIT:
        text = (
            f"traffic in flight at exit: {where}: {first}, and nothing orders that before "
            f"the exit of block rank {report.rank}"
        )
    elif report.kind == _UNFENCED:
        access = "read" if report.first.deed == _READ else "write"
        text = (
            f"generic {access} not fenced for the async proxy at {where}: {first}, {second}, "
            "and no fence_proxy_async is between"
        )
    else:
        text = f"{_RACES[report.kind]} at {where}: {first}, {second}, and no barrier is between"
    again = f"; {times} such accesses" if times > 1 else ""
    return f"{text} [block {','.join(map(str, report.block))}]{again}"


def _party(party: RaceParty) -> str:
    name = f"{'warp' if party.agent == _WGMMA else 'thread'} {party.index}{_of_block(party.rank)}"
    return {
        _CP_ASYNC: f"a cp.async of {name}",
        _TMA_LOAD: f"a TMA load issued by {name}",
        _TMA_STORE: f"a TMA store issued by {name}",
        _WGMMA: f"a wgmma of {name}",
    }.get(party.agent, name)


def _of_block(rank: int) -> str:
    return f" of block rank {rank}" if rank else ""
