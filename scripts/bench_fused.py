#!/usr/bin/env python3
"""A product with what follows it, fused, against PyTorch eager and ``torch.compile`` doing the same.

    python scripts/bench_fused.py --out results/fused_h200.jsonl            # measure what the file has not
    python scripts/bench_fused.py --out results/fused_h200.jsonl --report   # the table; needs no GPU

Each case is one interleaved run: ours in one kernel by the planner's pick and by the fastest of the planner's first
``TUNED`` for this very call (``torch.compile`` measures too), eager, ``torch.compile`` with its best mode that leaves
graphs to the caller, and the product alone by cuBLAS, which says what the rest costs. All are checked against fp32
arithmetic first. There are 15 rounds, as 5 leave a spread of 0.03 between runs. Needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sweep_plans import LEAST_BYTES
from tensor_bench import Bench

import tilewright
from tilewright import measure, results
from tilewright.climb_timing import provenance
from tilewright.errors import TilewrightError, VerifyError
from tilewright.library.tuning import tune_call
from tilewright.measure import Rival
from tilewright.plan_base import Plan
from tilewright.results import FUSED_SCHEMA
from tilewright.tune.store import Store

OURS, OURS_TUNED, EAGER, COMPILED, PRODUCT = (
    "tilewright",
    "tilewright, tuned",
    "torch eager",
    "torch.compile",
    "cuBLAS, the product alone",
)
MODE = "max-autotune-no-cudagraphs"
TUNED, LIMIT_S = 12, 40.0
MUST = 1.05  # of the better of eager and compiled
SCHEDULE = measure.Schedule(slot_ms=120.0, rounds=15, graph_ms=6.0, warm_slots=4)
TOLERANCE = 2.0**-7  # two roundings of bf16, of |C| and of what it is the sum of


@dataclass(frozen=True)
class Case:
    """A product of ``m`` rows and what follows it, by name."""

    follows: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.follows} {self.m}x{self.n}x{self.k}"


CASES = (
    Case("bias, gelu, residual", 512, 4096, 4096),
    Case("bias, gelu, residual", 4096, 4096, 4096),
    Case("swiglu", 512, 4096, 4096),
    Case("swiglu", 4096, 4096, 4096),
)


def eager_of(torch: Any, case: Case) -> Callable[..., Any]:
    """What a user of PyTorch writes, as a function of the case's operands."""
    act = torch.nn.functional
    if case.follows == "swiglu":
        return lambda a, gate, up: act.silu(a @ gate) * (a @ up)
    return lambda a, b, bias, residual: act.gelu(torch.addmm(bias, a, b)) + residual


def ours_of(case: Case, given: Sequence[Any], out: Any, **options: Any) -> tilewright.Matmul:
    """The same, prepared. Raises ``UsageError`` for what cannot be fused."""
    if case.follows == "swiglu":
        a, gate, up = given
        return tilewright.Matmul(a, (gate, up), out=out, epilogue=tilewright.swiglu, **options)
    a, b, bias, residual = given

    def after(acc: Any, residual: Any) -> Any:
        return tilewright.gelu(acc) + residual

    return tilewright.Matmul(a, b, out=out, bias=bias, epilogue=after, args={"residual": residual}, **options)


def plans_of(case: Case, given: Sequence[Any], out: Any, **options: Any) -> dict[str, Plan]:
    """The planner's pick for the call, and what is measured to be the fastest for it now; nothing else is kept.

    ``options`` are those of ``tune.session.tune_each``. Raises ``UsageError`` where no candidate could be timed.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "winners.sqlite3")
        (row,) = tune_call(ours_of(case, given, out).request, TUNED, LIMIT_S, True, store, **options)
    assert row.best is not None
    return {OURS: Plan.from_dict(row.tried[0].plan), OURS_TUNED: Plan.from_dict(row.best.plan)}


def operands_of(torch: Any, case: Case, generator: Any) -> list[Any]:
    """N(0, 1) tensors, weights column-major and scaled so that products are near 1."""

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=generator)

    def weights() -> Any:
        return (drawn(case.n, case.k) * case.k**-0.5).to(torch.bfloat16).T

    a = drawn(case.m, case.k).to(torch.bfloat16)
    if case.follows == "swiglu":
        return [a, weights(), weights()]
    return [a, weights(), drawn(case.n).to(torch.bfloat16), drawn(case.m, case.n).to(torch.bfloat16)]


def checked(torch: Any, case: Case, result: Any, given: Sequence[Any]) -> float:
    """The largest error over its bound, against the same in fp32. Raises ``VerifyError`` where that is above 1."""
    precise = [each.float() for each in given]
    wanted = eager_of(torch, case)(*precise)
    bound = TOLERANCE * (wanted.abs() + 4)  # intermediate results of eager are rounded to bf16 and lie within 4
    worst = float(((result.float() - wanted).abs() / bound).max())
    if not worst <= 1:  # NaN never passes
        raise VerifyError(f"{case}: an element is {worst:.3g} times as far off as it may be")
    return worst


def measured(bench: Bench, case: Case, schedule: measure.Schedule = SCHEDULE) -> dict[str, Any]:
    """The line of a case."""
    torch = bench.torch
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator(device="cuda").manual_seed(0)
    weights = 2 if case.follows == "swiglu" else 1
    moved = 2 * (case.m * case.k + weights * case.n * case.k + (3 - weights) * case.m * case.n)
    rotation = measure.rotation(moved, bench.l2_bytes, least_bytes=LEAST_BYTES)
    sets = [operands_of(torch, case, generator) for _ in range(rotation.sets)]
    outs = [torch.full((case.m, case.n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in sets]
    handle = int(bench.backend.stream.handle)
    stream = torch.cuda.ExternalStream(handle)
    eager = eager_of(torch, case)
    compiled = torch.compile(eager, mode=MODE, dynamic=False)
    errors: dict[str, float] = {}

    def on_stream(act: Callable[[], Any]) -> Any:
        with torch.no_grad(), torch.cuda.stream(stream):
            return act()

    def launch_of(act: Callable[[], Any]) -> measure.Launch:
        def launch(_: Any) -> None:
            on_stream(act)

        return launch

    rivals = []
    for name, function in ((EAGER, eager), (COMPILED, compiled)):
        errors[name] = checked(torch, case, on_stream(partial(function, *sets[0])), sets[0])
        torch.cuda.synchronize()
        rivals.append(Rival(name, [launch_of(partial(function, *given)) for given in sets]))
    products = [partial(torch.mm, given[0], given[1], out=out) for given, out in zip(sets, outs, strict=True)]
    rivals.append(Rival(PRODUCT, [launch_of(act) for act in products]))
    for name, plan in plans_of(case, sets[0], outs[0]).items():
        made = [ours_of(case, given, out, stream=handle, plan=plan) for given, out in zip(sets, outs, strict=True)]
        starts = [each.execute for each in made]
        for start, given, out in zip(starts, sets, outs, strict=True):
            out.fill_(float("nan"))
            torch.cuda.synchronize()
            start()
            torch.cuda.synchronize()
            errors[name] = max(errors.get(name, 0.0), checked(torch, case, out, given))
        rivals.append(Rival(name, [launch_of(start) for start in starts]))
    with bench.backend.telemetry() as snapshot:
        found = measure.measure(rivals, bench.timer, baseline=EAGER, schedule=schedule, snapshot=snapshot)
    timed = {name: timing for name, timing in found.timings.items() if timing.time_us is not None}
    return {
        "schema": FUSED_SCHEMA,
        **asdict(case),
        "samples_us": {name: list(timing.samples_us) for name, timing in timed.items()},
        "noise": None if found.noise is None else found.noise.to_dict(),
        "refused": {name: t.error for name, t in found.timings.items() if t.error is not None},
        "verified": errors,
        "notes": {name: timing.note for name, timing in timed.items() if timing.note},
        "provenance": asdict(provenance(bench.backend, found, rotation.label)),
    }


def ratio_of(line: Mapping[str, Any], name: str, ours: str = OURS) -> float | None:
    """The median over the rounds of a rival's time over ours."""
    own, other = line["samples_us"].get(ours), line["samples_us"].get(name)
    if not own or not other:
        return None
    return measure.Summary.of([b / a for a, b in zip(own, other, strict=False)]).median


def lead(line: Mapping[str, Any], ours: str) -> float | None:
    """How many times as long as ours the better of eager and compiled takes."""
    there = [ratio_of(line, name, ours) for name in (EAGER, COMPILED)]
    return min(each for each in there if each is not None) if None not in there else None


def report(lines: Sequence[Mapping[str, Any]]) -> tuple[bool, str]:
    """Whether every case is met, tuned or not, and the table of the newest line of each as Markdown."""
    newest = {Case(*(line[name] for name in ("follows", "m", "n", "k"))): line for line in lines}
    rows, every = [], True
    for case in CASES:
        line = newest.get(case, {"samples_us": {}})
        leads = [lead(line, ours) for ours in (OURS, OURS_TUNED)]
        ok = max((each for each in leads if each is not None), default=0.0) >= MUST
        every &= ok
        times = line["samples_us"].get(OURS)
        us = f"{measure.Summary.of(times).median:.1f}" if times else "-"
        ratios = [ratio_of(line, name) for name in (EAGER, COMPILED, PRODUCT)] + leads[1:]
        cells = " | ".join("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
        rows.append(f"| {case.follows} | {case.m}x{case.n}x{case.k} | {us} | {cells} | {'met' if ok else 'MISSED'} |")
    head = [
        f"| follows | M x N x K | us | eager / ours | compiled / ours | product / ours | tuned | must {MUST} |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    return every, "\n".join([*head, *rows])


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; none where there is no file."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [found for line in lines if (found := json.loads(line)).get("schema") == FUSED_SCHEMA]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and 1 where a case is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/fused_h200.jsonl"), help="(default: %(default)s)")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases, from 0")
    parser.add_argument("--report", action="store_true", help="only print the table of what the file has")
    given = parser.parse_args(argv)
    try:
        if not given.report:
            bench = Bench()
            for number in range(len(CASES)) if given.only is None else given.only:
                line = measured(bench, CASES[number])
                results.append_lines(given.out, [line])
                print(report([line])[1].splitlines()[2 + number], line["refused"] or "", flush=True)
        ok, text = report(read(given.out))
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(text)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
