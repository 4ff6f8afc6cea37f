"""From a program counter to the line of the kernel file it belongs to.

Kernels are compiled as one flat text with ``#line`` directives, so the DWARF line table names ``rungs/*.cu`` and
``tw/*.cuh``. An access inlined from a header is attributed to the line of the ``.cu`` file that called it, by the
call sites that DWARF records for inlined functions. Needs ``pyelftools``; without it, or on a system whose libraries
are not ELF, there are no lines.
"""

from __future__ import annotations

import bisect
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, order=True)
class SourceLine:
    """A line of a source file, named as the ``#line`` directives name it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class _Inlined:
    """One range of addresses of an inlined call, and where it was called from."""

    low: int
    high: int
    depth: int
    call: SourceLine


@dataclass
class LineTable:
    """The line table of one library, with addresses as in the file (not as loaded)."""

    starts: list[int] = field(default_factory=list)
    lines: list[SourceLine | None] = field(default_factory=list)  # None: of no one line
    inlined: list[_Inlined] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)

    def find(self, address: int) -> SourceLine | None:
        """The innermost ``.cu`` line that ``address`` belongs to; else the innermost line of any file."""
        frames = self._frames(address)
        return next((f for f in frames if f is not None and f.file.endswith(".cu")), frames[0])

    def describe(self, address: int) -> str | None:
        """The innermost line of kernel code in words; of a portable header, with the ``.cu`` line that called it."""
        called = self.find(address)
        inner = next((f for f in self._frames(address) if f is not None and f.file.startswith("tw/")), called)
        if called is None or inner == called:
            return None if called is None else str(called)
        return f"{inner} (called at {called})"

    def _frames(self, address: int) -> list[SourceLine | None]:
        """The line of ``address``, then those of the inlined calls around it."""
        index = bisect.bisect_right(self.starts, address) - 1
        leaf = self.lines[index] if index >= 0 else None
        callers = sorted((i for i in self.inlined if i.low <= address < i.high), key=lambda i: -i.depth)
        return [leaf, *(i.call for i in callers)]


@lru_cache(maxsize=64)
def line_table(library: Path) -> LineTable | None:
    """Read the lines of a shared library; None when ``pyelftools`` is missing or the file has none to give."""
    try:
        from elftools.common.exceptions import DWARFError, ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return None
    try:
        with library.open("rb") as stream:
            elf = ELFFile(stream)
            table = LineTable()
            symbols = elf.get_section_by_name(".dynsym")
            if symbols is not None:
                table.symbols = {s.name: s["st_value"] for s in symbols.iter_symbols() if s["st_value"]}
            if elf.has_dwarf_info():
                _read_dwarf(elf.get_dwarf_info(), table)
            return table
    except (OSError, ELFError, DWARFError):
        return None


def _read_dwarf(dwarf: Any, table: LineTable) -> None:
    rows: list[tuple[int, SourceLine | None]] = []
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        if program is None:
            continue
        top = unit.get_top_DIE()
        files = _file_names(program, _text(top.attributes.get("DW_AT_comp_dir")))
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            known = not state.end_sequence and state.line != 0  # 0: instructions merged from several lines
            line = SourceLine(files.get(state.file, "?"), state.line) if known else None
            rows.append((state.address, line))
        table.inlined.extend(_inlined_calls(dwarf, unit, top, files))
    # At one address the end of a sequence comes before the start of the next, and of several rows the last counts.
    rows.sort(key=lambda row: (row[0], row[1] is not None))
    table.starts = [address for address, _ in rows]
    table.lines = [line for _, line in rows]


def _text(attribute: Any) -> str:
    return "" if attribute is None else attribute.value.decode(errors="replace")


def _file_names(program: Any, compile_dir: str) -> dict[int, str]:
    """File numbers of a line program as paths; those below the folder of the compilation become relative again."""
    header = program.header
    first = 0 if header.version >= 5 else 1  # DWARF 5 counts files from 0 and names the compilation folder as 0
    folders = [f.decode(errors="replace") for f in header.include_directory]
    names = {}
    for number, entry in enumerate(header.file_entry, start=first):
        folder = entry.dir_index - first
        path = entry.name.decode(errors="replace")
        if 0 <= folder < len(folders):
            path = posixpath.join(folders[folder], path)
        if compile_dir:
            path = path.removeprefix(compile_dir.rstrip("/") + "/")
        names[number] = posixpath.normpath(path)
    return names


def _inlined_calls(dwarf: Any, unit: Any, top: Any, files: dict[int, str]) -> Iterator[_Inlined]:
    base = top.attributes["DW_AT_low_pc"].value if "DW_AT_low_pc" in top.attributes else 0
    stack = [(child, 0) for child in top.iter_children()]
    while stack:
        die, depth = stack.pop()
        if die.tag == "DW_TAG_inlined_subroutine" and "DW_AT_call_line" in die.attributes:
            file = die.attributes.get("DW_AT_call_file")
            call = SourceLine(files.get(file.value, "?") if file else "?", die.attributes["DW_AT_call_line"].value)
            for low, high in _ranges(dwarf, unit, die, base):
                yield _Inlined(low, high, depth, call)
        if die.has_children:
            stack.extend((child, depth + 1) for child in die.iter_children())


def _ranges(dwarf: Any, unit: Any, die: Any, base: int) -> Iterator[tuple[int, int]]:
    attributes = die.attributes
    if "DW_AT_low_pc" in attributes and "DW_AT_high_pc" in attributes:
        low, high = attributes["DW_AT_low_pc"].value, attributes["DW_AT_high_pc"]
        yield low, high.value if high.form == "DW_FORM_addr" else low + high.value
    elif "DW_AT_ranges" in attributes:
        from elftools.dwarf.ranges import BaseAddressEntry

        for entry in dwarf.range_lists().get_range_list_at_offset(attributes["DW_AT_ranges"].value, cu=unit):
            if isinstance(entry, BaseAddressEntry):
                base = entry.base_address
            elif getattr(entry, "is_absolute", False):
                yield entry.begin_offset, entry.end_offset
            else:
                yield base + entry.begin_offset, base + entry.end_offset
