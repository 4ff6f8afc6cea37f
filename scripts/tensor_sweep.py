#!/usr/bin/env python3
"""Search for the best plan of a problem: in steps, the winners of one step varied in the next.

The space of plans is too large to time, but what a plan is made of acts nearly independently: first the tile, who
multiplies it and the cluster; then stages and the epilogue's slabs; then the order of the tiles; then the switches.
Every step compiles its candidates in parallel, checks each once on a small ragged problem in a process of its own (a
kernel that hangs takes only that process with it), verifies the rest on the real one and times them interleaved with
cuBLAS in short slots. Short slots rank within a few percent only: put the last step's leaders into tensor_rows.json
and let bench_tensor_rows.py decide.

Used by ``bench_tensor_rows.py --sweep``; run directly, it is the process that checks.
"""

from __future__ import annotations

import json
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import product
from typing import Any

import tensor_bench
from tensor_bench import Bench, Candidate, Row

from tilewright import ladder, measure
from tilewright.dtypes import dtype
from tilewright.errors import TilewrightError, UsageError
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.rivals import kernel_rival

ROUGH = measure.Schedule(slot_ms=80.0, rounds=3, warm_slots=3)
FINE = measure.Schedule(slot_ms=250.0, rounds=4, warm_slots=3)
HANG_S = 30.0  # a check takes well under a second once its process has started
START_S = 60.0  # and that takes its time: PyTorch is large
RAGGED = (1000, 776, 520)  # no multiple of a tile, and lines on 16-byte boundaries
KEPT = 3  # winners of a step that the next one varies

# By whether two warpgroups take turns, the tiles worth a try.
_TILES = {
    False: ((128, 256), (128, 224), (128, 208), (256, 128), (256, 160), (256, 176), (256, 192)),
    True: ((128, 128), (128, 160), (128, 176), (128, 192), (64, 256)),
}
_CLUSTERS = ((1, 1), (2, 1), (1, 2))

Changes = Mapping[str, Any]


def differences(candidate: Candidate) -> str:
    """What a plan has that its rung's default has not, as tensor_rows.json has it."""
    plan = candidate.plan
    default = candidate.rung.plan(plan.dtype, a_layout=plan.a_layout, b_layout=plan.b_layout)
    changed = {f.name: getattr(plan, f.name) for f in fields(plan) if getattr(plan, f.name) != getattr(default, f.name)}
    return json.dumps(changed) if changed else "the rung's default plan"


def tiles() -> Iterator[Changes]:
    """The first step: tiles, with as many stages as fit, and clusters."""
    for pingpong, (m, n) in product(_TILES, _CLUSTERS):
        for bm, bn in _TILES[pingpong]:
            columns = next(width for width in (64, 32, 16) if bn % width == 0)
            team = {"pingpong": pingpong, "cluster_m": m, "cluster_n": n}
            yield {**team, "bm": bm, "bn": bn, "epilogue_columns": columns}


def depths(_: Plan) -> Iterator[Changes]:
    """The second: how shared memory is divided between stages and the epilogue's slabs."""
    for stages, columns, slabs in product((3, 4, 5, 6), (16, 32, 64), (1, 2, 3, 4, 8)):
        yield {"stages": stages, "epilogue_columns": columns, "epilogue_slabs": slabs}


def orders(_: Plan) -> Iterator[Changes]:
    """The third: the order in which tiles are computed."""
    for group, along_n in product((1, 2, 4, 6, 8, 11, 16), (False, True)):
        yield {"group": group, "along_n": along_n}


def switches(plan: Plan) -> Iterator[Changes]:
    """The last: what is on or off, in every combination."""
    names = ("alternate_k", "store_evict_first", "dependent_launch", *(("half_tail",) if plan.bm == 256 else ()))
    for values in product((False, True), repeat=len(names)):
        yield dict(zip(names, values, strict=True))


def legal(base: Plan, changes: Iterable[Changes], most_stages: bool = False) -> Iterator[Plan]:
    """The plans that come of changing ``base`` and that a kernel can have; each once.

    ``most_stages``: with two slabs and as many stages as shared memory holds, for changes that leave that open.
    """
    seen = {base}
    for change in changes:
        tries: Iterable[Changes] = ({**change, "stages": s, "epilogue_slabs": 2} for s in (7, 6, 5, 4, 3, 2))
        for values in tries if most_stages else (change,):
            try:
                plan = base.with_(**values)
            except UsageError:
                continue
            if plan not in seen:
                seen.add(plan)
                yield plan
            break


def sweep(bench: Bench, row: Row, seconds: float) -> list[Candidate]:
    """Search for about ``seconds``; print every step's table and the leaders' plans, and return them, best first."""
    rung, start = row.candidate.rung, time.monotonic()
    default = rung.plan(row.problem.dtype, a_layout=row.problem.a_layout, b_layout=row.problem.b_layout)
    plans = [row.candidate.plan]
    steps: dict[str, Callable[[Plan], Iterable[Changes]]] = {
        "stages and slabs": depths,
        "order": orders,
        "switches": switches,
    }
    new = list(legal(default, tiles(), most_stages=True))
    broken: set[Plan] = set()
    for number, name in enumerate(["tiles", *steps]):
        if name in steps:
            new = [made for plan in plans for made in legal(plan, steps[name](plan))]
        share = (seconds - (time.monotonic() - start)) / (len(steps) + 2 - number)  # the leaders are a step too
        new = [plan for plan in dict.fromkeys(new) if plan not in plans and plan not in broken]
        most = max(KEPT, int(share / seconds_each(ROUGH)))
        new = random.Random(number).sample(new, min(len(new), most))
        plans = _step(bench, row, name, [*plans, *new], ROUGH, broken)[:KEPT]
    leaders = _step(bench, row, "leaders", plans, FINE, broken)
    for plan in leaders:
        print(f"  {differences(Candidate('', rung, plan))}")
    return [Candidate("tilewright", rung, plan) for plan in leaders]


def seconds_each(schedule: measure.Schedule) -> float:
    """About what timing one candidate takes, its compilation, checks and the estimate of its time included."""
    return schedule.slot_ms / 1e3 * schedule.rounds + 0.4


def _step(
    bench: Bench, row: Row, name: str, plans: Sequence[Plan], schedule: measure.Schedule, broken: set[Plan]
) -> list[Plan]:
    """Time plans against each other; the ones that ran, fastest first."""
    candidates = [Candidate(f"{index}", row.candidate.rung, plan) for index, plan in enumerate(plans)]
    named = [Candidate(f"{c.name} {_label(c.plan)}", c.rung, c.plan) for c in candidates]
    wrong = check(named)
    broken.update(c.plan for c in named if c.name in wrong)
    for candidate in named:
        if candidate.name in wrong:
            print(f"  {candidate.name} is left out: {wrong[candidate.name]}\n    {differences(candidate)}")
    print(f"== {name}: {len(named) - len(wrong)} plans", flush=True)
    good = [c for c in named if c.name not in wrong]
    outcome = tensor_bench.compete(bench, row.problem, good, schedule, lt=schedule is FINE)
    print(tensor_bench.table(outcome, bench.sm_count), flush=True)
    medians = {
        c.plan: timing.time_us.median
        for c in good
        if (timing := outcome.measurement.timings.get(c.name)) is not None and timing.time_us is not None
    }
    return sorted(medians, key=lambda plan: medians[plan])


def _label(plan: Any) -> str:
    switches = {"h": plan.half_tail, "k": plan.alternate_k, "e": plan.store_evict_first, "d": plan.dependent_launch}
    return (
        f"{'pp' if plan.pingpong else 'co'} {plan.bm}x{plan.bn} s{plan.stages} {plan.cluster_m}x{plan.cluster_n} "
        f"g{plan.group}{'n' if plan.along_n else 'm'} {plan.epilogue_slabs}x{plan.epilogue_columns} "
        + "".join(letter for letter, on in switches.items() if on)
    ).strip()


def check(candidates: Sequence[Candidate]) -> dict[str, str]:
    """What is wrong with candidates, by name: each is run on a small ragged problem by a process that may hang."""
    compiled = tensor_bench.compile_all(candidates)  # the process finds them in the cache
    wrong = {name: str(error).splitlines()[0] for name, error in compiled.items() if isinstance(error, Exception)}
    todo = [candidate for candidate in candidates if candidate.name not in wrong]
    while todo:
        answered = 0
        for answer in _answers(todo):
            if answer:
                wrong[todo[answered].name] = answer
            answered += 1
        if answered < len(todo):
            wrong[todo[answered].name] = f"no result within {HANG_S:g} s, or it took its process with it"
        todo = todo[answered + 1 :]
    return wrong


def _answers(candidates: Sequence[Candidate]) -> Iterator[str]:
    """A line for each candidate, empty when it is right; fewer when the process dies or says nothing for a while."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps([{"rung": c.rung.number, **_values(c.plan)} for c in candidates]))
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        for number in range(len(candidates)):
            deadline = time.monotonic() + HANG_S + (START_S if number == 0 else 0)
            while lines.empty() and time.monotonic() < deadline and (process.poll() is None or reader.is_alive()):
                time.sleep(0.01)
            if lines.empty():
                return
            yield lines.get().strip()
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


def _read(stream: Iterable[str], lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)


def _values(plan: Plan) -> dict[str, Any]:
    """A plan as the values that ``with_`` takes."""
    values = {f.name: getattr(plan, f.name) for f in fields(plan) if f.init and f.name != "rung"}
    return {**values, "dtype": plan.dtype.name}


def main() -> None:
    """Check the plans on standard input, a line of standard output for each: what is wrong, or nothing."""
    bench = Bench()
    for values in json.load(sys.stdin):
        rung = ladder.rung(values.pop("rung"))
        kind, layouts = dtype(values.pop("dtype")), (values["a_layout"], values["b_layout"])
        try:
            plan = rung.plan(kind, a_layout=layouts[0], b_layout=layouts[1]).with_(**values)
            sets = bench.operand_sets(Problem(*RAGGED, kind, None, *layouts), 1)
            bench.checked(kernel_rival(bench.backend, rung, plan, sets, "candidate"), sets).require()
            print(flush=True)
        except TilewrightError as error:
            print(str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
