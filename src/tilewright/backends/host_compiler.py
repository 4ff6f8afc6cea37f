"""The host C++ compiler: which one there is, and how it builds the emulator's runtime and its kernels.

Two builds of a kernel: plain, and instrumented, in which the compiler calls the runtime at each memory access. Both
families do that for ThreadSanitizer, which kernels are compiled for and never linked with. (clang's coverage tool calls
at accesses as well, but not where a struct is copied, and it does not tell what may be unaligned.)
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.machinery
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from tilewright.backends import library_cache
from tilewright.errors import CompileError, UnavailableError
from tilewright.settings import CXX, cache_dir, read_only_dir
from tilewright.source import CUDA_ROOT

Kind = Literal["gcc", "clang", "zig"]

HOST_ROOT = CUDA_ROOT / "host"
RUNTIME_ROOT = HOST_ROOT / "runtime"
ON_PATH = ("c++", "g++", "clang++")
HOW_TO_GET_ONE = "install one (g++ or clang++), or the compiler wheel: pip install 'tilewright[emulator]'"

_ABI = importlib.machinery.EXTENSION_SUFFIXES[0]  # the machine and its C library, so that a home may be shared

_UNROLL = re.compile(r"^([ \t]*#[ \t]*pragma)[ \t]+unroll[ \t]*(\d*)[ \t]*$", re.MULTILINE)

_DIAGNOSTIC = re.compile(r"^[^\n]+:\d+:\d+: (fatal )?error: ", re.MULTILINE)

_COMMON = (
    "-std=c++17",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-stack-protector",
    "-fvisibility=hidden",
)
# nvcc forgives a float* that points at unsigned words, and so does the emulator.
_KERNEL = ("-ffp-contract=fast", "-fno-strict-aliasing")
# Not every compiler has these for every machine. A large frame must not step over the page that ends its stack.
_OPTIONAL = ("-fstack-clash-protection",)
# #pragma unroll is for nvcc, and clang need not follow it; vector types never cross from one library to another.
_QUIET: dict[Kind, tuple[str, ...]] = {
    "gcc": ("-Wno-unknown-pragmas", "-Wno-psabi"),
    "clang": ("-Wno-unknown-pragmas", "-Wno-pass-failed"),
}
_QUIET["zig"] = _QUIET["clang"]
# How fast a kernel compiles and runs: of those measured the fastest for both together. At gcc's -O3 kernels of the
# tensor cores compile a fifth longer, and rungs 0 to 4 run no faster.
# clang unrolls a loop in full where its pragma says so, but for one that would become larger than this: at its own
# limit (16384) the K-steps of rung 4 take seconds to compile, and run no faster.
_OPTIMISE: dict[Kind, tuple[str, ...]] = {
    "gcc": ("-O2",),
    "clang": ("-O2", "-mllvm", "-pragma-unroll-threshold=1024"),
}
_OPTIMISE["zig"] = _OPTIMISE["clang"]
# Nothing that joins accesses: what is counted is what the kernel says. No tail calls, or the caller's line is lost.
_INSTRUMENT: dict[Kind, tuple[str, ...]] = {
    "gcc": ("-fsanitize=thread", "-fno-tree-vectorize", "-fno-store-merging", "-fno-optimize-sibling-calls"),
    "clang": (
        *("-Xclang", "-fsanitize=thread"),  # to the compiler proper: the driver would link the sanitizer's runtime
        *("-mllvm", "-tsan-instrument-read-before-write"),  # else c[i] += x is one write
        *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
        *("-fno-vectorize", "-fno-slp-vectorize", "-fno-optimize-sibling-calls"),
    ),
}
_INSTRUMENT["zig"] = _INSTRUMENT["clang"]


@dataclass(frozen=True)
class HostCompiler:
    """One C++ compiler: how to call it, which family's flags it takes, and the version it names."""

    command: tuple[str, ...]
    kind: Kind
    version: str

    def __str__(self) -> str:
        return f"{self.version} ({shlex.join(self.command)})"


def find_compiler() -> HostCompiler:
    """The compiler to use: ``TILEWRIGHT_CXX``, else the first that works of ``available_compilers``.

    Raises ``UnavailableError`` that says what to install.
    """
    require_platform()
    wanted = CXX.value()
    if wanted is not None:
        found = _ziglang() if wanted == "zig" else _probe(tuple(shlex.split(wanted)))
        if found is None:
            raise UnavailableError(
                f"{CXX.name} is {wanted!r}, which is not a C++ compiler{_refusal(wanted)}; {HOW_TO_GET_ONE}"
            )
        return found
    found = next((c for c in map(_probe_on_path, ON_PATH) if c is not None), None) or _ziglang()
    if found is None:
        raise UnavailableError(f"the emulator needs a C++ compiler and found none; {HOW_TO_GET_ONE}")
    return found


def available_compilers() -> list[HostCompiler]:
    """Every compiler found here, the preferred one first; one of each version."""
    found = [c for c in (*map(_probe_on_path, ON_PATH), _ziglang()) if c is not None]
    return list({c.version: c for c in reversed(found)}.values())[::-1]


def require_platform() -> None:
    """Raise ``UnavailableError`` where the emulator cannot run."""
    machine = platform.machine().lower()
    known = {"linux": ("x86_64", "amd64", "aarch64", "arm64"), "darwin": ("arm64",)}
    if machine not in known.get(sys.platform, ()) or sys.maxsize < 2**32:
        raise UnavailableError(
            f"the emulator runs on Linux (x86-64, aarch64) and macOS (arm64), all of 64 bits; this is "
            f"{sys.platform} on {machine or 'an unknown machine'}. On Windows it runs inside WSL."
        )


def _probe_on_path(name: str) -> HostCompiler | None:
    path = shutil.which(name)
    return _probe((path,)) if path else None


@lru_cache(maxsize=32)
def _probe(command: tuple[str, ...]) -> HostCompiler | None:
    """What a command is, if it is a C++ compiler: it tells its version, and it compiles."""
    answer = _ask(command, "--version")
    if answer is None or answer.returncode != 0 or not answer.stdout.strip() or _complaint(command) is not None:
        return None
    kind: Kind = "gcc"
    if any(Path(word).name.startswith(("zig", "python-zig")) for word in command):
        kind = "zig"
    elif "clang" in answer.stdout.lower():
        kind = "clang"
    version = answer.stdout.splitlines()[0].strip()
    if kind == "gcc":  # c++ and g++ are one compiler that begins with the name it was called by
        version = "g++ " + version.partition(" ")[2]
    return HostCompiler(command, kind, version)


def _ask(command: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """What a command answers; None when it does not start or does not end."""
    try:
        return subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


@lru_cache(maxsize=32)
def _complaint(command: tuple[str, ...]) -> str | None:
    """What a command says to an empty translation unit, in a line; None when it compiles it."""
    with library_cache.scratch_folder() as scratch:
        (scratch / "empty.cpp").touch()
        answer = _ask(command, "-c", str(scratch / "empty.cpp"), "-o", str(scratch / "empty.o"))
        if answer is not None and answer.returncode == 0 and (scratch / "empty.o").exists():
            return None
    return next(iter((answer.stderr if answer else "").splitlines()), "")


def _refusal(wanted: str) -> str:
    complaint = _complaint(tuple(shlex.split(wanted)))
    return f" that works ({complaint})" if complaint else ""


@lru_cache(maxsize=1)
def _ziglang() -> HostCompiler | None:
    """The compiler in the ``ziglang`` wheel; not started here, which takes longer than asking for its version."""
    try:
        version = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        return None
    return HostCompiler((sys.executable, "-m", "ziglang", "c++"), "zig", f"ziglang {version}")


def flags(compiler: HostCompiler, *, instrumented: bool) -> tuple[str, ...]:
    """What a kernel is compiled with. Never for this machine's own CPU: the cache may be shared by machines."""
    kind = compiler.kind
    build = ("-O2", "-g1", "-DTW_COUNT", *_INSTRUMENT[kind]) if instrumented else (*_OPTIMISE[kind], "-g0")
    return (*build, *_COMMON, *_target(kind), *_KERNEL, *_QUIET[kind])


def spelled_for(compiler: HostCompiler, text: str, *, instrumented: bool) -> str:
    """A kernel's text with ``#pragma unroll`` as the compiler spells it, and with how far, where none is given.

    Unrolling in full, as nvcc does, serves clang's plain build (within the limit of ``_OPTIMISE``). It makes g++ slow
    and its code large, and where each access is a call it only costs compile time: there, by 2 is what the measured
    kernels do best with.
    """
    if compiler.kind != "gcc" and not instrumented:
        return text
    unroll = "GCC unroll" if compiler.kind == "gcc" else "unroll"
    return _UNROLL.sub(lambda match: f"{match[1]} {unroll} {match[2] or 2}", text)


def _runtime_flags(kind: Kind) -> tuple[str, ...]:
    return ("-O2", "-g1", *_COMMON, *_target(kind))


def _target(kind: Kind) -> tuple[str, ...]:
    return ("-mcpu=baseline",) if kind == "zig" else ()  # zig alone compiles for the CPU it runs on, unless told


def _link_flags(kind: Kind, library: str) -> tuple[str, ...]:
    """No C++ library is needed, and libc is the one that the process has anyway."""
    if sys.platform == "darwin":
        return (
            "-dynamiclib",
            "-nostdlib",
            "-lSystem",
            f"-Wl,-install_name,@rpath/{library}",
            "-Wl,-rpath,@loader_path",
        )
    helpers = ("-lgcc",) if kind == "gcc" else ()  # g++ calls it to count bits, where clang writes the instructions
    return ("-shared", "-nostdlib", *helpers, f"-Wl,-soname,{library}", "-Wl,-rpath,$ORIGIN")


class HostBuild:
    """The runtime of one compiler, loaded, and kernels built against it.

    Both lie in one folder of the cache, so that a kernel finds the runtime there. Raises ``CompileError`` when the
    compiler refuses.
    """

    def __init__(self, compiler: HostCompiler) -> None:
        self.compiler = compiler
        self.folder = cache_dir() / "emulator"
        sources = sorted([*RUNTIME_ROOT.glob("*.[ch]pp"), HOST_ROOT / "tw" / "abi.cuh"])
        texts = [part for path in sources for part in (path.name, path.read_text("utf-8"))]
        key = self._key(*_runtime_flags(compiler.kind), *_link_flags(compiler.kind, ""), *texts)
        self.optional = self._accepted_options()
        self.runtime_name = f"libtw_runtime-{key}.so"
        self.runtime = library_cache.load(self.folder, self.runtime_name, self._build_runtime)

    def load_kernel(self, name: str, text: str, *, instrumented: bool) -> ctypes.CDLL:
        """Build a flat kernel text, or find it in the cache, and load it."""
        options = (*flags(self.compiler, instrumented=instrumented), *self.optional)
        text = spelled_for(self.compiler, text, instrumented=instrumented)
        library = f"{name}-{self._key(self.runtime_name, *options, text)}.so"

        def build(target: Path) -> None:
            source = target.with_suffix(".cu")
            source.write_text(text, "utf-8")
            self._put_runtime(target.parent)
            arguments = [
                *("-x", "c++", source.name),
                *("-x", "none", self.runtime_name),
                *("-o", target.name),
                *_link_flags(self.compiler.kind, target.name),
            ]
            self._run([*options, *arguments], target.parent, f"kernel {name}", text)

        try:
            return library_cache.load(self.folder, library, build)
        except library_cache.Unloadable as error:
            raise CompileError(
                f"kernel {name} was compiled, but cannot be loaded", log=str(error), source=text
            ) from None

    def _put_runtime(self, folder: Path) -> None:
        """The runtime in a folder where a kernel is linked with it: built again if another process removed it."""
        try:
            shutil.copyfile(self.runtime._name, folder / self.runtime_name)
        except OSError:
            self._build_runtime(folder / self.runtime_name)

    def _accepted_options(self) -> tuple[str, ...]:
        """Those of ``_OPTIONAL`` that the compiler takes without a word; asked once, and kept in the cache."""
        answer = self.folder / f"options-{self._key(*_target(self.compiler.kind), *_OPTIONAL)}"
        filled = read_only_dir()
        for path in (answer, *(() if filled is None else (filled / self.folder.name / answer.name,))):
            with suppress(OSError, UnicodeDecodeError):
                known = path.read_text("ascii").split()
                return tuple(option for option in _OPTIONAL if option in known)
        with library_cache.scratch_folder() as scratch:
            (scratch / "empty.cpp").write_text("void empty() {}\n", "ascii")
            accepted = tuple(option for option in _OPTIONAL if self._accepts(option, scratch))
            (scratch / "answer").write_text("\n".join(accepted), "ascii")
            with suppress(OSError):  # asked again next time
                library_cache.store(scratch / "answer", answer)
        return accepted

    def _accepts(self, option: str, folder: Path) -> bool:
        arguments = [*_target(self.compiler.kind), "-Werror", option, "-c", "empty.cpp", "-o", "empty.o"]
        try:
            self._run(arguments, folder, f"the option {option}")
        except CompileError:
            return False
        return True

    def _key(self, *parts: str) -> str:
        program, *arguments = self.compiler.command
        resolved = os.path.realpath(shutil.which(program) or program)  # c++ and g++ are one compiler, mostly
        identity = (self.compiler.kind, self.compiler.version, resolved, *arguments, _ABI)
        return hashlib.sha256("\0".join((*identity, *parts)).encode()).hexdigest()[:24]

    def _build_runtime(self, target: Path) -> None:
        sources = sorted(RUNTIME_ROOT.glob("*.cpp"))

        def compile_one(source: Path) -> str:
            arguments = ["-c", str(source), "-o", f"{source.stem}.o"]
            self._run([*_runtime_flags(self.compiler.kind), *arguments], target.parent, f"runtime file {source.name}")
            return f"{source.stem}.o"

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, sources))
        self._run(
            [*objects, "-o", target.name, *_link_flags(self.compiler.kind, target.name)], target.parent, "the runtime"
        )

    def _call(self, arguments: Sequence[str], folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
        zig_cache = str(cache / "zig")  # else zig writes to the user's home
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache}
        command = [*self.compiler.command, *arguments]
        try:
            return subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace"
            )
        except OSError as error:
            raise UnavailableError(
                f"the C++ compiler {shlex.join(self.compiler.command)} does not start: {error}"
            ) from None

    def _run(self, arguments: Sequence[str], folder: Path, what: str, source: str = "") -> None:
        done = self._call(arguments, folder, self.folder)
        if done.returncode != 0 and self.compiler.kind == "zig" and not _DIAGNOSTIC.search(done.stderr):
            done = self._call(arguments, folder, folder)  # its cache was cleared meanwhile, or cannot be written
        if done.returncode != 0:
            log = done.stderr + done.stdout
            raise CompileError(f"{self.compiler.version} refused {what} of the emulator", log=log, source=source)


@lru_cache(maxsize=8)
def host_build(compiler: HostCompiler, folder: Path) -> HostBuild:
    """The one build of a compiler in a cache folder: one scheduler, in whose memory all its kernels run."""
    return HostBuild(compiler)
