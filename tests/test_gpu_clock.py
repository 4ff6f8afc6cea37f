"""The SMs' clock out of two samples of their counters; and, on a GPU, beside NVML's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.gpu_clock import ABSENT, SLOTS, GpuClock, average_clock
from tilewright.source import KernelSource

START_NS = 10**18


def samples(mhz: list[float], elapsed_ns: int = 150_000_000) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The counters of SMs that run at these clocks, each from its own count on; the slots behind them are empty."""
    start = np.full((SLOTS, 2), ABSENT)
    end = start.copy()
    for sm, clock in enumerate(mhz):
        first = 2**40 * (sm + 1)
        start[sm] = first, START_NS + sm
        end[sm] = first + round(clock * elapsed_ns / 1e3), START_NS + sm + elapsed_ns
    return start, end


def test_the_median_of_the_sms() -> None:
    reading = average_clock(*samples([1290.0, 1300.0, 1310.0]))
    assert reading.mhz == pytest.approx(1300, rel=1e-6)
    assert (reading.sms, reading.note) == (3, "")


def test_an_sm_absent_from_a_sample_does_not_count() -> None:
    start, end = samples([1300.0, 1300.0, 9.0])
    end[2] = ABSENT
    assert average_clock(start, end).sms == 2


def test_a_counter_that_started_again_does_not_count() -> None:
    start, end = samples([1300.0, 1300.0, 1300.0])
    end[0, 0] = 5
    assert average_clock(start, end).mhz == pytest.approx(1300, rel=1e-6)


@pytest.mark.parametrize(
    ("clocks", "why"), [([], "no SM ran both"), ([9000.0, 1.0, 1300.0], "2 of 3 SMs' clocks are not plausible")]
)
def test_no_figure_has_a_reason(clocks: list[float], why: str) -> None:
    reading = average_clock(*samples(clocks))
    assert reading.mhz is None
    assert why in reading.note


def test_no_time_between_the_samples_is_no_figure() -> None:
    start, _ = samples([1300.0])
    assert average_clock(start, start).mhz is None


BUSY = """\
extern "C" __global__ void tw_gemm(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles;) {}
}
"""


@pytest.mark.cuda
def test_every_sm_of_a_gpu_that_works(cuda: Any) -> None:
    sms, cycles = cuda.device().details["sm_count"], 30_000_000
    clock, busy = GpuClock(cuda), cuda.compile(KernelSource("busy", BUSY, "gpu"))
    for _ in range(3):
        clock.clear()
        clock.start(cuda.stream)
        cuda.launch(busy, (sms, 1, 1), (32, 1, 1), [np.int64(cycles)], 0, stream=cuda.stream)
        clock.stop(cuda.stream)
        reading = clock.read()
        assert reading.mhz is not None, reading.note
        assert 200 < reading.mhz < 2600
        assert reading.sms == sms
