"""The CUDA driver's errors as sentences that say what was wrong and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.errors import LaunchError, TilewrightError, UnavailableError
from tilewright.nvrtc import INSTALL, missing_reason, nvrtc_version

_STATUS = re.compile(r"CUDA_ERROR_\w+")
_RUNTIME_STATUS = re.compile(r"cudaError([A-Z]\w+)")  # cuda.core makes a few calls through the CUDA runtime

# Errors after which the process can no longer use the GPU: the driver has thrown its context away.
_FATAL = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "read or wrote an address that is not its own",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "accessed an address that is not a multiple of the access's size",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "executed an illegal instruction",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "used an address in a space its instruction cannot reach",
    "CUDA_ERROR_INVALID_PC": "jumped to an address that holds no code",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "overran its stack",
    "CUDA_ERROR_LAUNCH_FAILED": "was aborted by the GPU",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "ran longer than this GPU allows",
    "CUDA_ERROR_ASSERT": "failed an assertion",
}
_NO_GPU = {
    "CUDA_ERROR_NO_DEVICE": "the driver finds no GPU (is CUDA_VISIBLE_DEVICES empty?)",
    "CUDA_ERROR_INVALID_DEVICE": "there is no GPU of that number",
    "CUDA_ERROR_STUB_LIBRARY": "libcuda is a stub, not a driver",
    "CUDA_ERROR_SYSTEM_NOT_READY": "the GPU is not ready (on an NVSwitch system, is the fabric manager running?)",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "libcuda and the kernel's driver are of different versions",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "the CUDA compatibility library does not support this GPU",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another process holds the GPU for itself",
    "CUDA_ERROR_NOT_PERMITTED": "this process may not use the GPU",
}
_BAD_BINARY = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_SOURCE",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_DEVICE_NOT_LICENSED",
}


class DriverError(Exception):
    """A driver function returned this status."""


def call(function: Callable[..., tuple[Any, ...]], *args: Any) -> Any:
    """Call a function of ``cuda.bindings.driver``; return its one output, if any. Raises ``DriverError``."""
    status, *outputs = function(*args)
    if int(status):
        raise DriverError(str(getattr(status, "name", status)))
    return outputs[0] if outputs else None


@contextmanager
def driver_errors(doing: str, hint: str = "") -> Iterator[None]:
    """Turn what the driver and cuda.core raise while ``doing`` something into tilewright's errors.

    ``hint`` is appended to messages about running out of memory and about refused binaries: the sizes, the target.
    """
    try:
        yield
    except TilewrightError:
        raise
    except Exception as error:
        translated = translate(error, doing, hint)
        if translated is None:
            raise
        raise translated from error


def translate(error: Exception, doing: str, hint: str = "") -> TilewrightError | None:
    """The tilewright error that ``error`` stands for; None when it is no error of the driver's."""
    status, extra = _status(str(error)), f" ({hint})" if hint else ""
    if status is None:
        return _missing_library(error)
    if status in _NO_GPU:
        return UnavailableError(f"{doing}: {_NO_GPU[status]} [{status}]")
    if status in _FATAL:
        return LaunchError(
            f"{doing}: a kernel {_FATAL[status]} [{status}]. The driver has given up this process's GPU context, so "
            "start a new process; run the kernel on the emulator, or under compute-sanitizer, to see the access."
        )
    if status in _BAD_BINARY:
        return UnavailableError(
            f"{doing}: the driver cannot load the compiled kernel{extra} [{status}]: {versions()}. Update the driver, "
            f"or install the NVRTC of its CUDA version: {INSTALL} for CUDA 13, 'tilewright[cuda12]' for CUDA 12."
        )
    if status == "CUDA_ERROR_OUT_OF_MEMORY":
        return UnavailableError(f"{doing}: the GPU has not enough free memory{extra} [{status}]")
    if status in (
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "CUDA_ERROR_INVALID_CLUSTER_SIZE",
    ):
        return LaunchError(f"{doing}: the driver refuses it{extra} [{status}]")
    return LaunchError(f"{doing}: {error}")


def _status(text: str) -> str | None:
    """The driver's name of the error in ``text``, if there is one."""
    if match := _STATUS.search(text):
        return match[0]
    if match := _RUNTIME_STATUS.search(text):
        return "CUDA_ERROR" + re.sub(r"(?=[A-Z])", "_", match[1]).upper()
    return None


def _missing_library(error: Exception) -> UnavailableError | None:
    """cuda.bindings loads libcuda on the first call, and says in one of several ways that there is none."""
    text = str(error)
    lost = type(error).__name__ == "DynamicLibNotFoundError" or (
        isinstance(error, RuntimeError | OSError) and re.search(r"libcuda|nvcuda|Function \"?cu\w+\"? not found", text)
    )
    return UnavailableError("no NVIDIA driver is installed here (libcuda was not found)") if lost else None


def versions() -> str:
    """The driver's CUDA version and NVRTC's, in one phrase."""
    driver = driver_version()
    compiler: tuple[int, int] | None
    try:
        compiler = nvrtc_version()
    except UnavailableError:
        compiler = None
    return f"the driver is for CUDA {_dotted(driver)}, the kernel was compiled by NVRTC {_dotted(compiler)}"


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA version that the driver supports, such as ``(13, 0)``; None without a driver."""
    try:
        from cuda.bindings import driver

        number = int(call(driver.cuDriverGetVersion))
    except (ImportError, RuntimeError, OSError, DriverError):
        return None
    return number // 1000, number % 1000 // 10


def cuda_unavailable_reason() -> str | None:
    """Why kernels cannot run on a GPU here, in one sentence; None when they can. Initialises the driver."""
    if (reason := missing_reason()) is not None:
        return reason
    try:
        with driver_errors("looking for a GPU"):
            from cuda.bindings import driver

            call(driver.cuInit, 0)
            return None if int(call(driver.cuDeviceGetCount)) else "the driver finds no GPU"
    except TilewrightError as error:
        return str(error)


def _dotted(version: tuple[int, int] | None) -> str:
    return "of an unknown version" if version is None else ".".join(map(str, version))
