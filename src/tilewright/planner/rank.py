"""From what the families offer to one order, and the regime of the first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.planner.candidate import Candidate
from tilewright.planner.family import Offer
from tilewright.planner.lazy import LazySequence
from tilewright.planner.planning import Clock, Regime
from tilewright.planner.raster import Floats, Ints

TIE = math.log(1.001)  # no kernel is timed to better than a thousandth


def ranking(offers: Sequence[Offer], clock: Clock, behind_us: float = 0.0) -> Ints:
    """Rows of (offer, index within it), the best first.

    By predicted time in steps of a thousandth, a step's candidates by the order of the families and their tie rows. All
    are ranked before any is shown, so that the answer does not depend on how many are asked for. Of an offer that says
    which are ``dependent`` the others rank as if they took ``behind_us`` more: what the launch behind cannot hide.
    """
    counts = [len(offer.useful) for offer in offers]
    within = np.concatenate([np.lexsort(offer.ties.T[::-1]) for offer in offers])  # each offer's in their order
    starts = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
    shown = np.concatenate([_behind(offer, behind_us) for offer in offers])
    times = (np.concatenate([offer.times(clock).us for offer in offers]) + shown)[starts + within]
    order = np.argsort(np.floor(np.log(times) / TIE), kind="stable")
    which = np.repeat(np.arange(len(offers)), counts)
    return np.stack([which[order], within[order]], axis=1)


def _behind(offer: Offer, us: float) -> Floats:
    if offer.dependent is None:
        return np.zeros(len(offer.useful))
    return np.where(offer.dependent, 0.0, us)


def ranked(offers: Sequence[Offer], rows: Ints, clock: Clock) -> Sequence[Candidate]:
    """The candidates in that order, each made when it is looked at."""

    def make(position: int) -> Candidate:
        number, index = int(rows[position, 0]), int(rows[position, 1])
        return offers[number].candidate(index, clock)

    return LazySequence(len(rows), make)


def regime(offer: Offer, index: int, clock: Clock) -> Regime:
    """What holds a candidate back.

    L2 or HBM, where one of them is what most of the main loop waits for and that is most of the time. Else the largest
    loss, if it is more than a twentieth of the time: *latency* is launch, first load and exposed epilogue; *wave* what
    the main loop spends on places without a tile and on elements beyond C's edge; *power* what the lower clock costs.
    Else *compute*.
    """
    times = offer.times(clock)
    term = {name: float(values[index]) for name, values in times.terms_us.items()}
    total = float(times.us[index])
    bound = max(("tensor", "shared_port", "l2", "hbm", "issue"), key=lambda name: term[name])
    if bound in ("l2", "hbm") and 2 * term["main_loop"] > total:
        return "L2" if bound == "l2" else "HBM"
    losses: dict[Regime, float] = {
        "latency": term["launch"] + term["first_load"] + term["epilogue"],
        "wave": term["main_loop"] * (1 - float(offer.useful[index])),
        "power": total - float(offer.burst.us[index]),
    }
    worst = max(losses, key=lambda name: losses[name])
    return worst if losses[worst] > total / 20 else "compute"
