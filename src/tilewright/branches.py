"""The branches off the ladder: kernels for what its last rung, a large tile on tensor cores, is wrong for.

A branch is one or more files in ``cuda/branches`` whose front matter names it, each with a class of plans that gives
itself a default for a problem. Nothing else has to know a branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.kernel_file import KernelFile, front_matter
from tilewright.plan_branch import BranchPlan
from tilewright.problem import Layout, Problem
from tilewright.source import CUDA_ROOT

Shape = tuple[int, int, int]

# The module and class of each kernel's plans, by branch and name. A module is imported when one of them is wanted.
_PLANS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("decode", "gemv"): ("plan_decode", "GemvPlan"),
    ("decode", "mma"): ("plan_decode", "MmaPlan"),
    ("swapab", "swap-ab"): ("plan_swapab", "SwapAbPlan"),
    ("splitk", "split-k"): ("plan_splitk", "SplitKPlan"),
    ("streamk", "stream-k"): ("plan_streamk", "StreamKPlan"),
    ("simt", "fp32"): ("plan_simt32", "Simt32Plan"),
}
_SHAPES: Mapping[str, Mapping[Literal["emulated", "measured", "ragged"], Shape]] = {
    "decode": {"emulated": (2, 2560, 4096), "measured": (2, 4096, 4096), "ragged": (3, 77, 1033)},
    "swapab": {"emulated": (16, 256, 1024), "measured": (16, 4096, 4096), "ragged": (13, 200, 1544)},
    "splitk": {"emulated": (128, 128, 4096), "measured": (1024, 1024, 8192), "ragged": (130, 136, 1544)},
    "streamk": {"emulated": (256, 384, 512), "measured": (2304, 2304, 4096), "ragged": (130, 520, 520)},
    "simt": {"emulated": (128, 256, 128), "measured": (4096, 4096, 4096), "ragged": (129, 257, 33)},
}


@dataclass(frozen=True)
class BranchKernel(KernelFile):
    """One kernel of a branch."""

    branch: str

    @property
    def place(self) -> str:
        """The branch and the kernel: ``decode gemv``."""
        return f"{self.branch} {self.name}"

    @property
    def identity(self) -> Mapping[str, int | str]:
        """Its branch; a kernel's name is one of its own there."""
        return {"branch": self.branch}

    @property
    def plan_kind(self) -> type[BranchPlan]:
        """The class of its plans."""
        module, name = _PLANS[self.branch, self.name]
        kind: type[BranchPlan] = getattr(import_module(f"tilewright.{module}"), name)
        return kind

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The element types it runs for."""
        return self.plan_kind.dtypes

    @property
    def uses_tma(self) -> bool:
        """Whether it moves operands by TMA."""
        return self.plan_kind.uses_tma

    def plan_for(self, problem: Problem, *, aligned: bool) -> BranchPlan:
        """The plan for a problem by the branch's rule."""
        if problem.dtype not in self.dtypes:
            raise UsageError(f"{self.place} runs {', '.join(map(str, self.dtypes))}, not {problem.dtype}")
        return self.plan_kind.default(problem, aligned=aligned)


@dataclass(frozen=True)
class Branch:
    """A branch: its kernels, and shapes (m, n, k) that show what it is for.

    ``emulated`` takes seconds without a GPU, ``measured`` is what a GPU is timed at, ``ragged`` is no multiple of any
    tile. All are of row-major A and column-major B, in which every line of both runs along K.
    """

    name: str
    kernels: tuple[BranchKernel, ...]
    shapes: Mapping[Literal["emulated", "measured", "ragged"], Shape]

    @property
    def dtype(self) -> DType:
        """The element type of the operands where the caller names none."""
        return self.kernels[0].dtypes[0]


LAYOUTS: tuple[Layout, Layout] = ("row", "column")


@cache
def branches() -> Mapping[str, Branch]:
    """All branches by name."""
    files = [(path, front_matter(path)) for path in sorted((CUDA_ROOT / "branches").glob("*.cu"))]
    kernels = [BranchKernel(f["name"], f["title"], f["idea"], path, f["branch"]) for path, f in files]
    found = [
        Branch(name, tuple(each for each in kernels if each.branch == name), shapes) for name, shapes in _SHAPES.items()
    ]
    return {each.name: each for each in found if each.kernels}


def branch(name: str) -> Branch:
    """One branch. Raises ``UsageError`` listing those there are."""
    try:
        return branches()[name]
    except (KeyError, TypeError):
        raise UsageError(f"branch {name!r} is not one of {', '.join(branches())}") from None


def kernel(branch_name: str, name: str) -> BranchKernel:
    """One kernel of a branch. Raises ``UsageError`` listing those it has."""
    for each in (found := branch(branch_name)).kernels:
        if each.name == name:
            return each
    raise UsageError(f"kernel {name!r} of branch {found.name} is not one of {', '.join(k.name for k in found.kernels)}")


def of_file(stem: str) -> BranchKernel:
    """The kernel whose file is ``cuda/branches/STEM.cu``. Raises ``UsageError`` listing those there are."""
    files = {each.path.stem: each for found in branches().values() for each in found.kernels}
    try:
        return files[stem]
    except KeyError:
        raise UsageError(f"kernel {stem!r} is neither the number of a rung nor one of {', '.join(files)}") from None


def select(name: str, problem: Problem) -> list[BranchKernel]:
    """The kernels of a branch that take a problem, its lines padded for those that move operands by TMA.

    Raises ``UsageError`` with each one's reason where none does.
    """
    taken, reasons = [], []
    for each in branch(name).kernels:
        try:
            each.plan_for(problem, aligned=(problem.padded() if each.uses_tma else problem).aligned)
        except UsageError as reason:
            reasons.append(str(reason))
        else:
            taken.append(each)
    if not taken:
        raise UsageError("; ".join(reasons))
    return taken
