"""The climb's tables: every column the issue asks for, legible at 80 and at 120 columns, absent things dashes."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from tilewright import ladder
from tilewright.derive import derived
from tilewright.dtypes import BF16
from tilewright.gpu import get_gpu
from tilewright.plan_tensor import TensorPlan
from tilewright.report.table import climb_tables, number


def row(rung: int, name: str, dtype: str, **more: Any) -> dict[str, Any]:
    return {
        "rung": rung,
        "name": name,
        "dtype": dtype,
        "verified": True,
        "error_over_bound": 0.0123,
        "derived": {
            "flop_per_byte": 42.667,
            "shared_load_bytes_per_mac": 0.75,
            "bottleneck": "FP32 issue: the shared-memory port carries 96 of 128 B/clk",
            "formula": "2 x 128 x 256 / ((128 + 256) x 4 B) = 42.67 FLOP/B",
        },
        "counted": {
            "flop_per_byte": 42.5,
            "flop_per_byte_with_c": 40.0,
            "shared_load_bytes_per_mac": 0.76,
            "excess_wavefronts_per_request": 0.25,
            "operands": {
                "a": {"sectors_per_request": 32.0, "ideal": 4.0},
                "b": {"sectors_per_request": 4.25, "ideal": 4.0},
                "c": {"sectors_per_request": 16.0, "ideal": 16.0},
            },
        },
        "compiled": {"registers": 255, "shared_bytes": 49664, "spill_bytes": 0},
        "time_us": None,
        "tflops": None,
        "percent_of_roof": None,
        "speedup_over_previous": None,
        "speedup_over_naive": None,
        "recorded": None,
        **more,
    }


RECORDED = {"gpu": "NVIDIA H200", "date": "2026-11-29", "problem": "4096x4096x4096 fp32", "tflops": 51.23}
TIMED = {
    "time_us": 127123.4,
    "tflops": 1.081,
    "percent_of_roof": 1.61,
    "speedup_over_previous": 1.7,
    "speedup_over_naive": 11.05,
}
ABSENT = {"counted": None, "compiled": None, "error_over_bound": None, "verified": None}


def climb(*rows: dict[str, Any], backend: str = "emulator", device: str = "emulator") -> dict[str, Any]:
    problem = {"m": 256, "n": 256, "k": 256, "dtype": "fp32"}
    return {
        "schema": "x/1",
        "problem": problem,
        "backend": backend,
        "device": device,
        "rungs": [each for each in rows if "counter_example" not in each],
        "counter_examples": [each for each in rows if "counter_example" in each],
    }


def text(result: dict[str, Any], width: int, color: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=color, color_system="standard" if color else None)
    console.print(climb_tables(result, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


FULL = climb(
    *(row(4, "double-buffered", dtype, **more, recorded=RECORDED) for dtype in ("fp32", "bf16") for more in ({}, TIMED))
)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "rows",
    [
        [row(4, "double-buffered", "fp32", recorded=RECORDED)],
        [row(4, "double-buffered", "fp32", **TIMED)],
        [row(4, "double-buffered", "fp32", **ABSENT)],
        [row(0, "naive", "fp32"), row(0, "naive, swapped", "fp32", counter_example="x"), row(4, "a", "bf16")],
    ],
)
def test_nothing_is_wider_than_the_terminal_or_cut_off(rows: list[dict[str, Any]], width: int) -> None:
    shown = text(climb(*rows), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for part in re.findall(r"[\w-]+", " ".join(r["name"] for r in rows)):
        assert part in shown


@pytest.mark.parametrize("width", [80, 120])
def test_every_figure_is_shown(width: int) -> None:
    shown = text(climb(row(4, "double-buffered", "fp32", **TIMED)), width)
    words = set(shown.replace("│", " ").split())
    counted_and_derived = {"42.5", "42.7", "0.76", "0.75", "32", "4.25", "16", "0.25", "ok", "0.012"}
    timed = {"127,123", "1.08", "1.61", "1.7x", "11.1x", "255"}
    assert counted_and_derived | timed <= words
    flat = " ".join(shown.split())
    assert "2 x 128 x 256 / ((128 + 256) x 4 B) = 42.67 FLOP/B" in flat
    assert "FP32 issue" in flat or "bottleneck" in shown  # where it has a column of its own it may wrap


def test_the_bottleneck_has_a_column_only_where_there_is_room() -> None:
    result = climb(row(4, "double-buffered", "fp32"))
    assert "bottleneck" in text(result, 120)
    narrow = " ".join(text(result, 80).split())
    assert "bottleneck" not in narrow
    assert "FP32 issue" in narrow


def test_a_recorded_figure_is_labelled_with_gpu_problem_and_date() -> None:
    shown = text(climb(row(4, "double-buffered", "fp32", recorded=RECORDED)), 80)
    assert "51.2" in shown
    assert "measured on NVIDIA H200, 4096x4096x4096 fp32, 2026-11-29" in " ".join(shown.split())
    assert "time us" not in shown


def test_a_time_is_never_shown_beside_a_recorded_figure() -> None:
    shown = text(climb(row(4, "double-buffered", "fp32", recorded=RECORDED, **TIMED)), 120)
    assert "recorded" not in shown
    assert "51.2" not in shown


def test_absent_things_are_dashes() -> None:
    shown = text(climb(row(4, "double-buffered", "fp32", **ABSENT)), 80)
    assert "None" not in shown
    line = next(line for line in shown.splitlines() if line.startswith("4 double-buffered"))
    assert line.split()[2:] == ["-"] * 5


def tensor_row(rung: int, name: str, **more: Any) -> dict[str, Any]:
    """A row as the ladder's default plan of a tensor-core rung would give it."""
    plan = TensorPlan(rung=rung, dtype=BF16, **ladder._PLANS[rung])
    lanes = {"sectors_per_request": 16.0, "ideal": 16.0}
    boxes = {"sectors_per_request": None, "ideal": None}
    counted = {
        "blocks": plan.cluster,
        "flop_per_byte": derived(plan, get_gpu("h200"))["flop_per_byte"],
        "shared_load_bytes_per_mac": 0.0390625,
        "excess_wavefronts_per_request": 0.0,
        "tma_copies": 18 if rung >= 7 else 0,
        "tma_bytes": 131_072 if rung >= 7 else 0,
        "tma_bytes_saved_by_multicast": 65_536 if rung >= 10 else 0,
        "operands": {
            "a": {**(boxes if rung >= 7 else lanes), "loaded_bytes": 65_536, "stored_bytes": 0},
            "b": {**(boxes if rung >= 7 else lanes), "loaded_bytes": 65_536, "stored_bytes": 0},
            "c": {**(boxes if rung >= 11 else lanes), "loaded_bytes": 0, "stored_bytes": 131_072},
        },
    }
    return row(rung, name, "bf16", counted=counted, derived=derived(plan, get_gpu("h200")), **more)


TENSOR_NAMES = {
    5: "mma.sync",
    6: "wgmma",
    7: "TMA ring",
    8: "warp-specialised",
    9: "persistent",
    10: "cluster multicast",
    11: "overlapped epilogue",
}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("more", [{"recorded": RECORDED}, {**TIMED, "time_us": 190.25, "tflops": 722.4}])
def test_the_tensor_core_rungs(width: int, more: dict[str, Any]) -> None:
    shown = text(climb(*(tensor_row(rung, name, **more) for rung, name in TENSOR_NAMES.items())), width)
    assert max(map(len, shown.splitlines())) <= width
    words = shown.replace("│", " ").split()
    assert {"85.3", "128", "0.0391", "ok", "255"} <= set(words)
    assert words.count("T") == 2 * 2 * 5 + 2 + 1  # A and B, above and below, from rung 7 on; C of rung 11; the note
    flat = " ".join(shown.split())
    assert "T moved by TMA" in flat
    assert "TMA counted for 2 blocks: 18 copies, 131,072 B, 65,536 B saved by multicast" in flat
    assert "TMA counted for a block: 18 copies, 131,072 B" in flat
    assert ("L2 bandwidth: the tile asks 48 of about 40 B/clk" in flat) == (width < 110)


def test_arithmetic_is_shown_where_a_rung_changes_it() -> None:
    shown = text(climb(*(tensor_row(rung, name) for rung, name in TENSOR_NAMES.items())), 80)
    assert shown.count("(64 + 256) x 2 B / (64 x 256)") == 1
    assert shown.count("2 x 256 x 256 / ((256 + 256) x 2 B)") == 1
    assert "\n    2 x 256 x 256 / ((256 + 256) x 2 B) = 128 FLOP/B\n" in shown
    assert "above: counted" in shown


def test_a_failure_is_loud_without_colour_too() -> None:
    shown = text(climb(row(2, "register block", "fp32", verified=False, error_over_bound=17.0)), 80)
    assert "FAILED" in shown
    assert "17" in shown


def test_a_table_for_each_dtype() -> None:
    shown = text(FULL, 120)
    assert [line.split()[0] for line in shown.splitlines() if "(MxNxK)" in line] == ["fp32", "bf16"]


def test_a_mistake_stands_under_its_rung() -> None:
    mistake = {"counter_example": "threads walk the rows"}
    result = climb(
        row(0, "naive", "fp32"), row(1, "tile", "fp32"), row(0, "naive", "bf16"),
        row(0, "swapped", "fp32", **mistake), row(0, "reversed", "bf16", **mistake),
    )  # fmt: skip
    shown = text(result, 80)
    order = [shown.index(name) for name in ("0 naive", "  swapped", "1 tile", "bf16", "  reversed")]
    assert order == sorted(order)
    assert "0 swapped: threads walk the rows" in shown


def test_the_heading_has_the_problem_s_arithmetic_and_the_roofs() -> None:
    result = climb(row(0, "naive", "fp32"))
    result["problem"]["arithmetic"] = {
        "fp32": {"flops": 137438953472, "bytes": 201326592, "flop_per_byte": 137438953472 / 201326592}
    }
    result["gpu"] = {"key": "h200", "name": "H200 SXM", "assumed": True}
    lines = text(result, 80).splitlines()
    assert lines[1] == "137,438,953,472 FLOP / 201,326,592 B moved at least = 682.7 FLOP/B"
    assert lines[2] == "roofs: H200 SXM (assumed: no GPU here)"
    result["gpu"]["assumed"] = False
    result["problem"]["arithmetic"]["fp32"] = {"flops": 0, "bytes": 0, "flop_per_byte": None}
    lines = text(result, 80).splitlines()
    assert lines[1:3] == ["0 FLOP / 0 B moved at least", "roofs: H200 SXM"]


def test_a_guess_is_marked_and_the_mark_explained() -> None:
    exact = row(2, "register block", "fp32")
    guessed = {**exact, "counted": {**exact["counted"], "approximate": True}}
    shown = " ".join(text(climb(guessed), 80).split())
    assert "~32 4.25 16" in shown
    assert "~0.25" in shown
    assert "~ by guess: lanes of a warp passed some access unequally often" in shown
    assert "~" not in text(climb(exact), 80)


@pytest.mark.parametrize("width", [1, 7, 20, 40, 60])
@pytest.mark.parametrize("more", [{"recorded": RECORDED}, TIMED], ids=["recorded", "timed"])
def test_where_the_table_does_not_fit_every_figure_is_listed_whole(width: int, more: dict[str, Any]) -> None:
    vendor = {"name": "cuBLAS", "dtype": "fp32", "time_us": 2771.5, "tflops": 49.59}
    result = climb(row(4, "double-buffered", "fp32", **more))
    result["vendor"] = [vendor] if more is TIMED else []
    shown = text(result, width)
    squeezed = re.sub(r"\s", "", shown)
    figures = ["ok", "0.012", "42.5", "42.7", "324.2516", "4416", "0.76", "0.75", "0.25", "255registers"]
    figures += ["127,123", "1.08", "1.61", "1.7x", "11.1x", "49.6"] if more is TIMED else ["51.2"]
    for figure in figures:
        assert figure in squeezed, figure
    assert max(map(len, shown.splitlines())) <= width
    if width >= 40:
        assert "  FLOP/B, plan: 42.7\n" in re.sub(" +\n", "\n", shown)


@pytest.mark.parametrize("more", [{"recorded": RECORDED}, TIMED], ids=["recorded", "timed"])
def test_at_no_width_is_a_figure_cut(more: dict[str, Any]) -> None:
    result = climb(row(4, "double-buffered", "fp32", **more))
    for width in range(24, 125):
        words = set(text(result, width).replace("│", " ").split())
        assert {"42.5", "42.7", "4.25", "0.76", "0.75"} <= words, width


def test_no_escape_codes_without_colour() -> None:
    assert "\x1b" not in text(FULL, 80)
    assert "\x1b" in text(FULL, 80, color=True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0"), (0.0, "0"), (0.25, "0.25"), (42.667, "42.7"), (999.6, "1,000"), (1234.5, "1,234"),
     (5e6, "5,000,000"), (float("nan"), "nan"), (float("inf"), "inf")],
)  # fmt: skip
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown
