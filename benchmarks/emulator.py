"""How fast the emulator is on this machine, against its targets for two cores.

Run it as ``python benchmarks/emulator.py``. Not a test: machines differ and are busy. Each
figure is the best of several runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.host_compiler import available_compilers
from tilewright.count import count
from tilewright.dtypes import BF16, FP32
from tilewright.ladder import rungs
from tilewright.operands import random_operands
from tilewright.problem import Problem
from tilewright.run import make_operands, prepare

TARGETS = "rung 2 at 512^3 under 60 ms, a kernel's compile under 1000 ms, a traced block at K = 128 under 100 ms"


def best_ms(work: Callable[[], object], times: int = 5) -> float:
    """The shortest of several runs, in milliseconds."""

    def once() -> float:
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e3

    return min(once() for _ in range(times))


def main() -> None:
    """Print a row a rung, dtype and compiler."""
    table = Table(title=f"emulator, ms (targets: {TARGETS})")
    for heading in ("compiler", "rung", "dtype", "compile", "run 512^3", "trace a block, K = 128"):
        table.add_column(heading, justify="left" if heading in ("compiler", "rung", "dtype") else "right")
    for compiler in available_compilers():
        backend = EmulatorBackend(compiler=compiler)
        assert backend.runtime  # built before the clock starts
        for rung in rungs().values():
            for dtype in (FP32, BF16):
                problem, plan = Problem(512, 512, 512, dtype), rung.plan(dtype)
                source = rung.source(plan, "host")
                fresh = f"{source.text}// {time.time_ns()}\n"  # not in the cache
                compile_ms = best_ms(
                    lambda on=backend, name=source.name, text=fresh: on.build.load_kernel(
                        name, text, instrumented=False
                    ),
                    1,
                )
                operands = make_operands(backend, problem, *random_operands(problem))
                launch = prepare(backend, rung, plan, operands)
                run_ms = best_ms(lambda go=launch, on=backend: go(on))
                deep = Problem(2 * plan.bm, 2 * plan.bn, 128, dtype)
                count(backend, rung, plan, deep)  # compiled and its lines read
                trace_ms = best_ms(lambda on=backend, r=rung, p=plan, d=deep: count(on, r, p, d), 3)
                figures = (f"{value:.0f}" for value in (compile_ms, run_ms, trace_ms))
                table.add_row(compiler.kind, f"{rung.number} {rung.name}", dtype.name, *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
