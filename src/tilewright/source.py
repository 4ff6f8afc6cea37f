"""From a kernel file to the one flat text a compiler is given.

The project's own includes (``#include <tw/...>``) are inlined, each once, with ``#line`` directives, so that the
text is the cache key, an error names the right file, and ``tilewright source`` prints exactly what was compiled.
Which folder a header comes from decides what it means: inline PTX (``cuda/gpu``) or C++ that says what the
instruction means (``cuda/host``). Everything else (``cuda/tw``) is portable and shared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tilewright.errors import UsageError

CUDA_ROOT = Path(__file__).parent / "cuda"
Target = Literal["gpu", "host"]
ENTRY = "tw_gemm"
EPILOGUE = CUDA_ROOT / "tw" / "epilogue_code.cuh"  # the plain one, whose place the text of another takes

_INCLUDE = re.compile(r"^\s*#\s*include\s*<(tw/\w+\.cuh)>")
_ANY_INCLUDE = re.compile(r"^\s*#\s*include\b")


@dataclass(frozen=True)
class KernelSource:
    """A kernel as one self-contained text. ``arch`` is a GPU target such as ``sm_90a``, None on the host."""

    name: str
    text: str
    target: Target
    arch: str | None = None
    entry: str = ENTRY


def include_dirs(target: Target) -> tuple[Path, Path]:
    """The folders searched for ``<tw/...>``, in order."""
    return CUDA_ROOT / target, CUDA_ROOT


def flatten(path: Path, target: Target, header: str, epilogue: str | None = None) -> str:
    """Return ``header`` (the plan) followed by ``path`` with its includes inlined.

    ``epilogue`` takes the place of ``EPILOGUE`` there. Raises ``UsageError`` when an include is not one of the
    project's headers, as a kernel may use nothing else, and for an epilogue that the kernel has no place for.
    """
    dirs = include_dirs(target)
    seen: set[Path] = set()
    out = [f"// {_label(path)}, flattened for the {target}", '#line 1 "plan"', header.rstrip("\n")]
    out.extend(_inline(path, dirs, seen, epilogue))
    if epilogue is not None and EPILOGUE not in seen:
        raise UsageError(f"{_label(path)} applies no epilogue; the kernels that include <tw/epilogue.cuh> do")
    if target == "host":
        out += ['#line 1 "export"', f"TW_EXPORT({ENTRY})"]
    return "\n".join(out) + "\n"


@cache
def kernels_digest() -> str:
    """The text of all kernels as a GPU's compiler sees it, in 16 hex digits of its SHA-256: which kernels these are."""
    found = hashlib.sha256()
    folders = (CUDA_ROOT / name for name in ("rungs", "branches", "library", "tw", "gpu"))
    for path in sorted(path for folder in folders for path in folder.rglob("*.cu*")):
        found.update(f"{_label(path)}\0{path.read_text(encoding='utf-8')}\0".encode())
    return found.hexdigest()[:16]


def _inline(path: Path, dirs: tuple[Path, Path], seen: set[Path], epilogue: str | None) -> Iterator[str]:
    replaced = epilogue is not None and path == EPILOGUE
    label = "epilogue" if replaced else _label(path)
    yield f'#line 1 "{label}"'
    text = epilogue if epilogue is not None and replaced else path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            if _ANY_INCLUDE.match(line):
                raise UsageError(f"{label}:{number} includes something that is not a <tw/...> header: {line.strip()}")
            if line.strip() != "#pragma once":
                yield line
            else:
                yield ""
            continue
        found = next((d / match[1] for d in dirs if (d / match[1]).is_file()), None)
        if found is None:
            raise UsageError(f"{label}:{number} includes {match[1]}, which is in none of {', '.join(map(str, dirs))}")
        if found not in seen:
            seen.add(found)
            yield from _inline(found, dirs, seen, epilogue)
            yield f'#line {number + 1} "{label}"'
        else:
            yield ""


def _label(path: Path) -> str:
    """A path as the reader knows it: relative to ``cuda/`` where it lies there."""
    try:
        return path.relative_to(CUDA_ROOT).as_posix()
    except ValueError:
        return path.name
