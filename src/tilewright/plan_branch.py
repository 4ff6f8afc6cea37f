"""What the plans of the branches have that those of the ladder have not: no rung, and a size they are made for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tilewright.dtypes import BF16, FP16, DType
from tilewright.errors import UsageError
from tilewright.plan_base import ALONE, Lanes, Plan, mistyped

if TYPE_CHECKING:
    from tilewright.gpu import GpuSpec
    from tilewright.problem import Problem

NO_RUNG = -1


@dataclass(frozen=True)
class BranchPlan(Plan):
    """A plan of a kernel off the ladder, which names itself by ``branch`` and ``kernel`` and not by a rung.

    ``out_dtype`` is the element type of C: any that there is; None stands for that of the operands.
    ``dependent_launch`` lets the kernel start under the one before it, and load what that must not write at once.
    Subclasses are complete once they have ``shared_parts``, ``constants``, ``complaints``, ``default`` and ``derived``
    and say with ``field(init=False)`` which of ``bm``, ``bn``, ``bk`` and ``threads`` follow from the rest. Raises
    ``UsageError`` for a combination that no kernel has, with the numbers that are against it.
    """

    branch: ClassVar[str]
    kernel: ClassVar[str]
    dtypes: ClassVar[tuple[DType, ...]] = (BF16, FP16)
    uses_tma: ClassVar[bool] = False

    rung: int = field(init=False, default=NO_RUNG)
    out_dtype: DType | None = field(default=None, kw_only=True)
    dependent_launch: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for mistake in mistyped(self):
            raise UsageError(f"{self.of}: {mistake}")
        if self.out_dtype == self.dtype:
            object.__setattr__(self, "out_dtype", None)
        for name, value in self.follows().items():
            object.__setattr__(self, name, value)
        for complaint in self.complaints():
            raise UsageError(f"{self.of}: {complaint}")

    @property
    def c_dtype(self) -> DType:
        """The element type of C."""
        return self.out_dtype or self.dtype

    def storing(self, out: DType) -> Self:
        """The same with C in another type."""
        return self.with_(out_dtype=out)

    @property
    def dependent(self) -> bool:
        """Whether a launch may start before the kernel ahead of it has ended."""
        return self.dependent_launch

    @property
    def of(self) -> str:
        """The branch and the kernel: ``decode gemv``."""
        return f"{self.branch} {self.kernel}"

    @property
    def has_epilogue(self) -> bool:
        """All kernels of branches apply one."""
        return True

    @property
    def lanes(self) -> Lanes:
        """Each comes by itself, with one element."""
        return ALONE

    @property
    def traits(self) -> tuple[str, ...]:
        """Words that tell plans of the same tile apart where stages and clusters do not; none where these do."""
        return ()

    def follows(self) -> Mapping[str, int]:
        """The fields that are not given, by name, from those that are. Only types have been checked."""
        return {}

    def complaints(self) -> Iterator[str]:
        """Why no kernel has this plan, the most basic reason first; nothing when one has."""
        if self.dtype not in self.dtypes:
            yield f"dtype is {self.dtype}; {' and '.join(map(str, self.dtypes))} are possible"

    @classmethod
    def default(cls, problem: Problem, *, aligned: bool) -> Self:
        """The plan for a problem by the branch's rule. Raises ``UsageError`` for one that the kernel does not take."""
        raise NotImplementedError

    def derived(self, gpu: GpuSpec, problem: Problem) -> dict[str, Any]:
        """What the arithmetic says of the plan on a problem: at least what ``derive.derived`` promises."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, the branch and the kernel in the rung's place."""
        values = super().to_dict()
        del values["rung"]
        values["out_dtype"] = self.c_dtype.name
        return {"branch": self.branch, "kernel": self.kernel, **values}
