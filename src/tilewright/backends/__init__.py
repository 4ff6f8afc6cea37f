"""The places that run kernels: the emulator and CUDA, behind the protocol of ``base.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tilewright.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from tilewright.backends.base import Backend
    from tilewright.backends.emulator_runtime import Policy

BackendName = Literal["auto", "cuda", "emulator"]


def open_backend(name: BackendName | None = None, *, policy: Policy = "eager", seed: int = 0) -> Backend:
    """A backend by name; ``auto`` is CUDA where a GPU can be used, else the emulator. None asks ``TILEWRIGHT_BACKEND``.

    ``policy`` and ``seed`` are the emulator's. Raises ``UnavailableError`` that says why there is no such backend
    here, ``UsageError`` for a name that is none.
    """
    from tilewright.settings import BACKEND

    wanted = BACKEND.value() if name is None else name
    if wanted not in ("auto", "cuda", "emulator"):
        raise UsageError(f"backend {wanted!r} is not one of auto, cuda, emulator")
    if wanted != "emulator":
        from tilewright.backends.cuda import CudaBackend
        from tilewright.backends.cuda_errors import cuda_unavailable_reason

        reason = cuda_unavailable_reason()
        if reason is None:
            return CudaBackend()
        if wanted == "cuda":
            raise UnavailableError(f"kernels cannot run on a GPU here: {reason}")
    from tilewright.backends.emulator import EmulatorBackend

    return EmulatorBackend(policy, seed=seed)
