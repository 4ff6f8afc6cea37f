"""The fastest GEMM that cublasLt offers: every algorithm its heuristic returns, timed against each other.

cuBLAS takes the heuristic's first answer, which can be 15% off its best; who wants to say that a kernel is past the
vendor's compares with the best. The library is called through ctypes, the one that PyTorch or CuPy has loaded.
Constants and structures are those of ``cublasLt.h`` (cuBLAS documentation, "Using the cuBLASLt API").

cublasLt computes column-major matrices, and a row-major C is the column-major C^T = B^T A^T: its first operand is B
and its second A, each read as the column-major matrix that lies in the same memory.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tilewright.backends.base import Matrix
from tilewright.backends.cuda import CudaBackend, DeviceMemory
from tilewright.dtypes import BF16, FP16
from tilewright.errors import UnavailableError, UsageError
from tilewright.measure import Launch, Rival, Schedule, Timer, measure
from tilewright.rivals import vendor_library
from tilewright.run import Operands

ALGORITHMS = 16  # asked for; fewer may come
WORKSPACE_BYTES = 64 << 20
SCREENING = Schedule(slot_ms=60.0, rounds=3, warm_slots=6)
LONGEST_ALIGNMENT = 256  # bytes; what cuMemAlloc gives and the heuristic assumes

_DATA_TYPES = {FP16: 2, BF16: 14}  # cudaDataType: CUDA_R_16F, CUDA_R_16BF
_COMPUTE_32F = 68  # CUBLAS_COMPUTE_32F: fp32 sums, no TF32
_SCALE_32F = 0  # CUDA_R_32F
_TRANSPOSE_FIRST, _TRANSPOSE_SECOND = 3, 4  # cublasLtMatmulDescAttributes_t: TRANSA, TRANSB
_MAX_WORKSPACE, _FIRST_ALIGNMENT = 1, 5  # cublasLtMatmulPreferenceAttributes_t; alignments of A, B, C and D: 5 to 8
# cublasLtMatmulAlgoConfigAttributes_t, with their widths in bytes
_CONFIG = {
    "algorithm_id": (0, 4),
    "tile_id": (1, 4),
    "split_k": (2, 4),
    "reduction_scheme": (3, 4),
    "swizzle": (4, 4),
    "custom_option": (5, 4),
    "stages_id": (6, 4),
    "inner_shape_id": (7, 2),
    "cluster_shape_id": (8, 2),
}


class _Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(frozen=True)
class Algorithm:
    """One answer of the heuristic: its place among them, what it is made of, and cublasLt's own description of it."""

    index: int
    workspace_bytes: int
    config: dict[str, int]
    handle: Any


class LtLibrary:
    """libcublasLt as it is loaded in this process, with a handle. ``library`` is a ``ctypes.CDLL`` or acts as one."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.handle = ctypes.c_void_p()
        self("cublasLtCreate", ctypes.byref(self.handle))

    @classmethod
    def find(cls) -> LtLibrary:
        """The library that PyTorch or CuPy uses, else one that is installed. Raises ``UnavailableError``."""
        vendor_library()  # imports PyTorch where it is installed, whose library is then the one in this process
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            return cls(ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path or "libcublasLt.so.13"))
        except (ImportError, RuntimeError, OSError) as error:
            cause = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnavailableError(f"libcublasLt cannot be loaded (pip install nvidia-cublas): {cause}") from error

    def __call__(self, function: str, *args: Any) -> None:
        """Call a function that returns a status. Raises ``UnavailableError`` unless that is success."""
        status = int(getattr(self._library, function)(*args))
        if status:
            raise UnavailableError(f"{function} failed with cuBLAS status {status}")

    def version(self) -> int:
        """As the library counts: 130100 is 13.1.0."""
        query = self._library.cublasLtGetVersion
        query.restype = ctypes.c_size_t
        return int(query())


class LtMatmul:
    """What cublasLt is told of C = A B for operand sets of one shape, and the launches of an algorithm on them.

    Raises ``UsageError`` when C is not row-major or there are no sets, ``UnavailableError`` when the library refuses.
    """

    def __init__(self, library: LtLibrary, sets: Sequence[Operands]) -> None:
        if not sets or sets[0].c.layout != "row":
            raise UsageError("cublasLt is measured on at least one set of operands, with a row-major C")
        if sets[0].c.dtype not in _DATA_TYPES:
            # In fp32 one of its algorithms read an illegal address (H200, driver 580, cublasLt 13.1), cause not found.
            known = ", ".join(each.name for each in _DATA_TYPES)
            raise UsageError(f"cublasLt is measured in {known}; the operands are {sets[0].c.dtype}")
        self.library, self.sets = library, list(sets)
        first = self.sets[0]
        self.description = self._make("cublasLtMatmulDesc", _COMPUTE_32F, _SCALE_32F)
        for attribute, operand in ((_TRANSPOSE_FIRST, first.b), (_TRANSPOSE_SECOND, first.a)):
            self._set("cublasLtMatmulDesc", self.description, attribute, ctypes.c_int(operand.layout == "column"))
        self.layouts = [self._layout(matrix) for matrix in (first.b, first.a, first.c)]
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def algorithms(self, count: int = ALGORITHMS) -> list[Algorithm]:
        """The heuristic's answers, its favourite first: at most ``count``, without those it marks as unusable."""
        preference = self._make("cublasLtMatmulPreference")
        self._set("cublasLtMatmulPreference", preference, _MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        operands = ([getattr(s, name).pointer for s in self.sets] for name in ("b", "a", "c", "c"))
        for attribute, pointers in enumerate(operands, start=_FIRST_ALIGNMENT):
            self._set("cublasLtMatmulPreference", preference, attribute, ctypes.c_uint32(alignment(pointers)))
        results, returned = (_Heuristic * count)(), ctypes.c_int()
        first, second, out = self.layouts
        what = (self.library.handle, self.description, first, second, out, out, preference)
        self.library("cublasLtMatmulAlgoGetHeuristic", *what, count, results, ctypes.byref(returned))
        return [
            Algorithm(index, int(result.workspace_bytes), self._config(result.algorithm), result.algorithm)
            for index, result in enumerate(results[: returned.value])
            if result.state == 0
        ]

    def launches(self, algorithm: Algorithm, workspace: DeviceMemory) -> list[Launch]:
        """A launch for each operand set; ``workspace`` holds ``WORKSPACE_BYTES``."""
        return [self._launch(operands, algorithm, workspace) for operands in self.sets]

    def _launch(self, operands: Operands, algorithm: Algorithm, workspace: DeviceMemory) -> Launch:
        first, second, out = self.layouts
        a, b, c = (ctypes.c_void_p(matrix.pointer) for matrix in (operands.a, operands.b, operands.c))
        one, zero = ctypes.byref(self._one), ctypes.byref(self._zero)
        what = (self.library.handle, self.description, one, b, first, a, second, zero, c, out, c, out)

        def launch(stream: Any) -> None:
            room = (ctypes.c_void_p(workspace.pointer), ctypes.c_size_t(WORKSPACE_BYTES))
            where = (ctypes.byref(algorithm.handle), *room, ctypes.c_void_p(int(stream.handle)))
            self.library("cublasLtMatmul", *what, *where)

        return launch

    def _layout(self, matrix: Matrix) -> ctypes.c_void_p:
        """The column-major matrix in the memory of ``matrix``: its contiguous lines are the columns."""
        size = ctypes.c_uint64(matrix.line), ctypes.c_uint64(matrix.lines), ctypes.c_int64(matrix.ld)
        return self._make("cublasLtMatrixLayout", _DATA_TYPES[matrix.dtype], *size)

    def _make(self, kind: str, *args: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.library(f"{kind}Create", ctypes.byref(made), *args)
        weakref.finalize(self, self.library, f"{kind}Destroy", made).atexit = False
        return made

    def _set(self, kind: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self.library(f"{kind}SetAttribute", target, attribute, ctypes.byref(value), size)

    def _config(self, algorithm: Any) -> dict[str, int]:
        found = {}
        for name, (attribute, size) in _CONFIG.items():
            value, written = ctypes.c_uint32(), ctypes.c_size_t()
            query = (ctypes.byref(algorithm), attribute, ctypes.byref(value), ctypes.c_size_t(size))
            with suppress(UnavailableError):  # not every algorithm has every attribute
                self.library("cublasLtMatmulAlgoConfigGetAttribute", *query, ctypes.byref(written))
                found[name] = value.value
        return found


def alignment(pointers: Sequence[int]) -> int:
    """The largest power of two that divides all addresses, at most 256."""
    together = LONGEST_ALIGNMENT
    for pointer in pointers:
        together |= pointer
    return together & -together


def lt_best(
    backend: CudaBackend,
    sets: Sequence[Operands],
    timer: Timer,
    name: str = "Lt best",
    *,
    library: LtLibrary | None = None,
    schedule: Schedule = SCREENING,
    kernels: Callable[[Launch], Sequence[str]] | None = None,
) -> tuple[Rival, dict[str, Any]]:
    """The fastest algorithm of the heuristic's on these operands, as a rival, and what a record says of it.

    All that come are timed against each other by ``schedule``. The description has how many came (``returned``), which
    of them won (``index``, 0 being what cuBLAS takes), the time of the first over the winner's, and the winner's
    configuration; ``kernels`` names the kernels of a launch. Raises ``UnavailableError`` when there is no library, or
    none of its algorithms runs.
    """
    with backend.current():
        library = library or LtLibrary.find()
        matmul = LtMatmul(library, sets)
        algorithms = {str(algorithm.index): algorithm for algorithm in matmul.algorithms()}
        workspace = DeviceMemory(backend, WORKSPACE_BYTES)
        rivals = [Rival(key, matmul.launches(each, workspace)) for key, each in algorithms.items()]
        if not rivals:
            raise UnavailableError(f"cublasLt's heuristic knows no algorithm for {sets[0].problem}")
        screened = measure(rivals, timer, schedule=schedule)
        medians = {key: timing.time_us.median for key, timing in screened.timings.items() if timing.time_us}
        if not medians:
            raise UnavailableError(f"none of cublasLt's algorithms runs: {screened.timings[rivals[0].name].error}")
        best = min(medians, key=lambda key: medians[key])
        launches = next(rival.launches for rival in rivals if rival.name == best)
        described = {
            "returned": len(algorithms),
            "ran": len(medians),
            "index": algorithms[best].index,
            "first_over_best": medians["0"] / medians[best] if "0" in medians else None,
            "algorithm": {**algorithms[best].config, "workspace_bytes": algorithms[best].workspace_bytes},
            "cublaslt": library.version(),
            "kernels": [] if kernels is None else names_of(launches[0], kernels),
        }
    return Rival(name, launches), described


def names_of(launch: Launch, kernels: Callable[[Launch], Sequence[str]]) -> list[str]:
    """The names of a launch's kernels by ``kernels``; none where that fails, as names are only nice to have."""
    try:
        return list(kernels(launch))
    except Exception:
        return []
