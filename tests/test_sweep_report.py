"""The report on a sweep: its figures on times made by hand, the rules it compares with, and the held-out shapes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sweep_file
import sweep_list
import sweep_report
import sweep_rules
from sweep_plans import Selection, choose, name_of, planning_of, values_of
from sweep_report import PLANNER, geometric_mean, percentile, regret, row_of, rows_of
from sweep_shapes import part_of, shapes

from tilewright import results
from tilewright.gpu import get_gpu
from tilewright.measure import Schedule
from tilewright.planner.candidate import Candidate
from tilewright.planner.plan import machine_of
from tilewright.problem import Problem

SHAPES = {str(shape): shape for shape in shapes()}
MACHINE = machine_of("h200", None, None)[0]
H200 = get_gpu("h200")
SCHEDULE = Schedule(slot_ms=2.5, rounds=4, graph_ms=1.0)
SMALL, HELD = SHAPES["256x4096x4096"], SHAPES["8192x8192x8192"]


def test_regret() -> None:
    assert regret(103.0, 100.0, 0.01) == pytest.approx(0.03)
    assert regret(103.0, 100.0, 0.04) == pytest.approx(0.03), "no noise excuses more than 2%"
    assert regret(101.5, 100.0, 0.04) == 0.0
    assert regret(100.0, 100.0, 0.0) == 0.0
    assert geometric_mean([0.0, 0.21]) == pytest.approx(0.1)
    assert percentile([0.5, 0.1, 0.2, 0.3, 0.4], 95) == 0.5
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([0.5, 0.1, 0.2, 0.3], 50) == 0.2


def test_noise_band() -> None:
    assert sweep_file.band_of([100, 100, 100], [101, 98, 100]) == pytest.approx(0.01)
    assert sweep_file.band_of([], []) == 0


def line(shape: Any, factors: list[float], clock: float = 1500.0, again: float = 1.0, skip: int = 0) -> dict[str, Any]:
    """A measurement of the first configurations, each so many times as long as predicted."""
    chosen = choose(planning_of(shape), shape, Selection(most=len(factors) + skip), SCHEDULE, 60 << 20)
    pairs = list(zip(chosen.plans, chosen.predicted_us, strict=True))[skip:]
    times = {name_of(p): [us * f, us * f, us * f, clock] for (p, us), f in zip(pairs, factors, strict=True)}
    first = next(iter(times))
    return {
        "schema": results.SWEEP_SCHEMA, "kind": "shape", "shape": list(shape.sizes), "run": "r", "l2": "",
        "first": first, "again": [us * again for us in times[first][:3]], "vendor": {"cuBLAS": [50.0, 50.0, 1500]},
        "times": times, "refused": {},
    }  # fmt: skip


def written(path: Path, *lines: dict[str, Any]) -> sweep_file.Sweep:
    plans = {
        name_of(plan): {"schema": results.SWEEP_SCHEMA, "kind": "plan", "name": name_of(plan), "plan": values_of(plan)}
        for shape in (SMALL, HELD)
        for plan in choose(planning_of(shape), shape, Selection(), SCHEDULE, 60 << 20).plans
    }
    sweep_file.append(path, [*plans.values(), *lines])
    return sweep_file.read(path)


def test_a_shape_by_hand(tmp_path: Path) -> None:
    made = line(SMALL, [1.2, 1.0, 1.0, 1.0, 1.0, 1.0])
    sweep = written(tmp_path / "s.jsonl", made)
    row = row_of(SMALL, sweep.shapes[SMALL.sizes], sweep.plans, MACHINE)
    assert row is not None
    medians = [values[0] for values in made["times"].values()]
    assert row.best_us == pytest.approx(min(medians))
    assert row.picked[PLANNER] == pytest.approx(medians[0]), "the planner takes its first, slow or not"
    assert row.regret(medians[0]) == pytest.approx(medians[0] / min(medians) - 1)
    assert row.top_us <= sorted(medians[:4])[0]
    assert row.pick_measured
    assert row.below_floor == ()
    assert row.cublas_us == 50.0
    assert row.spearman is not None


def test_a_list_of_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.jsonl"
    made = line(SMALL, [1.3, 1.0, 1.1, 1.0, 1.0, 1.0])
    sweep = written(path, made)
    medians = [values[0] for values in made["times"].values()]
    found = sweep_list.listing(SMALL, sweep.shapes[SMALL.sizes], sweep.plans, 2)
    assert found.ratios is not None
    assert found.ratios == pytest.approx((50.0 / medians[0], 50.0 / min(medians)))
    rows = [each for each in found.lines if each.startswith("| ") and each != sweep_list.HEAD]
    assert len(rows) == 3, "the two fastest, and the pick"
    times, ofs, prices, labels = zip(*(map(str.strip, each.strip("|").split("|")) for each in rows), strict=True)
    assert [float(us) for us in times] == pytest.approx([*sorted(medians)[:2], medians[0]], abs=0.005)
    assert [float(each) for each in ofs] == pytest.approx([50.0 / float(us) for us in times], abs=0.002)
    assert float(prices[-1]) == pytest.approx(1.3, abs=0.001), "the others are as predicted"
    place = 1 + sorted(medians).index(medians[0])
    assert labels[-1].endswith(f"**the pick, number {place}**")
    assert sweep_list.main([str(path), "--only", str(SMALL)]) == 0
    assert f"1 shapes: the picks {found.ratios[0]:.3f} of cuBLAS" in capsys.readouterr().out
    assert sweep_list.main([str(tmp_path / "none"), "--only", "no stratum"]) == 2


def test_spearman_of_the_same_and_the_reversed_order(tmp_path: Path) -> None:
    predicted = choose(planning_of(SMALL), SMALL, Selection(most=30), SCHEDULE, 60 << 20).predicted_us
    for wanted, factors in ((1.0, [1.0] * 30), (-1.0, [1e4 / us**2 for us in predicted])):
        sweep = written(tmp_path / str(wanted), line(SMALL, factors))
        row = row_of(SMALL, sweep.shapes[SMALL.sizes], sweep.plans, MACHINE)
        assert row is not None
        assert row.spearman == pytest.approx(wanted)
    assert sweep_report._spearman([]) is None


def test_a_pick_that_was_not_measured_is_counted(tmp_path: Path) -> None:
    sweep = written(tmp_path / "s.jsonl", line(SMALL, [1.0] * 6, skip=1))
    row = row_of(SMALL, sweep.shapes[SMALL.sizes], sweep.plans, MACHINE)
    assert row is not None
    assert not row.pick_measured
    _, text = sweep_report.part_table(part_of(SMALL), [row])
    assert "The planner's first candidate was not measured on 1" in text


def test_the_time_at_a_clock_falls_with_it() -> None:
    plan = planning_of(HELD).pick.plan
    assert plan is not None
    slow, fast = (sweep_report.at_clock(plan, HELD.problem, MACHINE, mhz) for mhz in (1200.0, 1600.0))
    assert 1.2 < slow / fast < 1.4, "compute-bound: about 1600 / 1200"
    sustained = sweep_report.at_clock(plan, HELD.problem, MACHINE, None)
    assert fast < sustained < slow
    assert sweep_report.at_clock(plan, HELD.problem, MACHINE, planning_of(HELD).clock_mhz) == pytest.approx(
        sustained, rel=0.002
    )


def test_the_floor() -> None:
    assert sweep_report.floor_us(SHAPES["1x4096x4096"].problem, MACHINE) == pytest.approx(
        (4096 * 4096 + 2 * 4096) * 2 / H200.hbm_bytes_per_s * 1e6
    )
    assert sweep_report.floor_us(HELD.problem, MACHINE) == pytest.approx(2 * 8192**3 / 989.4e12 * 1e6, rel=0.01)


# The rules


def candidate(tile: tuple[int, int], cluster: tuple[int, int] = (1, 1), **more: Any) -> Any:
    values = {"schedule": "cooperative", "tail": "whole", "stages": 4, "family": "wgmma", "split": 1, "swap_ab": False}
    return SimpleNamespace(tile=(*tile, 64), cluster=cluster, label=f"{tile}{cluster}", **{**values, **more})


def test_largest_tile() -> None:
    some = [candidate((64, 256)), candidate((256, 192)), candidate((128, 256)), candidate((128, 256), (2, 1))]
    square, thin = Problem(4096, 4096, 4096, "bf16"), Problem(64, 4096, 4096, "bf16")
    assert sweep_rules.largest_tile(some, square, H200) is some[1]
    assert sweep_rules.largest_tile(some, thin, H200) is some[0], "rows that C has not do not count"
    assert sweep_rules.largest_tile([some[3], some[2]], square, H200) is some[2], "of equals no cluster"
    assert sweep_rules.largest_tile([], square, H200) is None


def test_fewest_waves() -> None:
    # 4096x4096: 512 tiles of 128x256 are 4 waves of 132, the last of 116; 352 of 256x192 3, the last of 88.
    some = [candidate((128, 256)), candidate((256, 192)), candidate((256, 192), (2, 1)), candidate((128, 128))]
    square = Problem(4096, 4096, 4096, "bf16")
    assert sweep_rules.fewest_waves(some, square, H200) is some[2], "3 waves; clusters of two first"
    # 2304x2304: 9 x 18 = 162 of 256x128 and 18 x 9 of 128x256 both take 2 waves; 108 of 256x192 one.
    odd = Problem(2304, 2304, 4096, "bf16")
    assert sweep_rules.fewest_waves([some[0], some[1]], odd, H200) is some[1]
    # 128x16384: 64 of 128x256 and 128 of 128x128 are one wave, and the second is fuller.
    flat = Problem(128, 16384, 4096, "bf16")
    assert sweep_rules.fewest_waves([some[0], some[3]], flat, H200) is some[3]
    assert sweep_rules.fewest_waves([candidate((128, 128), split=4)], flat, H200) is None


def test_roofline_only() -> None:
    problem = Problem(4096, 4096, 4096, "bf16")
    small = candidate((64, 64), operand_traffic_bytes_multicast=64 * 2 * 4096**2 * 2)
    large = candidate((256, 128), operand_traffic_bytes_multicast=(32 + 16) * 4096**2 * 2)
    assert sweep_rules.roofline_only([small, large], problem, H200) is large
    # 4097 rows are 17 tiles of 256 and 33 of 128: 4352 rows multiplied, or 4224.
    ragged = Problem(4097, 8192, 16384, "bf16")
    tall, short = (candidate((bm, 256), operand_traffic_bytes_multicast=0) for bm in (256, 128))
    assert sweep_rules.roofline_only([tall, short], ragged, H200) is short


def test_nvidias_heuristics_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Interface:
        def __init__(self, target: str, precision: str, flags: str) -> None:
            asked.append((target, precision, flags))

        def createHardwareDescriptor(self) -> str:  # noqa: N802
            return "descriptor"

        def setHardwarePredefinedGpu(self, hardware: str, gpu: str) -> None:  # noqa: N802
            asked.append((hardware, gpu))

        def loadInternalDiscoverySet(self, layout: str, hardware: str) -> None:  # noqa: N802
            pass

        def get_with_mnk(self, m: int, n: int, k: int, layout: str, count: int, hardware: str) -> list[dict[str, Any]]:
            def kernel(bm: int, bn: int, cluster: tuple[int, int], split: int = 1) -> Any:
                return SimpleNamespace(
                    cta_tile_m=bm, cta_tile_n=bn, cluster_m=cluster[0], cluster_n=cluster[1], split_k=split
                )

            return [
                {"runtime": 2e-3, "kernel": kernel(128, 128, (1, 1))},
                {"runtime": 1e-3, "kernel": kernel(128, 256, (1, 2))},
            ]

    library = SimpleNamespace(
        NvMatmulHeuristicsInterface=Interface,
        NvMatmulHeuristicsFlags=SimpleNamespace(PERF_MODEL_BASED_AUTO_TUNING="auto"),
        NvMatmulHeuristicsTarget=SimpleNamespace(CUTLASS3="cutlass"),
        NvMatmulHeuristicsNvidiaGpu=SimpleNamespace(H100_SXM="h100", H200_SXM="h200"),
        NvMatmulHeuristicsMatmulLayout=SimpleNamespace(TN_ROW_MAJOR="tn"),
    )
    problem = Problem(4096, 4096, 4096, "bf16", None, "row", "column")
    some = [candidate((128, 256)), candidate((128, 256), (1, 2)), candidate((128, 128))]
    monkeypatch.setattr(sweep_rules, "_session", sweep_rules._session.__wrapped__)
    monkeypatch.setattr(sweep_rules, "heuristics_library", lambda: library)
    assert sweep_rules.nvidia_heuristics(some, problem, H200) is some[1]
    assert sweep_rules.nvidia_heuristics(some[::2], problem, H200) is some[2], "tile and cluster of its second answer"
    assert sweep_rules.nvidia_heuristics(some[:1], problem, H200) is some[0], "the tile alone"
    assert sweep_rules.nvidia_heuristics([candidate((64, 64))], problem, H200) is None
    assert asked[:2] == [("cutlass", "TST", "auto"), ("descriptor", "h200")]
    monkeypatch.setattr(sweep_rules, "heuristics_library", lambda: None)
    assert sweep_rules.nvidia_heuristics(some, problem, H200) is None


def test_rules_take_the_planners_candidates() -> None:
    candidates: list[Candidate] = list(planning_of(SMALL).ranked[:200])
    for name, rule in sweep_rules.RULES.items():
        choice = rule(candidates, SMALL.problem, H200)
        assert choice in candidates or (name == "nvidia-matmul-heuristics" and choice is None)


# The whole report


def test_held_out_shapes_are_opened_once_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook, file = tmp_path / "notebook.md", tmp_path / "s.jsonl"
    notebook.write_text("# A notebook\n")
    monkeypatch.setattr(sweep_report, "NOTEBOOK", notebook)
    assert (part_of(SMALL), part_of(HELD)) == ("development", "held-out")
    written(file, line(SMALL, [1.0] * 8), line(HELD, [1.0, 1.0, 1.0, 0.5, 1.0, 1.0], clock=0))
    assert sweep_report.main([str(file)]) == 0
    said = capsys.readouterr().out
    assert "256x4096x4096" in said
    assert "8192x8192x8192" not in said
    assert "opened 0 times" in said
    assert sweep_report.main([str(file), "--held-out"]) == 2
    assert "--open WHY does so" in capsys.readouterr().err
    assert sweep_report.main([str(file), "--open", "the model is done"]) == 0
    said = capsys.readouterr().out
    assert "opened 1 times" in said
    assert ": the model is done" in said
    assert "| geometric-mean regret of the pick |" in said
    assert "8192x8192x8192" in said
    assert notebook.read_text().startswith("# A notebook\n- opened ")
    assert sweep_report.main([str(file), "--held-out", "--check"]) == 1, "half the time: the pick is not the best"
    assert "MISSED" in capsys.readouterr().out


def test_nothing_held_out_was_measured(tmp_path: Path) -> None:
    rows = rows_of(written(tmp_path / "s.jsonl", line(SMALL, [1.0] * 8)))
    ok, text = sweep_report.report(rows, ["development", "held-out"], tmp_path / "none.md")
    assert not ok
    assert "held-out: nothing was measured" in text


def test_the_committed_sweep_replays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if not sweep_report.FILE.exists():
        pytest.skip("no sweep was recorded yet")
    some = [shape for shape in shapes() if part_of(shape) == "development"][::4]  # all take half a minute
    monkeypatch.setattr(sweep_report, "shapes", lambda: some)
    assert sweep_report.main([]) == 0
    assert "| geometric-mean regret of the pick |" in capsys.readouterr().out
