"""The timed half of a climb: every rung of a dtype and the vendor's library side by side in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tilewright import __version__, measure, nvrtc, results
from tilewright.backends.cuda import CudaBackend
from tilewright.backends.cuda_timer import CudaTimer
from tilewright.errors import UnavailableError
from tilewright.gpu import GpuSpec
from tilewright.plan_simt import SimtPlan
from tilewright.problem import Problem
from tilewright.rivals import cublas, kernel_rival, operand_sets, vendor_versions
from tilewright.roofline import percent_of_roof, roof_of
from tilewright.telemetry import Telemetry

if TYPE_CHECKING:
    from tilewright.climb import Row

VENDOR = "cuBLAS"


def time_rows(
    backend: Any,
    problem: Problem,
    rows: Sequence[Row],
    gpu: GpuSpec,
    *,
    schedule: measure.Schedule | None = None,
    seed: int = 0,
    progress: Callable[[str], None],
) -> list[results.Record]:
    """Time the verified rows and cuBLAS against each other, fill in their figures and return the records.

    Rows that were not verified are not timed: a wrong result has no speed.
    """
    assert isinstance(backend, CudaBackend)
    timed = [row for row in rows if row.report is not None and row.report.ok and problem.flops]
    if not timed:
        return []
    rotation = measure.rotation(problem.bytes_moved, gpu.l2_bytes)
    sets = operand_sets(backend, problem, rotation.sets, seed=seed)
    rivals = [kernel_rival(backend, row.kernel, row.plan, sets, row.label) for row in timed]
    try:
        rivals.append(cublas(backend, sets, VENDOR))
        baseline = VENDOR
    except UnavailableError:
        baseline = rivals[-1].name
    with backend.telemetry() as snapshot:
        measurement = measure.measure(
            rivals,
            CudaTimer(backend),
            baseline=baseline,
            schedule=schedule or measure.Schedule.quick(),
            snapshot=snapshot,
            progress=lambda name, slot, slots: progress(f"{problem.dtype.name}: timing {name}, {slot} of {slots}"),
        )
    describe: dict[str, dict[str, Any]] = {VENDOR: {"what": "vendor"}}
    for row in timed:
        timing = measurement.timings[row.label]
        row.time_us = None if timing.time_us is None else timing.time_us.median
        row.tflops = timing.tflops(problem.flops)
        if row.tflops is not None:
            roof = roof_of(problem.dtype, tensor_cores=not isinstance(row.plan, SimtPlan))
            row.percent_of_roof = percent_of_roof(row.tflops, gpu, roof).value
        ratio = measurement.ratio(row.label, VENDOR) if baseline == VENDOR else None
        if ratio is not None:
            row.ratios = {VENDOR: ratio.median}
        describe[row.label] = {
            "what": next(iter(row.kernel.identity)) if row.mistake is None else "counter-example",
            "rung": row.kernel.identity.get("rung"),
            "plan": row.plan.to_dict(),
            "compiled": row.compiled,
            "verified": {"error_over_bound": row.report.max_error_over_bound} if row.report else None,
        }
    return results.records_of(measurement, problem, provenance(backend, measurement, rotation.label), describe)


def provenance(backend: CudaBackend, measurement: measure.Measurement, l2: str) -> results.Provenance:
    """Where the figures of a measurement on N(0, 1) data come from; ``l2`` says what operands find in the cache."""
    device = backend.device()
    major, minor = nvrtc.nvrtc_version()
    return results.Provenance(
        gpu=device.name,
        date=results.now(),
        driver=Telemetry(device.details["uuid"], backend.device_id).driver_version(),
        driver_cuda=".".join(map(str, device.details["driver_cuda"])),
        nvrtc=f"{major}.{minor}",
        libraries=vendor_versions(),
        version=__version__,
        commit=results.commit(),
        command=results.command(),
        fill="normal",
        l2=l2,
        method=str(measurement.schedule),
        before=measurement.before.to_dict(),
        after=measurement.after.to_dict(),
    )
