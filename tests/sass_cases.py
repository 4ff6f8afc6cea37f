"""What the compiler made of the library's kernels, as instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sass_lint

from tilewright import nvrtc
from tilewright.errors import TilewrightError


class Target:
    """An H200, as far as a source asks for one."""

    name, arch = "cuda", "sm_90a"


def instructions(sources: Sequence[Callable[[Any], Any]]) -> list[list[str]]:
    """Names of the instructions of kernels, each of which spills nothing and warns of nothing.

    ``sources`` make a kernel's source for a target. Skips where there is no NVRTC or no disassembler.
    """
    if nvrtc.unavailable_reason() is not None:
        pytest.skip(str(nvrtc.unavailable_reason()))
    try:
        sass_lint.disassembler()
    except TilewrightError as error:
        pytest.skip(str(error))
    kernels = [nvrtc.compile_kernel(source(Target())) for source in sources]
    for made in kernels:
        assert (made.report.spill_bytes, made.report.stack_bytes, made.report.warnings) == (0, 0, ())
    return [[each.name for each in code] for code in sass_lint.disassemble([made.cubin for made in kernels])]
