"""What the CUDA backend says and accepts where there is no GPU: arguments, streams, views, errors."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

from tilewright.backends.arguments import Arguments
from tilewright.backends.base import Matrix, TensorMap
from tilewright.backends.cuda import CudaBackend, gpu_key
from tilewright.backends.cuda_arguments import dtype_of, leading_dimension, lines_of, stream_handle
from tilewright.backends.cuda_errors import DriverError, call, cuda_unavailable_reason, driver_errors, translate
from tilewright.backends.cuda_tensor_map import corrected, line_pitch
from tilewright.dtypes import BF16, DTYPES, FP32
from tilewright.errors import LaunchError, TilewrightError, UnavailableError, UsageError
from tilewright.problem import Layout
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
    tensor_map = TensorMap(matrix, (2, 2))
    values = [tensor_map, np.int32(3), matrix, np.int64(5), np.float32(0.5), b"xyz"]
    packed = Arguments(values, lambda given: bytes(range(128)) if given is tensor_map else b"")
    pointers = np.frombuffer(ctypes.string_at(packed.address, 8 * len(values)), np.uint64)
    expected = [bytes(range(128)), b"\3\0\0\0", (0x7F0000001000).to_bytes(8, "little"), b"\5" + bytes(7),
                np.float32(0.5).tobytes(), b"xyz"]  # fmt: skip
    found = [ctypes.string_at(int(at), len(value)) for at, value in zip(pointers, expected, strict=True)]
    assert found == expected
    assert all(at % 64 == 0 for at in pointers), "a tensor map is read with aligned accesses"
    assert all(0 <= int(at) - packed.address < packed.nbytes for at in pointers)


@pytest.mark.parametrize("value", [3, 0.5, True, None, "x"])
def test_arguments_without_a_width_are_refused(value: object) -> None:
    with pytest.raises(
        UsageError, match=f"argument 1 is {value!r}; NumPy scalars, matrices, tensor maps, structs and bytes"
    ):
        Arguments([np.int32(0), value], lambda _: b"")


# ---- tensor maps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "driver", "cleared"),
    [
        (0, (13, 0), True),
        ((128 << 10) - 2, (13, 1), True),
        ((128 << 10) - 2, (12, 8), True),
        (128 << 10, (13, 0), False),
        (2, (13, 2), False),
        (2, None, False),
    ],
)
def test_a_bit_that_faulty_drivers_set_in_small_tensors(
    span: int, driver: tuple[int, int] | None, cleared: bool
) -> None:
    words = np.full(16, 2**64 - 1, np.uint64)
    found = np.frombuffer(corrected(words.tobytes(), span, driver), np.uint64)
    if cleared:
        words[1] ^= np.uint64(1 << 21)
    np.testing.assert_array_equal(found, words)
    assert corrected(bytes(128), span, driver) == bytes(128)


def matrix_of(rows: int, cols: int, ld: int, layout: Layout = "row", pointer: int = 256) -> Matrix:
    return Matrix(pointer, rows, cols, ld, BF16, None, layout)


@pytest.mark.parametrize(
    ("matrix", "pitch"),
    [
        (matrix_of(4, 8, 8), 16),
        (matrix_of(4, 5, 24), 48),
        (matrix_of(5, 4, 24, "column"), 48),
        (matrix_of(1, 5, 5), 16),  # one line: any pitch does
        (matrix_of(5, 1, 5, "column"), 16),
        (matrix_of(1, 9, 9), 32),
        (matrix_of(0, 8, 8), 16),
        (matrix_of(4, 0, 8), 16),
        (matrix_of(0, 0, 1), 16),
        (matrix_of(4, 0, 1), 16),
        (matrix_of(0, 4, 1, "column"), 16),
    ],
)
def test_the_pitch_of_a_tensor_map(matrix: Matrix, pitch: int) -> None:
    assert line_pitch(TensorMap(matrix, (64, 64))) == pitch


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (matrix_of(4, 5, 5), "lines are 10 bytes apart; TMA needs a multiple of 16 below"),
        (matrix_of(2, 8, 2**39), "lines are 1099511627776 bytes apart"),
        (matrix_of(4, 8, 8, pointer=8), "the matrix starts at 0x8; TMA needs a multiple of 16"),
    ],
)
def test_matrices_that_tma_cannot_step_over(matrix: Matrix, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        line_pitch(TensorMap(matrix, (64, 64)))


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
    ("shape", "strides", "layout", "ld"),
    [
        ((3, 4), None, "row", 4),
        ((3, 4), (4, 1), "row", 4),
        ((3, 4), (9, 1), "row", 9),
        ((1, 4), (16384, 1), "row", 4),
        ((1, 4), (0, 1), "row", 4),
        ((4, 1), (1, 7), "row", 1),
        ((0, 4), (1, 1), "row", 4),
        ((4, 0), (0, 5), "row", 1),
        ((3, 4), (1, 3), "column", 3),
        ((3, 4), (1, 8), "column", 8),
        ((1, 4), (5, 3), "column", 3),
    ],
)
def test_views(shape: tuple[int, int], strides: tuple[int, int] | None, layout: str, ld: int) -> None:
    assert lines_of(shape, strides) == (layout, ld)


@pytest.mark.parametrize("strides", [(1, 2), (4, 2), (0, 1), (3, 1), (-4, 1), (4, -1), (1, -3), (2, 6), (1, 0)])
def test_views_without_contiguous_lines_are_refused(strides: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=r"shape \(3, 4\) has strides"):
        lines_of((3, 4), strides)


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
