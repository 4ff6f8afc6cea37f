"""Random calls of ``tilewright.matmul`` whose results are known to the bit: what is drawn from a seed.

Operands are small integers, whose products fp32 adds up exactly in any order, and what follows is exact in fp32 too. So
the result is known whatever the kernel.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod
from typing import Any

import tilewright
from tilewright.epilogue.functions import INITIAL

DTYPES = ("bfloat16", "float16", "float32")
LAYOUTS = ("row", "column", "padded", "offset", "expanded", "flipped", "every other")
OUT_LAYOUTS = ("row", "column", "padded")
FOLLOWS = ("nothing", "nothing", "bias", "c", "all", "two results", "reductions", "pair")
WAYS = ("made", "out", "out", "stream", "prepared", "invariant")
REDUCTIONS = tuple(INITIAL)
EXACT = 2.0**24
"""Up to this magnitude fp32 has every integer."""
SCALE = 3


@dataclass(frozen=True)
class Case:
    """One call. ``a`` and ``b`` are shapes; ``follows`` is what follows the product, ``way`` how it is called.

    Ways: a result that is made, one given as ``out``, another stream than the current one, a prepared ``Matmul``
    executed several times on two sets of operands, and ``batch_invariant``.
    """

    seed: int
    dtype: str
    out_dtype: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    a_layout: str
    b_layout: str
    out_layout: str
    follows: str
    way: str
    reduction: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's."""
        rows, cols = self.a[-2:-1], self.b[-1:] if len(self.b) > 1 else ()
        one, other = self.a[:-2], self.b[:-2]
        count = max(len(one), len(other))
        pairs = zip((1,) * (count - len(one)) + one, (1,) * (count - len(other)) + other, strict=True)
        return (*(y if x == 1 else x for x, y in pairs), *rows, *cols)


def size(rng: random.Random, most: int) -> int:
    """Often small and ragged, sometimes round, rarely large."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((0, 1, 2))
    if kind < 0.6:
        return rng.randint(1, min(most, 300))
    return min(most, rng.choice((64, 128, 256, 512)) * rng.randint(1, 4) + rng.choice((0, 0, 0, 1, 8)))


def drawn(seed: int, most: int = 2048, macs: int = 2**31) -> Case:
    """The call of a seed: M and N up to ``most``, K up to four times that, so many multiplications at most.

    Nine in ten have a sixteenth of them.
    """
    rng = random.Random(seed)
    dtype = rng.choice(DTYPES)
    out_dtype = dtype if rng.random() < 0.5 else rng.choice(DTYPES)
    m, n, k = size(rng, most), size(rng, most), size(rng, 4 * most)
    batch = [rng.randint(1, 4) for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 2, 2, 4)))]
    limit = macs if rng.random() < 0.1 else macs // 16
    while m * n * k * prod(batch) > limit:
        longest = max(m, n, k)
        m, n, k = (x * 5 // 8 if x == longest else x for x in (m, n, k))
    own = [[length if rng.random() < 0.8 else 1 for length in batch[rng.randint(0, len(batch)) :]] for _ in "ab"]
    a, b = (*own[0], m, k), (*own[1], k, n)
    follows, way = rng.choice(FOLLOWS), rng.choice(WAYS)
    if follows == "pair" and dtype == "float32":  # pairs are of tensor cores
        follows = "bias"
    if follows == "nothing" and way in ("made", "out"):
        a = a[1:] if len(a) == 2 and rng.random() < 0.2 else a
        b = b[:1] if len(b) == 2 and rng.random() < 0.2 else b
    return Case(
        seed, dtype, out_dtype, a, b, rng.choice(LAYOUTS), rng.choice(LAYOUTS),
        "padded" if follows == "pair" else rng.choice(OUT_LAYOUTS), follows, way, rng.choice(REDUCTIONS),
    )  # fmt: skip


def operand(torch: Any, layout: str, device: str, dtype: Any, shape: tuple[int, ...], skip: int = 5) -> Any:
    """Integers of that shape from the generator of PyTorch, laid out as asked for; ``skip`` elements of padding."""

    def integers(*sizes: int) -> Any:
        return torch.randint(-4, 5, sizes, device=device, dtype=torch.float32).to(dtype)

    if len(shape) < 2:
        return integers(*shape, 2)[..., 0] if layout == "every other" else integers(*shape)
    *batch, rows, cols = shape
    if layout == "column":
        return integers(*batch, cols, rows).mT
    if layout == "padded":
        return integers(*batch, rows, cols + 8 * skip)[..., :cols]
    if layout == "offset":
        return integers(*batch, rows, cols + skip)[..., skip:]
    if layout == "expanded":
        return integers(*batch, 1, cols).expand(*batch, rows, cols)
    if layout == "flipped":  # PyTorch has no negative steps; a permuted batch is as unusual
        return integers(rows, *batch, cols).movedim(0, -2)
    if layout == "every other":
        return integers(*batch, rows, 2 * cols)[..., ::2]
    return integers(*batch, rows, cols)


def room(torch: Any, case: Case, device: str, like: Any) -> Any:
    """An array full of NaN for a result; padded rows are of whole 16 bytes."""
    dtype, nan = like.dtype, float("nan")
    if like.dim() < 2 or tuple(like.shape) != case.shape:
        return torch.full(tuple(like.shape), nan, device=device, dtype=dtype)
    *front, last = case.shape
    if case.out_layout == "column":
        return torch.full((*front[:-1], last, front[-1]), nan, device=device, dtype=dtype).mT
    wide = -(-(last + 1) // 8) * 8 if case.out_layout == "padded" else last
    return torch.full((*front, wide), nan, device=device, dtype=dtype)[..., :last]


class Operands:
    """The arrays of a case, the arguments of its call and what must come out, a tuple of tensors."""

    def __init__(self, torch: Any, case: Case, device: str) -> None:
        self.dtype, self.out_dtype = getattr(torch, case.dtype), getattr(torch, case.out_dtype)
        skip = case.seed % 7 + 1

        def made(layout: str, shape: tuple[int, ...], dtype: Any = self.dtype) -> Any:
            return operand(torch, layout, device, dtype, shape, skip)

        self.a, self.b = made(case.a_layout, case.a), made(case.b_layout, case.b)
        self.options: dict[str, Any] = {"out_dtype": self.out_dtype}
        product = torch.matmul(self.a.double(), self.b.double()).float()
        assert tuple(product.shape) == case.shape
        wanted: tuple[Any, ...] = (product,)
        if case.follows in ("bias", "all"):
            self.options["bias"] = made("row", (1, case.shape[-1]))[0]
        if case.follows in ("c", "all"):
            self.options |= {"alpha": 0.5, "beta": 2, "c": made("every other", case.shape, self.out_dtype)}
            wanted = (wanted[0] * 0.5 + self.options["c"].float() * 2,)
        if "bias" in self.options:
            wanted = (wanted[0] + self.options["bias"].float(),)
        if case.follows == "all":
            residual = made("padded", case.shape)
            self.options |= {"epilogue": _all, "args": {"residual": residual, "scale": SCALE}}
            wanted = (torch.relu(wanted[0]) * SCALE + residual.float(),)
        elif case.follows == "two results":
            self.options["epilogue"] = _two
            wanted = (torch.relu(product), product)
        elif case.follows == "reductions" and _is_exact(product, case.reduction):
            self.options["epilogue"] = _REDUCING[case.reduction]
            wanted = (product, _reduced(torch, product, case.reduction))
        elif case.follows == "pair":
            up = made(case.b_layout, case.b)
            self.b = (self.b, up)
            self.options["epilogue"] = _pair
            wanted = (torch.relu(product) - torch.matmul(self.a.double(), up.double()).float(),)
        kinds = [self.out_dtype, torch.float32 if case.follows == "reductions" else self.out_dtype]
        self.wanted = tuple(each.to(kind) for each, kind in zip(wanted, kinds, strict=False))


def _all(acc: Any, residual: Any, scale: Any) -> Any:
    return tilewright.relu(acc) * scale + residual


def _two(acc: Any) -> Any:
    return tilewright.relu(acc), acc


def _pair(gate: Any, up: Any) -> Any:
    return tilewright.relu(gate) - up


def _reducing(mark: str) -> Any:
    reduce = getattr(tilewright, mark)
    return lambda acc: (acc, reduce(acc))


_REDUCING = {mark: _reducing(mark) for mark in REDUCTIONS}


def _is_exact(product: Any, mark: str) -> bool:
    """Whether fp32 has the reduction to the bit, in any order."""
    if not mark.endswith("_sum"):
        return True
    sums = product.double().abs().sum(-1 if mark.startswith("row") else -2)
    return not sums.numel() or float(sums.max()) < EXACT


def _reduced(torch: Any, product: Any, mark: str) -> Any:
    axis, values = -1 if mark.startswith("row") else -2, product.double()
    if mark.endswith("_sum"):
        return values.sum(axis)
    values = values.abs() if mark.endswith("absmax") else values
    first = torch.full_like(values.narrow(axis, 0, 0).sum(axis).unsqueeze(axis), INITIAL[mark])
    return torch.cat([values, first], axis).amax(axis)
