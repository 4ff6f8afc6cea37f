"""``tilewright verify``: rungs against the reference, on a problem of one's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.options import (
    BackendOption,
    DTypeOption,
    Json,
    K,
    M,
    N,
    Rungs,
    Seed,
    Size,
    problem_size,
    require_memory,
    whole_option,
)
from tilewright.errors import CompileError, EmulatorFault, LaunchError, UsageError

if TYPE_CHECKING:
    from tilewright.backends.base import Backend
    from tilewright.ladder import Rung
    from tilewright.problem import Problem

DEFAULT_SIZE = (129, 257, 33)  # no multiple of any tile


def verify(
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    lda: Annotated[
        int | None, whole_option("--lda", help="Elements from row to row of A; tight when left out.")
    ] = None,
    ldb: Annotated[
        int | None, whole_option("--ldb", help="Elements from row to row of B; tight when left out.")
    ] = None,
    ldc: Annotated[
        int | None, whole_option("--ldc", help="Elements from row to row of C; tight when left out.")
    ] = None,
    dtype: DTypeOption = None,
    rungs: Rungs = None,
    backend: BackendOption = None,
    fill: Annotated[
        Literal["normal", "integers", "positive", "probe"],
        typer.Option(help="Operands: N(0, 1), small integers, (0.5, 1], or those that a narrow accumulator fails on."),
    ] = "normal",
    policy: Annotated[
        Literal["eager", "lazy", "random"],
        typer.Option(
            help="When the emulator lets asynchronous copies arrive: at once, as late as is legal, in between."
        ),
    ] = "eager",
    checked: Annotated[
        bool,
        typer.Option("--checked", help="Also check exact bounds, races and uninitialised reads, in the emulator."),
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run rungs on random operands and check every element of C against float64. Exit 1 when one is wrong."""
    from tilewright import ladder
    from tilewright.backends import open_backend
    from tilewright.problem import Problem

    m, n, k = problem_size(size, m, n, k) or DEFAULT_SIZE
    chosen = list(ladder.rungs().values()) if rungs is None else ladder.parse_rungs(rungs)
    problems = [Problem(m, n, k, name, lda=lda, ldb=ldb, ldc=ldc) for name in ([dtype] if dtype else ["fp32", "bf16"])]
    for problem in problems:
        require_memory(problem)
    place = open_backend(backend, policy=policy, seed=seed)
    if checked and place.name != "emulator":
        raise UsageError("--checked is the emulator's: add --backend emulator")
    device = place.device()
    jobs = [(rung, problem) for problem in problems for rung in chosen if problem.dtype in rung.dtypes]
    found = []
    with output.progress() as report:
        for done, (rung, problem) in enumerate(jobs):
            report(done, len(jobs), f"{rung.number} {rung.name} {problem.dtype}")
            found.append(_check(place, rung, problem, fill, seed, checked))
    if json:
        output.print_json(
            {
                "schema": "tilewright.verify/1",
                "backend": place.name,
                "device": device.name,
                "fill": fill,
                "seed": seed,
                "results": found,
            }
        )
    else:
        output.say(f"{', '.join(map(str, problems))} on {device.name}; operands {fill}, seed {seed}")
        output.stdout().print(_table(found))
    if not all(row["ok"] for row in found):
        raise typer.Exit(1)


def _check(place: Backend, rung: Rung, problem: Problem, fill: Any, seed: int, checked: bool) -> dict[str, Any]:
    """Run one rung and judge what it wrote, and what it left alone. What a kernel does wrong is a finding."""
    from tilewright.backends.emulator import EmulatorBackend
    from tilewright.checked import check as check_accesses
    from tilewright.operands import random_operands
    from tilewright.run import make_operands, run
    from tilewright.verify import verify as check

    row: dict[str, Any] = {"rung": rung.number, "name": rung.name, "problem": problem.to_dict(), "ok": False}
    a, b = random_operands(problem, seed, fill)
    operands = make_operands(place, problem, a, b)
    try:
        run(place, rung, operands)
        c, intact = place.download(operands.c), place.padding_intact(operands.c)
        if checked and isinstance(place, EmulatorBackend):
            plan = rung.plan(problem.dtype, aligned=operands.aligned)
            blocks = check_accesses(place, rung, plan, operands)
    except (CompileError, EmulatorFault, LaunchError) as error:
        return {**row, "error_over_bound": None, "says": str(error)}
    report = check(c, a, b, dtype=problem.dtype, out_dtype=problem.out_dtype)
    says = str(report) if intact else f"{report}; the padding between the rows of C was overwritten"
    if checked:
        says += f"; {blocks} blocks in bounds, no race"
    return {**row, "ok": report.ok and intact, "error_over_bound": report.max_error_over_bound, "says": says}


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in found:
        mark = Text("ok", "green") if row["ok"] else Text("FAILED", "bold red")
        table.add_row(mark, f"{row['rung']} {row['name']}", row["problem"]["dtype"], Text(row["says"]))
    return table
