"""What a function's trace depends on beside its arguments, as a key: two functions of one key give the same graph.

A call in a loop brings a new lambda each time, whose code is the same object; what it captured may have changed
meanwhile. So the key has the code, the defaults, and what the names in it stand for now, of helper functions too. Where
that is anything but numbers, strings, functions and modules (an object with attributes, a list), there is no key, and
such a function is traced at each call. So is one that looks things up in ways that its names do not tell (an import of
its own, ``getattr``).
"""

from __future__ import annotations

import dis
from collections.abc import Mapping
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

_VALUES = (bool, int, float, str, type(None), np.number, np.bool_)
_STEADY = {
    "tilewright",
    "numpy",
    "torch",
    "math",
    "operator",
    "builtins",
}  # whose functions and attributes stay as they are
# Names by which a function reaches what no name of its own stands for, or gets something else each time.
_HIDING = frozenset(
    (
        "random", "getattr", "globals", "locals", "vars", "eval", "exec", "open", "input", "__import__",
        "import_module", "attrgetter", "__dict__", "__getattribute__",
    )
)  # fmt: skip


class _Unknown(Exception):
    """Something whose state cannot be seen."""


def key_of(fn: Any) -> tuple[Any, ...] | None:
    """The key of a function; None when it captures something whose state cannot be seen."""
    seen = _Seen()
    try:
        seen.add(fn)
        seen.add_attributes()
    except _Unknown:
        return None
    return tuple(seen.parts)


class _Seen:
    """What a function reaches, and the parts of its key."""

    __slots__ = ("functions", "modules", "names", "parts")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.functions: set[Any] = set()
        self.names: dict[str, None] = {}  # that any of these functions uses
        self.modules: dict[ModuleType, set[str]] = {}  # with the attributes that were looked at

    def add(self, value: Any) -> None:
        """What a value adds to the key."""
        if isinstance(value, _VALUES):
            self.parts += (type(value), value if isinstance(value, int) else repr(value))  # 0.0 is not -0.0, NaN is NaN
        elif isinstance(value, FunctionType):
            if _is_steady(value.__module__):
                self.parts.append(value)
                return
            self.parts.append(value.__code__)
            if value not in self.functions:
                self.functions.add(value)
                self._add_captured(value)
        elif isinstance(value, ModuleType):
            self.parts.append(value)
            if not _is_steady(value.__name__):
                self.modules.setdefault(value, set())
        elif isinstance(value, BuiltinFunctionType | np.ufunc) and _is_steady(getattr(value, "__module__", "numpy")):
            self.parts.append(value)
        else:
            raise _Unknown

    def _add_captured(self, fn: FunctionType) -> None:
        """What a function takes from outside. Attributes of its own may be anything."""
        names, hidden = _names(fn.__code__)
        if hidden or vars(fn):
            raise _Unknown
        self.names.update(dict.fromkeys(names))
        for each in fn.__defaults__ or ():
            self.add(each)
        for cell in fn.__closure__ or ():
            self.add(_content(cell))
        self._add_named(fn.__kwdefaults__ or {}, tuple(fn.__kwdefaults__ or ()))
        self._add_named(fn.__globals__, names)

    def _add_named(self, found: Mapping[str, Any], wanted: tuple[str, ...]) -> None:
        for name in wanted:
            if name in found:
                self.parts.append(name)
                self.add(found[name])

    def add_attributes(self) -> None:
        """Those of modules, by all names that any function uses: a module may be handed from one to another."""
        more = bool(self.modules)
        while more:
            more = False
            for module, looked_at in [*self.modules.items()]:
                for name in [*self.names]:
                    if name not in looked_at:
                        looked_at.add(name)
                        if name in vars(module):
                            self._add_named(vars(module), (name,))
                            more = True


def _is_steady(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _STEADY


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


@lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[tuple[str, ...], bool]:
    """The names that code, and functions defined in it, take from outside or ask for as attributes.

    And whether it reaches more than these tell.
    """
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    imported = [str(each.argval) for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"]
    hidden = not (_HIDING.isdisjoint(code.co_names) and all(_is_steady(name) for name in imported))
    names = tuple(dict.fromkeys((*code.co_names, *(name for names, _ in inner for name in names))))
    return names, hidden or any(each for _, each in inner)
