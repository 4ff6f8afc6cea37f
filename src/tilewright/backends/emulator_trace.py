"""What a kernel moves and computes, counted by running some of its blocks in the emulator.

The counts are those of the source as the host compiler sees it: its common subexpressions and hoisted loads stand in
for nvcc's. They say what is moved, never how fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.backends.base import Dim3, Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_lines import SourceLine
from tilewright.backends.emulator_observer import SiteCounts, Watched, line_of, watch
from tilewright.errors import UsageError
from tilewright.source import KernelSource

SECTOR_BYTES = 32  # CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"
Kind = Literal["load", "store", "atomic"]


@dataclass(frozen=True)
class Requests:
    """Warp-wide memory requests, added up.

    ``lanes`` and ``bytes`` are what their active lanes asked for. ``cost`` is in wavefronts for shared memory and in
    32-byte sectors for global; ``ideal`` is the least that the same lanes could cost. ``approximate`` when lanes of a
    warp passed a site unequally often, so that the grouping into requests is a guess. Not flagged, but too few, are the
    requests of a site where lanes take turns, each in its own round of a loop.
    """

    requests: int = 0
    lanes: int = 0
    bytes: int = 0
    cost: int = 0
    ideal: int = 0
    approximate: bool = False

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            self.requests + other.requests,
            self.lanes + other.lanes,
            self.bytes + other.bytes,
            self.cost + other.cost,
            self.ideal + other.ideal,
            self.approximate or other.approximate,
        )

    @property
    def cost_per_request(self) -> float | None:
        """Wavefronts or sectors a request; None without requests."""
        return _ratio(self.cost, self.requests)

    @property
    def ideal_per_request(self) -> float | None:
        """The least wavefronts or sectors a request; None without requests."""
        return _ratio(self.ideal, self.requests)

    @property
    def excess_per_request(self) -> float | None:
        """Wavefronts or sectors a request beyond the ideal; None without requests."""
        return _ratio(self.cost - self.ideal, self.requests)


@dataclass(frozen=True)
class LineCounts:
    """The requests of one source line to one memory: ``"shared"`` or an operand's name. ``line`` is None if unknown.

    ``asynchronous`` marks either side of a ``cp.async``: a global load and a shared store.
    """

    line: SourceLine | None
    memory: str
    kind: Kind
    asynchronous: bool
    bytes_per_lane: float
    requests: Requests


@dataclass(frozen=True)
class Operand:
    """Global-memory requests to one matrix. ``stores`` include atomics."""

    loads: Requests
    stores: Requests

    @property
    def all(self) -> Requests:
        """Loads and stores."""
        return self.loads + self.stores


@dataclass(frozen=True)
class Counts:
    """What the traced blocks did, all together.

    ``multiply_adds`` are those that were executed, ``useful`` those that C needs (None: all of them). They differ at
    the edges of a ragged problem, where a tile is filled up with zeros that are multiplied like the rest.
    """

    blocks: int
    multiply_adds: int
    operands: Mapping[str, Operand]
    shared_loads: Requests
    shared_stores: Requests
    lines: tuple[LineCounts, ...]
    useful: int | None = None

    @property
    def flops(self) -> int:
        """Floating-point operations that C needs: two a multiply-add, those on a tile's padding left out."""
        return 2 * (self.multiply_adds if self.useful is None else self.useful)

    @property
    def approximate(self) -> bool:
        """Whether the grouping of some accesses into requests is a guess."""
        return any(line.requests.approximate for line in self.lines)

    @property
    def flop_per_byte(self) -> float | None:
        """Useful FLOP per requested byte of A and B loads: what ``roofline.tile_intensity`` derives."""
        loaded = sum(operand.loads.bytes for name, operand in self.operands.items() if name in ("a", "b"))
        return _ratio(self.flops, loaded)

    @property
    def flop_per_byte_with_c(self) -> float | None:
        """Useful FLOP per requested byte of global memory, C's stores included."""
        return _ratio(self.flops, sum(operand.all.bytes for operand in self.operands.values()))

    @property
    def shared_load_bytes_per_mac(self) -> float | None:
        """Shared-memory bytes that threads load for one executed multiply-add, those on padding included."""
        return _ratio(self.shared_loads.bytes, self.multiply_adds)

    @property
    def shared(self) -> Requests:
        """All shared-memory requests."""
        return self.shared_loads + self.shared_stores

    def to_dict(self) -> dict[str, Any]:
        """The ``counted`` object of ``climb --json``; absent figures are None."""
        return {
            "flop_per_byte": self.flop_per_byte,
            "flop_per_byte_with_c": self.flop_per_byte_with_c,
            "shared_load_bytes_per_mac": self.shared_load_bytes_per_mac,
            "excess_wavefronts_per_request": self.shared.excess_per_request,
            "approximate": self.approximate,
            "operands": {
                name: {
                    "sectors_per_request": operand.all.cost_per_request,
                    "ideal": operand.all.ideal_per_request,
                }
                for name, operand in self.operands.items()
            },
        }


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

    ``names`` are those of the matrices among ``args``, in order. Raises ``EmulatorFault`` for what the kernel may not
    do, ``CompileError`` and ``UnavailableError`` as ``EmulatorBackend.compile``, and ``UsageError`` when there are
    more matrices than names.
    """
    matrices = [arg for arg in args if isinstance(arg, Matrix)]
    if len(matrices) > len(names):
        raise UsageError(f"the kernel takes {len(matrices)} matrices, and names has {len(names)}")
    watched = watch(backend, source, grid, block, args, shared_bytes, mode="trace", blocks=blocks, cluster=cluster)
    if watched.fault is not None:
        raise watched.fault
    assert watched.stats is not None
    lines = _by_line(watched, names)
    return Counts(
        watched.stats.blocks,
        watched.stats.fmas,
        {
            name: Operand(_total(lines, name, ("load",)), _total(lines, name, ("store", "atomic")))
            for name in names[: len(matrices)]
        },
        _total(lines, "shared", ("load",)),
        _total(lines, "shared", ("store", "atomic")),
        lines,
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
    return tuple(
        sorted(lines, key=lambda c: (str(c.line and c.line.file), c.line.line if c.line else 0, c.memory, c.kind))
    )


def _kind(site: SiteCounts) -> Kind:
    if site.atomic:
        return "atomic"
    return "store" if site.write else "load"


def _total(lines: Iterable[LineCounts], memory: str, kinds: tuple[Kind, ...]) -> Requests:
    return sum((c.requests for c in lines if c.memory == memory and c.kind in kinds), Requests())


def _ratio(a: int, b: int) -> float | None:
    return a / b if b else None
