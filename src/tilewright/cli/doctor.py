"""``tilewright doctor``: what is here to run kernels with, and what to install for what is missing."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tilewright import __version__, settings
from tilewright.cli import output
from tilewright.cli.options import Json
from tilewright.errors import TilewrightError


@dataclass(frozen=True)
class Check:
    """One thing looked for. ``advice`` says what to do where it is missing or will not work."""

    name: str
    ok: bool
    found: str
    advice: str | None = None


def doctor(json: Json = False) -> None:
    """Look for a GPU, its driver, NVRTC, a host compiler and a cache folder; say what to install. Always exits 0."""
    checks = [_guarded(name, probe) for name, probe in PROBES.items()]
    if json:
        output.print_json({"schema": "tilewright.doctor/1", "checks": [asdict(check) for check in checks]})
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for check in checks:
        mark = Text("ok", "green") if check.ok else Text("--", "yellow")
        table.add_row(mark, Text(check.name, "bold"), Text.assemble(check.found, *_advice_lines(check)))
    output.stdout().print(table)
    runs = {check.name: check.ok for check in checks}
    output.say(
        f"kernels run on the GPU: {_yes(runs['gpu'] and runs['nvrtc'])}; "
        f"in the emulator: {_yes(runs['host compiler'])}; compile for a GPU: {_yes(runs['nvrtc'])}"
    )


def _advice_lines(check: Check) -> Iterator[tuple[str, str]]:
    if check.advice:
        yield f"\n{check.advice}", "dim"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _guarded(name: str, probe: Callable[[], Check]) -> Check:
    """A probe never ends the report: what it raises is what it found."""
    try:
        return probe()
    except TilewrightError as error:
        return Check(name, False, str(error))
    except Exception as error:  # a broken installation of someone else's package is a finding, not a crash
        return Check(name, False, f"{type(error).__name__}: {error}")


def _python() -> Check:
    where = Path(__file__).resolve().parent.parent
    found = f"tilewright {__version__} in {where}, Python {platform.python_version()}, {platform.platform()}"
    return Check("python", sys.version_info >= (3, 11), found)


def driver_cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the installed driver knows, such as ``(13, 0)``; None without a driver."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"  # WSL has no libcuda.so
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def _driver() -> Check:
    version = driver_cuda_version()
    if version is None:
        return Check(
            "driver", False, "no NVIDIA driver", "Install NVIDIA's driver to run on a GPU; the emulator needs none."
        )
    return Check("driver", True, f"CUDA {version[0]}.{version[1]}")


def _gpu() -> Check:
    from tilewright.backends.cuda import cuda_unavailable_reason
    from tilewright.gpu import query_gpu

    reason = cuda_unavailable_reason()
    if reason is not None:
        return Check("gpu", False, reason)
    gpu = query_gpu()
    major, minor = gpu.compute_capability
    return Check("gpu", True, f"{gpu.name}, compute capability {major}.{minor}, {gpu.sm_count} SMs")


def _nvrtc() -> Check:
    from tilewright import nvrtc

    driver = driver_cuda_version()
    extra = "cuda12" if driver is not None and driver[0] == 12 else "cuda13"
    install = f"pip install 'tilewright[{extra}]' compiles for a GPU, with or without one."
    if not nvrtc.available():
        return Check("nvrtc", False, "cuda-core or NVRTC is not installed", install)
    version = nvrtc.nvrtc_version()
    found = f"NVRTC {version[0]}.{version[1]}, cuda-core {importlib.metadata.version('cuda-core')}"
    if driver is not None and driver[0] < version[0]:
        found += f"; the driver knows CUDA {driver[0]}.{driver[1]} and cannot load what this NVRTC compiles"
        return Check("nvrtc", False, found, f"Update the driver, or {install}")
    return Check("nvrtc", True, found)


def _host_compiler() -> Check:
    from tilewright.backends.host_compiler import find_compiler

    return Check("host compiler", True, str(find_compiler()))


def _optional(package: str, purpose: str, install: str) -> Callable[[], Check]:
    def probe() -> Check:
        try:
            return Check(package, True, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            return Check(package, False, f"not installed ({purpose})", install)

    return probe


def _cache() -> Check:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = settings.cache_dir()
    advice = " ".join(str(warning.message) for warning in caught) or None
    return Check("cache", advice is None, str(path), advice)


def _settings() -> Check:
    known = {setting.name for setting in settings.SETTINGS}
    is_set = settings.present()
    for setting in settings.SETTINGS:
        setting.value()  # raises the sentence that names a bad one
    unknown = [name for name in is_set if name not in known]
    found = ", ".join(f"{name}={value}" for name, value in is_set.items()) or "none set"
    advice = f"Not known: {', '.join(unknown)}. Known: {', '.join(sorted(known))}." if unknown else None
    return Check("settings", not unknown, found, advice)


PROBES: dict[str, Callable[[], Check]] = {
    "python": _python,
    "driver": _driver,
    "gpu": _gpu,
    "nvrtc": _nvrtc,
    "host compiler": _host_compiler,
    "ziglang": _optional(
        "ziglang",
        "a host compiler for machines without one",
        "pip install 'tilewright[emulator]' where there is no C++ compiler.",
    ),
    "torch": _optional(
        "torch", "a rival to measure against", "pip install 'tilewright[torch]' to compare with cuBLAS."
    ),
    "cupy": _optional(
        "cupy-cuda13x", "a rival to measure against", "pip install 'tilewright[cupy]' to compare with cuBLAS."
    ),
    "cache": _cache,
    "settings": _settings,
}
