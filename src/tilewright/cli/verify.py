"""``tilewright verify``: rungs against the reference, on a problem of one's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

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
    whole_option,
)
from tilewright.errors import CompileError, EmulatorFault, LaunchError, UsageError

if TYPE_CHECKING:
    from tilewright.backends.base import Backend
    from tilewright.kernel_file import KernelFile
    from tilewright.problem import Problem


def verify(
    size: Size = None,
    m: M = None,
    n: N = None,
    k: K = None,
    lda: Annotated[
        int | None,
        whole_option("--lda", help="Elements from line to line of A; when left out, as few as the rung takes."),
    ] = None,
    ldb: Annotated[
        int | None,
        whole_option("--ldb", help="Elements from line to line of B; when left out, as few as the rung takes."),
    ] = None,
    ldc: Annotated[
        int | None,
        whole_option("--ldc", help="Elements from line to line of C; when left out, as few as the rung takes."),
    ] = None,
    dtype: DTypeOption = None,
    rungs: Rungs = None,
    branch: Branch = None,
    layout: LayoutIfAny = None,
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
    from tilewright import dtypes, selection
    from tilewright.backends import open_backend
    from tilewright.problem import Problem

    layout = layout or Layouts(*selection.default_layouts(branch))
    m, n, k = problem_size(size, m, n, k) or selection.default_shape(branch, "ragged")
    kind = None if dtype is None else dtypes.dtype(dtype)
    chosen = selection.select((m, n, k), kind, layout, rungs=rungs, branch=branch)
    problems = [Problem(m, n, k, kind, None, *layout, lda, ldb, ldc) for kind in chosen]
    jobs = [
        (kernel, _for_tma(problem, lda, ldb, ldc) if kernel.uses_tma else problem)
        for problem in problems
        for kernel in chosen[problem.dtype]
    ]
    for _, problem in jobs:
        require_memory(problem)
    place = open_backend(backend, policy=policy, seed=seed)
    if checked and place.name != "emulator":
        raise UsageError("--checked is the emulator's: add --backend emulator")
    device = place.device()
    found = []
    with output.progress() as report:
        for done, (kernel, problem) in enumerate(jobs):
            report(done, len(jobs), f"{kernel.place} {problem.dtype}")
            found.append(_check(place, kernel, problem, fill, seed, checked))
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
    if any(row["ok"] is False for row in found):
        raise typer.Exit(1)
    if all(row["ok"] is None for row in found):
        raise UsageError("nothing was verified: no chosen rung takes these operands")


def _for_tma(problem: Problem, lda: int | None, ldb: int | None, ldc: int | None) -> Problem:
    """The problem with lines on 16-byte boundaries, but for the leading dimensions that were given."""
    padded = problem.padded()
    return padded.changed(lda=lda or padded.lda, ldb=ldb or padded.ldb, ldc=ldc or padded.ldc)


def _check(place: Backend, kernel: KernelFile, problem: Problem, fill: Any, seed: int, checked: bool) -> dict[str, Any]:
    """Run one kernel and judge what it wrote, and what it left alone. What a kernel does wrong is a finding.

    ``ok`` is None when the kernel does not take the operands.
    """
    from tilewright.backends.emulator import EmulatorBackend
    from tilewright.checked import check as check_accesses
    from tilewright.operands import random_operands
    from tilewright.run import default_plan, make_operands, run
    from tilewright.verify import verify as check

    row: dict[str, Any] = {**kernel.identity, "name": kernel.name, "problem": problem.to_dict(), "ok": False}
    a, b = random_operands(problem, seed, fill)
    operands = make_operands(place, problem, a, b)
    try:
        plan = default_plan(kernel, operands)
    except UsageError as refusal:
        return {**row, "ok": None, "error_over_bound": None, "says": str(refusal)}
    try:
        run(place, kernel, operands, plan)
        c, intact = place.download(operands.c), place.padding_intact(operands.c)
        if checked and isinstance(place, EmulatorBackend):
            blocks = check_accesses(place, kernel, plan, operands)
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
        mark = {True: Text("ok", "green"), False: Text("FAILED", "bold red"), None: Text("-", "dim")}[row["ok"]]
        table.add_row(
            mark, f"{row.get('rung', row.get('branch'))} {row['name']}", row["problem"]["dtype"], Text(row["says"])
        )
    return table
