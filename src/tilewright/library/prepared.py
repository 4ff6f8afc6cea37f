"""A choice made ready to start: kernels compiled, arguments in memory, only addresses left to fill in.

Kernels are bound to addresses that stand for the roles of arrays, each in a range of its own, so that in any argument,
a tensor map too, it is seen whose address it holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.backends.base import Backend, Matrix, Packed, TensorMap
from tilewright.backends.cuda_capture import outside_capture
from tilewright.backends.cuda_prepared import Fill, PreparedLaunch, moved
from tilewright.batch import Batch
from tilewright.dtypes import FP32, DType
from tilewright.library import pack, sums
from tilewright.library.choose import Choice, Question, strided, three
from tilewright.library.fused import Fused
from tilewright.library.layouts import Lines
from tilewright.library.pair import SECOND
from tilewright.library.shapes import Product, View
from tilewright.library.sums import Partials, Sum
from tilewright.library.workspaces import Workspaces
from tilewright.plan_base import MOST_COUNTERS
from tilewright.run import Launch, Operands, prepare
from tilewright.selection import kernel_of

A, B, C, WORKSPACE, MORE = range(5)
RANGE = 44  # bits of an address that are the offset within a role
POINTER_BYTES = 8
PLACE_BYTES = 256  # what is put into a workspace starts on a multiple

Starter = Callable[[tuple[int, ...], int], None]


def stand_in(role: int, offset: int = 0) -> int:
    """The address that stands for a role, ``offset`` bytes past a multiple of 16."""
    return ((role + 1) << RANGE) + offset


@dataclass(frozen=True)
class Prepared:
    """The launches of a choice. ``workspace_bytes`` is what they need beside the caller's arrays."""

    choice: Choice
    starters: tuple[Starter, ...]
    workspace_bytes: int
    workspaces: Workspaces

    @property
    def alone(self) -> Starter | None:
        """The one launch, where there is one and it needs no workspace: it can be started without more ado."""
        return None if self.workspace_bytes or len(self.starters) > 1 else self.starters[0]

    def __call__(self, pointers: tuple[int, ...], stream: int) -> None:
        """Queue them on the stream of that handle, ``pointers`` being the addresses of roles, 0 for the workspace."""
        if not self.workspace_bytes:
            for start in self.starters:
                start(pointers, stream)
            return
        held = self.workspaces.of(stream, self.workspace_bytes)
        with held.lock:  # on this stream nobody else's copies or partial sums come between these and who reads them
            self.queue(pointers, stream, held.memory.pointer)

    def queue(self, pointers: tuple[int, ...], stream: int, workspace: int) -> None:
        """The same with a workspace at this address, which nobody else uses meanwhile."""
        pointers = (*pointers[:WORKSPACE], workspace, *pointers[WORKSPACE + 1 :])
        for start in self.starters:
            start(pointers, stream)


@dataclass(frozen=True)
class Rooms:
    """Where in the workspace each packed copy begins, each result's partial sums do, and the bytes that all take."""

    packs: tuple[int, ...]
    sums: tuple[tuple[Sum, Partials, int], ...]
    nbytes: int


def rooms_of(choice: Choice, product: Product, after: Fused | None) -> Rooms:
    """The workspace of a choice for a product and what follows it."""
    needed = choice.plan.workspace_bytes(choice.problem)
    wanted = () if after is None else after.sums
    partials = [each.partials(choice.plan.lanes, product) for each in wanted]
    sizes = [
        *(pack.tight(each.array, each.layout).nbytes for each in choice.packs),
        *(each.nbytes for each in partials),
    ]
    if not sizes:
        return Rooms((), (), needed)
    begins, end = [], max(needed, 4 * MOST_COUNTERS)  # the counters stay zero, whoever else uses the workspace
    for size in sizes:
        begins.append(-(-end // PLACE_BYTES) * PLACE_BYTES)
        end = begins[-1] + size
    packs = len(choice.packs)
    return Rooms(tuple(begins[:packs]), tuple(zip(wanted, partials, begins[packs:], strict=True)), end)


def make_ready(
    backend: Backend, question: Question, choice: Choice, workspaces: Workspaces, after: Fused | None = None
) -> Prepared:
    """Compile and bind. Raises ``CompileError`` or ``UnavailableError`` where that cannot be."""
    p = question.product
    needed = choice.plan.workspace_bytes(choice.problem)
    views = {"a": (p.a, question.dtype), "b": (p.b, question.dtype), "c": (p.c, question.out_dtype)}
    roles = {"a": A, "b": B, "c": C}
    if p.second is not None:
        roles[SECOND], views[SECOND] = MORE, (p.second, question.dtype)
    matrices = {
        name: _matrix(stand_in(role, question.offsets[role]), *views[name], choice.lines[name])
        for name, role in roles.items()
    }
    memory = _row(0, needed)
    steps = {name: three(view.batch, 0) for name, (view, _) in views.items()}
    starters: list[Starter] = [] if after is None else [Fill(backend, *each) for each in after.fills]
    rooms = rooms_of(choice, p, after)
    with outside_capture(backend.name == "cuda"):
        for each, begin in zip(choice.packs, rooms.packs, strict=True):
            role = roles[each.operand]
            array = strided(question, each.operand, stand_in(role, question.offsets[role]))
            copy = pack.tight(array, each.layout)
            steps[each.operand] = copy.steps
            copying, _ = pack.prepare(backend, array, each.layout, _row(begin, copy.nbytes))
            if 0 not in copying.grid:  # of no elements there is nothing to copy
                starters.append(starter(backend, copying, question.offsets, [(0, 0, role, 0)]))
            matrices[each.operand] = replace(matrices[each.operand], pointer=stand_in(WORKSPACE) + begin)
        places = {wanted.name: partials.array(stand_in(WORKSPACE) + begin) for wanted, partials, begin in rooms.sums}
        launch = prepare(
            backend,
            kernel_of(choice.plan),
            choice.plan,
            Operands(**matrices, batch=Batch(three(p.batch, 1), *(steps[name] for name in "abc")) if p.batch else None),
            workspace=memory if needed else None,
            epilogue=None if after is None else after.summing(places),
        )
        last = len(launch.args) - 1
        there = {wanted.byte: begin for wanted, _, begin in rooms.sums}
        fields = [
            (last, byte, WORKSPACE, there[byte]) if byte in there else (last, byte, role, 0)
            for byte, role in (() if after is None else after.fields)
        ]
        starters.append(starter(backend, launch, question.offsets, fields))
        for wanted, partials, begin in rooms.sums:
            to = wanted.result(stand_in(wanted.role))
            adding = sums.prepare(backend, partials, _row(begin, partials.nbytes), to)
            starters.append(starter(backend, adding, question.offsets, [(sums.RESULT, 0, wanted.role, 0)]))
    return Prepared(choice, tuple(starters), rooms.nbytes, workspaces)


def _row(begin: int, nbytes: int) -> Matrix:
    """Bytes of the workspace."""
    return Matrix(stand_in(WORKSPACE) + begin, 1, nbytes // 4, nbytes // 4, FP32, None)


def _matrix(pointer: int, view: View, dtype: DType, lines: Lines) -> Matrix:
    assert lines.layout is not None
    return Matrix(pointer, view.rows, view.cols, lines.ld, dtype, None, lines.layout)


def starter(
    backend: Backend, launch: Launch, offsets: Sequence[int], members: Sequence[tuple[int, int, int, int]] = ()
) -> Starter:
    """A launch that was bound to stand-ins, to be started for given addresses.

    ``members`` are ``(argument, byte, role, offset)``: addresses within arguments that are structs.
    """
    slots = slots_of(launch.args, offsets)
    inside = {number for number, *_ in members}
    fields = [each for each in pointers_of(launch.args, offsets) if each[0] not in inside]
    fields += members
    if backend.name == "cuda":
        return PreparedLaunch(
            backend,
            launch.kernel,
            launch.grid,
            launch.block,
            launch.args,
            launch.shared_bytes,
            cluster=launch.cluster,
            dependent=launch.dependent,
            slots=slots,
            fields=fields,
        ).start
    return HostLaunch(backend, launch, slots, fields)


def slots_of(args: Sequence[Any], offsets: Sequence[int]) -> list[tuple[int, int, int]]:
    """The arguments that hold a stand-in: their number, the role, and how far they lie from where its array starts."""
    found = []
    for number, arg in enumerate(args):
        matrix = arg.matrix if isinstance(arg, TensorMap) else arg
        if isinstance(matrix, Matrix):
            found.append((number, *_role(matrix.pointer, offsets)))
    return found


def pointers_of(args: Sequence[Any], offsets: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """The same of structs that are a pointer and nothing else, as operands of a batch are: with the byte, the first."""
    found = []
    for number, arg in enumerate(args):
        if isinstance(arg, Packed) and len(arg.data) == POINTER_BYTES:
            role, offset = _role(int.from_bytes(arg.data, "little"), offsets)
            found.append((number, 0, role, offset))
    return found


def _role(pointer: int, offsets: Sequence[int]) -> tuple[int, int]:
    role = (pointer >> RANGE) - 1
    return role, pointer - stand_in(role, offsets[role] if role < len(offsets) else 0)


class HostLaunch:
    """The emulator's side of ``PreparedLaunch``: one launch at a time."""

    def __init__(
        self,
        backend: Backend,
        launch: Launch,
        slots: Sequence[tuple[int, int, int]],
        fields: Sequence[tuple[int, int, int, int]],
    ) -> None:
        self._backend, self._launch, self._slots, self._fields = backend, launch, slots, fields

    def __call__(self, pointers: tuple[int, ...], stream: int) -> None:
        """Run it with the arguments where ``pointers`` says. Raises ``EmulatorFault``."""
        args = list(self._launch.args)
        for number, role, offset in self._slots:
            args[number] = moved(args[number], pointers[role] + offset)
        for number, byte, role, offset in self._fields:
            data = bytearray(args[number].data)
            data[byte : byte + 8] = (pointers[role] + offset).to_bytes(8, "little")
            args[number] = Packed(bytes(data), args[number].matrices)
        for number, arg in enumerate(args):
            if isinstance(arg, Packed) and arg.matrices:
                args[number] = Packed(arg.data, tuple(_there(each, pointers) for each in arg.matrices))
        launch = self._launch
        with _one_at_a_time:
            self._backend.launch(
                launch.kernel,
                launch.grid,
                launch.block,
                args,
                launch.shared_bytes,
                cluster=launch.cluster,
                dependent=launch.dependent,
            )


def _there(matrix: Matrix, pointers: Sequence[int]) -> Matrix:
    """What a struct points to, where it is. It begins before its role's address where steps are negative."""
    role = (matrix.pointer + (1 << RANGE - 1) >> RANGE) - 1
    at = pointers[role]
    return replace(matrix, pointer=at + matrix.pointer - stand_in(role, at % 16))


_one_at_a_time = threading.Lock()
