"""The climb as tables: one a dtype, a row a rung, and under each the arithmetic in a line a rung.

Input is the dict of ``ClimbResult.to_dict()`` (what ``tilewright climb --json`` prints). Each cell has two lines by
one rule: above what was counted or measured here, below (dim) what it is held against: the derived figure, the ideal,
the roof. The tables fit 80 columns; from ``WIDE`` on the bottleneck gets a column of its own, and where a table does
not fit each rung is a list of its figures instead: no figure is ever cut off.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tilewright import roofline

WIDE = 110
NARROW = 40
INDENT = 4  # of what stands under a rung's line
BY_TMA = "T"
TMA = f"{BY_TMA} moved by TMA, in whole boxes: no requests of lanes"
HALVES = "above: counted (a tile, K cut short) or measured; below: plan, ideal or roof"
GUESSED = "~ by guess: lanes of a warp passed some access unequally often, so its requests are not known exactly"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its heading (the last line of which names the lower, dim half of a cell) and how a row fills it."""

    heading: str
    cell: Callable[[Row], tuple[str, str]]
    right: bool = True

    def named(self, row: Row) -> Iterator[tuple[str, str]]:
        """The figures of a row with their names, for a list."""
        *above, below = self.heading.split("\n")
        name = " ".join(" ".join(above).replace("wave- ", "wave").split())
        upper, lower = self.cell(row)
        yield (name if lower else f"{name} {below}".strip()), upper
        if lower:
            yield (below if below[0] in "x%" else f"{name}, {below}"), lower


def number(value: float | None, digits: int = 3) -> str:
    """A figure at ``digits`` significant digits without an exponent; ``-`` for none."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or "e+" in text else text


def _times(value: float | None) -> str:
    return "-" if value is None else f"{number(value)}x"


def _get(row: Row, *path: str) -> Any:
    """A nested value, or None where any step of the way is absent or null."""
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _verified(row: Row) -> tuple[str, str]:
    word = {True: "ok", False: "FAILED"}.get(row.get("verified"), "-")  # type: ignore[arg-type]
    return word, number(row.get("error_over_bound"), 2)


def _to_vendor(row: Row) -> str:
    ratios = row.get("speedup_over_vendor") or {}
    return _times(next(iter(ratios.values()))) if ratios else ""


def _guess(row: Row) -> str:
    return "~" if _get(row, "counted", "approximate") else ""


def _excess(row: Row) -> tuple[str, str]:
    value = _get(row, "counted", "excess_wavefronts_per_request")
    return ("-" if value is None else _guess(row) + number(value)), ""


def _sectors(row: Row, key: str) -> str:
    operands = _get(row, "counted", "operands") or {}
    return " ".join(f"{_sectors_of(operands.get(name) or {}, key):>2}" for name in "abc") if operands else "-"


def _sectors_of(operand: Mapping[str, Any], key: str) -> str:
    if operand.get(key) is None and (operand.get("loaded_bytes") or operand.get("stored_bytes")):
        return BY_TMA
    return number(operand.get(key))


def _copies(row: Row) -> str:
    """What TMA moved, in words; empty where it moved nothing."""
    counted = row.get("counted") or {}
    if not counted.get("tma_copies"):
        return ""
    saved = counted.get("tma_bytes_saved_by_multicast")
    beside = f", {saved:,} B saved by multicast" if saved else ""
    blocks = counted["blocks"]
    of = "a block" if blocks == 1 else f"{blocks} blocks"
    return f"TMA counted for {of}: {counted['tma_copies']:,} copies, {counted['tma_bytes']:,} B{beside}"


def _name(row: Row) -> tuple[str, str]:
    registers = _get(row, "compiled", "registers")
    name = f"  {row['name']}" if row.get("counter_example") or _of(row) is None else _label(row)
    return name, "" if registers is None else f"  {registers} registers"


def _against(name: str) -> Callable[[Row], tuple[str, str]]:
    """A counted figure above the derived one of the same name."""
    return lambda row: (number(_get(row, "counted", name)), number(_get(row, "derived", name)))


NAME = Column("rung\n", _name, right=False)
COUNTS = (
    Column("verified\nof bound", _verified),
    Column("FLOP/B\nplan", _against("flop_per_byte")),
    Column(
        "sectors\nA  B  C\nideal",
        lambda row: (_guess(row) + _sectors(row, "sectors_per_request"), _sectors(row, "ideal")),
    ),
    Column("shared\nB/MAC\nplan", _against("shared_load_bytes_per_mac")),
    Column("excess\nwave-\nfronts\n", _excess),
)
SPEED = (
    Column("time us\nx cuBLAS", lambda row: (number(row.get("time_us"), 4), _to_vendor(row))),
    Column("TFLOPS\n% roof", lambda row: (number(row.get("tflops")), number(row.get("percent_of_roof")))),
    Column(
        "x rung\nx naive",
        lambda row: (_times(row.get("speedup_over_previous")), _times(row.get("speedup_over_naive"))),
    ),
)
RECORDED = Column("TFLOPS\nrecorded*", lambda row: (number(_get(row, "recorded", "tflops")), ""))
BOTTLENECK = Column("bottleneck\n", lambda row: (_get(row, "derived", "bottleneck") or "-", ""), right=False)


def climb_tables(result: Mapping[str, Any], width: int) -> Group:
    """Every table of a climb, with its heading and its lines of arithmetic, for a console ``width`` wide."""
    parts: list[RenderableType] = []
    for dtype, rows in by_dtype(result).items():
        if parts:
            parts.append(Text())
        table = climb_table(rows, width)
        fits = Measurement.get(_ENDLESS, _ENDLESS.options, table).minimum <= width
        shown = [table] if fits else figures(rows)
        parts += [*heading(result, dtype), *shown, *notes(rows), *arithmetic(rows, width)]
    return Group(*parts)


_ENDLESS = Console(width=10_000, force_terminal=False)  # on which a table's own width is measured


def by_dtype(result: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The rows of a climb, a list a dtype, in their order: each rung, then the mistakes it is shown beside."""
    groups: dict[str, list[Row]] = {}
    mistakes = list(result.get("counter_examples") or ())
    for row in result["rungs"]:
        dtype = row.get("dtype")
        beside = [each for each in mistakes if (each.get("dtype"), _of(each)) == (dtype, _of(row))]
        groups.setdefault(str(dtype or _get(result, "problem", "dtype")), []).extend([row, *beside])
    for vendor in result.get("vendor") or ():  # the rival of the same run closes the table of its dtype
        if vendor["dtype"] in groups:
            groups[vendor["dtype"]].append(vendor)
    return groups


def heading(result: Mapping[str, Any], dtype: str) -> Iterator[Text]:
    """What ran where, what the whole problem comes to, and whose roofs apply: a line each.

    ``fp32  256 x 256 x 256 (MxNxK)  on NVIDIA H200``.
    """
    problem, device = result["problem"], result["device"]
    device_name = _get(device, "name") or device
    yield Text.assemble(
        (dtype, "bold"), f"  {problem['m']} x {problem['n']} x {problem['k']} (MxNxK)  on {device_name}"
    )
    whole = _get(problem, "arithmetic", dtype)
    if whole:
        intensity = whole["flop_per_byte"]
        quotient = "" if intensity is None else f" = {roofline.number(intensity)} FLOP/B"
        yield Text(f"{whole['flops']:,} FLOP / {whole['bytes']:,} B moved at least{quotient}", "dim")
    gpu = result.get("gpu")
    if gpu:
        yield Text(f"roofs: {gpu['name']}" + (" (assumed: no GPU here)" if gpu["assumed"] else ""), "dim")


def _columns(rows: Sequence[Row]) -> list[Column]:
    """Those that every table of these rows has."""
    columns = [NAME, *COUNTS]
    if _timed(rows):
        columns += SPEED
    elif any(row.get("recorded") for row in rows):
        columns.append(RECORDED)
    return columns


def _timed(rows: Sequence[Row]) -> bool:
    return any(row.get("time_us") is not None for row in rows)


def climb_table(rows: Sequence[Row], width: int) -> Table:
    """One table: what each rung moved and, where there are times, how fast it was."""
    wide = width >= WIDE
    columns = [*_columns(rows), BOTTLENECK] if wide else _columns(rows)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1 if wide else 0, 0, 0))
    for column in columns:
        *above, below = column.heading.split("\n")
        table.add_column(
            Text.assemble("\n".join(above), "\n", (below, "dim")),
            justify="right" if column.right else "left",
            vertical="top",
            no_wrap=column.right,
            min_width=14 if column is NAME else None,
        )
    for row in rows:
        table.add_row(*(_cell(column, row) for column in columns), style=_row_style(row))
    return table


def figures(rows: Sequence[Row]) -> Iterator[Text]:
    """The table's figures as a list a row, ``name: value``, for a terminal that the table does not fit."""
    for row in rows:
        registers = NAME.cell(row)[1].strip()
        yield Text(_label(row) + (f", {registers}" if registers else ""), "bold")
        for column in _columns(rows)[1:]:
            for name, value in column.named(row):
                style = "bold red" if value == "FAILED" else _row_style(row)
                yield Text(f"  {name}: {' '.join(value.split())}", style)


def _label(row: Row) -> str:
    return str(row["name"]) if _of(row) is None else f"{_of(row)} {row['name']}"


def _of(row: Row) -> Any:
    """The rung's number or the branch's name; None for a row of neither."""
    return row.get("rung", row.get("branch"))


def notes(rows: Sequence[Row]) -> Iterator[Text]:
    """What the marks in a table mean."""
    recorded = sorted({_recorded_label(row) for row in rows if row.get("recorded")})
    if recorded and not _timed(rows):
        yield Text("* " + "; ".join(recorded), "dim italic")
    if any(row.get("counted") for row in rows):
        yield Text(HALVES, "dim italic")
    if any(BY_TMA in _sectors(row, "sectors_per_request") for row in rows):
        yield Text(TMA, "dim italic")
    if any(_guess(row) for row in rows):
        yield Text(GUESSED, "dim italic")


def _recorded_label(row: Row) -> str:
    recorded = row["recorded"]
    problem = recorded["problem"]
    shape = problem if isinstance(problem, str) else "x".join(str(problem[key]) for key in "mnk")
    return f"measured on {recorded['gpu']}, {shape}, {recorded['date']}"


def _cell(column: Column, row: Row) -> Text:
    above, below = column.cell(row)
    style = "bold red" if above == "FAILED" else ""
    return Text.assemble((above, style), "\n", (below, "dim")) if below else Text(above, style)


def _row_style(row: Row) -> str:
    return "dim" if row.get("counter_example") else ""


def arithmetic(rows: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """What limits a rung where no column says it, its plan's arithmetic where that is new, and what TMA moved."""
    before: list[str] = []
    for row in rows:
        derived = row.get("derived") or {}
        if row.get("fault"):
            yield Text.assemble((f"{_label(row)}: ", "bold"), (str(row["fault"]), "red"))
        said = [row["counter_example"]] if isinstance(row.get("counter_example"), str) else []
        if width < WIDE and derived.get("bottleneck"):
            said.append(str(derived["bottleneck"]))
        formulas = str(derived["formula"]).split("; ") if derived.get("formula") else []
        below = [*_in_lines([formula for formula in formulas if formula not in before], width), _copies(row)]
        lines = [line for line in ("; ".join(said), *below) if line]
        before = formulas
        if lines:
            yield _hanging(f"{_label(row)}: ", lines[0], width, _row_style(row))
        for line in lines[1:]:
            yield Padding(Text(line, "dim"), (0, 0, 0, INDENT if width >= NARROW else 0), expand=False)


def _hanging(label: str, said: str, width: int, style: str) -> Text:
    """A bold label and a sentence, the lines after the first set in."""
    if width >= NARROW:
        said = textwrap.fill(label + said, width, subsequent_indent=" " * INDENT, break_on_hyphens=False)[len(label) :]
    return Text.assemble((label, "bold"), said, style=style)


def _in_lines(parts: Sequence[str], width: int) -> list[str]:
    """Side by side where they fit, else one under another."""
    beside = "; ".join(parts)
    return [beside] if len(beside) + INDENT <= width else list(parts)
