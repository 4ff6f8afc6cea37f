"""The bench of fused calls without a GPU: whose plans are measured, and what its table says."""

from __future__ import annotations

from typing import Any

import bench_fused
import numpy as np
import pytest
from bench_fused import CASES, EAGER, OURS, OURS_TUNED, Case, plans_of, report
from fake_tune_child import command
from matmul_cases import integers
from tune_cases import HERE

from tilewright import BF16


@pytest.mark.parametrize("follows", sorted({case.follows for case in CASES}))
def test_the_call_itself_is_tuned(monkeypatch: pytest.MonkeyPatch, follows: str) -> None:
    monkeypatch.setattr(bench_fused, "TUNED", 2)
    case = Case(follows, 40, 48, 72)
    a, b, c = integers(1, (40, 72), BF16), integers(2, (72, 48), BF16), integers(3, (72, 48), BF16)
    given = [a, b, c] if follows == "swiglu" else [a, b, b[0], c[:40]]
    found = plans_of(case, given, np.zeros((40, 48), BF16.numpy), where=HERE, command=command({"2": {"us": 9.0}}))
    assert list(found) == [OURS, OURS_TUNED]
    assert found[OURS] != found[OURS_TUNED]
    assert getattr(found[OURS], "paired", False) == (follows == "swiglu")


def test_a_case_is_met_by_the_better_of_pick_and_tuned() -> None:
    def line(case: Case, **samples: list[float]) -> dict[str, Any]:
        times = {EAGER: [105.0], "torch.compile": [106.0], OURS: [104.0], **samples}
        return {"follows": case.follows, "m": case.m, "n": case.n, "k": case.k, "samples_us": times}

    tuned = [line(case, **{OURS_TUNED: [100.0]}) for case in CASES]
    assert report(tuned)[0]
    assert "| 1.050 | met |" in report(tuned)[1]
    assert not report([*tuned[1:], line(CASES[0])])[0]
