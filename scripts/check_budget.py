#!/usr/bin/env python3
"""Size budgets: a module is read in one sitting, a rung differs from the one before by one idea.

Modules (.py, .cuh, .cpp, .hpp) have at most 400 lines, rungs and the kernels of branches at most 150, and a rung adds
and removes at most 90 lines of the rung before it, not counting lines that only moved into a shared header. Exit 1
names each excess.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from tilewright.report.diff import rung_diff

ROOT = Path(__file__).resolve().parent.parent
MODULE_LINES = 400
RUNG_LINES = 150
RUNG_CHANGED_LINES = 90
MODULE_SUFFIXES = {".py", ".cuh", ".cpp", ".hpp"}
MODULE_FOLDERS = ("src", "scripts", "tests")


def line_count(path: Path) -> int:
    """Lines of a text file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def modules(root: Path) -> Iterator[Path]:
    """The files that the module budget covers."""
    for folder in MODULE_FOLDERS:
        yield from sorted(p for p in (root / folder).rglob("*") if p.suffix in MODULE_SUFFIXES and p.is_file())


def rungs(root: Path) -> list[Path]:
    """The rung files in the order of the ladder: their names start with their numbers."""
    return sorted((root / "src/tilewright/cuda/rungs").glob("[0-9][0-9]_*.cu"))


def branches(root: Path) -> list[Path]:
    """The kernels of the branches and of the library, each as long as a rung may be."""
    cuda = root / "src/tilewright/cuda"
    return sorted([*(cuda / "branches").glob("*.cu"), *(cuda / "library").glob("*.cu")])


def problems(root: Path) -> list[str]:
    """Every budget that is exceeded, in words."""
    found = []
    for path in modules(root):
        if (lines := line_count(path)) > MODULE_LINES:
            found.append(f"{path.relative_to(root)}: {lines} lines; a module has at most {MODULE_LINES}")
    for path, what in [*((path, "rung") for path in rungs(root)), *((path, "branch") for path in branches(root))]:
        if (lines := line_count(path)) > RUNG_LINES:
            found.append(f"{path.relative_to(root)}: {lines} lines; a {what} has at most {RUNG_LINES}")
    for old, new in itertools.pairwise(rungs(root)):
        diff = rung_diff(old, new)
        if diff.changed > RUNG_CHANGED_LINES:
            found.append(
                f"{new.relative_to(root)}: {diff.added} lines added and {diff.removed} removed ({diff.moved} of them "
                f"moved into a header) since {old.name}; at most {RUNG_CHANGED_LINES} may change"
            )
    return found


def main() -> int:
    """Print a table of the rungs and every excess; 1 when there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the repository (default: this one)")
    root = parser.parse_args().root.resolve()
    files = rungs(root)
    for path in (*files, *branches(root)):
        print(f"{path.name:28} {line_count(path):4} lines")
    for old, new in itertools.pairwise(files):
        diff = rung_diff(old, new)
        print(f"{old.name} -> {new.name}: +{diff.added} -{diff.removed}, {diff.moved} moved: {diff.changed} lines")
    found = problems(root)
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"budgets: {len(list(modules(root)))} modules, {len(rungs(root))} rungs, {len(found)} too large")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
