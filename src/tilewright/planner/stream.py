"""The model of kernels that read one operand, the weights, once, and do little else: their time is that of bytes.

    time = launch + first load + sum over rounds of max(tensor, shared port, L2 with HBM and issue) + the end

L2, HBM and the steps of a ring delay each other where they come near (``supply.together``). HBM delivers at its
bandwidth if enough is on its way: the bytes in flight come back once a *turnaround*, and an SM draws no more than
``supply.DRAW_BYTES_PER_S``. A kernel under a dependent launch starts while the one before ends: then launch and ramp
cost nothing, nor does the first load where the kernel can begin it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.dtypes import FP32
from tilewright.planner.candidate import INSIDE
from tilewright.planner.machine import Machine
from tilewright.planner.power import Energy, sustained_clock_hz
from tilewright.planner.raster import Bools, Floats, Ints
from tilewright.planner.supply import (
    APART,
    CROWDED,
    DRAW_BYTES_PER_S,
    MULTICAST,
    ROUNDED,
    RUN_BYTES,
    together,
    under_ring,
)
from tilewright.planner.terms import Times
from tilewright.problem import Problem
from tilewright.roofline import peak_tflops, roof_of


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
        self._weight = np.stack([s.rounds - 1.0, s.last_part])
        many = s.flows & (s.tiles > s.places)
        flowing = s.tiles / s.places + ROUNDED * (s.rounds - s.tiles / s.places)
        self._weight = np.where(many, np.stack([flowing, np.zeros(len(s.tiles))]), self._weight)
        blocks = tiles * s.split
        active = np.minimum(blocks, s.reached)
        self._resident = -(-blocks // active)  # of the SM that has most
        one = machine.l2_seconds(s.own_bytes, s.shared_bytes, active, s.same, MULTICAST)
        self._l2_s = self._resident * one
        last_s = s.again_bytes / c.hbm_read_bytes_per_s / s.last_part
        again = np.stack([np.zeros(len(s.tiles)), last_s])
        hbm = [
            whole_s * tiles / s.worth + again,
            self._resident * s.weight_bytes / DRAW_BYTES_PER_S,
            np.broadcast_to(s.chain * s.turnaround_us * 1e-6, tiles.shape),
        ]
        self._hbm_s = together(hbm) * self._crowd(blocks)
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

    def sustained(self) -> Times:
        """At the clock that the power limit leaves each."""
        most = self._machine.calibration.burst_clock_mhz * 1e6
        return self.at(sustained_clock_hz(self._energy, self._seconds, most, self._machine.calibration))

    def burst(self) -> Times:
        """At the clock of a cool card, before the limit holds it."""
        most = self._machine.calibration.burst_clock_mhz * 1e6
        return self.at(np.full(len(self._s.tiles), most))

    def _parts(self, hertz: Floats) -> dict[str, Floats]:
        s = self._s
        return {
            "tensor": self._resident * s.tensor_clk / hertz,
            "shared_port": self._resident * s.port_clk / hertz,
            "l2": self._l2_s,
            "hbm": self._hbm_s,
            "issue": np.maximum(self._resident * s.issue_clk, s.ring_clk) / hertz,
        }

    def _main(self, parts: dict[str, Floats]) -> Floats:
        """Of a round: what an SM multiplies, or what L2 and HBM deliver meanwhile and its steps let them."""
        busy = np.maximum(parts["tensor"], parts["shared_port"])
        supplied = together([parts["l2"], parts["hbm"], parts["issue"]]) * (1 + APART * self._s.apart)
        return under_ring(busy, supplied)

    def _around(self, hertz: Floats) -> tuple[Floats, Floats, Floats]:
        """Launch, first load and end."""
        s = self._s
        shown = np.where(s.dependent, 0.0, 1.0)
        first = np.where(s.dependent, s.shown_clk, s.first_clk) / hertz
        return (s.launch_us + s.ramp_us) * 1e-6 * shown, first, self._end(hertz)

    def _end(self, hertz: Floats) -> Floats:
        s = self._s
        return (s.end_us + (s.rounds - 1) * s.round_us) * 1e-6 + s.end_clk / hertz

    def _total(self, values: Floats) -> Floats:
        total: Floats = (values * self._weight).sum(axis=0)
        return total

    def _seconds(self, hertz: Floats) -> Floats:
        main = self._total(self._main(self._parts(hertz)))
        return sum(self._around(hertz), start=main)

    def at(self, hertz: Floats) -> Times:
        """The times and terms at a clock of each candidate."""
        parts = self._parts(hertz)
        launch, first, end = self._around(hertz)
        terms = {
            "launch": launch,
            "first_load": first,
            **{name: self._total(parts[name]) for name in INSIDE},
            "main_loop": self._total(self._main(parts)),
            "epilogue": end,
        }
        total = launch + first + terms["main_loop"] + end
        return Times(self._floor_us, total * 1e6, hertz / 1e6, {name: value * 1e6 for name, value in terms.items()})
