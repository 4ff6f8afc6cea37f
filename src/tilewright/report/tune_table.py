"""Winners in a terminal: a line for the shape and one for its plan, which is how both fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tilewright.tune.key import Where
from tilewright.tune.rows import Row, Tried

INDENT = 2


def tuned_table(rows: Sequence[Row], known: Iterable[Row] = ()) -> RenderableType:
    """A row a shape: its winner, how long that takes, and the planner's pick beside it.

    ``known`` are the rows that were not measured now.
    """
    old = {row.key for row in known}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(_cell("shape", "winner"))
    table.add_column(_cell("us", "TFLOPS"), justify="right", no_wrap=True)
    table.add_column(_cell("rank", "to 1"), justify="right", no_wrap=True)
    table.add_column(_cell("noise", "rounds"), justify="right", no_wrap=True)
    for row in rows:
        origin = "imported" if row.origin == "imported" else "known" if row.key in old else ""
        shape = f"{row.what}{f' ({origin})' if origin else ''}"
        best = row.best
        if best is None or best.time_us is None:
            table.add_row(_cell(shape, "no candidate could be timed"), "", "", "")
            continue
        us = best.time_us["median"]
        flops = 2 * row.what.m * row.what.n * row.what.k
        speed = f"{flops / us / 1e6:,.1f}" if row.what.is_one_product else ""
        table.add_row(
            _cell(shape, f"{best.label} ({best.family})"),
            _cell(f"{us:,.2f}", speed),
            _cell(str((row.winner or 0) + 1), gain(row)),
            _cell(f"{row.band:.1%}", f"{row.rounds}{'' if row.decided else '+'}"),
        )
    return table


def gain(row: Row) -> str:
    """How much faster the winner is than the planner's first candidate; nothing where that is it, or has no time."""
    first, best = row.tried[0], row.best
    if best is None or best is first or best.time_us is None or first.time_us is None:
        return ""
    return f"{first.time_us['median'] / best.time_us['median']:.3f}x"


def lost_list(rows: Iterable[Row]) -> Iterator[RenderableType]:
    """Each candidate that was not timed, with the reason."""
    for row in rows:
        for each in row.tried:
            if each.verdict != "timed":
                yield Text.assemble((f"{each.verdict}: ", _style(each)), f"{row.what}, {each.label}")
                yield Padding(Text(each.reason or "", "dim"), (0, 0, 0, INDENT), expand=False)


def listed(rows: Sequence[Row], gpus: Mapping[str, bool]) -> Iterator[RenderableType]:
    """Everything in a database, place by place; those of GPUs that tilewright does not know come last, and say so."""
    places = list(dict.fromkeys(row.where for row in rows))
    for where in sorted(places, key=lambda each: (not gpus[each.gpu], each.gpu)):
        yield Text(place(where), "bold")
        if not gpus[where.gpu]:
            yield Text("a GPU that tilewright does not know", "dim")
        yield tuned_table([row for row in rows if row.where == where])


def place(where: Where) -> str:
    """Where something was measured, in a line or two."""
    return (
        f"{where.gpu}, {where.sms} SMs, driver {where.driver}, NVRTC {where.nvrtc}, "
        f"tilewright {where.version}, kernels {where.kernels}"
    )


def _cell(above: str, below: str) -> Text:
    return Text.assemble(above, "\n", (below, "not bold dim"))


def _style(each: Tried) -> str:
    return "bold red" if each.verdict == "wrong" else "yellow"
