"""The element types a GEMM can have, with what the arithmetic needs to know of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import UsageError


@dataclass(frozen=True)
class DType:
    """One element type.

    ``unit_roundoff`` is half the distance from 1 to the next number: 2**-24 for fp32, 2**-8 for bf16.
    """

    name: str
    itemsize: int
    unit_roundoff: float
    c_name: str
    numpy_name: str

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; bf16 comes from ``ml_dtypes``."""
        if self.numpy_name == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return,unused-ignore]
        return np.dtype(self.numpy_name)

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is the one of this name there: they are compared by identity."""
        return dtype, (self.name,)


FP32 = DType("fp32", 4, 2.0**-24, "float", "float32")
BF16 = DType("bf16", 2, 2.0**-8, "tw::bf16", "bfloat16")
FP16 = DType("fp16", 2, 2.0**-11, "tw::fp16", "float16")
DTYPES = {d.name: d for d in (FP32, BF16, FP16)}


def dtype(name: str | DType) -> DType:
    """Look up a dtype by name. Raises ``UsageError`` listing the known ones."""
    if isinstance(name, DType):
        return name
    try:
        return DTYPES[name]
    except (KeyError, TypeError):  # the latter for what cannot be looked up, such as a list
        raise UsageError(f"dtype {name!r} is not one of {', '.join(DTYPES)}") from None
