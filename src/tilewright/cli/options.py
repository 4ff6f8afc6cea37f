"""Options that several commands share, and what they mean together."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer

from tilewright.backends import BackendName
from tilewright.errors import UsageError
from tilewright.problem import Layout, Problem

DTypeName = Literal["fp32", "bf16", "fp16"]
LARGEST_DIGITS = 18  # what fits 64 bits, as kernels, numpy and C want it


def whole(value: str | int) -> int:
    """A whole number that is not negative, from the command line; typer passes defaults through here too."""
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not a whole number, 0 or more.")
    if len(text.lstrip("0")) > LARGEST_DIGITS:
        raise typer.BadParameter(f"{text[:20]}... is too large: a number has at most {LARGEST_DIGITS} digits.")
    return int(text)


class Layouts(NamedTuple):
    """Of A and of B."""

    a: Layout
    b: Layout


ROW_ROW = Layouts("row", "row")


def layouts(value: str | Layouts) -> Layouts:
    """The layouts that ``rc`` or ``row-column`` names; typer passes defaults through here too."""
    if isinstance(value, Layouts):
        return value
    words = {"r": "row", "row": "row", "c": "column", "col": "column", "column": "column"}
    parts = list(value) if len(value) == 2 else re.split(r"[-,/]", value)
    found = [words.get(part.strip().lower()) for part in parts]
    if len(found) != 2 or None in found:
        raise typer.BadParameter(f"{value!r} is not one of rr, rc, cr, cc, or such as row-column.")
    return Layouts(*cast("list[Layout]", found))


def whole_option(*names: str, help: str) -> Any:
    """An option that takes a whole number."""
    return typer.Option(*names, parser=whole, metavar="INTEGER", help=help)


Size = Annotated[int | None, whole_option("--size", help="M, N and K at once.")]
M = Annotated[int | None, whole_option("--m", help="Rows of A and C.")]
N = Annotated[int | None, whole_option("--n", help="Columns of B and C.")]
K = Annotated[int | None, whole_option("--k", help="Columns of A, rows of B.")]
DTypeOption = Annotated[
    DTypeName | None, typer.Option("--dtype", help="Element type; fp32 and then bf16 when left out.")
]
Rungs = Annotated[str | None, typer.Option("--rungs", "--rung", help="Such as 0-4, 2 or 0,2,4; all when left out.")]
Branch = Annotated[
    str | None,
    typer.Option("--branch", help="Kernels of a branch off the ladder, such as decode; --layout is rc then."),
]
_LAYOUT = typer.Option(
    "--layout",
    parser=layouts,
    metavar="rr|rc|cr|cc",
    show_default=False,
    help="Row- or column-major A and B; rr when left out, which every rung reads; the others from rung 5 on.",
)
LayoutOption = Annotated[Layouts, _LAYOUT]
LayoutIfAny = Annotated[Layouts | None, _LAYOUT]  # of a command that knows branches, whose default is rc
BackendOption = Annotated[
    BackendName | None,
    typer.Option("--backend", help="Where kernels run; when left out TILEWRIGHT_BACKEND, else a GPU if there is one."),
]
Seed = Annotated[int, whole_option("--seed", help="Seed of the random operands.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead.")]


def problem_size(size: int | None, m: int | None, n: int | None, k: int | None) -> tuple[int, int, int] | None:
    """``(m, n, k)`` from the options, None when none was given.

    Raises ``UsageError`` when they contradict each other or are incomplete.
    """
    given = {"--m": m, "--n": n, "--k": k}
    missing = [name for name, value in given.items() if value is None]
    if size is not None:
        if len(missing) < len(given):
            raise UsageError("--size sets M, N and K at once: give it or --m, --n and --k, not both")
        return size, size, size
    if m is not None and n is not None and k is not None:
        return m, n, k
    if len(missing) < len(given):
        raise UsageError(f"{' and '.join(missing)} missing: give all of --m, --n and --k, or --size")
    return None


def require_memory(problem: Problem) -> None:
    """Raise ``UsageError`` for operands larger than this machine's memory, which would fail halfway or worse."""
    a_lines = problem.m if problem.a_layout == "row" else problem.k
    b_lines = problem.k if problem.b_layout == "row" else problem.n
    elements = a_lines * problem.lda + b_lines * problem.ldb + problem.m * problem.ldc
    needed, memory = elements * problem.dtype.itemsize, machine_memory()
    if needed > memory:
        raise UsageError(
            f"the operands of {problem} need {needed / 1e9:,.0f} GB, "
            f"and this machine has {memory / 1e9:,.0f} GB of memory"
        )


def machine_memory() -> int:
    """The bytes of this machine's memory; all that can be addressed, where it does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize
