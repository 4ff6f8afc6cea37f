#!/usr/bin/env python3
"""How long planning takes: all candidates of a shape, cold and cached, and the static part before the first.

"Static" is what a dtype and two layouts need once a process: which plans there are. "Cold" is a problem never asked for
before, all its candidates priced and ranked, and the pick made; "all made" makes the others too. "Cached" is the same
question again. Each in its own process would add the import, so that is given as well.

    python benchmarks/planner.py [--repeat 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

SHAPES = [
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (4096, 7168, 2048),
    (640, 7168, 7168),
    (16, 4096, 4096),
    (16384, 16384, 16384),
    (1000, 3000, 777),
]
CACHED_CALLS = 10_000


def clock_ms(work: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="cold plannings of a shape, each with other SMs")
    repeat = parser.parse_args().repeat
    code = "import time; s = time.perf_counter(); import tilewright; tilewright.plan; print(time.perf_counter() - s)"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(f"import of the planner      {float(started.stdout) * 1e3:8.1f} ms")

    import tilewright

    for layout in ("rc", "rr"):
        first = clock_ms(lambda layout=layout: tilewright.plan(8, 8, 8, layout=layout, gpu="h200"))  # type: ignore[misc]
        print(f"static part, bf16 {layout}       {first:8.1f} ms (with the first problem)")
    tilewright.plan(1000, 1000, 777, gpu="h200")  # rows that are not aligned have plans of their own
    print(f"{'shape':>22} {'candidates':>10} {'cold ms':>8} {'worst':>7} {'all made ms':>11} {'cached us':>9}")
    for shape in SHAPES:
        layout = "rr" if shape[2] % 8 else "rc"
        cold, made = [], []
        for sms in range(132, 132 - repeat, -1):
            planning = None

            def ask(sms: int = sms, layout: str = layout, shape: tuple[int, int, int] = shape) -> None:
                nonlocal planning
                planning = tilewright.plan(*shape, layout=layout, gpu="h200", sms=sms)
                _ = planning.pick

            cold.append(clock_ms(ask))
            assert planning is not None
            made.append(clock_ms(lambda answer=planning: list(answer.ranked)))  # type: ignore[misc]
        start = time.perf_counter()
        for _ in range(CACHED_CALLS):
            tilewright.plan(*shape, layout=layout, gpu="h200", sms=132)
        cached = (time.perf_counter() - start) / CACHED_CALLS * 1e6
        name = "x".join(map(str, shape))
        print(
            f"{name:>22} {len(planning.ranked):>10} {statistics.median(cold):>8.1f} {max(cold):>7.1f} "
            f"{statistics.median(made):>11.1f} {cached:>9.2f}"
        )


if __name__ == "__main__":
    main()
