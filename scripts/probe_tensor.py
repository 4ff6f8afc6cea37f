"""Ask a GPU what its tensor instructions do: the check of the emulator's TMA, wgmma, mma.sync and mbarriers.

``run`` on a GPU takes under a minute; ``compare`` runs the same kernels in the emulator and prints what differs, as
tests/test_hardware_tensor.py does with what is committed:

    PYTHONPATH=src:tests python scripts/probe_tensor.py run --out tests/fixtures/tensor_h200.npz.xz
    PYTHONPATH=src:tests python scripts/probe_tensor.py compare tests/fixtures/tensor_h200.npz.xz

A few processes share the cases. What goes wrong is written down beside the others' results, and a new process goes on
with the next case. Last come cases that may trap, where a fault is the answer, and those that should.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from probe_case import Case, difference, is_fault, load, save
from probe_cases import cases, possible
from probe_children import ask
from probe_wgmma import shared_addresses

from tilewright.backends import open_backend
from tilewright.backends.base import Backend
from tilewright.errors import TilewrightError
from tilewright.telemetry import Telemetry


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


def run(backend: Backend, asked: list[Case], out: Path, seconds: float) -> int:
    """Ask and write it down; 1 when something went wrong."""
    compile_all(backend, asked)
    known = provenance(backend)
    arrays, errors = ask(backend.name, asked, seconds)
    save(out, {**known, "errors": errors}, arrays)
    print(f"{len(arrays)} results written to {out}, {out.stat().st_size} bytes; {len(errors)} errors", file=sys.stderr)
    for name, found in arrays.items():
        if is_fault(found):
            print(f"fault, as may be: {name}: {found}", file=sys.stderr)
    for name, error in errors.items():
        print(f"error: {name}: {error}", file=sys.stderr)
    return 1 if errors else 0


def compare(backend: Backend, asked: list[Case], path: Path, seconds: float) -> int:
    """Ask the same and print each difference, a line each; 1 when there is one."""
    provenance, recorded = load(path)
    missing = {c.name: f"not recorded: {provenance['errors'].get(c.name, 'no such case')}" for c in asked}
    known = [case for case in asked if case.name in recorded]
    arrays, errors = ask(backend.name, known, seconds)
    for case in known:
        if case.name in arrays and (text := difference(case, recorded[case.name], arrays[case.name])):
            errors[case.name] = text
    errors |= {name: text for name, text in missing.items() if name not in recorded}
    for name, error in errors.items():
        print(f"{name}: {' | '.join(error.splitlines())}")
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
        mode.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for all cases together")
    chosen = parser.parse_args(arguments)
    try:
        backend = open_backend(chosen.backend)
        asked = [case for case in possible(backend, cases()) if chosen.only in case.name]
        if chosen.mode == "run":
            return run(backend, asked, chosen.out, chosen.limit)
        return compare(backend, asked, chosen.fixture, chosen.limit)
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
