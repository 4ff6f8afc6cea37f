#!/usr/bin/env python3
"""Build, lint and run the main kernel in all of its ``plan_space.legal_plans``, and keep what came of each.

A plan is right when NVRTC compiles it, its main loops keep the rules of sass_lint.py, and its product of matrices of
small integers and of 0 and 1 is numpy's to the bit: sums that are exact in fp32 whatever their order, on ragged
shapes, with more tiles than blocks and with fewer, over a poisoned C. Plans go to processes, each with a GPU context of
its own, so that one that hangs or faults is lost alone.

    python scripts/check_plan_space.py --limit 480                  # adds to results/plan_space_h200.json

A run does what is missing in its file, and again what was wrong there. What a machine cannot do, having no GPU or no
nvdisasm, is left to a run elsewhere, and what ``--limit`` cuts off to the next. The file of another kernel text is
begun anew. Exit 1 when a plan is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from worker_pool import Pool

from tilewright import __version__, ladder, nvrtc, results
from tilewright.backends.base import Backend
from tilewright.backends.cuda import CudaBackend, cuda_unavailable_reason
from tilewright.dtypes import BF16
from tilewright.errors import LaunchError, TilewrightError, UnavailableError
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_space import legal_plans, plan_name
from tilewright.plan_tensor import LAST, TensorPlan
from tilewright.problem import Problem
from tilewright.run import make_operands, prepare
from tilewright.source import flatten
from tilewright.telemetry import Telemetry

OUT = Path(__file__).resolve().parent.parent / "results" / "plan_space_h200.json"
ARCH = "sm_90a"
STEPS = ("compile", "lint", "run")
AT_ONCE = 8  # plans that a process compiles and disassembles together
OK = "ok"

Line = dict[str, Any]


# ---- what is checked -------------------------------------------------------------------------------------------------


def products(plan: TensorPlan) -> Iterator[tuple[TensorPlan, Problem, bool]]:
    """What a plan has to multiply: with how many blocks, which problem, and whether it is all 0 and 1.

    First nine cluster tiles for two clusters: several for each, which fill the ring more than once, and a last wave
    that half tiles share. Then two cluster tiles for all of the GPU, with K so long that the ring turns in each.
    """
    tall, wide = plan.cluster_m * plan.bm, plan.cluster_n * plan.bn
    few = plan.with_(blocks=2 * plan.cluster)
    for chosen, (m, n, k), binary in (
        (few, (2 * tall + 25, 2 * wide + 11, 3 * plan.bk + 21), False),
        (plan, (tall + 9, wide - 5, (plan.stages + 1) * plan.bk + 8), True),
    ):
        tight = Problem(m, n, k, plan.dtype, None, plan.a_layout, plan.b_layout)
        lds = {name: -(-(getattr(tight, name) + 1) // 8) * 8 for name in ("lda", "ldb", "ldc")}  # 16-byte boundaries
        yield chosen, tight.changed(**lds), binary


def check_run(backend: Backend, plan: Plan, problem: Problem, binary: bool = False) -> str:
    """Multiply integers of -8 to 8, or of 0 and 1, and compare with numpy: ``OK``, or what is wrong."""
    a, b = random_operands(problem, seed=plan.bn, fill="integers")
    if binary:
        a, b = (np.abs(x) % 2 for x in (a, b))
    operands = make_operands(backend, problem, a, b)
    prepare(backend, ladder.rung(plan.rung), plan, operands)(backend)
    found = backend.download(operands.c)
    exact = (a.astype(np.float32) @ b.astype(np.float32)).astype(problem.dtype.numpy)
    wrong = np.argwhere(found != exact)
    if len(wrong):
        i, j = map(int, wrong[0])
        return f"{problem}: {len(wrong)} elements, first C[{i}, {j}] is {found[i, j]} and not {exact[i, j]}"
    return OK if backend.padding_intact(operands.c) else f"{problem}: C's padding was written"


# ---- a worker --------------------------------------------------------------------------------------------------------


def steps_here() -> list[str]:
    """What this machine can do of ``STEPS``. Raises ``UnavailableError`` where it cannot even compile."""
    if (reason := nvrtc.unavailable_reason()) is not None:
        raise UnavailableError(reason)
    found = ["compile"]
    with suppress(ImportError, UnavailableError):  # pyelftools; nvdisasm, or one that writes JSON
        import sass_lint

        rung = ladder.rung(LAST)
        sass_lint.disassemble([nvrtc.compile_kernel(rung.source(rung.plan(BF16), "gpu", ARCH)).cubin])
        found.append("lint")
    if cuda_unavailable_reason() is None:
        found.append("run")
    return found


def work(steps: Sequence[str]) -> None:
    """Answer lines of plans' names on standard input; exit early when this process's GPU context is broken."""
    plans = {plan_name(plan): plan for plan in legal_plans(LAST)}
    backend = CudaBackend() if "run" in steps else None
    for line in sys.stdin:
        chosen = [plans[name] for name in json.loads(line)]
        made = [_compiled(plan) for plan in chosen]
        linted = iter(_linted([each.cubin for each in made if not isinstance(each, str)]) if "lint" in steps else [])
        for plan, kernel in zip(chosen, made, strict=True):
            if isinstance(kernel, str):
                print(json.dumps({"compile": kernel}), flush=True)
                continue
            report = kernel.report
            answer: Line = {"registers": report.registers, "spill_bytes": report.spill_bytes}
            answer["compile"] = f"warning: {report.warnings[0]}" if report.warnings else OK
            if "lint" in steps:
                answer["lint"] = next(linted)
            broken = False
            if backend is not None:
                answer["run"], broken = _ran(backend, plan)
            print(json.dumps(answer), flush=True)
            if broken:
                return


def _compiled(plan: TensorPlan) -> nvrtc.Compiled | str:
    try:
        return nvrtc.compile_kernel(ladder.rung(plan.rung).source(plan, "gpu", ARCH))
    except TilewrightError as error:
        return str(error)


def _linted(cubins: Sequence[bytes]) -> list[str]:
    """``OK``, or what is wrong with each kernel's main loops."""
    import sass_lint

    def said(code: Sequence[sass_lint.Instruction]) -> str:
        try:
            return "; ".join(sass_lint.problems(code)) or OK
        except TilewrightError as error:
            return str(error)

    return [said(code) for code in sass_lint.disassemble(cubins)] if cubins else []


def _ran(backend: Backend, plan: TensorPlan) -> tuple[str, bool]:
    """What came of running a plan, and whether the GPU context is good for nothing more."""
    try:
        for chosen, problem, binary in products(plan):
            if (said := check_run(backend, chosen, problem, binary)) != OK:
                return said, False
    except TilewrightError as error:
        return str(error).splitlines()[0], isinstance(error, LaunchError)
    return OK, False


# ---- the file --------------------------------------------------------------------------------------------------------


def kernel_digest() -> str:
    """The text of the kernel, whatever the plan, as 16 hex digits of its SHA-256."""
    return hashlib.sha256(flatten(ladder.rung(LAST).path, "gpu", "").encode()).hexdigest()[:16]


class Results:
    """The file: which kernel text, the runs that checked it, and what came of each step for each plan.

    Nothing is read from the file of another kernel text, unless ``any_kernel``.
    """

    def __init__(self, path: Path, *, any_kernel: bool = False) -> None:
        self.path = path
        self.head: Line = {"rung": LAST, "arch": ARCH, "kernel": kernel_digest()}
        self.runs: list[Line] = []
        self.plans: dict[str, Line] = {}
        with suppress(FileNotFoundError):
            read = json.loads(path.read_text(encoding="utf-8"))
            if any_kernel or all(read[key] == value for key, value in self.head.items()):
                self.runs, self.plans = read["runs"], read["plans"]

    def add(self, name: str, answer: Line) -> None:
        """Add to what is known of a plan."""
        self.plans.setdefault(name, {}).update(answer)

    def write(self, names: Sequence[str]) -> None:
        """Write all of it, the plans of these names in this order: a line each."""
        lines = [f"{json.dumps(name)}: {json.dumps(self.plans[name])}" for name in names if name in self.plans]
        head = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in self.head.items()]
        runs = ",\n".join(json.dumps(each) for each in self.runs)
        text = "\n".join(["{", *head, '"runs": [', runs, "],", '"plans": {', ",\n".join(lines), "}", "}", ""])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.path)

    def missing(self, names: Sequence[str], steps: Sequence[str] = STEPS) -> list[str]:
        """The plans for which some of the steps was not done, or went wrong."""
        return [name for name in names if any(self.plans.get(name, {}).get(step) != OK for step in steps)]


def provenance(steps: Sequence[str]) -> Line:
    """Where and how the plans of a run were checked, as a record's provenance."""
    device: Mapping[str, Any] = {}
    gpu, driver = "none", None
    if "run" in steps:
        backend = CudaBackend()
        info = backend.device()
        gpu, device = info.name, info.details
        driver = Telemetry(device["uuid"], backend.device_id).driver_version()
    found = results.Provenance(
        gpu=gpu,
        date=results.now(),
        driver=driver,
        driver_cuda=".".join(map(str, device["driver_cuda"])) if device else None,
        nvrtc="{}.{}".format(*nvrtc.nvrtc_version()),
        version=__version__,
        commit=results.commit(),
        command=results.command(),
        fill="integers of -8 to 8, and 0 and 1",
        method=", ".join(steps),
    )
    return {name: value for name, value in asdict(found).items() if value}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    parser.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="start nothing new after these")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--first", type=int, default=None, metavar="COUNT", help="only so many of what is missing")
    parser.add_argument("--work", nargs="+", choices=STEPS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work)
        return 0
    try:
        return check_all(given.out, given.limit, given.workers, given.first)
    except TilewrightError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def check_all(out: Path, limit_s: float, workers: int, first: int | None) -> int:
    """Do what is missing in ``out``, of all plans or of the ``first`` so many of them; 1 when one is wrong."""
    start = time.monotonic()
    steps = steps_here()
    names = [plan_name(plan) for plan in legal_plans(LAST)]
    kept = Results(out)
    todo = kept.missing(names, steps)
    random.Random(0).shuffle(todo)  # so that what a time limit leaves is a sample of all
    todo = todo[:first]
    print(f"{len(names)} plans, {len(todo)} to {', '.join(steps)}", flush=True)
    if todo:
        kept.runs.append(provenance(steps))
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as many processes as cores multiply at the same time
    pool = Pool([sys.executable, __file__, "--work", *steps], workers)
    left_s = limit_s - (time.monotonic() - start)
    try:
        for count, (name, answer) in enumerate(pool.run(todo, at_once=AT_ONCE, seconds=left_s), start=1):
            found = answer if isinstance(answer, dict) else {steps[-1]: answer}
            kept.add(name, found)
            for step in STEPS:
                if found.get(step, OK) != OK:
                    print(f"{name}: {step}: {found[step]}", flush=True)
            if count % 100 == 0:
                print(f"{count} plans in {time.monotonic() - start:.0f} s", flush=True)
                kept.write(names)
    finally:
        kept.write(names)
    wrong = [name for name in names if any(kept.plans.get(name, {}).get(step, OK) != OK for step in STEPS)]
    right = len(names) - len(kept.missing(names))
    print(f"{len(names)} plans: {right} right, {len(wrong)} wrong, {len(names) - right - len(wrong)} not all done")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
