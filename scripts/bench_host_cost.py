#!/usr/bin/env python
"""What a call costs on the host, as ratios to ``torch.mm(a, b, out=)`` in the same run. Needs a GPU and PyTorch.

A small product, so that the GPU is done before the host has queued the next one. Rivals take turns; a turn is a loop of
calls between two synchronisations. The figure of a rival is the median of its turns, the ratio that of turns of one
round, so that what slows the host for a while slows both.

With ``--first``: also what the first call of a new plan takes, in an empty cache folder, and what that of a plan in the
cache takes in a new process, both after the imports and the first touch of the GPU; the imports beside it. With
``--only-first`` that alone. Without a GPU nothing is launched: it is the time to choose the plan and have its kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tilewright.backends.cuda_errors import cuda_unavailable_reason

LIMITS = {"Matmul.execute() on the same arrays": 0.5, "matmul(out=)": 1.25, "matmul()": 1.25}
"""What a ratio must not exceed."""


def rivals(size: int) -> dict[str, Callable[[], Any]]:
    """Everything that is timed, by name, ``torch.mm(out=)`` first."""
    import torch

    import tilewright

    def made() -> Any:
        return torch.randn((size, size), device="cuda", dtype=torch.bfloat16)

    a, b, out = made(), made(), made()
    pairs = [(made(), made()) for _ in range(2)]
    stream = torch.cuda.current_stream().cuda_stream
    prepared = tilewright.Matmul(a, b, out=out, stream=stream)
    prepared.execute()
    turn = [0]

    def other() -> None:
        turn[0] ^= 1
        prepared.execute(*pairs[turn[0]])

    return {
        "torch.mm(out=)": lambda: torch.mm(a, b, out=out),
        "torch.mm()": lambda: torch.mm(a, b),
        "Matmul.execute() on the same arrays": prepared.execute,
        "Matmul.execute() on other arrays each time": other,
        "matmul(out=)": lambda: tilewright.matmul(a, b, out=out),
        "matmul(out=, stream=)": lambda: tilewright.matmul(a, b, out=out, stream=stream),
        "matmul()": lambda: tilewright.matmul(a, b),
    }


def measured(size: int, calls: int, rounds: int) -> dict[str, Any]:
    """Microseconds a call and ratios to the first rival, by name."""
    import torch

    import tilewright

    found: dict[str, list[float]] = {}
    timed = rivals(size)
    for number in range(rounds + 1):
        for name, call in timed.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            spent = time.perf_counter() - begin
            torch.cuda.synchronize()
            if number:  # the first round warms up
                found.setdefault(name, []).append(spent / calls * 1e6)
    reference = next(iter(found.values()))
    rows = {}
    for name, times in found.items():
        ratios = [each / other for each, other in zip(times, reference, strict=True)]
        rows[name] = {
            "us": statistics.median(times),
            "ratio": statistics.median(ratios),
            "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
        }
    gpu = torch.cuda.get_device_name()
    return {"gpu": gpu, "torch": torch.__version__, "tilewright": tilewright.__version__, "size": size, "rows": rows}


FIRST = """
import json, time
begin = time.perf_counter()
import cuda.core, cuda.core.utils  # which the backend imports when it is first used
import tilewright
import tilewright.backends.cuda, tilewright.library.api
imports = time.perf_counter() - begin
"""
ON_A_GPU = """
import torch
a = torch.ones((512, 384), device="cuda", dtype=torch.bfloat16)
b = torch.ones((384, 640), device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
begin = time.perf_counter()
c = tilewright.matmul(a, b)
torch.cuda.synchronize()
call = time.perf_counter() - begin
assert (c == 384).all()
print(json.dumps([call, imports]))
"""
WITHOUT_A_GPU = """
import ml_dtypes, numpy
a, b = numpy.ones((512, 384), ml_dtypes.bfloat16), numpy.ones((384, 640), ml_dtypes.bfloat16)
call = tilewright.Matmul(a, b, backend="emulator")
from tilewright.library import answers, calls
from tilewright.nvrtc import compile_kernel
from tilewright.selection import kernel_of
begin = time.perf_counter()
plan = answers.answer(calls.laid_out(call.request)[0].question).plan
compile_kernel(kernel_of(plan).source(plan, "gpu", "sm_90a"))
print(json.dumps([time.perf_counter() - begin, imports]))
"""


def first_calls(on_gpu: bool) -> dict[str, float]:
    """Seconds of the first call in a process: with an empty cache, and with a filled one; and of the imports."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}

        def spent() -> list[float]:
            text = FIRST + (ON_A_GPU if on_gpu else WITHOUT_A_GPU)
            done = subprocess.run(
                [sys.executable, "-c", text], env=environment, check=True, capture_output=True, text=True
            )
            return [float(each) for each in json.loads(done.stdout)]

        new, imports = spent()
        return {"new plan": new, "cached plan": min(spent()[0] for _ in range(5)), "(imports before it)": imports}


def main() -> int:
    """Measure, print, and say what exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="M, N and K")
    parser.add_argument("--calls", type=int, default=1000, help="calls a turn")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--first", action="store_true", help="the first call in a process, too")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only-first", action="store_true", help="nothing but the first call; needs no GPU")
    given = parser.parse_args()
    if given.only_first:
        for name, seconds in first_calls(cuda_unavailable_reason() is None).items():
            print(f"{seconds * 1e3:8.1f} ms  first call, {name}")
        return 0
    result = measured(given.size, given.calls, given.rounds)
    if given.first:
        result["first_call_s"] = first_calls(on_gpu=True)
    if given.json:
        print(json.dumps(result))
    else:
        print(f"{result['gpu']}, PyTorch {result['torch']}, {given.size}^3 bf16")
        for name, row in result["rows"].items():
            low, high = row["ratio_quartiles"]
            print(f"{row['us']:8.2f} us  {row['ratio']:5.2f}x ({low:.2f} to {high:.2f})  {name}")
        for name, seconds in result.get("first_call_s", {}).items():
            print(f"{seconds * 1e3:8.1f} ms  first call, {name}")
    over = [name for name, limit in LIMITS.items() if result["rows"][name]["ratio"] > limit]
    for name in over:
        print(f"{name} exceeds {LIMITS[name]}x", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
