"""``export_bundle`` and ``load_bundle``: kernels and plans in one file, for a machine that has no compiler.

A bundle is a zip: ``manifest.json`` and a cubin a kernel, named by its SHA-256. The manifest says what made it (version
and digest of the kernels' text, architecture, NVRTC, the GPU that the plans are for), of each kernel its key
(``nvrtc.key_of``), entry, checksum and the compiler's report, and of each call its problem, its plan, the digest of its
epilogue and the keys of its kernels.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import __version__, nvrtc
from tilewright.dtypes import DType
from tilewright.errors import UnavailableError, UsageError
from tilewright.gpu import arch_of, query_gpu
from tilewright.library import answers, hot, kept, ready
from tilewright.library.pair import SECOND
from tilewright.library.request import Options
from tilewright.ptxas import CompileReport
from tilewright.run import DEFAULT_ARCH
from tilewright.source import kernels_digest

SCHEMA = "tilewright.bundle/1"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Bundle:
    """What a file has: the architecture, the compiler that made it, its calls in words and how many kernels they need.

    The plans are for the GPU ``gpu`` and used on any with as many ``sms``.
    """

    path: Path
    arch: str
    nvrtc: str
    gpu: str
    sms: int
    calls: tuple[str, ...]
    kernels: int


def export_bundle(
    path: str | os.PathLike[str],
    shapes: Any,
    *,
    dtype: DType | str = "bf16",
    layout: str = "rr",
    out_dtype: DType | str | None = None,
    alpha: float = 1,
    beta: float = 0,
    c: str | None = None,
    bias: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    args: Mapping[str, Any] | None = None,
    sms: int | None = None,
    batch_invariant: bool = False,
    arch: str = DEFAULT_ARCH,
) -> Bundle:
    """Choose and compile what ``matmul`` needs for these shapes, and write it to ``path``, in place of what is there.

    All but ``path`` and ``arch`` is as ``warmup`` has it. No GPU is needed; the plans are for the one that is present,
    else for an H200. Raises as ``warmup`` does, and ``UsageError`` where the file cannot be written.
    """
    from tilewright.library.warm import prepared, requests, words

    more = {"alpha": alpha, "beta": beta, "c": c, "bias": bias, "epilogue": epilogue, "args": args}
    options = Options(sms=sms, batch_invariant=batch_invariant)
    made = prepared(requests(shapes, dtype, layout, out_dtype, 0, options, more), arch)
    kernels = {key: kernel for each in made for key, kernel in each.kernels.items()}
    name, count, *_ = kept.gpu_here()
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "tilewright": __version__,
        "kernels_digest": kernels_digest(),
        "arch": arch,
        "nvrtc": "{}.{}".format(*nvrtc.nvrtc_version()),
        "gpu": name,
        "sms": count,
        "kernels": [
            {
                "key": key,
                "name": kernel.name,
                "entry": kernel.source.entry,
                "sha256": hashlib.sha256(kernel.compiled.cubin).hexdigest(),
                "report": kernel.compiled.report.to_dict(),
            }
            for key, kernel in kernels.items()
        ],
        "calls": [
            {
                "call": words(each.request) + (f", launch {number}" if number > 1 else ""),
                "problem": kept.described(laid.question),
                "epilogue": laid.question.epilogue,
                "choice": kept.record_of(choice),
                "kernels": list(each.kernels),
            }
            for each in made
            for number, (laid, choice) in enumerate(each.launches, 1)
        ],
    }
    files = {_file(row["sha256"]): kernels[row["key"]].compiled.cubin for row in manifest["kernels"]}
    _write(Path(path), {MANIFEST: json.dumps(manifest, indent=1).encode(), **files})
    return _bundle(Path(path), manifest)


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Take kernels and plans from a file: from now on ``matmul`` has its plans for its problems, and compiles none.

    NVRTC is not needed for these. The plans come before tuned and planned ones, on a GPU of as many SMs as the one they
    were made for. Prepared ``Matmul`` objects go on with what they have.

    Raises ``UsageError`` for a file that is no bundle, is of another schema, is damaged, or was made of other kernels
    or for another architecture than that of the GPU that is present.
    """
    at = Path(path)
    try:
        with zipfile.ZipFile(at) as file:
            manifest = json.loads(file.read(MANIFEST))
            _require_ours(at, manifest)
            kernels = {row["key"]: _kernel(at, file, row) for row in manifest["kernels"]}
        records = {kept.digest_of(each["problem"]): each["choice"] for each in manifest["calls"]}
        for each in manifest["calls"]:
            _require_choice(at, each)
        found = _bundle(at, manifest)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UsageError(f"the bundle {at} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{at} is no bundle, for its {MANIFEST} is none: {error!r}") from error
    nvrtc.provide(kernels)
    answers.take(records, found.sms)
    ready.forget()
    hot.forget()
    return found


def _require_ours(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for a bundle of another schema, of other kernels or for another architecture.

    ``TypeError`` for one that names no number of SMs.
    """
    if manifest["schema"] != SCHEMA:
        raise UsageError(f"the bundle {path} has schema {manifest['schema']!r}; this tilewright reads {SCHEMA!r}")
    if manifest["kernels_digest"] != kernels_digest():
        raise UsageError(
            f"the bundle {path} has kernels {manifest['kernels_digest']} of tilewright {manifest['tilewright']}; this "
            f"is {__version__} with {kernels_digest()}: export it with the same version"
        )
    if type(manifest["sms"]) is not int:
        raise TypeError(f"sms is {manifest['sms']!r}")
    try:
        present = query_gpu()
    except UnavailableError:
        return
    here = arch_of(present.compute_capability)
    if manifest["arch"] != here:
        raise UsageError(f"the bundle {path} is for {manifest['arch']}; the GPU that is present takes {here}")
    if manifest["sms"] != present.sm_count:
        warnings.warn(
            f"the bundle {path} has plans for {manifest['sms']} SMs ({manifest['gpu']}), which are not used on "
            f"{present.name} with {present.sm_count}; its kernels are, where a plan is the same",
            stacklevel=3,
        )


def _require_choice(path: Path, call: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` where what is kept of a call's choice is none."""
    try:
        found = kept.parsed(call["choice"])
    except UsageError as error:
        raise UsageError(f"the bundle {path} is damaged: of {call['call']} {error}") from None
    if SECOND in found.packs and call["problem"]["product"]["second"] is None:
        raise UsageError(f"the bundle {path} is damaged: {call['call']} has one b, and a second is to be packed")


def _kernel(path: Path, file: zipfile.ZipFile, row: Mapping[str, Any]) -> nvrtc.Compiled:
    try:
        cubin = file.read(_file(row["sha256"]))
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise UsageError(f"the bundle {path} is damaged: {row['name']} cannot be read ({error})") from error
    if hashlib.sha256(cubin).hexdigest() != row["sha256"]:
        raise UsageError(f"the bundle {path} is damaged: {row['name']} is not the kernel that was exported")
    return nvrtc.Compiled(cubin, CompileReport.from_dict(row["report"]), cached=True)


def _bundle(path: Path, manifest: Mapping[str, Any]) -> Bundle:
    calls = tuple(each["call"] for each in manifest["calls"])
    m = manifest
    return Bundle(path, m["arch"], m["nvrtc"], m["gpu"], m["sms"], calls, len(m["kernels"]))


def _file(digest: str) -> str:
    return f"cubins/{digest}.cubin"


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """All of a file or none, the same bytes for the same contents."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        try:
            with zipfile.ZipFile(unfinished, "w") as archive:
                for each, data in files.items():
                    archive.writestr(zipfile.ZipInfo(each), data, zipfile.ZIP_DEFLATED)  # dated 1980, always
            unfinished.replace(path)
        finally:
            with suppress(FileNotFoundError):
                unfinished.unlink()
    except OSError as error:
        raise UsageError(f"the bundle {path} cannot be written: {error}") from error
