"""How often this process ran the GPU's compiler: what a service watches, to see that no request waits for one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Compiles:
    """What this process did for its kernels so far.

    ``compiled`` counts runs of NVRTC, failed ones too, and ``seconds`` is what they took, side by side ones each;
    ``cached`` are kernels that were found in the cache folder instead, ``bundled`` those of a bundle.
    """

    compiled: int = 0
    cached: int = 0
    bundled: int = 0
    seconds: float = 0.0


_lock = threading.Lock()
_so_far = Compiles()


def compiles() -> Compiles:
    """The count of this process, from its start. What is in memory already is not counted again."""
    return _so_far


def count(what: Literal["compiled", "cached", "bundled"], seconds: float = 0.0) -> None:
    """Add one, and the time that it took. Safe from any thread."""
    global _so_far
    with _lock:
        _so_far = replace(_so_far, **{what: getattr(_so_far, what) + 1}, seconds=_so_far.seconds + seconds)
