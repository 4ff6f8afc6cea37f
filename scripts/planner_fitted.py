"""Which fitted constants the price of each family of kernels moves with: found by moving them, one after another.

The table of docs/planner.md names the constants. Prices are those of all that each family offers for a few problems,
among which every constant has its say: ragged ones, few rows, long K, lines that are not aligned; as dependent launches
too.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import planner
from tilewright.planner.family import families
from tilewright.planner.machine import Machine
from tilewright.planner.plan import machine_of
from tilewright.problem import Problem

_ROW = re.compile(r"^\| ([\w, ]*) ?\| (?:\[`([\w.]+)`\]\(\S+\)|residual `(\w+)`) \| ([\d.]+) \|", re.MULTILINE)
PROBLEMS = (
    Problem(4000, 4008, 1000, "bf16"),
    Problem(200, 1000, 8000, "bf16"),
    Problem(1, 4000, 1000, "bf16", b_layout="column"),
    Problem(12, 4000, 4000, "bf16", b_layout="column"),
    Problem(500, 500, 501, "bf16"),
    Problem(500, 500, 500, "fp32"),
)


@dataclass(frozen=True)
class Fitted:
    """A row of the table: whose constant it is in the table's words, its path under ``tilewright.planner``, its value.

    A residual has no path but a ``residual``.
    """

    of: str
    path: str
    residual: str
    value: float

    @property
    def name(self) -> str:
        """A short name."""
        return f"residual {self.residual}" if self.residual else self.path.rpartition(".")[2]

    @property
    def owners(self) -> set[str]:
        """The families whose constant it is; none where it is one of several kernels."""
        return set(self.of.split(", ")) & {family.name for family in families()}


def rows(page: str) -> tuple[Fitted, ...]:
    """The table's rows; one that names no family is of the family above it."""
    found: list[Fitted] = []
    for of, path, residual, value in _ROW.findall(page):
        found.append(Fitted(of.strip() or found[-1].of, path, residual, float(value)))
    return tuple(found)


def value_of(path: str) -> Any:
    """What a path under ``tilewright.planner`` is, such as ``supply.FILL``."""
    owner, name = _owner(path)
    return getattr(owner, name)


@cache
def used(fitted: tuple[Fitted, ...]) -> dict[str, list[Fitted]]:
    """By family, those of the constants that move its prices."""
    machine = machine_of("h200", None, None, pdl=True)[0]  # which has plans that are no dependent launches too
    before = _prices(machine)
    found: dict[str, list[Fitted]] = {name: [] for name in before}
    for each in fitted:
        with _moved(each, machine) as moved:
            after = _prices(moved)
        for name, prices in before.items():
            if not np.array_equal(prices, after[name]):
                found[name].append(each)
    return found


def _prices(machine: Machine) -> dict[str, NDArray[np.float64]]:
    found: dict[str, list[NDArray[np.float64]]] = {family.name: [] for family in families()}
    for family, problem in product(families(), PROBLEMS):
        if family.refusal(problem) is None:
            found[family.name].append(family.offer(problem, machine).sustained.us)
    return {name: np.concatenate(prices) for name, prices in found.items()}


@contextmanager
def _moved(each: Fitted, machine: Machine) -> Iterator[Machine]:
    """The machine while a constant is another: in its module, and wherever it was imported or given to a class."""
    if each.residual:
        yield replace(machine, calibration=_with_residual(machine, each))
        return
    owner, name = _owner(each.path)
    value = getattr(owner, name)
    places = [(owner, name)]
    for module in _modules():
        if module is not owner and vars(module).get(name) is value:
            places.append((module, name))
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__ and kind is not owner:
                places += [(kind, other) for other, held in vars(kind).items() if held is value]
    for place, attribute in places:
        setattr(place, attribute, 1.37 * value)
    try:
        yield machine
    finally:
        for place, attribute in places:
            setattr(place, attribute, value)


@cache
def _modules() -> list[ModuleType]:
    return [import_module(each.name) for each in pkgutil.walk_packages(planner.__path__, f"{planner.__name__}.")]


def _with_residual(machine: Machine, each: Fitted) -> Any:
    moved = tuple(
        (of, name, 1.37 * factor if (of, name) == (each.of, each.residual) else factor)
        for of, name, factor in machine.calibration.residuals
    )
    return replace(machine.calibration, residuals=moved)


def _owner(path: str) -> tuple[Any, str]:
    """The module or class that has a constant, and the constant's name."""
    module, *names = re.split(r"\.(?=[A-Z])", path)
    owner: Any = import_module(f"{planner.__name__}.{module}")
    *owners, name = ".".join(names).split(".")
    for each in owners:
        owner = getattr(owner, each)
    return owner, name
