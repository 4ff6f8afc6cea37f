"""What a kernel moves and computes, counted by running some of its blocks in the emulator.

The counts are those of the source as the host compiler sees it: its common subexpressions and hoisted loads stand in
for nvcc's. They say what is moved, never how fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.backends.base import Dim3
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import (
    Copies,
    CopyLine,
    Counts,
    Kind,
    LineCounts,
    MatrixInstructions,
    Operand,
    Requests,
    Waits,
)
from tilewright.backends.emulator_lines import SourceLine
from tilewright.backends.emulator_observer import SiteCounts, Watched, line_of, watch
from tilewright.backends.emulator_runtime import matrices
from tilewright.errors import UsageError
from tilewright.source import KernelSource


def trace(
    backend: EmulatorBackend,
    source: KernelSource,
    grid: Dim3,
    block: Dim3,
    args: Sequence[Any],
    shared_bytes: int,
    blocks: Sequence[int] | None = None,
    *,
    cluster: int = 1,
    names: Sequence[str] = ("a", "b", "c"),
) -> Counts:
    """Run the ``blocks`` named (linear ids; all when None) and count what they do; normally one interior block.

    Of a cluster all blocks run and are counted. ``names`` are those of the matrices and tensor maps among ``args``, in
    order, one that comes by tensor map and by pointer once. Raises ``EmulatorFault`` for what the kernel may not do,
    ``CompileError`` and ``UnavailableError`` as ``EmulatorBackend.compile``, and ``UsageError`` when there are more
    matrices than names.
    """
    count = len(matrices(args))
    if count > len(names):
        raise UsageError(f"the kernel takes {count} matrices, and names has {len(names)}")
    watched = watch(backend, source, grid, block, args, shared_bytes, mode="trace", blocks=blocks, cluster=cluster)
    if watched.fault is not None:
        raise watched.fault
    assert watched.stats is not None
    lines, copies = _by_line(watched, names), _copies_by_line(watched, names)
    matrix = tuple(
        MatrixInstructions(each.m, each.n, each.k, each.instructions, each.a_bytes, each.b_bytes)
        for each in sorted(watched.shapes, key=lambda shape: (shape.m, shape.n, shape.k))
    )
    waits = watched.waits
    return Counts(
        watched.stats.blocks,
        watched.stats.fmas + sum(each.multiply_adds for each in matrix),
        {
            name: Operand(
                _total(lines, name, ("load",)),
                _total(lines, name, ("store", "atomic")),
                _total_copies(copies, name, "load"),
                _total_copies(copies, name, "store"),
            )
            for name in names[:count]
        },
        _total(lines, "shared", ("load",)),
        _total(lines, "shared", ("store", "atomic")),
        lines,
        copies,
        matrix,
        Waits(waits.mbarrier_waits, waits.blocked_waits, waits.proxy_fences),
    )


def _by_line(watched: Watched, names: Sequence[str]) -> tuple[LineCounts, ...]:
    """Call sites of one line, memory and kind as one: an unrolled loop has many."""
    totals: dict[tuple[SourceLine | None, str, Kind, bool], Requests] = {}
    for site in watched.sites:
        memory = "shared" if site.shared else names[site.operand]
        key = (line_of(watched.kernel, site.pc), memory, _kind(site), bool(site.async_copy))
        totals[key] = totals.get(key, Requests()) + Requests(
            site.requests, site.lanes, site.bytes, site.cost, site.ideal, bool(site.approximate)
        )
    lines = [
        LineCounts(*key, bytes_per_lane=requests.bytes / requests.lanes, requests=requests)
        for key, requests in totals.items()
    ]
    return tuple(sorted(lines, key=lambda c: (*_line_order(c.line), c.memory, c.kind)))


def _copies_by_line(watched: Watched, names: Sequence[str]) -> tuple[CopyLine, ...]:
    totals: dict[tuple[SourceLine | None, str | None, Kind], Copies] = {}
    for site in watched.copies:
        operand = names[site.operand] if site.operand < len(names) else None
        key: tuple[SourceLine | None, str | None, Kind] = (
            line_of(watched.kernel, site.pc),
            operand,
            "store" if site.store else "load",
        )
        copies = Copies(site.copies, site.global_bytes, site.saved_bytes, site.shared_bytes)
        totals[key] = totals.get(key, Copies()) + copies
    lines = [CopyLine(*key, copies=copies) for key, copies in totals.items()]
    return tuple(sorted(lines, key=lambda c: (*_line_order(c.line), str(c.operand), c.kind)))


def _line_order(line: SourceLine | None) -> tuple[str, int]:
    return ("", 0) if line is None else (line.file, line.line)


def _kind(site: SiteCounts) -> Kind:
    if site.atomic:
        return "atomic"
    return "store" if site.write else "load"


def _total(lines: Iterable[LineCounts], memory: str, kinds: tuple[Kind, ...]) -> Requests:
    return sum((c.requests for c in lines if c.memory == memory and c.kind in kinds), Requests())


def _total_copies(lines: Iterable[CopyLine], operand: str, kind: Kind) -> Copies:
    return sum((c.copies for c in lines if c.operand == operand and c.kind == kind), Copies())
