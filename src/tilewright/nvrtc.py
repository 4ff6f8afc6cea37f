"""Compile kernel text to a cubin with NVRTC: needs no GPU, no driver and no CUDA toolkit.

A cubin and not PTX, so that a driver older than the compiler can still load it. Compiled kernels are kept below
``settings.cache_dir() / "cuda"`` in cuda.core's ``FileStreamProgramCache``: two files an entry, both written to a
temporary name and then renamed. The first is the cubin, filed under its own SHA-256; the second, filed under a digest
of the text, the options and the compiler, is a JSON record that names it and holds the compiler's report.
So a reader sees a whole entry or none, whatever other processes do, and damage to either file is noticed.

A kernel that was provided (``provide``: by a bundle) or is in the cache is found without NVRTC being loaded, which
takes tens of milliseconds; a provided one where there is no NVRTC, too.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import settings
from tilewright.compile_counter import count
from tilewright.errors import CompileError, TilewrightError, UnavailableError, UsageError
from tilewright.ptxas import CompileReport, find_defeats, parse_report
from tilewright.source import KernelSource

INSTALL = "pip install 'tilewright[cuda13]'"
CACHE_FOLDER = "cuda"
CACHE_BYTES = 512 << 20  # thousands of kernels; beyond it the ones not read for longest go
_LAYOUT = 3  # of a key and a cache record; raise it when the record or the parsing of the report changes
_OPTIONS = {
    "std": "c++20",
    "ptxas_options": ["-v"],
    "lineinfo": True,  # lets a profiler name the kernel's lines; the code stays the same
}
_ARCH = re.compile(r"sm_\d{2,3}[af]?")


@dataclass(frozen=True)
class Compiled:
    """A cubin with the compiler's report. ``cached`` says that no compiler ran for it this time."""

    cubin: bytes
    report: CompileReport
    cached: bool


def nvrtc_version() -> tuple[int, int]:
    """The version of NVRTC that ``compile_kernel`` uses, such as ``(13, 5)``. Raises ``UnavailableError``."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise _unavailable(error) from error
    if int(status):
        raise _unavailable(RuntimeError(str(status)))
    return int(major), int(minor)


def available() -> bool:
    """Whether kernels can be compiled here: cuda-core and NVRTC are both installed."""
    return unavailable_reason() is None


def unavailable_reason() -> str | None:
    """Why kernels cannot be compiled here, and what to install; None when they can."""
    try:
        nvrtc_version()
        _cuda_core()
    except UnavailableError as error:
        return str(error)
    return None


@cache
def compiler() -> str:
    """Which compiler there is here, in words, found without loading it where pip installed it.

    Raises ``UnavailableError`` where there is none.
    """
    packages = {name: version for name in _PACKAGES if (version := installed_version(name))}
    if not any("nvrtc" in name for name in packages):
        packages["NVRTC"] = "{}.{}".format(*nvrtc_version())  # of a toolkit
    return ", ".join(f"{name} {version}" for name, version in packages.items())


def compile_kernel(source: KernelSource) -> Compiled:
    """Compile one kernel for ``source.arch``, or find it in the cache.

    Raises ``CompileError`` with the log when NVRTC refuses the text or gives up what the kernel is built on
    (``ptxas.DEFEATS``), ``UnavailableError`` when NVRTC is missing or too old for the architecture, ``UsageError`` when
    ``source`` names no GPU architecture. Threads that ask for one kernel at the same time share one compile.
    """
    if source.arch is None or not _ARCH.fullmatch(source.arch):
        raise UsageError(f"{source.name}: arch is {source.arch!r}; NVRTC needs one such as 'sm_90a'")
    key = key_of(source)
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        compiled = _memory.get(key)
        if compiled is None:
            compiled = _provided.get(key)
            if compiled is not None:
                count("bundled")
        if compiled is None:
            compiled = _kept_or_compiled(source, key)
        with _guard:
            while len(_memory) >= _MEMORY_ENTRIES:
                _memory.pop(next(iter(_memory)))
            _memory[key] = replace(compiled, cached=True)
    return compiled


def key_of(source: KernelSource) -> str:
    """What tells a kernel from all others, whichever compiler made it: a SHA-256 in hex of text, target and options."""
    values = (_LAYOUT, source.name, source.text, source.arch, source.entry, _OPTIONS)
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def provide(kernels: Mapping[str, Compiled]) -> None:
    """Have ``compile_kernel`` take these for the keys that they have (``key_of``), before the cache and NVRTC."""
    with _guard:
        for key, compiled in kernels.items():
            _provided[key] = replace(compiled, cached=True)
            _memory.pop(key, None)


def missing_reason() -> str | None:
    """Why there can be no kernels for a GPU here: cuda-core is missing, or NVRTC and nobody provided any. Else None."""
    try:
        _cuda_core()
        if not _provided:
            compiler()
    except UnavailableError as error:
        return str(error)
    return None


def _kept_or_compiled(source: KernelSource, key: str) -> Compiled:
    filed = hashlib.sha256(f"{key} {compiler()}".encode()).digest()
    core = _cuda_core()
    for root in (settings.cache_dir(), settings.read_only_dir()):
        compiled = None if root is None else _load(_open_store(core, root), filed, source.name)
        if compiled is not None:
            count("cached")
            return compiled
    options = core.ProgramOptions(
        name=re.sub(r"[^\w.-]", "_", source.name) + ".cu",  # a folder in it would let #include reach the disk
        arch=source.arch,
        **_OPTIONS,
    )
    compiled = _compile(core, source, options)
    _save(core, filed, compiled)
    return compiled


def compile_side_by_side(sources: Iterable[KernelSource]) -> None:
    """Compile kernels into the cache. What does not compile is told by ``compile_kernel``, to who asks for it."""
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(compile_kernel, source) for source in sources]:
            done.exception()


def forget() -> None:
    """Forget what this process has compiled, what bundles gave it, and that it has warned; files in the cache stay."""
    with _guard:
        _memory.clear()
        _provided.clear()
        _stores.clear()
        _warned.clear()


_MEMORY_ENTRIES = 256
_guard = threading.Lock()
_locks: dict[str, threading.Lock] = {}
_memory: dict[str, Compiled] = {}
_provided: dict[str, Compiled] = {}
_stores: dict[Path, Any] = {}  # opening one scans its folder
_warned: set[str] = set()


@dataclass(frozen=True)
class _CudaCore:
    """The parts of cuda.core used here, imported on first use because that takes a tenth of a second."""

    Program: Any
    ProgramOptions: Any
    FileStreamProgramCache: Any


_importing = threading.Lock()  # cuda.core 1.2 cannot be imported by two threads at once


def _cuda_core() -> _CudaCore:
    with _importing:
        return _import_cuda_core()


def _import_cuda_core() -> _CudaCore:
    try:
        from cuda.core import Program, ProgramOptions
        from cuda.core.utils import FileStreamProgramCache
    except (ImportError, RuntimeError) as error:
        raise _unavailable(error) from error
    return _CudaCore(Program, ProgramOptions, FileStreamProgramCache)


def _unavailable(error: Exception) -> UnavailableError:
    cause = (str(error).splitlines() or [type(error).__name__])[0]
    installed = ", ".join(f"{name} {version}" for name in _PACKAGES if (version := installed_version(name)))
    return UnavailableError(
        f"compiling for a GPU needs cuda-core 1.0 or newer, cuda-bindings that fit it, and NVRTC ({INSTALL}); "
        f"installed: {installed or 'none of them'}; {cause}"
    )


_PACKAGES = ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


def installed_version(package: str) -> str | None:
    """The version of an installed distribution; None when it is not installed."""
    from importlib import metadata  # a tenth of what importing this package takes

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _compile(core: _CudaCore, source: KernelSource, options: Any) -> Compiled:
    version = "NVRTC {}.{}".format(*nvrtc_version())
    logs = io.StringIO()
    start = time.perf_counter()
    try:
        program = core.Program(source.text, "c++", options)
        cubin = bytes(program.compile("cubin", logs=logs).code)
    except Exception as error:  # cuda.core has no public base class for what its compiler raises
        raise _compile_failure(error, source, version) from error
    finally:
        seconds = time.perf_counter() - start
        count("compiled", seconds)
    if f".text.{source.entry}\0".encode() not in cubin:  # the section an unmangled kernel lies in
        raise CompileError(
            f'{source.name} has no kernel {source.entry}: is it extern "C" __global__?', source=source.text
        )
    log = logs.getvalue()
    if defeats := find_defeats(log):
        raise CompileError(
            f"{source.name}: {'; '.join(dict.fromkeys(defeats))}", log=log.strip("\0\n"), source=source.text
        )
    return Compiled(cubin, parse_report(log, source.entry, seconds), cached=False)


def _compile_failure(error: Exception, source: KernelSource, version: str) -> TilewrightError:
    text = str(error).rstrip("\0")
    _, found, log = text.partition("compilation log:")
    if "gpu-architecture" in text:
        return UnavailableError(
            f"{version} cannot compile for {source.arch}; it knows {_known_architectures()}. "
            "sm_90a needs NVRTC 12.0 or newer, sm_100 and sm_120 need 12.8."
        )
    if not found:
        return CompileError(f"{version} failed on {source.name}: {text}", source=source.text)
    return CompileError(
        f"{source.name} does not compile for {source.arch} with {version}", log=log.strip(), source=source.text
    )


def _known_architectures() -> str:
    from cuda.bindings import nvrtc

    status, *rest = nvrtc.nvrtcGetSupportedArchs()
    known = [] if int(status) else next((item for item in rest if isinstance(item, list)), [])
    return ", ".join(f"sm_{number}" for number in known) or "others"


def _open_store(core: _CudaCore, root: Path) -> Any | None:
    folder = root / CACHE_FOLDER
    if root != settings.cache_dir() and not folder.is_dir():
        return None  # nor can it be made
    if folder not in _stores:
        try:
            _stores[folder] = core.FileStreamProgramCache(folder, max_size_bytes=CACHE_BYTES)
        except OSError as error:
            _warn_once("store", f"compiled kernels are not kept: {error}")
            return None
    return _stores[folder]


def _load(store: Any | None, key: bytes, name: str) -> Compiled | None:
    if store is None:
        return None
    try:
        text = store.get(key)
        if text is None:
            return None
        record = json.loads(text)
        cubin = store.get(record["cubin"])
        if cubin is None:
            return None  # evicted: the record is smaller and may outlive its cubin
        if hashlib.sha256(cubin).hexdigest() != record["cubin"]:
            raise ValueError("the cubin is not the one that was written")
        return Compiled(cubin, CompileReport.from_dict(record["report"]), cached=True)
    except OSError as error:
        _warn_once("store", f"compiled kernels are not kept: {error}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(f"a damaged cache entry of {name} is built again ({error})", stacklevel=3)
    return None


def _save(core: _CudaCore, key: bytes, compiled: Compiled) -> None:
    digest = hashlib.sha256(compiled.cubin).hexdigest()
    record = {"cubin": digest, "report": compiled.report.to_dict()}
    for attempt in range(3):
        store = _open_store(core, settings.cache_dir())
        if store is None:
            return
        try:
            store[digest] = compiled.cubin  # before the record that names it
            store[key] = json.dumps(record).encode()
            return
        except OSError as error:  # another process may have cleared the cache: opening makes its folders again
            _stores.clear()
            if attempt == 2:
                _warn_once("store", f"compiled kernels are not kept: {error}")


def _warn_once(kind: str, message: str) -> None:
    with _guard:
        if kind in _warned:
            return
        _warned.add(kind)
    warnings.warn(message, stacklevel=4)
