"""The process of the sweep that measures: a shape a line in, what was seen of it a line out.

A kernel that hangs or breaks the GPU's context takes only this process with it. What is running stands in a file
meanwhile (``mark``), so that whoever started the process knows whom it was lost to.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from sweep_file import shape_line
from sweep_plans import LEAST_BYTES, name_of, read_plan, rotation_of
from sweep_shapes import Shape
from tensor_bench import Bench

from tilewright import measure
from tilewright.climb_timing import provenance
from tilewright.errors import TilewrightError, VerifyError
from tilewright.measure import AGAIN, Measurement
from tilewright.plan_base import Plan
from tilewright.rivals import kernel_rival
from tilewright.selection import kernel_of

Mark = Callable[[str], None]
PREPARING = "preparing"  # stands in the file while no single configuration runs


def task_of(shape: Shape, plans: Sequence[Plan], predicted_us: Sequence[float], values: Iterable[Any]) -> str:
    """A shape with its configurations, for ``serve``; ``values`` are the plans as ``values_of`` has them."""
    return json.dumps(
        {
            "shape": [shape.m, shape.n, shape.k, shape.stratum, shape.in_suite],
            "plans": list(values),
            "names": [name_of(plan) for plan in plans],
            "predicted_us": [round(us, 2) for us in predicted_us],
        }
    )


def measure_shape(
    bench: Bench,
    shape: Shape,
    plans: Sequence[Plan],
    predicted_us: Sequence[float],
    schedule: measure.Schedule,
    mark: Mark,
) -> dict[str, Any]:
    """Check each configuration once on poisoned output, then time all of them and the vendor's GEMMs side by side.

    The answer has the ``line`` of the file, None where nothing could be timed; ``refused`` configurations with their
    reasons, by name; the ``provenance``; and ``broken``, the name of a configuration that left the GPU unusable.
    """
    rotation = rotation_of(shape, bench.l2_bytes)
    sets = bench.operand_sets(shape.problem, rotation.sets)
    expected = bench.expected(sets[0])
    rivals: list[measure.Rival] = []
    refused: dict[str, str] = {}
    answer: dict[str, Any] = {"line": None, "refused": refused, "broken": None}
    for plan, us in zip(plans, predicted_us, strict=True):
        name = name_of(plan)
        mark(name)
        try:
            rival = kernel_rival(bench.backend, kernel_of(plan), plan, sets, name)
            bench.check(rival, sets[0], expected).require()
        except TilewrightError as error:
            refused[name] = _first_line(error)
            if not isinstance(error, VerifyError) and not _alive(bench):
                return {**answer, "broken": name}
            continue
        rivals.append(replace(rival, estimate_us=us))
    mark(PREPARING)
    if not rivals:
        return answer
    quick = replace(schedule, rounds=3, warm_slots=0)
    vendors = [each for each, _ in bench.vendors(sets, quick) if bench.check(each, sets[0], expected).ok]
    names = [vendor.name for vendor in vendors]
    with bench.backend.telemetry() as snapshot:
        measurement = measure.measure(
            [*rivals, *vendors],
            bench.timer,
            baseline=rivals[0].name,
            schedule=schedule,
            snapshot=snapshot,
            progress=lambda label, *_: mark(label.removesuffix(AGAIN)),
        )
    mark(PREPARING)
    if any(timing.error for timing in measurement.timings.values()) and not _alive(bench):
        return {**answer, "broken": first_to_fail(measurement)}
    source = provenance(bench.backend, measurement, f"L2-cold: operand sets in turn, at least {LEAST_BYTES >> 20} MiB")
    return {
        **answer,
        "line": shape_line(shape.sizes, measurement, names, refused, rotation.label),
        "provenance": vars(source),
    }


def first_to_fail(measurement: Measurement) -> str:
    """The rival whose slot was the first to go wrong: after it all do, where the GPU is no longer usable."""
    assert measurement.baseline is not None
    failed = {name: timing for name, timing in measurement.timings.items() if timing.error is not None}
    never = [name for name, timing in failed.items() if not timing.method]
    if never:  # while the graphs were made, in the order of the rivals
        return never[0]
    done = len([seen for seen in measurement.rounds if len(seen) > len(measurement.timings)])
    labels = [*measurement.timings, measurement.baseline + AGAIN]
    order = measure.round_order(labels, measurement.schedule.seed, done)
    return next(name for label in order if (name := label.removesuffix(AGAIN)) in failed)


def _alive(bench: Bench) -> bool:
    """Whether the GPU still answers: after some errors every call fails."""
    try:
        bench.backend.synchronize()
    except TilewrightError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def serve(bench: Bench, schedule: measure.Schedule, mark: Mark, tasks: IO[str], answers: IO[str]) -> None:
    """Answer each line of ``tasks``; end after an answer that says that the GPU is broken.

    An answer has ``error`` where something else went wrong.
    """
    for line in tasks:
        for task in json.loads(line):
            given = json.loads(task)
            plans = [read_plan(values) for values in given["plans"]]
            try:
                answer = measure_shape(bench, Shape(*given["shape"]), plans, given["predicted_us"], schedule, mark)
            except Exception as error:  # whatever it is, the other shapes are measured
                said = f"{type(error).__name__}: {_first_line(error)} ({_where(error)})"
                answer = {"line": None, "refused": {}, "broken": None, "error": said}
            print(json.dumps(answer), file=answers, flush=True)
            if answer["broken"] is not None:
                return


def marker(path: Path) -> Mark:
    """Writes what is running into a file."""

    def mark(name: str) -> None:
        path.write_text(name)

    return mark


def main() -> None:
    """Serve the parent: the schedule as JSON and the file for the mark are the arguments."""
    schedule = measure.Schedule(**json.loads(sys.argv[1]))
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    serve(Bench(), schedule, marker(Path(sys.argv[2])), sys.stdin, answers)


if __name__ == "__main__":
    main()
