"""Calls that are still to come: requests for arrays that nobody has yet, from shapes as the command line takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.dtypes import DType, dtype
from tilewright.epilogue.compose import name_of
from tilewright.epilogue.symbol import is_number
from tilewright.errors import UsageError
from tilewright.library.arrays import Array
from tilewright.library.fused import After, mapping, number
from tilewright.library.request import Options, Request
from tilewright.planner.plan import LAYOUTS
from tilewright.problem import Layout, Problem
from tilewright.tune.shapes import POSSIBLE, problem_of, problems_of

_EXTENT = re.compile(r"(?:([m1]),)?([n1])(?::(\w+))?")


def problems(shapes: Any, kind: DType | str, layout: str, out_dtype: DType | str | None) -> list[Problem]:
    """The problems that shapes name, each once, in order: one shape or several, as text, ``(m, n, k)``, or ``Problem``.

    Raises ``UsageError`` for what is none.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r} is not one of {', '.join(LAYOUTS)} (A then B, row- or column-major)")
    a, b = LAYOUTS[layout]
    given = {"dtype": dtype(kind), "out_dtype": out_dtype, "a_layout": a, "b_layout": b}
    found: list[Problem] = []
    for each in _several(shapes):
        if isinstance(each, Problem):
            found.append(each)
        elif isinstance(each, str):
            named = problems_of([each], dtype(kind).name, (a, b))
            found += named if out_dtype is None else [problem.changed(out_dtype=out_dtype) for problem in named]
        else:
            found.append(problem_of(each, given, "shapes"))
    return list(dict.fromkeys(found))


def _several(shapes: Any) -> list[Any]:
    if isinstance(shapes, str | Problem | Mapping):
        return [shapes]
    if not isinstance(shapes, Iterable):
        raise UsageError(f"shapes is {shapes!r}; {POSSIBLE}, or a list of these")
    listed = list(shapes)
    one = len(listed) == 3 and all(isinstance(each, int) for each in listed)
    return [tuple(listed)] if one else listed


def request(
    problem: Problem,
    device: int,
    options: Options,
    *,
    alpha: float = 1,
    beta: float = 0,
    c: str | None = None,
    bias: str | None = None,
    epilogue: Any = None,
    args: Mapping[str, Any] | None = None,
) -> Request:
    """The call that computes a problem, with arrays that start on 16-byte boundaries.

    ``c``, ``bias`` and what of ``args`` is no number say how arrays lie: ``"m,n"``, ``"m,1"``, ``"1,n"`` or ``"n"``,
    and ``"m,n:fp32"`` of another element type than A's. Raises ``UsageError`` for what says something else.
    """
    m, n, k = problem.m, problem.n, problem.k
    a = _array((m, k), problem.lda, problem.a_layout, problem.dtype, device)
    b = _array((k, n), problem.ldb, problem.b_layout, problem.dtype, device)
    padded = problem.ldc != max(n, 1)  # else the result is the call's to make
    outs = (_array((m, n), problem.ldc, "row", problem.out_dtype, device),) if padded else ()
    described = [(name, name, each) for name, each in (("c", c), ("bias", bias)) if each is not None]
    numbers = {}
    for name, value in sorted(mapping(args).items(), key=lambda item: str(item[0])):
        if is_number(value):
            numbers[name_of(name)] = float(value)
        else:
            described.append((name_of(name), f"args[{name!r}]", value))
    arrays = tuple((name, _described(said, value, problem, device)) for name, said, value in described)
    after, scale, share = None, number("alpha", alpha), number("beta", beta)
    if arrays or numbers or epilogue is not None or scale != 1 or share != 0:
        after = After(scale, share, epilogue, arrays, tuple(numbers.items()))
    return Request(a, b, outs, (m, n), (problem.out_dtype,), options, after)


def _described(said: str, value: Any, problem: Problem, device: int) -> Array:
    match = _EXTENT.fullmatch(value.replace(" ", "")) if isinstance(value, str) else None
    if match is None:
        shown = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
        raise UsageError(f"{said} is {shown}; 'm,n', 'm,1', '1,n' and 'n' are possible, and 'm,n:fp32' of fp32")
    lengths = {"m": problem.m, "n": problem.n, "1": 1}
    shape = tuple(lengths[each] for each in match.groups()[:2] if each is not None)
    return _array(shape, shape[-1], "row", problem.dtype if match[3] is None else dtype(match[3]), device)


def _array(shape: Sequence[int], ld: int, layout: Layout, kind: DType, device: int) -> Array:
    strides = (1,) if len(shape) == 1 else (ld, 1) if layout == "row" else (1, ld)
    return Array(0, tuple(shape), strides, kind, device, "dlpack", None)
