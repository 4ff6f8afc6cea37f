"""The shapes that a command names: ``4096x4096x4096``, ``8,4096,4096``, or files of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import UsageError
from tilewright.problem import Layout, Problem

POSSIBLE = "a shape is M, N and K as 4096x4096x4096 or 8,4096,4096, or a file of them"


def problems_of(words: Sequence[str], dtype: str, layouts: tuple[Layout, Layout]) -> list[Problem]:
    """The problems, in order, each once. Raises ``UsageError`` naming the word, and the file and line of it.

    A file has a shape a line (``#`` begins a comment), or is JSON: shapes as lists, texts or objects with the fields of
    ``Problem``, in a list or in lists by name. ``dtype`` and ``layouts`` are those of shapes that do not say.
    """
    given = {"dtype": dtype, "a_layout": layouts[0], "b_layout": layouts[1]}
    return list(dict.fromkeys(problem for word in words for problem in _of_word(word, given)))


def _of_word(word: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    if (sizes := _sizes(word)) is not None:
        yield problem_of(sizes, given, word)
        return
    path = Path(word)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{word!r} is no shape, and as a file it cannot be read ({why}); {POSSIBLE}") from None
    if text.lstrip()[:1] in ("[", "{"):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:  # no JSON, a number of thousands of digits, nested without end
            raise UsageError(f"{word} is no JSON: {error}") from None
        yield from _of_json(values, given, word)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if shape := line.partition("#")[0].strip():
            yield problem_of(shape, given, f"{word}:{number}")


def _of_json(values: Any, given: Mapping[str, Any], where: str) -> Iterator[Problem]:
    if isinstance(values, Mapping) and "m" not in values:
        for name, each in values.items():
            yield from _of_json(each, given, f"{where}, {name}")
        return
    if not isinstance(values, list):
        raise UsageError(f"{where} is {values!r}; a list of shapes is possible, or lists by name")
    for number, each in enumerate(values, start=1):
        yield problem_of(each, given, f"{where}, shape {number}")


def problem_of(shape: Any, given: Mapping[str, Any], where: str) -> Problem:
    """One shape, as text, three sizes or an object; ``given`` fields are those of one that does not say.

    Raises ``UsageError``, in which ``where`` is what it is called.
    """
    sizes = _sizes(shape) if isinstance(shape, str) else shape
    if isinstance(sizes, Mapping):
        values = {**given, **sizes}
    elif isinstance(sizes, list | tuple) and len(sizes) == 3:
        values = {**given, **dict(zip("mnk", sizes, strict=True))}
    else:
        raise UsageError(f"{where} is {shape!r}; {POSSIBLE}")
    try:
        return Problem.from_dict(values)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _sizes(word: str) -> tuple[int, ...] | None:
    match = re.fullmatch(r"\s*(\d{1,18})\s*[x,]\s*(\d{1,18})\s*[x,]\s*(\d{1,18})\s*", word.lower(), re.ASCII)
    return None if match is None else tuple(map(int, match.groups()))
