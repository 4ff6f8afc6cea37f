"""A calibration from start to end: kernels compiled side by side, each microbenchmark in a process of its own.

A kernel that goes wrong costs its process, and one that hangs its time limit; what the others read is kept.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright import __version__, nvrtc, results
from tilewright.backends.cuda_errors import cuda_unavailable_reason
from tilewright.calibrate import memory, power, rates, readings
from tilewright.calibrate.probes import Probe
from tilewright.calibrate.readings import Reading
from tilewright.errors import UnavailableError
from tilewright.gpu import GpuSpec, query_gpu
from tilewright.telemetry import Telemetry

if TYPE_CHECKING:
    from tilewright.backends.cuda import CudaBackend

CAPABILITY = (9, 0)  # wgmma, and the loads it is measured beside


@dataclass(frozen=True)
class Microbenchmark:
    """One of them: its kernels, what runs it on a backend's SMs, and the seconds it may take."""

    name: str
    probes: Callable[[], list[Probe]]
    run: Callable[[CudaBackend, int], Iterator[Reading]]
    limit_s: float


def _power(backend: CudaBackend, sms: int) -> Iterator[Reading]:
    return power.power(backend, sms, Telemetry(backend.device().details["uuid"], backend.device_id))


# The burst's clock first, while the card is cool; what heats it last.
MICROBENCHMARKS = {
    each.name: each
    for each in (
        Microbenchmark("burst_clock", power.power_probes, power.burst_clock, 30),
        Microbenchmark("graph_launch", rates.launch_probes, rates.graph_launch, 20),
        Microbenchmark("tma_latency", memory.latency_probes, memory.tma_latency, 20),
        Microbenchmark("l2_read", memory.l2_probes, memory.l2_read, 30),
        Microbenchmark("hbm_stream", memory.hbm_probes, memory.hbm_stream, 20),
        Microbenchmark("wgmma_rate", rates.wgmma_probes, rates.wgmma_rate, 30),
        Microbenchmark("tma_beside_wgmma", rates.contention_probes, rates.tma_beside_wgmma, 30),
        Microbenchmark("core_rate", rates.core_probes, rates.core_rate, 20),
        Microbenchmark("power", power.power_probes, _power, 75),
    )
}


@dataclass(frozen=True)
class Session:
    """What was read, what went wrong by microbenchmark, and of which GPU."""

    readings: tuple[Reading, ...]
    errors: dict[str, str]
    spec: GpuSpec
    provenance: results.Provenance

    @property
    def label(self) -> str:
        """What a calibration from it is called."""
        return f"{self.spec.name}, measured {self.provenance.date[:10]}, driver {self.provenance.driver}"


def require_hopper() -> GpuSpec:
    """The GPU that is present. Raises ``UnavailableError`` where there is none that can be calibrated."""
    reason = cuda_unavailable_reason()
    if reason is not None:
        raise UnavailableError(f"a calibration measures a GPU, and there is none to use here: {reason}")
    spec = query_gpu()
    if spec.compute_capability != CAPABILITY:
        raise UnavailableError(
            f"{spec.name} has compute capability {'.'.join(map(str, spec.compute_capability))}; "
            "a calibration needs 9.0, whose tensor-core instructions it measures"
        )
    return spec


def run(names: tuple[str, ...], progress: Callable[[int, int, str], None]) -> Session:
    """Run microbenchmarks by name. Raises ``UnavailableError`` where there is no GPU for them."""
    spec = require_hopper()
    chosen = [MICROBENCHMARKS[name] for name in names]
    steps = len(chosen) + 1
    progress(0, steps, "compiling")
    compile_all([probe for each in chosen for probe in each.probes()], "sm_90a")
    meter = Telemetry()
    before = meter.snapshot().to_dict()
    found: list[Reading] = []
    errors: dict[str, str] = {}
    for number, each in enumerate(chosen, start=1):
        progress(number, steps, each.name)
        got, error = _in_process(each)
        found += got
        if error:
            errors[each.name] = error
    progress(steps, steps, "done")
    provenance = results.Provenance(
        gpu=_device_name(),
        date=results.now(),
        driver=meter.driver_version(),
        nvrtc="{}.{}".format(*nvrtc.nvrtc_version()),
        version=__version__,
        commit=results.commit(),
        command=results.command(),
        fill="normal",
        method="in-kernel clock counters and the global timer; power by NVML's energy counter",
        before=before,
        after=meter.snapshot().to_dict(),
    )
    return Session(tuple(reading.of(provenance) for reading in found), errors, spec, provenance)


def _device_name() -> str:
    from cuda.core import Device

    return str(Device(0).name)


class _Target:
    """What ``Probe.source`` asks of a backend."""

    name = "cuda"

    def __init__(self, arch: str) -> None:
        self.arch = arch


def compile_all(probes: Sequence[Probe], arch: str) -> None:
    """Compile them side by side into the cache, each once. What does not compile is told by who runs it."""
    target: Any = _Target(arch)
    texts = {source.text: source for probe in probes for source in [probe.source(target)]}
    nvrtc.compile_side_by_side(texts.values())


def _in_process(each: Microbenchmark) -> tuple[list[Reading], str | None]:
    """The readings of one microbenchmark in a new process, and what went wrong."""
    command = [sys.executable, "-m", "tilewright.calibrate.child", each.name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=each.limit_s)
        out, error = done.stdout, None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            error = lines[-1] if lines else f"its process ended with {done.returncode}"
    except subprocess.TimeoutExpired as late:
        out, error = late.stdout or b"", f"it did not end within {each.limit_s:.0f} s"
    whole = out.decode(errors="replace")
    whole = whole[: whole.rfind("\n") + 1]  # a process that was ended may have left half a line
    return list(readings.parse(whole, each.name)), error
