"""The blocks of the documentation that hold what was measured: ladder, main kernel, a GPU's counters."""

from __future__ import annotations

import re
from typing import Any

import ladder_blocks
import ladder_counters
import ladder_records
import ladder_simt
import ncu_counters
import probe_counters
import pytest
import tensor_table
from tensor_bench import read_rows

from tilewright import ladder
from tilewright.dtypes import BF16, FP32
from tilewright.errors import UsageError
from tilewright.problem import Problem
from tilewright.results import Provenance, Record


def record(name: str, tflops: float, date: str = "2026-11-30T12:00:00Z", **more: Any) -> Record:
    ratio = {"median": 1.5, "min": 1.25, "max": 1.75, "iqr": 0.1}
    values: dict[str, Any] = {
        "what": "rung",
        "name": name,
        "problem": Problem(4096, 4096, 4096, FP32).to_dict(),
        "provenance": Provenance("NVIDIA H200", date, driver="580.1", commit="abc"),
        "time_us": {"median": 2500.0, "min": 2400.0, "max": 2600.0, "iqr": 1.0},
        "tflops": tflops,
        "ratios": {"1 shared tile": ratio, "0 naive": {**ratio, "median": 9.0}},
        **more,
    }
    return Record(**values)


def test_measured_blocks_show_the_newest_run() -> None:
    rung = ladder.rung(2)
    records = [
        record("2 register block", 33.5, what="rung", rung=2),
        record("2 adjacent", 22.2, what="counter-example", rung=2),
        record("2 register block", 11.1, "2026-11-29T12:00:00Z", what="rung", rung=2),
        record("2 adjacent", 12.3, "2026-11-29T12:00:00Z", what="counter-example", rung=2),
    ]
    shown = ladder_records.measured_block(rung, records)
    assert "| TFLOPS | 33.5 | - |" in shown
    assert "| of the fp32 roof | 50% | - |" in shown
    assert "| to rung 1 | 1.50x (1.25 to 1.75) | - |" in shown
    assert "| time, us (lowest to highest) | 2,500.0 (2,400.0 to 2,600.0) | - |" in shown
    assert "NVIDIA H200, 2026-11-30T12:00:00Z; driver 580.1" in shown
    assert "| 15 to 20 TFLOPS | 33.5 TFLOPS, 50% of the roof; 1.50x (1.25 to 1.75) to rung 1; 9.00x (1.25 to 1.75)" in (
        ladder_records.expectation_block(rung, records)
    )
    assert re.search(r"\| fp32 adjacent .* 22.2 \|", ladder_simt.mistake_block(rung, records))
    assert "| 2026-11-30T12:00:00Z | NVIDIA H200 | 4096x4096x4096 fp32 | abc | - | 2 |" in (
        ladder_records.runs_block(records)
    )


@pytest.mark.parametrize("number", [0, 11])
def test_measured_blocks_without_records_say_so(number: int) -> None:
    rung = ladder.rung(number)
    assert "Not measured yet" in ladder_records.measured_block(rung, [])
    assert "not measured yet" in ladder_records.expectation_block(rung, [])
    assert "no records yet" in ladder_records.runs_block([])


def test_a_tensor_rung_is_held_against_its_own_roof() -> None:
    rung = ladder.rung(6)
    of_tensor: dict[str, Any] = {"rung": 6, "sm_clock_mhz_in_kernel": 1500.0}
    bf16 = Problem(4096, 4096, 4096, "bf16")
    records = [
        record("6 wgmma", 494.7, problem=bf16.to_dict(), **of_tensor),
        record("6 wgmma", 99.9, "2026-12-01T12:00:00Z", problem=bf16.changed(b_layout="column").to_dict(), **of_tensor),
    ]
    shown = ladder_records.measured_block(rung, records)
    assert "| TFLOPS | 495 | - |" in shown  # of row-major operands, as the ladder is, though the other is newer
    assert "| of the tensor roof | 50% | - |" in shown
    assert "| tensor cores busy at that clock | 61% | - |" in shown  # 494.7 / (132 x 4096 x 1.5 GHz)
    assert "| 300 to 400 TFLOPS | 495 TFLOPS, 50% of the roof" in ladder_records.expectation_block(rung, records)
    assert re.search(r"\[6 wgmma\]\(06_wgmma.md\).*\| - \| - \| 495 \| 50% \|", ladder_blocks.ladder_block(records))


def test_runs_of_one_command_are_one_line() -> None:
    command = "bench_tensor_rows.py --runs 3"
    made = []
    for i in range(3):
        source = Provenance("NVIDIA H200", f"2026-11-30T12:0{i}:00Z", command=command, commit="abc")
        made.append(record("x", 1.0, provenance=source, problem=Problem(64 << i, 64, 64, FP32).to_dict()))
    assert "| 2026-11-30T12:00:00Z | NVIDIA H200 | 3 problems | abc | `bench_tensor_rows.py --runs 3` | 3 |" in (
        ladder_records.runs_block(made[::-1])
    )


def test_rows_of_the_main_kernel_are_those_of_their_plans() -> None:
    row = next(row for row in read_rows() if row.must_lt is not None)
    source = Provenance("NVIDIA H200", "2026-11-30T12:00:00Z", driver="580.1", commit="abc", method="slots")
    plan = row.candidate.plan.to_dict()

    def made(to_cublas: float, tflops: float, **more: Any) -> Record:
        ratio = {"median": to_cublas, "min": 0.0, "max": 2.0, "iqr": 0.0}
        values = {"what": "kernel", "rung": 11, "problem": row.problem.to_dict(), "plan": plan}
        return record("tilewright", tflops, ratios={"cuBLAS": ratio}, provenance=source, **{**values, **more})

    assert "Not measured yet" in tensor_table.rows_block([])
    assert "Not measured yet" in tensor_table.summary([made(1.2, 800.0, plan={**plan, "stages": 9})])
    runs = [made(1.04, 690.0), made(1.05, 700.0), made(1.07, 710.0), made(9.0, 990.0, rung=10)]
    assert "| 3 | 700 | 1.050x (1.040 to 1.070) | - | 1.03x cuBLAS, 1.01x cublasLt |" in tensor_table.rows_block(runs)
    assert "| 700 | 1.050x (1.040 to 1.070) | - |" in tensor_table.summary(runs)
    assert "| 700 | 1.050x (0.000 to 2.000) | - |" in tensor_table.summary(runs[1:2])  # of one run, its rounds
    assert "rung 5" not in tensor_table.rows_block(runs)  # the ladder's tables have it
    assert "NVIDIA H200; driver 580.1; 2026-11-30; tilewright at abc. slots." in tensor_table.summary(runs)


def probed(**counters: float) -> dict[str, Any]:
    """What scripts/probe_counters.py writes, with the same counters for every run."""
    plans = {probe_counters.name_of(rung): rung.plan(BF16).to_dict() for rung in probe_counters.probed()}
    values = {
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "nvrtc": "13.5",
        "date": "2026-11-30T12:00:00Z",
        "shape": (8, 8, 8),
    }
    csv = ['"ID","Kernel Name","Metric Name","Metric Value"']
    for i, kernel in enumerate([*["tw_gemm"] * len(plans), "nvjet_sm90"]):
        csv += [f'"{i}","{kernel}","{name}","{value}"' for name, value in counters.items()]
    runs = [{"name": name, "plan": plan} for name, plan in plans.items()]
    return probe_counters.join({**values, "runs": runs}, ncu_counters.read(csv, probe_counters.METRICS, ""))


def test_counters_stand_beside_the_neighbours() -> None:
    pipe, gmma = probe_counters.TENSOR_ELAPSED[1], probe_counters.STALLS["waiting for wgmma"]
    found = probed(**{pipe: 61.25, gmma: 70.0, probe_counters.STALLS["barrier"]: 20.0, probe_counters.L2_SECTORS: 1e6})
    shown = ladder_counters.shown(ladder.rung(9), found)
    assert "|  | 8 warp-specialised | 9 persistent | cuBLAS |" in shown
    assert "| tensor pipe busy, of all cycles | 61.2% | 61.2% | 61.2% |" in shown
    assert "| the warps' time | waiting for wgmma 70%, barrier 20% |" in shown
    assert "| read from L2, MB | 32 | 32 | 32 |" in shown
    assert "DRAM" not in shown  # not counted: no row
    with pytest.raises(UsageError, match=r"counted 0 kernels of the ladder; there are 1"):
        probe_counters.join({"runs": [{}]}, [])
    another = {**found, "runs": [{**run, "plan": {}} for run in found["runs"]]}
    assert "another plan" in ladder_counters.shown(ladder.rung(9), another)
    assert "no counters" in ladder_counters.shown(ladder.rung(9), {**found, "runs": []})


def test_metrics_are_asked_for_where_ncu_lists_them() -> None:
    listing = "sm__pipe_tensor_cycles_active  Counter  cycle\nlts__t_sector_op_read_hit_rate  Ratio  %\n"
    assert ncu_counters.known(listing, probe_counters.METRICS) == [
        probe_counters.TENSOR_ELAPSED[0],
        probe_counters.TENSOR_ACTIVE[0],
        probe_counters.L2_HITS,
        probe_counters.REGISTERS,
    ]
