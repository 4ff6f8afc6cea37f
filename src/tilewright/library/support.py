"""What ``tilewright.matmul`` multiplies: the table that errors quote, the docs print and programs read."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import BF16, DTYPES, FP16, FP32, DType
from tilewright.errors import UsageError

_UNITS = {BF16.name: "tensor cores", FP16.name: "tensor cores", FP32.name: "CUDA cores"}
_NUMPY = {BF16.name: "ml_dtypes.bfloat16", FP16.name: "numpy.float16", FP32.name: "numpy.float32"}
_TORCH = {BF16.name: "torch.bfloat16", FP16.name: "torch.float16", FP32.name: "torch.float32"}


def supported() -> list[dict[str, Any]]:
    """The element types that ``matmul`` takes, a row each, JSON-ready.

    ``operands`` is the type of A and of B, ``out`` what the result may be, ``accumulate`` the type that products are
    summed in, ``multiplied_on`` the unit that multiplies; ``numpy`` and ``torch`` are the names that those have for it.
    """
    return [
        {
            "operands": name,
            "out": list(DTYPES),
            "accumulate": FP32.name,
            "multiplied_on": unit,
            "numpy": _NUMPY[name],
            "torch": _TORCH[name],
        }
        for name, unit in _UNITS.items()
    ]


def possible(name: str) -> str:
    """The element types of an array by what it is called, as the end of an error's sentence."""
    if name.partition("[")[0] in ("a", "b", "out"):
        return sentence()
    return f"{name} can be {', '.join(DTYPES)}: others, masks of bool too, have to be converted first"


def sentence() -> str:
    """The table as the end of an error's sentence."""
    rows = [f"{row['operands']} ({row['multiplied_on']})" for row in supported()]
    return f"both operands can be {', '.join(rows)}, and the result any of {', '.join(DTYPES)}"


def markdown() -> str:
    """The table for the docs."""
    lines = ["| A and B | result | summed in | multiplied on | NumPy | PyTorch |", "|---|---|---|---|---|---|"]
    for row in supported():
        cells = (
            row["operands"],
            ", ".join(row["out"]),
            row["accumulate"],
            row["multiplied_on"],
            f"`{row['numpy']}`",
            f"`{row['torch']}`",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def out_dtype_of(value: Any) -> DType:
    """An ``out_dtype`` argument: a name, a ``DType``, or what NumPy or PyTorch calls it. Raises ``UsageError``."""
    if isinstance(value, DType):
        return value
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or str(value)
    name = text.removeprefix("torch.")
    for known in DTYPES.values():
        if name in (known.name, known.numpy_name):
            return known
    raise UsageError(f"out_dtype is {value!r}; it can be {', '.join(DTYPES)}")
