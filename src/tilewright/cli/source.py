"""``tilewright source`` and ``tilewright diff``: what is compiled, and what one idea changed in it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import typer
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.options import DTypeName, Json, LayoutIfAny, Layouts, whole, whole_option

RungNumber = Annotated[
    int, typer.Argument(parser=whole, metavar="RUNG", help="Number of the rung.", show_default=False)
]
KernelName = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL", help="Number of a rung, or a branch's kernel, such as decode_gemv.", show_default=False
    ),
]


def source(
    kernel: KernelName,
    dtype: Annotated[
        DTypeName | None, typer.Option(help="Element type of A, B and C; the kernel's first when left out.")
    ] = None,
    target: Annotated[
        Literal["gpu", "host"], typer.Option(help="What the compiler of a GPU or of the emulator is given.")
    ] = "gpu",
    layout: LayoutIfAny = None,
    aligned: Annotated[
        bool, typer.Option("--aligned/--unaligned", help="For rows that start on 16-byte boundaries, or anywhere.")
    ] = True,
    plain: Annotated[bool, typer.Option("--plain", help="Leave out the #line directives.")] = False,
) -> None:
    """Print the text of a kernel exactly as it is compiled: plan, headers and kernel in one; nvcc takes it.

    A branch's plan is that for the size that it is measured at.
    """
    from tilewright import branches, dtypes, ladder, selection
    from tilewright.kernel_file import KernelFile
    from tilewright.problem import Problem

    chosen: KernelFile
    on_ladder = kernel.isascii() and kernel.isdecimal()
    chosen = ladder.rung(whole(kernel)) if on_ladder else branches.of_file(kernel)
    branch = chosen.branch if isinstance(chosen, branches.BranchKernel) else None
    kind = dtypes.dtype(dtype) if dtype is not None else chosen.dtypes[0]
    layout = layout or Layouts(*selection.default_layouts(branch))
    plan = chosen.plan_for(Problem(*selection.default_shape(branch, "measured"), kind, None, *layout), aligned=aligned)
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
