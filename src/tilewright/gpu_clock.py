"""The clock that kernels really run at, from the SMs' cycle counters.

NVML's SM clock lies up to a tenth above it while the power limit holds the card, so that a utilisation computed from
NVML is wrong. An SM's cycle counter runs on between kernels: read once before and once after some work, together with
the global timer, it gives the SM's average clock over that work, whatever the work was, the vendor's kernels too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.dtypes import FP32
from tilewright.source import KernelSource

if TYPE_CHECKING:
    from tilewright.backends.cuda import CudaBackend

SLOTS = 1024  # more than any GPU has SMs: %smid is below %nsmid, which may exceed their number
BLOCKS_PER_SM = 8  # blocks go to the emptiest SM, so that this many reach every SM although they are short
PLAUSIBLE_MHZ = (100.0, 4000.0)
ABSENT = np.uint64(2**64 - 1)  # what a poisoned buffer holds

# PTX ISA, Special Registers: %smid, %clock64 and %globaltimer, in nanoseconds.
_KERNEL = f"""\
extern "C" __global__ void tw_gemm(unsigned long long* samples) {{
    unsigned int sm;
    unsigned long long cycles, nanoseconds;
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %clock64;\\n\\tmov.u64 %1, %globaltimer;" : "=l"(cycles), "=l"(nanoseconds));
    if (threadIdx.x == 0 && sm < {SLOTS})
        reinterpret_cast<ulonglong2*>(samples)[sm] = make_ulonglong2(cycles, nanoseconds);
}}
"""


@dataclass(frozen=True)
class Reading:
    """The median of the SMs' average clocks in MHz over some time; None for the reason in ``note``."""

    mhz: float | None
    sms: int = 0
    note: str = ""


def average_clock(start: np.ndarray[Any, Any], end: np.ndarray[Any, Any]) -> Reading:
    """The clock between two samples: ``uint64`` arrays ``(slots, 2)`` of cycles and nanoseconds, a row an SM.

    An SM that is absent from either sample, or whose clock is not plausible, does not count.
    """
    seen = (start != ABSENT).all(1) & (end != ABSENT).all(1)
    ran_on = seen & (end > start).all(1)
    cycles, nanoseconds = (end[ran_on] - start[ran_on]).astype(np.float64).T
    mhz = cycles / nanoseconds * 1e3
    low, high = PLAUSIBLE_MHZ
    plausible = mhz[(mhz >= low) & (mhz <= high)]
    if not seen.any():
        return Reading(None, note="no SM ran both samples of the clock")
    if 2 * len(plausible) <= seen.sum():
        return Reading(None, note=f"{seen.sum() - len(plausible)} of {seen.sum()} SMs' clocks are not plausible")
    return Reading(float(np.median(plausible)), len(plausible))


class GpuClock:
    """Samples the cycle counters of every SM of one GPU, in the order of a stream."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._kernel = backend.compile(KernelSource("sm_clock", _KERNEL, "gpu"))
        self._blocks = BLOCKS_PER_SM * int(backend.device().details["sm_count"])
        self._samples = [backend.empty(SLOTS, 4, FP32) for _ in range(2)]  # 16 bytes an SM

    def clear(self) -> None:
        """Forget the samples, after all work on the GPU."""
        for samples in self._samples:
            self._backend.poison(samples)

    def start(self, stream: Any) -> None:
        """Enqueue the first sample."""
        self._sample(0, stream)

    def stop(self, stream: Any) -> None:
        """Enqueue the second sample."""
        self._sample(1, stream)

    def read(self) -> Reading:
        """The average clock between the two samples, after all work on the GPU."""
        start, end = (self._backend.download(samples).view(np.uint64) for samples in self._samples)
        return average_clock(start, end)

    def _sample(self, which: int, stream: Any) -> None:
        args = [self._samples[which]]
        self._backend.launch(self._kernel, (self._blocks, 1, 1), (32, 1, 1), args, 0, stream=stream)
