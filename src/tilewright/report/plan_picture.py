"""The pictures of a plan in a terminal: the tile grid wave by wave, how full each wave is, and the budget bars.

Every picture can be read without colour: a cell says its wave by a sign, a part of a bar has a pattern of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tilewright.report.palette import PARTS, hexadecimal, ink_on, ramp
from tilewright.report.plan_figures import Budget, Part, TileMap

SIGNS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_DOWN = 24  # rows of a picture
MARGIN = 4
_PATTERNS = "█▓▒░"
_FREE = "·"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def most_cells(width: int) -> tuple[int, int]:
    """The most cells down and across that a picture of ``width`` columns has."""
    return MOST_DOWN, max(8, width - 2 * MARGIN)


def tile_picture(tiles: TileMap, label: str, width: int) -> RenderableType:
    """The grid of tiles, each with the wave it is computed in, and under it how many places each wave keeps busy."""
    if not tiles.tiles:
        return Text("C has no tiles", "dim")
    columns = 2 if 2 * tiles.cells.shape[1] <= width - 2 * MARGIN else 1
    lines = [*_heading(tiles, label)]
    for row in tiles.cells:
        line = Text(" " * MARGIN)
        for wave in row:
            colour = ramp(wave, tiles.waves)
            line.append(_sign(int(wave), tiles) * columns, f"{hexadecimal(ink_on(colour))} on {hexadecimal(colour)}")
        lines.append(line)
    return Group(*lines, *_occupancy(tiles, width))


def _per_sign(tiles: TileMap) -> int:
    return -(-tiles.waves // len(SIGNS))


def _sign(wave: int, tiles: TileMap) -> str:
    return SIGNS[wave // _per_sign(tiles)]


def _heading(tiles: TileMap, label: str) -> Iterator[RenderableType]:
    waves = "one wave" if tiles.waves == 1 else f"{tiles.waves:,} waves"
    yield Text.assemble(
        ("tiles of C", "bold"),
        f": {tiles.down:,} down x {tiles.across:,} across = {tiles.tiles:,}",
    )
    yield Text(f"{' ' * MARGIN}{label}", "dim")
    yield Text(f"{' ' * MARGIN}{tiles.at_once:,} blocks at a time: {waves}", "dim")
    per_sign = _per_sign(tiles)
    last = SIGNS[(tiles.waves - 1) // per_sign]
    scale = (
        f"a cell is {tiles.step_down:,} x {tiles.step_across:,} tiles and shows the one in its middle"
        if tiles.scaled
        else "a cell is a tile"
    )
    signs = f"the sign is its wave, 1 to {last}" if per_sign == 1 else f"a sign is {per_sign:,} waves, 1 to {last}"
    yield Text(f"{' ' * MARGIN}{scale}", "dim")
    if tiles.waves > 1:
        yield Text(f"{' ' * MARGIN}{signs}", "dim")
    if tiles.said:
        yield Padding(Text(tiles.said, "dim"), (0, 0, 0, MARGIN), expand=False)


def _occupancy(tiles: TileMap, width: int) -> Iterator[Text]:
    """A bar for the waves that are alike, and one for the wave that is not: in the order of time."""
    rows = [(0, tiles.waves, False)]
    if not tiles.full:
        rows = [(0, tiles.odd, False), (tiles.odd, tiles.odd + 1, True), (tiles.odd + 1, tiles.waves, False)]
    names = max(10, len(f"waves 1-{tiles.waves:,}")) + 1
    says = max(len(_busy(odd, tiles)) for _, _, odd in rows)
    room = max(8, width - MARGIN - names - says)
    for first, end, odd in rows:
        if first < end:
            name = f"wave {end:,}" if end == first + 1 else f"waves {first + 1:,}-{end:,}"
            yield _wave_bar(f"{name:<{names}}", odd, tiles, room)


def _busy(odd: bool, tiles: TileMap) -> str:
    busy = tiles.busy if odd else tiles.at_once
    idle = f"{tiles.at_once - busy:,} idle" if busy < tiles.at_once else "all busy"
    short = f", {tiles.length:.1%} as long" if odd and tiles.length != 1 and not tiles.cut else ""
    return f" {busy:,} of {tiles.at_once:,}: {idle}{', cut in halves' if odd and tiles.cut else short}"


def _wave_bar(name: str, odd: bool, tiles: TileMap, room: int) -> Text:
    eighths = round(8 * room * (tiles.busy if odd else tiles.at_once) / tiles.at_once)
    bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return Text.assemble(
        f"{' ' * MARGIN}{name}",
        (bar, hexadecimal(PARTS[0])),
        (_FREE * (room - len(bar)), "dim"),
        _busy(odd, tiles),
    )


def budget_bar(budget: Budget, width: int) -> RenderableType:
    """A bar of all there is, a pattern a part, and under it each part with its size and share."""
    room = max(16, width - 2 * MARGIN)
    parts = budget.all_parts
    bar, legend = Text(" " * MARGIN), Text()
    for part, columns in zip(parts, _columns(budget, parts, room), strict=True):
        pattern, style = _look(part, parts)
        bar.append(_pieces(part, pattern, columns), style)
    lines: list[Text] = []
    for part in parts:
        pattern, style = _look(part, parts)
        said = Text.assemble((pattern, style), f" {part.name} {part.size:,} ({part.size / budget.limit:.1%})")
        if legend and len(legend) + 3 + len(said) > room:
            lines.append(legend)
            legend = Text()
        legend = Text.assemble(legend, "   " if legend else "", said)
    lines.append(legend)
    unit = f" {budget.unit}" if budget.unit else ""
    heading = Text.assemble((budget.name, "bold"), f": {budget.limit:,}{unit}")
    if budget.free < 0:
        heading.append(f", {-budget.free:,}{unit} too few", "bold red")
    return Group(heading, bar, *(Text.assemble(" " * MARGIN, line) for line in lines))


def _look(part: Part, parts: Sequence[Part]) -> tuple[str, str]:
    if part.rest:
        return _FREE, "dim"
    index = list(parts).index(part)
    return _PATTERNS[index % len(_PATTERNS)], hexadecimal(PARTS[index % len(PARTS)])


def _pieces(part: Part, pattern: str, columns: int) -> str:
    """The columns of a part, a seam after each of its pieces."""
    if part.pieces < 2 or columns < 2 * part.pieces:
        return pattern * columns
    ends = {round(columns * (piece + 1) / part.pieces) - 1 for piece in range(part.pieces)}
    return "".join("▊" if column in ends else pattern for column in range(columns))


def _columns(budget: Budget, parts: Sequence[Part], room: int) -> list[int]:
    """Columns for each part, one at least and ``room`` in all."""
    total = max(budget.limit, sum(part.size for part in parts))
    columns = [max(1, round(room * part.size / total)) for part in parts]
    columns[columns.index(max(columns))] += room - sum(columns)
    return columns
