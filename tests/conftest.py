"""What every test gets: its own cache folder, a calm hypothesis, and the places kernels run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tilewright.backends import BackendName, open_backend
from tilewright.backends.base import Backend
from tilewright.library import ready

# A shell that puts a command in the background has it, and what it starts, ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A kernel's first compile takes longer than any deadline per example, and says nothing of the code under test.
hypothesis.settings.register_profile("tilewright", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tilewright")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A cache folder of this run alone, shared by its workers: compiled once, never what was built before.

    ``TILEWRIGHT_TEST_CACHE`` names another, empty at first, where several runs and scripts are one check.
    """
    if given := os.environ.get("TILEWRIGHT_TEST_CACHE"):
        return Path(given)
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "kernel cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def _isolated(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's settings or writes to the user's cache."""
    for name in ("TILEWRIGHT_CXX", "TILEWRIGHT_BACKEND", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(shared_cache))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test alone, empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    return folder


def open_or_skip(name: BackendName) -> Backend:
    """The backend of that name. Skips the test, with the reason, where there is no GPU."""
    if name == "cuda":
        from tilewright.backends.cuda_errors import cuda_unavailable_reason

        reason = cuda_unavailable_reason()
        if reason is not None:
            pytest.skip(reason)
    return open_backend(name)


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every place that kernels run: the same test holds on each."""
    return open_or_skip(request.param)


@pytest.fixture
def cuda() -> Backend:
    """A GPU; mark the test ``cuda``."""
    return open_or_skip("cuda")


@pytest.fixture
def emulator() -> Backend:
    """The emulator. A host compiler is part of what the tests install, so that it is never skipped."""
    return open_or_skip("emulator")


@pytest.fixture
def torch(cuda: Backend) -> Any:
    """PyTorch that sees the GPU; mark the test ``cuda``."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch was built without CUDA")
    torch.manual_seed(0)
    return torch


@pytest.fixture
def cupy(cuda: Backend) -> Any:
    """CuPy; mark the test ``cuda``."""
    return pytest.importorskip("cupy")


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=pytest.mark.cuda)])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a place where ``matmul`` runs."""
    open_or_skip(request.param)
    yield request.param
    ready.forget()
