"""How the command line speaks: data on stdout, talk and progress on stderr, colour only where it is wanted.

Consoles are made when used: rich looks at NO_COLOR, COLUMNS and whether the stream is a terminal (80 columns where it
is none) at that moment.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ProgressCallback = Callable[[float, int, str], None]  # steps done, steps in all, what is being done


def stdout() -> Console:
    """The console for data. A terminal that claims no columns gets 80: rich would print nothing."""
    console = Console(highlight=False)
    if console.width < 1:
        console.width = 80
    return console


def stderr() -> Console:
    """The console for talk."""
    return Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """Tell the person something that is not data."""
    stderr().print(message, markup=False, soft_wrap=True)


def say_error(message: str) -> None:
    """One sentence on stderr."""
    console = stderr()
    console.print("error:", style="bold red", end=" ")
    console.print(message, markup=False, soft_wrap=True)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A stand-in for ``warnings.showwarning``: the sentence, without the line of code that gave it."""
    console = stderr()
    console.print("warning:", style="yellow", end=" ")
    console.print(str(message), markup=False, soft_wrap=True)


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON document on stdout, and nothing else. A figure that is not finite becomes null: JSON has none."""
    json.dump(_finite(data), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_plain(text: str) -> None:
    """Text on stdout exactly as it is: no wrapping, no markup."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """A bar on stderr while long work runs; nothing where stderr is no terminal."""
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def report(done: float, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield report
