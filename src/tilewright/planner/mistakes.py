"""The mistakes that a choice of tile shows: each a function that finds it, with the numbers, and what to do instead.

That somebody holds a tile's intensity against the ridge of HBM cannot be seen in a tile; ``constraints.hbm_bandwidth``
says where the ridge belongs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright import roofline, roofline_tensor
from tilewright.plan_branch import BranchPlan
from tilewright.plan_registers import SPARE_REGISTERS
from tilewright.planner import constraints
from tilewright.planner.candidate import Candidate
from tilewright.planner.choice import FAMILY, Choice
from tilewright.planner.judgement import Finding, Mistake
from tilewright.planner.planning import Planning
from tilewright.planner.rank import TIE
from tilewright.planner.why import time_us
from tilewright.roofline import number
from tilewright.roofline_tensor import WARPGROUP_ROWS

CLEARLY = 0.05  # by what a share must differ to be held against a choice

Found = Mapping[str, Finding]


def mistakes(
    choice: Choice, findings: tuple[Finding, ...], candidate: Candidate | None, planning: Planning
) -> tuple[Mistake, ...]:
    """Those that the choice makes, in the order of ``_MISTAKES``; ``candidate`` is its kernel with its time, if any.

    A kernel that the planner has nothing faster than makes none, whatever its limits cost it.
    """
    if candidate is not None and planning.ranked:
        best, own = (time_us(each, planning.clock) for each in (planning.ranked[0], candidate))
        if own <= best * (1 + TIE):
            return ()
    found = {each.name: each for each in findings}
    looks = _MISTAKES if choice.other is None else _OF_ANY_FAMILY
    made = (look(choice, found, candidate, planning) for look in looks)
    return tuple(each for each in made if each is not None)


def _registers_forgotten(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    broken = next((found[name] for name in ("accumulators", "thread registers") if not found[name].ok), None)
    if broken is None or not found["stages"].ok:
        return None
    bm, bn, _ = choice.tile
    room = choice.registers[1] - SPARE_REGISTERS
    sharing = constraints.sharing(choice.consumers, choice.schedule)
    most = room * sharing * roofline_tensor.WARPGROUP_THREADS
    columns, widest = most // bm // 16 * 16, _widest(choice, planning)
    held = f"with {room} registers a thread for C {sharing * 128} threads hold {number(most)} values: at {bm} rows"
    if widest == columns:
        instead = f"{held} {columns} columns, not {bn}"
    elif widest:
        instead = f"{held} {columns} columns, not {bn}; the widest such kernel has {widest}"
    elif planning.ranked:
        instead = f"{planning.ranked[0].label}: no kernel has {bm} rows for such a team"
    else:
        return None
    return Mistake(
        "sized by shared memory alone", f"{choice.stages} stages fit, but C does not: {broken.sentence}", instead
    )


def _widest(choice: Choice, planning: Planning) -> int:
    """Columns of the widest tile of as many rows that the main kernel has with the same team and cluster; 0 of none."""
    asked = (FAMILY, choice.tile[0], choice.consumers, choice.schedule, choice.cluster)
    return max(
        (
            each.tile[1]
            for each in planning.ranked
            if (each.family, each.tile[0], each.consumers, each.schedule, each.cluster) == asked
        ),
        default=0,
    )


def _epilogue_forgotten(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    stage = roofline.k_step_bytes(*choice.tile, choice.problem.dtype.itemsize)
    gpu = choice.machine.gpu
    alone = constraints.stages_that_fit(int(stage.value), gpu)
    most = constraints.stages_that_fit(int(stage.value), gpu, choice.epilogue_bytes)
    if not constraints.LEAST_STAGES <= most < choice.stages <= alone:
        return None
    if any(each.ok is False for each in found.values() if each.hard and each.name not in ("stages", "kernel")):
        return None  # fewer stages are no kernel either
    return Mistake(
        "all shared memory for stages",
        found["stages"].sentence,
        f"{most} stages leave room for C on its way out, which the next tile's loads need not wait for",
    )


def _bk_for_reuse(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    bm, bn, bk = choice.tile
    itemsize = choice.problem.dtype.itemsize
    row = constraints.swizzle_row(bk, itemsize)
    if row.ok or choice.unfit is not None:
        return None
    least = int(row.limit or 0)
    instead = f"BK = {least}, one row of the swizzle; what shared memory is left takes more stages"
    if choice.other is not None:  # its deeper stages are no mistake where they are faster
        shallow = next((each for each in planning.ranked if each.tile == (bm, bn, least)), None)
        if shallow is None or own is None or time_us(shallow, planning.clock) > time_us(own, planning.clock):
            return None
        instead = (
            f"{shallow.label}: {time_us(shallow, planning.clock):,.1f} us, and {time_us(own, planning.clock):,.1f} us "
            f"with BK = {bk}"
        )
    stage = [number(roofline.k_step_bytes(bm, bn, each, itemsize).value / 1024) for each in (bk, least)]
    return Mistake(
        "BK for reuse",
        f"BK = {bk} changes no byte that is loaded: {roofline.tile_intensity(bm, bn, itemsize)} at any BK; "
        f"only a stage's size, {stage[0]} KB and not {stage[1]}",
        instead,
    )


def _rows_beyond_m(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    rows = found.get("rows of C")
    if rows is None or rows.ok:
        return None
    m, bm, least = choice.problem.m, choice.tile[0], rows.limit or 0
    hbm = found.get("HBM bandwidth")
    bound = ""
    if hbm is not None and hbm.limit and not hbm.ok:
        bound = f"; at such M HBM sets the time, {number(round(hbm.value / hbm.limit, 1))} times that at the roof"
    swapped = ""
    if planning.ranked and isinstance(planning.ranked[0].plan, BranchPlan):
        swapped = f"; or a kernel whose tile has no more rows: {planning.ranked[0].label}"
    return Mistake(
        "a tall tile for few rows",
        f"M is {m} and the tile has {bm} rows: {1 - m / bm:.0%} of what its tensor cores multiply is empty, "
        "whatever they reach",
        f"BM = {least:.0f}{bound}{swapped}",
    )


def _too_few_tiles(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    waves = found.get("waves")
    if waves is None or waves.ok or not planning.ranked:
        return None
    best = planning.ranked[0]
    used = waves.value if own is None else own.wave_efficiency  # half tiles in the last wave use more of it
    if used >= constraints.GOOD_USE or best.wave_efficiency < used + CLEARLY:
        return None
    return Mistake(
        "a tile too large for the waves",
        waves.sentence,
        f"{best.label} makes {number(best.tiles)} tiles, {best.waves} wave{'' if best.waves == 1 else 's'} with "
        f"{best.wave_efficiency:.0%} of the places taken",
    )


def _too_few_stages(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    depth, stages = found["pipeline depth"], found["stages"]
    if depth.ok or not depth.limit or choice.problem.k == 0 or not found["instruction"].ok:
        return None
    step = constraints.stage_clocks(choice.tile, choice.machine.gpu, choice.wgmma_clk)
    needed = math.ceil(depth.limit / step) + 1
    fit = needed <= (stages.limit or 0)
    return Mistake(
        "too few stages",
        depth.sentence,
        f"{needed} stages, which fit"
        if fit
        else f"{needed} stages, of which {stages.limit:.0f} fit: a larger tile works longer on each",
    )


def _too_small(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    l2, hbm = found.get("L2 bandwidth"), found.get("HBM bandwidth")
    if l2 is None or hbm is None or l2.ok or not hbm.ok or not planning.ranked:
        return None
    if own is None or own.terms_us["l2"] <= own.terms_us["tensor"]:
        return None  # nothing loads it; or at the clock that power leaves, L2 keeps up
    best = planning.ranked[0]
    saved = 1 - best.operand_traffic_bytes_multicast / found["operand traffic"].value
    if saved < CLEARLY:
        return None
    return Mistake("a tile too small for L2", l2.sentence, f"{best.label} loads {saved:.0%} less")


def _wrong_way_round(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    bm, bn, _ = choice.tile
    if "edge waste" not in found or bm == bn or bn % WARPGROUP_ROWS:
        return None
    other = next((each for each in planning.ranked if each.tile[:2] == (bn, bm)), None)
    if other is None or (own is not None and time_us(own, planning.clock) < time_us(other, planning.clock)):
        return None  # no kernel has it that way, or none that is faster
    own_waste, turned = found["edge waste"], constraints.edge_waste(choice.problem, bn, bm)
    if own_waste.value < turned.value + CLEARLY:
        return None
    return Mistake(
        "the long side of the tile on the short one of C",
        own_waste.sentence,
        f"{bn} x {bm}, with {turned.value:.1%} beyond the edges",
    )


def _clusters_by_division(choice: Choice, found: Found, own: Candidate | None, planning: Planning) -> Mistake | None:
    clusters = found["clusters"]
    if clusters.ok or clusters.value < 1:
        return None
    return Mistake(
        "clusters counted by division",
        clusters.sentence,
        "clusters of 2 always fit: two SMs that lie together",
    )


_MISTAKES: tuple[Callable[[Choice, Found, Candidate | None, Planning], Mistake | None], ...] = (
    _registers_forgotten,
    _epilogue_forgotten,
    _bk_for_reuse,
    _rows_beyond_m,
    _too_few_tiles,
    _too_few_stages,
    _too_small,
    _wrong_way_round,
    _clusters_by_division,
)
# Those that need no figure of the main kernel's team and stages.
_OF_ANY_FAMILY = (_bk_for_reuse, _too_few_tiles, _too_small, _wrong_way_round)
