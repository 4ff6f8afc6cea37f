"""What the tests of a climb have in common: a small one, and how its document is read."""

from __future__ import annotations

from typing import Any

from tilewright.climb import climb

Json = dict[str, Any]

SPEED = ("time_us", "tflops", "percent_of_roof", "speedup_over_previous", "speedup_over_naive")


def every_row(document: Json) -> list[Json]:
    """Rungs, then the mistakes they are shown beside."""
    return [*document["rungs"], *document["counter_examples"]]


def small(**arguments: Any) -> list[Json]:
    """The rungs of a small climb in the emulator."""
    given = {"shape": (70, 70, 40), "dtype": "fp32", "rungs": "0-1", "backend": "emulator", **arguments}
    return list(climb(**given).to_dict()["rungs"])
