"""Ask a GPU what its tensor instructions do: the check of the emulator's TMA, wgmma, mma.sync and mbarriers.

``run`` on a GPU takes under a minute; ``compare`` runs the same kernels in the emulator and prints what differs, as
tests/test_hardware_tensor.py does with what is committed:

    PYTHONPATH=src:tests python scripts/probe_tensor.py run --out tests/fixtures/tensor_h200.npz.xz
    PYTHONPATH=src:tests python scripts/probe_tensor.py compare tests/fixtures/tensor_h200.npz.xz

An error of one case is written down beside the others' results; after a fatal one there are no more results.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from probe_case import Array, Case, difference, load, save
from probe_outputs import output_cases
from probe_tma import barrier_cases, load_cases, store_cases
from probe_warp import warp_cases
from probe_wgmma import product_cases, reading_cases, shared_addresses

from tilewright.backends import open_backend
from tilewright.backends.base import Backend
from tilewright.errors import TilewrightError, UsageError
from tilewright.telemetry import Telemetry


def cases() -> list[Case]:
    """Everything that is asked, what is least certain to run last. Raises ``UsageError`` when two have one name."""
    families = (warp_cases, barrier_cases, load_cases, store_cases, product_cases, reading_cases, output_cases)
    found = sorted(itertools.chain.from_iterable(family() for family in families), key=lambda case: not case.emulated)
    names = [case.name for case in found]
    if len(set(names)) != len(names):
        raise UsageError(f"two cases are called {next(n for n in names if names.count(n) > 1)}")
    return found


def possible(backend: Backend, asked: Iterable[Case]) -> list[Case]:
    """Those that a backend can be asked."""
    return [case for case in asked if case.emulated or backend.name != "emulator"]


def compile_all(backend: Backend, asked: Iterable[Case]) -> None:
    """Compile the kernels, so that each ``backend.compile`` finds its own in the cache.

    In processes: in one, NVRTC compiles one kernel at a time.
    """
    if backend.name == "emulator":
        return
    from tilewright import nvrtc

    sources = {case.source(backend): None for case in asked}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(nvrtc.compile_kernel, sources):
            pass


def provenance(backend: Backend) -> dict[str, Any]:
    """What the results are of. Names no place of this machine."""
    info = backend.device()
    found: dict[str, Any] = {"device": info.name, "date": datetime.now(UTC).date().isoformat()}
    if backend.name == "cuda":
        found |= {
            "driver": Telemetry(info.details["uuid"]).driver_version(),
            "driver_cuda": ".".join(map(str, info.details["driver_cuda"])),
            "nvrtc": ".".join(map(str, info.details["nvrtc"])),
        }
    return found | {"shared_addresses": {str(n): shared_addresses(backend, n) for n in (1, 2)}}


def results(backend: Backend, asked: Iterable[Case], errors: dict[str, str]) -> Iterator[tuple[Case, Array]]:
    """Each case with what came out; what went wrong is added to ``errors``."""
    for case in asked:
        try:
            yield case, case.run(backend)
        except Exception as error:  # whatever it is, the other results are kept
            errors[case.name] = str(error)


def run(backend: Backend, asked: list[Case], out: Path) -> int:
    """Ask and write it down; 1 when something went wrong."""
    compile_all(backend, asked)
    known, errors = provenance(backend), dict[str, str]()
    arrays = {case.name: found for case, found in results(backend, asked, errors)}
    save(out, {**known, "errors": errors}, arrays)
    print(f"{len(arrays)} results written to {out}, {out.stat().st_size} bytes; {len(errors)} errors", file=sys.stderr)
    for name, error in errors.items():
        print(f"{name}: {error}", file=sys.stderr)
    return 1 if errors else 0


def compare(backend: Backend, asked: list[Case], path: Path) -> int:
    """Ask the same and print each difference; 1 when there is one."""
    _, recorded = load(path)
    errors = {case.name: "not recorded" for case in asked if case.name not in recorded}
    for case, found in results(backend, [case for case in asked if case.name in recorded], errors):
        if text := difference(case, recorded[case.name], found):
            errors[case.name] = text
    for name, error in errors.items():
        print(f"{name}: {error}")
    print(f"{len(asked)} results compared, {len(errors)} differ")
    return 1 if errors else 0


def main(arguments: list[str] | None = None) -> int:
    """Run one of the modes; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    runner = modes.add_parser("run", help="ask, and write a fixture")
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--backend", choices=("cuda", "emulator"), default="cuda")
    comparer = modes.add_parser("compare", help="ask, and print what differs from a fixture")
    comparer.add_argument("fixture", type=Path)
    comparer.add_argument("--backend", choices=("cuda", "emulator"), default="emulator")
    for mode in (runner, comparer):
        mode.add_argument("--only", default="", metavar="TEXT", help="the cases whose names contain it")
    chosen = parser.parse_args(arguments)
    try:
        backend = open_backend(chosen.backend)
        asked = [case for case in possible(backend, cases()) if chosen.only in case.name]
        return run(backend, asked, chosen.out) if chosen.mode == "run" else compare(backend, asked, chosen.fixture)
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
