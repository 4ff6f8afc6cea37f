"""Measured choices: the planner's first candidates timed on a GPU, the winners kept in a database and looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.tune.lookup import forget, winner

__all__ = ["forget", "winner"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tilewright.tune import lookup  # and SQLite with it, which a product that nobody tuned does without

    return getattr(lookup, name)
