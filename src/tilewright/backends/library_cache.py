"""Shared libraries built once and kept: written atomically, checked before each load, rebuilt when damaged.

Loading a truncated library can kill the process, so that a checksum beside each one decides before the loader sees
it. A lock file lets one process build while others wait for what it builds.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCKS = 16  # builds of different libraries seldom wait for each other, and the folder stays tidy

Build = Callable[[Path], None]  # writes a library to the path it is given


def load(folder: Path, name: str, build: Build) -> ctypes.CDLL:
    """Load ``folder/name``, built by ``build`` if it is not there or not what was built.

    Raises what ``build`` raises, and ``OSError`` when the loader refuses a library just built.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if _intact(path):
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:  # built by another machine that shares the folder, perhaps
            _checksum_file(path).unlink(missing_ok=True)
            _warn(path, str(error))
    with _locked(folder, name):
        if not _intact(path):  # another process may have built it while this one waited
            if path.exists() and _checksum_file(path).exists():
                _warn(path, "it is not what was written")
            _publish(path, build)
    return ctypes.CDLL(str(path))


def _warn(path: Path, problem: str) -> None:
    warnings.warn(f"the cached library {path} cannot be used ({problem}); it is built again", stacklevel=3)


def _checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _intact(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _checksum_file(path).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return False


def _publish(path: Path, build: Build) -> None:
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as scratch:
        library = Path(scratch) / path.name
        build(library)
        checksum = Path(scratch) / "sha256"
        checksum.write_text(hashlib.sha256(library.read_bytes()).hexdigest(), "ascii")
        os.replace(library, path)
        os.replace(checksum, _checksum_file(path))


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % LOCKS
    with open(folder / f"lock-{number}", "a", encoding="ascii") as lock:
        import fcntl  # not on Windows, where nothing is built

        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a process that dies
        yield
