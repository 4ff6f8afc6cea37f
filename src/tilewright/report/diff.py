"""What one idea changed: the difference between two rungs, and how large it is by the project's own rule."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from tilewright.source import include_dirs

_INCLUDE = re.compile(r"^\s*#\s*include\s*<(tw/[\w./]+)>", re.MULTILINE)


@dataclass(frozen=True)
class RungDiff:
    """A unified diff (without line ends) and its counted lines.

    ``moved`` counts removed lines that stand in a header which only the later rung includes: they moved there and
    are no part of the change. Blank lines are not counted anywhere.
    """

    lines: tuple[str, ...]
    added: int
    removed: int
    moved: int

    @property
    def changed(self) -> int:
        """Lines added plus removed, those that only moved into a shared header left out."""
        return self.added + self.removed - self.moved


def body(text: str) -> list[str]:
    """The lines of a rung after its front matter (the comment lines it starts with)."""
    lines = text.splitlines()
    while lines and lines[0].startswith("//"):
        del lines[0]
    return lines


def rung_diff(old: Path, new: Path, context: int = 3) -> RungDiff:
    """Compare two rung files, front matter left out."""
    old_text, new_text = old.read_text(encoding="utf-8"), new.read_text(encoding="utf-8")
    lines = list(difflib.unified_diff(body(old_text), body(new_text), old.name, new.name, n=context, lineterm=""))
    changes = [line for line in lines[2:] if line[0] in "+-" and line[1:].strip()]
    removed = [line[1:].strip() for line in changes if line[0] == "-"]
    shared = _header_lines(set(_INCLUDE.findall(new_text)) - set(_INCLUDE.findall(old_text)))
    return RungDiff(
        lines=tuple(lines),
        added=len(changes) - len(removed),
        removed=len(removed),
        moved=sum(
            line in shared and re.search(r"\w", line) is not None for line in removed
        ),  # a lone "}" moves nowhere
    )


def _header_lines(names: set[str]) -> set[str]:
    """The stripped lines of the project's headers of these names."""
    files = [directory / name for name in names for directory in include_dirs("gpu")]
    return {line.strip() for file in files if file.is_file() for line in file.read_text("utf-8").splitlines()}
