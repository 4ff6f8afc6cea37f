"""All that is asked about the tensor instructions, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from probe_case import Case
from probe_outputs import output_cases
from probe_tma import barrier_cases, load_cases, store_cases
from probe_warp import warp_cases
from probe_wgmma import product_cases, reading_cases

from tilewright.backends.base import Backend
from tilewright.errors import UsageError

FAMILIES = (warp_cases, barrier_cases, load_cases, store_cases, product_cases, reading_cases, output_cases)
SLICES = 4  # of a family, and of what may trap: as many processes can share the work


def cases() -> list[Case]:
    """Everything, what is least certain to run last. Raises ``UsageError`` when two have one name."""
    asked = itertools.chain.from_iterable(family() for family in FAMILIES)
    found = sorted(asked, key=lambda case: (case.alone, not case.emulated))
    names = [case.name for case in found]
    if len(set(names)) != len(names):
        raise UsageError(f"two cases are called {next(n for n in names if names.count(n) > 1)}")
    return found


def possible(backend: Backend, asked: Iterable[Case]) -> list[Case]:
    """Those that a backend can be asked."""
    return [case for case in asked if case.emulated or backend.name != "emulator"]


def chunks(asked: Iterable[Case]) -> Iterator[list[list[Case]]]:
    """Rounds of what processes are to be asked, one process a list: the usual cases, what may trap, what should."""
    kinds: tuple[list[Case], list[Case], list[Case]] = ([], [], [])
    for case in asked:
        kinds[2 if case.alone else int(case.may_trap)].append(case)
    usual, uncertain, alone = kinds
    # Neighbours have a kernel in common, so that a list of them loads few.
    size = -(-len(usual) // SLICES)
    yield [usual[i : i + size] for i in range(0, len(usual), size or 1)]
    yield [part for part in (uncertain[i::SLICES] for i in range(SLICES)) if part]
    yield [[case] for case in alone]
