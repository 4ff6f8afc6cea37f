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
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.settings import fallback_dir, read_only_dir

LOCKS = 16  # builds of different libraries seldom wait for each other, and the folder stays tidy
ATTEMPTS = 3  # to store a library, while other processes clear the folder
STALE_SECONDS = 3600  # a build takes seconds: a scratch folder this old is of a process that was killed
SCRATCH = "tilewright-build-"

Build = Callable[[Path], None]  # writes a library to the path it is given


class Unloadable(OSError):
    """A library that was just built, and the loader refuses it: it calls what nothing defines, most likely."""


def load(folder: Path, name: str, build: Build) -> ctypes.CDLL:
    """Load ``folder/name``, built by ``build`` if it is not there or not what was built.

    Built in a temporary folder and then copied, so that neither a full or forbidden ``folder`` nor a process that
    clears it can fail a build; where it cannot be stored at all it goes to ``fallback_dir``, after one warning. A cache
    that can only be read is looked into as well (``settings.read_only_dir``). Raises what ``build`` raises, and
    ``Unloadable`` when the loader refuses a library just built.
    """
    instead, filled = _instead.get(folder), read_only_dir()
    for each in (folder, instead, None if filled is None else filled / folder.name):
        found = None if each is None else _load_stored(each / name)
        if found is not None:
            return found
    with scratch_folder() as scratch:
        built = scratch / name
        problem = OSError("it is cleared again and again")
        for _ in range(ATTEMPTS if instead is None else 1):
            try:
                return _load_new(folder / name, built, build)
            except Unloadable:
                raise
            except OSError as error:
                if not built.exists():
                    raise  # the build's own
                problem = error
        if instead is None:
            instead = _instead[folder] = fallback_dir(str(folder), problem.strerror or str(problem))
        return _load_new(instead / name, built, build)


_instead: dict[Path, Path] = {}  # where libraries go that cannot be stored in a folder


def _load_stored(path: Path) -> ctypes.CDLL | None:
    """An intact library, unless the loader refuses it."""
    if not _intact(path):
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # built by another machine that shares the folder, perhaps
        _warn(path, str(error))
        with suppress(OSError):
            _checksum_file(path).unlink(missing_ok=True)
        return None


def _load_new(path: Path, built: Path, build: Build) -> ctypes.CDLL:
    """Load what another process stored meanwhile, else what ``build`` makes. Raises ``OSError`` if it is not kept."""
    with _locked(path.parent, path.name):
        if not _intact(path):  # another process may have built it while this one waited
            if os.path.exists(path) and os.path.exists(
                _checksum_file(path)
            ):  # a Path would raise where it may not look
                _warn(path, "it is not what was written")
            if not built.exists():
                build(built)
            _publish(built, path)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            if not _intact(path):
                raise  # taken away since
            _checksum_file(path).unlink(missing_ok=True)  # another build would fare no better
            raise Unloadable(str(error)) from None


def _warn(path: Path, problem: str) -> None:
    warnings.warn(f"the cached library {path} cannot be used ({problem}); it is built again", stacklevel=4)


def _checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _intact(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _checksum_file(path).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder of this build alone, in ``parent`` or where temporary files go; those of killed processes go too."""
    parent = parent or Path(tempfile.gettempdir())
    _remove_stale(parent)
    # Not TemporaryDirectory: a child forked meanwhile would delete the folder when it exits.
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_stale(parent: Path) -> None:
    for path in parent.glob(f"{SCRATCH}*"):
        with suppress(OSError):  # another process removed it, or it is another user's
            status = path.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def store(source: Path, path: Path) -> None:
    """Copy a file to a place that readers see whole or not at all. Raises ``OSError`` where that cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(path.parent) as scratch:
        shutil.copyfile(source, scratch / source.name)
        os.replace(scratch / source.name, path)


def _publish(built: Path, path: Path) -> None:
    checksum = built.with_name("sha256")
    checksum.write_text(hashlib.sha256(built.read_bytes()).hexdigest(), "ascii")
    store(built, path)
    store(checksum, _checksum_file(path))


_held: set[int] = set()  # lock files held now


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """One process at a time, where the file system allows. It spares work and guards nothing: stores are atomic."""
    import fcntl  # not on Windows, where nothing is built

    number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % LOCKS
    lock = _open_lock(folder, f"lock-{number}")
    if lock is None:
        yield
        return
    _held.add(lock)
    try:
        with suppress(OSError):  # a network file system may have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by a process that dies, too
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing would not do, while a forked child has it open as well
        _held.discard(lock)
        os.close(lock)


def _open_lock(folder: Path, name: str) -> int | None:
    for _ in range(2):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):
            (folder / name).unlink()  # a link: what it points to is not ours
    return None


def _after_fork() -> None:
    """In a child: the locks are its parent's, and open here they would outlive it."""
    for lock in _held:
        os.close(lock)
    _held.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where there are no forks
    os.register_at_fork(after_in_child=_after_fork)
