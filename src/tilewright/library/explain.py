"""``explain``: what a call runs, why, by which path, in what predicted time, and what is copied for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.dtypes import DType
from tilewright.library.arrays import Array, place
from tilewright.library.choose import Choice, needs
from tilewright.library.fused import Fused
from tilewright.library.limits import excess
from tilewright.library.pair import SECOND
from tilewright.library.prepared import rooms_of
from tilewright.library.request import Request, names_of_outs
from tilewright.library.shapes import MOST_BATCH_DIMENSIONS, Product
from tilewright.library.staging import bytes_copied
from tilewright.library.sums import Partials, Sum, predicted_us
from tilewright.planner.machine import Machine
from tilewright.planner.plan import machine_of
from tilewright.planner.reasons import reasons
from tilewright.report.plan_words import REGIMES

SCHEMA = "tilewright.explain/1"
_CALLED = {SECOND: "b[1]"}
_SOURCES = {
    "tuned": "it was measured to be fastest on this GPU (tilewright tune)",
    "planned": "the planner predicts the shortest time for it",
    "bundled": "a bundle that was loaded says so (load_bundle)",
    "given": "the caller named it",
    "invariant": "it gives a row the same bits for every number of rows (batch_invariant); the runner-up would not",
}

_TIE = (
    "the planner predicts the shortest time for it, within a thousandth: the runner-up's is as short, and between such "
    "two the order of the families and their plans decides"
)


@dataclass(frozen=True)
class Copied:
    """A copy that a call makes: of which operand, why, and what it moves."""

    what: str
    why: str
    bytes_moved: int


@dataclass(frozen=True)
class Explanation:
    """What one call does. Its text is for people, ``to_dict`` for programs. Times are predicted, in microseconds.

    ``plan`` is None, and there is no kernel, where the result has no elements. ``batch`` are the batch dimensions that
    are left after merging; ``m``, ``n`` and ``k`` those of the kernel's product, which for a ``transposed`` one is
    out^T = b^T a^T. ``reasons`` are the planner's figures for its pick. ``predicted_us`` and ``runner_up`` are None
    where there is nothing to predict. The first has what packs operands before a kernel and adds up sums after it; so
    has the second, whose sums are taken to be the pick's. Where the batch has more dimensions than a kernel steps over,
    ``launches`` says how many there are, one after another; ``batch``, the kernel, its plan and path are those of the
    first, times and copies those of all. Where they are not alike, as where arrays of some start off 16-byte
    boundaries, ``path`` names the others, and there is no runner-up.
    """

    call: str
    where: str
    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    transposed: bool
    kernel: str | None
    label: str | None
    plan: Mapping[str, Any] | None
    source: str | None
    why: tuple[str, ...]
    reasons: tuple[str, ...]
    path: tuple[str, ...]
    predicted_us: float | None
    copied: tuple[Copied, ...]
    runner_up: tuple[str, float] | None
    workspace_bytes: int
    launches: int = 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        values = asdict(self) | {name: list(getattr(self, name)) for name in ("batch", "why", "reasons", "path")}
        values["copied"] = [asdict(each) for each in self.copied]
        if self.runner_up is not None:
            values["runner_up"] = {"label": self.runner_up[0], "predicted_us": self.runner_up[1]}
        return {"schema": SCHEMA, **values}

    def __str__(self) -> str:
        lines = [self.call, f"  where      {self.where}"]
        if self.kernel is None:
            return "\n".join([*lines, "  kernel     none: the result has no elements"])
        size = "x".join(map(str, (self.m, self.n, self.k)))
        batch = f", {' x '.join(map(str, self.batch))} times" if self.batch else ""
        lines += [
            f"  product    {size}{batch}{' (out^T = b^T a^T)' if self.transposed else ''}",
            f"  kernel     {self.kernel}, {self.label}",
            *_several("why", self.why),
            *_several("path", self.path),
        ]
        if self.predicted_us is not None:
            of_all = f", all {self.launches} launches" if self.launches > 1 else ""
            lines.append(f"  predicted  {self.predicted_us:.1f} us{of_all}")
        lines += _several("copied", [f"{each.what}: {each.why}; {each.bytes_moved:,} bytes" for each in self.copied])
        if not self.copied:
            lines.append("  copied     nothing")
        if self.runner_up is not None:
            lines.append(f"  runner-up  {self.runner_up[0]}, {self.runner_up[1]:.1f} us")
        if self.workspace_bytes:
            lines.append(f"  workspace  {self.workspace_bytes:,} bytes, kept for the stream")
        return "\n".join(lines)


@dataclass(frozen=True)
class Launches:
    """Launches that are alike, ``count`` of them: a product, its kernel, and what that does beside."""

    product: Product
    choice: Choice
    after: Fused | None
    count: int

    @property
    def sums(self) -> Sequence[tuple[Sum, Partials]]:
        """The sums of rows and columns that kernels after it add up."""
        return [(each, partials) for each, partials, _ in rooms_of(self.choice, self.product, self.after).sums]

    def sums_us(self, machine: Machine) -> float:
        """The predicted microseconds of these kernels."""
        return sum(predicted_us(partials, machine) for _, partials in self.sums)


def explanation(
    request: Request,
    product: Product,
    launches: Sequence[Launches],
    where: str,
    outs: Sequence[tuple[Sequence[int], DType]],
    shared: Mapping[str, Array] | None = None,
) -> Explanation:
    """That of a request whose kernels are chosen; ``where`` says what it runs on, ``product`` is the first launch's.

    ``outs`` are the shapes and types of the results. ``shared`` are the arrays that ``aliases`` has read from copies.
    """
    a, b = request.a, request.b
    pair = " and b[1] alike" if request.after is not None and request.after.second is not None else ""
    call = f"a {a.shape} {a.dtype} @ b {b.shape} {b.dtype}{pair} = out {request.shape} {request.out_dtypes[0]}"
    sizes = (product.m, product.n, product.k, product.batch, product.swapped)
    if not launches:
        return Explanation(call, where, *sizes, None, None, None, None, (), (), (), None, (), None, 0)
    first, choice = launches[0], launches[0].choice
    why = [_TIE if _is_tie(choice) else _SOURCES[choice.source]]
    found: tuple[str, ...] = ()
    if choice.planning is not None:
        why.append(REGIMES[choice.planning.regime])
        found = tuple(each.sentence for each in reasons(choice.planning))
    said = excess(request.options.sms, choice.plan, choice.problem, product.batch)
    why += [said] if said else []
    machine, _ = machine_of(None, request.options.sms, None)
    sums_us = [each.sums_us(machine) for each in launches]
    us = sum((each.choice.us + more) * each.count for each, more in zip(launches, sums_us, strict=True))
    second = None
    if choice.runner_up is not None and len(launches) == 1:
        second = choice.runner_up[0], (choice.runner_up[1] + sums_us[0]) * first.count
    return Explanation(
        call,
        where,
        *sizes,
        choice.plan.of,
        choice.label,
        choice.plan.to_dict(),
        choice.source,
        tuple(why),
        found,
        (*_path(first), *_in_turns(launches)),
        us,
        (*_staged(request, where, outs), *_read_apart(shared or {}), *_packed(launches)),
        second,
        max(rooms_of(each.choice, each.product, each.after).nbytes for each in launches),
        sum(each.count for each in launches),
    )


def _is_tie(choice: Choice) -> bool:
    """Whether the planner took it for no shorter a time than the runner-up's (``planner/rank.py``: steps of a time)."""
    return choice.source == "planned" and choice.runner_up is not None and choice.runner_up[1] <= choice.us


def _in_turns(launches: Sequence[Launches]) -> tuple[str, ...]:
    count = sum(each.count for each in launches)
    if count == 1:
        return ()
    said = f"more than {MOST_BATCH_DIMENSIONS} batch dimensions, which cannot be merged: {count} launches"
    first, *others = launches
    if not others:
        return (f"{said}, one after another",)
    of_others = (f"{each.count} {each.choice.plan.of}, {each.choice.label}" for each in others)
    return (f"{said}, one after another; {first.count} like this, {', '.join(of_others)}",)


def _packed(launches: Sequence[Launches]) -> tuple[Copied, ...]:
    """What is packed for them, alike copies as one."""
    moved: dict[tuple[str, str], int] = {}
    for each in launches:
        callers = {"a": "b", "b": "a"} if each.product.swapped else _CALLED
        for pack in each.choice.packs:
            key = f"{callers.get(pack.operand, pack.operand)}, packed", pack.why
            moved[key] = moved.get(key, 0) + pack.bytes_moved * each.count
    return tuple(Copied(*key, nbytes) for key, nbytes in moved.items())


def _path(launches: Launches) -> tuple[str, ...]:
    product, choice, after = launches.product, launches.choice, launches.after
    by_tma = [box.operand.upper() for box in choice.plan.tensor_boxes]
    wide = sorted(name.upper() for name in needs(choice.plan) if name.upper() not in by_tma)
    path = [f"{', '.join(by_tma)} by TMA"] if by_tma else []
    path += [f"{', '.join(wide)} by 16-byte accesses"] if wide else []
    packed = {_CALLED.get(each.operand, each.operand) for each in choice.packs}
    path += ["b[0] and b[1] side by side in the tiles of B"] if choice.plan.paired else []
    for name, lines in choice.lines.items():
        if name not in needs(choice.plan) and name not in _CALLED:
            path.append(f"{name.upper()} element by element{': ' + lines.why if lines.why else ''}")
    path += [f"{name.upper()} from a packed copy" for name in sorted(packed)]
    path += ["out is column-major: its transpose is computed"] if product.swapped else []
    if after is not None:
        named = ", ".join(name.removeprefix("arg_") for name in after.members)
        path.append(f"in the same kernel: {named or 'an epilogue without arguments'}")
    path += [
        f"{each.mark} by a second kernel, which adds up {partials.count} partial sums of each of {partials.kept} "
        f"{partials.along}s from the workspace"
        for each, partials in launches.sums
    ]
    return tuple(path)


def _staged(request: Request, where: str, outs: Sequence[tuple[Sequence[int], DType]]) -> tuple[Copied, ...]:
    """What NumPy's arrays cost on a GPU."""
    if request.a.kind != "numpy" or where == place(request.a.device) or "emulator" in where:
        return ()
    there, back = "NumPy's memory is the host's: to the GPU", "NumPy's memory is the host's: back from the GPU"
    read = [("a", request.a), ("b", request.b), *(() if request.after is None else request.after.named)]
    found = [Copied(name, there, bytes_copied(array)) for name, array in read]
    for name, (shape, dtype) in zip(names_of_outs(len(outs)), outs, strict=True):
        found.append(Copied(name, back, math.prod(shape) * dtype.itemsize))
    return tuple(found)


def _read_apart(shared: Mapping[str, Array]) -> tuple[Copied, ...]:
    why = "a result lies where it does, and is written while it is read: read from a copy"
    return tuple(
        Copied(name.removeprefix("arg_"), why, 2 * array.size * array.dtype.itemsize) for name, array in shared.items()
    )


def _several(head: str, lines: Any) -> list[str]:
    return [f"  {head if not number else '':<10} {line}" for number, line in enumerate(lines)]
