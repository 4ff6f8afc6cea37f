"""What runs it: the constants of a GPU, each with its source, and a query of the GPU that is present."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tilewright.errors import UnavailableError, UsageError

_DATASHEET_H100 = "NVIDIA H100 Tensor Core GPU datasheet, H100 SXM column"
_DATASHEET_H200 = "NVIDIA H200 Tensor Core GPU datasheet, H200 SXM column"
_WHITEPAPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper, table of H100 SXM5 specifications"
_SPECIFICATIONS = "CUDA C++ Programming Guide, technical specifications per compute capability"
_SPECIFICATIONS_9_0 = f"{_SPECIFICATIONS}, 9.0"
_DEVICE = "reported by the device"
# The guide's section on shared memory: 32 banks, each 32 bits wide per clock.
_BANKS = "CUDA C++ Programming Guide, shared memory: 32 banks x 4 B per clock"
_FMA_LANES = "CUDA C++ Programming Guide, arithmetic throughput: 32-bit fma results per clock per SM"
# Read by all SMs from a working set of 40 MB, the largest at full rate; half as fast at 60 MB.
_L2_H200 = "measured by others: github.com/te42kyfo/gpu-benches, gpu-l2-cache/h200.txt, 40,448 kB"
_COMPUTED = "computed from what the device reports"


@dataclass(frozen=True)
class GpuSpec:
    """The constants of one GPU that the arithmetic needs.

    ``key`` is the short name that ``get_gpu`` takes, None for a device the tables do not know. Clocks are
    in MHz, rates in TFLOPS (1e12 operations a second, dense) and bytes a second, sizes in bytes.
    ``bf16_tensor_tflops`` and ``bf16_tensor_flop_per_clock`` (of one SM) hold for fp16 too. They, the tensor rate of
    fp8, ``l2_bytes_per_s`` (reads that hit) and ``memory_bytes`` are None where no source gives them. ``sources`` says,
    by field name, where each constant comes from.
    """

    name: str
    key: str | None
    compute_capability: tuple[int, int]
    sm_count: int
    boost_clock_mhz: float
    fp32_tflops: float
    bf16_tensor_tflops: float | None
    bf16_tensor_flop_per_clock: int | None
    fp8_tensor_tflops: float | None
    hbm_bytes_per_s: float
    memory_bytes: int | None
    l2_bytes: int
    l2_bytes_per_s: float | None
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    shared_bytes_per_clock: int
    registers_per_sm: int
    max_registers_per_thread: int
    max_threads_per_sm: int
    fp32_fma_per_clock: int
    sources: Mapping[str, str] = field(repr=False, compare=False)


_HOPPER: dict[str, Any] = {
    "compute_capability": (9, 0),
    "sm_count": 132,
    "boost_clock_mhz": 1980.0,
    "fp32_tflops": 67.0,
    "bf16_tensor_tflops": 989.4,
    "bf16_tensor_flop_per_clock": 4096,
    "fp8_tensor_tflops": 1978.9,
    "shared_bytes_per_block": 227 * 1024,
    "shared_bytes_per_sm": 228 * 1024,
    "shared_bytes_per_clock": 128,
    "registers_per_sm": 65536,
    "max_registers_per_thread": 255,
    "max_threads_per_sm": 2048,
    "fp32_fma_per_clock": 128,
}


def _hopper_sources(datasheet: str, l2: str) -> Mapping[str, str]:
    return MappingProxyType(
        {
            "compute_capability": _SPECIFICATIONS_9_0,
            "sm_count": _WHITEPAPER,
            "boost_clock_mhz": f"{_WHITEPAPER}: 1980 MHz for fp32, 1830 MHz for tensor-core work",
            "fp32_tflops": f"{datasheet}; 132 SMs x 128 FMAs x 2 x 1.98 GHz = 66.9",
            "bf16_tensor_tflops": f"{datasheet}: 1,979 with sparsity, half of it dense; "
            "132 SMs x 4096 FLOP/clk x 1.83 GHz = 989.4",
            "bf16_tensor_flop_per_clock": f"{_WHITEPAPER}: 989.4 TFLOPS / (132 SMs x 1.83 GHz)",
            "fp8_tensor_tflops": f"{_WHITEPAPER}: 1,978.9 dense; the datasheet's 3,958 is with sparsity",
            "hbm_bytes_per_s": datasheet,
            "memory_bytes": datasheet,
            "l2_bytes": l2,
            "shared_bytes_per_block": f"{_SPECIFICATIONS_9_0}: 227 KB",
            "shared_bytes_per_sm": f"{_SPECIFICATIONS_9_0}: 228 KB",
            "shared_bytes_per_clock": _BANKS,
            "registers_per_sm": _SPECIFICATIONS_9_0,
            "max_registers_per_thread": _SPECIFICATIONS_9_0,
            "max_threads_per_sm": _SPECIFICATIONS_9_0,
            "fp32_fma_per_clock": _FMA_LANES,
        }
    )


_KNOWN = {
    spec.key: spec
    for spec in (
        GpuSpec(
            name="H100 SXM",
            key="h100",
            hbm_bytes_per_s=3.35e12,
            memory_bytes=80 * 10**9,
            l2_bytes=50 * 2**20,
            l2_bytes_per_s=None,
            sources=_hopper_sources(_DATASHEET_H100, _WHITEPAPER),
            **_HOPPER,
        ),
        GpuSpec(
            name="H200 SXM",
            key="h200",
            hbm_bytes_per_s=4.8e12,
            memory_bytes=141 * 10**9,
            l2_bytes=60 * 2**20,
            l2_bytes_per_s=9.67e12,
            sources=MappingProxyType({**_hopper_sources(_DATASHEET_H200, _DEVICE), "l2_bytes_per_s": _L2_H200}),
            **_HOPPER,
        ),
    )
}

# The names these boards report. An exact match on purpose: the PCIe and NVL boards of the same family
# ("NVIDIA H100 PCIe", "NVIDIA H200 NVL") have other clocks, SM counts and memories.
_DEVICE_NAMES = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200"}

# fp32 FMA lanes per SM by compute capability (source: _FMA_LANES). 128 where not listed: every
# architecture since 8.6 but these has 128.
_FMA_LANES_OF = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}

# Clusters of 1, 2 and 4 blocks at the same time, one block an SM: cuOccupancyMaxActiveClusters on an H200 of 132 SMs.
_CLUSTERS_OF_132 = {1: 132, 2: 66, 4: 30}


def known_gpus() -> tuple[str, ...]:
    """The keys ``get_gpu`` accepts."""
    return tuple(key for key in _KNOWN if key is not None)


def get_gpu(name: str) -> GpuSpec:
    """Look up a GPU by key (``"h200"``) or name (``"H200 SXM"``, ``"NVIDIA H200"``), in any case.

    Raises ``UsageError`` listing the known ones.
    """
    wanted = str(name).strip().lower()
    for key, spec in _KNOWN.items():
        reported = [board.lower() for board, board_key in _DEVICE_NAMES.items() if board_key == key]
        if wanted in (key, spec.name.lower(), *reported):
            return spec
    listed = ", ".join(f"{key} ({spec.name})" for key, spec in _KNOWN.items())
    raise UsageError(f"GPU {name!r} is not one of {listed}")


def stand_in(present: GpuSpec) -> GpuSpec | None:
    """The known GPU nearest to one that is not: another board of its model, such as H100 SXM for an H100 PCIe.

    None where its name has no known model's; models that only begin alike are others (H20, GH200).
    """
    words = re.findall(r"[a-z0-9]+", present.name.lower())
    return next((spec for key, spec in _KNOWN.items() if key in words), None)


def clusters_that_fit(blocks: int, gpu: GpuSpec, sms: int | None = None) -> int:
    """Clusters of ``blocks`` that run at the same time on ``sms`` SMs (all of them if None), one block an SM.

    A cluster lies within one GPC, and GPCs have different numbers of SMs: clusters of 4 fit 30 times on 132 SMs, not
    33. Pairs of SMs are a TPC and always fit. A size that was not measured has at most the SMs of the next smaller one
    that was. Raises ``UsageError`` where ``sms`` is none of the GPU's numbers or no cluster fits.
    """
    most = gpu.sm_count if sms is None else sms
    if not 1 <= most <= gpu.sm_count:
        raise UsageError(f"sms is {sms}; {gpu.name} has 1 to {gpu.sm_count}")
    if blocks < 1:
        raise UsageError(f"a cluster of {blocks} blocks; it has at least 1")
    known = _CLUSTERS_OF_132 if gpu.sm_count == 132 else {1: gpu.sm_count}
    size = max(size for size in known if size <= blocks)
    fit = min(known[size] * size // blocks, most // blocks)
    if fit < 1:
        raise UsageError(f"a cluster of {blocks} blocks does not fit on {most} SMs")
    return fit


def arch_of(compute_capability: tuple[int, int]) -> str:
    """NVRTC's name for such a GPU, with the instructions that only it has: ``sm_90a``."""
    major, minor = compute_capability
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def query_gpu(ordinal: int = 0) -> GpuSpec:
    """Describe the GPU that is present, through ``cuda.core``.

    A board whose name is known gets that entry with SM count, clock and L2 size as the device reports them
    (a partitioned or clock-limited board differs from its datasheet). For another the peaks are computed
    from what the device reports: ``fp32_tflops`` = SMs x FMA lanes x 2 x clock, ``hbm_bytes_per_s`` = 2
    (double data rate) x memory clock x bus width / 8; its ``key``, its tensor rates and ``l2_bytes_per_s`` are None.

    Raises ``UnavailableError`` when the package, the driver or the GPU is missing.
    """
    try:
        from cuda.core import Device
    except ImportError as error:
        raise UnavailableError(
            "no GPU can be queried: the package cuda-core is missing (pip install 'tilewright[cuda13]')"
        ) from error
    try:
        # Not set_current(): asking for properties must not create a context.
        device = Device(ordinal)
        return _from_properties(device.name, device.properties)
    except Exception as error:  # cuda.core raises RuntimeError, CUDAError or ValueError, by what is missing
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnavailableError(f"no NVIDIA GPU number {ordinal} can be used here: {reason}") from error


def _from_properties(name: str, properties: Any) -> GpuSpec:
    capability = (properties.compute_capability_major, properties.compute_capability_minor)
    clock_mhz = properties.clock_rate / 1e3  # the driver reports kHz
    reported: dict[str, Any] = {
        "sm_count": properties.multiprocessor_count,
        "boost_clock_mhz": clock_mhz,
        "l2_bytes": properties.l2_cache_size,
    }
    key = _DEVICE_NAMES.get(name)
    if key is not None:
        known = _KNOWN[key]
        sources = dict(known.sources) | dict.fromkeys(reported, _DEVICE)
        return replace(known, **reported, sources=MappingProxyType(sources))

    lanes = _FMA_LANES_OF.get(capability, 128)
    reported |= {
        "compute_capability": capability,
        "shared_bytes_per_block": properties.max_shared_memory_per_block_optin,
        "shared_bytes_per_sm": properties.max_shared_memory_per_multiprocessor,
        "registers_per_sm": properties.max_registers_per_multiprocessor,
        "max_threads_per_sm": properties.max_threads_per_multiprocessor,
    }
    computed: dict[str, Any] = {
        "fp32_tflops": reported["sm_count"] * lanes * 2 * clock_mhz * 1e6 / 1e12,
        "hbm_bytes_per_s": 2 * properties.memory_clock_rate * 1e3 * properties.global_memory_bus_width / 8,
    }
    sources = dict.fromkeys(reported, _DEVICE) | dict.fromkeys(computed, _COMPUTED)
    sources |= {
        "shared_bytes_per_clock": _BANKS,
        "max_registers_per_thread": _SPECIFICATIONS,
        "fp32_fma_per_clock": _FMA_LANES,
    }
    return GpuSpec(
        name=name,
        key=None,
        bf16_tensor_tflops=None,
        bf16_tensor_flop_per_clock=None,
        fp8_tensor_tflops=None,
        memory_bytes=None,
        l2_bytes_per_s=None,
        shared_bytes_per_clock=128,
        max_registers_per_thread=255,
        fp32_fma_per_clock=lanes,
        sources=MappingProxyType(sources),
        **reported,
        **computed,
    )
