"""A call on arrays of its own, which lie as the caller's do: kernels are tried on these and not on the caller's.

A candidate is right where it computes, bit for bit, what the first one does, the planner's pick. That can be asked
because the operands are small integers times a power of two, whose products fp32 adds up exactly in any order, and
because each operation of an epilogue is rounded by itself, so that all kernels give the same values. Only sums of rows
and columns depend on the order: theirs may differ by ``TOLERANCE`` of the largest in the result. The first one is held
against NumPy, a sample of rows and columns: two units in the last place, and ``TOLERANCE`` of the largest.
"""

from __future__ import annotations

import base64
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import measure, workspace
from tilewright.backends.base import Matrix
from tilewright.dtypes import DType
from tilewright.epilogue.code import ArrayValue
from tilewright.epilogue.graph import ACC
from tilewright.epilogue.graph import SECOND as SECOND_ACC
from tilewright.errors import UsageError, VerifyError
from tilewright.library.choose import Question, choose, three
from tilewright.library.fused import Fused
from tilewright.library.pair import SECOND
from tilewright.library.prepared import MORE, A, B, C, Prepared, make_ready
from tilewright.library.shapes import View
from tilewright.library.workspaces import Workspaces
from tilewright.plan_base import Plan
from tilewright.run import source_for
from tilewright.selection import kernel_of
from tilewright.source import KernelSource
from tilewright.verify import BadElement, Report

if TYPE_CHECKING:
    from tilewright.tune.bench import Poisoning

TOLERANCE = 2.0**-12
SAMPLED = 16, 256  # rows and columns that are held against NumPy
PERIOD = 2**22 - 3  # a prime: random numbers repeat after so many, in another column of each row
EXACT = 2**24  # fp32 has all integers up to there
LARGEST = 4  # of the integers that are multiplied
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Laid:
    """An array of a call: batch, rows and columns, of which those have one place that it is the same for.

    ``offset`` is by how many bytes its first element lies past a multiple of 16. An ``operand`` is multiplied;
    ``written`` is a result, and ``summed`` one whose last bits depend on the plan.
    """

    name: str
    role: int
    dtype: DType
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int
    operand: bool = False
    written: bool = False
    summed: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        """Where its first and its last element in memory lie from element (0, 0, ...)."""
        moves = [(max(size, 1) - 1) * step for size, step in zip(self.sizes, self.steps, strict=True)]
        return sum(min(each, 0) for each in moves), sum(max(each, 0) for each in moves)

    @property
    def elements(self) -> int:
        """Of memory, what lies between included, and as many as may be needed to begin where it does."""
        low, high = self.reach
        return high - low + 1 + 16 // self.dtype.itemsize


def _laid(name: str, role: int, dtype: DType, view: View, batch: Sequence[int], offset: int, **what: bool) -> Laid:
    steps = (*three(view.batch, 0), view.row, view.col)
    full = zip((*three(batch, 1), view.rows, view.cols), steps, strict=True)
    sizes = tuple(size if step else min(size, 1) for size, step in full)
    return Laid(name, role, dtype, sizes, steps, offset, **what)


@dataclass(frozen=True)
class Trial:
    """A call as a kernel sees it, without arrays. ``numbers`` are the bits of what its epilogue takes beside them."""

    question: Question
    after: Fused | None
    numbers: Mapping[str, int]

    def __str__(self) -> str:
        q, p = self.question, self.question.product
        more = [f"{' x '.join(map(str, p.batch))} times"] * bool(p.batch)
        more += ["with a pair of Bs"] * (p.second is not None) + ["with what follows it"] * (self.after is not None)
        return ", ".join([f"{p.m}x{p.n}x{p.k} {q.dtype}", *more])

    def encoded(self) -> str:
        """As text, for a process of this installation alone."""
        return base64.b64encode(pickle.dumps(self)).decode("ascii")

    @staticmethod
    def decoded(text: str) -> Trial:
        """The inverse, of what this installation has written."""
        found: Trial = pickle.loads(base64.b64decode(text))
        return found

    @property
    def arrays(self) -> list[Laid]:
        """All of them, by their roles."""
        q, p = self.question, self.question.product
        found = [
            _laid("a", A, q.dtype, p.a, p.batch, q.offsets[A], operand=True),
            _laid("b", B, q.dtype, p.b, p.batch, q.offsets[B], operand=True),
            _laid("out", C, q.out_dtype, p.c, p.batch, q.offsets[C], written=True),
        ]
        if p.second is not None:
            found.append(_laid(SECOND, MORE, q.dtype, p.second, p.batch, q.offsets[MORE], operand=True))
        if self.after is None:
            return found
        code = self.after.bound.code
        for spec, (_, role) in zip(code.members, self.after.fields, strict=True):
            value = self.after.bound.values[spec.name]
            if isinstance(value, ArrayValue):
                view = View(p.m, p.n, value.row, value.col, value.batch)
                sizes = three(p.batch, 1)
                written = spec in code.outputs
                offset = value.pointer % 16
                found.append(
                    _laid(spec.name, role, spec.dtype, view, sizes, offset, written=written, summed=spec.summed)
                )
        return found


class Stage:
    """The arrays of a trial in a backend's memory; ``exact`` ones are for comparing, others for timing."""

    def __init__(self, backend: Poisoning, trial: Trial, seed: int, *, exact: bool) -> None:
        self._backend = backend
        self._held: list[tuple[Laid, Matrix, int]] = []
        after = trial.after
        pointers = [0] * (MORE + (trial.question.product.second is not None) + (len(after.members) if after else 0))
        if after is not None:
            for name, (_, role) in zip(after.members, after.fields, strict=True):
                pointers[role] = trial.numbers.get(name, 0)
        for number, each in enumerate(trial.arrays):
            matrix = self._made(each, trial.question.product.k, 1000 * seed + number, exact)
            size, low = each.dtype.itemsize, each.reach[0]
            first = -low + (each.offset - matrix.pointer + low * size) % 16 // size
            pointers[each.role] = matrix.pointer + first * size
            self._held.append((each, matrix, first))
        self.pointers = tuple(pointers)

    def _made(self, each: Laid, k: int, seed: int, exact: bool) -> Matrix:
        if each.written:
            return self._backend.empty(1, each.elements, each.dtype)
        rng, count = np.random.default_rng(seed), min(each.elements, PERIOD)
        if each.operand and exact:
            values = _exact(rng, count, k)
        else:
            values = rng.standard_normal(count, dtype=np.float32)
            if each.name != "a" and each.operand:
                values *= np.float32(max(k, 1) ** -0.5)  # products near 1, as of a layer
        return self._backend.upload(np.resize(values.astype(each.dtype.numpy), (1, each.elements)))

    def host(self, laid: Laid) -> Array:
        """A copy of an array, as it lies."""
        each, matrix, first = next(held for held in self._held if held[0] == laid)
        return _seen(each, self._backend.download(matrix).reshape(-1)[first:])

    def poison(self) -> None:
        """Fill the results with NaN."""
        for each, matrix, _ in self._held:
            if each.written:
                self._backend.poison(matrix)

    def memory(self) -> list[Array]:
        """A copy of the memory of each result."""
        return [self._backend.download(matrix).reshape(-1) for each, matrix, _ in self._held if each.written]

    def results(self, memory: Sequence[Array]) -> list[Array]:
        """The bits of the results. Raises ``VerifyError`` where one was not written, or what is beside it was."""
        written = [(each, first) for each, _, first in self._held if each.written]
        return [_written(each, words, first) for (each, first), words in zip(written, memory, strict=True)]


def _exact(rng: np.random.Generator, count: int, k: int) -> Array:
    """Integers times a power of two, such that products are near 1 and fp32 adds k of them exactly."""
    if k >= EXACT:
        raise UsageError(f"k is {k}: candidates are compared where fp32 adds up exactly, below {EXACT}")
    largest = LARGEST if k * LARGEST**2 < EXACT else 1
    spread = largest * (largest + 1) / 3 * max(k, 1) ** 0.5  # the standard deviation of a product
    integers = rng.integers(-largest, largest, count, endpoint=True)
    return (integers * 2.0 ** -round(math.log2(max(spread, 1)) / 2)).astype(np.float32)


def _seen(each: Laid, memory: Array) -> Array:
    """An array in memory that begins with its first element."""
    steps = tuple(step * each.dtype.itemsize for step in each.steps)
    return np.lib.stride_tricks.as_strided(memory, each.sizes, steps)


def _written(each: Laid, memory: Array, first: int) -> Array:
    """The bits of a result. Raises ``VerifyError`` where one is still poison, or what lies between is not."""
    words = memory.view(f"u{each.dtype.itemsize}")
    poison = 256**each.dtype.itemsize - 1
    found, rest = _seen(each, words[first:]).copy(), words.copy()
    _seen(each, rest[first:])[...] = poison
    if (rest != poison).any():
        raise VerifyError(f"memory beside {each.name} was overwritten")
    missing = found == poison
    if missing.any():
        at = np.unravel_index(int(missing.argmax()), found.shape)
        raise VerifyError(
            f"{int(missing.sum()):,} of {found.size:,} elements of {each.name} were not written, first row {at[3]}, "
            f"column {at[4]}"
        )
    return found


def compared(each: Laid, found: Array, wanted: Array, share: float) -> Report:
    """Two results held against each other, as bits: they differ by at most a share of the largest that is wanted."""
    if np.array_equal(found, wanted):
        return Report(True, 0.0, 0.0, None, 0, found.size)
    got, want = (bits.view(each.dtype.numpy).astype(np.float64) for bits in (found, wanted))
    return _report(got, want, np.full(got.shape, share * _largest(want)))


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _report(got: Array, want: Array, bound: Array, places: tuple[Array, Array] | None = None) -> Report:
    """``places`` are the numbers of the rows and columns, where they are not all."""
    with np.errstate(invalid="ignore"):
        off = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, np.abs(got - want))
    off[np.isnan(off)] = math.inf
    bad, worst = off > bound, float(off.max(initial=0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        over = float(np.where(off == 0, 0.0, off / bound).max(initial=0.0))
    if not bad.any():
        return Report(True, over, worst, None, 0, got.size)
    at = tuple(int(x) for x in np.unravel_index(int(bad.argmax()), bad.shape))
    batch = int(np.ravel_multi_index(at[:-2], bad.shape[:-2])) if math.prod(bad.shape[:-2]) > 1 else None
    row, col = at[-2:] if places is None else (int(places[0][at[-2]]), int(places[1][at[-1]]))
    first = BadElement(row, col, float(got[at]), float(want[at]), float(bound[at]), batch)
    return Report(False, over, worst, first, int(bad.sum()), got.size)


def _spread(count: int, most: int) -> Array:
    """So many places among ``count``, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _picked(array: Array, place: Sequence[int], rows: Array, cols: Array) -> Array:
    """Rows and columns of one matrix, in fp32, of what has one for all too."""
    matrix = array[tuple(at if size > 1 else 0 for at, size in zip(place, array.shape, strict=False))]
    one, other = (at if size > 1 else np.zeros_like(at) for at, size in zip((rows, cols), matrix.shape, strict=True))
    picked: Array = matrix[np.ix_(one, other)].astype(np.float32)
    return picked


class Calls:
    """A trial with operands, as ``tune.bench.KernelBench`` has its candidates carry it out."""

    def __init__(self, backend: Poisoning, trial: Trial, l2_bytes: int, seed: int) -> None:
        self._backend, self._trial = backend, trial
        self._results = [each for each in trial.arrays if each.written]
        moved = sum(math.prod(each.sizes) * each.dtype.itemsize for each in trial.arrays)
        rotation = measure.rotation(max(moved, 1), l2_bytes)
        self.label = rotation.label
        self._exact = Stage(backend, trial, seed, exact=True)
        self.sets: Sequence[Any] = [
            Stage(backend, trial, seed + 1 + number, exact=False) for number in range(rotation.sets)
        ]
        self._wanted: list[Array] | None = None

    def source(self, plan: Plan) -> KernelSource:
        """The text of a candidate's kernel; those that pack or add up beside it are soon compiled."""
        after = self._trial.after
        return source_for(self._backend, kernel_of(plan), plan, None if after is None else after.bound)

    def check(self, name: str, plan: Plan, ran: Callable[[], None]) -> tuple[measure.Rival, Report]:
        """Twice on poisoned results, which must be the same bits, and those of the first candidate that was right.

        Raises ``VerifyError`` where they are not, naming the result, and as ``make_ready`` does.
        """
        choice = choose(self._trial.question, plan)
        prepared = make_ready(self._backend, self._trial.question, choice, Workspaces(self._backend), self._trial.after)
        # Its own: none is made while the backend's stream, which would fill it with zeros, is captured to be timed.
        memory = workspace.make(self._backend, prepared.workspace_bytes) if prepared.workspace_bytes else None
        runs = [self._once(prepared, memory) for _ in range(2)]
        ran()
        found, again = (self._exact.results(run) for run in runs)
        self._require("in a second run", [(each, 0.0) for each in self._results], again, found)
        shares = [(each, TOLERANCE if each.summed else 0.0) for each in self._results]
        if self._wanted is None:
            with np.errstate(all="ignore"):  # what overflows is infinite in both
                worst = self._against_numpy(found)
            self._wanted = found
        else:
            worst = self._require("beside the first candidate", shares, found, self._wanted)
        launches = [partial(self._launch, prepared, memory, stage.pointers) for stage in self.sets]
        return measure.Rival(name, launches), worst

    def _once(self, prepared: Prepared, memory: Matrix | None) -> list[Array]:
        self._exact.poison()
        self._launch(prepared, memory, self._exact.pointers, None)
        return self._exact.memory()

    def _launch(self, prepared: Prepared, memory: Matrix | None, pointers: tuple[int, ...], stream: Any) -> None:
        backend, at = self._backend, 0 if memory is None else memory.pointer
        if backend.name == "cuda":
            with backend.current():  # type: ignore[attr-defined]
                prepared.queue(pointers, int((backend.stream if stream is None else stream).handle), at)  # type: ignore[attr-defined]
        else:
            prepared.queue(pointers, 0, at)

    def _against_numpy(self, found: Sequence[Array]) -> Report:
        """A sample of the results, but those of reductions, of the first matrix and the last."""
        p, after = self._trial.question.product, self._trial.after
        laid = self._trial.arrays
        arrays = {each.name: self._exact.host(each) for each in laid if each.operand}
        beside = {each.name: self._exact.host(each) for each in laid if not each.operand and not each.written}
        values: dict[str, Any] = {name: np.uint32(bits).view(np.float32) for name, bits in self._trial.numbers.items()}
        rows, cols, whole = _spread(p.m, SAMPLED[0]), _spread(p.n, SAMPLED[1]), np.arange(p.k)
        reports = []
        for place in {(0, 0, 0), tuple(size - 1 for size in three(p.batch, 1))}:
            left = _picked(arrays["a"], place, rows, whole)
            products = [left @ _picked(arrays[name], place, whole, cols) for name in ("b", SECOND) if name in arrays]
            wanted: Sequence[Array] = products[:1]
            if after is not None:
                given = {name: _picked(each, place, rows, cols) for name, each in beside.items()}
                inputs = {**values, **given, **dict(zip((ACC, SECOND_ACC), products, strict=False))}
                wanted = [np.broadcast_to(each, products[0].shape) for each in after.graph.evaluate(inputs)]
            marks = ("",) if after is None else after.graph.marks or ("",) * len(wanted)
            for each, bits, values_wanted, mark in zip(self._results, found, wanted, marks, strict=True):
                if not mark:
                    want = values_wanted.astype(each.dtype.numpy).astype(np.float64)
                    got = _picked(bits.view(each.dtype.numpy), place, rows, cols).astype(np.float64)
                    bound = 4 * each.dtype.unit_roundoff * np.abs(want) + TOLERANCE * _largest(want)
                    reports.append((each, _report(got, want, bound, (rows, cols))))
        return _worst("beside NumPy", reports)

    @staticmethod
    def _require(
        when: str, results: Sequence[tuple[Laid, float]], found: Sequence[Array], wanted: Sequence[Array]
    ) -> Report:
        pairs = zip(results, found, wanted, strict=True)
        return _worst(when, [(each, compared(each, x, y, share)) for (each, share), x, y in pairs])


def _worst(when: str, reports: Sequence[tuple[Laid, Report]]) -> Report:
    """The worst of reports that are all well, of all elements. Raises ``VerifyError`` for the first that is not."""
    for each, report in reports:
        if not report.ok:
            raise VerifyError(f"{each.name} {when}: {report}")
    every = [report for _, report in reports]
    return replace(
        max(every, key=lambda report: report.max_error_over_bound), checked=sum(report.checked for report in every)
    )
