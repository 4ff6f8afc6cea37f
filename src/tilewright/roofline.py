"""How fast it can be: intensities, ridges, roofs and bottlenecks, each number with its formula as text.

Pure arithmetic on sizes and ``GpuSpec`` constants; nothing is run. A MAC is one multiply-add, 2 FLOP.
Sizes of tiles, elements and loads must be above 0 and rates at least 0, else ``UsageError`` is raised.
The roofline model is that of Williams, Waterman and Patterson, "Roofline: an insightful visual performance
model for multicore architectures", CACM 52(4), 2009: speed is at most min(peak, intensity x bandwidth).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tilewright.dtypes import FP32, DType
from tilewright.errors import UsageError
from tilewright.gpu import GpuSpec
from tilewright.problem import Problem

Roof = Literal["fp32", "bf16_tensor", "fp8_tensor"]

_ROOF_WORDS: dict[Roof, str] = {"fp32": "FP32 issue", "bf16_tensor": "tensor cores", "fp8_tensor": "tensor cores"}
# A bank hands each lane 4 B a clock: a narrower load fills its lane all the same.
_LANE_BYTES = 4
# Two demands closer than this are called a tie; no kernel is timed to better than this.
_TIE = 0.01


@dataclass(frozen=True)
class Derived:
    """A number, its unit, and how it came about.

    ``formula`` has the numbers filled in and ends in the result: ``2 / (2 x 4 B) = 0.25 FLOP/B``.
    """

    value: float
    unit: str
    formula: str

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        return self.formula


@dataclass(frozen=True)
class Bound:
    """The most a kernel can reach: TFLOPS, what sets it, and the comparison as text."""

    limit_tflops: float
    limited_by: str
    formula: str


def number(value: float) -> str:
    """A number for a formula: whole ones exactly, others to 4 significant digits, from 1,000 to 2 decimals."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.2f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def amount(count: float) -> str:
    """Bytes that are moved, or lie in L2 or HBM, in decimal units as bandwidths are: 12.88 GB, 37.75 MB, 512 B.

    The one rule for the units of bytes: these, and ``held`` for what is within an SM.
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if abs(count) >= size:
            return f"{number(count / size)} {unit}"
    return f"{number(count)} B"


def held(count: float | Derived) -> str:
    """Bytes that an SM's shared memory or registers hold, in the KB of 1,024 bytes of which NVIDIA says 227 KB."""
    return f"{number(float(count) / 1024)} KB"


def positive(**sizes: float) -> None:
    """Raise ``UsageError`` for the first of the named sizes that is zero, negative or no finite number."""
    for name, size in sizes.items():
        if not 0 < size < math.inf:  # false for NaN too
            raise UsageError(f"{name} is {size}; it must be above 0 and finite")


def _not_negative(**values: float | None) -> None:
    """Raise ``UsageError`` for the first of the named values that is negative or NaN; infinity and None are fine."""
    for name, value in values.items():
        if value is not None and not value >= 0:
            raise UsageError(f"{name} is {value}; it must be at least 0")


def figure(value: float, unit: str, formula: str) -> Derived:
    """A number whose formula ends in itself and its unit."""
    return Derived(value, unit, f"{formula} = {number(value)} {unit}".rstrip())


# ---- the roofs of a GPU


def roof_of(dtype: DType, *, tensor_cores: bool = False) -> Roof:
    """The roof that binds a kernel, by the type of its inputs and the units that multiply them.

    CUDA cores run fp32 FMAs whatever the inputs (bf16 is converted on load); tensor cores take bf16 and fp16.
    Raises ``UsageError`` for fp32 on tensor cores (TF32 is another numeric type, never used silently).
    """
    if not tensor_cores:
        return "fp32"
    if dtype == FP32:
        raise UsageError("dtype fp32 has no tensor-core roof; tensor cores multiply bf16 or fp16")
    return "bf16_tensor"


def peak_tflops(gpu: GpuSpec, roof: Roof) -> float:
    """The peak of a roof in TFLOPS. Raises ``UsageError`` for an unknown roof, or no known figure."""
    if roof not in _ROOF_WORDS:
        raise UsageError(f"roof {roof!r} is not one of {', '.join(_ROOF_WORDS)}")
    peak: float | None = getattr(gpu, f"{roof}_tflops")
    if peak is None:
        raise UsageError(f"roof {roof!r} is not known for {gpu.name}")
    return peak


def ridge(gpu: GpuSpec, roof: Roof) -> Derived:
    """The intensity (FLOP/B) above which a kernel can reach the roof from HBM: peak / bandwidth."""
    peak = peak_tflops(gpu, roof)
    return figure(
        peak * 1e12 / gpu.hbm_bytes_per_s,
        "FLOP/B",
        f"{number(peak)} TFLOPS / {number(gpu.hbm_bytes_per_s / 1e12)} TB/s",
    )


def percent_of_roof(tflops: float, gpu: GpuSpec, roof: Roof) -> Derived:
    """A speed in TFLOPS as a percentage of the roof's peak."""
    _not_negative(tflops=tflops)
    peak = peak_tflops(gpu, roof)
    return figure(100 * tflops / peak, "%", f"100 x {number(tflops)} / {number(peak)} TFLOPS")


def shared_bandwidth(gpu: GpuSpec) -> Derived:
    """What all shared memories together deliver at the boost clock, in TB/s."""
    value = gpu.sm_count * gpu.shared_bytes_per_clock * gpu.boost_clock_mhz * 1e6 / 1e12
    return figure(
        value,
        "TB/s",
        f"{gpu.sm_count} SMs x {gpu.shared_bytes_per_clock} B/clk x {number(gpu.boost_clock_mhz)} MHz",
    )


# ---- a whole problem


def flops(problem: Problem) -> Derived:
    """The work of a problem: ``2 m n k`` FLOP."""
    return figure(problem.flops, "FLOP", f"2 x {problem.m} x {problem.n} x {problem.k}")


def time_at_roof(problem: Problem, gpu: GpuSpec, roof: Roof) -> Derived:
    """The least time of a problem's work, in microseconds: its FLOP at the roof's peak."""
    peak = peak_tflops(gpu, roof)
    text = f"{number(problem.flops / 1e9)} GFLOP / {number(peak)} TFLOPS"
    return figure(problem.flops / peak / 1e6, "us", text)


def minimum_traffic(problem: Problem) -> Derived:
    """The least bytes between the GPU and its memory: A and B read once, C written once."""
    p = problem
    return figure(
        p.bytes_moved,
        "B",
        f"({p.m} x {p.k} + {p.k} x {p.n}) x {p.dtype.itemsize} B + {p.m} x {p.n} x {p.out_dtype.itemsize} B",
    )


def problem_intensity(problem: Problem) -> Derived | None:
    """FLOP per byte of the least traffic; None for a problem that moves nothing."""
    if problem.intensity is None:
        return None
    return figure(problem.intensity, "FLOP/B", f"{number(problem.flops)} FLOP / {number(problem.bytes_moved)} B")


def tiled_traffic(problem: Problem, bm: int, bn: int) -> Derived:
    """Bytes of A and B that BM x BN tiles read: A once per column of tiles, B once per row of tiles."""
    positive(bm=bm, bn=bn)
    tile_columns, tile_rows = math.ceil(problem.n / bn), math.ceil(problem.m / bm)
    return figure(
        problem.bytes_a * tile_columns + problem.bytes_b * tile_rows,
        "B",
        f"{number(problem.bytes_a)} B x {tile_columns} + {number(problem.bytes_b)} B x {tile_rows}",
    )


# ---- a tile and a micro-tile


def naive_intensity(itemsize: int) -> Derived:
    """FLOP/B of one thread per output: 2 FLOP for one element of A and one of B."""
    positive(itemsize=itemsize)
    return figure(2 / (2 * itemsize), "FLOP/B", f"2 / (2 x {itemsize} B)")


def tile_intensity(bm: int, bn: int, itemsize: int) -> Derived:
    """FLOP/B from global memory of a BM x BN tile: ``2 bm bn / ((bm + bn) itemsize)``; BK cancels."""
    positive(bm=bm, bn=bn, itemsize=itemsize)
    return figure(
        2 * bm * bn / ((bm + bn) * itemsize),
        "FLOP/B",
        f"2 x {bm} x {bn} / (({bm} + {bn}) x {itemsize} B)",
    )


def k_step_bytes(bm: int, bn: int, bk: int, itemsize: int) -> Derived:
    """Bytes of A and B that one K-step of BK brings in."""
    positive(bm=bm, bn=bn, bk=bk, itemsize=itemsize)
    return figure((bm + bn) * bk * itemsize, "B", f"({bm} + {bn}) x {bk} x {itemsize} B")


def k_step_flops(bm: int, bn: int, bk: int) -> Derived:
    """FLOP of one K-step of BK."""
    positive(bm=bm, bn=bn, bk=bk)
    return figure(2 * bm * bn * bk, "FLOP", f"2 x {bm} x {bn} x {bk}")


def threads_per_tile(bm: int, bn: int, tm: int, tn: int) -> Derived:
    """Threads that cover a BM x BN tile with TM x TN outputs (accumulator registers) each."""
    positive(bm=bm, bn=bn, tm=tm, tn=tn)
    return figure(bm * bn / (tm * tn), "threads", f"{bm} x {bn} / ({tm} x {tn})")


def shared_loads_per_mac(tm: int, tn: int) -> Derived:
    """Values a thread reads from shared memory per MAC: TM + TN of them feed TM x TN."""
    positive(tm=tm, tn=tn)
    return figure((tm + tn) / (tm * tn), "loads/MAC", f"({tm} + {tn}) / ({tm} x {tn})")


def shared_load_bytes_per_mac(tm: int, tn: int, itemsize: int) -> Derived:
    """Bytes a thread reads from shared memory per MAC; 1 x 1 is a kernel without register blocking."""
    positive(tm=tm, tn=tn, itemsize=itemsize)
    return figure((tm + tn) * itemsize / (tm * tn), "B/MAC", f"({tm} + {tn}) x {itemsize} B / ({tm} x {tn})")


# ---- the ports


def bandwidth_needed(tflops: float, intensity: float) -> Derived:
    """TB/s that keep a speed fed at an intensity (FLOP/B)."""
    _not_negative(tflops=tflops)
    positive(intensity=intensity)
    return figure(tflops / intensity, "TB/s", f"{number(tflops)} TFLOPS / {number(intensity)} FLOP/B")


def bandwidth_over(bytes_moved: float, time_us: float) -> Derived:
    """TB/s that move so many bytes in a time."""
    _not_negative(bytes_moved=bytes_moved)
    positive(time_us=time_us)
    return figure(bytes_moved / time_us / 1e6, "TB/s", f"{amount(bytes_moved)} / {number(time_us)} us")


def shared_port_demand(bytes_per_mac: float, gpu: GpuSpec, *, load_bytes: int = _LANE_BYTES) -> Derived:
    """B/clk/SM of shared memory that FMAs at full rate ask for, against ``gpu.shared_bytes_per_clock``.

    ``load_bytes`` is the width of one load (16 for a float4). A load narrower than a bank's 4 B keeps the
    whole lane busy, so it counts as 4 B.
    """
    _not_negative(bytes_per_mac=bytes_per_mac)
    positive(load_bytes=load_bytes)
    widening = max(1.0, _LANE_BYTES / load_bytes)
    text = f"{number(bytes_per_mac)} B/MAC x {gpu.fp32_fma_per_clock} FMA/clk/SM"
    if widening > 1:
        text += f" x {_LANE_BYTES} / {load_bytes} (narrow loads)"
    return figure(bytes_per_mac * widening * gpu.fp32_fma_per_clock, "B/clk/SM", text)


def bound(
    gpu: GpuSpec,
    roof: Roof,
    *,
    intensity: float | None = None,
    shared_bytes_per_mac: float | None = None,
    load_bytes: int = _LANE_BYTES,
) -> Bound:
    """The most a kernel can reach on ``gpu``: the least of peak, HBM and, if given, the shared-memory port.

    ``intensity`` is FLOP per byte that comes from HBM (None: no traffic, so no limit).
    ``shared_bytes_per_mac`` and ``load_bytes`` are those of ``shared_port_demand`` and apply to CUDA-core
    kernels, whose operands pass that port one FMA at a time. Of equal limits the first is named.
    """
    _not_negative(intensity=intensity, shared_bytes_per_mac=shared_bytes_per_mac)
    peak = peak_tflops(gpu, roof)
    limits = [(peak, _ROOF_WORDS[roof], f"peak {number(peak)}")]
    if intensity is not None:
        limit = intensity * gpu.hbm_bytes_per_s / 1e12
        text = f"{number(intensity)} FLOP/B x {number(gpu.hbm_bytes_per_s / 1e12)} TB/s = {number(limit)}"
        limits.append((limit, "HBM bandwidth", text))
    if shared_bytes_per_mac:
        demand = shared_port_demand(shared_bytes_per_mac, gpu, load_bytes=load_bytes).value
        limit = peak * gpu.shared_bytes_per_clock / demand
        text = f"{number(peak)} x {gpu.shared_bytes_per_clock} / {number(demand)} B/clk/SM = {number(limit)}"
        limits.append((limit, "shared-memory port", text))
    tflops, limited_by, _ = min(limits, key=lambda entry: entry[0])
    texts = ", ".join(text for _, _, text in limits)
    formula = f"min({texts})" if len(limits) > 1 else texts
    return Bound(tflops, limited_by, f"{formula} = {number(tflops)} TFLOPS: {limited_by}")


def bottleneck(
    flop_per_byte: float,
    shared_bytes_per_mac: float | None,
    itemsize: int,
    gpu: GpuSpec,
    *,
    load_bytes: int | None = None,
) -> str:
    """Say in words what holds a CUDA-core kernel back, from its arithmetic alone.

    ``flop_per_byte`` counts the bytes its threads request from global memory, ``shared_bytes_per_mac`` those
    they load from shared memory (None: it uses none), ``itemsize`` the element there and ``load_bytes`` the
    width of one load (the element when left out). Three times are compared, in units of the FMAs' time: FP32
    issue (1), the shared-memory port (its demand over 128 B/clk/SM) and global memory (the fp32 ridge over
    ``flop_per_byte``). The longest is named, and two within 1% as a tie. Without shared memory the requests
    are mostly served by the caches, so L1/L2 is named rather than HBM.
    """
    _not_negative(flop_per_byte=flop_per_byte, shared_bytes_per_mac=shared_bytes_per_mac)
    positive(itemsize=itemsize)
    ridge_flop_per_byte = ridge(gpu, "fp32").value
    against_ridge = f"{number(flop_per_byte)} FLOP/B against a ridge of {ridge_flop_per_byte:.0f} FLOP/B"
    if shared_bytes_per_mac is None:
        if flop_per_byte < ridge_flop_per_byte:
            return f"L1/L2 bandwidth and latency: {against_ridge}"
        return _ROOF_WORDS["fp32"]

    width = itemsize if load_bytes is None else load_bytes
    demand = shared_port_demand(shared_bytes_per_mac, gpu, load_bytes=width).value
    port = demand / gpu.shared_bytes_per_clock
    if ridge_flop_per_byte > flop_per_byte * max(port, 1.0):
        return f"L2 and HBM bandwidth: {against_ridge}"

    fair = number(gpu.shared_bytes_per_clock / gpu.fp32_fma_per_clock)
    if math.isclose(port, 1.0, rel_tol=_TIE):
        return f"tie by bytes requested: shared-memory port and FP32 issue are both full at {fair} B/MAC"
    if port > 1.0:
        asked = f"{number(demand / gpu.fp32_fma_per_clock)} B/MAC"
        narrow = f" (a {width}-byte load takes a {_LANE_BYTES}-byte lane)" if width < _LANE_BYTES else ""
        return f"shared-memory port: {asked}{narrow} against {fair} B/MAC"
    supply = gpu.shared_bytes_per_clock
    return f"FP32 issue: the shared-memory port carries {number(demand)} of {supply} B/clk"
