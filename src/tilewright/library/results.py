"""Results of the caller's kind of array, and the stream that the caller's library is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.backends.cuda_arguments import stream_handle
from tilewright.backends.cuda_capture import capture_of
from tilewright.backends.cuda_errors import call, driver_errors
from tilewright.dtypes import DTYPES, DType
from tilewright.errors import UsageError
from tilewright.library.arrays import HOST, LEGACY_STREAM, Array, type_of


def empty(like: Array, shape: Sequence[int], dtype: DType, stream: int | None = None) -> Any:
    """A new array of the kind and on the device of another, to be written on ``stream``, None being the current one.

    Raises ``UsageError`` for a kind that has no maker.
    """
    if like.kind == "torch":
        import torch

        return torch.empty(shape, dtype=torch_dtype(dtype), device=like.owner.device)
    if like.kind == "cupy":
        import cupy

        with cupy.cuda.Device(like.device):
            if stream is None:
                return cupy.empty(shape, dtype=dtype.numpy)
            # CuPy's pool hands freed memory out again to work on the stream that it was made on, and no other.
            with cupy_stream(cupy, stream, like.device) if stream else cupy.cuda.Stream.null:
                return cupy.empty(shape, dtype=dtype.numpy)
    if like.kind == "numpy" or like.device == HOST:
        return np.empty(shape, dtype=dtype.numpy)
    raise UsageError(f"a is a {type_of(like)}, of which no new one can be made: give the array for the result as out")


@dataclass(frozen=True)
class _Stream:
    """A stream by its handle, as the CUDA stream protocol has it: a version and the handle."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def cupy_stream(cupy: Any, handle: int, device: int) -> Any:
    """CuPy's object for a stream of somebody else's on a device that is current."""
    external = getattr(cupy.cuda.Stream, "from_external", None)  # from CuPy 14 on, where ExternalStream warns
    return cupy.cuda.ExternalStream(handle, device) if external is None else external(_Stream(handle))


def torch_dtype(dtype: DType) -> Any:
    """PyTorch's name of an element type."""
    found = _torch_dtypes.get(dtype.name)
    if found is None:
        import torch

        _torch_dtypes.update({each.name: getattr(torch, each.numpy_name) for each in DTYPES.values()})
        found = _torch_dtypes[dtype.name]
    return found


_torch_dtypes: dict[str, Any] = {}


def current_stream(arrays: Sequence[Array]) -> int:
    """The handle of the stream that arrays on a GPU are ready on, as their library says.

    Raises ``UsageError`` where two of them name two streams.
    """
    first = arrays[0]
    if first.kind == "torch":
        return torch_stream(first.device)
    if first.kind == "cupy":
        import cupy

        return int(cupy.cuda.get_current_stream(first.device).ptr)
    named = {each.stream for each in arrays if each.stream is not None}
    if len(named) > 1:
        raise UsageError(
            f"the arrays are ready on streams {', '.join(map(str, sorted(named)))}: give the one to run on as stream"
        )
    return named.pop() if named else LEGACY_STREAM


def torch_stream(device: int) -> int:
    """PyTorch's current stream of a device, by the call that costs least."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(torch.cuda.current_stream(device).cuda_stream if raw is None else raw(device))


def stream_of(stream: Any, arrays: Sequence[Array]) -> int:
    """The handle of ``stream``, None being the arrays' own."""
    return current_stream(arrays) if stream is None else stream_handle(stream)


def wait_for(arrays: Sequence[Array], stream: int, backend: Any) -> None:
    """Have the stream of that handle wait for what the arrays say they are ready on. Nothing here waits on the host.

    By the CUDA array interface that is a stream (version 3, ``stream``); by DLPack the array's own library has the
    stream wait. Of PyTorch and CuPy the caller knows the streams. Raises ``UsageError`` where a library refuses.
    """
    others = {each.stream for each in arrays if each.kind == "cuda array"} - {None, stream}
    if others:
        _wait_for_streams([each for each in others if each is not None], stream, backend)
    for each in arrays:
        if each.kind == "dlpack" and each.device != HOST:
            try:
                each.owner.array.__dlpack__(stream=stream or LEGACY_STREAM)
            except (BufferError, TypeError, RuntimeError) as error:
                raise UsageError(f"a {type_of(each)} cannot be used on stream {stream}: {error}") from error


def _wait_for_streams(others: Sequence[int], stream: int, backend: Any) -> None:
    """By an event each. A capture depends on no work outside of it: what a replay reads is ordered by who replays."""
    from cuda.bindings import driver

    capture = capture_of(stream)
    with backend.current(), driver_errors("waiting for the stream of an array"):
        for other in others:
            if capture is not None and capture_of(other) != capture:
                continue
            event = call(driver.cuEventCreate, driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            call(driver.cuEventRecord, event, other)
            call(driver.cuStreamWaitEvent, stream, event, 0)
            call(driver.cuEventDestroy, event)  # once it has come


def written(outs: Sequence[Array]) -> None:
    """Tell autograd that a caller's tensors have changed: a backward pass that needs what they held is an error."""
    if outs[0].kind == "torch":
        import torch

        torch.autograd.graph.increment_version([each.owner for each in outs])


def used_on(result: Any, like: Array, stream: int) -> None:
    """Tell the maker of a new result that it is written on a stream which may not be the maker's current one."""
    if like.kind == "torch" and like.device != HOST and stream != torch_stream(like.device):
        import torch

        result.record_stream(torch.cuda.ExternalStream(stream, device=like.device))
