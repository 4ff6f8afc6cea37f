"""The climb in the emulator: every rung verified, and what is counted held against what the arithmetic says."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import pytest
from cli_runner import run
from climb_cases import SPEED, Json, every_row, small
from ladder_cases import LAYOUTS

from tilewright import climb as engine
from tilewright import ladder, nvrtc, results
from tilewright.climb import SCHEMA, climb
from tilewright.errors import EmulatorFault, UnavailableError, UsageError
from tilewright.problem import Problem

# The document of ``climb --json`` as issue and documentation promise it, and what it holds besides.
PROMISED = {"schema", "problem", "backend", "device", "rungs"}
MORE = {"gpu", "counter_examples", "vendor"}
PROMISED_ROW = {
    "rung", "name", "verified", "error_over_bound", "derived", "counted", "compiled", "time_us", "tflops",
    "percent_of_roof", "speedup_over_previous", "speedup_over_naive", "recorded",
}  # fmt: skip
MORE_OF_A_ROW = {"dtype", "fault", "speedup_over_vendor", "plan"}
COUNTED = {
    "flop_per_byte", "flop_per_byte_with_c", "shared_load_bytes_per_mac", "excess_wavefronts_per_request", "operands",
}  # fmt: skip
MORE_COUNTED = {
    "approximate", "blocks", "flop", "wgmma_shared_bytes", "tma_copies", "tma_bytes", "tma_bytes_saved_by_multicast",
    "mbarrier_waits", "mbarrier_waits_blocked", "proxy_fences",
}  # fmt: skip
DERIVED = {"flop_per_byte", "shared_load_bytes_per_mac", "bottleneck", "formula"}
DERIVED_ON_TENSOR_CORES = {
    "flop_per_byte_without_multicast", "shared_bytes_per_clock", "stage_bytes", "bytes_in_flight",
    "accumulator_registers", "roof_tflops",
}  # fmt: skip


@pytest.fixture(scope="module")
def document(shared_cache: Path) -> Json:
    """One climb of all rungs at 256^3, as a machine with no GPU, no NVRTC and no records has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(shared_cache))
        patch.setattr(nvrtc, "available", lambda: False)
        patch.setattr(results, "recorded", list)
        found = climb(shape=(256, 256, 256), backend="emulator").to_dict()
    return dict(json.loads(json.dumps(found, allow_nan=False)))


def rows(document: Json, dtype: str) -> dict[str, Json]:
    """The rows of a dtype by name."""
    return {row["name"]: row for row in every_row(document) if row["dtype"] == dtype}


# ---- what it must show -----------------------------------------------------------------------------------------------


def test_every_rung_is_verified_in_its_dtypes(document: Json) -> None:
    assert [(row["dtype"], row["rung"]) for row in document["rungs"]] == [
        *(("fp32", number) for number in range(5)),
        *(("bf16", number) for number in ladder.rungs()),
    ]
    for row in every_row(document):
        assert row["verified"] is True, row["name"]
        assert 0 < row["error_over_bound"] <= 1
        assert row["fault"] is None


def test_counted_is_derived_within_2_percent(document: Json) -> None:
    for row in every_row(document):
        counted, derived = row["counted"], row["derived"]
        assert counted["flop_per_byte"] == pytest.approx(derived["flop_per_byte"], rel=0.02)
        assert counted["flop_per_byte_with_c"] < counted["flop_per_byte"]
        assert counted["shared_load_bytes_per_mac"] == pytest.approx(derived["shared_load_bytes_per_mac"], rel=0.02)


@pytest.mark.parametrize(("dtype", "naive", "tiled"), [("fp32", 0.25, 32), ("bf16", 0.5, 64)])
def test_intensity_of_the_ladder(document: Json, dtype: str, naive: float, tiled: float) -> None:
    found = {name: row["counted"]["flop_per_byte"] for name, row in rows(document, dtype).items()}
    assert found["naive"] == found["swapped"] == naive
    assert [found[name] for name in ("shared tile", "register block", "vectorised")] == [tiled] * 3
    plan = rows(document, dtype)["double-buffered"]["plan"]
    itemsize = {"fp32": 4, "bf16": 2}[dtype]
    expected = 2 * plan["bm"] * plan["bn"] / ((plan["bm"] + plan["bn"]) * itemsize)
    assert found["double-buffered"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("dtype", "itemsize"), [("fp32", 4), ("bf16", 2)])
def test_registers_cut_shared_loads_eight_times(document: Json, dtype: str, itemsize: int) -> None:
    found = {name: row["counted"]["shared_load_bytes_per_mac"] for name, row in rows(document, dtype).items()}
    assert found["naive"] == 0
    assert found["shared tile"] == 2 * itemsize
    assert found["shared tile"] / found["register block"] == 8
    assert found["vectorised"] == found["register block"]
    assert found["double-buffered"] < found["register block"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_accesses_that_waste_nothing_and_mistakes_that_do(document: Json, dtype: str) -> None:
    counted = {name: row["counted"] for name, row in rows(document, dtype).items()}
    for name in ("register block", "vectorised", "double-buffered"):
        assert counted[name]["excess_wavefronts_per_request"] == 0, name
    for name in ("vectorised", "double-buffered"):
        for operand in counted[name]["operands"].values():
            assert (operand["sectors_per_request"], operand["ideal"]) == (16, 16), name
    swapped, naive = counted["swapped"]["operands"], counted["naive"]["operands"]
    assert (naive["a"]["sectors_per_request"], naive["a"]["ideal"]) == (1, 1), "a broadcast"
    assert swapped["a"]["sectors_per_request"] == swapped["c"]["sectors_per_request"] == 32
    assert naive["b"]["sectors_per_request"] == naive["c"]["sectors_per_request"] == {"fp32": 4, "bf16": 2}[dtype]
    assert counted["naive"]["excess_wavefronts_per_request"] is None, "it has no shared memory"
    if dtype == "fp32":
        assert counted["adjacent"]["excess_wavefronts_per_request"] > 1


def test_the_bottleneck_in_words(document: Json) -> None:
    said = {name: row["derived"]["bottleneck"] for name, row in rows(document, "fp32").items()}
    assert "L2" in said["naive"]
    assert said["shared tile"].startswith("shared-memory port: 8 B/MAC")
    assert said["register block"].startswith("tie")
    assert said["double-buffered"].startswith("FP32 issue")
    assert rows(document, "bf16")["register block"]["derived"]["bottleneck"].startswith("FP32 issue")


# ---- the document ----------------------------------------------------------------------------------------------------


def test_the_schema(document: Json) -> None:
    assert (document["schema"], SCHEMA) == ("tilewright.climb/1",) * 2
    assert set(document) == PROMISED | MORE
    assert {key: document["problem"][key] for key in "mnk"} == {"m": 256, "n": 256, "k": 256}
    assert (document["problem"]["a_layout"], document["problem"]["b_layout"]) == ("row", "row")
    assert document["backend"] == document["device"]["name"] == "emulator"
    assert document["vendor"] == []
    mistakes = [(row["dtype"], row["rung"], row["name"]) for row in document["counter_examples"]]
    assert mistakes == [("fp32", 0, "swapped"), ("fp32", 2, "adjacent"), ("bf16", 0, "swapped")]
    for row in every_row(document):
        assert set(row) - {"counter_example"} == PROMISED_ROW | MORE_OF_A_ROW
        assert set(row["derived"]) == DERIVED | (DERIVED_ON_TENSOR_CORES if row["rung"] >= 5 else set())
        assert set(row["counted"]) == COUNTED | MORE_COUNTED
        assert set(row["counted"]["operands"]) == set("abc")
        for operand in row["counted"]["operands"].values():
            assert set(operand) == {"sectors_per_request", "ideal", "loaded_bytes", "stored_bytes"}
        assert ("counter_example" in row) == (row in document["counter_examples"])
        # Absent here: no NVRTC, no GPU, no records. The emulator claims no speed.
        assert row["compiled"] is row["recorded"] is None
        assert [row[key] for key in SPEED] == [None] * len(SPEED)
        assert row["speedup_over_vendor"] == {}


def test_the_arithmetic_of_the_problem_is_exact(document: Json) -> None:
    # 2 x 256^3 FLOP; three matrices of 256^2 elements, each moved once.
    assert document["problem"]["dtypes"] == ["fp32", "bf16"]
    assert document["problem"]["arithmetic"] == {
        "fp32": {"flops": 33554432, "bytes": 786432, "flop_per_byte": pytest.approx(128 / 3)},
        "bf16": {"flops": 33554432, "bytes": 393216, "flop_per_byte": pytest.approx(256 / 3)},
    }
    empty = climb(shape=(0, 0, 0), rungs="0", dtype="fp32", backend="emulator").to_dict()
    assert empty["problem"]["arithmetic"] == {"fp32": {"flops": 0, "bytes": 0, "flop_per_byte": None}}


def test_without_a_gpu_an_h200_is_assumed(document: Json) -> None:
    assert document["gpu"] == {"key": "h200", "name": "H200 SXM", "assumed": True}


@pytest.mark.parametrize("shape", [(1, 1, 1), (129, 257, 33), (5, 300, 70)])
def test_flop_on_padding_is_not_counted(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    for row in climb(shape=shape, rungs="0-4", backend="emulator").rows:
        assert row.counts is not None
        bm, bn = row.plan.bm, row.plan.bn
        down, across = divmod(row.plan.interior_block(Problem(*shape)), -(-shape[1] // bn))
        useful = min(bm, shape[0] - down * bm) * min(bn, shape[1] - across * bn) * shape[2]
        a, b = (row.counts.operands[name].loads.bytes for name in "ab")
        assert row.counts.flops == 2 * useful <= 2 * row.counts.multiply_adds
        assert row.counts.flop_per_byte == 2 * useful / (a + b)
        # No load can give more than the arithmetic of a whole tile allows.
        assert row.counts.flop_per_byte <= row.derived["flop_per_byte"] * 1.0001, row.label
        if row.counts.shared_load_bytes_per_mac:  # of executed multiply-adds: what the port carries
            # Rung 4 loads ahead once more than it multiplies: 1 in 16 where there is one K-step of 16.
            expected = row.derived["shared_load_bytes_per_mac"]
            assert row.counts.shared_load_bytes_per_mac == pytest.approx(expected, rel=1 / 15)


@pytest.mark.skipif(not nvrtc.available(), reason="cuda-core or NVRTC is not installed")
def test_what_nvrtc_says_of_each_rung() -> None:
    for row in small(rungs="0-2", dtype="bf16"):
        compiled = row["compiled"]
        assert compiled["shared_bytes"] == row["plan"]["shared_bytes"]
        assert (compiled["spill_bytes"], compiled["warnings"]) == (0, [])
        assert 16 <= compiled["registers"] <= 255


def test_the_default_problem_and_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    result = climb(backend="emulator", rungs="0", dtype="bf16")
    assert (result.shape, result.layouts) == ((256, 512, 256), ("row", "row"))
    assert [(row.name, row.plan.dtype.name, row.mistake is None) for row in result.rows] == [
        ("naive", "bf16", True),
        ("swapped", "bf16", False),
    ]
    with pytest.raises(UsageError, match="rung 12 does not exist"):
        climb(backend="emulator", rungs="12")
    with pytest.raises(UsageError, match="dtype 'fp8' is not one of"):
        climb(backend="emulator", dtype="fp8")
    with pytest.raises(UsageError, match="m is -1"):
        climb(backend="emulator", shape=(-1, 1, 1))


def test_without_any_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CXX", "no-such-compiler")
    with pytest.raises(UnavailableError, match=r"tilewright\[emulator\]"):
        climb(backend="emulator")


@pytest.mark.parametrize("shape", [(129, 257, 33), (1, 1, 1), (300, 76, 52), (5, 6, 0), (0, 6, 5), (6, 0, 0)])
def test_any_shape_can_be_climbed(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    found = every_row(climb(shape=shape, backend="emulator").to_dict())
    assert len(found) == 7 + 13
    for row in found:
        assert row["verified"] is True
        # In bf16 there are rungs that move operands by TMA, and lines are padded for all.
        tight = all(max(length, 1) * 4 % 16 == 0 for length in shape[1:])
        assert row["plan"]["aligned"] == (row["dtype"] == "bf16" or tight)
        assert (row["counted"] is None) == (0 in shape)


def test_other_layouts_are_climbed_from_rung_5_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    a_layout, b_layout = LAYOUTS[2]
    found = climb(shape=(70, 140, 72), a_layout=a_layout, b_layout=b_layout, dtype="fp16", backend="emulator").to_dict()
    assert [row["rung"] for row in found["rungs"]] == list(range(5, 12))
    assert (found["problem"]["a_layout"], found["problem"]["b_layout"]) == (a_layout, b_layout)
    for row in found["rungs"]:
        assert row["verified"] is True
        assert (row["plan"]["a_layout"], row["plan"]["b_layout"]) == (a_layout, b_layout)
    with pytest.raises(UsageError, match=rf"rung 4 \(double-buffered\) reads row-major operands; A {a_layout}-major"):
        climb(rungs="4-5", a_layout=a_layout, b_layout=b_layout, backend="emulator")


def test_a_persistent_block_has_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    for row in climb(rungs="9-11", dtype="bf16", backend="emulator").rows:
        problem = Problem(256, 512, 256, row.plan.dtype)
        down, across = row.plan.tiles(problem)
        assert down * across >= 2 * row.plan.grid(problem)[0]


def test_the_same_seed_gives_the_same_errors() -> None:
    first, again, other = (small(rungs="1", seed=seed)[0]["error_over_bound"] for seed in (3, 3, 4))
    assert first == again != other


def test_progress_never_goes_back_and_ends_at_the_end() -> None:
    told: list[tuple[int, int, str]] = []
    small(dtype=None, progress=lambda done, total, label: told.append((done, total, label)))
    assert len({total for _, total, _ in told}) == 1
    done = [each for each, _, _ in told]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == told[0][1], "the bar is full when the climb is over"
    said = " ".join(label for _, _, label in told)
    assert all(f"{dtype}: rung {name}" in said for dtype in ("fp32", "bf16") for name in ("0 naive", "1 shared tile"))


# ---- a rung that is wrong --------------------------------------------------------------------------------------------


def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str) -> None:
    """Replace a part of rung 1's text."""
    right = ladder.rung(1)
    text = right.path.read_text("utf-8")
    assert old in text
    file = tmp_path / right.path.name
    file.write_text(text.replace(old, new), "utf-8")
    wrong = {**ladder.rungs(), 1: dataclasses.replace(right, path=file)}
    monkeypatch.setattr(ladder, "rungs", lambda: wrong)


WRONG = [
    ("kk < BK; ++kk)\n        acc", "kk < BK - 1; ++kk)\n        acc", False),  # the last k of each step left out
    ("if (row < m && col < n) c", "if (row < m - 1 && col < n) c", False),  # the last row not written
    ("const bool inside = row0 + r < m && k0 + kk < k;", "const bool inside = true;", True),  # reads past the end of A
]


@pytest.mark.parametrize(("old", "new", "faults"), WRONG)
def test_a_broken_rung_is_not_verified_and_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str, faults: bool
) -> None:
    broken(monkeypatch, tmp_path, old, new)
    naive, tile = small(rungs="0-1")
    assert naive["verified"] is True
    assert tile["verified"] is False
    if faults:
        assert "out-of-bounds" in tile["fault"]
        assert tile["error_over_bound"] is tile["counted"] is None
    else:
        assert tile["fault"] is None
        assert tile["error_over_bound"] > 1
        assert tile["counted"]["flop_per_byte"] > 0

    arguments = ["climb", "--size", "70", "--rungs", "0-1", "--dtype", "fp32", "--backend", "emulator"]
    shown = run(*arguments)
    assert shown.exit_code == 1
    assert "not verified: fp32 1 shared tile" in shown.stderr
    assert "FAILED" in shown.stdout
    assert ("out-of-bounds" in shown.stdout) == faults
    as_json = run(*arguments, "--json")
    assert as_json.exit_code == 1
    assert [row["verified"] for row in json.loads(as_json.stdout)["rungs"]] == [True, False]


def test_a_rung_that_does_not_compile_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken(monkeypatch, tmp_path, "float acc", "flaot acc")
    arguments = ["climb", "--size", "8", "--rungs", "0-2", "--dtype", "fp32", "--backend", "emulator"]
    done = run(*arguments)
    assert done.exit_code == 1
    assert "not verified: fp32 1 shared tile" in done.stderr
    assert "flaot" in done.stdout
    assert "FAILED" in done.stdout
    assert "Traceback" not in done.stderr
    rungs = json.loads(run(*arguments, "--json").stdout)["rungs"]
    assert [row["verified"] for row in rungs] == [True, False, True]
    assert "flaot" in rungs[1]["fault"]
    assert rungs[1]["counted"] is None


def test_a_fault_while_counting_is_a_row_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(emulator: object, rung: ladder.Rung, *_: object) -> None:
        if rung.number == 1:
            raise EmulatorFault("race", "two threads, one value")

    monkeypatch.setattr(engine, "count", count)
    naive, tile, blocked = small(rungs="0-2")
    assert (naive["verified"], tile["verified"], blocked["verified"]) == (True, False, True)
    assert tile["fault"] == "race: two threads, one value"


def test_a_warning_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken(monkeypatch, tmp_path, "const int t = threadIdx.x;", "const int t = threadIdx.x;\n  if (t >= 992) return;")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small(rungs="1")
    assert any("after threads of the block had returned" in str(w.message) for w in caught)
