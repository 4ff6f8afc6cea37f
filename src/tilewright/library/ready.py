"""From a request to something that runs: chosen and compiled once for each geometry, found again by one look-up."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from tilewright.backends.base import Backend
from tilewright.errors import UnavailableError, UsageError
from tilewright.library.arrays import HOST, Array, place
from tilewright.library.choose import Choice, Question, choose, operand_lines
from tilewright.library.prepared import Prepared, make_ready
from tilewright.library.request import Request
from tilewright.library.shapes import Product, product
from tilewright.library.workspaces import Workspaces

MOST_READY = 4096


class Place:
    """A backend that calls run on, with the workspaces of its streams."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.workspaces = Workspaces(backend)


_places: dict[int, Place] = {}
_lock = threading.RLock()
_ready: OrderedDict[Any, Ready] = OrderedDict()


def place_of(request: Request) -> Place:
    """Where a call runs: the GPU that its arrays are on, or for those in host memory a GPU or the emulator.

    Raises ``UsageError`` where the arrays are elsewhere than the backend asked for, ``UnavailableError`` without a GPU.
    """
    device, wanted = request.a.device, request.options.backend
    if device != HOST and wanted == "emulator":
        raise UsageError(f"backend is emulator, which computes in host memory, and a lies on {place(device)}")
    if device == HOST and wanted != "emulator" and request.a.kind != "numpy":
        raise UsageError(
            f"a is a {type(request.a.owner).__name__} in host memory: move it to a GPU, or say backend='emulator'"
        )
    number = HOST if wanted == "emulator" else max(device, 0)
    found = _places.get(number)
    if found is None:
        with _lock:
            found = _places.get(number)
            if found is None:
                found = _places[number] = _opened(number)
    return found


def _opened(number: int) -> Place:
    if number == HOST:
        from tilewright.backends.emulator import EmulatorBackend

        return Place(EmulatorBackend())
    from tilewright.backends.cuda import CudaBackend
    from tilewright.backends.cuda_errors import cuda_unavailable_reason
    from tilewright.library.workspaces import outside_capture

    reason = cuda_unavailable_reason()
    if reason is not None:
        raise UnavailableError(f"there is no GPU to multiply on ({reason}); backend='emulator' computes on the CPU")
    with outside_capture(True):
        return Place(CudaBackend(number))


class Ready:
    """The launches for one geometry. Called with the addresses of a, b and out, and a stream's handle.

    ``near`` is what has to be known of addresses before each call: the bytes that a, b and out reach to.
    """

    __slots__ = ("choice", "near", "product", "start", "swapped")

    def __init__(self, product: Product, choice: Choice | None, prepared: Prepared | None, near: Any) -> None:
        self.product, self.choice, self.near = product, choice, near
        self.swapped = product.swapped
        self.start = None if prepared is None else prepared.alone or prepared

    def __call__(self, a: int, b: int, out: int, stream: int) -> None:
        """Queue it; nothing where the result has no elements."""
        start = self.start
        if start is not None:
            start((b, a, out, 0) if self.swapped else (a, b, out, 0), stream)


def ready_for(at: Place, a: Array, b: Array, out: Array, request: Request) -> Ready:
    """The launches for arrays of this geometry at a place, made at the first call for it."""
    key = (
        at, a.shape, a.strides, b.shape, b.strides, out.shape, out.strides, a.dtype.name, out.dtype.name,
        a.pointer % 16, b.pointer % 16, out.pointer % 16, request.options.plan, request.options.sms,
    )  # fmt: skip
    found = _ready.get(key)
    if found is None:
        with _lock:  # one compile a key, whoever asks
            found = _ready.get(key)
            if found is None:
                found = _made(at, a, b, out, request)
                _ready[key] = found
                while len(_ready) > MOST_READY:
                    _ready.popitem(last=False)
    return found


def question_of(a: Array, b: Array, out: Array, request: Request) -> Question:
    """What is to be chosen for; of a column-major result the transposed product."""
    p = product((a.shape, a.strides), (b.shape, b.strides), (out.shape, out.strides))
    offsets = (a.pointer % 16, b.pointer % 16, out.pointer % 16)
    question = Question(p, a.dtype, out.dtype, offsets, request.options.sms)
    if not (p.m and p.n) or 0 in p.batch:
        return question
    if operand_lines(question)["c"].layout == "column":
        question = Question(p.transposed, a.dtype, out.dtype, (offsets[1], offsets[0], offsets[2]), request.options.sms)
    return question


def _made(at: Place, a: Array, b: Array, out: Array, request: Request) -> Ready:
    question = question_of(a, b, out, request)
    p = question.product
    near = tuple((x.extent[0] - x.pointer, x.extent[1] - x.pointer) for x in (a, b, out))
    if not (p.m and p.n) or 0 in p.batch:
        return Ready(p, None, None, near)
    choice = choose(question, request.options.plan)
    return Ready(p, choice, make_ready(at.backend, question, choice, at.workspaces), near)


def forget() -> None:
    """Forget every kernel that was made ready; what runs is not touched."""
    with _lock:
        _ready.clear()


def close_all() -> None:
    """Forget the backends too, with the kernels that they loaded: the next call is like the first of a process."""
    with _lock:
        _ready.clear()
        _places.clear()
