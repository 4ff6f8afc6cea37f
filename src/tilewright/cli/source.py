"""``tilewright source`` and ``tilewright diff``: what is compiled, and what one idea changed in it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import typer
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.options import ROW_ROW, DTypeName, Json, LayoutOption, whole, whole_option

RungNumber = Annotated[
    int, typer.Argument(parser=whole, metavar="RUNG", help="Number of the rung.", show_default=False)
]


def source(
    rung: RungNumber,
    dtype: Annotated[
        DTypeName | None, typer.Option(help="Element type of A, B and C; the rung's first when left out.")
    ] = None,
    target: Annotated[
        Literal["gpu", "host"], typer.Option(help="What the compiler of a GPU or of the emulator is given.")
    ] = "gpu",
    layout: LayoutOption = ROW_ROW,
    aligned: Annotated[
        bool, typer.Option("--aligned/--unaligned", help="For rows that start on 16-byte boundaries, or anywhere.")
    ] = True,
    plain: Annotated[bool, typer.Option("--plain", help="Leave out the #line directives.")] = False,
) -> None:
    """Print the text of a rung exactly as it is compiled: plan, headers and kernel in one; nvcc takes it."""
    from tilewright import dtypes, ladder

    chosen = ladder.rung(rung)
    kind = dtypes.dtype(dtype) if dtype is not None else chosen.dtypes[0]
    plan = chosen.plan(kind, aligned=aligned, a_layout=layout.a, b_layout=layout.b)
    text = chosen.source(plan, target).text
    output.print_plain(re.sub(r"^#line .*\n", "", text, flags=re.MULTILINE) if plain else text)


def diff(
    old: RungNumber,
    new: RungNumber,
    context: Annotated[int, whole_option("--context", help="Unchanged lines around a change.")] = 3,
    json: Json = False,
) -> None:
    """Show what the idea of one rung changed in another."""
    from tilewright import ladder
    from tilewright.report.diff import rung_diff

    before, after = ladder.rung(old), ladder.rung(new)
    found = rung_diff(before.path, after.path, context)
    if json:
        output.print_json(
            {
                "schema": "tilewright.diff/1",
                "old": before.number,
                "new": after.number,
                "added": found.added,
                "removed": found.removed,
                "moved": found.moved,
                "lines": found.lines,
            }
        )
        return
    output.say(f"{after.number} {after.name}: {after.idea}")
    moved = f", {found.moved} of these into a shared header" if found.moved else ""
    output.say(f"{found.added} lines added, {found.removed} removed{moved}")
    console = output.stdout()
    for line in found.lines:
        console.print(Text(line, style=_style(line)), soft_wrap=True)


def _style(line: str) -> str:
    if line.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
