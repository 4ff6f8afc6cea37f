"""From a request to something that runs: chosen and compiled once for each geometry, found again by one look-up."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tilewright.backends.base import Backend
from tilewright.errors import UnavailableError, UsageError
from tilewright.library.answers import answer
from tilewright.library.arrange import arranged
from tilewright.library.arrays import HOST, Array, place, type_of
from tilewright.library.choose import Choice
from tilewright.library.pair import SECOND
from tilewright.library.prepared import Starter, make_ready
from tilewright.library.request import Request
from tilewright.library.shapes import TooManyDimensions
from tilewright.library.turns import one_after_another, turns
from tilewright.library.workspaces import Workspaces

MOST_READY = 4096


class Place:
    """A backend that calls run on, with the workspaces of its streams, and room for ``aliases`` on each."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.workspaces, self.copies = Workspaces(backend), Workspaces(backend)


_places: dict[int, Place] = {}
_lock = threading.RLock()
_ready: OrderedDict[Any, Ready] = OrderedDict()


def require_place(request: Request) -> None:
    """Raise ``UsageError`` where the arrays are elsewhere than the backend asked for."""
    device, wanted = request.a.device, request.options.backend
    if device != HOST and wanted == "emulator":
        raise UsageError(f"backend is emulator, which computes in host memory, and a lies on {place(device)}")
    if device == HOST and wanted != "emulator" and request.a.kind != "numpy":
        raise UsageError(f"a is a {type_of(request.a)} in host memory: move it to a GPU, or say backend='emulator'")


def place_of(request: Request) -> Place:
    """Where a call runs: the GPU that its arrays are on, or for those in host memory a GPU or the emulator.

    Raises ``UsageError`` as ``require_place`` does, ``UnavailableError`` without a GPU.
    """
    require_place(request)
    device, wanted = request.a.device, request.options.backend
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
    from tilewright.backends.cuda_capture import outside_capture
    from tilewright.backends.cuda_errors import cuda_unavailable_reason

    reason = cuda_unavailable_reason()
    if reason is not None:
        raise UnavailableError(f"there is no GPU to multiply on ({reason}); backend='emulator' computes on the CPU")
    with outside_capture(True):
        return Place(CudaBackend(number))


class Ready:
    """The launches for one geometry.

    ``near`` is what has to be known of addresses before each call: the bytes that a, b and the results reach to.
    ``members`` names what an epilogue takes beside them, in the order in which a call hands it in.
    """

    __slots__ = ("choice", "members", "near", "start", "swapped")

    def __init__(
        self, choice: Choice | None, start: Starter | None, members: tuple[str, ...], near: Any, swapped: bool = False
    ) -> None:
        self.choice, self.start, self.members, self.near, self.swapped = choice, start, members, near, swapped

    def __call__(self, a: int, b: int, out: int, stream: int, more: tuple[int, ...] = ()) -> None:
        """Queue it for arrays at these addresses on the stream of that handle; nothing where there are no elements."""
        start = self.start
        if start is not None:
            start((b, a, out, 0, *more) if self.swapped else (a, b, out, 0, *more), stream)


def ready_for(at: Place, a: Array, b: Array, outs: Sequence[Array], request: Request, digest: str | None) -> Ready:
    """The launches for arrays of this geometry at a place, made at the first call for it.

    ``digest`` tells what follows the product from all else that may (``arrange.Results``).
    """
    key: Any = (
        at, a.dtype.name, request.options.plan, request.options.sms, request.options.batch_invariant,
        tuple((x.shape, x.strides, x.pointer % 16, x.dtype.name) for x in (a, b, *outs)),
        None if request.after is None else request.after.key, digest,
    )  # fmt: skip
    found = _ready.get(key)
    if found is None:
        with _lock:  # one compile a key, whoever asks
            found = _ready.get(key)
            if found is None:
                found = _ready[key] = _made(at, a, b, outs, request, digest)
                while len(_ready) > MOST_READY:
                    _ready.popitem(last=False)
    else:
        with suppress(KeyError):  # another thread has just let go of it
            _ready.move_to_end(key)
    return found


def _made(at: Place, a: Array, b: Array, outs: Sequence[Array], request: Request, digest: str | None) -> Ready:
    near = tuple((x.extent[0] - x.pointer, x.extent[1] - x.pointer) for x in (a, b, outs[0]))
    try:
        laid = arranged(request, a, b, outs)
    except TooManyDimensions:
        every = turns(request, a, b, outs)
        each = [ready_for(at, turn.a, turn.b, turn.outs, turn.request, digest) for turn in every]
        members = each[0].members
        return Ready(each[0].choice, one_after_another(every, each, members), members, near)
    if laid.empty:
        return Ready(None, None, (), near)
    choice = answer(laid.question, request.options.plan)
    prepared = make_ready(at.backend, laid.question, choice, at.workspaces, laid.after)
    second = () if laid.question.product.second is None else (SECOND,)
    members = second if laid.after is None else (*second, *laid.after.members)
    return Ready(choice, prepared.alone or prepared, members, near, laid.question.product.swapped)


def forget() -> None:
    """Forget every kernel that was made ready; what runs is not touched."""
    with _lock:
        _ready.clear()


def close_all() -> None:
    """Forget the backends too, with the kernels that they loaded: the next call is like the first of a process."""
    with _lock:
        _ready.clear()
        _places.clear()
