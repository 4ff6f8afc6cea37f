"""Memory of launches' own, kept for each stream of a device: what runs at the same time shares none."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tilewright import workspace
from tilewright.backends.base import Backend, Matrix
from tilewright.backends.cuda_capture import capture_of, outside_capture

PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD, the default stream of the thread that names it


@dataclass
class Held:
    """The workspace of one stream. ``lock`` is held while launches that hand each other something in it are queued."""

    memory: Matrix
    nbytes: int
    lock: threading.Lock = field(default_factory=threading.Lock)


class Workspaces:
    """Those of one backend.

    One that is too small is replaced by one of at least twice its size and kept: work already queued, or captured into
    a graph, still uses it. A capture gets its own, so that a graph may be replayed on any stream.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._held: dict[Any, Held] = {}
        self._retired: list[Matrix] = []
        self._lock = threading.Lock()
        self._thread = threading.local()

    def of(self, stream: int, nbytes: int) -> Held:
        """At least so many bytes, for launches on the stream of that handle."""
        capture = capture_of(stream) if self._backend.name == "cuda" else None
        own = self._own(stream)
        key = own if capture is None else (own, capture)
        held = self._held.get(key)
        if held is None or held.nbytes < nbytes:
            with self._lock:
                held = self._held.get(key)
                if held is None or held.nbytes < nbytes:
                    held = self._held[key] = self._grown(held, nbytes)
        return held

    def _own(self, stream: int) -> Any:
        """What stands for a stream: its handle, but where that means another stream in each thread."""
        if stream != PER_THREAD_STREAM:
            return stream
        if not hasattr(self._thread, "stream"):
            self._thread.stream = object()
        return self._thread.stream

    def _grown(self, held: Held | None, nbytes: int) -> Held:
        size = nbytes if held is None else max(nbytes, 2 * held.nbytes)
        with outside_capture(self._backend.name == "cuda"):
            made = Held(workspace.make(self._backend, size), size)
        if held is not None:
            self._retired.append(held.memory)
            made.lock = held.lock
        return made
