"""Measured choices: the planner's first candidates timed on a GPU, the winners kept in a database and looked up."""

from __future__ import annotations

from tilewright.tune.lookup import forget, winner

__all__ = ["forget", "winner"]
