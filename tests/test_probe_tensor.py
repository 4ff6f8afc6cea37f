"""The script that asks a GPU what its tensor instructions do, with the emulator in the GPU's place."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import probe_children
import probe_tensor as probe
import pytest
from fragments import Layout
from probe_case import Case, difference, is_fault, load, save
from probe_cases import cases, chunks
from probe_tma import Box, Tensor
from probe_wgmma import SHARED_BYTES, SWIZZLES, descriptor, elements_read, fields_of

from tilewright import nvrtc
from tilewright.backends.emulator import EmulatorBackend
from tilewright.errors import UsageError

GPU: Any = SimpleNamespace(name="cuda", arch="sm_90a")  # as far as a kernel's text is concerned


def test_the_cases_cover_what_they_should() -> None:
    names = [case.name for case in cases()]
    assert 500 < len(names) < 1000
    for swizzle in SWIZZLES:
        for kind in ("load 2-D", "load 3-D", "store 2-D", "store 3-D"):
            assert sum(name.startswith(f"{kind}, swizzle {swizzle},") for name in names) >= 3
        for operand in ("A", "B, N 64"):
            for major in ("K", "MN"):
                assert (
                    sum(name.startswith(f"reads of {operand}, {major}-major, swizzle {swizzle},") for name in names) > 9
                )
    for dtype in ("bf16", "fp16"):
        for width in (8, 16, 64, 96, 176, 192, 256):
            assert any(name.startswith(f"product {dtype}, N {width}, A K-major 128") for name in names)
            assert any(name.startswith(f"product {dtype}, N {width}, A in registers") for name in names)


@pytest.mark.parametrize("only", ["mbarrier", "elect.sync", "at (-8, -2)", "product bf16, N 8"])
def test_what_is_recorded_compares_equal_and_a_wrong_bit_does_not(
    only: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = tmp_path / "new" / "fixture.npz.xz"
    assert probe.main(["run", "--backend", "emulator", "--out", str(fixture), "--only", only]) == 0
    assert probe.main(["compare", str(fixture), "--only", only]) == 0
    assert "0 differ" in capsys.readouterr().out
    provenance, arrays = load(fixture)
    assert provenance["device"] == "emulator"
    assert provenance["errors"] == {}
    name, last = next(reversed(arrays)), next(reversed(arrays.values()))
    last.reshape(-1)[-1] ^= 1
    save(fixture, provenance, arrays)
    assert probe.main(["compare", str(fixture), "--only", only]) == 1
    assert f"{name}: 1 of {last.size} elements differ, the first at" in capsys.readouterr().out
    save(fixture, provenance, {other: array for other, array in arrays.items() if other != name})
    assert probe.main(["compare", str(fixture), "--only", only]) == 1
    assert f"{name}: not recorded" in capsys.readouterr().out


def test_a_file_that_is_no_fixture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("x")
    assert probe.main(["compare", str(tmp_path / "x")]) == UsageError.exit_code
    assert "is no fixture" in capsys.readouterr().err


def test_differences_are_told_by_shape_by_type_and_by_size() -> None:
    case = Case("", lambda _: None, lambda _: np.zeros(0), tolerance=(0, 0.5))  # type: ignore[arg-type,return-value]
    zeros = np.zeros((2, 3), np.float32)
    assert difference(case, zeros, zeros + 0.25) is None
    assert difference(case, zeros, zeros[:1]) == "float32[1, 3] instead of the recorded float32[2, 3]"
    assert difference(case, zeros, zeros + 1) == "6 of 6 elements differ, the first at [0, 0]: 1.0, recorded is 0.0"
    assert difference(case, zeros + np.nan, zeros) is not None


def test_a_fault_where_hardware_traps_is_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixture, only = tmp_path / "x.npz.xz", "2-D, swizzle 0, at (7"
    assert probe.main(["run", "--backend", "emulator", "--out", str(fixture), "--only", only]) == 0
    provenance, arrays = load(fixture)
    assert {name: is_fault(found) for name, found in arrays.items()} == {
        "store 2-D, swizzle 0, at (72, 15)": False, "trapping store 2-D, swizzle 0, at (70, 15)": True,
    }  # fmt: skip
    one, other = arrays
    save(fixture, provenance, {one: np.array("illegal instruction"), other: arrays[one]})
    assert probe.main(["compare", str(fixture), "--only", only]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == f"{one}: it runs; recorded is the fault: illegal instruction"
    assert second.startswith(f"{other}: fault: misuse: tma_store_2d: x = 70 elements are 140 bytes; ")
    assert last == "2 results compared, 2 differ"
    save(fixture, provenance, {one: arrays[one], other: np.array("illegal instruction")})
    assert probe.main(["compare", str(fixture), "--only", only]) == 0


ENDS: dict[str, Any] = {
    "well": lambda _: np.arange(3), "exits": lambda _: os._exit(7), "well again": lambda _: np.arange(4),
    "raises": lambda _: 1 // 0, "hangs": lambda _: time.sleep(600), "at last": lambda _: np.arange(5),
}  # fmt: skip


def test_what_ends_a_process_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = [Case(name, ENDS[name], run) for name, run in ENDS.items()]
    monkeypatch.setattr(probe_children, "cases", lambda: ending)
    monkeypatch.setattr(probe_children, "CASE_LIMIT", 2.0)
    context = multiprocessing.get_context("fork")  # where what is patched stays
    arrays, errors = probe_children.ask_in_turn(context, "emulator", ending, time.monotonic() + 60)
    assert {name: found.size for name, found in arrays.items()} == {"well": 3, "well again": 4, "at last": 5}
    assert errors == {
        "exits": "the process ended with 7",
        "raises": "ZeroDivisionError: integer division or modulo by zero",
        "hangs": "no answer within 2 s",
    }
    arrays, errors = probe_children.ask_in_turn(context, "emulator", ending[:2], time.monotonic())
    assert not arrays
    assert set(errors.values()) == {"not asked: the time is up"}


def test_what_may_trap_is_asked_last_and_what_should_alone() -> None:
    usual, uncertain, alone = chunks(cases())
    assert not any(case.may_trap for part in usual for case in part)
    assert not any(case.emulated for part in uncertain for case in part)
    assert [len(part) for part in alone] == [1] * 6
    assert len(usual) == len(uncertain) == 4
    asked = [case.name for parts in (usual, uncertain, alone) for part in parts for case in part]
    assert sorted(asked) == sorted(case.name for case in cases())


def test_a_box_is_short_of_room_where_its_rows_are_short() -> None:
    tensor = Tensor((64, 8), (64,))
    assert Box(tensor, (0, 0), (16, 8), 128).room == 8 * 128
    assert Box(tensor, (0, 0), (64, 8), 0).room == Box(tensor, (0, 0), (64, 8), 128).room == 8 * 128


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("mn_major", [False, True])
def test_what_is_read_is_where_the_layouts_put_it(emulator: EmulatorBackend, swizzle: int, mn_major: bool) -> None:
    b, a = Layout(96, 64, swizzle, mn_major), Layout(64, 64, swizzle, mn_major)
    assert descriptor(*fields_of(b, 32)) == b.descriptor(0, 32)
    found = elements_read(True, mn_major, fields_of(b, 32), 96, emulator)
    np.testing.assert_array_equal(found, b.place(np.arange(96)[None, :], 32 + np.arange(64)[:, None] % 16) // 2)
    found = elements_read(False, mn_major, fields_of(a, 16), 16, emulator)
    np.testing.assert_array_equal(found, a.place(np.arange(64)[:, None], 16 + np.arange(16)[None, :]) // 2)
    assert found.max() < SHARED_BYTES // 2


@pytest.mark.skipif(not nvrtc.available(), reason="cuda-core or NVRTC is not installed")
def test_the_kernels_compile() -> None:
    sources = {case.source(GPU) for case in cases() if not case.name.startswith(("C of", "product"))}
    small = [source for source in sources if "N = 176" not in source.text and "N = 256" not in source.text]
    assert len(small) == 8
    for source in small:
        report = nvrtc.compile_kernel(source).report
        assert report.warnings == ()
        assert report.spill_bytes == 0
