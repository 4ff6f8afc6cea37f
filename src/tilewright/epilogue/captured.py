"""What a function's trace depends on beside its arguments, as a key: two functions of one key give the same graph.

A call in a loop brings a new lambda each time, whose code is the same object; what it captured may have changed
meanwhile. So the key has the code, the defaults, and what the names in it stand for now, of helper functions too. Where
that is anything but numbers, strings, functions and modules (an object with attributes, a list), there is no key, and
such a function is traced at each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class _Unknown(Exception):
    """Something whose state cannot be seen."""


def key_of(fn: Any) -> tuple[Any, ...] | None:
    """The key of a function; None when it captures something whose state cannot be seen."""
    try:
        return tuple(_parts(fn, set(), ()))
    except _Unknown:
        return None


def _parts(value: Any, seen: set[Any], names: tuple[str, ...]) -> Iterator[Any]:
    """What a value adds to the key; ``names`` are those by which a module's attributes are asked for."""
    if isinstance(value, _VALUES):
        yield type(value), value if isinstance(value, int) else repr(value)  # 0.0 is not -0.0, and NaN is NaN
    elif isinstance(value, FunctionType):
        if _is_steady(value.__module__):
            yield value
            return
        yield value.__code__
        if value in seen:
            return
        yield from _captured(value, seen)
    elif isinstance(value, ModuleType):
        yield value
        if _is_steady(value.__name__) or (value, names) in seen:
            return
        seen.add((value, names))
        yield from _named(vars(value), names, seen, names)
    elif isinstance(value, BuiltinFunctionType | np.ufunc) and _is_steady(getattr(value, "__module__", "numpy")):
        yield value
    else:
        raise _Unknown


def _captured(fn: FunctionType, seen: set[Any]) -> Iterator[Any]:
    """What a function takes from outside. Attributes of its own may be anything."""
    seen.add(fn)
    names = _names(fn.__code__)
    if vars(fn) or "random" in names:
        raise _Unknown
    for each in (*(fn.__defaults__ or ()), *_cells(fn)):
        yield from _parts(each, seen, names)
    yield from _named(fn.__kwdefaults__ or {}, tuple(fn.__kwdefaults__ or ()), seen, names)
    yield from _named(fn.__globals__, names, seen, names)


def _named(found: Mapping[str, Any], wanted: tuple[str, ...], seen: set[Any], names: tuple[str, ...]) -> Iterator[Any]:
    for name in wanted:
        if name in found:
            yield name
            yield from _parts(found[name], seen, names)


def _is_steady(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _STEADY


def _cells(fn: FunctionType) -> Iterator[Any]:
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None


@lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    """The names that code, and functions defined in it, take from outside or ask for as attributes."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return tuple(dict.fromkeys((*code.co_names, *(name for names in inner for name in names))))
