"""The pictures of a plan in SVG: the tile grid wave by wave, how full the waves are, budgets, and where time goes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.planner.candidate import INSIDE, Candidate
from tilewright.planner.planning import Clock
from tilewright.planner.why import REST, time_us, words
from tilewright.report.palette import PARTS, Colour, hexadecimal, ink_on, ramp
from tilewright.report.plan_figures import Budget, TileMap
from tilewright.report.plan_words import microseconds
from tilewright.report.svg import FONT, LETTER, WIDTH, Drawing

MOST_CELLS = (64, 96)  # down and across
LEFT, TOP = 46, 34
_UPRIGHT = 88  # what "M, tiles down" takes from top to bottom
QUIET = "rgba(128,128,128,0.28)"
_MOST_HEIGHT = 300
_NUMBERED = 700  # of the picture that a wave must cover to get its number written into it
_SEPARATE = 48  # waves that are drawn one by one


def tiles_svg(tiles: TileMap, label: str) -> str:
    """The grid of C's tiles, a path a wave with a square a cell: colour and number say when it is computed."""
    drawing = Drawing(f"The {tiles.down} x {tiles.across} tiles of C in {tiles.waves} waves: {label}")
    if not tiles.tiles:
        drawing.say(0, FONT, "C has no tiles")
        return str(drawing)
    rows, columns = tiles.cells.shape
    width = min((WIDTH - LEFT - 2) / columns, 36)
    height = max(min(_MOST_HEIGHT / rows, 2 * width, 36), min(width / 2, 12))
    drawing.say(LEFT, FONT, "N, tiles across")
    drawing.say(LEFT, TOP - 6, "1")
    drawing.say(LEFT + columns * width, TOP - 6, f"{tiles.across:,}", anchor="end")
    drawing.say(LEFT - 6, TOP + FONT, "1", anchor="end")
    if tiles.down > 1:
        drawing.say(LEFT - 6, TOP + max(rows * height, 2 * FONT), f"{tiles.down:,}", anchor="end")
    middle = TOP + max(rows * height / 2, _UPRIGHT / 2 - TOP)
    drawing.say(12, middle, "M, tiles down", anchor="middle", transform=f"rotate(-90 12 {middle:.0f})")
    drawing.height = max(drawing.height, middle + _UPRIGHT / 2)
    drawing.box(LEFT, TOP, columns * width, rows * height, QUIET)
    counts = tiles.tiles_of_cells
    for wave in np.unique(tiles.cells):
        there = tiles.cells == wave
        _wave(drawing, tiles, int(wave), there, int(counts[there].sum()), (width, height))
    return str(drawing)


def _wave(
    drawing: Drawing, tiles: TileMap, wave: int, there: np.ndarray, count: int, size: tuple[float, float]
) -> None:
    """The cells of one wave, and its number in the one in their middle."""
    width, height = size
    gap = 0.8 if min(size) >= 5 else 0.3
    halves = 2 if tiles.cut and wave == tiles.waves - 1 and not tiles.scaled else 1
    tall = height / halves - gap
    places = np.argwhere(there)
    corners = [
        (LEFT + column * width + gap / 2, TOP + row * height + half * height / halves + gap / 2)
        for row, column in places
        for half in range(halves)
    ]
    path = "".join(f"M{x:.1f} {y:.1f}h{width - gap:.1f}v{tall:.1f}h{gap - width:.1f}z" for x, y in corners)
    colour = ramp(wave, tiles.waves)
    element = drawing.add(
        "path", d=path, fill=hexadecimal(colour), data_wave=wave + 1, data_tiles=count, data_cells=len(places)
    )
    drawing.add("title", f"wave {wave + 1}: {count:,} tiles{' here' if tiles.scaled else ''}", element)
    if len(places) * width * height >= _NUMBERED:
        row, column = _middle(places)
        drawing.say(
            LEFT + (column + 0.5) * width,
            TOP + (row + 0.5) * height + FONT / 3,
            str(wave + 1),
            anchor="middle",
            style=f"fill:{hexadecimal(ink_on(colour))};pointer-events:none",
        )


def _middle(places: np.ndarray) -> np.ndarray:
    """The place nearest to the middle of them all: one of them, whatever their shape."""
    found: np.ndarray = places[np.argmin(np.abs(places - places.mean(axis=0)).sum(axis=1))]
    return found


def waves_svg(tiles: TileMap) -> str:
    """How many of the blocks have work in each wave: time to the right, blocks upwards."""
    said = f"wave {tiles.odd + 1:,}" if tiles.waves > 1 else "the only wave"
    drawing = Drawing(f"{tiles.busy} of {tiles.at_once} blocks have work in {said} of {tiles.waves}")
    if not tiles.waves:
        return str(drawing)
    top, height, width = 18.0, 90.0, WIDTH - LEFT - 2.0
    step = width / (tiles.waves - 1 + tiles.length)
    drawing.say(LEFT, FONT, f"{tiles.at_once:,} blocks at a time")
    drawing.say(LEFT - 6, top + FONT, f"{tiles.at_once:,}", anchor="end")
    drawing.say(LEFT - 6, top + height, "0", anchor="end")
    gap = 1.0 if tiles.waves <= _SEPARATE else 0.0
    for first, end in ((0, tiles.odd), (tiles.odd + 1, tiles.waves)):
        blocks = [(wave, 1) for wave in range(first, end)] if gap else [(first, end - first)] if first < end else []
        for wave, count in blocks:
            names = f"wave {wave + 1}" if count == 1 else f"waves {wave + 1} to {wave + count:,}"
            colour = ramp(wave, tiles.waves) if gap else PARTS[0]
            left = LEFT + (wave if wave < tiles.odd else wave - 1 + tiles.length) * step
            drawing.box(left, top, count * step - gap, height, colour, f"{names}: all {tiles.at_once:,} busy")
    part = height * tiles.busy / tiles.at_once
    left, wide = LEFT + tiles.odd * step, max(tiles.length * step, 1.5)
    title = f"wave {tiles.odd + 1:,}: {tiles.busy:,} of {tiles.at_once:,} busy"
    drawing.box(left, top, wide, height, QUIET, title)
    drawing.box(left, top + height - part, wide, part, ramp(tiles.odd, tiles.waves), title)
    busy = f"{tiles.busy:,} busy, {tiles.at_once - tiles.busy:,} idle"
    if tiles.cut:
        busy += ", tiles cut in halves"
    elif tiles.length != 1:
        busy += f", {tiles.length:.1%} as long as a whole one"
    if tiles.waves == 1:
        ends = ("the only wave", busy)
    elif tiles.odd:
        ends = ("wave 1", f"{said}: {busy}")
    else:
        ends = (f"{said}: {busy}", f"wave {tiles.waves:,}")
    foot = top + height + FONT + 3
    drawing.say(LEFT, foot, ends[0])
    drawing.say(WIDTH - 2, foot, ends[1], anchor="end")
    return str(drawing)


def budget_svg(budget: Budget) -> str:
    """A bar of all there is, its parts to scale with their sizes, and a line at the limit where they go past it."""
    total = max(budget.limit, sum(part.size for part in budget.parts))
    unit = f" {budget.unit}" if budget.unit else ""
    drawing = Drawing(f"{budget.name}: {', '.join(f'{part.name} {part.size:,}{unit}' for part in budget.all_parts)}")
    drawing.say(0, FONT, f"{budget.name}: {budget.limit:,}{unit}", font_weight="bold")
    top, height, x = 20.0, 26.0, 0.0
    legend_y = top + height + FONT + 8
    legend_x = 0.0
    for index, part in enumerate(budget.all_parts):
        colour: Colour | str = QUIET if part.rest else PARTS[index % len(PARTS)]
        width = WIDTH * part.size / total
        said = f"{part.name} {part.size:,}{unit} ({part.size / budget.limit:.1%})"
        for piece in range(part.pieces):
            seam = 1.0 if part.pieces > 1 and width > 3 * part.pieces else 0.0
            drawing.box(x + piece * width / part.pieces, top, width / part.pieces - seam, height, colour, said)
        x += width
        needed = 16 + LETTER * len(said)
        if legend_x and legend_x + needed > WIDTH:
            legend_x, legend_y = 0.0, legend_y + FONT + 5
        drawing.box(legend_x, legend_y - FONT + 2, 11, 11, colour)
        drawing.say(legend_x + 16, legend_y, said)
        legend_x += needed + 12
    if budget.free < 0:
        limit = WIDTH * budget.limit / total
        drawing.box(limit - 1, top - 4, 2, height + 8, "currentColor")
        drawing.say(0, legend_y + FONT + 6, f"{-budget.free:,}{unit} more than there is (the line)", font_weight="bold")
    return str(drawing)


def times_svg(candidates: Sequence[Candidate], clock: Clock) -> str:
    """A bar a candidate: the terms that add up to its time, and the interval as a line through its end."""
    timed = [each for each in candidates if each.predicted_us is not None]
    drawing = Drawing(f"Where the predicted time ({clock}) of {len(timed)} candidates goes, term by term")
    if not timed:
        return str(drawing)
    names = list(dict.fromkeys(name for each in timed for name in each.terms_us if name not in INSIDE))
    longest = max(max(each.predicted_us.high, time_us(each, clock)) for each in timed if each.predicted_us) or 1.0
    scale, y = (WIDTH - 4) / longest, 0.0
    for rank, each in enumerate(timed, 1):
        drawing.say(0, y + FONT, f"{rank}  {each.label}")
        drawing.say(WIDTH - 2, y + FONT, f"{microseconds(time_us(each, clock))} us", anchor="end")
        x = 0.0
        for index, name in enumerate(names):
            value = each.terms_us.get(name, 0.0)
            title = f"{words(name)}: {microseconds(value)} us"
            drawing.box(x, y + 17, max(value * scale, 0.0), 14, PARTS[index % len(PARTS)], title)
            x += value * scale
        rest = time_us(each, clock) - sum(each.terms_us.get(name, 0.0) for name in names)
        if rest * scale > 0.5:
            drawing.box(x, y + 17, rest * scale, 14, QUIET, f"{words(REST)}: {microseconds(rest)} us")
        if each.predicted_us is not None:
            low, high = each.predicted_us.low * scale, each.predicted_us.high * scale
            drawing.box(low, y + 23.2, high - low, 1.6, "currentColor", "the range assumed for it")
            for end in (low, high):
                drawing.box(end - 0.8, y + 20, 1.6, 8, "currentColor")
        y += 40
    _axis(drawing, y - 2, longest, scale)
    legend_x, y = 0.0, y + 34
    for index, name in enumerate(names):
        drawing.box(legend_x, y - FONT + 2, 11, 11, PARTS[index % len(PARTS)])
        drawing.say(legend_x + 16, y, words(name))
        legend_x += 16 + LETTER * len(words(name)) + 14
    return str(drawing)


def _axis(drawing: Drawing, y: float, longest: float, scale: float) -> None:
    step = 10.0 ** math.floor(math.log10(longest))
    step *= next(factor for factor in (0.2, 0.5, 1.0, 2.0) if longest / (step * factor) <= 5.5)
    drawing.box(0, y, WIDTH - 4, 0.8, "currentColor")
    for tick in range(int(longest / step) + 1):
        x = tick * step * scale
        drawing.box(x, y, 0.8, 4, "currentColor")
        said = f"{tick * step:,.6g}" + (" us" if tick == 0 else "")
        within = min(x, WIDTH - 2 - LETTER * len(said) / 2)
        drawing.say(within, y + 16, said, anchor="start" if tick == 0 else "middle")
