#!/usr/bin/env python3
"""Measure many configurations of every family on many shapes, so that the planner can be held against the best of them.

    python scripts/sweep.py --dry-run                                        # what would be measured; needs no GPU
    python scripts/sweep.py --out results/sweep_h200.jsonl --seconds 280     # again and again, until nothing is left
    python scripts/sweep.py --only wave --within 0.1 --slot-ms 110 --out near.jsonl    # all that is near the pick

Each shape of benchmarks/sweep_shapes.json is one interleaved measurement: some forty configurations from the planner's
own list (sweep_plans.py), each checked once on NaN-poisoned output, the first of them twice, cuBLAS and the best of
cublasLt beside them, in short slots over operand sets that rotate through more than 200 MB. What the file has is not
measured again; a configuration that the planner has come to prefer since is added to its shape. Kernels are compiled
ahead in processes of their own, and the measuring is one too: what hangs or breaks it is noted as lost and left out.
scripts/sweep_report.py makes the figures of the sweep, scripts/sweep_list.py lists what a file has, the fastest first.
Slots of 110 ms show what the power limit does to each configuration, --pdl how dependent launches follow each other: in
files of their own, since what a file has is not measured again. Needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import sweep_file
from sweep_plans import Selection, choose, name_of, planning_of, read_plan, values_of
from sweep_shapes import Part, Shape, select
from sweep_worker import task_of
from worker_pool import Pool

from tilewright import measure, nvrtc, results
from tilewright.errors import TilewrightError
from tilewright.gpu import get_gpu
from tilewright.plan_base import Plan
from tilewright.run import DEFAULT_ARCH
from tilewright.selection import kernel_of

SCHEDULE = measure.Schedule(slot_ms=2.5, rounds=4, graph_ms=1.0, warm_slots=40, sampled=False)
WARM_MS = SCHEDULE.slot_ms * SCHEDULE.warm_slots
START_S, SILENCE_S = 240.0, 90.0  # to the first answer, with PyTorch and the first kernels; and between two
COMPILE_S = 1.5  # about what one kernel takes one processor
MOST_ERRORS = 4  # shapes that go wrong for reasons of the program: then it is no use to go on


@dataclass(frozen=True)
class Job:
    """A shape and the configurations still to be measured on it. ``seconds`` is what that is predicted to take."""

    shape: Shape
    plans: tuple[Plan, ...]
    predicted_us: tuple[float, ...]
    seconds: float

    @property
    def task(self) -> str:
        """For the process that measures."""
        return task_of(self.shape, self.plans, self.predicted_us, map(values_of, self.plans))

    def without(self, names: set[str]) -> Job:
        """The same with some configurations less."""
        kept = [(p, us) for p, us in zip(self.plans, self.predicted_us, strict=True) if name_of(p) not in names]
        plans, predicted = zip(*kept, strict=True) if kept else ((), ())
        return replace(self, plans=plans, predicted_us=predicted)


def jobs_of(
    shapes: Sequence[Shape], sweep: sweep_file.Sweep, selection: Selection, schedule: measure.Schedule,
    *, pdl: bool = False,
) -> list[Job]:  # fmt: skip
    """What is left to measure, in the order of the shapes."""
    found = []
    for shape in shapes:
        chosen = choose(planning_of(shape, pdl=pdl), shape, selection, schedule, get_gpu("h200").l2_bytes)
        whole = Job(shape, chosen.plans, chosen.predicted_us, chosen.seconds)
        job = whole.without(sweep.done(shape.sizes))
        if job.plans:
            found.append(replace(job, seconds=job.seconds * len(job.plans) / len(whole.plans)))
    return found


def compiled(values: Mapping[str, Any]) -> None:
    """Compile a configuration into the cache. A failure is the measuring process's to report."""
    plan = read_plan(values)
    with suppress(TilewrightError):
        nvrtc.compile_kernel(kernel_of(plan).source(plan, "gpu", DEFAULT_ARCH))


class Run:
    """One run of the sweep: what it has been given, and what it appends to."""

    def __init__(self, out: Path, command: Sequence[str], mark: Path, seconds: float) -> None:
        self._out, self._mark = out, mark
        self._until = time.monotonic() + seconds
        self._pool = Pool(command, 1, start_s=START_S, silence_s=SILENCE_S)
        self._known = set(sweep_file.read(out).plans)
        self._run = ""
        self.errors = 0

    def measure(self, jobs: Sequence[Job], compiling: Mapping[str, Future[None]]) -> list[Job]:
        """Measure jobs and write down what comes. Returns those that are to be tried again, without what was lost."""
        by_task = {job.task: job for job in jobs}
        again: list[Job] = []

        def ready(task: str) -> None:
            for name in json.loads(task)["names"]:
                if name in compiling:
                    with suppress(Exception):  # then the measuring process compiles it, or says why not
                        compiling[name].result()

        left = self._until - time.monotonic()
        for task, answer in self._pool.run(list(by_task), at_once=1, seconds=left, ready=ready):
            job = by_task[task]
            if isinstance(answer, str):
                again += self._lost(job, {self._mark.read_text() if self._mark.exists() else "": answer})
            elif answer.get("error"):
                self.errors += 1
                print(f"{job.shape}: {answer['error']}", flush=True)
                if self.errors >= MOST_ERRORS:
                    break
            elif answer["broken"] is not None:
                again += self._lost(job, {answer["broken"]: "it left the GPU unusable"}, answer["refused"])
            else:
                self._keep(job, answer)
        return again

    def _lost(self, job: Job, lost: Mapping[str, str], refused: Mapping[str, str] | None = None) -> list[Job]:
        """Note configurations that are not to be tried again; the job without them, nothing where none was at fault."""
        names = {name_of(plan) for plan in job.plans}
        gone = {name: why for name, why in {**lost, **(refused or {})}.items() if name in names}
        for name, why in lost.items():
            print(f"{job.shape}: {name or 'nothing yet'} lost: {why}", flush=True)
        self._append(job, [sweep_file.lost_line(job.shape.sizes, name, why) for name, why in gone.items()])
        rest = job.without(set(gone))
        return [rest] if gone and rest.plans else []

    def _keep(self, job: Job, answer: Mapping[str, Any]) -> None:
        line = answer["line"]
        if line is None:
            self._lost(job, answer["refused"])
            return
        lines = []
        if not self._run:
            self._run = answer["provenance"]["date"]
            source = results.Provenance(**{**answer["provenance"], "command": results.command()})
            lines.append(sweep_file.run_line(self._run, source))
        self._append(job, [*lines, {**line, "run": self._run}])
        times = line["times"]
        best = min(times, key=lambda name: _median(times[name]), default=None)
        vendor = line["vendor"].get(sweep_file.CUBLAS)
        said = "nothing was timed" if best is None else f"best {_median(times[best]):.2f} us"
        beside = f", cuBLAS {_median(vendor):.2f} us" if vendor else ""
        print(f"{job.shape}: {len(times)} timed, {len(line['refused'])} not; {said}{beside}", flush=True)

    def _append(self, job: Job, lines: Sequence[Mapping[str, Any]]) -> None:
        new = {name_of(plan): plan for plan in job.plans if name_of(plan) not in self._known}
        if lines:
            sweep_file.append(self._out, [*map(sweep_file.plan_line, new.values()), *lines])
            self._known |= set(new)


def _median(values: Sequence[float]) -> float:
    return sweep_file.Timed(tuple(values[:-1]), None).us.median


def dry_run(jobs: Sequence[Job], seconds: float) -> str:
    """What a run would do."""
    lines = [
        f"{job.shape!s:>18} {job.shape.stratum:8} {len(job.plans):3} configurations, {job.seconds:5.2f} s, "
        f"predicted best {min(job.predicted_us):8.2f} us"
        for job in jobs
    ]
    plans = {name_of(plan): plan for job in jobs for plan in job.plans}
    families: dict[str, int] = {}
    for plan in plans.values():
        families[plan.of] = families.get(plan.of, 0) + 1
    took = sum(job.seconds for job in jobs) + len(jobs) * 0.5  # operands, the reference and the vendor's algorithms
    cores = os.cpu_count() or 1
    lines += [
        f"{len(jobs)} shapes, {sum(len(job.plans) for job in jobs)} measurements of {len(plans)} configurations: "
        + ", ".join(f"{count} of {name}" for name, count in sorted(families.items())),
        f"about {took:.0f} s of GPU, {seconds:g} s are given; {len(plans)} kernels",
        f"to compile beside it: about {len(plans) * COMPILE_S / max(cores - 1, 1):.0f} s on {cores} processors",
    ]
    return "\n".join(lines)


def sweep(jobs: Sequence[Job], given: argparse.Namespace, schedule: measure.Schedule, worker: Sequence[str]) -> int:
    """Measure the jobs for ``given.seconds``. 1 when something is left."""
    spawn = multiprocessing.get_context("spawn")
    workers = max(1, (os.cpu_count() or 2) - 2)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(workers, mp_context=spawn) as processes:
        mark = Path(folder) / "running"
        run = Run(given.out, [*worker, json.dumps(asdict(schedule)), str(mark)], mark, given.seconds)
        plans = {name_of(plan): plan for job in jobs for plan in job.plans}
        compiling = {name: processes.submit(compiled, values_of(plan)) for name, plan in plans.items()}
        left = list(jobs)
        try:
            while left and run.errors < MOST_ERRORS:
                left = run.measure(left, compiling)
        finally:
            processes.shutdown(wait=True, cancel_futures=True)
    return 1 if run.errors >= MOST_ERRORS else 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/sweep_h200.jsonl"), help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=280.0, help="begin no shape after that (default: %(default)s)")
    parser.add_argument("--part", choices=("all", *get_args(Part)), default="all", help="(default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="strata or shapes such as 1x4096x4096")
    parser.add_argument("--per-family", type=int, default=Selection.per_family, help="(default: %(default)s)")
    parser.add_argument(
        "--most", type=int, default=Selection.most, help="configurations a shape (default: %(default)s)"
    )
    parser.add_argument("--shape-seconds", type=float, default=Selection.seconds, help="a shape (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=SCHEDULE.rounds, help="(default: %(default)s)")
    parser.add_argument("--slot-ms", type=float, default=SCHEDULE.slot_ms, help="(default: %(default)s)")
    parser.add_argument(
        "--within",
        type=float,
        metavar="SHARE",
        help="all that are predicted to take at most so much more than the pick",
    )
    parser.add_argument("--pdl", action="store_true", help="dependent launches, where a kernel gains by them")
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured; needs no GPU")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, worker: Sequence[str] | None = None) -> int:
    """Measure what is left, or say what is."""
    given = arguments(argv)
    warm_slots = max(1, round(WARM_MS / given.slot_ms))
    schedule = replace(SCHEDULE, rounds=given.rounds, slot_ms=given.slot_ms, warm_slots=warm_slots)
    selection = Selection(given.per_family, given.most, given.shape_seconds, given.within)
    try:
        shapes = select(given.part, given.only)
        jobs = jobs_of(shapes, sweep_file.read(given.out), selection, schedule, pdl=given.pdl)
        if given.dry_run:
            print(dry_run(jobs, given.seconds))
            return 0
        status = sweep(
            jobs, given, schedule, worker or [sys.executable, str(Path(__file__).with_name("sweep_worker.py"))]
        )
        left = jobs_of(shapes, sweep_file.read(given.out), selection, schedule, pdl=given.pdl)
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{len(shapes) - len(left)} of {len(shapes)} shapes are done" + (", the others are left" if left else ""))
    return status


if __name__ == "__main__":
    sys.exit(main())
