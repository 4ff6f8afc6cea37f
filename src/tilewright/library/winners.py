"""What a call is called in the database of tuned plans, and the winner for it.

A plain product whose operands kernels read as they lie is what ``tilewright tune`` measures. Any other is a kind of its
own, by the database's field for the epilogue: the digest of that, whether ``b`` is a pair, the batch, and operands that
may be packed. Its candidates are measured with all that the call queues, so that a winner may need a packed copy.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from tilewright import settings
from tilewright.errors import UnavailableError, UsageError
from tilewright.library.choose import Choice, Question, choose, needs, operand_lines, packable, packed, problem_of
from tilewright.library.pair import lines_of_second
from tilewright.problem import Problem
from tilewright.tune.key import PLAIN


def named(question: Question) -> tuple[Problem, str, str]:
    """The problem that is left once what no kernel reads is packed, and the key's ``epilogue`` and ``alignment``."""
    lines, p = operand_lines(question), question.product
    must, may = packable(lines)
    _, after = packed(question, lines, must, None)
    words = [question.epilogue]
    if p.second is not None:
        second = lines_of_second(question)
        words.append(f"pair with b[1] {second.layout or 'strided'}{'' if second.aligned else ' off 16-byte lines'}")
    if p.batch:
        steps = (f"{name} {' '.join(str(int(step != 0)) for step in question.view(name).batch)}" for name in "ab")
        words.append(f"batch {'x'.join(map(str, p.batch))} ({', '.join(steps)})")
    if may:
        words.append(f"{' and '.join(may)} packed or not")
    letters = "".join(name for name in "abc" if after[name].aligned) or "none"
    return problem_of(question, after), ", ".join(words), letters


def tuned(question: Question) -> Choice | None:
    """The winner in the database of this GPU, where there is a GPU and a winner."""
    if question.sms is not None or question.batch_invariant or not _any_winners():
        return None
    from tilewright.tune.lookup import measured, winner

    problem, kind, letters = named(question)
    plain = question.epilogue == PLAIN and question.product.second is None and not question.product.batch
    for epilogue in dict.fromkeys([kind, *([PLAIN] if plain else [])]):
        if not measured(problem, epilogue=epilogue, alignment=letters):
            continue
        try:
            plan = winner(problem, epilogue=epilogue, alignment=letters)
        except UnavailableError:
            return None
        if plan is None or (epilogue == PLAIN and not needs(plan) <= set(letters)):
            continue
        try:
            return replace(choose(question, plan), source="tuned")
        except UsageError as error:  # a table may come from anywhere
            warnings.warn(f"the tuned plan for {problem} is not used: {error}", stacklevel=2)
    return None


def _any_winners() -> bool:
    """Whether a database of winners may be there, told without SQLite."""
    folders = (settings.wanted_cache_dir(), settings.cache_dir())
    return any(folder is not None and (folder / settings.WINNERS).exists() for folder in folders)
