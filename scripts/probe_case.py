"""What the probes of the tensor instructions share: a case, its kernel, and the fixture that keeps what came out."""

from __future__ import annotations

import io
import json
import lzma
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from observed import kernel_source

from tilewright.backends.base import Backend, Matrix
from tilewright.dtypes import FP32, DType
from tilewright.errors import EmulatorFault, LaunchError, UsageError
from tilewright.run import target_of
from tilewright.source import KernelSource

Array = np.ndarray[Any, Any]
SCHEMA = "tilewright.tensor-instructions/1"
_STATUS = re.compile(r"CUDA_ERROR_(\w+)")
_PROVENANCE = "provenance"  # the fixture's one array that is no case's: a JSON text


@dataclass(frozen=True)
class Case:
    """One thing to ask: ``run`` launches kernels on a backend and returns what came out.

    ``source`` is the kernel that it compiles. Two machines have to agree in every byte, or, where ``tolerance`` says
    so, within that relative and absolute difference. ``emulated`` is False where the emulator refuses to do it.
    ``alone``: hardware is expected to trap, so that the case has a process of its own. Of those two kinds, which may
    cost the context, a fault is an answer like another.
    """

    name: str
    source: Callable[[Backend], KernelSource]
    run: Callable[[Backend], Array]
    tolerance: tuple[float, float] | None = None
    emulated: bool = True
    alone: bool = False

    @property
    def may_trap(self) -> bool:
        """Whether a fault is an answer."""
        return self.alone or not self.emulated

    def answer(self, backend: Backend) -> Array:
        """What came out; where it may, a fault, as a string without dimensions."""
        try:
            return self.run(backend)
        except (LaunchError, EmulatorFault) as error:
            if not self.may_trap:
                raise
            status = _STATUS.search(str(error))
            return np.array(status[1].replace("_", " ").lower() if status else str(error))


def probe_source(backend: Backend, file: str, dtype: DType | None = None, **plan: int) -> KernelSource:
    """A kernel of tests/kernels/probes for a backend."""
    return kernel_source(f"probes/{file}", dtype, *target_of(backend), **plan)


def upload_words(backend: Backend, values: Array) -> Matrix:
    """An array of any type, its bytes a whole number of 32-bit words, as one row of them."""
    return backend.upload(np.ascontiguousarray(values).reshape(1, -1).view(np.float32))


def download_words(backend: Backend, matrix: Matrix) -> Array:
    """A matrix of 32-bit words as ``uint32``."""
    words: Array = backend.download(matrix).view(np.uint32)
    return words


def empty_words(backend: Backend, rows: int, columns: int) -> Matrix:
    """Rows of 32-bit words, all ones."""
    return backend.empty(rows, columns, FP32)


def is_fault(answer: Array) -> bool:
    """Whether that came of it and nothing else."""
    return bool(answer.dtype.kind == "U")


def save(path: Path, provenance: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a fixture: an ``.npz`` compressed as a whole, which takes a quarter of what its arrays take one by one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = np.array(json.dumps({"schema": SCHEMA, **provenance}))
    members: dict[str, Any] = {_PROVENANCE: text, **arrays}
    with lzma.open(path, "wb") as file:
        np.savez(file, **members)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """A fixture's provenance and arrays. Raises ``UsageError`` when it is none."""
    try:
        with lzma.open(path) as packed, np.load(io.BytesIO(packed.read())) as file:
            arrays = {name: file[name] for name in file.files}
        provenance = json.loads(str(arrays.pop(_PROVENANCE)))
    except (OSError, EOFError, ValueError, KeyError, lzma.LZMAError) as error:
        raise UsageError(f"{path} is no fixture: {error}") from error
    if provenance.get("schema") != SCHEMA:
        raise UsageError(f"{path} has schema {provenance.get('schema')!r}; {SCHEMA} is known here")
    return provenance, arrays


def difference(case: Case, recorded: Array, found: Array) -> str | None:
    """How what was found differs from what is recorded, in words; None where it does not. All faults are one."""
    if is_fault(recorded) and is_fault(found):
        return None
    if is_fault(recorded):
        return f"it runs; recorded is the fault: {recorded}"
    if is_fault(found):
        return f"fault: {found}; recorded is that it runs"
    if recorded.shape != found.shape or recorded.dtype != found.dtype:
        return f"{found.dtype}{list(found.shape)} instead of the recorded {recorded.dtype}{list(recorded.shape)}"
    if case.tolerance is None:
        wrong = recorded != found
    else:
        relative, absolute = case.tolerance
        wrong = ~np.isclose(found, recorded, relative, absolute)
    if not wrong.any():
        return None
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{np.count_nonzero(wrong)} of {wrong.size} elements differ, the first at {list(first)}: {found[first]}, "
        f"recorded is {recorded[first]}"
    )
