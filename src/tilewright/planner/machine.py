"""What a time is predicted on: a GPU, what was measured of it, and the SMs that a kernel may use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.gpu import GpuSpec, clusters_that_fit
from tilewright.plan_tensor import LARGEST_CLUSTER
from tilewright.planner.calibration import Calibration
from tilewright.planner.raster import Bools, Floats, Ints


@dataclass(frozen=True)
class Machine:
    """A GPU with its calibration, of which a kernel may use ``sms`` SMs. Rates are of bytes a second.

    ``dependent_launch``: kernels that can may start under the one before, which writes no weights.
    """

    gpu: GpuSpec
    calibration: Calibration
    sms: int
    dependent_launch: bool = False

    def places(self, cluster: int) -> int:
        """Clusters of so many blocks that run at the same time, one block an SM."""
        return clusters_that_fit(cluster, self.gpu, self.sms)

    @cached_property
    def _places(self) -> Ints:
        """Of clusters of 0 blocks and more, none of those that do not fit."""
        fit = [self.places(size) for size in range(1, min(LARGEST_CLUSTER, self.sms) + 1)]
        return np.array([0, *fit, *[0] * (LARGEST_CLUSTER - len(fit))], dtype=np.int64)

    def places_of(self, clusters: Ints) -> Ints:
        """``places`` of clusters of each size, as far as kernels have them; 0 where none fits."""
        found: Ints = self._places[clusters]
        return found

    def launches(self, *lists: list[Any]) -> tuple[tuple[list[Any], ...], Bools]:
        """Lists with an entry a plan, of plans that can be dependent launches, and which of them are.

        All twice where there are such: first as dependent launches, which are not always the faster ones.
        """
        if not self.dependent_launch:
            return lists, np.zeros(len(lists[0]), dtype=bool)
        return tuple(each * 2 for each in lists), np.arange(2 * len(lists[0])) < len(lists[0])

    def turnaround_us(self, stage_bytes: Ints) -> Floats:
        """From when a stage of a ring is free until it is full again: the latency of HBM, and its bytes to one SM."""
        c = self.calibration
        found: Floats = (c.tma_latency_hbm_clk + stage_bytes / c.l2_alone_bytes_per_clk) / c.boost_clock_mhz
        return found

    @property
    def l2_keeps_bytes(self) -> float:
        """What stays in L2: the largest working set that is read at 95% of the rate of small ones (``l2_curve``)."""
        curve = self.calibration.l2_curve
        peak = max(rate for _, rate in curve)
        return max(working_set for working_set, rate in curve if rate >= 0.95 * peak)

    def l2_hits(self, distance: Floats) -> Floats:
        """What share of something read so many bytes ago L2 still holds: all of up to ``l2_keeps_bytes``.

        Past that from ``l2_curve``, as if all SMs waited for nothing but HBM there: what arrives faster than HBM reads
        was not read from it. Past the curve's end as at its end.
        """
        c = self.calibration
        sizes, rates = (np.array(each) for each in zip(*c.l2_curve, strict=True))
        kept = np.clip(1 - c.hbm_read_bytes_per_s / np.interp(distance, sizes, rates), 0, 1)
        hits: Floats = np.where(distance <= self.l2_keeps_bytes, 1.0, kept)
        return hits

    def l2_seconds(self, own_bytes: Floats, shared_bytes: Floats, active: Ints, same: float | Floats = 1.0) -> Floats:
        """In what time each of ``active`` SMs receives from L2 what it loads alone and what its cluster shares.

        ``same`` is a factor on the rate of the first (``supply.SAME_LINES``).

        The rates were measured in clocks at the boost clock. They are taken as bytes a second: at 1.3 GHz, under the
        power limit, kernels have been seen to be fed more bytes a clock than L2 gives at 1.98 GHz. Fewer SMs share what
        L2 gives to all, up to what one alone can take.
        """
        c = self.calibration
        hertz = c.boost_clock_mhz * 1e6
        crowd = self.gpu.sm_count / np.maximum(active, 1)
        own = np.minimum(c.l2_alone_bytes_per_clk, same * c.l2_bytes_per_clk_per_sm * crowd)
        shared = np.minimum(
            max(c.l2_alone_bytes_per_clk, c.l2_multicast_bytes_per_clk_per_sm),
            c.l2_multicast_bytes_per_clk_per_sm * crowd,
        )
        seconds: Floats = (own_bytes / own + shared_bytes / shared) / hertz
        return seconds
