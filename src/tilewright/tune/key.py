"""What a winner is a winner of: where it was measured, and on what. Another value of any field is another key."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

from tilewright import __version__, nvrtc
from tilewright.backends.cuda_errors import cuda_unavailable_reason, driver_errors, driver_version
from tilewright.errors import UnavailableError
from tilewright.problem import Problem
from tilewright.source import kernels_digest
from tilewright.telemetry import Telemetry

PLAIN = "none"  # the epilogue that stores C and does nothing else


@dataclass(frozen=True)
class Where:
    """A GPU by the name that its driver gives it, its SMs, and the versions of everything that makes a kernel.

    ``kernels`` is ``source.kernels_digest``, for kernels change while a version is in the making.
    """

    gpu: str
    sms: int
    driver: str
    version: str
    kernels: str
    nvrtc: str


@dataclass(frozen=True)
class What:
    """A kind of problem. ``layout`` has a letter for A and one for B, ``epilogue`` all that a call does beside it.

    ``alignment`` names the matrices whose lines all start on 16-byte boundaries, such as ``abc``, or ``none``: it is
    what decides which kernels take the operands, so that leading dimensions are no part of a key.
    """

    m: int
    n: int
    k: int
    dtype: str
    layout: str
    epilogue: str
    alignment: str

    @classmethod
    def of(cls, problem: Problem, epilogue: str = PLAIN, alignment: str | None = None) -> What:
        """That of a problem whose matrices start on 16-byte boundaries, unless ``alignment`` says otherwise."""
        p = problem
        kind = str(p.dtype) if p.out_dtype == p.dtype else f"{p.dtype}->{p.out_dtype}"
        return cls(
            p.m, p.n, p.k, kind, p.a_layout[0] + p.b_layout[0], epilogue, alignment or alignment_of(problem)
        )  # fmt: skip

    @property
    def is_one_product(self) -> bool:
        """Whether M, N and K are all there is to multiply: neither a batch nor a pair."""
        return not {"pair", "batch"} & set(self.epilogue.replace(",", "").split())

    def __str__(self) -> str:
        more = [f"epilogue {self.epilogue}"] * (self.epilogue != PLAIN)
        more += [f"16-byte lines: {self.alignment}"] * (self.alignment != "abc")
        return ", ".join([f"{self.m}x{self.n}x{self.k} {self.dtype} {self.layout}", *more])


Key = tuple[Where, What]
KEY_FIELDS = tuple(field.name for kind in (Where, What) for field in fields(kind))
INTEGERS = frozenset(("sms", "m", "n", "k"))


def key_values(key: Key) -> tuple[int | str, ...]:
    """Its values in the order of ``KEY_FIELDS``."""
    return tuple(getattr(part, field.name) for part in key for field in fields(part))


def key_of(values: tuple[int | str, ...]) -> Key:
    """The inverse of ``key_values``."""
    count = len(fields(Where))
    return Where(*values[:count]), What(*values[count:])  # type: ignore[arg-type]


def alignment_of(problem: Problem) -> str:
    """Which of A, B and C have lines that start on 16-byte boundaries where the matrices do."""
    lines = {
        "a": problem.lda * problem.dtype.itemsize,
        "b": problem.ldb * problem.dtype.itemsize,
        "c": problem.ldc * problem.out_dtype.itemsize,
    }
    return "".join(name for name, length in lines.items() if length % 16 == 0) or "none"


@cache
def here() -> Where:
    """The GPU that is present, with what kernels are made of here. Raises ``UnavailableError`` where there is none."""
    reason = cuda_unavailable_reason()
    if reason is not None:
        raise UnavailableError(f"tune measures on a GPU, and there is none to use here: {reason}")
    from cuda.core import Device

    with driver_errors("describing the GPU"):
        device = Device(0)  # not made current: asking for properties must not create a context
        name, sms = str(device.name), int(device.properties.multiprocessor_count)
    driver = Telemetry().driver_version() or "CUDA {}.{}".format(*(driver_version() or (0, 0)))
    return Where(name, sms, driver, __version__, kernels_digest(), "{}.{}".format(*nvrtc.nvrtc_version()))
