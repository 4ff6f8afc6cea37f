"""Shared libraries built once and kept: written atomically, checked before each load, rebuilt when damaged.

Loading a truncated library can kill the process, so that a checksum beside each one decides before the loader sees
it. A lock file lets one process build while others wait for what it builds.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCKS = 16  # builds of different libraries seldom wait for each other, and the folder stays tidy

Build = Callable[[Path], None]  # writes a library to the path it is given


class Unloadable(OSError):
    """A library that was just built, and the loader refuses it: it calls what nothing defines, most likely."""


def load(folder: Path, name: str, build: Build) -> ctypes.CDLL:
    """Load ``folder/name``, built by ``build`` if it is not there or not what was built.

    Raises what ``build`` raises, and ``Unloadable`` when the loader refuses a library just built.
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
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # another build would fare no better
        _checksum_file(path).unlink(missing_ok=True)
        raise Unloadable(str(error)) from None


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
    # Not TemporaryDirectory: a child forked meanwhile would delete the folder when it exits.
    scratch = Path(tempfile.mkdtemp(prefix="build-", dir=path.parent))
    try:
        library = scratch / path.name
        build(library)
        checksum = scratch / "sha256"
        checksum.write_text(hashlib.sha256(library.read_bytes()).hexdigest(), "ascii")
        os.replace(library, path)
        os.replace(checksum, _checksum_file(path))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


_held: set[int] = set()  # lock files held now


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    import fcntl  # not on Windows, where nothing is built

    number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % LOCKS
    lock = os.open(folder / f"lock-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _held.add(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by a process that dies, too
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # closing would not do, while a forked child has it open as well
        _held.discard(lock)
        os.close(lock)


def _after_fork() -> None:
    """In a child: the locks are its parent's, and open here they would outlive it."""
    for lock in _held:
        os.close(lock)
    _held.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where there are no forks
    os.register_at_fork(after_in_child=_after_fork)
