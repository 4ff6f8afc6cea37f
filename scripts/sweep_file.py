"""The file of a sweep, results/sweep_*.jsonl: written shape by shape, read as the times of every configuration.

Lines of schema ``tilewright.sweep/1``, of four kinds:

- ``run``: the provenance of what follows, by its ``run``;
- ``plan``: a configuration, by its name;
- ``shape``: what one interleaved measurement saw. ``times`` has by configuration the samples in microseconds, a round
  each, and then the median SM clock in MHz (0 where it is not known); ``again`` the samples of the second slot of
  ``first``, the same configuration against itself; ``vendor`` the same as ``times`` of the vendor's GEMMs; ``refused``
  why a configuration was not timed;
- ``lost``: a configuration that took its process with it, or never came back.

A shape may have several such lines, when configurations were added later.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sweep_plans import name_of, read_plan, values_of

from tilewright.errors import UsageError
from tilewright.measure import AGAIN, Measurement, Summary
from tilewright.plan_base import Plan
from tilewright.results import SWEEP_SCHEMA, Provenance, append_lines

CUBLAS = "cuBLAS"
Sizes = tuple[int, int, int]


@dataclass(frozen=True)
class Timed:
    """One configuration on one shape: samples in microseconds, and the SM clock in MHz where it is known."""

    samples_us: tuple[float, ...]
    clock_mhz: float | None

    @property
    def us(self) -> Summary:
        """Median and spread."""
        return Summary.of(self.samples_us)

    def scaled(self, factor: float) -> Timed:
        """As it would have been in another measurement, in which all was so much slower."""
        return Timed(tuple(sample * factor for sample in self.samples_us), self.clock_mhz)


@dataclass
class Seen:
    """All that is known of a shape: times by configuration and by vendor, the noise band, and what was not timed."""

    sizes: Sizes
    times: dict[str, Timed] = field(default_factory=dict)
    vendor: dict[str, Timed] = field(default_factory=dict)
    bands: list[float] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def band(self) -> float:
        """What a configuration differs by from itself, relative: the median over its measurements."""
        return statistics.median(self.bands) if self.bands else 0.0


@dataclass
class Sweep:
    """A file: configurations by name, shapes by their sizes, provenances by run."""

    plans: dict[str, Plan] = field(default_factory=dict)
    shapes: dict[Sizes, Seen] = field(default_factory=dict)
    runs: dict[str, Provenance] = field(default_factory=dict)

    def done(self, sizes: Sizes) -> set[str]:
        """The configurations of a shape that need no further look."""
        seen = self.shapes.get(sizes)
        return set() if seen is None else {*seen.times, *seen.refused}


def run_line(run: str, provenance: Provenance) -> dict[str, Any]:
    """The line that a run begins with."""
    return {"schema": SWEEP_SCHEMA, "kind": "run", "run": run, "provenance": asdict(provenance)}


def plan_line(plan: Plan) -> dict[str, Any]:
    """The line of a configuration."""
    return {"schema": SWEEP_SCHEMA, "kind": "plan", "name": name_of(plan), "plan": values_of(plan)}


def lost_line(sizes: Sizes, name: str, why: str) -> dict[str, Any]:
    """The line of a configuration that is not tried again."""
    return {"schema": SWEEP_SCHEMA, "kind": "lost", "shape": list(sizes), "name": name, "why": why}


def shape_line(
    sizes: Sizes, measurement: Measurement, vendors: Iterable[str], refused: Mapping[str, str], l2: str
) -> dict[str, Any]:
    """The line of a measurement whose baseline is a configuration; a rival that failed in it is among the refused."""
    first = measurement.baseline
    assert first is not None
    named = set(vendors)
    times: dict[str, list[float]] = {}
    not_timed = dict(refused)
    for name, timing in measurement.timings.items():
        samples = [seen[name] for seen in measurement.rounds if name in seen]
        if timing.error is not None or not samples:
            not_timed[name] = timing.error or "no round had it"
            continue
        times[name] = [*map(_short, samples), round(timing.clock_mhz_in_kernel() or 0)]
    return {
        "schema": SWEEP_SCHEMA,
        "kind": "shape",
        "shape": list(sizes),
        "l2": l2,
        "first": first,
        "again": [_short(seen[first + AGAIN]) for seen in measurement.rounds if first + AGAIN in seen],
        "vendor": {name: values for name, values in times.items() if name in named},
        "times": {name: values for name, values in times.items() if name not in named},
        "refused": not_timed,
    }


def _short(us: float) -> float:
    """To five significant digits."""
    return float(f"{us:.5g}")


def band_of(first: Sequence[float], again: Sequence[float]) -> float:
    """By how much a configuration differs from itself, relative.

    The median over the rounds of |second slot / first slot - 1|: how far two slots lie apart where nothing differs.
    """
    pairs = [abs(b / a - 1) for a, b in zip(first, again, strict=False)]
    return statistics.median(pairs) if pairs else 0.0


def read(path: Path) -> Sweep:
    """A sweep's file; an empty sweep where there is none.

    Lines of one shape are put on the scale of its first: by the times of what they share, cuBLAS before all. The last
    line of the file may be cut off, as a run that was ended leaves it. Raises ``UsageError`` naming file and line for
    any other that is none of a sweep.
    """
    sweep = Sweep()
    if not path.exists():
        return sweep
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no text: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if values["schema"] != SWEEP_SCHEMA:
                raise UsageError(f"schema {values['schema']!r}; a sweep has {SWEEP_SCHEMA!r}")
            _take(sweep, values)
        except json.JSONDecodeError as error:
            if all(not rest.strip() for rest in lines[number:]):
                break
            raise UsageError(f"{path}:{number}: {error}") from error
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise UsageError(f"{path}:{number}: no line of a sweep: {error}") from error
    return sweep


def append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add lines in one write."""
    append_lines(path, lines)


def _take(sweep: Sweep, values: Mapping[str, Any]) -> None:
    kind = values["kind"]
    if kind == "run":
        sweep.runs[values["run"]] = Provenance(**values["provenance"])
    elif kind == "plan":
        sweep.plans[values["name"]] = read_plan(values["plan"])
    elif kind in ("lost", "shape"):
        m, n, k = values["shape"]
        seen = sweep.shapes.setdefault((m, n, k), Seen((m, n, k)))
        if kind == "lost":
            seen.refused[values["name"]] = values["why"]
        else:
            _add(seen, values)
    else:
        raise UsageError(f"kind {kind!r}")


def _add(seen: Seen, values: Mapping[str, Any]) -> None:
    times = {name: _timed(each) for name, each in values["times"].items()}
    vendor = {name: _timed(each) for name, each in values["vendor"].items()}
    factor = _scale(seen, times, vendor)
    for known, new in ((seen.times, times), (seen.vendor, vendor)):
        for name, timed in new.items():
            known.setdefault(name, timed.scaled(factor))
    seen.refused.update(values["refused"])
    first = values["first"]
    if first in times:
        seen.bands.append(band_of(times[first].samples_us, values["again"]))


def _scale(seen: Seen, times: Mapping[str, Timed], vendor: Mapping[str, Timed]) -> float:
    """What the times of another measurement are multiplied by: the geometric mean of what both have."""
    if not seen.times and not seen.vendor:
        return 1.0
    for known, new in ((seen.vendor, vendor), (seen.times, times)):
        shared = [CUBLAS] if CUBLAS in known and CUBLAS in new else sorted(set(known) & set(new))
        if shared:
            logs = [math.log(known[name].us.median / new[name].us.median) for name in shared]
            return math.exp(statistics.fmean(logs))
    return 1.0


def _timed(values: Sequence[float]) -> Timed:
    *samples, clock = values
    return Timed(tuple(samples), clock or None)
