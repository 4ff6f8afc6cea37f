"""A Python function as a graph: it is called once, with symbols in place of arrays, which note what is done to them.

So it may contain what Python is: helper functions, loops over numbers, an ``if`` on what is known at that time. What
depends on the values of the accumulator has no answer yet, and is refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.epilogue.graph import ACC, INPUT, Graph, GraphBuilder
from tilewright.epilogue.symbol import Marked, Symbol, described, is_number, place_of
from tilewright.errors import UsageError


def call(
    fn: Callable[..., Any], builder: GraphBuilder, accumulators: Sequence[Symbol], arguments: Mapping[str, Symbol]
) -> tuple[list[int], list[str]]:
    """The places of what ``fn(*accumulators, **arguments)`` returns, the first first, and what each is marked as.

    Raises ``UsageError`` when it does not take these arguments, does what cannot be traced or returns something else
    than a value or a tuple of values. Its own errors pass.
    """
    if not callable(fn):
        raise UsageError(
            f"epilogue is {described(fn)}; a function of the accumulator and the named arguments is possible"
        )
    try:
        inspect.signature(fn).bind(*accumulators, **arguments)
    except TypeError as error:
        raise _not_taken(accumulators, arguments, error) from None
    except ValueError:  # a function of C, which does not say
        pass
    try:
        returned = fn(*accumulators, **arguments)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # a function of C, called wrongly
            raise _not_taken(accumulators, arguments, error) from None
        raise
    values = returned if isinstance(returned, tuple) else (returned,)
    if not values:
        raise UsageError("epilogue returns an empty tuple; its first value becomes C, so that there must be one")
    marks = [value.mark if isinstance(value, Marked) else "" for value in values]
    if marks[0]:
        raise UsageError(
            f"epilogue returns {marks[0]} as its first value, which becomes C; later ones can be reductions"
        )
    values = tuple(value.value if isinstance(value, Marked) else value for value in values)
    for value in values:
        if not isinstance(value, Symbol) and not is_number(value):
            raise UsageError(
                f"epilogue returns {described(value)}; what was made of its arguments, a number, or a tuple of these "
                "is possible"
            )
    return [place_of(builder, value, "float", "return") for value in values], marks


def _not_taken(accumulators: Sequence[Symbol], arguments: Mapping[str, Symbol], error: TypeError) -> UsageError:
    given = ", ".join(arguments) or "none"
    first = "the accumulator" if len(accumulators) == 1 else f"{len(accumulators)} accumulators"
    return UsageError(f"epilogue does not take what it is called with, {first} and args ({given}): {error}")


def trace(fn: Callable[..., Any], arguments: Iterable[str] = ()) -> Graph:
    """The graph of ``fn(acc, **arguments)``, the arguments given by their names.

    Raises ``UsageError`` as ``call`` does.
    """
    builder = GraphBuilder()
    symbols = {name: Symbol(builder, builder.put(INPUT, value=name)) for name in (ACC, *sorted(arguments))}
    return builder.graph(*call(fn, builder, [symbols.pop(ACC)], symbols))
