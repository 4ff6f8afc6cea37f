"""The model: what each candidate's parts take, wave by wave, and its time at a clock.

    time = launch + first load + sum over waves of max(tensor, shared port, L2 with HBM, issue) + exposed epilogue

Of one SM, in clocks, are what its tensor cores or CUDA cores multiply, what its shared-memory port carries, and what
its threads must issue; of the whole GPU, in seconds, what L2 and HBM deliver, which do not follow the SMs' clock. What
a wave reads of A and B is that of the real order of tiles (``raster``); what of it L2 still holds is the assumption of
``_hbm_bytes``. What comes near each other delays each other, too little in flight counts, and a cluster whose
blocks load different lines waits (``supply``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from tilewright.dtypes import FP32
from tilewright.planner.candidate import INSIDE
from tilewright.planner.machine import Machine
from tilewright.planner.power import Energy, sustained_clock_hz
from tilewright.planner.raster import Bools, Floats, Ints, Order, lines_read, over
from tilewright.planner.supply import (
    APART,
    AS_ALONE,
    BEGIN_AND_END_US,
    SAME_LINES,
    fourth,
    under_ring,
)
from tilewright.problem import Problem
from tilewright.roofline import peak_tflops, roof_of

TERMS = ("launch", "first_load", *INSIDE, "main_loop", "epilogue")
MOST_WAVES = 16  # of more, as many are computed, evenly spread, and stand for the rest; the last always is


@dataclass(frozen=True)
class Work:
    """What candidates do for one problem: arrays with an entry each. Clocks and bytes are of one block and one tile.

    ``places`` cluster tiles run at the same time. ``ring_clk`` is the least in which the loads of a tile can follow
    each other, by their latency and the stages there are; ``chain`` is how often one after another all that may be in
    flight has to be loaded for a tile, ``turnaround_us`` what each time takes. ``apart`` is the part of what a cluster
    loads of which its blocks load different lines. ``own_bytes`` a block loads from L2 by itself,
    ``shared_bytes`` it receives of what its cluster loads together, at what these cost in time; ``moved_bytes`` are
    both, by the energy they take. ``half_share`` is the part of them that half a tile needs, and ``port_half_clk`` its
    ``port_clk``. ``hidden``: another tile is multiplied during the epilogue. ``flop`` counts what is executed, padding
    included, ``pj_per_flop`` what one costs; the SMs run at most at ``most_hz``. Candidates with the same number in
    ``alike`` have the same ``order``, ``places`` and ``k_alternates``, so that some things need to be found only once.
    """

    order: Order
    cluster: Ints
    places: Ints
    half_tail: Bools
    k_alternates: Bools
    hidden: Bools
    tensor_clk: Floats
    port_clk: Floats
    port_half_clk: Floats
    issue_clk: Floats
    ring_clk: Floats
    chain: Floats
    turnaround_us: Floats
    apart: Floats
    own_bytes: Floats
    shared_bytes: Floats
    moved_bytes: Floats
    half_share: Floats
    epilogue_clk: Floats
    first_clk: Floats
    launch_us: Floats
    flop: Floats
    pj_per_flop: float
    most_hz: float
    alike: Ints | None = None

    @cached_property
    def tiles(self) -> Ints:
        """Cluster tiles of C."""
        return self.order.tiles_m * self.order.tiles_n

    @cached_property
    def waves(self) -> Ints:
        """Rounds in which they are computed, the last one included."""
        return -(-self.tiles // self.places)

    @cached_property
    def last(self) -> Ints:
        """Cluster tiles of the last wave."""
        return self.tiles - (self.waves - 1) * self.places

    @cached_property
    def cut(self) -> Bools:
        """Whether the tiles of the last wave are cut in two: where ``half_tail`` finds it at most half full."""
        return self.half_tail & (2 * self.last <= self.places)


def useful_share(work: Work, problem: Problem) -> Floats:
    """The share of a candidate's places, waves and elements of tiles that has work of the problem."""
    waves = work.waves - np.where(work.cut, 0.5, 0.0)
    share: Floats = problem.m * problem.n / (waves * work.places * (work.order.rows * work.order.cols))
    return share


@dataclass(frozen=True)
class _Waves:
    """Some waves of each candidate, a column each: the last one in the first row, then others spread over the grid.

    ``number`` counts waves from 0, ``weight`` is for how many each stands; 0 where a candidate has fewer.
    ``others`` are all but the last.
    """

    number: Floats
    weight: Floats
    others: Ints

    def total(self, values: Floats) -> Floats:
        """The sum over the waves of each candidate."""
        found: Floats = np.einsum("wc,wc->c", values, self.weight)
        return found


def _waves(count: Ints) -> _Waves:
    others = count - 1
    taken = np.minimum(others, MOST_WAVES)
    nth = np.arange(int(taken.max(initial=0)))[:, None]
    number = np.where(nth < taken, over((2 * nth + 1) * others, np.maximum(2 * taken, 1)), 0)  # middles of equal parts
    weight = np.where(nth < taken, others / np.maximum(taken, 1), 0.0)
    return _Waves(np.vstack([others, number]), np.vstack([np.ones(len(count)), weight]), others)


@dataclass(frozen=True)
class Times:
    """Each candidate's time at a clock, with its terms (``TERMS``): arrays, in microseconds and MHz.

    ``floor_us`` is what no kernel on these SMs can beat: the problem's FLOPs at their peak, its bytes at that of HBM.
    """

    floor_us: float
    us: Floats
    mhz: Floats
    terms_us: Mapping[str, Floats]


@dataclass(frozen=True)
class _Loop:
    """What of candidates their time at a clock follows from: columns of them, and rows of waves as ``_Waves`` has them.

    ``busy_8`` is the eighth power of the clocks of a tile's multiplications, ``supply_8`` that of the seconds of its
    loads. Of ``hidden`` candidates epilogues run under main loops, all but the ``shown`` ones.
    """

    weight: Floats
    busy_8: Floats
    supply_8: Floats
    steps_clk: Floats
    first_clk: Floats
    fixed_s: Floats
    epilogue_clk: Floats
    shown: Floats
    hidden: Ints

    def of(self, chosen: Ints) -> _Loop:
        """Those of some candidates, in ascending order."""
        if len(chosen) == len(self.fixed_s):
            return self
        values = {name: getattr(self, name)[..., chosen] for name in _COLUMNS}
        return _Loop(**values, hidden=np.flatnonzero(np.isin(chosen, self.hidden)))

    def seconds(self, hertz: Floats) -> Floats:
        """All of it, as ``Estimate.at`` adds it up."""
        slots = self.slots(hertz)
        return self.fixed_s + self.first_clk / hertz + self.main(slots) + self.epilogue(hertz, slots)

    def slots(self, hertz: Floats) -> Floats:
        """What each wave takes without its epilogue, at the clock of each."""
        per_hertz = 1 / hertz
        return np.maximum(
            under_ring(self.busy_8 * fourth(np.square(per_hertz)), self.supply_8), self.steps_clk * per_hertz
        )

    def main(self, slots: Floats) -> Floats:
        """Of all waves."""
        total: Floats = np.einsum("wc,wc->c", slots, self.weight)
        return total

    def epilogue(self, hertz: Floats, slots: Floats) -> Floats:
        """What of the epilogues nothing hides.

        Where two teams take turns, one's epilogue runs under the other's main loop; a team comes round every two tiles
        or when it is done with its own, whichever is later. The last one is exposed in any case.
        """
        each = self.epilogue_clk / hertz
        shown = each * self.shown
        if len(self.hidden) and len(slots) > 1:
            under = np.maximum(0.0, each[self.hidden] - slots[1:, self.hidden])
            shown[self.hidden] += np.einsum("wc,wc->c", under, self.weight[1:, self.hidden]) / 2
        return shown


_COLUMNS = tuple(each.name for each in fields(_Loop) if each.name != "hidden")


class Estimate:
    """The model of one family's candidates for a problem on a machine."""

    def __init__(self, work: Work, problem: Problem, machine: Machine) -> None:
        self._work, self._machine = work, machine
        w, c = work, machine.calibration
        self._waves = waves = _waves(w.waves)
        peak = peak_tflops(machine.gpu, roof_of(problem.dtype, tensor_cores=problem.dtype != FP32)) * 1e12
        share = machine.sms / machine.gpu.sm_count
        self._floor_us = 1e6 * max(problem.flops / (peak * share), problem.bytes_moved / machine.gpu.hbm_bytes_per_s)
        reads = _hbm_bytes(w, waves, problem, machine)
        c_bytes = float(problem.bytes_c)
        # In two rows what is one thing of the last wave and another of all others.
        writes = c_bytes / w.tiles * np.stack([w.last, w.places])
        self._hbm_s = reads / c.hbm_read_bytes_per_s
        self._hbm_s += _by_wave(writes / c.hbm_write_bytes_per_s, waves)
        # Of a tile's multiply-adds that a block does in the wave; of half a tile it waits for and issues all K blocks.
        ones = np.ones(len(w.tiles))
        self._part = np.stack([np.where(w.cut, 0.5, 1.0), ones])
        at_once = np.stack([w.last * np.where(w.cut, 2, 1), w.places])
        active = np.minimum(at_once, w.places) * w.cluster
        received = np.stack([np.where(w.cut, w.half_share, 1.0), ones])
        # Where there is one wave, lone blocks that start together ask for the same lines together until they end.
        same = np.where((w.cluster == 1) & (w.waves == 1), AS_ALONE, SAME_LINES)
        self._l2_s = machine.l2_seconds(w.own_bytes * received, w.shared_bytes * received, active, same)
        blocks = (w.tiles * w.cluster).astype(float)
        through_l2 = w.moved_bytes * blocks + c_bytes
        sm = w.flop * blocks * w.pj_per_flop + through_l2 * c.energy_pj_per_l2_byte
        self._energy = Energy(sm * 1e-12, (waves.total(reads) + c_bytes) * c.energy_pj_per_hbm_byte * 1e-12)
        self._port_clk = np.stack([np.where(w.cut, w.port_half_clk, w.port_clk), w.port_clk])
        busy = np.maximum(w.tensor_clk * self._part, self._port_clk)
        alone = fourth(self._l2_s) + fourth(w.chain * w.turnaround_us * 1e-6)
        arrives = fourth(self._hbm_s) + _by_wave(alone, waves)
        self._loop = _Loop(
            weight=waves.weight,
            busy_8=_by_wave(fourth(np.square(busy)), waves),
            supply_8=np.square(arrives) * fourth(np.square(1 + APART * w.apart)),
            steps_clk=np.maximum(w.issue_clk, w.ring_clk),
            first_clk=w.first_clk,
            fixed_s=w.launch_us * 1e-6 + BEGIN_AND_END_US * 1e-6,
            epilogue_clk=w.epilogue_clk,
            shown=self._part[0] + np.where(w.hidden, 0, waves.others),
            hidden=np.flatnonzero(w.hidden),
        )

    @cached_property
    def _burst(self) -> Times:
        return self.at(np.full(len(self._work.tiles), self._work.most_hz))

    def sustained(self) -> Times:
        """At the clock that the power limit leaves each."""
        most, fastest_s = self._work.most_hz, self._burst.us * 1e-6
        limit = sustained_clock_hz(
            self._energy, fastest_s, lambda chosen: self._loop.of(chosen).seconds, most, self._machine.calibration
        )
        return self._burst if np.all(limit == most) else self.at(limit)

    def burst(self) -> Times:
        """At the clock of a cool card, before the limit holds it."""
        return self._burst

    def at(self, hertz: Floats) -> Times:
        """The times and terms at a clock of each candidate."""
        w, loop, waves = self._work, self._loop, self._waves
        both = np.stack([np.ones(len(hertz)), waves.others])  # last waves, and others
        slots = loop.slots(hertz)
        terms = {
            "launch": w.launch_us * 1e-6,
            "first_load": w.first_clk / hertz + BEGIN_AND_END_US * 1e-6,
            "tensor": (w.tensor_clk / hertz * self._part * both).sum(axis=0),
            "shared_port": (self._port_clk / hertz * both).sum(axis=0),
            "l2": (np.maximum(self._l2_s, w.ring_clk / hertz) * both).sum(axis=0),
            "hbm": waves.total(self._hbm_s),
            "issue": w.issue_clk / hertz * w.waves,
            "main_loop": loop.main(slots),
            "epilogue": loop.epilogue(hertz, slots),
        }
        total = terms["launch"] + terms["first_load"] + terms["main_loop"] + terms["epilogue"]
        return Times(self._floor_us, total * 1e6, hertz / 1e6, {name: terms[name] * 1e6 for name in TERMS})


def _by_wave(both: Floats, waves: _Waves) -> Floats:
    """Of values of last waves and of others, a row for each wave."""
    rows = len(waves.number)
    return np.concatenate([both[:1], np.broadcast_to(both[1:], (rows - 1, both.shape[1]))])


def _hbm_bytes(work: Work, waves: _Waves, problem: Problem, machine: Machine) -> Floats:
    """Bytes of A and B that each wave reads from HBM.

    A wave needs its rows of A and columns of B (``lines_read``). What it shares with the wave before was read one wave
    ago, the rest of what was read before about one walk over all of A and B ago. What L2 still has of it is
    ``Machine.l2_hits``. A kernel that walks K backwards in every other tile finds the end of the last walk in any case.
    In all no byte is read less than once.
    """
    if work.alike is not None:  # the same for all those of an order
        _, at, back = np.unique(work.alike, return_index=True, return_inverse=True)
        one = _waves(work.waves[at])
        found: Floats = _order_bytes(
            work.order.take(at), work.places[at], work.k_alternates[at], one, problem, machine
        )[:, back]
        return found
    return _order_bytes(work.order, work.places, work.k_alternates, waves, problem, machine)


def _order_bytes(
    order: Order, places: Ints, k_alternates: Bools, waves: _Waves, problem: Problem, machine: Machine
) -> Floats:
    line = float(problem.k * problem.dtype.itemsize)
    operands = (problem.m + problem.n) * line
    keeps = machine.l2_keeps_bytes
    tiles = order.tiles_m * order.tiles_n
    first = waves.number * places
    if operands <= keeps:
        # Read once: the first wave what it needs, the others an equal part of what is left.
        rows, cols = lines_read(order, np.zeros_like(tiles), np.minimum(places, tiles))
        begun = (rows + cols) * line
        rest = (operands - begun) / np.maximum(waves.others, 1)
        return np.where(waves.number == 0, begun, rest)
    last = np.minimum(first + places, tiles)
    before = np.maximum(first - places, 0)
    rows, cols = lines_read(order, np.stack([first, before, before]), np.stack([last, first, last]))
    needed, needed_before, both = (rows + cols) * line
    common = needed + needed_before - both
    hits = machine.l2_hits(needed)
    near = np.where(k_alternates, np.maximum(hits, np.minimum(1.0, keeps / np.maximum(needed, 1))), hits)
    far = float(machine.l2_hits(np.array(operands)))
    fresh = needed - common
    once = np.minimum(1.0, operands / np.maximum(waves.total(fresh), 1))
    read: Floats = fresh * (once + (1 - once) * (1 - far)) + common * (1 - near)
    scaled: Floats = read * np.maximum(1.0, operands / np.maximum(waves.total(read), 1))
    return scaled


def least_bytes_raster(order: Order, places: Ints) -> Order:
    """The order with the super-rows that read the fewest bytes in the waves of the whole grid.

    A patch of ``places`` tiles reads least when it is square in elements of C, so that a super-row has about
    sqrt(places x cols / rows) tiles. Super-rows are made equally wide, as many as that asks for or one more, along M or
    along N. Of the same bytes the first in this order wins: along M, then the wider.
    """
    tried, parts = [], np.arange(2)[:, None]  # super-rows as many as asked for, and one more
    for along_n in (False, True):
        along, step, other = (
            (order.tiles_n, order.cols, order.rows) if along_n else (order.tiles_m, order.rows, order.cols)
        )
        ideal = np.maximum(1.0, np.sqrt(places * other / step))
        fewest = np.maximum(1, np.floor(along / ideal).astype(np.int64))
        tried.append(-(-along // np.minimum(fewest + parts, along)))
    groups, along_n_of = np.concatenate(tried), np.array([False, False, True, True])
    read = _bytes_of(replace(order, group=groups, along_n=along_n_of[:, None]), places)
    best = np.zeros(len(places), dtype=np.int64)
    least = read[0]
    for at in (1, 2, 3):
        better = read[at] < least * (1 - 1e-12)
        best, least = np.where(better, at, best), np.where(better, read[at], least)
    return replace(order, group=groups[best, np.arange(len(best))], along_n=along_n_of[best])


def _bytes_of(order: Order, places: Ints) -> Floats:
    """Lines of A and B that the waves of a grid need: of up to nine waves, spread evenly over it."""
    tiles = order.tiles_m * order.tiles_n
    total = -(-tiles // places)
    taken = np.minimum(total, 9)
    nth = np.arange(int(taken.max(initial=1)))[:, None, None]
    first = np.where(nth < taken, over((2 * nth + 1) * total, 2 * taken) * places, tiles)
    rows, cols = lines_read(order, first, np.minimum(first + places, tiles))
    found: Floats = (rows + cols).sum(axis=0)
    return found
