#!/usr/bin/env python3
"""What the compiler left in the main loops: a lint over the disassembly of Hopper kernels. Needs no GPU.

A main loop is an innermost loop that multiplies (with ``HGMMA``, else ``HMMA``, else ``FFMA``, whichever of these the
kernel has) or that issues TMA loads and waits between them. In one there must be

- no access to local memory: it is a spill, or an array indexed at run time;
- in kernels with ``HGMMA``, no memory barrier of GPU scope or wider, no invalidation of the L1 cache and no wait for
  memory errors, all of which stall the tensor cores for hundreds of cycles: a fence or an ``mbarrier`` operation of
  wider scope than it needs to be compiles to them;
- in those with TMA loads as well, no memory barrier at all: data that arrive by TMA are waited for at an ``mbarrier``.

A kernel with no loop that multiplies is one that the lint did not understand, and a problem too.

``python scripts/sass_lint.py FILE.cubin ...`` prints the main loops of each file and what is wrong with them. The
disassembler is ``nvdisasm``, from the package nvidia-cuda-nvdisasm or on PATH.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tilewright.errors import TilewrightError, UnavailableError, UsageError
from tilewright.source import ENTRY

INSTRUCTION_BYTES = 16  # since Volta
MULTIPLIES = ("HGMMA", "HMMA", "FFMA")  # in this order: the first that a kernel has is what its main loops are for
LOADS = "UTMALDG"
JUMPS = ("BRA", "JMP")
WAITS = "SYNCS.PHASECHK"  # mbarrier.try_wait
_TARGET = re.compile(r"(?:^|,)(0x[0-9a-f]+)$")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its address from the start of the kernel, and its text in parts."""

    address: int
    opcode: str
    operands: str = ""
    predicate: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.address:#06x}", self.predicate, self.opcode, self.operands)))

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Loop:
    """The instructions of a loop, in the order of their addresses, and the loops inside it."""

    code: tuple[Instruction, ...]
    inner: tuple[Loop, ...] = field(repr=False)

    def has(self, opcode: str) -> bool:
        """Whether an instruction whose opcode starts so is in it, or in a loop inside it."""
        return any(instruction.opcode.startswith(opcode) for instruction in self.code)

    def __str__(self) -> str:
        names = [instruction.name for instruction in self.code]
        counted = ", ".join(f"{names.count(name)} {name}" for name in (*MULTIPLIES, LOADS) if name in names)
        return f"loop at {self.code[0].address:#06x}, {len(names)} instructions: {counted}"


def disassembler() -> str:
    """The path of nvdisasm. Raises ``UnavailableError`` when there is none."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("nvidia-cuda-nvdisasm") or []:
            if file.stem == "nvdisasm":
                return str(file.locate())
    if (found := shutil.which("nvdisasm")) is not None:
        return found
    raise UnavailableError("disassembling a kernel needs nvdisasm: pip install nvidia-cuda-nvdisasm")


def disassemble(cubins: Sequence[bytes], entry: str = ENTRY) -> list[tuple[Instruction, ...]]:
    """The code of kernel ``entry`` in each cubin for sm_90a.

    All go through one run of nvdisasm, end to end as raw code: it takes half a second to start and next to nothing
    for a kernel. Raises ``UsageError`` when a cubin has no such kernel, ``UnavailableError`` without nvdisasm.
    """
    sections = [_section(cubin, f".text.{entry}") for cubin in cubins]
    with tempfile.NamedTemporaryFile(suffix=".bin") as raw:
        raw.write(b"".join(sections))
        raw.flush()
        command = [disassembler(), "--binary", "SM90a", "-json", raw.name]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise UnavailableError(f"nvdisasm failed: {(run.stderr.strip().splitlines() or ['without a message'])[0]}")
    listing = [line for function in json.loads(run.stdout)[1] for line in function["sass-instructions"]]
    found, start = [], 0
    for section in sections:
        count = len(section) // INSTRUCTION_BYTES
        found.append(tuple(_instructions(listing[start : start + count], start * INSTRUCTION_BYTES)))
        start += count
    return found


def _section(cubin: bytes, name: str) -> bytes:
    section = ELFFile(io.BytesIO(cubin)).get_section_by_name(name)
    if section is None:
        raise UsageError(f"the cubin has no section {name}")
    return bytes(section.data())


def _instructions(lines: Sequence[dict[str, str]], base: int) -> Iterator[Instruction]:
    """``base`` is the kernel's place in the code that was disassembled, from whose start targets are counted."""
    for number, line in enumerate(lines):
        opcode, operands = line["opcode"], line.get("operands", "")
        if opcode.startswith(JUMPS) and (match := _TARGET.search(operands)):
            operands = operands[: match.start(1)] + f"{int(match[1], 16) - base:#x}"
        yield Instruction(number * INSTRUCTION_BYTES, opcode, operands, line.get("predicate", ""))


def loops(code: Sequence[Instruction]) -> tuple[Loop, ...]:
    """The outermost loops of a kernel, each with those inside it.

    A loop is a strongly connected part of the control-flow graph, and those inside it are what is left of it without
    the instructions through which it is entered. So code that the compiler moved out of line, such as the rest of a
    wait, counts where it belongs, and code that merely lies between does not.
    """
    successors = _successors(code)
    reached, todo = {0}, [0]
    while todo:
        new = [node for node in successors[todo.pop()] if node not in reached]
        reached.update(new)
        todo += new
    return _nest(code, successors, reached, entries={0})


def _nest(
    code: Sequence[Instruction], successors: Sequence[Sequence[int]], nodes: set[int], entries: set[int]
) -> tuple[Loop, ...]:
    found = []
    for part in _strong_parts(successors, nodes):
        if len(part) == 1 and not part & set(successors[min(part)]):
            continue
        entered = {target for node in nodes - part for target in successors[node]} & part | (entries & part)
        inner = part - entered
        entries_of_inner = {target for node in entered for target in successors[node]} & inner
        found.append(Loop(tuple(code[n] for n in sorted(part)), _nest(code, successors, inner, entries_of_inner)))
    return tuple(sorted(found, key=lambda loop: loop.code[0].address))


def _successors(code: Sequence[Instruction]) -> list[list[int]]:
    """What may run after each instruction, by index. A BSYNC stands in front of the place that its BSSY names."""
    found = []
    for index, instruction in enumerate(code):
        if instruction.name in ("BRX", "JMX"):
            raise UsageError(f"a jump through a register cannot be followed: {instruction}")
        target = _TARGET.search(instruction.operands) if instruction.name in JUMPS else None
        jumps = instruction.opcode in JUMPS and target is not None and target[0] == instruction.operands
        ends = not instruction.predicate and (jumps or instruction.name in ("EXIT", "RET"))
        after = [] if ends or index + 1 == len(code) else [index + 1]
        found.append(after + ([int(target[1], 16) // INSTRUCTION_BYTES] if target else []))
    return found


def _strong_parts(successors: Sequence[Sequence[int]], nodes: set[int]) -> list[set[int]]:
    """Strongly connected parts of the graph among ``nodes``: Tarjan's algorithm, without recursion."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    open_nodes: set[int] = set()
    found = []
    for root in nodes:
        if root in order:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(successors[root]))]
        order[root] = low[root] = len(order)
        path.append(root)
        open_nodes.add(root)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in nodes:
                    continue
                if target not in order:
                    order[target] = low[target] = len(order)
                    path.append(target)
                    open_nodes.add(target)
                    work.append((target, iter(successors[target])))
                    break
                if target in open_nodes:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    cut = path.index(node)
                    found.append(set(path[cut:]))
                    open_nodes -= found[-1]
                    del path[cut:]
    return found


def innermost(nest: Sequence[Loop], wanted: Callable[[Loop], bool]) -> Iterator[Loop]:
    """The loops for which ``wanted`` holds and for no loop inside them."""
    for loop in filter(wanted, nest):
        inside = list(innermost(loop.inner, wanted))
        yield from inside or [loop]


def multiply_of(code: Sequence[Instruction]) -> str:
    """What a kernel's main loops are for."""
    names = {instruction.name for instruction in code}
    return next((name for name in MULTIPLIES if name in names), MULTIPLIES[-1])


def main_loops(code: Sequence[Instruction]) -> list[Loop]:
    """The innermost loops that multiply, and those that issue TMA loads and wait."""
    nest, multiply = loops(code), multiply_of(code)
    found = [
        *innermost(nest, lambda loop: loop.has(multiply)),
        *innermost(nest, lambda loop: loop.has(LOADS) and loop.has(WAITS)),
    ]
    return list(dict.fromkeys(found))


def problems(code: Sequence[Instruction]) -> list[str]:
    """What breaks the rules of this module: a sentence a kind and main loop, or that there is no such loop."""
    names = {instruction.name for instruction in code}
    main, multiply = main_loops(code), multiply_of(code)
    found = []
    if not any(loop.has(multiply) for loop in main):
        found.append(f"no loop that multiplies with {multiply} was found, so that none was checked")
    for loop in main:
        broken: dict[str, list[Instruction]] = {}
        for instruction in loop.code:
            if reason := _reason(instruction, "HGMMA" in names, LOADS in names):
                broken.setdefault(reason, []).append(instruction)
        found += [f"{loop}: {len(where)} x {reason}, first {where[0]}" for reason, where in broken.items()]
    return found


def _reason(instruction: Instruction, hgmma: bool, tma: bool) -> str | None:
    name, modifiers = instruction.name, instruction.opcode.split(".")[1:]
    if name in ("LDL", "STL"):
        return "local memory"
    if not hgmma:
        return None
    if name == "MEMBAR" and "CTA" not in modifiers:
        return "a memory barrier wider than the block"
    if name == "MEMBAR" and tma:
        return "a memory barrier"
    if name == "CCTL" and "IVALL" in modifiers:
        return "an invalidation of the L1 cache"
    return "a wait for memory errors" if name in ("ERRBAR", "CGAERRBAR") else None


def main() -> int:
    """The command line; 1 when a rule is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cubins", nargs="+", type=Path)
    parser.add_argument("--entry", default=ENTRY)
    given = parser.parse_args()
    wrong = 0
    try:
        found = disassemble([path.read_bytes() for path in given.cubins], given.entry)
        for path, code in zip(given.cubins, found, strict=True):
            for loop in main_loops(code):
                print(f"{path}: {loop}")
            for problem in problems(code):
                print(f"{path}: {problem}")
                wrong += 1
    except TilewrightError as error:
        sys.exit(f"error: {error}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
