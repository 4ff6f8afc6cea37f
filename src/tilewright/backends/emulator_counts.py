"""What a traced launch did, in numbers: requests, copies, matrix instructions, and the ratios that are derived too.

``emulator_trace`` makes these. They say what is moved, never how fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.backends.emulator_lines import SourceLine

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
class Copies:
    """TMA copies, added up: of whole boxes, so that there is nothing to group and no sector is fetched in vain.

    ``global_bytes`` lie inside the tensor and are read or written once, however many blocks of a cluster receive them;
    ``saved_bytes`` are what those blocks would have read the more, each for itself. ``shared_bytes`` are written to the
    shared memories of all of them, the zeros beyond an edge too, or read from one.
    """

    copies: int = 0
    global_bytes: int = 0
    saved_bytes: int = 0
    shared_bytes: int = 0

    def __add__(self, other: Copies) -> Copies:
        return Copies(
            self.copies + other.copies,
            self.global_bytes + other.global_bytes,
            self.saved_bytes + other.saved_bytes,
            self.shared_bytes + other.shared_bytes,
        )


@dataclass(frozen=True)
class MatrixInstructions:
    """Tensor-core instructions of one shape: ``m`` is 64 for wgmma, which a warpgroup does, and 16 for mma.sync.

    ``a_bytes`` and ``b_bytes`` are what they read from shared memory themselves: all of B once an instruction, for the
    four warps together. Both are 0 for mma.sync, whose operands ldmatrix has put into registers, by shared loads.
    """

    m: int
    n: int
    k: int
    instructions: int
    a_bytes: int = 0
    b_bytes: int = 0

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of all of them."""
        return self.m * self.n * self.k * self.instructions

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that they read."""
        return self.a_bytes + self.b_bytes


@dataclass(frozen=True)
class Waits:
    """Waits at mbarriers, a thread each, how many of them had to block in the emulator's order, and proxy fences."""

    mbarrier: int = 0
    blocked: int = 0
    proxy_fences: int = 0


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
class CopyLine:
    """The TMA copies of one source line (None if unknown) of one tensor: an operand's name, None if it is none."""

    line: SourceLine | None
    operand: str | None
    kind: Kind
    copies: Copies


@dataclass(frozen=True)
class Operand:
    """What one matrix in global memory is asked: by lanes in ``loads`` and ``stores`` (atomics too), and by TMA."""

    loads: Requests
    stores: Requests
    copied_in: Copies = Copies()
    copied_out: Copies = Copies()

    @property
    def all(self) -> Requests:
        """Loads and stores of lanes."""
        return self.loads + self.stores

    @property
    def loaded_bytes(self) -> int:
        """Bytes read, those of a multicast once."""
        return self.loads.bytes + self.copied_in.global_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes written."""
        return self.stores.bytes + self.copied_out.global_bytes


@dataclass(frozen=True)
class Counts:
    """What the traced blocks did, all together: divide by ``blocks`` for one of them.

    ``multiply_adds`` are those that were executed, by FMAs and by matrix instructions; ``useful`` those that C needs
    (None: all of them). They differ at the edges of a ragged problem, where a tile is filled up with zeros that are
    multiplied like the rest.
    """

    blocks: int
    multiply_adds: int
    operands: Mapping[str, Operand]
    shared_loads: Requests
    shared_stores: Requests
    lines: tuple[LineCounts, ...]
    copy_lines: tuple[CopyLine, ...] = ()
    matrix: tuple[MatrixInstructions, ...] = ()
    waits: Waits = Waits()
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
        """Useful FLOP per requested byte of A and B: what ``roofline.tile_intensity`` derives.

        A byte that multicast gives to several blocks is requested once.
        """
        loaded = sum(operand.loaded_bytes for name, operand in self.operands.items() if name in ("a", "b"))
        return _ratio(self.flops, loaded)

    @property
    def flop_per_byte_with_c(self) -> float | None:
        """Useful FLOP per requested byte of global memory, C's stores included."""
        return _ratio(self.flops, sum(each.loaded_bytes + each.stored_bytes for each in self.operands.values()))

    @property
    def wgmma_shared_bytes(self) -> int:
        """Bytes of A and B that wgmma reads from shared memory."""
        return sum(each.shared_bytes for each in self.matrix)

    @property
    def shared_load_bytes_per_mac(self) -> float | None:
        """Shared-memory bytes that threads load and wgmma reads for one executed multiply-add, on padding too."""
        return _ratio(self.shared_loads.bytes + self.wgmma_shared_bytes, self.multiply_adds)

    @property
    def copied(self) -> Copies:
        """All TMA copies, in and out."""
        return sum((line.copies for line in self.copy_lines), Copies())

    @property
    def shared(self) -> Requests:
        """All shared-memory requests."""
        return self.shared_loads + self.shared_stores

    def to_dict(self) -> dict[str, Any]:
        """The ``counted`` object of ``climb --json``; absent figures are None.

        Bytes, FLOP, waits and fences are those of all ``blocks`` that were traced. Sectors are of lanes' requests, so
        None for an operand that only TMA touches.
        """
        copied = self.copied
        return {
            "blocks": self.blocks,
            "flop": self.flops,
            "flop_per_byte": self.flop_per_byte,
            "flop_per_byte_with_c": self.flop_per_byte_with_c,
            "shared_load_bytes_per_mac": self.shared_load_bytes_per_mac,
            "excess_wavefronts_per_request": self.shared.excess_per_request,
            "wgmma_shared_bytes": self.wgmma_shared_bytes,
            "tma_copies": copied.copies,
            "tma_bytes": copied.global_bytes,
            "tma_bytes_saved_by_multicast": copied.saved_bytes,
            "mbarrier_waits": self.waits.mbarrier,
            "mbarrier_waits_blocked": self.waits.blocked,
            "proxy_fences": self.waits.proxy_fences,
            "approximate": self.approximate,
            "operands": {
                name: {
                    "sectors_per_request": operand.all.cost_per_request,
                    "ideal": operand.all.ideal_per_request,
                    "loaded_bytes": operand.loaded_bytes,
                    "stored_bytes": operand.stored_bytes,
                }
                for name, operand in self.operands.items()
            },
        }


def _ratio(a: int, b: int) -> float | None:
    return a / b if b else None
