"""Climb the ladder: run each rung, verify it, count what it moves, and on a GPU measure it.

The same operands go through every rung. On a GPU all rungs and the vendor's library are timed side by side in one
run; without one the kernels run in the emulator, which counts and never claims a time.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright import nvrtc, results, verify
from tilewright.backends import BackendName, open_backend
from tilewright.backends.base import Backend, DeviceInfo
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import Counts
from tilewright.count import count
from tilewright.derive import derived, problem_arithmetic
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as look_up
from tilewright.errors import CompileError, EmulatorFault, LaunchError, UnavailableError
from tilewright.gpu import GpuSpec, get_gpu, query_gpu
from tilewright.kernel_file import CounterExample, KernelFile
from tilewright.ladder import Rung, posed
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Layout, Problem
from tilewright.run import DEFAULT_ARCH, Operands, make_operands, prepare
from tilewright.selection import default_layouts, default_shape, select

if TYPE_CHECKING:
    from tilewright.measure import Schedule

SCHEMA = "tilewright.climb/1"
MEASURED = default_shape(None, "measured")
ASSUMED_GPU = "h200"  # whose roofs apply where there is no GPU
RECORDED_GPU = "NVIDIA H200"  # whose recorded figures stand beside rungs that are not timed
FAULTS = (CompileError, LaunchError, EmulatorFault)  # what ends one row and not the climb
Progress = Callable[[int, int, str], None]


@dataclass
class Row:
    """One rung or kernel of a branch, or a mistake shown beside it, at one dtype. What is absent here is None."""

    kernel: KernelFile
    plan: Plan
    derived: Mapping[str, Any]
    mistake: CounterExample | None = None
    report: verify.Report | None = None
    fault: str | None = None
    counts: Counts | None = None
    compiled: Mapping[str, Any] | None = None
    time_us: float | None = None
    tflops: float | None = None
    percent_of_roof: float | None = None
    speedup_over_previous: float | None = None
    speedup_over_naive: float | None = None
    recorded: Mapping[str, Any] | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kernel's name, or the mistake's."""
        return self.kernel.name if self.mistake is None else self.mistake.name

    @property
    def label(self) -> str:
        """A name that no other row of the dtype has."""
        return " ".join(map(str, (*self.kernel.identity.values(), self.name)))

    def to_dict(self) -> dict[str, Any]:
        """One row of ``climb --json``."""
        return {
            **self.kernel.identity,
            "name": self.name,
            "dtype": self.plan.dtype.name,
            **({} if self.mistake is None else {"counter_example": self.mistake.title}),
            "verified": self.report.ok if self.report is not None else (None if self.fault is None else False),
            "error_over_bound": None if self.report is None else self.report.max_error_over_bound,
            "fault": self.fault,
            "derived": dict(self.derived),
            "counted": None if self.counts is None else self.counts.to_dict(),
            "compiled": None if self.compiled is None else dict(self.compiled),
            "time_us": self.time_us,
            "tflops": self.tflops,
            "percent_of_roof": self.percent_of_roof,
            "speedup_over_previous": self.speedup_over_previous,
            "speedup_over_naive": self.speedup_over_naive,
            "speedup_over_vendor": dict(self.ratios),
            "recorded": None if self.recorded is None else dict(self.recorded),
            "plan": self.plan.to_dict(),
        }


@dataclass
class ClimbResult:
    """Every row of a climb, and where it ran.

    ``gpu`` is the one whose roofs apply: the present one, or an assumed one where there is none. ``records`` are for
    ``results/``: empty unless it was measured.
    """

    shape: tuple[int, int, int]
    layouts: tuple[Layout, Layout]
    backend: str
    device: DeviceInfo
    gpu: GpuSpec
    gpu_assumed: bool
    rows: list[Row]
    records: list[results.Record] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The document ``climb --json`` prints."""
        m, n, k = self.shape
        dtypes = list(dict.fromkeys(row.plan.dtype for row in self.rows))
        arithmetic = {kind.name: problem_arithmetic(Problem(m, n, k, kind)) for kind in dtypes}
        return {
            "schema": SCHEMA,
            "problem": {
                "m": m,
                "n": n,
                "k": k,
                "a_layout": self.layouts[0],
                "b_layout": self.layouts[1],
                "dtypes": list(arithmetic),
                "arithmetic": arithmetic,
            },
            "backend": self.backend,
            "device": {"name": self.device.name, **self.device.details},
            "gpu": {"key": self.gpu.key, "name": self.gpu.name, "assumed": self.gpu_assumed},
            "rungs": [row.to_dict() for row in self.rows if row.mistake is None],
            "counter_examples": [row.to_dict() for row in self.rows if row.mistake is not None],
            "vendor": [
                {"name": r.name, "dtype": r.dtype, "time_us": r.time_us and r.time_us["median"], "tflops": r.tflops}
                for r in self.records
                if r.what == "vendor"
            ],
        }


def climb(
    *,
    shape: tuple[int, int, int] | None = None,
    dtype: str | DType | None = None,
    rungs: str | None = None,
    branch: str | None = None,
    a_layout: Layout | None = None,
    b_layout: Layout | None = None,
    backend: BackendName | Backend | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    schedule: Schedule | None = None,
) -> ClimbResult:
    """Climb ``rungs`` (such as ``"0-4"``) for a problem of ``shape`` ``(m, n, k)``, in one dtype or (None) in two.

    Without a shape it is 256x512x256 in the emulator and 4096^3 on a GPU, of row-major operands; without a dtype it is
    fp32, then bf16. With a ``branch`` its kernels are run in the rungs' place: without a shape one that shows its
    idea, row-major A and column-major B, bf16. Kernels that do not run the dtype or the layouts are left out. Where one
    moves operands by TMA, their lines are padded to 16 bytes for all kernels and the vendor. Raises ``UsageError`` for
    arguments that make no sense and ``UnavailableError`` when a named backend is not there. A kernel that does not
    compile or run is the ``fault`` of its row; the others go on.
    """
    place = open_backend(backend) if backend is None or isinstance(backend, str) else backend
    emulated = isinstance(place, EmulatorBackend)
    tell = progress or (lambda done, total, label: None)
    device = place.device()
    gpu, assumed = _gpu_of(place)
    shape = shape or default_shape(branch, "emulated" if emulated else "measured")
    usual = default_layouts(branch)
    layouts = (a_layout or usual[0], b_layout or usual[1])
    chosen = select(shape, None if dtype is None else look_up(dtype), layouts, rungs=rungs, branch=branch)
    result = ClimbResult(shape, layouts, place.name, device, gpu, assumed, [])
    problems = posed(shape, chosen, layouts)
    jobs = {kind: plan_rows(problems[kind], climbed, gpu, emulated=emulated) for kind, climbed in chosen.items()}
    total = sum(len(rows) + 2 for rows in jobs.values())
    done = 0

    def step(label: str, steps: int = 1) -> None:
        nonlocal done
        tell(done, total, label)
        done += steps

    for kind, rows in jobs.items():
        problem = problems[kind]
        step(f"{kind.name}: compiling {len(rows)} kernels")
        emulator = _emulator(place)
        _compile_ahead(place, emulator, rows)
        pair = random_operands(problem, seed)
        operands = _upload(place, problem, pair, rows)
        for row in rows:
            step(f"{kind.name}: rung {row.label}")
            if row.fault is None and operands is not None:
                _execute(place, row, operands, pair)
            if emulator is not None and row.fault is None:
                _count(emulator, row, problem, beside=emulator is not place)
        if not emulated:
            from tilewright.climb_timing import time_rows

            try:
                result.records += time_rows(
                    place, problem, rows, gpu, schedule=schedule, seed=seed, progress=lambda text: step(text, 0)
                )
            except LaunchError as error:
                if all(row.fault is None for row in rows):
                    raise
                # A kernel of this climb took the GPU along; what was verified before it is verified all the same.
                warnings.warn(f"{kind.name} is not timed: {error}", stacklevel=2)
        step(f"{kind.name}: done")
        result.rows += rows
    tell(total, total, "done")
    _compare(result.rows)
    return result


def plan_rows(problem: Problem, chosen: Sequence[KernelFile], gpu: GpuSpec, *, emulated: bool = False) -> list[Row]:
    """The rows of one dtype, each rung followed by the mistakes it is shown beside.

    A persistent grid in the emulator has a single cluster, so that it has several tiles to compute in a small C.
    """
    records = results.recorded()
    rows = []
    for kernel in chosen:
        plan = kernel.plan_for(problem, aligned=problem.aligned)
        if emulated and isinstance(plan, TensorPlan) and plan.persistent:
            plan = plan.with_(blocks=plan.cluster)
        rows.append(Row(kernel, plan, derived(plan, gpu, problem), recorded=_recorded(records, kernel, problem)))
        for mistake in kernel.counter_examples:
            if problem.dtype in mistake.dtypes:
                wrong = plan.with_(**mistake.changes)
                arithmetic = {**derived(wrong, gpu, problem), "bottleneck": mistake.bottleneck}
                rows.append(Row(kernel, wrong, arithmetic, mistake))
    return rows


def _upload(backend: Backend, problem: Problem, pair: tuple[Any, Any], rows: Sequence[Row]) -> Operands | None:
    """The operands in the backend's memory; None, and a fault of every row, when a kernel before took the GPU along."""
    try:
        return make_operands(backend, problem, *pair)
    except LaunchError as error:
        for row in rows:
            row.fault = row.fault or str(error)
        return None


def _execute(backend: Backend, row: Row, operands: Operands, pair: tuple[Any, Any]) -> None:
    """Run a row on poisoned output and verify what it wrote."""
    c = operands.c
    try:
        fresh = Operands(operands.a, operands.b, backend.empty(c.rows, c.cols, c.dtype, c.ld))
        prepare(backend, row.kernel, row.plan, fresh)(backend)
        row.report = verify.verify(backend.download(fresh.c), *pair, dtype=row.plan.dtype)
    except FAULTS as fault:
        row.fault = str(fault)


def _count(emulator: EmulatorBackend, row: Row, problem: Problem, *, beside: bool) -> None:
    """Count what a row moves. Beside a GPU a host compiler that refuses the kernel costs it the counts, no more."""
    try:
        row.counts = count(emulator, row.kernel, row.plan, problem)
    except CompileError as error:
        if not beside:
            row.fault, row.report = str(error), None
        else:
            warnings.warn(f"rung {row.label} is not counted: {error}", stacklevel=2)
    except EmulatorFault as fault:  # whatever it wrote: on other data, or in another run, it may be wrong
        row.fault, row.report = str(fault), None


def _compile_ahead(backend: Backend, emulator: EmulatorBackend | None, rows: Sequence[Row]) -> None:
    """Compile all kernels of ``rows`` side by side, so that the cores are used; the caches hold them afterwards.

    What cannot be compiled here is left out: the counted and the compiled columns are then empty.
    """
    arch = str(getattr(backend, "arch", DEFAULT_ARCH))

    def compile_row(row: Row) -> None:
        try:
            if emulator is backend:
                emulator.compile(row.kernel.source(row.plan, "host"))
            if nvrtc.available():
                report = nvrtc.compile_kernel(row.kernel.source(row.plan, "gpu", arch)).report
                row.compiled = report.of_launch(row.plan.shared_bytes)
        except CompileError as error:
            row.fault = str(error)
            return
        if emulator is not None:
            with suppress(CompileError):  # told when the row is counted
                emulator.compile(row.kernel.source(row.plan, "host"), instrumented=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_row, rows))


def _emulator(backend: Backend) -> EmulatorBackend | None:
    """The emulator that counts: the backend itself or one beside it; None without a host compiler."""
    if isinstance(backend, EmulatorBackend):
        return backend
    beside = EmulatorBackend()
    try:
        beside.device()
    except UnavailableError:
        return None
    return beside


def _gpu_of(backend: Backend) -> tuple[GpuSpec, bool]:
    """The GPU whose roofs apply, and whether it is assumed: the one that runs the kernels, an H200 where none does."""
    if isinstance(backend, EmulatorBackend):
        return get_gpu(ASSUMED_GPU), True
    return query_gpu(int(getattr(backend, "device_id", 0))), False


def _recorded(records: Sequence[results.Record], kernel: KernelFile, problem: Problem) -> dict[str, Any] | None:
    """The latest committed H200 figure of a rung for this dtype and these layouts; none of a branch's kernel."""
    if not isinstance(kernel, Rung):
        return None
    measured = Problem(*MEASURED, problem.dtype, None, problem.a_layout, problem.b_layout)
    record = results.latest(records, what="rung", rung=kernel.number, gpu=RECORDED_GPU, problem=measured)
    if record is None or record.tflops is None:
        return None
    shape = {key: record.problem[key] for key in ("m", "n", "k")}
    provenance = record.provenance
    return {"gpu": provenance.gpu, "date": provenance.date[:10], "problem": shape, "tflops": record.tflops}


def _compare(rows: Sequence[Row]) -> None:
    """Fill in the speed-ups over the rung below and over rung 0 of the same dtype."""
    times: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.time_us is None or not isinstance(row.kernel, Rung):
            continue
        kind, number = row.plan.dtype.name, row.kernel.number
        below, naive = times.get((kind, number - 1)), times.get((kind, 0))
        row.speedup_over_previous = below / row.time_us if below else None
        row.speedup_over_naive = naive / row.time_us if naive and number else None
        if row.mistake is None:
            times[kind, number] = row.time_us
