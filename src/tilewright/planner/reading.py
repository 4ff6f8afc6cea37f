"""Values read back from JSON, each checked, so that what is wrong with a file is a sentence that names the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tilewright.errors import UsageError

Reader = Callable[[Any], Any]
"""Gives the value of a field. Raises ``ValueError`` that says what is possible, or ``UsageError`` that says it all."""

_Value = TypeVar("_Value")


def read_fields(
    what: str,
    values: Mapping[str, Any],
    readers: Mapping[str, Reader],
    ignored: frozenset[str] | set[str] = frozenset(),
) -> dict[str, Any]:
    """The fields of ``values``, each through its reader; those of ``ignored`` follow from others and are left out.

    A field that is absent stays absent. Raises ``UsageError`` for what is no object, for an unknown field and for a
    value that its reader refuses.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"a {what} is {values!r}; it must be an object with the fields {', '.join(readers)}")
    found = {}
    for name, value in values.items():
        if name in ignored:
            continue
        if name not in readers:
            raise UsageError(f"{what} field {name!r} is not one of {', '.join(readers)}")
        try:
            found[name] = readers[name](value)
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(f"{what} field {name!r} is {value!r}; {error}") from None
    return found


def build(what: str, make: Callable[..., _Value], found: Mapping[str, Any]) -> _Value:
    """``make(**found)``. Raises ``UsageError`` where a field is missing that has no default."""
    try:
        return make(**found)
    except TypeError as error:
        raise UsageError(f"a {what} is incomplete: {str(error).partition('() ')[2] or error}") from None


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str) or any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError("a string is possible")  # half a surrogate pair, which JSON can hold, is no text
    return value


def flag(value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ValueError("true and false are possible")
    return value


def whole(value: Any) -> int:
    """An int."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise ValueError("a whole number is possible")  # of 64 bits, as arrays and databases hold them
    return value


def natural(value: Any) -> int:
    """An int, 0 or more."""
    if whole(value) < 0:
        raise ValueError("a whole number, 0 or more, is possible")
    return int(value)


def counted(value: Any) -> int:
    """An int above 0."""
    if whole(value) <= 0:
        raise ValueError("a whole number above 0 is possible")
    return int(value)


def real(value: Any) -> float:
    """A finite float."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError("a number is possible")
    except OverflowError:  # an int beyond all floats
        raise ValueError("a number is possible") from None
    return float(value)


def positive(value: Any) -> float:
    """A finite float above 0."""
    if real(value) <= 0:
        raise ValueError("a number above 0 is possible")
    return float(value)


def amount(value: Any) -> float:
    """A finite float, 0 or more."""
    if real(value) < 0:
        raise ValueError("a number, 0 or more, is possible")
    return float(value)


def wholes(count: int, each_by: Reader = whole) -> Reader:
    """``count`` ints, each through ``each_by``, as a tuple."""

    def read(value: Any) -> tuple[int, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != count:
            raise ValueError(f"{count} whole numbers are possible")
        return tuple(each_by(each) for each in value)

    return read


def reals(value: Any) -> dict[str, float]:
    """Numbers by name."""
    if not isinstance(value, Mapping):
        raise ValueError("an object of numbers is possible")
    return {text(name): real(each) for name, each in value.items()}


def choice(*words: str) -> Reader:
    """One of some strings."""

    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{', '.join(words)} are possible")
        return str(value)

    return read


def optional(reader: Reader) -> Reader:
    """None, or what ``reader`` takes."""
    return lambda value: None if value is None else reader(value)


def each_of(reader: Reader) -> Reader:
    """A list of what ``reader`` takes."""

    def read(value: Any) -> list[Any]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError("a list is possible")
        return [reader(each) for each in value]

    return read


def record(what: str, make: Callable[..., Any], readers: Mapping[str, Reader]) -> Reader:
    """An object with the fields of ``readers``, of which ``make`` gives the value."""
    return lambda value: build(what, make, read_fields(what, value, readers))
