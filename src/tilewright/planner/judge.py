"""``tilewright.judge``: what the planner says of a tile that somebody brings."""

from __future__ import annotations

from tilewright.planner.judgement import Judgement


def judge(*sizes: int, **choices: object) -> Judgement:
    """Judge a tile."""
    raise NotImplementedError
