"""What a question is answered with: a bundle's plan, a tuned one, what an earlier process chose, else the planner's.

Only the last builds the planner's tables, which takes most of the first call of a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.library import kept
from tilewright.library.choose import Choice, Question, choose
from tilewright.library.winners import tuned
from tilewright.plan_base import Plan

_bundled: dict[tuple[str, int], Mapping[str, Any]] = {}


def answer(question: Question, given: Plan | None = None, *, anew: bool = False) -> Choice:
    """The choice for a product with elements in C; ``anew`` has the planner asked again, for its reasons.

    Raises ``UsageError`` as ``choose`` does.
    """
    if given is not None:
        return choose(question, given)
    record = _bundled.get((kept.digest_of(kept.described(question)), kept.gpu_here()[1])) if _bundled else None
    if record is not None:
        return kept.choice_of(question, record, "bundled")
    found = tuned(question) or (None if anew else kept.find(question))
    if found is None:
        found = choose(question)
        if found.source != "tuned":
            kept.keep(question, found)
    return found


def take(records: Mapping[str, Mapping[str, Any]], sms: int) -> None:
    """Answer with these from now on: ``kept.record_of`` choices by digests of ``kept.described`` questions.

    Only on a GPU of ``sms`` SMs, by which plans deal out their work.
    """
    _bundled.update({(digest, sms): record for digest, record in records.items()})


def forget() -> None:
    """Forget what was taken."""
    _bundled.clear()
