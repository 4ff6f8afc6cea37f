"""What the tensor-core measurements share: operands made on the GPU, rivals, verification, records.

Needs an NVIDIA GPU and PyTorch: operands of this size take a processor minutes to make and hours to check.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright import ladder, measure, nvrtc, results, verify
from tilewright.backends.base import Matrix
from tilewright.backends.cuda import CudaBackend
from tilewright.backends.cuda_timer import CudaTimer
from tilewright.climb_timing import provenance
from tilewright.errors import TilewrightError, UnavailableError
from tilewright.gpu import get_gpu
from tilewright.kernel_file import KernelFile
from tilewright.plan_base import Plan
from tilewright.problem import Layout, Problem
from tilewright.rivals import cublas, kernel_rival
from tilewright.rivals_lt import SCREENING, lt_best, names_of
from tilewright.run import DEFAULT_ARCH, Operands

ROWS = Path(__file__).with_name("tensor_rows.json")
CUBLAS, LT_BEST = "cuBLAS", "Lt best"
TENSOR_FLOPS_PER_CLOCK = get_gpu("h200").bf16_tensor_flop_per_clock or 0


@dataclass(frozen=True)
class Entrant:
    """A rung, or a kernel of a branch, with a plan, by the name it has in the records and the table."""

    name: str
    rung: KernelFile
    plan: Plan


@dataclass(frozen=True)
class Candidate(Entrant):
    """One that is a rung."""

    rung: ladder.Rung


@dataclass(frozen=True)
class Row:
    """A problem to win, the plan that is to win it, and by how much: least ratios to cuBLAS and Lt best, or TFLOPS."""

    problem: Problem
    candidate: Candidate
    must: float | None = None
    must_lt: float | None = None
    must_tflops: float | None = None

    def __str__(self) -> str:
        return f"{self.problem} {self.candidate.rung.place}"


def read_rows(path: Path = ROWS) -> list[Row]:
    """The rows of a table. Raises ``UsageError`` for a plan that no kernel has."""
    return [_row(**values) for values in json.loads(path.read_text("utf-8"))]


def _row(
    shape: tuple[int, int, int],
    plan: Mapping[str, Any],
    layouts: tuple[Layout, Layout] = ("row", "column"),
    dtype: str = "bf16",
    rung: int = 11,
    **musts: float,
) -> Row:
    problem = Problem(*shape, dtype, None, *layouts)
    step = ladder.rung(rung)
    chosen = step.plan(problem.dtype, a_layout=layouts[0], b_layout=layouts[1]).with_(**plan)
    return Row(problem, Candidate("tilewright" if rung == 11 else f"{rung} {step.name}", step, chosen), **musts)


class Bench:
    """One GPU with its timer, for one measurement after another."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise UnavailableError("this needs PyTorch: pip install 'tilewright[torch]'") from error
        self.torch = torch
        self.backend = CudaBackend()
        self.timer = CudaTimer(self.backend)
        details = self.backend.device().details
        self.l2_bytes, self.sm_count = int(details["l2_bytes"]), int(details["sm_count"])

    def operand_sets(self, problem: Problem, count: int, seed: int = 0) -> list[Operands]:
        """``count`` sets of N(0, 1) operands with tight lines, and a C full of NaN for each."""
        torch = self.torch
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[problem.dtype.name]
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def matrix(rows: int, cols: int, layout: Layout) -> Matrix:
            lines = (rows, cols) if layout == "row" else (cols, rows)
            drawn = torch.randn(lines, device="cuda", generator=generator).to(kind)
            tensor = drawn if layout == "row" else drawn.T
            return Matrix(drawn.data_ptr(), rows, cols, lines[1], problem.dtype, tensor, layout)

        sets = []
        for _ in range(count):
            a = matrix(problem.m, problem.k, problem.a_layout)
            b = matrix(problem.k, problem.n, problem.b_layout)
            c = torch.full((problem.m, problem.n), float("nan"), device="cuda", dtype=kind)
            sets.append(Operands(a, b, Matrix(c.data_ptr(), problem.m, problem.n, problem.n, problem.dtype, c)))
        torch.cuda.synchronize()
        return sets

    def checked(self, rival: measure.Rival, sets: Sequence[Operands]) -> verify.Report:
        """Run a rival once on each set with C poisoned, and hold every element against float64: the worst report."""
        reports = []
        for launch, operands in zip(rival.launches, sets, strict=True):
            self._run(launch, operands)
            reports.append(verify.verify(operands.c.owner, operands.a.owner, operands.b.owner))
        return max(reports, key=lambda report: (not report.ok, report.max_error_over_bound))

    def expected(self, operands: Operands) -> verify.Expected:
        """What C must be for these operands, for ``check``: for many rivals, or large problems."""
        return verify.Expected(operands.a.owner, operands.b.owner, out_dtype=operands.c.dtype)

    def check(self, rival: measure.Rival, operands: Operands, expected: verify.Expected) -> verify.Report:
        """Run a rival's first launch, that of these operands, with C poisoned, and hold C against ``expected``."""
        self._run(rival.launches[0], operands)
        return expected.check(operands.c.owner)

    def _run(self, launch: measure.Launch, operands: Operands) -> None:
        self.backend.poison(operands.c)
        with self.backend.current():
            launch(self.backend.stream)
        self.backend.synchronize()

    def vendors(
        self, sets: Sequence[Operands], screening: measure.Schedule = SCREENING
    ) -> Iterator[tuple[measure.Rival, dict[str, Any]]]:
        """The vendor's GEMMs as rivals, with what a record says of them; without cublasLt, a line says why.

        ``screening`` is how cublasLt's algorithms are timed to find the best.
        """
        rival = cublas(self.backend, sets, CUBLAS)
        yield rival, {"kernels": names_of(rival.launches[0], self.timer.kernel_names)}
        try:
            names = self.timer.kernel_names
            yield lt_best(self.backend, sets, self.timer, LT_BEST, schedule=screening, kernels=names)
        except UnavailableError as error:
            print(f"{LT_BEST} is left out: {error}")


@dataclass
class Outcome:
    """A measurement of candidates against the vendor on one problem."""

    problem: Problem
    measurement: measure.Measurement
    records: list[results.Record]
    refused: dict[str, str] = field(default_factory=dict)
    outside: str | None = None
    """What is wrong with the baseline's results, where something is."""


def compile_all(candidates: Sequence[Entrant]) -> dict[str, nvrtc.Compiled | TilewrightError]:
    """Compile for the GPU, as many at a time as there are processors; by name, a kernel or why there is none."""

    def compiled(candidate: Entrant) -> nvrtc.Compiled | TilewrightError:
        try:
            return nvrtc.compile_kernel(candidate.rung.source(candidate.plan, "gpu", DEFAULT_ARCH))
        except TilewrightError as error:
            return error

    with ThreadPoolExecutor() as pool:
        return dict(zip([c.name for c in candidates], pool.map(compiled, candidates), strict=True))


def compete(
    bench: Bench,
    problem: Problem,
    candidates: Sequence[Entrant],
    schedule: measure.Schedule,
    *,
    lt: bool = True,
    seed: int = 0,
    least_bytes: int = 0,
) -> Outcome:
    """Verify the candidates and the vendor on the operands that are then timed, and time them side by side.

    A candidate that does not compile, is refused or computes a wrong element is not timed, and ``refused`` says why;
    nor is a vendor's GEMM that does, but for cuBLAS, which all are compared with: PyTorch lets it round the sums of a
    split K to bf16. Its record's ``verified`` then has ``outside``, and so has what is returned. The operand sets have
    at least ``least_bytes`` in all.
    """
    rotation = measure.rotation(problem.bytes_moved, bench.l2_bytes, least_bytes=least_bytes)
    sets = bench.operand_sets(problem, rotation.sets, seed)
    built = compile_all(candidates)
    describe: dict[str, dict[str, Any]] = {}
    rivals, refused, outside = [], {}, None
    for candidate in candidates:
        kernel = built[candidate.name]
        try:
            if isinstance(kernel, TilewrightError):
                raise kernel
            rival = kernel_rival(bench.backend, candidate.rung, candidate.plan, sets, candidate.name)
            report = bench.checked(rival, sets)
            report.require()
        except TilewrightError as error:
            refused[candidate.name] = str(error).splitlines()[0]
            continue
        rivals.append(rival)
        describe[candidate.name] = {
            "what": "kernel",
            "rung": candidate.rung.identity.get("rung"),
            "plan": candidate.plan.to_dict(),
            "compiled": kernel.report.of_launch(candidate.plan.shared_bytes),
            "verified": {"error_over_bound": report.max_error_over_bound},
        }
    for rival, details in bench.vendors(sets) if lt else [(cublas(bench.backend, sets, CUBLAS), {})]:
        report = bench.checked(rival, sets)
        if not report.ok and rival.name != CUBLAS:
            refused[rival.name] = str(report)
            continue
        verified: dict[str, Any] = {"error_over_bound": report.max_error_over_bound}
        if not report.ok:
            outside = str(report)
            verified = {"outside": outside}  # its error over the bound may be infinite
        rivals.append(rival)
        describe[rival.name] = {"what": "vendor", "details": details, "verified": verified}
    with bench.backend.telemetry() as snapshot:
        measurement = measure.measure(rivals, bench.timer, baseline=CUBLAS, schedule=schedule, snapshot=snapshot)
    source = provenance(bench.backend, measurement, rotation.label)
    return Outcome(problem, measurement, results.records_of(measurement, problem, source, describe), refused, outside)


def table(outcome: Outcome, sm_count: int) -> str:
    """The figures of a measurement, fastest first, for a terminal."""
    measurement, flops = outcome.measurement, outcome.problem.flops
    noise = measurement.noise
    band = "" if noise is None else f", {CUBLAS} against itself {noise.low:.3f} to {noise.high:.3f}"
    lines = [
        f"{outcome.problem}{band}",
        f"  {'':36} TFLOPS  vs {CUBLAS} (spread)          vs {LT_BEST}  SM MHz (NVML)  tensor busy      W",
    ]
    timings = [timing for timing in measurement.timings.values() if timing.time_us is not None]
    for timing in sorted(timings, key=lambda timing: timing.time_us.median if timing.time_us else 0):
        ratio, to_lt = measurement.ratio(timing.name), measurement.ratio(timing.name, LT_BEST)
        tflops, clock = timing.tflops(flops) or 0.0, timing.clock_mhz_in_kernel()
        busy = tflops * 1e6 / (sm_count * TENSOR_FLOPS_PER_CLOCK * clock) if clock else None
        lines.append(
            f"  {timing.name[:36]:36} {tflops:6.1f}  "
            + ("-" if ratio is None else f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})").ljust(26)
            + f"  {_shown(None if to_lt is None else to_lt.median, '.3f'):>9}  {_shown(clock, '.0f'):>6} "
            f"{'(' + _shown(timing.clock_mhz(), '.0f') + ')':>7}  {_shown(busy, '.3f'):>11}  "
            f"{_shown(timing.power_w(), '.0f'):>5}"
        )
    for timing in measurement.timings.values():
        if timing.error or timing.clock_note or timing.note:
            lines.append(f"  {timing.name}: {'; '.join(filter(None, (timing.error, timing.clock_note, timing.note)))}")
    lines += [f"  {name} was not timed: {why}" for name, why in outcome.refused.items()]
    if outcome.outside is not None:
        lines.append(f"  {CUBLAS} was timed though it is outside the bound of verify: {outcome.outside}")
    return "\n".join(lines)


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
