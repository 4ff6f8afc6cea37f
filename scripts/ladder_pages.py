#!/usr/bin/env python3
"""Write the generated blocks of docs/ladder/*.md, docs/branches/*.md and docs/measuring.md. With --check, only compare.

A block stands between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``; all around it is written by hand.
Derived figures come from the arithmetic, counted ones from the emulator, registers from the compiler and measured ones
from results/: no GPU is needed. Exit 1 names each block that is not current, is missing or should not be there; 3 says
what is not installed that a block is made with.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import branch_blocks
import ladder_blocks as blocks
import ladder_figures
import ladder_records
import tensor_table

from tilewright import branches, ladder, results
from tilewright.errors import UnavailableError
from tilewright.plan_tensor import LAST
from tilewright.results import Record

ROOT = Path(__file__).resolve().parent.parent
Maker = Callable[[], str]

_BLOCK = re.compile(r"<!-- generated: (\w+) -->\n(.*?)<!-- end: \1 -->", re.DOTALL)


@dataclass
class Renewed:
    """A page with every block made anew, and what was found on the way."""

    text: str
    stale: list[str] = field(default_factory=list)  # blocks that were not current
    wrong: list[str] = field(default_factory=list)  # blocks that are missing, doubled or unknown
    unmade: list[str] = field(default_factory=list)  # why a block could not be made here; its old text stays


def pages(root: Path, records: Sequence[Record]) -> dict[Path, dict[str, Maker]]:
    """Each page that holds blocks, and how each of its blocks is made."""
    mine = ladder_records.of_gpu(records)
    found: dict[Path, dict[str, Maker]] = {
        root / "docs/ladder/README.md": {"ladder": partial(blocks.ladder_block, mine)},
        root / "docs/measuring.md": {"runs": partial(ladder_records.runs_block, records)},
    }
    for rung in ladder.rungs().values():
        page = root / "docs/ladder" / f"{rung.path.stem}.md"
        found[page] = {name: partial(make, rung, mine) for name, make in blocks.blocks_of(rung).items()}
        if rung.number == LAST:
            found[page]["rows"] = partial(tensor_table.rows_block, records)
    for branch in branches.branches().values():
        page = root / "docs/branches" / f"{branch.name}.md"
        found[page] = {name: partial(make, branch) for name, make in branch_blocks.blocks_of(branch).items()}
    return found


def renew(text: str, makers: Mapping[str, Maker], script: str = "scripts/ladder_pages.py") -> Renewed:
    """Make every block of a page anew; ``script`` is what a reader of "not current" is told to run."""
    found = Renewed(text)
    names = [match[1] for match in _BLOCK.finditer(text)]
    found.wrong += [f"block {name} stands there {names.count(name)} times" for name in makers if names.count(name) != 1]
    found.wrong += [f"block {name} is one that nothing makes" for name in names if name not in makers]

    def again(match: re.Match[str]) -> str:
        name, old = match[1], match[2]
        if name not in makers:
            return match[0]
        try:
            new = makers[name]()
        except UnavailableError as error:
            found.unmade.append(f"block {name} cannot be made here: {error}")
            return match[0]
        if new != old:
            found.stale.append(f"block {name} is not current: run {script}")
        return f"<!-- generated: {name} -->\n{new}<!-- end: {name} -->"

    found.text = _BLOCK.sub(again, text)
    return found


def main() -> int:
    """Write the blocks, or with --check compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a block is not current")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the repository (default: this one)")
    arguments = parser.parse_args()
    root: Path = arguments.root
    ladder_figures.compile_ahead(list(ladder.rungs().values()))
    bad = unmade = 0
    for path, makers in pages(root, results.load(root / "results")).items():
        found = renew(path.read_text("utf-8"), makers)
        if not arguments.check:
            path.write_text(found.text, "utf-8")
            found.stale.clear()
        for problem in (*found.wrong, *found.stale, *found.unmade):
            print(f"{path.relative_to(root)}: {problem}", file=sys.stderr)
        bad, unmade = bad + len(found.wrong) + len(found.stale), unmade + len(found.unmade)
    print(f"ladder pages: {bad} blocks wrong, {unmade} that cannot be made here")
    return 1 if bad else 3 if unmade else 0


if __name__ == "__main__":
    sys.exit(main())
