"""``tilewright cache``: what compiled kernels are kept, and how to be rid of them."""

from __future__ import annotations

import shutil
import stat
from contextlib import suppress
from pathlib import Path

import typer

from tilewright import settings
from tilewright.cli import output
from tilewright.cli.options import Json

app = typer.Typer(no_args_is_help=True, help="The compiled kernels and the choices kept on disk.")


def _contents(root: Path) -> list[tuple[str, int, int]]:
    """Name, files and bytes of each folder of the cache."""
    return [(name, *_size(root / name)) for name in settings.CACHE_FOLDERS]


def _size(folder: Path) -> tuple[int, int]:
    files = bytes_ = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                files, bytes_ = files + 1, bytes_ + path.stat().st_size
        except OSError:  # another process removed it meanwhile
            continue
    return files, bytes_


@app.command("info")
def info(json: Json = False) -> None:
    """Say where the cache is and how large."""
    root = settings.cache_dir()
    contents = _contents(root)
    if json:
        folders = {name: {"files": files, "bytes": bytes_} for name, files, bytes_ in contents}
        output.print_json({"schema": "tilewright.cache/1", "path": str(root), "folders": folders})
        return
    output.print_plain(str(root))
    for name, files, bytes_ in contents:
        output.print_plain(f"  {name:10} {files:6} files  {bytes_ / 1e6:10.2f} MB")


@app.command("clear")
def clear(json: Json = False) -> None:
    """Remove all compiled kernels and choices. Only tilewright's own folders are touched, whatever else lies beside."""
    root = settings.cache_dir()
    contents = _contents(root)
    before = _identities(root)
    for name in settings.CACHE_FOLDERS:
        shutil.rmtree(root / name, ignore_errors=True)
    files, bytes_ = sum(row[1] for row in contents), sum(row[2] for row in contents)
    left = len(before & _identities(root))  # not what another process has built since
    if json:
        output.print_json({"schema": "tilewright.cache/1", "path": str(root), "removed": files - left, "left": left})
    else:
        output.say(
            f"removed {files - left} files ({bytes_ / 1e6:.2f} MB) from {root}" + (f"; {left} left" if left else "")
        )
    if left:
        raise typer.Exit(1)


def _identities(root: Path) -> set[tuple[str, int, int]]:
    """Path, inode and time of each file of the cache."""
    found = set()
    for name in settings.CACHE_FOLDERS:
        for path in (root / name).rglob("*"):
            with suppress(OSError):
                status = path.lstat()
                if not stat.S_ISDIR(status.st_mode):
                    found.add((str(path), status.st_ino, status.st_mtime_ns))
    return found
