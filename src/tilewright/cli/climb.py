"""``tilewright climb``: every rung run, verified and counted or measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import output
from tilewright.cli.options import (
    BackendOption,
    Branch,
    DTypeOption,
    Json,
    K,
    LayoutIfAny,
    Layouts,
    M,
    N,
    Rungs,
    Seed,
    Size,
    problem_size,
    require_memory,
)
from tilewright.errors import TilewrightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def climb(
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    dtype: DTypeOption = None,
    rungs: Rungs = None,
    branch: Branch = None,
    layout: LayoutIfAny = None,
    backend: BackendOption = None,
    seed: Seed = 0,
    record: Annotated[
        Path | None, typer.Option(help="Measure at length and append a record a row to this JSON-lines file.")
    ] = None,
    json: Json = False,
) -> None:
    """Climb the ladder: run each rung, verify it, and show what it moved and what the arithmetic says.

    With a GPU the rungs are timed; without one they run in the emulator, which counts and never claims a time.
    """
    shape = problem_size(size, m, n, k)
    from tilewright import climb as engine
    from tilewright import dtypes, ladder, results, selection
    from tilewright.backends import open_backend
    from tilewright.measure import SUSTAINED, Schedule
    from tilewright.report.table import climb_tables

    layout = layout or Layouts(*selection.default_layouts(branch))
    if shape is not None:
        kind = None if dtype is None else dtypes.dtype(dtype)
        chosen = selection.select(shape, kind, layout, rungs=rungs, branch=branch)
        for problem in ladder.posed(shape, chosen, layout).values():
            require_memory(problem)
    if record is not None:
        _require_appendable(record)
        if open_backend(backend).name == "emulator":
            raise UsageError(f"--record {record}: nothing is measured in the emulator, which only counts")
    schedule = SUSTAINED if record else Schedule.quick()
    with output.progress() as report:
        result = engine.climb(
            shape=shape,
            dtype=dtype,
            rungs=rungs,
            branch=branch,
            a_layout=layout.a,
            b_layout=layout.b,
            backend=backend,
            seed=seed,
            progress=report,
            schedule=schedule,
        )
    data = result.to_dict()
    if json:
        output.print_json(data)
    else:
        console = output.stdout()
        console.print(climb_tables(data, console.width))
    failed = _failed(data)
    if failed:
        output.say_error(f"not verified: {', '.join(failed)}" + ("; nothing recorded" if record else ""))
        raise typer.Exit(1)
    if record is not None:
        try:
            results.append(record, result.records)
        except OSError as error:
            raise TilewrightError(f"--record {record} cannot be written: {error.strerror or error}") from None


def _require_appendable(path: Path) -> None:
    """Raise ``UsageError`` before anything is measured that could not be recorded."""
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(f"--record {path} cannot be written: {error.strerror or error}") from None


def _failed(data: Mapping[str, Any]) -> list[str]:
    """The rows that are wrong, such as ``fp32 1 shared tile``; a counter-example is said to be one."""
    kinds = (("rungs", ""), ("counter_examples", " (counter-example)"))
    return [
        f"{row['dtype']} {row.get('rung', row.get('branch'))} {row['name']}{note}"
        for kind, note in kinds
        for row in data.get(kind) or ()
        if row["verified"] is False
    ]
