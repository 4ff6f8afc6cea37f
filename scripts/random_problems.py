#!/usr/bin/env python
"""Random calls of ``tilewright.matmul``, each result held bit for bit against float64. Needs PyTorch.

Operands are small integers, whose products fp32 adds up exactly in any order, and what follows is exact in fp32 too; so
the result is known to the bit, whatever the kernel. Shapes, strides, batches, element types, what follows the product
and ``out`` are drawn at random from a seed. ``--device cuda`` runs kernels on a GPU, ``cpu`` in the emulator.

A new plan costs a compile; once ``--plans`` of them are there, those of the planner's first 16 that are known go first.
The last line is a JSON record: how many problems, by which kernels, and the seeds of those that went wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import time
from typing import Any

import tilewright
from tilewright.errors import TilewrightError
from tilewright.library import choose, ready
from tilewright.planner.candidate import Candidate
from tilewright.planner.planning import Planning

DTYPES = ("bfloat16", "float16", "float32")
LAYOUTS = ("row", "column", "padded", "offset", "expanded", "flipped", "every other")
MOST_MACS = 2**31
KNOWN: set[Any] = set()


def size(rng: random.Random, most: int) -> int:
    """Often small and ragged, sometimes round, rarely large."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((0, 1, 2))
    if kind < 0.6:
        return rng.randint(1, min(most, 300))
    return min(most, rng.choice((64, 128, 256, 512)) * rng.randint(1, 4) + rng.choice((0, 0, 0, 1, 8)))


def operand(torch: Any, rng: random.Random, device: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Integers of that shape, laid out at random."""

    def integers(*sizes: int) -> Any:
        return torch.randint(-4, 5, sizes, device=device).to(dtype)

    *batch, rows, cols = shape
    layout = rng.choice(LAYOUTS)
    if layout == "column":
        return integers(*batch, cols, rows).mT
    if layout == "padded":
        return integers(*batch, rows, cols + 8 * rng.randint(1, 3))[..., :cols]
    if layout == "offset":
        first = rng.randint(1, 7)
        return integers(*batch, rows, cols + first)[..., first:]
    if layout == "expanded":
        return integers(*batch, 1, cols).expand(*batch, rows, cols)
    if layout == "flipped":  # PyTorch has no negative steps; a permuted batch is as unusual
        return integers(rows, *batch, cols).movedim(0, -2)
    if layout == "every other":
        return integers(*batch, rows, 2 * cols)[..., ::2]
    return integers(*batch, rows, cols)


def one(torch: Any, seed: int, device: str, most: int) -> tuple[str, bool]:
    """A problem: the kernel that ran, and whether the result is right."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype, out_dtype = (getattr(torch, rng.choice(DTYPES)) for _ in range(2))
    if rng.random() < 0.5:
        out_dtype = dtype
    m, n, k = size(rng, most), size(rng, most), size(rng, 4 * most)
    batch = [rng.randint(1, 4) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    while m * n * k > MOST_MACS:
        m, k = (m + 1) // 2, (k + 1) // 2
    own = [[length if rng.random() < 0.8 else 1 for length in batch[rng.randint(0, len(batch)) :]] for _ in "ab"]
    a = operand(torch, rng, device, dtype, (*own[0], m, k))
    b = operand(torch, rng, device, dtype, (*own[1], k, n))
    if rng.random() < 0.05 and a.dim() == 2 and m:
        a = a[0]
    if rng.random() < 0.05 and b.dim() == 2 and n:
        b = b[:, 0]
    wanted = torch.matmul(a.double(), b.double()).float()
    options: dict[str, Any] = {}
    follows = rng.choice(("nothing", "nothing", "bias", "c", "all"))
    if follows != "nothing" and a.dim() > 1 and b.dim() > 1:
        if follows in ("bias", "all"):
            options["bias"] = operand(torch, rng, device, dtype, (1, n))
            wanted_bias = options["bias"].float()
        if follows in ("c", "all"):
            c = operand(torch, rng, device, rng.choice((dtype, out_dtype)), tuple(wanted.shape))
            options |= {"alpha": 0.5, "beta": 2, "c": c}
            wanted = wanted * 0.5 + c.float() * 2
        if "bias" in options:
            wanted = wanted + wanted_bias
        if follows == "all":
            residual = operand(torch, rng, device, dtype, tuple(wanted.shape))
            options |= {"epilogue": after, "args": {"residual": residual, "scale": 3}}
            wanted = torch.relu(wanted) * 3 + residual.float()
    options["out_dtype"] = out_dtype
    if rng.random() < 0.5 and wanted.dim() > 1:
        shape, nan = tuple(wanted.shape), float("nan")
        layout = rng.choice(("row", "column", "padded"))
        if layout == "column":
            out = torch.full((*shape[:-2], shape[-1], shape[-2]), nan, device=device, dtype=out_dtype).mT
        else:
            wide = shape[-1] + (rng.randint(1, 9) if layout == "padded" else 0)
            out = torch.full((*shape[:-1], wide), nan, device=device, dtype=out_dtype)[..., : shape[-1]]
        options["out"] = out
    options["backend"] = "emulator" if device == "cpu" else "auto"
    told = tilewright.explain(a, b, **options)
    found = tilewright.matmul(a, b, **options)
    KNOWN.add(str(told.plan))
    packed = " packed" if told.copied else ""
    return f"{told.kernel or 'nothing'}{packed}", bool(torch.equal(found, wanted.to(out_dtype)))


def after(acc: Any, residual: Any, scale: Any) -> Any:
    """What is traced."""
    return tilewright.relu(acc) * scale + residual


def prefer_known(plans: int) -> None:
    """Once so many plans were compiled, take those of the planner's first candidates that are."""
    whole = choose.candidates

    def chosen(planning: Planning, most: int) -> list[Candidate]:
        found = whole(planning, most)
        if len(KNOWN) < plans:
            return found
        return sorted(found, key=lambda each: each.plan is None or str(each.plan.to_dict()) not in KNOWN)

    choose.candidates = chosen


def main() -> int:
    """Run, say what went wrong, print the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--plans", type=int, default=150)
    parser.add_argument("--most", type=int, default=2048, help="the largest M and N; K is up to four times that")
    given = parser.parse_args()
    import torch

    prefer_known(given.plans)
    kernels: collections.Counter[str] = collections.Counter()
    wrong: list[int] = []
    refused: collections.Counter[str] = collections.Counter()
    begin, done = time.monotonic(), 0
    for seed in range(given.first, given.first + given.count):
        if time.monotonic() - begin > given.seconds:
            break
        try:
            kernel, right = one(torch, seed, given.device, given.most)
            kernels[kernel] += 1
        except TilewrightError as error:
            refused[f"{type(error).__name__}: {str(error)[:160]}"] += 1
            right = False
        if not right:
            wrong.append(seed)
            print(f"seed {seed} went wrong", file=sys.stderr)
        done += 1
        if done % 100 == 0:
            ready.forget()  # what was prepared holds memory on the host
    name = torch.cuda.get_device_name() if given.device == "cuda" else "emulator"
    record = {
        "device": name, "tilewright": tilewright.__version__, "torch": torch.__version__, "first_seed": given.first,
        "problems": done, "wrong": wrong, "kernels": dict(kernels.most_common()), "refused": dict(refused),
        "plans": len(KNOWN), "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip
    print(json.dumps(record))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
