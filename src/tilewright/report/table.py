"""The climb as tables: one a dtype, a row a rung, and under each the arithmetic in a line a rung.

Input is the dict of ``ClimbResult.to_dict()`` (what ``tilewright climb --json`` prints). Each cell has two lines by
one rule: above what was counted or measured here, below (dim) what it is held against: the derived figure, the ideal,
the roof. The tables fit 80 columns; from ``WIDE`` on the bottleneck gets a column of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

WIDE = 110

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its heading (the last line of which names the lower, dim half of a cell) and how a row fills it."""

    heading: str
    cell: Callable[[Row], tuple[str, str]]
    right: bool = True


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


def _sectors(row: Row, key: str) -> str:
    operands = _get(row, "counted", "operands") or {}
    return " ".join(f"{number(_get(operands, name, key)):>2}" for name in "abc") if operands else "-"


def _name(row: Row) -> tuple[str, str]:
    registers = _get(row, "compiled", "registers")
    name = f"  {row['name']}" if row.get("counter_example") or "rung" not in row else f"{row['rung']} {row['name']}"
    return name, "" if registers is None else f"  {registers} registers"


def _against(name: str) -> Callable[[Row], tuple[str, str]]:
    """A counted figure above the derived one of the same name."""
    return lambda row: (number(_get(row, "counted", name)), number(_get(row, "derived", name)))


NAME = Column("rung\n", _name, right=False)
COUNTS = (
    Column("verified\nof bound", _verified),
    Column("FLOP/B\nplan", _against("flop_per_byte")),
    Column("sectors\nA  B  C\nideal", lambda row: (_sectors(row, "sectors_per_request"), _sectors(row, "ideal"))),
    Column("shared\nB/MAC\nplan", _against("shared_load_bytes_per_mac")),
    Column(
        "excess\nwave-\nfronts",
        lambda row: (number(_get(row, "counted", "excess_wavefronts_per_request")), ""),
    ),
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
        parts += [heading(result, dtype), climb_table(rows, width), *arithmetic(rows, width)]
    return Group(*parts)


def by_dtype(result: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The rows of a climb, a list a dtype, in their order."""
    groups: dict[str, list[Row]] = {}
    for row in result["rungs"]:
        groups.setdefault(str(row.get("dtype") or _get(result, "problem", "dtype")), []).append(row)
    for vendor in result.get("vendor") or ():  # the rival of the same run closes the table of its dtype
        if vendor["dtype"] in groups:
            groups[vendor["dtype"]].append(vendor)
    return groups


def heading(result: Mapping[str, Any], dtype: str) -> Text:
    """What ran where: ``fp32  256 x 256 x 256 (MxNxK)  on NVIDIA H200``."""
    problem, device = result["problem"], result["device"]
    device_name = _get(device, "name") or device
    return Text.assemble(
        (dtype, "bold"), f"  {problem['m']} x {problem['n']} x {problem['k']} (MxNxK)  on {device_name}"
    )


def climb_table(rows: Sequence[Row], width: int) -> Table:
    """One table: what each rung moved and, where there are times, how fast it was."""
    timed = any(row.get("time_us") is not None for row in rows)
    recorded = sorted({_recorded_label(row) for row in rows if row.get("recorded")})
    columns = [NAME, *COUNTS]
    if timed:
        columns += SPEED
    elif recorded:
        columns.append(RECORDED)
    wide = width >= WIDE
    if wide:
        columns.append(BOTTLENECK)
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
    if recorded and not timed:
        table.caption = "* " + "; ".join(recorded)
        table.caption_justify = "left"
    return table


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


def arithmetic(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """A line a rung: where its derived figures come from and, where no column says it, what limits it."""
    for row in rows:
        derived = row.get("derived") or {}
        if row.get("fault"):
            yield Text.assemble((f"{row['rung']} {row['name']}: ", "bold"), (str(row["fault"]), "red"))
        said = [str(derived["formula"])] if derived.get("formula") else []
        if width < WIDE and derived.get("bottleneck"):
            said.append(str(derived["bottleneck"]))
        if row.get("counter_example") and isinstance(row["counter_example"], str):
            said.insert(0, row["counter_example"])
        if said:
            yield Text.assemble((f"{row['rung']} {row['name']}: ", "bold"), "; ".join(said), style=_row_style(row))
