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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilewright.dtypes import FP32
from tilewright.planner.candidate import INSIDE
from tilewright.planner.machine import Machine
from tilewright.planner.power import Energy, sustained_clock_hz
from tilewright.planner.raster import Bools, Floats, Ints, Order, lines_read
from tilewright.planner.supply import (
    APART,
    BEGIN_AND_END_US,
    HALF_TILE,
    LINE_BYTES,
    MULTICAST,
    RUN_BYTES,
    SAME_LINES,
    TILES_TURNAROUND_US,
    together,
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
    flight has to be loaded for a tile. ``apart`` is the part of what a cluster loads of which its blocks load different
    lines. ``own_bytes`` a block loads from L2 by itself,
    ``shared_bytes`` it receives of what its cluster loads together, ``l2_bytes`` leave L2 for it; ``half_share`` is the
    part of them that half a tile needs, and ``port_half_clk`` its ``port_clk``. ``hidden``: another tile is multiplied
    during the epilogue. ``flop`` counts what is executed, padding included, ``pj_per_flop`` what one costs; the SMs run
    at most at ``most_hz``.
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
    apart: Floats
    own_bytes: Floats
    shared_bytes: Floats
    l2_bytes: Floats
    half_share: Floats
    epilogue_clk: Floats
    first_clk: Floats
    launch_us: Floats
    flop: Floats
    pj_per_flop: float
    most_hz: float

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
    """Some waves of each candidate, one after another in one array. ``weight``: the waves that each stands for."""

    of: Ints
    number: Ints
    weight: Floats
    starts: Ints
    final: Bools

    def total(self, values: Floats) -> Floats:
        """The sum over the waves of each candidate."""
        return np.add.reduceat(values * self.weight, self.starts)


def _waves(count: Ints) -> _Waves:
    others = count - 1  # all but the last one
    taken = np.minimum(others, MOST_WAVES)
    each = taken + 1
    starts = np.concatenate(([0], np.cumsum(each)[:-1]))
    of = np.repeat(np.arange(len(count)), each)
    nth = np.arange(len(of)) - starts[of]
    final = nth == taken[of]
    sampled = (2 * nth + 1) * others[of] // np.maximum(2 * taken[of], 1)  # the middles of equal parts
    number = np.where(final, others[of], sampled)
    weight = np.where(final, 1.0, others[of] / np.maximum(taken[of], 1))
    return _Waves(of, number, weight, starts, final)


@dataclass(frozen=True)
class Times:
    """Each candidate's time at a clock, with its terms (``TERMS``): arrays, in microseconds and MHz.

    ``floor_us`` is what no kernel on these SMs can beat: the problem's FLOPs at their peak, its bytes at that of HBM.
    """

    floor_us: float
    us: Floats
    mhz: Floats
    terms_us: Mapping[str, Floats]


class Estimate:
    """The model of one family's candidates for a problem on a machine."""

    def __init__(self, work: Work, problem: Problem, machine: Machine) -> None:
        self._work, self._problem, self._machine = work, problem, machine
        w = work
        self._waves = waves = _waves(w.waves)
        peak = peak_tflops(machine.gpu, roof_of(problem.dtype, tensor_cores=problem.dtype != FP32)) * 1e12
        share = machine.sms / machine.gpu.sm_count
        self._floor_us = 1e6 * max(problem.flops / (peak * share), problem.bytes_moved / machine.gpu.hbm_bytes_per_s)
        self._hbm_reads = _hbm_bytes(w, waves, problem, machine)
        c_bytes = float(problem.bytes_c)
        writes = c_bytes * (w.places / w.tiles)[waves.of] * np.where(waves.final, (w.last / w.places)[waves.of], 1.0)
        rate_in, rate_out = machine.calibration.hbm_read_bytes_per_s, machine.calibration.hbm_write_bytes_per_s
        self._hbm_s = self._hbm_reads / rate_in * (1 + RUN_BYTES / LINE_BYTES) + writes / rate_out
        cut = waves.final & w.cut[waves.of]
        # Of a tile's multiply-adds that a block does in the wave; of half a tile it waits for and issues all K blocks.
        self._part = np.where(cut, HALF_TILE, 1.0)
        at_once = np.where(waves.final, (w.last * np.where(w.cut, 2, 1))[waves.of], w.places[waves.of])
        active = np.minimum(at_once, w.places[waves.of]) * w.cluster[waves.of]
        received = np.where(cut, w.half_share[waves.of], 1.0)
        own, shared = w.own_bytes[waves.of] * received, w.shared_bytes[waves.of] * received
        self._l2_s = machine.l2_seconds(own, shared, active, SAME_LINES, MULTICAST)
        blocks = (w.tiles * w.cluster).astype(float)
        self.l2_total_bytes = w.l2_bytes * blocks + c_bytes
        self.hbm_total_bytes = waves.total(self._hbm_reads) + c_bytes
        c = machine.calibration
        sm = w.flop * blocks * w.pj_per_flop + self.l2_total_bytes * c.energy_pj_per_l2_byte
        self._energy = Energy(sm * 1e-12, self.hbm_total_bytes * c.energy_pj_per_hbm_byte * 1e-12)
        of = waves.of
        self._port_clk = np.where(cut, w.port_half_clk[of], w.port_clk[of])
        self._steps_clk = np.maximum(w.issue_clk, w.ring_clk)[of]
        self._busy_clk = np.maximum(w.tensor_clk[of] * self._part, self._port_clk)
        self._covered = w.hidden[waves.of] & ~waves.final  # epilogues under another tile's main loop
        arrives = together([self._l2_s, self._hbm_s, w.chain[of] * TILES_TURNAROUND_US * 1e-6])
        self._supply_s = arrives * (1 + APART * w.apart[of])

    def sustained(self) -> Times:
        """At the clock that the power limit leaves each."""
        limit = sustained_clock_hz(self._energy, self._seconds, self._work.most_hz, self._machine.calibration)
        return self.at(limit)

    def burst(self) -> Times:
        """At the clock of a cool card, before the limit holds it."""
        return self.at(np.full(len(self._work.tiles), self._work.most_hz))

    def _seconds(self, hertz: Floats) -> Floats:
        """``at(hertz).us`` in seconds, without the terms."""
        w, of = self._work, self._waves.of
        slots = self._slots(hertz[of])
        main = self._waves.total(slots)
        return w.launch_us * 1e-6 + self._first_s(hertz) + main + self._epilogue_s(hertz, slots)

    def _slots(self, hertz: Floats) -> Floats:
        """What each wave takes without its epilogue, at the clock of each."""
        return np.maximum(under_ring(self._busy_clk / hertz, self._supply_s), self._steps_clk / hertz)

    def _first_s(self, hertz: Floats) -> Floats:
        return self._work.first_clk / hertz + BEGIN_AND_END_US * 1e-6

    def _epilogue_s(self, hertz: Floats, slots: Floats) -> Floats:
        """What of the epilogues nothing hides.

        Where two teams take turns, one's epilogue runs under the other's main loop; a team comes round every two tiles
        or when it is done with its own, whichever is later. The last one is exposed in any case.
        """
        w, of = self._work, self._waves.of
        each = (w.epilogue_clk / hertz)[of] * self._part
        shown = np.where(self._covered, np.maximum(0.0, each - slots) / 2, each)
        return self._waves.total(shown)

    def at(self, hertz: Floats) -> Times:
        """The times and terms at a clock of each candidate."""
        w, waves = self._work, self._waves
        of = waves.of
        seconds = {
            "tensor": (w.tensor_clk / hertz)[of] * self._part,
            "shared_port": self._port_clk / hertz[of],
            "l2": np.maximum(self._l2_s, (w.ring_clk / hertz)[of]),
            "hbm": self._hbm_s,
            "issue": (w.issue_clk / hertz)[of],
        }
        slots = self._slots(hertz[of])
        terms = {
            "launch": w.launch_us * 1e-6,
            "first_load": self._first_s(hertz),
            **{name: waves.total(value) for name, value in seconds.items()},
            "main_loop": waves.total(slots),
            "epilogue": self._epilogue_s(hertz, slots),
        }
        total = terms["launch"] + terms["first_load"] + terms["main_loop"] + terms["epilogue"]
        return Times(self._floor_us, total * 1e6, hertz / 1e6, {name: terms[name] * 1e6 for name in TERMS})


def _hbm_bytes(work: Work, waves: _Waves, problem: Problem, machine: Machine) -> Floats:
    """Bytes of A and B that each wave reads from HBM.

    A wave needs its rows of A and columns of B (``lines_read``). What it shares with the wave before was read one wave
    ago, the rest of what was read before about one walk over all of A and B ago. What L2 still has of it is
    ``Machine.l2_hits``. A kernel that walks K backwards in every other tile finds the end of the last walk in any case.
    In all no byte is read less than once.
    """
    w, of = work, waves.of
    line = problem.k * problem.dtype.itemsize
    operands = (problem.m + problem.n) * line
    keeps = machine.l2_keeps_bytes
    order = w.order.take(of)
    places, tiles = w.places[of], w.tiles[of]
    first = waves.number * places
    last = np.minimum(first + places, tiles)
    rows, cols = lines_read(order, first, last)
    needed = np.asarray((rows + cols) * float(line), dtype=np.float64)
    if operands <= keeps:
        # Read once: the first wave what it needs, the others an equal part of what is left.
        start = lines_read(w.order, np.zeros_like(w.tiles), np.minimum(w.places, w.tiles))
        begun = (start[0] + start[1]) * float(line)
        rest = (operands - begun) / np.maximum(w.waves - 1, 1)
        return np.where(waves.number == 0, needed, rest[of])
    before = np.maximum(first - places, 0)
    rows_before, cols_before = lines_read(order, before, first)
    rows_both, cols_both = lines_read(order, before, last)
    common = (rows + cols + rows_before + cols_before - rows_both - cols_both) * float(line)
    hits = machine.l2_hits(needed)
    near = np.where(w.k_alternates[of], np.maximum(hits, np.minimum(1.0, keeps / np.maximum(needed, 1))), hits)
    far = machine.l2_hits(np.array(float(operands)))
    fresh = needed - common
    once = np.minimum(1.0, operands / np.maximum(waves.total(fresh), 1))[of]
    read: Floats = fresh * (once + (1 - once) * (1 - far)) + common * (1 - near)
    scaled: Floats = read * np.maximum(1.0, operands / np.maximum(waves.total(read), 1))[of]
    return scaled


def least_bytes_raster(order: Order, places: Ints) -> Order:
    """The order with the super-rows that read the fewest bytes in the waves of the whole grid.

    A patch of ``places`` tiles reads least when it is square in elements of C, so that a super-row has about
    sqrt(places x cols / rows) tiles. Super-rows are made equally wide, as many as that asks for or one more, along M or
    along N. Of the same bytes the first in this order wins: along M, then the wider.
    """
    best: Order | None = None
    least: Floats | None = None
    waves = _waves(np.minimum(-(-(order.tiles_m * order.tiles_n) // places), 9))  # the last stands for a mean one
    for along_n in (False, True):
        along, step, other = (
            (order.tiles_n, order.cols, order.rows) if along_n else (order.tiles_m, order.rows, order.cols)
        )
        ideal = np.maximum(1.0, np.sqrt(places * other / step))
        fewest = np.maximum(1, np.floor(along / ideal).astype(np.int64))
        for extra in (0, 1):
            group = -(-along // np.minimum(fewest + extra, along))
            tried = replace(order, group=group, along_n=np.full(len(group), along_n))
            bytes_read = _bytes_of(tried, places, waves)
            if best is None or least is None:
                best, least = tried, bytes_read
                continue
            better = bytes_read < least * (1 - 1e-12)
            best = replace(
                best,
                group=np.where(better, tried.group, best.group),
                along_n=np.where(better, tried.along_n, best.along_n),
            )
            least = np.where(better, bytes_read, least)
    assert best is not None
    return best


def _bytes_of(order: Order, places: Ints, waves: _Waves) -> Floats:
    """Lines of A and B that the waves of a grid need: of up to nine waves, spread evenly over it."""
    tiles = (order.tiles_m * order.tiles_n)[waves.of]
    total = -(-tiles // places[waves.of])
    taken = np.diff(np.append(waves.starts, len(waves.of)))[waves.of]
    nth = np.arange(len(waves.of)) - waves.starts[waves.of]
    first = (2 * nth + 1) * total // (2 * taken) * places[waves.of]
    rows, cols = lines_read(order.take(waves.of), first, np.minimum(first + places[waves.of], tiles))
    return np.add.reduceat((rows + cols).astype(float), waves.starts)
