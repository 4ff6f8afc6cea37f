"""What the CUDA backend says and accepts where there is no GPU: arguments, streams, views, errors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tilewright.backends.base import Matrix
from tilewright.backends.cuda import CudaBackend, gpu_key
from tilewright.backends.cuda_arguments import (
    dtype_of,
    leading_dimension,
    pack_arguments,
    row_major_ld,
    stream_handle,
)
from tilewright.backends.cuda_errors import DriverError, call, cuda_unavailable_reason, driver_errors, translate
from tilewright.dtypes import DTYPES, FP32
from tilewright.errors import LaunchError, TilewrightError, UnavailableError, UsageError
from tilewright.rivals import cublas, vendor_library


def test_import_touches_no_driver() -> None:
    code = (
        "import sys; import tilewright.backends.cuda, tilewright.rivals, tilewright.results, tilewright.telemetry\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('cuda', 'torch', 'cupy', 'pynvml')]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_arguments_keep_their_width_and_matrices_become_addresses() -> None:
    matrix = Matrix(0x7F0000001000, 2, 2, 2, FP32, None)
    packed = pack_arguments([np.int32(3), matrix, np.int64(5), np.float32(0.5)])
    assert packed == [3, 0x7F0000001000, 5, 0.5]
    assert [type(value) for value in packed] == [np.int32, int, np.int64, np.float32]


@pytest.mark.parametrize("value", [3, 0.5, True, None, "x"])
def test_arguments_without_a_width_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match="argument 1 is a"):
        pack_arguments([np.int32(0), value])


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 77


class ProtocolAttribute:
    __cuda_stream__ = (0, 78)


class NewerProtocol:
    __cuda_stream__ = (1, 78)


class TorchLike:
    cuda_stream = 79


class CupyLike:
    ptr = 80


def test_streams_in_every_form() -> None:
    streams = [76, np.int64(76), Protocol(), ProtocolAttribute(), TorchLike(), CupyLike(), 0]
    assert [stream_handle(stream) for stream in streams] == [76, 76, 77, 78, 79, 80, 0]


@pytest.mark.parametrize("stream", ["main", True, object(), NewerProtocol()])
def test_what_is_no_stream_is_refused(stream: object) -> None:
    with pytest.raises(UsageError, match="stream"):
        stream_handle(stream)


@pytest.mark.parametrize(
    ("shape", "strides", "ld"),
    [
        ((3, 4), None, 4),
        ((3, 4), (4, 1), 4),
        ((3, 4), (9, 1), 9),
        ((1, 4), (16384, 1), 4),
        ((1, 4), (0, 1), 4),
        ((4, 1), (1, 7), 1),
        ((0, 4), (1, 1), 4),
        ((4, 0), (0, 5), 1),
    ],
)
def test_row_major_views(shape: tuple[int, int], strides: tuple[int, int] | None, ld: int) -> None:
    assert row_major_ld(shape, strides) == ld


@pytest.mark.parametrize("strides", [(1, 3), (4, 2), (0, 1), (3, 1), (-4, 1), (4, -1)])
def test_views_that_are_not_row_major_are_refused(strides: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=r"shape \(3, 4\) has strides"):
        row_major_ld((3, 4), strides)


def test_dtypes_and_leading_dimensions() -> None:
    assert [dtype_of(d.numpy) for d in DTYPES.values()] == list(DTYPES.values())
    with pytest.raises(UsageError, match="float64; it must be one of fp32, bf16, fp16"):
        dtype_of(np.dtype("float64"))
    assert (leading_dimension(4, None), leading_dimension(4, 6), leading_dimension(0, None)) == (4, 6, 1)
    with pytest.raises(UsageError, match="ld is 3"):
        leading_dimension(4, 3)


def test_gpu_names() -> None:
    assert gpu_key("NVIDIA H200") == "h200"
    assert gpu_key("NVIDIA GeForce GT 710") is None


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        ("CUDA_ERROR_NO_DEVICE", UnavailableError, "finds no GPU"),
        ("CUDA_ERROR_OUT_OF_MEMORY", UnavailableError, "not enough free memory (12 MiB)"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", LaunchError, "start a new process"),
        ("CUDA_ERROR_MISALIGNED_ADDRESS", LaunchError, "not a multiple"),
        ("CUDA_ERROR_INVALID_VALUE", LaunchError, "refuses it (12 MiB)"),
        ("CUDA_ERROR_UNKNOWN", LaunchError, "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_messages(status: str, kind: type[TilewrightError], words: str) -> None:
    error = translate(RuntimeError(f"{status}: NVIDIA's own words"), "doing it", "12 MiB")
    assert type(error) is kind
    assert str(error).startswith("doing it: ")
    assert words in str(error)
    assert status in str(error)


@pytest.mark.parametrize("status", ["CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "CUDA_ERROR_NO_BINARY_FOR_GPU"])
def test_a_driver_older_than_nvrtc_is_told_with_both_versions(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr("tilewright.backends.cuda_errors.driver_version", lambda: (12, 8))
    monkeypatch.setattr("tilewright.backends.cuda_errors.nvrtc_version", lambda: (13, 5))
    error = translate(DriverError(status), "loading 02", "compiled for sm_90a")
    assert isinstance(error, UnavailableError)
    assert "the driver is for CUDA 12.8, the kernel was compiled by NVRTC 13.5" in str(error)
    assert "tilewright[cuda12]" in str(error)


def test_errors_of_others_pass() -> None:
    assert translate(ValueError("no driver's"), "doing it") is None
    with pytest.raises(ValueError, match="mine"), driver_errors("doing it"):
        raise ValueError("mine")
    with pytest.raises(UsageError, match="mine"), driver_errors("doing it"):
        raise UsageError("mine")


def test_errors_of_the_runtime_are_known_by_the_drivers_names() -> None:
    error = translate(RuntimeError("cudaErrorIllegalAddress: NVIDIA's own words"), "waiting")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error)


def test_a_missing_driver_is_told() -> None:
    for error in (RuntimeError('Function "cuInit" not found'), OSError("libcuda.so.1: cannot open")):
        assert "no NVIDIA driver" in str(translate(error, "doing it"))


def test_driver_calls() -> None:
    assert call(lambda x: (0, x), 5) == 5
    assert call(lambda: (0,)) is None
    with pytest.raises(DriverError, match="2"):
        call(lambda: (2, None))


@pytest.mark.skipif(cuda_unavailable_reason() is None, reason="there is a GPU here")
def test_without_a_gpu_there_is_one_clear_sentence() -> None:
    reason = cuda_unavailable_reason()
    assert reason is not None
    assert "\n" not in reason
    with pytest.raises(UnavailableError) as caught:
        CudaBackend()
    assert str(caught.value) == reason


@pytest.mark.filterwarnings("default")
def test_the_vendor_library_is_one_of_two_or_none() -> None:
    assert vendor_library() in ("torch", "cupy", None)
    if vendor_library() is None:
        with pytest.raises(UnavailableError, match=r"tilewright\[torch\]"):
            cublas(None, [])  # type: ignore[arg-type]
