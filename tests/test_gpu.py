from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tilewright.errors import UnavailableError, UsageError
from tilewright.gpu import GpuSpec, get_gpu, known_gpus, query_gpu, stand_in

H200_PROPERTIES = {
    "compute_capability_major": 9,
    "compute_capability_minor": 0,
    "multiprocessor_count": 132,
    "clock_rate": 1_980_000,
    "l2_cache_size": 60 * 2**20,
    "memory_clock_rate": 3_201_000,
    "global_memory_bus_width": 6144,
    "max_shared_memory_per_block_optin": 232448,
    "max_shared_memory_per_multiprocessor": 233472,
    "max_registers_per_multiprocessor": 65536,
    "max_threads_per_multiprocessor": 2048,
}


def pretend_device(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """Put a ``cuda.core`` in place whose only device has this name and these properties."""

    class Device:
        def __init__(self, ordinal: int) -> None:
            if ordinal:
                raise ValueError(f"ordinal {ordinal} is out of range\nand more")
            self.name = name
            self.properties = SimpleNamespace(**(H200_PROPERTIES | changes))

    core = ModuleType("cuda.core")
    core.Device = Device  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.core", core)


@pytest.mark.parametrize("key", known_gpus())
def test_every_constant_has_its_source(key: str) -> None:
    gpu = get_gpu(key)
    constants = {field.name for field in fields(GpuSpec) if getattr(gpu, field.name) is not None}
    constants -= {"name", "key", "sources"}
    assert set(gpu.sources) == constants
    assert all(gpu.sources.values())


@pytest.mark.parametrize("name", ["h200", "H200", " H200 SXM ", "h200 sxm", "NVIDIA H200"])
def test_lookup_by_key_or_name(name: str) -> None:
    assert get_gpu(name) is get_gpu("h200")


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "H200 NVL", "b200", "", None, 200, ["h200"]])
def test_an_unknown_name_lists_the_known_ones(name: object) -> None:
    with pytest.raises(UsageError) as caught:
        get_gpu(name)  # type: ignore[arg-type]
    assert str(caught.value) == f"GPU {name!r} is not one of h100 (H100 SXM), h200 (H200 SXM)"


@pytest.mark.parametrize("key", known_gpus())
def test_peaks_follow_from_the_units(key: str) -> None:
    gpu = get_gpu(key)
    fp32 = gpu.sm_count * gpu.fp32_fma_per_clock * 2 * gpu.boost_clock_mhz * 1e6 / 1e12
    assert fp32 == pytest.approx(66.9, abs=0.05)
    assert round(fp32) == gpu.fp32_tflops  # the datasheet rounds to whole TFLOPS
    # 4096 FLOP/clk/SM at the tensor-core boost clock of 1830 MHz.
    assert gpu.sm_count * 4096 * 1830e6 / 1e12 == pytest.approx(gpu.bf16_tensor_tflops, abs=0.05)


def test_hopper_limits() -> None:
    gpu = get_gpu("h200")
    assert gpu.shared_bytes_per_block == 232448 == 227 * 1024
    assert gpu.shared_bytes_per_sm == gpu.shared_bytes_per_block + 1024
    assert gpu.registers_per_sm * 4 == 256 * 1024


def test_only_memory_differs_between_the_two() -> None:
    h100, h200 = get_gpu("h100"), get_gpu("h200")
    differing = {f.name for f in fields(GpuSpec) if f.compare and getattr(h100, f.name) != getattr(h200, f.name)}
    assert differing == {"name", "key", "hbm_bytes_per_s", "memory_bytes", "l2_bytes", "l2_bytes_per_s"}


def test_query_recognises_a_known_board(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_device(monkeypatch, "NVIDIA H200", multiprocessor_count=66)
    gpu = query_gpu()
    assert (gpu.key, gpu.hbm_bytes_per_s) == ("h200", 4.8e12)
    assert (gpu.sm_count, gpu.sources["sm_count"]) == (66, "reported by the device")
    pretend_device(monkeypatch, "NVIDIA H200")
    assert query_gpu() == get_gpu("h200")


def test_query_computes_the_peaks_of_an_unknown_board(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_device(
        monkeypatch,
        "NVIDIA A100-SXM4-40GB",
        compute_capability_major=8,
        multiprocessor_count=108,
        clock_rate=1_410_000,
        memory_clock_rate=1_215_000,
        global_memory_bus_width=5120,
        max_shared_memory_per_block_optin=163 * 1024,
    )
    gpu = query_gpu()
    assert gpu.key is None
    assert gpu.bf16_tensor_tflops is None
    assert gpu.fp32_tflops == pytest.approx(19.5, abs=0.05)  # its datasheet's figures
    assert gpu.hbm_bytes_per_s == pytest.approx(1.555e12, rel=1e-3)
    assert gpu.shared_bytes_per_block == 163 * 1024
    constants = {field.name for field in fields(GpuSpec) if getattr(gpu, field.name) is not None} - {"name", "sources"}
    assert set(gpu.sources) == constants


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 PCIe", "h100"), ("NVIDIA H100 NVL", "h100"), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100"),
        ("NVIDIA H200 NVL", "h200"), ("NVIDIA H20", None), ("NVIDIA GH200 480GB", None), ("NVIDIA A100", None),
    ],
)  # fmt: skip
def test_other_boards_of_a_known_model_are_not_it_but_near(
    name: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_device(monkeypatch, name)
    present = query_gpu()
    assert present.key is None
    near = stand_in(present)
    assert (None if near is None else near.key) == key


def test_query_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(UnavailableError, match=r"cuda-core is missing .*tilewright\[cuda13\]"):
        query_gpu()


def test_query_without_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_device(monkeypatch, "NVIDIA H200")
    with pytest.raises(UnavailableError) as caught:
        query_gpu(3)
    assert str(caught.value) == "no NVIDIA GPU number 3 can be used here: ordinal 3 is out of range"


@pytest.mark.cuda
def test_query_on_this_machine() -> None:
    try:
        gpu = query_gpu()
    except UnavailableError as error:
        pytest.skip(str(error))
    assert gpu.sm_count > 0
    assert 1e11 < gpu.hbm_bytes_per_s < 1e14
    assert gpu.key is None or gpu.name == get_gpu(gpu.key).name


def test_the_arithmetic_imports_alone() -> None:
    code = (
        "import sys, tilewright.roofline, tilewright.gpu, tilewright.problem\n"
        "print([m for m in ('cuda', 'torch', 'cupy', 'ml_dtypes', 'typer', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
