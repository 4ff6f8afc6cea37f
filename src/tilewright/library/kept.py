"""Choices that outlive a process: on disk for the next one, and in bundles for another machine.

A choice is what the planner took for a ``Question``. It depends on nothing but the question, the GPU and this version
of tilewright, so that it is filed under a digest of these: a JSON file a choice below ``settings.cache_dir() /
"choices"``, its checksum in its first line, written to a temporary name and then renamed. A process reads a whole file
or none, whatever others do; a damaged one costs a warning and planning again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import __version__, settings
from tilewright.errors import TilewrightError, UnavailableError, UsageError
from tilewright.gpu import get_gpu, query_gpu
from tilewright.library.choose import Choice, Question, operand_lines, packed, problem_of
from tilewright.library.pair import SECOND, lines_of_second
from tilewright.plan_base import Plan
from tilewright.problem import Layout
from tilewright.tune.key import PLAIN

FOLDER = "choices"
MOST_FILES = 64  # of each of 256 folders
ASSUMED = "h200"  # where there is no GPU, as the planner does
SUFFIXES = (".py", ".json", ".cu", ".cuh")


def described(question: Question) -> dict[str, Any]:
    """All of a question that decides its choice, JSON-ready: of an epilogue, that there is one."""
    values = asdict(question)
    del values["product"]["more"]
    return values | {
        "dtype": question.dtype.name,
        "out_dtype": question.out_dtype.name,
        "epilogue": question.epilogue != PLAIN,
    }


def digest_of(values: Any) -> str:
    """A SHA-256 in hex of JSON-ready values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def record_of(choice: Choice) -> dict[str, Any]:
    """What has to be kept of a choice, JSON-ready."""
    return {
        "plan": choice.plan.to_dict(),
        "source": choice.source,
        "label": choice.label,
        "us": choice.us,
        "runner_up": choice.runner_up,
        "packs": {each.operand: each.us for each in choice.packs},
    }


@dataclass(frozen=True)
class Record:
    """What is kept of a choice, read: ``packs`` has the predicted microseconds of each operand's copy."""

    plan: Plan
    source: str
    label: str
    us: float
    runner_up: tuple[str, float] | None
    packs: dict[str, float]


def parsed(record: Any) -> Record:
    """The inverse of ``record_of``. Raises ``UsageError`` for what is no record of a choice."""
    try:
        packs = {_one_of("operand to pack", name, _PACKED): _us(us) for name, us in record["packs"].items()}
        second = record["runner_up"]
        if second is not None:
            label, us = second
            second = _text("runner_up", label), _us(us)
        source, label = _text("source", record["source"]), _text("label", record["label"])
        return Record(Plan.from_dict(record["plan"]), source, label, _us(record["us"]), second, packs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = str(error) if type(error) is ValueError else repr(error)
        raise UsageError(f"the record of a choice is none: {what}") from None


_PACKED = ("a", "b", SECOND)


def _one_of(what: str, value: Any, possible: tuple[str, ...]) -> str:
    if value not in possible:
        raise ValueError(f"{value!r} is no {what}; {', '.join(possible)} are")
    return str(value)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {value!r}; it is a text")
    return value


def _us(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no time in microseconds")
    return float(value)


def choice_of(question: Question, record: Mapping[str, Any], source: str | None = None) -> Choice:
    """The choice again. Raises ``UsageError`` for what is no record of one."""
    found, lines = parsed(record), operand_lines(question)
    if question.product.second is not None:
        lines[SECOND] = lines_of_second(question)
    elif SECOND in found.packs:
        raise UsageError("the record of a choice is none: there is one b, and a second is to be packed")
    plan, costs = found.plan, found.packs
    wanted: dict[str, Layout] = {"a": plan.a_layout, "b": plan.b_layout, SECOND: plan.b_layout}
    packs, after = packed(question, lines, list(costs), None, wanted)
    packs = tuple(replace(each, us=costs[each.operand]) for each in packs)
    problem = problem_of(question, {name: after[name] for name in "abc"})
    return Choice(plan, source or found.source, problem, after, packs, found.us, found.label, found.runner_up, None)


@cache
def gpu_here() -> tuple[str, int, float, int]:
    """What times are predicted for, where there is no GPU an H200: name, SMs, boost clock in MHz, bytes of L2."""
    try:
        spec = query_gpu()
    except UnavailableError:
        spec = get_gpu(ASSUMED)
    return spec.name, spec.sm_count, spec.boost_clock_mhz, spec.l2_bytes


@cache
def installed() -> str:
    """A digest of which files this installation has: another planner, another calibration, another choice."""
    found = hashlib.sha256(__version__.encode())
    root = Path(__file__).parents[1]
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            if name.endswith(SUFFIXES):
                status = os.stat(os.path.join(folder, name))
                found.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return found.hexdigest()


def find(question: Question) -> Choice | None:
    """What an earlier process chose for this question, for this GPU, by this version; None where nothing is kept."""
    found = _read(_path(question, settings.cache_dir()), question)
    filled = None if found is not None else settings.read_only_dir()
    return found if filled is None else _read(_path(question, filled), question)


def _read(path: Path, question: Question) -> Choice | None:
    try:
        checksum, _, text = path.read_text(encoding="utf-8").partition("\n")
        if hashlib.sha256(text.encode()).hexdigest() != checksum:
            raise UsageError("it is not what was written")
        return choice_of(question, json.loads(text))
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(f"choices are not kept: {error}")
    except (ValueError, TilewrightError) as error:
        warnings.warn(f"a damaged choice in the cache is made again ({error})", stacklevel=4)
    return None


def keep(question: Question, choice: Choice) -> None:
    """Keep a choice for later processes. Where nothing can be written, one warning says so."""
    path = _path(question, settings.cache_dir())
    text = json.dumps(record_of(choice))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix="new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        _let_go(path.parent)
    except OSError as error:
        _warn_once(f"choices are not kept: {error}")


def _path(question: Question, root: Path) -> Path:
    name = digest_of([described(question), gpu_here(), installed()])
    return root / FOLDER / name[:2] / f"{name}.json"


def _let_go(folder: Path) -> None:
    """Of a full folder, the oldest files."""
    paths = list(folder.iterdir())
    if len(paths) > MOST_FILES:
        with suppress(OSError):  # another process is at it
            for path in sorted(paths, key=lambda each: each.stat().st_mtime_ns)[:-MOST_FILES]:
                path.unlink()


_warned: set[str] = set()
_guard = threading.Lock()


def _warn_once(message: str) -> None:
    with _guard:
        if message in _warned:
            return
        _warned.add(message)
    warnings.warn(message, stacklevel=4)


def forget() -> None:
    """Forget that there were warnings; files stay."""
    with _guard:
        _warned.clear()
