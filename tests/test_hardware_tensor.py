"""The emulator against an H200: TMA, mbarriers, wgmma, the matrix instructions of a warp, and C of rungs 5 to 11.

The fixture is written by scripts/probe_tensor.py. What comes out of the emulator has to be the same in every byte; C of
real numbers, which hardware sums in another order, within rounding. Where hardware traps, the emulator faults.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from probe_case import Array, difference, is_fault, load
from probe_cases import cases

from tilewright.backends.emulator import EmulatorBackend
from tilewright.errors import UsageError

FIXTURE = Path(__file__).parent / "fixtures" / "tensor_h200.npz.xz"
CASES = {case.name: case for case in cases()}
EMULATED = [name for name, case in CASES.items() if case.emulated]


@cache
def recorded() -> tuple[dict[str, Any], dict[str, Array]]:
    return load(FIXTURE)


@cache
def backend() -> EmulatorBackend:
    """One, so that each kernel is loaded once."""
    return EmulatorBackend()


def test_the_fixture_is_of_these_cases() -> None:
    provenance, arrays = recorded()
    assert provenance["device"] == "NVIDIA H200"
    assert provenance["errors"] == {}
    assert arrays.keys() == CASES.keys(), "measure again with scripts/probe_tensor.py"


@pytest.mark.parametrize("name", EMULATED)
def test_the_emulator_does_what_hardware_did(name: str) -> None:
    case = CASES[name]
    assert difference(case, recorded()[1][name], case.answer(backend())) is None


def test_where_hardware_traps_the_emulator_faults() -> None:
    alone = [name for name, case in CASES.items() if case.alone]
    assert {name: str(recorded()[1][name]) for name in alone} == dict.fromkeys(alone, "illegal instruction")
    assert all(is_fault(CASES[name].answer(backend())) for name in alone)


def test_what_the_emulator_does_not_know_it_refuses() -> None:
    for name in CASES.keys() - EMULATED:
        with pytest.raises(UsageError, match="the emulator knows where"):
            CASES[name].run(backend())
