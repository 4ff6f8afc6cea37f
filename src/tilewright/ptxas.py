"""What ptxas says of a kernel in its log: registers, shared memory, spills, warnings, and what it gave up."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

# What ptxas says, and compiles on, when it gives up what a tensor-core kernel is built on. Code built so is right and
# several times too slow, so that it counts as not compiled.
DEFEATS = {
    **dict.fromkeys(("C7504", "C7507", "C7508"), "ptxas ignores setmaxnreg"),
    **dict.fromkeys(
        ("C7509", "C7510", "C7511", "C7514", "C7515", "C7516", "C7519"), "ptxas runs wgmma one after another"
    ),
    "C7517": "ptxas adds a wgmma wait",
    "C7602": "ptxas finds too few registers for wgmma",
}


@dataclass(frozen=True)
class CompileReport:
    """What the compiler says of a kernel's entry function, per thread unless said otherwise.

    ``shared_bytes`` is static shared memory of a block, in bytes; ``stack_bytes`` the deepest stack in bytes;
    ``spill_store_bytes`` and ``spill_load_bytes`` include functions that were not inlined; ``barriers`` counts named
    barriers. Each is None when the compiler's log does not tell. ``seconds`` is what the compile took.
    """

    registers: int | None
    shared_bytes: int | None
    stack_bytes: int | None
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    barriers: int | None
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def spill_bytes(self) -> int | None:
        """Bytes of spill stores and loads together."""
        if self.spill_store_bytes is None or self.spill_load_bytes is None:
            return None
        return self.spill_store_bytes + self.spill_load_bytes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "warnings": list(self.warnings)}

    def of_launch(self, shared_bytes: int) -> dict[str, Any]:
        """What a record keeps of a kernel launched with ``shared_bytes`` of dynamic shared memory a block.

        The compiler does not see that; kernels here have no other.
        """
        return {**self.to_dict(), "shared_bytes": shared_bytes, "spill_bytes": self.spill_bytes}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CompileReport:
        """The inverse of ``to_dict``."""
        return cls(**{**values, "warnings": tuple(values["warnings"])})


def find_defeats(log: str) -> list[str]:
    """What of ``DEFEATS`` a compiler's log tells of: a sentence for each, with ptxas's own words."""
    found = (re.search(rf"\(({'|'.join(DEFEATS)})\)\s*(.*)", line) for line in log.splitlines())
    return [f"{DEFEATS[match[1]]} ({match[1]}: {match[2].strip()})" for match in found if match]


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_WARNING = re.compile(r":\s*warning\b|^ptxas warning|\(C\d{4}\)")  # (C7510) and its like: ptxas lost an optimisation


def parse_report(log: str, entry: str, seconds: float) -> CompileReport:
    """Read ptxas's ``-v`` output for kernel ``entry``, and the warnings of the whole log."""
    entries = set(_ENTRY.findall(log))
    kernel = function = ""
    spills = [0, 0]
    stack = 0
    used = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            kernel = function = match[1]
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif (match := _FRAME.search(line)) and (function == entry or function not in entries):
            spills = [spills[0] + int(match[2]), spills[1] + int(match[3])]
            stack = max(stack, int(match[1]))
        elif kernel == entry and _USED.search(line):
            used = line
    found = tuple(line.strip() for line in log.splitlines() if _WARNING.search(line))
    if not used:
        return CompileReport(None, None, None, None, None, None, seconds, found)

    def count(pattern: str) -> int:
        match = re.search(pattern, used)
        return int(match[1]) if match else 0

    return CompileReport(
        registers=count(r"Used (\d+) registers"),
        shared_bytes=count(r"(\d+) bytes smem"),
        stack_bytes=max(stack, count(r"(\d+) bytes cumulative stack size")),
        spill_store_bytes=spills[0],
        spill_load_bytes=spills[1],
        barriers=count(r"used (\d+) barriers"),
        seconds=seconds,
        warnings=found,
    )
