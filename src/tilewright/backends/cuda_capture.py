"""Captures of streams into graphs: whether one is under way, and how not to disturb it."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@cache
def library() -> ctypes.CDLL:
    """The driver, by ctypes: cuda.bindings has loaded it by then."""
    return ctypes.CDLL(DRIVER)


@cache
def _is_capturing() -> Any:
    function = library().cuStreamIsCapturing
    function.argtypes = [ctypes.c_void_p] * 2
    return function


def capture_of(stream: int) -> int | None:
    """The number of the capture that the stream of that handle is part of; None where it is in none."""
    status = ctypes.c_int()
    if _is_capturing()(stream, ctypes.byref(status)) or not status.value:
        return None
    from cuda.bindings import driver

    return int(driver.cuStreamGetCaptureInfo(stream)[2])


class outside_capture:  # noqa: N801 - used as a with statement
    """What is loaded, allocated, copied and freed here does not end a capture that is under way.

    CUDA Driver API, ``cuThreadExchangeStreamCaptureMode``: a thread in relaxed mode may make calls that are otherwise
    forbidden while any thread captures; none of those made here touches the stream that captures.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._before: Any = None

    def __enter__(self) -> None:
        if self._on_gpu:
            from cuda.bindings import driver

            relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            self._before = driver.cuThreadExchangeStreamCaptureMode(relaxed)[1]

    def __exit__(self, *exception: object) -> None:
        if self._on_gpu:
            from cuda.bindings import driver

            driver.cuThreadExchangeStreamCaptureMode(self._before)
