#!/usr/bin/env python
"""Random calls of ``tilewright.matmul``, each result held bit for bit against float64. Needs PyTorch.

Shapes, strides, batches, element types, what follows the product (a bias, C, a traced function of arrays, a second
result, a reduction, a second B) and the way of the call (a new result, ``out``, another stream, a prepared ``Matmul``
executed again and on other arrays, ``batch_invariant``) are drawn from a seed each; ``random_draw.py`` says how the
results are known. ``--device cuda`` runs kernels on a GPU, ``cpu`` in the emulator.

Seeds go to ``--jobs`` processes, each with a GPU context of its own; one that says nothing for ``--silence`` seconds,
or crashes, loses the seed it had in hand, and another goes on. A new kernel costs a compile: once ``--plans`` of them
are there, of all processes, those of the planner's first that are known go first.

    python scripts/random_problems.py --out results/random_problems_h200.json

Exit 1 where a result was wrong, a call refused or a seed lost; ``--only SEED`` says more of one.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from random_draw import drawn
from random_worker import Answer, Choices, Known, answer
from worker_pool import Pool

from tilewright import __version__, results

SCHEMA = "tilewright.random_problems/1"
WORKER = Path(__file__).with_name("random_worker.py")
AT_ONCE = 8  # seeds that a process is handed at a time
START_S = 180.0  # until the first answer: PyTorch, the GPU, the planner's tables and a compile
COUNTED = ("dtype", "out_dtype", "a_layout", "b_layout", "follows", "way")


class Tally:
    """What came of all seeds."""

    def __init__(self) -> None:
        self.problems = self.compiled = 0
        self.wrong: dict[str, Answer] = {}
        self.lost: dict[str, str] = {}
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

    def add(self, seed: str, found: Answer | str) -> str:
        """One more answer, or why there is none; what to say of it, nothing where it was right."""
        if isinstance(found, str):
            self.lost[seed] = found
            return f"seed {seed} was lost: {found}"
        case = found["case"]
        self.problems += 1
        self.compiled += found["compiled"]
        for name in COUNTED:
            self.counts[name][case[name]] += 1
        for name in ("kernel", "packed"):
            self.counts[name][found[name] or "nothing"] += 1
        self.counts["batch"]["in one launch" if found["batched"] else "none"] += 1
        self.counts["dimensions"][f"{len(case['a'])} and {len(case['b'])}"] += 1
        if case["follows"] == "reductions":
            self.counts["reduction"][case["reduction"]] += 1
        if not found["wrong"]:
            return ""
        self.wrong[seed] = {name: found[name] for name in ("wrong", "kernel", "packed", "case")}
        return f"seed {seed} went wrong, {found['kernel']}: {found['wrong']}"

    def record(self, **more: Any) -> dict[str, Any]:
        """All of it, JSON-ready."""
        counts = {name: dict(found.most_common()) for name, found in self.counts.items()}
        return {
            "schema": SCHEMA, **more, "problems": self.problems, "wrong": self.wrong, "lost": self.lost,
            "compiled": self.compiled, "counts": counts,
        }  # fmt: skip

    @property
    def right(self) -> bool:
        """Whether there was anything, and all of it as it should be."""
        return bool(self.problems) and not self.wrong and not self.lost


def provenance(device: str) -> dict[str, Any]:
    """Where and how they ran, as a record's provenance."""
    from tilewright.backends.cuda import CudaBackend
    from tilewright.nvrtc import nvrtc_version
    from tilewright.telemetry import Telemetry

    import torch  # isort: skip

    gpu, driver, cuda, nvrtc = "none: the emulator", None, None, None
    if device == "cuda":
        backend = CudaBackend()
        info = backend.device()
        gpu, cuda = info.name, ".".join(map(str, info.details["driver_cuda"]))
        driver = Telemetry(info.details["uuid"], backend.device_id).driver_version()
        nvrtc = "{}.{}".format(*nvrtc_version())
    found = results.Provenance(
        gpu=gpu, date=results.now(), driver=driver, driver_cuda=cuda, nvrtc=nvrtc,
        libraries={"torch": torch.__version__}, version=__version__, commit=results.commit(),
        command=results.command(), fill="integers of -4 to 4", method="bit for bit against float64, rounded once",
    )  # fmt: skip
    return {name: value for name, value in asdict(found).items() if value}


def run(pool: Pool, seeds: Sequence[int], seconds: float, tally: Tally) -> None:
    """Hand out the seeds, say what goes wrong, count."""
    begin = time.monotonic()
    for seed, found in pool.run([str(seed) for seed in seeds], at_once=AT_ONCE, seconds=seconds):
        said = tally.add(seed, found)
        if said:
            print(said, file=sys.stderr, flush=True)
        if tally.problems % 500 == 0:
            print(f"{tally.problems} in {time.monotonic() - begin:.0f} s, {tally.compiled} compiled", flush=True)


def here(seeds: Iterable[int], device: str, most: int, macs: int, choices: Choices, tally: Tally) -> None:
    """The same in this process, one after the other, with each case."""
    import torch

    choices.install()
    try:
        for seed in seeds:
            case = drawn(seed, most, macs)
            print(case)
            print(tally.add(str(seed), answer(torch, case, device, choices)) or "right")
    finally:
        choices.remove()


def main(argv: Sequence[str] | None = None) -> int:
    """Run, say what went wrong, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED", help="these alone, in this process")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="hand out nothing new after these")
    parser.add_argument("--silence", type=float, default=60.0, help="seconds that one call may take")
    parser.add_argument("--plans", type=int, default=1500, help="kernels to compile before known ones are preferred")
    parser.add_argument("--most", type=int, default=2048, help="the largest M and N; K is up to four times that")
    parser.add_argument("--macs", type=int, default=2**31, help="the most multiplications of one call")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the record goes; else it is printed")
    given = parser.parse_args(argv)
    tally, begin = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder, "known")
        if given.only:
            here(given.only, given.device, given.most, given.macs, Choices(Known(known), given.plans), tally)
            return 0 if tally.right else 1
        values = (given.device, given.most, given.macs, known, given.plans)
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # as many processes as cores
            os.environ[name] = "1"
        pool = Pool(
            [sys.executable, str(WORKER), *map(str, values)], given.jobs, start_s=START_S, silence_s=given.silence
        )
        run(pool, range(given.first, given.first + given.count), given.seconds, tally)
        kernels = Known(known)
        kernels.refresh()
    record = tally.record(
        provenance=provenance(given.device), seeds=[given.first, given.first + given.count], jobs=given.jobs,
        most=given.most, macs=given.macs, kernels=len(kernels),
        seconds=round(time.monotonic() - begin, 1),
    )  # fmt: skip
    text = json.dumps(record, indent=1)
    if given.out is None:
        print(text)
    else:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(f"{text}\n", encoding="utf-8")
    print(f"{tally.problems} problems, {len(tally.wrong)} wrong, {len(tally.lost)} lost")
    return 0 if tally.right else 1


if __name__ == "__main__":
    sys.exit(main())
