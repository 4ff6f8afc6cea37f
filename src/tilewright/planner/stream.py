"""The model of kernels that read one operand, the weights, once, and do little else: their time is that of bytes.

    time = launch + first load + sum over rounds of max(tensor, shared port, L2 with HBM and issue) + the end

L2, HBM and the steps of a ring delay each other where they come near (``supply.together``). HBM delivers at its
bandwidth if enough is on its way: the bytes in flight come back once a *turnaround*, and an SM draws no more than
``supply.DRAW_BYTES_PER_S``. A kernel under a dependent launch starts while the one before ends: then launch and ramp
cost nothing, nor does the first load where the kernel can begin it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from tilewright.dtypes import FP32
from tilewright.planner.candidate import INSIDE, Candidate
from tilewright.planner.machine import Machine
from tilewright.planner.power import Energy, sustained_clock_hz
from tilewright.planner.raster import Bools, Floats, Ints
from tilewright.planner.supply import APART, CROWDED, DRAW_BYTES_PER_S, RUN_BYTES, fourth, together, under_ring
from tilewright.planner.terms import Times
from tilewright.problem import Problem
from tilewright.roofline import held, peak_tflops, roof_of


@dataclass(frozen=True)
class Stream:
    """What candidates do for one problem: arrays with an entry each, clocks, bytes and steps of one block and one tile.

    ``split`` blocks share a tile; ``places`` tiles are computed at the same time on ``reached`` SMs. The last round is
    ``last_part`` of one: 1, or where its tiles are cut to fit, what each place then has of a tile. A block is given
    ``own_bytes`` by L2 and ``shared_bytes`` with its cluster, of them ``weight_bytes`` from HBM. Of a line of a matrix
    ``run_bytes`` are asked for at one time. ``ring_clk`` is as ``terms.Work`` has it. Its loads follow one another:
    ``chain`` times ``turnaround_us``, that of what is in flight. ``ramp_us`` is what the kernel before and this one
    have between them beside the launch, which a dependent launch hides with it; ``end_us`` passes from the last load
    to the end of the grid. ``first_clk`` is what passes from a block's start to its first byte, ``shown_clk`` what of
    it a dependent launch shows. Where a grid ``flows``, an SM begins a tile as soon as it is done with one, with
    others under way. Where it does not, a round after the first costs ``round_us`` in addition. ``same`` is the factor
    on what L2 gives a block of its own (``supply.SAME_LINES``), ``apart`` as ``terms.Work`` has it, ``again_bytes``
    what the last round reads from HBM that was read before. ``flop`` and ``pj_per_flop`` are those of ``terms.Work``.
    """

    tiles: Ints
    split: Ints
    places: Ints
    reached: Ints
    own_bytes: Floats
    shared_bytes: Floats
    weight_bytes: Floats
    run_bytes: int | Ints
    chain: Floats
    turnaround_us: float | Floats
    tensor_clk: Floats
    port_clk: Floats
    issue_clk: Floats
    ring_clk: Floats
    last_part: Floats
    launch_us: Floats
    ramp_us: float
    first_clk: Floats
    end_us: Floats
    end_clk: Floats
    dependent: Bools
    shown_clk: Floats | float
    flows: Bools
    round_us: float | Floats
    same: float | Floats
    apart: Floats
    again_bytes: Floats
    useful_elements: Floats
    flop: Floats
    pj_per_flop: float

    @cached_property
    def rounds(self) -> Ints:
        """Rounds of ``places`` tiles, the last one included."""
        return -(-self.tiles // self.places)

    @cached_property
    def last(self) -> Ints:
        """Tiles of the last round."""
        return self.tiles - (self.rounds - 1) * self.places

    @cached_property
    def worth(self) -> Floats:
        """Whole tiles that all rounds come to."""
        found: Floats = (self.rounds - 1) * self.places + self.last_part * self.last
        return found

    @property
    def useful(self) -> Floats:
        """The share of places, rounds and elements of tiles that has work of the problem."""
        share: Floats = self.useful_elements * self.worth / ((self.rounds - 1 + self.last_part) * self.places)
        return share


@dataclass(frozen=True)
class _Loop:
    """What of candidates their time at a clock follows from: columns of them, and a row for each kind of round.

    ``busy_8`` is the eighth power of the clocks of a round's multiplications, ``bytes_4`` the sum of the fourth powers
    of what L2 and HBM take, ``steps_4`` that of the clocks of the ring's steps.
    """

    weight: Floats
    busy_8: Floats
    bytes_4: Floats
    steps_clk: Floats
    steps_4: Floats
    apart_8: Floats
    first_clk: Floats
    end_clk: Floats
    fixed_s: Floats

    def of(self, chosen: Ints) -> _Loop:
        """Those of some candidates, in ascending order."""
        if len(chosen) == len(self.fixed_s):
            return self
        return _Loop(**{each.name: getattr(self, each.name)[..., chosen] for each in fields(self)})

    def seconds(self, hertz: Floats) -> Floats:
        """All of it, as ``StreamEstimate.at`` adds it up."""
        return self.fixed_s + (self.first_clk + self.end_clk) / hertz + self.main(hertz)

    def main(self, hertz: Floats) -> Floats:
        """Of all rounds: what an SM multiplies, or what L2 and HBM deliver meanwhile and its steps let them."""
        by_4 = fourth(1 / hertz)
        supplied_8 = np.square(self.bytes_4 + self.steps_4 * by_4) * self.apart_8
        total: Floats = (under_ring(self.busy_8 * np.square(by_4), supplied_8) * self.weight).sum(axis=0)
        return total


class StreamEstimate:
    """The times of one family's candidates for a problem on a machine."""

    def __init__(self, stream: Stream, problem: Problem, machine: Machine) -> None:
        self._s, self._machine = stream, machine
        s, c = stream, machine.calibration
        peak = peak_tflops(machine.gpu, roof_of(problem.dtype, tensor_cores=problem.dtype != FP32)) * 1e12
        share = machine.sms / machine.gpu.sm_count
        self._floor_us = 1e6 * max(problem.flops / (peak * share), problem.bytes_moved / machine.gpu.hbm_bytes_per_s)
        reads = problem.bytes_moved - problem.bytes_c
        whole_s = reads / c.hbm_read_bytes_per_s * (1 + RUN_BYTES / s.run_bytes)
        whole_s = whole_s + problem.bytes_c / c.hbm_write_bytes_per_s
        # Two kinds of rounds, one a row: those in which all places have a tile, and the last.
        tiles = np.stack([np.minimum(s.places, s.tiles), s.last])
        weight = np.stack([s.rounds - 1.0, s.last_part])
        many = s.flows & (s.tiles > s.places)
        flowing = s.tiles / s.places
        weight = np.where(many, np.stack([flowing, np.zeros(len(s.tiles))]), weight)
        blocks = tiles * s.split
        active = np.minimum(blocks, s.reached)
        self._resident = -(-blocks // active)  # of the SM that has most
        one = machine.l2_seconds(s.own_bytes, s.shared_bytes, active, s.same)
        self._l2_s = self._resident * one
        last_s = s.again_bytes / c.hbm_read_bytes_per_s / s.last_part
        again = np.stack([np.zeros(len(s.tiles)), last_s])
        hbm = [
            whole_s * tiles / s.worth + again,
            self._resident * s.weight_bytes / DRAW_BYTES_PER_S,
            np.broadcast_to(s.chain * s.turnaround_us * 1e-6, tiles.shape),
        ]
        self._hbm_s = together(hbm) * self._crowd(blocks)
        # A flowing grid's last round finds places empty. Begun all at once, its blocks would take what their loads have
        # to wait for, one after another; evenly, nothing beside their share: half of the first, as far as it is empty.
        latest_s = np.minimum(s.chain * s.turnaround_us * 1e-6, self._hbm_s[0])
        tail_s = np.where(many, latest_s / 2 * (s.rounds - flowing), 0.0)
        shown = np.where(s.dependent, 0.0, 1.0)
        self._launch_s = (s.launch_us + s.ramp_us) * 1e-6 * shown
        self._end_s = (s.end_us + (s.rounds - 1) * s.round_us) * 1e-6 + tail_s
        self._most_hz = c.burst_clock_mhz * 1e6
        steps_clk = np.maximum(self._resident * s.issue_clk, s.ring_clk)
        busy = self._resident * np.maximum(s.tensor_clk, s.port_clk)
        self._loop = _Loop(
            weight=weight,
            busy_8=fourth(np.square(busy)),
            bytes_4=fourth(self._l2_s) + fourth(self._hbm_s),
            steps_clk=steps_clk,
            steps_4=fourth(steps_clk),
            apart_8=fourth(np.square(1 + APART * s.apart)),
            first_clk=np.where(s.dependent, s.shown_clk, s.first_clk),
            end_clk=s.end_clk,
            fixed_s=self._launch_s + self._end_s,
        )
        executed = s.flop * s.worth * s.split * s.pj_per_flop
        through_l2 = (s.own_bytes + s.shared_bytes) * s.worth * s.split + problem.bytes_c
        self._energy = Energy(
            (executed + through_l2 * c.energy_pj_per_l2_byte) * 1e-12,
            np.full(len(s.tiles), problem.bytes_moved * c.energy_pj_per_hbm_byte * 1e-12),
        )

    def _crowd(self, blocks: Ints) -> Floats:
        """By how much a round takes longer whose blocks could be on fewer SMs than there are, in a dependent launch."""
        s = self._s
        per_sm = s.places * s.split / np.maximum(s.reached, 1)
        filled = blocks / (s.places * s.split)
        uneven = s.dependent & (per_sm > 1) & (filled > 0.5)
        crowd: Floats = np.where(uneven, 1 + CROWDED * (1 / filled - 1), 1.0)
        return crowd

    @cached_property
    def _burst(self) -> Times:
        return self.at(np.full(len(self._s.tiles), self._most_hz))

    def sustained(self) -> Times:
        """At the clock that the power limit leaves each."""
        most, fastest_s = self._most_hz, self._burst.us * 1e-6
        limit = sustained_clock_hz(
            self._energy, fastest_s, lambda chosen: self._loop.of(chosen).seconds, most, self._machine.calibration
        )
        return self._burst if np.all(limit == most) else self.at(limit)

    def burst(self) -> Times:
        """At the clock of a cool card, before the limit holds it."""
        return self._burst

    def at(self, hertz: Floats) -> Times:
        """The times and terms at a clock of each candidate."""
        s, loop, resident = self._s, self._loop, self._resident
        parts = {
            "tensor": resident * s.tensor_clk / hertz,
            "shared_port": resident * s.port_clk / hertz,
            "l2": self._l2_s,
            "hbm": self._hbm_s,
            "issue": loop.steps_clk / hertz,
        }
        terms = {
            "launch": self._launch_s,
            "first_load": loop.first_clk / hertz,
            **{name: (parts[name] * loop.weight).sum(axis=0) for name in INSIDE},
            "main_loop": loop.main(hertz),
            "epilogue": self._end_s + s.end_clk / hertz,
        }
        total = terms["launch"] + terms["first_load"] + terms["main_loop"] + terms["epilogue"]
        return Times(self._floor_us, total * 1e6, hertz / 1e6, {name: value * 1e6 for name, value in terms.items()})


def source(term: str, candidate: Candidate, said: str, fixed_us: float) -> str:
    """What makes a term of a kernel of this model, where ``said`` is what makes it of any tile."""
    dependent = candidate.plan is not None and candidate.plan.dependent
    if term == "launch":
        start = ", and the kernel's own start" if fixed_us else ""
        return f"{said}, under the kernel before" if dependent else said + start
    if term == "epilogue" and fixed_us:
        return f"{said}, and the kernel's own end"
    return said


def latency_source(term: str, candidate: Candidate, said: str, fixed_us: float) -> str:
    """The same of a kernel that reads the weights once and whose first load is a latency, its bytes in the loop."""
    if term == "hbm":
        return f"weights once, {candidate.stages} x {held(candidate.stage_bytes)} of K at a time"
    if term == "first_load":
        return "a latency of HBM" if candidate.terms_us[term] else "under the kernel before"
    return source(term, candidate, said, fixed_us)
