"""The CUDA backend: memory, kernels and launches on one GPU, through cuda.core.

Importing this module touches no driver. The primary context is used, so that pointers and streams of PyTorch and CuPy
are valid here; each call makes it current in the calling thread and afterwards restores the context that was current.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.backends.arguments import Arguments
from tilewright.backends.base import DeviceInfo, Dim3, Matrix
from tilewright.backends.base import Kernel as KernelProtocol
from tilewright.backends.cuda_arguments import (
    dtype_of,
    leading_dimension,
    lines_of,
    require,
    stream_handle,
)
from tilewright.backends.cuda_capture import outside_capture
from tilewright.backends.cuda_errors import call, cuda_unavailable_reason, driver_errors, driver_version
from tilewright.backends.cuda_launch import launch
from tilewright.backends.cuda_tensor_map import encode
from tilewright.dtypes import DType
from tilewright.errors import TilewrightError, UnavailableError, UsageError
from tilewright.gpu import arch_of
from tilewright.nvrtc import Compiled, compile_kernel, nvrtc_version
from tilewright.problem import Layout
from tilewright.ptxas import CompileReport
from tilewright.source import KernelSource
from tilewright.telemetry import Snapshot, Telemetry

__all__ = ["CudaBackend", "CudaKernel", "cuda_unavailable_reason"]

# A block gets more shared memory than this, static and dynamic together, only after the kernel's limit on dynamic
# shared memory was raised (CUDA C++ Programming Guide, "Compute Capability 9.0", Shared Memory).
DEFAULT_SHARED_BYTES = 48 << 10
POISON = 0xFF  # every byte; a NaN in fp32, bf16 and fp16
LEGACY_STREAM = 1  # CU_STREAM_LEGACY: the default stream by a handle that is not null


@dataclass
class CudaKernel:
    """A kernel loaded on a GPU, with what the compiler said of it."""

    name: str
    report: CompileReport
    handle: Any = field(repr=False)
    dynamic_shared_bytes: int = 0  # the limit that the driver has been told, once above the default


class DeviceMemory:
    """Memory from ``cuMemAlloc``, freed with its last reference.

    Not from a stream-ordered pool: freeing there waits only for one stream, and kernels run on the caller's streams.
    """

    def __init__(self, backend: CudaBackend, size: int) -> None:
        from cuda.bindings import driver

        self.size = size
        with backend.current(), driver_errors("allocating", f"{size / 2**20:.1f} MiB were asked for"):
            self.pointer = int(call(driver.cuMemAlloc, max(size, 1)))
        # Not at exit: the driver may be gone by then, and frees everything itself.
        weakref.finalize(self, _free, backend, self.pointer).atexit = False


def _free(backend: CudaBackend, pointer: int) -> None:
    from cuda.bindings import driver

    with (
        suppress(Exception),
        outside_capture(True),  # of any thread: Python frees when it likes
        backend.current(),
    ):  # after a fatal error nothing can be freed; that was reported
        driver.cuMemFree(pointer)


class CudaBackend:
    """One GPU behind the protocol of ``backends.base.Backend``.

    ``device_id`` counts as CUDA does; None takes the device of the context current in this thread, else device 0.
    Raises ``UnavailableError`` when there is no driver or no such GPU.
    """

    name = "cuda"

    def __init__(self, device_id: int | None = None) -> None:
        reason = cuda_unavailable_reason()
        if reason is not None:
            raise UnavailableError(reason)
        with driver_errors("opening the GPU"):
            from cuda.core import Device

            try:
                self.device_id = int(Device(device_id).device_id)
            except ValueError as error:
                raise UnavailableError(f"there is no GPU number {device_id}: {error}") from None
        self._kernels: dict[tuple[str, str, str], CudaKernel] = {}
        self._lock = threading.Lock()
        with self.current() as device, driver_errors("opening the GPU"):
            self.stream: Any = device.create_stream()
            self.compute_capability = (
                int(device.compute_capability.major),
                int(device.compute_capability.minor),
            )

    @contextmanager
    def current(self) -> Iterator[Any]:
        """Make the GPU current in this thread, and restore what was; yields cuda.core's ``Device``."""
        from cuda.bindings import driver
        from cuda.core import Device

        device = Device(self.device_id)
        before = call(driver.cuCtxGetCurrent)
        device.set_current()
        try:
            yield device
        finally:
            if int(before) and int(before) != int(call(driver.cuCtxGetCurrent)):
                call(driver.cuCtxSetCurrent, before)

    def device(self) -> DeviceInfo:
        """The GPU's name, its key among the known GPUs, and what a record needs to know of it."""
        with self.current() as device, driver_errors("describing the GPU"):
            properties = device.properties
            details = {
                "compute_capability": list(self.compute_capability),
                "sm_count": int(properties.multiprocessor_count),
                "l2_bytes": int(properties.l2_cache_size),
                "shared_bytes_per_block": int(properties.max_shared_memory_per_block_optin),
                "uuid": str(device.uuid),
                "driver_cuda": driver_version(),
                "nvrtc": nvrtc_version(),
            }
            name = str(device.name)
        return DeviceInfo(name=name, key=gpu_key(name), details=details)

    @contextmanager
    def telemetry(self) -> Iterator[Callable[[], Snapshot]]:
        """A function that reads this GPU's clocks, power and temperature; for ``measure.measure``."""
        yield Telemetry(self.device().details["uuid"], self.device_id).snapshot

    def synchronize(self) -> None:
        """Wait for everything on the GPU. Raises ``LaunchError`` when a kernel went wrong."""
        from cuda.bindings import driver

        with self.current(), driver_errors("waiting for the GPU"):
            call(driver.cuCtxSynchronize)

    def upload(self, array: np.ndarray[Any, Any], ld: int | None = None, layout: Layout = "row") -> Matrix:
        """Copy a 2-D array in, with leading dimension ``ld`` (default: tight), padding poisoned."""
        require(array.ndim == 2, f"array has {array.ndim} dimensions; a matrix has 2")
        lines = array if layout == "row" else array.T
        count, line = lines.shape
        ld, line_bytes = leading_dimension(line, ld), line * array.itemsize
        host = np.full((count, ld * array.itemsize), POISON, dtype=np.uint8)
        host[:, :line_bytes] = np.ascontiguousarray(lines).view(np.uint8).reshape(count, line_bytes)
        memory = DeviceMemory(self, host.nbytes)
        self._copy("cuMemcpyHtoDAsync", memory.pointer, host.ctypes.data, host.nbytes)
        rows, cols = array.shape
        return Matrix(memory.pointer, rows, cols, ld, dtype_of(array.dtype), memory, layout)

    def empty(self, rows: int, cols: int, dtype: DType, ld: int | None = None, layout: Layout = "row") -> Matrix:
        """Allocate a matrix in which every byte, padding too, is 0xFF: all NaN."""
        matrix = self.room(rows, cols, dtype, ld, layout)
        self.poison(matrix)
        return matrix

    def room(self, rows: int, cols: int, dtype: DType, ld: int | None = None, layout: Layout = "row") -> Matrix:
        """Allocate a matrix with whatever its memory has. Waits for nothing, as another thread may be capturing."""
        line, lines = (cols, rows) if layout == "row" else (rows, cols)
        ld = leading_dimension(line, ld)
        memory = DeviceMemory(self, lines * ld * dtype.itemsize)
        return Matrix(memory.pointer, rows, cols, ld, dtype, memory, layout)

    def poison(self, matrix: Matrix) -> None:
        """Fill a matrix and its padding with NaN again, after all work before it."""
        from cuda.bindings import driver

        size = matrix.lines * matrix.ld * matrix.dtype.itemsize
        if size:
            self.synchronize()
            with self.current(), driver_errors("filling a matrix"):
                call(driver.cuMemsetD8Async, matrix.pointer, POISON, size, self.stream.handle)
                self.stream.sync()

    def download(self, matrix: Matrix) -> np.ndarray[Any, Any]:
        """Copy a matrix out as ``(rows, cols)``, after all work on the GPU."""
        self.synchronize()
        return self.fetch(matrix)

    def fetch(self, matrix: Matrix) -> np.ndarray[Any, Any]:
        """The same after the work on this backend's stream alone, which another thread's capture allows."""
        lines = self._lines(matrix)[:, : matrix.line]
        return np.ascontiguousarray(lines if matrix.layout == "row" else lines.T)

    def padding_intact(self, matrix: Matrix) -> bool:
        """Whether what lies between its lines, and after the last, is still all 0xFF."""
        self.synchronize()
        lines = self._lines(matrix).view(np.uint8)
        return bool((lines[:, matrix.line * matrix.dtype.itemsize :] == POISON).all())

    def view(self, array: Any) -> Matrix:
        """Look at a caller's GPU array (PyTorch, CuPy, DLPack, ``__cuda_array_interface__``) without a copy.

        No stream is waited for: the caller launches on the stream that made the array. Raises ``UsageError`` unless
        it is 2-D, on this GPU, and row- or column-major with unit stride along its lines; the stride of an axis of
        length 1 is ignored.
        """
        from cuda.core.utils import StridedMemoryView

        exported = array.detach() if hasattr(array, "detach") else array  # DLPack refuses tensors that need a gradient
        try:
            with self.current(), driver_errors("looking at the array"):
                seen = StridedMemoryView.from_any_interface(exported, stream_ptr=-1)
                shape, strides, element = tuple(seen.shape), seen.strides, seen.dtype
        except (BufferError, TypeError, NotImplementedError, AttributeError) as error:
            raise UsageError(f"array of type {type(array).__name__} cannot be used on a GPU: {error}") from error
        require(
            bool(seen.is_device_accessible) and seen.device_id == self.device_id,
            f"array lies on device {seen.device_id}; this backend runs on device {self.device_id} (-1 is the host)",
        )
        require(len(shape) == 2, f"array has shape {shape}; a matrix has 2 dimensions")
        layout, ld = lines_of(shape, strides)
        return Matrix(int(seen.ptr), shape[0], shape[1], ld, dtype_of(np.dtype(element)), exported, layout)

    def compile(self, source: KernelSource) -> CudaKernel:
        """Compile with NVRTC or find in the cache, and load. ``source.arch`` None means this GPU's."""
        arch = source.arch or self.arch
        key = (source.text, arch, source.entry)
        with self._lock:
            if key not in self._kernels:
                compiled = compile_kernel(KernelSource(source.name, source.text, source.target, arch, source.entry))
                self._kernels[key] = self._load(source, compiled, arch)
            return self._kernels[key]

    @property
    def arch(self) -> str:
        """NVRTC's name for this GPU (``gpu.arch_of``)."""
        return arch_of(self.compute_capability)

    def launch(
        self,
        kernel: KernelProtocol,
        grid: Dim3,
        block: Dim3,
        args: Sequence[Any],
        shared_bytes: int,
        *,
        cluster: int = 1,
        dependent: bool = False,
        stream: Any = None,
    ) -> None:
        """Start a kernel and return; a grid without blocks starts nothing.

        ``grid`` counts blocks, of which ``cluster`` along x form a cluster. A ``dependent`` kernel may start before
        the one ahead of it has ended. ``stream`` is None for the backend's own, a handle, or a stream of cuda.core,
        PyTorch or CuPy.
        """
        if not isinstance(kernel, CudaKernel):
            raise UsageError(f"kernel {kernel.name} was not compiled by the CUDA backend")
        if 0 in grid:
            return
        require(grid[0] % cluster == 0, f"grid {grid} is not a whole number of clusters of {cluster} blocks")
        where = f"launching {kernel.name}"
        with self.current(), driver_errors(where, f"grid {grid}, block {block}, {shared_bytes} B shared"):
            self.allow_shared(kernel, shared_bytes)
            launch(
                int(kernel.handle.handle),
                grid,
                block,
                Arguments(args, encode),
                shared_bytes,
                cluster=cluster,
                dependent=dependent,
                stream=self._stream(stream),
            )

    def _load(self, source: KernelSource, compiled: Compiled, arch: str) -> CudaKernel:
        major, minor = self.compute_capability
        target = f"compiled for {arch}, run on compute capability {major}.{minor}"
        with self.current(), driver_errors(f"loading {source.name}", target):
            from cuda.core import ObjectCode

            code = ObjectCode.from_cubin(compiled.cubin, name=source.name)
            return CudaKernel(source.name, compiled.report, code.get_kernel(source.entry))

    def allow_shared(self, kernel: CudaKernel, shared_bytes: int) -> None:
        """Let a kernel's blocks have so much dynamic shared memory. Raises ``UsageError`` where the GPU has less."""
        static = kernel.report.shared_bytes or 0
        if static + shared_bytes <= DEFAULT_SHARED_BYTES or shared_bytes <= kernel.dynamic_shared_bytes:
            return
        from cuda.bindings import driver
        from cuda.core import Device

        limit = int(Device(self.device_id).properties.max_shared_memory_per_block_optin)
        require(
            static + shared_bytes <= limit,
            f"{kernel.name} asks for {static + shared_bytes} bytes of shared memory a block; this GPU has {limit}",
        )
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuKernelSetAttribute, attribute, shared_bytes, kernel.handle.handle, self.device_id)
        kernel.dynamic_shared_bytes = shared_bytes

    def _stream(self, stream: Any) -> Any:
        if stream is None:
            return self.stream
        from cuda.core import Stream
        from cuda.core.graph import GraphBuilder

        if isinstance(stream, GraphBuilder):
            return stream.stream
        if isinstance(stream, Stream):
            return stream
        return Stream.from_handle(stream_handle(stream) or LEGACY_STREAM)

    def _copy(self, function: str, target: int, origin: int, size: int) -> None:
        """Copy and wait: a plain copy from pageable memory may return before a stream of its own may read."""
        from cuda.bindings import driver

        if size:
            with self.current(), driver_errors("copying between host and GPU"):
                call(getattr(driver, function), target, origin, size, self.stream.handle)
                self.stream.sync()

    def _lines(self, matrix: Matrix) -> np.ndarray[Any, Any]:
        """All of a matrix, padding included, as ``(lines, ld)``; what follows a view's last line reads as poison."""
        host = np.full((matrix.lines, matrix.ld * matrix.dtype.itemsize), POISON, np.uint8).view(matrix.dtype.numpy)
        size = host.nbytes
        whole = isinstance(matrix.owner, DeviceMemory) and matrix.owner.pointer == matrix.pointer
        if matrix.lines and not whole:
            size -= (matrix.ld - matrix.line) * matrix.dtype.itemsize  # the last line of a view may end the allocation
        self._copy("cuMemcpyDtoHAsync", host.ctypes.data, matrix.pointer, size)
        return host


def gpu_key(name: str) -> str | None:
    """The key of the known GPU that the driver calls ``name``; None when it is not one of them."""
    from tilewright.gpu import get_gpu

    with suppress(TilewrightError):
        return get_gpu(name).key
    return None
