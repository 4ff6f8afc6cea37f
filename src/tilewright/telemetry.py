"""The state of a GPU around a measurement, from NVML: clocks, power, temperature, what holds the clock down.

A figure without these cannot be compared with another: under the power limit the same kernel runs at the clock that
its power allows. Without nvidia-ml-py or a driver every field is None; nothing here raises.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# NVML's clocks event reasons (nvml.h, nvmlClocksEventReason*), lowest bit first, in the words used in records.
THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}


@dataclass(frozen=True)
class Snapshot:
    """One reading. Clocks in MHz, power in watts, temperature in degrees Celsius.

    ``sm_clock_mhz`` is NVML's reading, which lies above the clock that kernels see when the power limit holds the card.
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "throttle": None if self.throttle is None else list(self.throttle)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Snapshot:
        """The inverse of ``to_dict``."""
        throttle = values.get("throttle")
        return cls(**{**values, "throttle": None if throttle is None else tuple(throttle)})


def decode_throttle(bits: int) -> tuple[str, ...]:
    """The names of the set bits of NVML's clocks event reasons; an unknown bit by its value."""
    names = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    unknown = bits & ~sum(THROTTLE_REASONS)
    return (*names, hex(unknown)) if unknown else tuple(names)


class Telemetry:
    """Reads one GPU, chosen by its UUID because CUDA and NVML may number the GPUs differently."""

    def __init__(self, uuid: str | None = None, index: int = 0) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handle = self._find(uuid, index)
        except (pynvml.NVMLError, OSError):
            self._nvml = None

    @property
    def present(self) -> bool:
        """Whether there is anything to read."""
        return self._nvml is not None

    def driver_version(self) -> str | None:
        """The driver's own version, such as ``580.159.04``."""
        version = self._read(lambda nvml, _: nvml.nvmlSystemGetDriverVersion())
        return version.decode() if isinstance(version, bytes) else version

    def energy_j(self) -> float | None:
        """Joules that the card has used since the driver was loaded; NVML's counter, which advances in steps."""
        millijoules = self._read(lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return None if millijoules is None else millijoules / 1000

    def snapshot(self) -> Snapshot:
        """Read everything now; what this GPU or driver does not tell is None."""
        if self._nvml is None:
            return Snapshot()
        power = self._read(lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = self._read(lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        reasons = self._read(lambda nvml, handle: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return Snapshot(
            sm_clock_mhz=self._read(lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=self._read(lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            temperature_c=self._read(
                lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            throttle=None if reasons is None else decode_throttle(int(reasons)),
        )

    def _find(self, uuid: str | None, index: int) -> Any:
        if uuid is not None:
            for prefix in ("GPU-", "MIG-"):
                try:
                    return self._nvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
                except self._nvml.NVMLError:
                    continue
        return self._nvml.nvmlDeviceGetHandleByIndex(index)

    def _read(self, query: Any) -> Any:
        if self._nvml is None:
            return None
        try:
            return query(self._nvml, self._handle)
        except (self._nvml.NVMLError, AttributeError):
            return None
