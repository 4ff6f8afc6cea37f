"""The report on predictions: its figures on numbers worked out by hand, and on the records that are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planner_report import Point, bias, covered, fitted, groups, kendall, kernels, mape, points, spearman, tables

from tilewright.errors import UsageError
from tilewright.planner.calibration import Calibration, shipped

RESULTS = Path(__file__).resolve().parent.parent / "results"
RECORDS = kernels(RESULTS / name for name in ("ladder_h200.jsonl", "tensor_rows_h200.jsonl"))


def point(measured: float, predicted: float) -> Point:
    return Point("wgmma", 11, "a problem", f"{measured}", measured, predicted, 0.9 * predicted, 1.1 * predicted)


def test_errors_of_three_points() -> None:
    some = [point(100, 110), point(200, 180), point(400, 400)]
    assert mape(some) == pytest.approx(20 / 3)
    assert bias(some) == pytest.approx(100 * ((1.1 * 0.9) ** (1 / 3) - 1))
    assert covered(some) == pytest.approx(200 / 3)  # 200 lies above 1.1 x 180
    assert (spearman(some), kendall(some)) == pytest.approx((1.0, 1.0))


def test_ranks_of_one_swapped_pair() -> None:
    some = [point(1, 1), point(2, 3), point(3, 2), point(4, 4)]
    assert spearman(some) == pytest.approx(0.8)  # 1 - 6 x 2 / (4 x 15)
    assert kendall(some) == pytest.approx(4 / 6)  # 5 pairs in order, 1 not


def test_what_was_recorded_is_predicted() -> None:
    found = points(RECORDS)
    assert {each.rung for each in found} == set(range(12))
    main = groups(found)["rung 11"]
    assert len(main) >= 14
    assert mape(main) < 8, "what the planner is for"
    assert tables(found).count("\n") > len(found)


def test_residuals_are_fitted_stated_and_few(tmp_path: Path) -> None:
    base = replace(shipped("h200"), residuals=())
    better = fitted(RECORDS, base)
    assert {each[:2] for each in better.residuals} <= {("mma_sync", "energy"), ("simt", "issue")}
    for rung in (4, 5):
        before, after = (mape([p for p in points(RECORDS, each) if p.rung == rung]) for each in (base, better))
        assert after <= before
    better.save(tmp_path / "with.json")
    assert Calibration.load(tmp_path / "with.json") == better
    with pytest.raises(UsageError, match="family 'simt' has 4 residuals; at most 3 may be fitted"):
        replace(base, residuals=tuple(("simt", name, 1.1) for name in "abcd"))
    with pytest.raises(UsageError, match="residual a of simt is 0"):
        replace(base, residuals=(("simt", "a", 0.0),))
