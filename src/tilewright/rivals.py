"""What is measured against what, over which memory: rotating operand sets, and the vendor's GEMM as a rival."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

from tilewright.backends.base import Backend, Matrix
from tilewright.errors import UnavailableError
from tilewright.kernel_file import KernelFile
from tilewright.library.results import cupy_stream
from tilewright.measure import Rival
from tilewright.nvrtc import installed_version
from tilewright.operands import Fill, random_operands
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.run import Operands, arguments, make_operands, prepare


def operand_sets(
    backend: Backend, problem: Problem, count: int, *, fill: Fill = "normal", seed: int = 0
) -> list[Operands]:
    """``count`` sets of operands in the backend's memory, each with its own random values; C is all NaN.

    ``fill`` is one of ``operands.random_operands`` and is recorded with a figure: it changes the power that a GPU
    draws, and with it the clock. Raises ``UsageError`` for another.
    """
    return [make_operands(backend, problem, *random_operands(problem, seed + i, fill)) for i in range(count)]


def kernel_rival(backend: Backend, kernel: KernelFile, plan: Plan, sets: Sequence[Operands], name: str) -> Rival:
    """A kernel with a plan, bound to each operand set. Raises as ``run.prepare`` does."""
    first = prepare(backend, kernel, plan, sets[0])
    workspace = first.args[len(arguments(plan, sets[0])) :]  # the same for all: they run one after another
    launches = [first, *(replace(first, args=[*arguments(plan, each), *workspace]) for each in sets[1:])]
    return Rival(name, [partial(launch, backend) for launch in launches])


def cublas(backend: Backend, sets: Sequence[Operands], name: str = "cuBLAS") -> Rival:
    """The vendor's GEMM as a user of PyTorch, else CuPy, gets it, on the same operands and stream.

    fp32 is computed in fp32 (no TF32); everything else is the library's default. Raises ``UnavailableError`` when
    neither library is installed or sees a GPU.
    """
    library = vendor_library()
    if library is None:
        raise UnavailableError(
            "cuBLAS is measured through PyTorch or CuPy and neither is installed: "
            "pip install 'tilewright[torch]' or 'tilewright[cupy]'"
        )
    make = _torch_launch if library == "torch" else _cupy_launch
    device_id = int(getattr(backend, "device_id", 0))
    try:
        return Rival(name, [make(operands, device_id) for operands in sets])
    except Exception as error:  # whatever keeps the library from the GPU, the other rivals can still be measured
        raise UnavailableError(f"{library} cannot use the operands: {error}") from error


def vendor_versions() -> dict[str, str]:
    """The versions of the libraries that ``cublas`` measures, for a record's provenance."""
    packages = ("torch", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cublas", "nvidia-cublas-cu12")
    return {name: version for name in packages if (version := installed_version(name)) is not None}


def vendor_library() -> Literal["torch", "cupy"] | None:
    """Which library ``cublas`` uses here. Nothing is initialised for the answer."""
    if find_spec("torch") is not None:
        import torch

        if torch.version.cuda is not None:  # a CPU build has no cuBLAS
            return "torch"
    return "cupy" if find_spec("cupy") is not None else None


class _DeviceArray:
    """A matrix as ``__cuda_array_interface__`` (version 3), which has no code for bf16: 16-bit integers then."""

    def __init__(self, matrix: Matrix) -> None:
        itemsize = matrix.dtype.itemsize
        self.owner = matrix.owner
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (matrix.rows, matrix.cols),
            "typestr": "<f4" if itemsize == 4 else "<i2",
            "data": (matrix.pointer, False),
            "strides": _strides(matrix),
        }


def _strides(matrix: Matrix) -> tuple[int, int]:
    """Bytes from row to row and from column to column."""
    line, element = matrix.ld * matrix.dtype.itemsize, matrix.dtype.itemsize
    return (line, element) if matrix.layout == "row" else (element, line)


def _torch_launch(operands: Operands, device_id: int) -> Callable[[Any], None]:
    import torch

    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

    def tensor(matrix: Matrix) -> Any:
        made = torch.as_tensor(_DeviceArray(matrix), device=f"cuda:{device_id}").view(kinds[matrix.dtype.name])
        if made.data_ptr() != matrix.pointer:
            raise UnavailableError("PyTorch copied the operands instead of sharing them")
        return made

    a, b, c = tensor(operands.a), tensor(operands.b), tensor(operands.c)

    def launch(stream: Any) -> None:
        current = torch.cuda.ExternalStream(int(stream.handle), device=a.device)
        with torch.no_grad(), torch.cuda.stream(current), _full_fp32(torch):
            torch.matmul(a, b, out=c)

    return launch


@contextmanager
def _full_fp32(torch: Any) -> Iterator[None]:
    """No TF32 while launches are enqueued or captured; the caller's own setting afterwards."""
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if before != "highest":
            torch.set_float32_matmul_precision(before)


def _cupy_launch(operands: Operands, device_id: int) -> Callable[[Any], None]:
    import cupy

    def array(matrix: Matrix) -> Any:
        size = matrix.span * matrix.dtype.itemsize
        memory = cupy.cuda.UnownedMemory(matrix.pointer, size, matrix.owner, device_id)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray((matrix.rows, matrix.cols), matrix.dtype.numpy, pointer, strides=_strides(matrix))

    a, b, c = array(operands.a), array(operands.b), array(operands.c)

    def launch(stream: Any) -> None:
        with cupy.cuda.Device(device_id), cupy_stream(cupy, int(stream.handle), device_id):
            cupy.matmul(a, b, out=c)

    return launch
