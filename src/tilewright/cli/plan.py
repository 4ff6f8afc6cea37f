"""``tilewright plan``: from M, N, K to a tile, with the reasons and a time; or the judgement of a tile of one's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from tilewright.cli import output
from tilewright.cli.options import ROW_ROW, DTypeName, Json, LayoutOption, whole, whole_option
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilewright.planner.candidate import Candidate
    from tilewright.planner.judgement import Finding
    from tilewright.planner.planning import Planning
    from tilewright.planner.why import Why
    from tilewright.problem import Problem

DEFAULT_TOP = 5


class PlanCommand(TyperCommand):
    """Says what ``-5`` is as a size: to the parser of options it is an option that does not exist."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        sizes = [word for word in args if re.fullmatch(r"-\d[\d.]*", word)]
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter:
            raise
        except Exception as error:
            if sizes and getattr(error, "option_name", "").startswith(sizes[0][:2]):
                output.say_error(f"{sizes[0]} is negative; M, N and K are whole numbers, 0 or more")
                raise typer.Exit(UsageError.exit_code) from None
            raise


class Dimensions(tuple[int, ...]):
    """Whole numbers above 0, as 128x256x64 writes them."""


def dimensions(count: int, example: str) -> Any:
    """A parser of ``count`` whole numbers above 0 with an x between; typer passes defaults through it too."""

    def parse(value: str | Dimensions) -> Dimensions:
        if isinstance(value, Dimensions):
            return value
        parts = value.strip().lower().split("x")
        if len(parts) != count or not all(
            part.isascii() and part.isdecimal() and 0 < int(part) < 10**9 for part in parts
        ):
            raise typer.BadParameter(
                f"{value!r} is not {count} whole numbers above 0 with an x between, as in {example}."
            )
        return Dimensions(int(part) for part in parts)

    return parse


def _size(name: str, help: str) -> Any:
    return typer.Argument(parser=whole, metavar=name, help=help, show_default=False)


def plan(
    m: Annotated[int, _size("M", "Rows of A and C.")],
    n: Annotated[int, _size("N", "Columns of B and C.")],
    k: Annotated[int, _size("K", "Columns of A, rows of B.")],
    dtype: Annotated[DTypeName, typer.Option("--dtype", help="Element type of A, B and C.")] = "bf16",
    layout: LayoutOption = ROW_ROW,
    lda: Annotated[
        int | None, whole_option("--lda", help="Elements from line to line of A; tight when left out.")
    ] = None,
    ldb: Annotated[
        int | None, whole_option("--ldb", help="Elements from line to line of B; tight when left out.")
    ] = None,
    ldc: Annotated[
        int | None, whole_option("--ldc", help="Elements from line to line of C; tight when left out.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Such as h200; when left out the one that is present, else an H200.")
    ] = None,
    sms: Annotated[int | None, whole_option("--sms", help="SMs that the kernel may use; all when left out.")] = None,
    clock: Annotated[
        Literal["sustained", "burst"],
        typer.Option("--clock", help="Rank by times under sustained load, or in a short burst on a cool card."),
    ] = "sustained",
    pdl: Annotated[
        bool,
        typer.Option(
            "--pdl", help="Start under the kernel before (programmatic dependent launch), which must not write B."
        ),
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Constants of a GPU, from `tilewright calibrate --out FILE`.")
    ] = None,
    top: Annotated[
        int | None,
        whole_option(
            "--top", help=f"Candidates to show, {DEFAULT_TOP} when left out; with --tile of those that are better, 3."
        ),
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Show every candidate, and the rejected ones with the reason.")
    ] = False,
    why: Annotated[
        tuple[str, str] | None,
        typer.Option("--why", metavar="A B", help="Why A beats B: ranks, or words of a label such as 128x256x64."),
    ] = None,
    tile: Annotated[
        Dimensions | None,
        typer.Option("--tile", parser=dimensions(3, "128x256x64"), metavar="BMxBNxBK", help="Judge this tile instead."),
    ] = None,
    stages: Annotated[
        int | None, whole_option("--stages", help="Of --tile; those of the fastest ring when left out.")
    ] = None,
    cluster: Annotated[
        Dimensions | None,
        typer.Option("--cluster", parser=dimensions(2, "2x1"), metavar="MxN", help="Blocks of --tile's cluster."),
    ] = None,
    consumers: Annotated[int | None, whole_option("--consumers", help="Warpgroups that multiply --tile.")] = None,
    schedule: Annotated[
        Literal["cooperative", "pingpong"] | None,
        typer.Option("--schedule", help="How --tile's warpgroups share work."),
    ] = None,
    picture: Annotated[
        bool, typer.Option("--picture", help="Draw the tiles over the SMs wave by wave, and what fills an SM.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with pictures to this file.")] = None,
    json: Json = False,
) -> None:
    """Choose the plan for C = A @ B without measuring: every reason with its numbers, and a predicted time.

    Needs no GPU. With --tile, judge that tile: whether it fits, each limit, what would be better.
    """
    from tilewright.problem import Problem

    problem = Problem(m, n, k, dtype, None, *layout, lda, ldb, ldc)
    given = {"--stages": stages, "--cluster": cluster, "--consumers": consumers, "--schedule": schedule}
    if top is not None and top < 1:
        raise UsageError(f"--top is {top}; at least 1 candidate is shown")
    on: dict[str, Any] = {"gpu": gpu, "sms": sms, "clock": clock, "pdl": pdl, "calibration": _calibration(calibration)}
    if tile is None:
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} is of a tile of one's own; add --tile, such as --tile 128x256x64")
        _plan(problem, on, top or DEFAULT_TOP, all, why, picture, html, json)
        return
    if why is not None:
        raise UsageError("--tile judges one tile and --why compares two candidates; give one of them")
    if all:
        raise UsageError("--tile judges one tile and --all shows every candidate; give one of them")
    named = {**given, "--top": top}
    chosen = {name.removeprefix("--"): value for name, value in named.items() if value is not None}
    _judge(problem, on, {"tile": tuple(tile), **chosen}, picture, html, json)


def _calibration(path: Path | None) -> Any:
    if path is None:
        return None
    from tilewright.planner.calibration import Calibration

    return Calibration.load(path)


def _plan(
    problem: Problem,
    on: Mapping[str, Any],
    top: int,
    all: bool,
    why: tuple[str, str] | None,
    picture: bool,
    html: Path | None,
    json: bool,
) -> None:
    import tilewright
    from tilewright.planner.reasons import reasons
    from tilewright.planner.why import find
    from tilewright.planner.why import why as compare

    planning = tilewright.plan(problem=problem, **on)
    if not planning.ranked and planning.rejected:
        raise UsageError(f"no kernel computes {problem}: {planning.rejected[0].rejected}")
    compared = None if why is None else compare(*(find(planning, name) for name in why), clock=planning.clock)
    found = reasons(planning, on["calibration"])
    if html is not None:
        from tilewright.report.plan_html import page, planning_html

        shown = len(planning.ranked) if all else max(top, DEFAULT_TOP)
        body = planning_html(planning, top=shown, rejected=all, reasons=found, why=compared)
        _write(html, page(body, f"tilewright plan {problem}"))
    if json:
        answer = planning.to_dict(None if all else top, all=all)
        output.print_json(answer if compared is None else {**answer, "why": compared.to_dict()})
        return
    console = output.stdout()
    for part in _parts(planning, found, top, all, compared, picture, console.width):
        console.print(part)
    if planning.ranked:
        output.say(_more(planning, top, all))


def _parts(
    planning: Planning, found: Sequence[Finding], top: int, all: bool, compared: Why | None, picture: bool, width: int
) -> Iterator[RenderableType]:
    """What is shown, one below another."""
    from tilewright.report.plan_table import candidate_table, heading, pick_text, rejected_list, why_table

    if not planning.ranked or compared is None:
        yield pick_text(planning, found)
    else:
        yield heading(planning)
    if not planning.ranked:
        return
    if picture:
        yield from _pictures(planning.pick, planning.problem, planning.sms, width)
    yield ""
    yield why_table(compared) if compared else candidate_table(planning, len(planning.ranked) if all else top, width)
    if all and planning.rejected:
        yield ""
        yield from rejected_list(planning.rejected)


def _pictures(candidate: Candidate, problem: Problem, sms: int, width: int) -> Iterator[RenderableType]:
    from tilewright.report.plan_figures import register_budget, shared_budget, tiles_of
    from tilewright.report.plan_picture import budget_bar, most_cells, tile_picture

    yield ""
    yield tile_picture(tiles_of(candidate, problem, sms, most=most_cells(width)), candidate.label, width)
    yield budget_bar(shared_budget(candidate), width)
    yield budget_bar(register_budget(candidate), width)


def _more(planning: Planning, top: int, all: bool) -> str:
    """How much there is that is not shown."""
    shown = len(planning.ranked) if all else min(top, len(planning.ranked))
    counted = f"{shown:,} of {len(planning.ranked):,} candidates, {len(planning.rejected):,} rejected"
    return f"{counted}; --all shows every one with the reason, --why 1 2 compares, --picture and --html FILE draw"


def _judge(
    problem: Problem, on: Mapping[str, Any], asked: Mapping[str, Any], picture: bool, html: Path | None, json: bool
) -> None:
    import tilewright

    judgement = tilewright.judge(problem=problem, **asked, **on)
    if html is not None:
        from tilewright.report.plan_html import judgement_html, page

        _write(html, page(judgement_html(judgement), f"{judgement.label} for {problem}"))
    if json:
        output.print_json(judgement.to_dict())
        return
    from tilewright.report.plan_table import judgement_text

    console = output.stdout()
    for part in judgement_text(judgement):
        console.print(part)
    if picture and judgement.candidate is not None:
        for part in _pictures(judgement.candidate, problem, judgement.sms, console.width):
            console.print(part)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path} cannot be written: {error.strerror or error}") from None
