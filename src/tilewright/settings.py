"""Every ``TILEWRIGHT_*`` environment variable, typed and documented in one table, and the cache folder.

Nothing else in the package reads a ``TILEWRIGHT_*`` variable. Values are read when asked for, so that a test or a
notebook may change them between two calls.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import platformdirs

from tilewright.errors import UsageError

T = TypeVar("T")

# Folders below cache_dir(), each owned by the module that fills it; all that ``tilewright cache clear`` removes.
CACHE_FOLDERS = ("emulator", "cuda", "choices")
WINNERS = Path("tune", "winners.sqlite3")  # below it too, and not cleared: it cost hours


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: how its text becomes a value, and what it is when unset or empty."""

    name: str
    help: str
    parse: Callable[[str], T]
    default: T

    def value(self) -> T:
        """The value now. Raises ``UsageError`` naming the variable when its text means nothing."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise UsageError(f"the environment variable {self.name} is {text!r}: {error}") from None


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser that takes one of some words, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return text.lower()

    return parse


def command(text: str) -> str:
    """A parser that takes a command line as a shell would split it."""
    if not shlex.split(text):  # raises ValueError on a quotation that does not end
        raise ValueError("it names no command")
    return text


CACHE_DIR: Setting[Path | None] = Setting(
    "TILEWRIGHT_CACHE_DIR",
    "Folder for compiled kernels (default: the user's cache folder).",
    lambda text: Path(text).expanduser(),
    None,
)
CXX: Setting[str | None] = Setting(
    "TILEWRIGHT_CXX",
    "Host C++ compiler of the emulator: a command, or zig for the ziglang wheel "
    "(default: the first of c++, g++, clang++ on PATH, then ziglang).",
    command,
    None,
)
BACKEND: Setting[str] = Setting(
    "TILEWRIGHT_BACKEND",
    "Where kernels run when --backend is left out: auto, cuda or emulator (default: auto, a GPU if there is one).",
    one_of("auto", "cuda", "emulator"),
    "auto",
)

COMMIT: Setting[str | None] = Setting(
    "TILEWRIGHT_COMMIT",
    "Commit that measurements record (default: that of the git checkout the package runs from, if any).",
    str,
    None,
)

SETTINGS: tuple[Setting[Path | None] | Setting[str | None] | Setting[str], ...] = (CACHE_DIR, CXX, BACKEND, COMMIT)


def present() -> dict[str, str]:
    """Every ``TILEWRIGHT_*`` variable of the environment with its text, known or not."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("TILEWRIGHT_")}


def cache_dir() -> Path:
    """The folder for compiled kernels, made if need be, and writable.

    ``TILEWRIGHT_CACHE_DIR``, else the user's cache folder. Where that cannot be written (a read-only or full home, no
    home at all) or is not to be trusted, a temporary folder that goes with this process, after one warning: a cache
    is never a reason to fail.
    """
    path = wanted_cache_dir()
    if path is None:
        return fallback_dir(str(platformdirs.user_cache_path("tilewright")), "there is no home folder")
    if path not in _usable:
        problem = _why_unusable(path)
        if problem is not None:
            return fallback_dir(str(path), problem)
        _usable.add(path)
    return path


def read_only_dir() -> Path | None:
    """The folder that ``cache_dir`` stands in for where that is filled and to be trusted: it is read, too.

    None where ``cache_dir`` is the folder that was wanted.
    """
    path = wanted_cache_dir()
    if path is None or cache_dir() == path:
        return None
    try:
        return path if path.is_dir() and _why_distrusted(path) is None else None
    except OSError:  # it may not be looked at
        return None


def wanted_cache_dir() -> Path | None:
    """The folder that ``cache_dir`` would take, whether it can be written or not; None without a home."""
    wanted = CACHE_DIR.value() or platformdirs.user_cache_path("tilewright")
    # "~" stays unexpanded for a user without a home: never write into the cwd
    return wanted.absolute() if wanted.is_absolute() or CACHE_DIR.value() else None


_usable: set[Path] = set()  # folders found writable by this process; asked once, since every compile asks for one


def _why_unusable(path: Path) -> str | None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:  # access() lies on full, network and read-only file systems
            probe.write(b"0" * 4096)
    except OSError as error:
        return error.strerror or str(error)
    return _why_distrusted(path)


def _why_distrusted(path: Path) -> str | None:
    if hasattr(os, "getuid"):
        status = path.stat()
        others_write = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if others_write and status.st_uid not in (0, os.getuid()):
            return "it is another user's and anyone may write to it, so that what it holds cannot be trusted"
    return None


def fallback_dir(path: str, problem: str) -> Path:
    """A temporary folder in place of ``path``, the same one each time; a warning with ``problem`` comes once."""
    with _falling_back:
        if path not in _instead:
            folder = Path(tempfile.mkdtemp(prefix="tilewright-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            _instead[path] = folder
            warnings.warn(
                f"the cache folder {path} cannot be used ({problem}); compiled kernels go to {folder} for this process "
                f"only. {CACHE_DIR.name} names another folder.",
                stacklevel=3,
            )
        return _instead[path]


_instead: dict[str, Path] = {}
_falling_back = threading.Lock()
