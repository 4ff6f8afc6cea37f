"""The ladder: each rung's kernel file, its one idea, and the plan it runs with by default.

What a rung is called and what it is about stands in the front matter of its kernel file, nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import UsageError
from tilewright.kernel_file import CounterExample, KernelFile, front_matter
from tilewright.plan_base import Plan
from tilewright.plan_simt import SimtPlan
from tilewright.plan_tensor import FIRST as FIRST_TENSOR_RUNG
from tilewright.plan_tensor import SMS, TMA, TensorPlan
from tilewright.problem import Layout, Problem
from tilewright.source import CUDA_ROOT

_SIMT_DTYPES = (FP32, BF16)
_TENSOR_DTYPES = (BF16, FP16)

# What the plans of a rung have in common, then what differs by dtype. Rungs 1 to 3 share one tile, so that each shows
# its idea alone; rung 4's tile is the fastest of those measured (docs/notebook/). From rung 6 on each plan is that of
# the rung before and what the new idea needs.
_TILE = {"bm": 128, "bn": 128, "bk": 32}
_BLOCKED = {**_TILE, "threads": 256, "tm": 8, "tn": 8, "stages": 1, "pad": 4, "blocks_per_sm": 2}
_WARPGROUPS = {"bm": 128, "bn": 256, "bk": 64, "stages": 4, "consumers": 2}
_SPECIALISED = {**_WARPGROUPS, "producer_registers": 40, "consumer_registers": 232}
_PERSISTENT = {**_SPECIALISED, "group": 8, "blocks": SMS}
_CLUSTERED = {**_PERSISTENT, "cluster_m": 2}
_PLANS: Mapping[int, Mapping[str, Any]] = {
    0: {"bm": 8, "bn": 32, "bk": 1, "threads": 256},
    1: {**_TILE, "threads": 1024, "stages": 1},
    2: _BLOCKED,
    3: _BLOCKED,
    4: {
        "bm": 128, "bn": 256, "bk": 16, "threads": 256, "tm": 16, "tn": 8, "warps_m": 2, "warps_n": 4,
        "stages": 2, "pad": 4,
    },
    5: {"bm": 256, "bn": 128, "bk": 64, "stages": 3, "warps_m": 4, "warps_n": 2},
    6: _WARPGROUPS,
    7: _WARPGROUPS,
    8: _SPECIALISED,
    9: _PERSISTENT,
    10: _CLUSTERED,
    11: {**_CLUSTERED, "epilogue_columns": 64, "epilogue_slabs": 2},
}  # fmt: skip
# A K-step of the same bytes in bf16, so that as many barriers pass as many bytes.
_BF16_PLANS: Mapping[int, Mapping[str, Any]] = {4: {"bk": 32}}
_COUNTER_EXAMPLES: Mapping[int, tuple[tuple[str, str, str, tuple[DType, ...], Mapping[str, Any]], ...]] = {
    0: (
        (
            "swapped",
            "threadIdx.x walks the rows of C",
            "L1/L2 requests: a warp's load of A touches 32 rows, 32 sectors instead of 1",
            _SIMT_DTYPES,
            {"swapped": True, "bm": 32, "bn": 8},
        ),
    ),
    2: (
        (
            "adjacent",
            "a thread's 8 columns are adjacent: tx * 8 + j",
            "shared-memory port: wide loads of B stride over the banks, 2 wavefronts for 1",
            (FP32,),
            {"interleaved": False},
        ),
    ),
}


@dataclass(frozen=True)
class Rung(KernelFile):
    """One step of the ladder."""

    number: int

    @property
    def place(self) -> str:
        """``rung 5``."""
        return f"rung {self.number}"

    @property
    def identity(self) -> Mapping[str, int | str]:
        """Its number."""
        return {"rung": self.number}

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The element types it runs for."""
        return _TENSOR_DTYPES if self.number >= FIRST_TENSOR_RUNG else _SIMT_DTYPES

    @property
    def plan_kind(self) -> type[Plan]:
        """The class of its plans."""
        return TensorPlan if self.number >= FIRST_TENSOR_RUNG else SimtPlan

    @property
    def any_layout(self) -> bool:
        """Whether A and B may be column-major."""
        return self.number >= FIRST_TENSOR_RUNG

    @property
    def uses_tma(self) -> bool:
        """Whether it moves operands by TMA, and so takes only those whose lines start on 16-byte boundaries."""
        return self.number >= TMA

    @property
    def counter_examples(self) -> tuple[CounterExample, ...]:
        """The mistakes it is shown beside."""
        return tuple(CounterExample(*row) for row in _COUNTER_EXAMPLES.get(self.number, ()))

    def plan(self, dtype: DType, *, aligned: bool = True, a_layout: Layout = "row", b_layout: Layout = "row") -> Plan:
        """The default plan. Raises ``UsageError`` for a dtype, a layout or an alignment that the rung does not run."""
        if dtype not in self.dtypes:
            raise UsageError(f"rung {self.number} ({self.name}) runs {_names(self.dtypes)}, not {dtype.name}")
        values = {**_PLANS[self.number], **(_BF16_PLANS.get(self.number, {}) if dtype == BF16 else {})}
        return self.plan_kind(self.number, dtype, aligned=aligned, a_layout=a_layout, b_layout=b_layout, **values)

    def plan_for(self, problem: Problem, *, aligned: bool) -> Plan:
        """The default plan: a rung's is that of any size.

        Raises ``UsageError`` as ``plan`` does, and for a C of a type that the rung does not write.
        """
        plan = self.plan(problem.dtype, aligned=aligned, a_layout=problem.a_layout, b_layout=problem.b_layout)
        return plan.storing(problem.out_dtype)


@cache
def rungs() -> Mapping[int, Rung]:
    """All rungs by number, in order."""
    found = [_read(path) for path in sorted((CUDA_ROOT / "rungs").glob("[0-9][0-9]_*.cu"))]
    return {r.number: r for r in found}


def rung(number: int) -> Rung:
    """One rung. Raises ``UsageError`` listing the rungs there are."""
    try:
        return rungs()[number]
    except KeyError:
        raise UsageError(f"rung {number} does not exist; the ladder has {', '.join(map(str, rungs()))}") from None


def parse_rungs(text: str) -> list[Rung]:
    """Rungs named as ``"0-4"``, ``"2"`` or ``"0,2,4"``. Raises ``UsageError`` on anything else."""
    chosen: dict[int, Rung] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part, re.ASCII)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise UsageError(f"rungs {text!r} is not of the form 0-4, 2 or 0,2,4")
        first, last = int(match[1]), int(match[2] or match[1])
        chosen[last] = rung(last)  # raises for a rung beyond the ladder before the range is walked
        chosen.update((number, rung(number)) for number in range(first, last))
    return [chosen[number] for number in sorted(chosen)]


def select(
    text: str | None, dtype: DType | None, a_layout: Layout = "row", b_layout: Layout = "row"
) -> dict[DType, list[Rung]]:
    """The rungs to run, by dtype: of those named as for ``parse_rungs``, or of all, those that run it and the layouts.

    Without a dtype it is fp32 and bf16. Raises ``UsageError`` when no rung is left, or when one that is named reads
    row-major operands alone and another layout is asked for.
    """
    named = list(rungs().values()) if text is None else parse_rungs(text)
    column_major = "column" in (a_layout, b_layout)
    if column_major and text is not None:
        for each in named:
            if not each.any_layout:
                raise UsageError(
                    f"rung {each.number} ({each.name}) reads row-major operands; A {a_layout}-major and B "
                    f"{b_layout}-major are for rungs {FIRST_TENSOR_RUNG} and up"
                )
    chosen = {
        kind: [each for each in named if kind in each.dtypes and (each.any_layout or not column_major)]
        for kind in ([FP32, BF16] if dtype is None else [dtype])
    }
    if not any(chosen.values()):
        which = "no rung" if text is None else f"no rung of {text!r}"
        raise UsageError(
            f"{which} runs {dtype or 'fp32 or bf16'} with A {a_layout}-major and B {b_layout}-major; "
            f"{', '.join(f'rung {each.number} runs {_names(each.dtypes)}' for each in named)}"
        )
    return {kind: found for kind, found in chosen.items() if found}


def posed(
    shape: tuple[int, int, int], chosen: Mapping[DType, Sequence[KernelFile]], layouts: tuple[Layout, Layout]
) -> dict[DType, Problem]:
    """The problem that the rungs of each dtype are run on: with lines of 16 bytes where one of them uses TMA."""
    tight = {kind: Problem(*shape, kind, None, *layouts) for kind in chosen}
    uses_tma = {kind: any(rung.uses_tma for rung in climbed) for kind, climbed in chosen.items()}
    return {kind: problem.padded() if uses_tma[kind] else problem for kind, problem in tight.items()}


def _names(dtypes: Iterable[DType]) -> str:
    return ", ".join(kind.name for kind in dtypes)


def _read(path: Path) -> Rung:
    front = front_matter(path)
    return Rung(front["name"], front["title"], front["idea"], path, int(front["rung"]))
