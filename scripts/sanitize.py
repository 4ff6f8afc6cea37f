#!/usr/bin/env python3
"""Run the tensor-core rungs under compute-sanitizer: memcheck, racecheck, synccheck. Needs a GPU and the tool on PATH.

Each tool gets a process of its own, in which every schedule of tests/test_repeat_runs.py runs once on a small ragged
problem, its result verified. What a tool says is printed; exit 1 when one of them finds anything. racecheck does not
follow every asynchronous copy: what it reports is to be read, and that it reports nothing proves less than the
emulator's race detector does.

    python scripts/sanitize.py                       # all tools, all schedules
    python scripts/sanitize.py --tools memcheck --only ping-pong
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck")
SHAPE = (392, 776, 200)  # no multiple of a tile, lines on 16-byte boundaries; small, as a tool is 100 times slower
TESTS = Path(__file__).resolve().parent.parent / "tests"
TIMEOUT_S = 550


def run_cases(only: str) -> int:
    """Run the schedules in this process; 1 when a result is wrong."""
    sys.path.insert(0, str(TESTS))
    from test_repeat_runs import plans

    from tilewright import ladder
    from tilewright.backends.cuda import CudaBackend
    from tilewright.errors import TilewrightError
    from tilewright.operands import random_operands
    from tilewright.problem import Problem
    from tilewright.run import make_operands, prepare
    from tilewright.verify import verify

    backend, failed = CudaBackend(), 0
    for name, plan in plans().items():
        if only not in name:
            continue
        problem = Problem(*SHAPE, plan.dtype, None, plan.a_layout, plan.b_layout)
        a, b = random_operands(problem, seed=3)
        try:
            operands = make_operands(backend, problem, a, b)
            prepare(backend, ladder.rung(plan.rung), plan, operands)(backend)
            said = str(verify(backend.download(operands.c), a, b))
            failed += "wrong" in said
        except TilewrightError as error:
            said, failed = str(error), failed + 1
        print(f"{name}: {said}", flush=True)
    return 1 if failed else 0


def sanitized(tool: str, only: str) -> bool:
    """Whether a tool finds nothing."""
    # Not the driver's answers to calls on the host: cuda.core asks for a context before there is one.
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99", "--report-api-errors", "no"]
    print(f"== {tool}", flush=True)
    try:
        done = subprocess.run([*command, sys.executable, __file__, "--run", "--only", only], timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"{tool} did not end within {TIMEOUT_S} s")
        return False
    return done.returncode == 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 when a tool finds something, 3 when there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--only", default="", metavar="TEXT", help="schedules with this in their name")
    parser.add_argument("--run", action="store_true", help="run them without a tool, in this process")
    given = parser.parse_args(argv)
    if given.run:
        return run_cases(given.only)
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH; it comes with the CUDA toolkit", file=sys.stderr)
        return 3
    clean = [sanitized(tool, given.only) for tool in given.tools]  # every tool, whatever the one before found
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
