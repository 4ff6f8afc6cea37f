"""Kernels of tests/kernels and what they are run with under the emulator's observers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.backends.base import Dim3, Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.dtypes import FP32, DType
from tilewright.source import KernelSource, Target, flatten

KERNELS = Path(__file__).parent / "kernels"


def kernel_source(
    path: str, dtype: DType | None = None, target: Target = "host", arch: str | None = None, /, **plan: int
) -> KernelSource:
    """A kernel below tests/kernels with its plan values, ``plan::T`` if any; ``KernelSource.name`` is its file's."""
    file = KERNELS / path
    values = "".join(f"constexpr int {name} = {value};\n" for name, value in {"SHARED_BYTES": 0, **plan}.items())
    if dtype is not None:
        values += f"using T = {dtype.c_name};\n"
    types = "namespace tw { struct bf16; struct fp16; }\n"
    text = flatten(file, target, f"{types}namespace plan {{\n{values}}}\n")
    return KernelSource(file.stem, text, target, arch)


@dataclass(frozen=True)
class Call:
    """A launch: the arguments that ``launch``, ``trace`` and the checks have in common, in their order."""

    source: KernelSource
    grid: Dim3
    block: Dim3
    args: list[Any]
    shared_bytes: int
    blocks: list[int] | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.source, self.grid, self.block, self.args, self.shared_bytes, self.blocks))


@dataclass(frozen=True)
class Product:
    """C = A B on a backend, A and B random; the leading dimensions are as much longer as ``padding`` says."""

    a: Matrix
    b: Matrix
    c: Matrix

    @property
    def args(self) -> list[Any]:
        """The arguments of ``tw_gemm``."""
        sizes = [np.int32(self.c.rows), np.int32(self.c.cols), np.int32(self.a.cols)]
        return [*sizes, *(x for m in (self.a, self.b, self.c) for x in (m, np.int64(m.ld)))]

    def expected(self, backend: EmulatorBackend) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The product in float64."""
        a, b = (backend.download(x).astype(np.float64) for x in (self.a, self.b))
        return a @ b


def product(backend: EmulatorBackend, m: int, n: int, k: int, *, dtype: Any = FP32, padding: int = 0) -> Product:
    random = np.random.default_rng(m * n + k)
    a = backend.upload(random.standard_normal((m, k)).astype(dtype.numpy), k + padding)
    b = backend.upload(random.standard_normal((k, n)).astype(dtype.numpy), n + padding)
    return Product(a, b, backend.empty(m, n, dtype, n + padding))
