"""The pictures of a plan: the real order of the tiles, honest scales, budgets that add up, drawings in order."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import SMS, candidate, planning, tensor_plan
from rich.console import Console, RenderableType

import tilewright
from tilewright.plan_registers import REGISTER_FILE
from tilewright.plan_tensor import SHARED_LIMIT
from tilewright.planner.candidate import Candidate, Raster
from tilewright.problem import Problem
from tilewright.report.palette import PARTS, contrast, ink_on, ramp
from tilewright.report.plan_figures import TileMap, register_budget, shared_budget, tile_map, tiles_of
from tilewright.report.plan_html import planning_html
from tilewright.report.plan_picture import budget_bar, most_cells, tile_picture
from tilewright.report.plan_svg import MOST_CELLS, budget_svg, tiles_svg, times_svg, waves_svg

EVERY = (10**6, 10**6)  # cells down and across: one a tile
SVG = "{http://www.w3.org/2000/svg}"


def drawn(shown: RenderableType, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, highlight=False)
    console.print(shown)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def walked(
    tiles: tuple[int, int], cluster: tuple[int, int], raster: Raster, clusters: int
) -> dict[tuple[int, int], int]:
    """The wave of each tile of C, item after item as ``tw::TileOrder`` in cuda/tw/tile_order.cuh numbers them."""
    tiles_m, tiles_n = -(-tiles[0] // cluster[0]), -(-tiles[1] // cluster[1])
    along, across = (tiles_n, tiles_m) if raster.along == "n" else (tiles_m, tiles_n)
    found = {}
    for item in range(tiles_m * tiles_n):
        first, in_group = item // (raster.group * across) * raster.group, item % (raster.group * across)
        width = min(along - first, raster.group)
        p, q = first + in_group % width, in_group // width
        row, column = (q, p) if raster.along == "n" else (p, q)
        for rank_m in range(cluster[0]):
            for rank_n in range(cluster[1]):
                place = row * cluster[0] + rank_m, column * cluster[1] + rank_n
                if place[0] < tiles[0] and place[1] < tiles[1]:
                    assert place not in found
                    found[place] = item // clusters
    return found


@given(
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]),
    st.builds(Raster, st.integers(1, 12), st.sampled_from(["m", "n"])),
    st.integers(1, 140),
)
def test_every_tile_has_the_wave_of_a_walk(
    tiles: tuple[int, int], cluster: tuple[int, int], raster: Raster, at_once: int
) -> None:
    problem = Problem(tiles[0] * 128 - 5, tiles[1] * 256 - 7, 64, "bf16")
    made = replace(candidate(problem, tensor_plan()), cluster=cluster, raster=raster)
    shown = tile_map(made, problem, at_once, most=EVERY)
    clusters = max(1, at_once // (cluster[0] * cluster[1]))
    expected = walked(tiles, cluster, raster, clusters)
    assert {place: int(shown.cells[place]) for place in expected} == expected
    assert shown.cells.size == shown.tiles == len(expected)
    assert not shown.scaled
    assert shown.waves == max(expected.values()) + 1
    grid = -(-tiles[0] // cluster[0]) * -(-tiles[1] // cluster[1])
    assert shown.busy == (grid - (shown.waves - 1) * clusters) * cluster[0] * cluster[1]


@given(st.integers(1, 2**31 - 1025), st.integers(1, 2**31 - 1025), st.integers(4, 60), st.integers(8, 112))
def test_a_grid_of_any_size_has_its_scale(m: int, n: int, down: int, across: int) -> None:
    problem = Problem(m, n, 8, "bf16")
    made = candidate(problem, tensor_plan())
    shown = tile_map(made, problem, SMS, most=(down, across))
    assert shown.cells.shape[0] <= down
    assert shown.cells.shape[1] <= across
    assert int(shown.tiles_of_cells.sum()) == shown.tiles == made.tiles
    assert shown.scaled == (shown.cells.size < shown.tiles)
    row, column = shown.cells.shape[0] // 2, shown.cells.shape[1] // 2
    middle = [
        min(cell * step + step // 2, size - 1)
        for cell, step, size in ((row, shown.step_down, shown.down), (column, shown.step_across, shown.across))
    ]
    assert shown.cells[row, column] == wave_at(middle[0], middle[1], shown, made)


def wave_at(row: int, column: int, shown: TileMap, made: Candidate) -> int:
    """The wave of one tile, counted by hand: whole super-rows before it, then columns of this one, then rows."""
    cluster_m, cluster_n = made.cluster
    down, across = -(-shown.down // cluster_m), -(-shown.across // cluster_n)
    p, q = row // cluster_m, column // cluster_n
    before = p // made.raster.group * made.raster.group
    width = min(made.raster.group, down - before)
    return (before * across + q * width + p - before) // (SMS // (cluster_m * cluster_n))


def test_the_last_wave_is_cut_where_it_is_at_most_half_full() -> None:
    problem = Problem(8192, 8192, 8192, "bf16", b_layout="column")
    half = candidate(problem, tensor_plan(256, 192, half_tail=True, stages=3))
    shown = tile_map(half, problem, SMS, most=EVERY)  # 32 x 43 tiles, 16 x 43 clusters of 2: 688 over 66
    assert (shown.waves, shown.busy, shown.cut) == (11, 2 * 28 * 2, True)
    whole = tile_map(replace(half, tail="whole"), problem, SMS, most=EVERY)
    assert (whole.waves, whole.busy, whole.cut) == (11, 28 * 2, False)
    assert any("112 of 132: 20 idle, cut in halves" in line for line in drawn(tile_picture(shown, "", 80)))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("size", [(640, 7168), (8192, 8192), (16, 65536), (100_000, 64), (1, 1), (2**30, 2**30)])
def test_the_terminal_s_picture_fits_and_says_its_scale(width: int, size: tuple[int, int]) -> None:
    problem = Problem(*size, 512, "bf16")
    made = candidate(problem, tensor_plan())
    shown = tiles_of(made, problem, SMS, most=most_cells(width))
    lines = drawn(tile_picture(shown, made.label, width), width)
    assert max(map(len, lines)) <= width
    assert f"= {shown.tiles:,}" in " ".join(" ".join(lines[:2]).split())
    scale = f"a cell is {shown.step_down:,} x {shown.step_across:,} tiles" if shown.scaled else "a cell is a tile"
    assert sum(scale in line for line in lines) == 1
    cells = [line for line in lines if re.fullmatch(r" {4}[1-9a-zA-Z]+", line) and " " not in line.strip()]
    assert len(cells) >= shown.cells.shape[0]
    assert len(lines) <= 24 + (8 if width >= 80 else 11)


def test_signs_of_the_picture_are_the_waves() -> None:
    problem = Problem(640, 7168, 7168, "bf16")
    lines = drawn(tile_picture(tiles_of(candidate(problem, tensor_plan()), problem, SMS, most=most_cells(80)), "", 80))
    signs = Counter("".join(line.strip() for line in lines if re.fullmatch(r" {4}[12]+", line)))
    assert signs == {"1": 2 * 5 * 22, "2": 2 * 5 * 6}  # 66 clusters are 3 x 22, of 3 x 28; two letters a tile
    assert any(re.search(r"wave 1 +█+ +132 of 132: all busy", line) for line in lines)
    assert any("36 of 132: 96 idle" in line for line in lines)


SHAPES = ((768, 3072, 7168), (2560, 1280, 16384), (256, 256, 16384), (640, 7168, 7168), (64, 18944, 3584))


@pytest.mark.parametrize("shape", [*SHAPES, (1, 14336, 4096)])
def test_pictures_show_what_is_said_in_numbers(shape: tuple[int, int, int]) -> None:
    """Of the first candidate of each family: tiles, waves, and how much of the places has work."""
    asked = tilewright.plan(*shape, layout="rc", gpu="h200")
    firsts = {(each.family, each.split > 1): each for each in reversed(asked.ranked[:500])}
    for each in firsts.values():
        shown = tiles_of(each, asked.problem, SMS, most=EVERY)
        assert (shown.tiles, shown.waves) == (each.tiles, each.waves), each.label
        odd, others = shown.busy * shown.length, (shown.waves - 1) * shown.at_once
        busy = (odd + others) / (shown.at_once * (shown.waves - 1 + shown.length))
        # Of stream-K some blocks have one K block less than others, which no picture shows.
        uneven = 64 / (shown.length * shape[2]) if each.family == "streamk" else 0
        assert each.wave_efficiency == pytest.approx(busy, abs=1e-9 + uneven), each.label
        text = " ".join(" ".join(drawn(tile_picture(shown, each.label, 80))).split())
        said = f"{shown.waves:,} waves" if shown.waves > 1 else "one wave"
        assert f"{shown.at_once:,} blocks at a time: {said}" in text
        assert shown.said in text
        assert f"{shown.busy:,} of {shown.at_once:,}" in text
        assert f"{shown.at_once:,} blocks at a time" in texts(waves_svg(shown))
        assert str(each.raster) in planning_html(replace(asked, ranked=(each,)))


def test_the_shared_wave_of_stream_k_is_the_first_and_short() -> None:
    asked = tilewright.plan(768, 3072, 7168, gpu="h200")
    made = next(each for each in asked.ranked if each.family == "streamk" and each.tile[:2] == (128, 128))
    shown = tiles_of(made, asked.problem, SMS, most=EVERY)
    assert Counter(shown.cells.flat) == {0: 12, 1: 132}  # 72 cluster tiles: 66 whole, K of 6 shared by all before
    lines = drawn(tile_picture(shown, made.label, 80))
    assert " ".join(" ".join(lines).split()).count(
        "in wave 1 all share the K of 6 cluster tiles: each cluster has 11 (12 clusters) or 10 K blocks; a tile has 112"
    )
    bars = [line.strip().split(" ", 2) for line in lines if "of 132:" in line]
    assert [bar[1] for bar in bars] == ["1", "2"]
    assert "all busy, 9.8% as long" in bars[0][2]
    root = ET.fromstring(waves_svg(shown))
    widths = {
        title: float(box.attrib["width"])
        for box in root.iter(f"{SVG}rect")
        if (title := box.findtext(f"{SVG}title")) is not None
    }
    assert widths["wave 1: 132 of 132 busy"] == pytest.approx(11 / 112 * (widths["wave 2: all 132 busy"] + 1), rel=0.01)
    assert "wave 1: 132 busy, 0 idle, 9.8% as long as a whole one" in texts(waves_svg(shown))


# budgets


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"bm": 256, "bn": 192, "stages": 3}, {"bn": 192, "stages": 5, "pingpong": True},
        {"bm": 64, "consumers": 1, "consumer_registers": 248, "bn": 64, "stages": 8}, {"bm": 256, "bn": 128},
    ],
)  # fmt: skip
def test_budgets_are_all_there_is(changes: dict[str, Any]) -> None:
    made = candidate(planning().problem, tensor_plan(**changes))
    shared, registers = shared_budget(made), register_budget(made)
    assert sum(part.size for part in shared.all_parts) == shared.limit == SHARED_LIMIT == 227 * 1024
    assert sum(part.size for part in registers.all_parts) == registers.limit == REGISTER_FILE == 65_536
    assert shared.limit - shared.free == made.shared_bytes
    producer, consumer = made.register_split or (0, 0)
    assert registers.limit - registers.free == 128 * (producer + made.consumers * consumer)
    assert registers.parts[0].size == 128 * made.consumers * made.accumulator_registers_per_thread


@pytest.mark.parametrize("kind", [{"layout": "rc"}, {"dtype": "fp32"}, {"ldb": 4097}])
def test_every_candidate_of_the_planner_fits_its_budgets(kind: dict[str, Any]) -> None:
    for each in tilewright.plan(4096, 4096, 4096, gpu="h200", **kind).ranked[:60]:
        for budget, limit in ((shared_budget(each), 232_448), (register_budget(each), 65_536)):
            assert budget.free >= 0
            assert sum(part.size for part in budget.all_parts) == limit


def test_registers_that_are_not_known_are_not_called_free() -> None:
    """Of threads that load and multiply only the accumulators are known before the kernel is compiled."""
    decode = tilewright.plan(1, 4096, 4096, layout="rc", gpu="h200").pick
    assert decode.register_split is None
    rest = register_budget(decode).all_parts[-1]
    assert (rest.name, rest.rest) == ("their threads' other values, and free", True)
    assert "their threads' other values, and free" in "\n".join(drawn(budget_bar(register_budget(decode), 120), 120))
    assert register_budget(planning().pick).all_parts[-1].name == "free"
    assert shared_budget(decode).all_parts[-1].name == "free"


@pytest.mark.parametrize("tokens", [8, 16, 640])
def test_the_accumulators_of_a_swapped_tile_are_those_of_the_warps_that_multiply(tokens: int) -> None:
    ranked = tilewright.plan(tokens, 8192, 8192, layout="rc", gpu="h200").ranked
    swapped = next(each for each in ranked if each.family == "swapab")
    bm, bn, _ = swapped.tile
    held = register_budget(swapped).parts[0]
    assert (held.name, held.size) == ("accumulators of a block", bm * bn)


def test_letters_lie_within_their_picture() -> None:
    """Of one row of tiles, whose picture is lower than the name of its axis; of a time axis with a tick at its end."""
    asked = tilewright.plan(1, 128, 64, layout="rc", gpu="h200")
    for picture in (
        tiles_svg(tiles_of(asked.pick, asked.problem, SMS, most=MOST_CELLS), ""),
        times_svg(asked.ranked[:5], "sustained"),
    ):
        root = ET.fromstring(picture)
        _, _, width, height = (float(each) for each in root.attrib["viewBox"].split())
        for element in root.iter(f"{SVG}text"):
            assert element.text
            long = 6.7 * len(element.text)
            x, y = float(element.attrib["x"]), float(element.attrib["y"])
            at, room = (y, height) if "transform" in element.attrib else (x, width)  # turned, it reaches up and down
            first = at - {"start": 0, "middle": 0.5, "end": 1}[element.attrib["text-anchor"]] * long
            assert first >= -0.1, element.text
            assert first + long <= room + 0.1, element.text


def test_a_budget_that_is_exceeded_says_by_how_much() -> None:
    rejected = planning().rejected[0]  # 256x256x64 in 4 stages
    shared, registers = shared_budget(rejected), register_budget(rejected)
    assert shared.free == 232_448 - 4 * 65_536
    assert "29,696 B too few" in drawn(budget_bar(shared, 80))[0]
    assert registers.free == 65_536 - 2 * 128 * 256 - 128 * 40
    assert "29,696 B more than there is (the line)" in texts(budget_svg(shared))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_in_a_terminal_is_full_and_its_parts_are_named(width: int) -> None:
    made = planning().pick
    for budget in (shared_budget(made), register_budget(made)):
        heading, bar, *legend = drawn(budget_bar(budget, width), width)
        assert f"{budget.limit:,}" in heading
        assert len(bar) == width - 4
        for part in budget.all_parts:
            assert f"{part.name} {part.size:,} ({part.size / budget.limit:.1%})" in "   ".join(legend).replace("\n", "")
        assert max(map(len, legend)) <= width


# SVG


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag == f"{SVG}text"]


@pytest.mark.parametrize(
    "size", [(4096, 4096), (640, 7168), (16, 4096), (1, 1), (8192, 8192), (65536, 65536), (1, 10**6)]
)
def test_the_squares_of_the_drawing_are_the_plan_s_tiles(size: tuple[int, int]) -> None:
    problem = Problem(*size, 512, "bf16")
    made = candidate(problem, tensor_plan())
    shown = tiles_of(made, problem, SMS, most=MOST_CELLS)
    paths = [element for element in ET.fromstring(tiles_svg(shown, made.label)) if element.tag == f"{SVG}path"]
    assert sum(int(path.attrib["data-tiles"]) for path in paths) == made.tiles
    assert [int(path.attrib["data-wave"]) - 1 for path in paths] == sorted({int(wave) for wave in shown.cells.flat})
    for path in paths:
        assert path.attrib["d"].count("M") == int(path.attrib["data-cells"])  # a square a cell
    if not shown.scaled:
        assert all(path.attrib["data-cells"] == path.attrib["data-tiles"] for path in paths)
        assert len(paths) == shown.waves


def test_tiles_that_are_cut_are_drawn_as_halves() -> None:
    problem = Problem(2048, 16896, 512, "bf16", b_layout="column")
    made = candidate(problem, tensor_plan(256, 192, half_tail=True, stages=3))  # 8 x 88: 704 tiles, 44 in the last wave
    shown = tiles_of(made, problem, SMS, most=MOST_CELLS)
    assert (shown.cut, shown.waves) == (True, 6)
    last = [element for element in ET.fromstring(tiles_svg(shown, "")) if element.tag == f"{SVG}path"][-1]
    assert last.attrib["data-tiles"] == "44"
    assert last.attrib["d"].count("M") == 88


def test_drawings_are_labelled_and_stay_inside() -> None:
    asked = planning()
    shown = tiles_of(asked.pick, asked.problem, SMS, most=MOST_CELLS)
    drawings = {
        "tiles": tiles_svg(shown, "a & b <c>"),
        "waves": waves_svg(shown),
        "shared": budget_svg(shared_budget(asked.pick)),
        "registers": budget_svg(register_budget(asked.pick)),
        "times": times_svg(asked.ranked, "sustained"),
    }
    for name, svg in drawings.items():
        root = ET.fromstring(svg)
        assert root.attrib["aria-label"], name
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for box in root.iter(f"{SVG}rect"):
            x, y, wide, tall = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            assert min(x, y, wide, tall) >= 0, name
            assert x + wide <= width + 0.2, name
            assert y + tall <= height, name
    assert "a & b <c>" in ET.fromstring(drawings["tiles"]).attrib["aria-label"]
    assert {"N, tiles across", "M, tiles down", "32", "16"} <= set(texts(drawings["tiles"]))
    assert {"132 blocks at a time", "wave 4: 116 busy, 16 idle"} <= set(texts(drawings["waves"]))
    assert {"launch", "main loop", "epilogue", "0 us"} <= set(texts(drawings["times"]))
    assert any("4 stages 196,608 B (84.6%)" in text for text in texts(drawings["shared"]))


@given(st.floats(1e-3, 1e9))
def test_the_time_axis_has_a_few_round_ticks(longest: float) -> None:
    made = planning().pick
    times = made.predicted_us
    assert times is not None
    slow = replace(
        made, terms_us={"main_loop": longest}, predicted_us=replace(times, sustained=longest, low=longest, high=longest)
    )
    ticks = [text for text in texts(times_svg([slow], "sustained")) if re.fullmatch(r"[\d.,e+-]+( us)?", text)]
    assert 2 <= len([text for text in ticks if not text.endswith(" us") or text == "0 us"]) <= 7


def test_colours_can_be_read() -> None:
    for steps in (1, 2, 5, 16, 61):
        for step in range(steps):
            colour = ramp(step, steps)
            assert contrast(colour, ink_on(colour)) >= 4.5
    assert ramp(0, 2) != ramp(1, 2)
    for colour in PARTS:
        for page in ((255, 255, 255), (20, 23, 26)):
            assert contrast(colour, page) > 1.9
