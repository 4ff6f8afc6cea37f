"""Rows, places and shapes that the tests of ``tune`` share."""

from __future__ import annotations

from typing import Any

import tilewright
from tilewright.gpu import get_gpu
from tilewright.problem import Problem
from tilewright.tune.key import What, Where
from tilewright.tune.rows import Row, Tried

HERE = Where("NVIDIA H200", 132, "580.1", tilewright.__version__, "0123456789abcdef", "13.5")
H200 = get_gpu("h200")


def posed(m: int = 64, n: int = 512, k: int = 256, **values: Any) -> Problem:
    return Problem(m, n, k, **{"dtype": "bf16", "b_layout": "column", **values})


def row(problem: Problem | None = None, us: float = 12.5, **values: Any) -> Row:
    """A row whose winner is the second of the planner's candidates."""
    problem = problem or posed()
    ranked = tilewright.plan(problem=problem, gpu=H200).ranked[:3]
    tried = [
        Tried(each.label, each.family, each.plan.to_dict(), 10.0 + rank, "timed", None, 0.25, summary(us + (rank != 1)))
        for rank, each in enumerate(ranked)
        if each.plan is not None
    ]
    tried[2] = Tried(tried[2].label, tried[2].family, tried[2].plan, 12.0, "wrong", "2 of 100 elements wrong")
    made: dict[str, Any] = {
        "where": HERE, "what": What.of(problem), "tried": tuple(tried), "winner": 1, "band": 0.005, "decided": True,
        "rounds": 9, "method": "made up", "date": "2026-11-30T09:00:00Z",
    }  # fmt: skip
    return Row(**{**made, **values})


def summary(us: float) -> dict[str, float]:
    return {"median": us, "min": us * 0.99, "max": us * 1.01, "iqr": us * 0.01}
