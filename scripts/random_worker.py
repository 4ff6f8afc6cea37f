"""A process that makes random calls and answers what came of each: ``random_problems.py`` starts some.

A line of standard input is a JSON list of seeds, and each is answered by a line. A call that broke the GPU's context
ends the process, after its answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from random_draw import Case, Operands, drawn, room

import tilewright
from tilewright.errors import LaunchError
from tilewright.library import answers, choose, hot, ready
from tilewright.library.choose import Choice, Question
from tilewright.plan_base import Plan

Answer = dict[str, Any]
CONSIDERED = 16  # of the kernels that the planner ranks


class Known:
    """The kernels that some process has compiled, in a file that all add lines to."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._keys: set[str] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """One more, for all processes."""
        if key not in self._keys:
            self._keys.add(key)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{key}\n")

    def refresh(self) -> None:
        """Read what other processes have added: whole lines."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                lines, _, _ = file.read().rpartition(b"\n")
            self._read += len(lines) + 1 if lines else 0
            self._keys.update(lines.decode().splitlines())


def key_of(plan: Plan, question: Question) -> str:
    """What a kernel is compiled for: a plan, and the digest of what follows the product."""
    return f"{json.dumps(plan.to_dict(), sort_keys=True)} {question.epilogue}"


class Choices:
    """What ran, as long as this is installed; and once ``plans`` kernels are known, those of the ranked go first."""

    def __init__(self, known: Known, plans: int) -> None:
        self.known, self.plans = known, plans
        self.last: Choice | None = None
        self._runs, self._answer = choose._runs, answers.answer

    def install(self) -> None:
        """From now on."""
        choose._runs = self._ranked
        vars(ready)["answer"] = self._noted

    def remove(self) -> None:
        """As it was before."""
        choose._runs = self._runs
        vars(ready)["answer"] = self._answer

    def begin(self) -> None:
        """Forget what ran last, and learn which kernels there are by now."""
        self.known.refresh()
        self.last = None

    def _ranked(self, question: Question, planning: Any) -> list[choose.Run]:
        found = self._runs(question, planning)
        if len(self.known) < self.plans:
            return found
        return sorted(found[:CONSIDERED], key=lambda run: key_of(run.plan, question) not in self.known)

    def _noted(self, question: Question, given: Plan | None = None) -> Choice:
        self.last = self._answer(question, given)
        self.known.add(key_of(self.last.plan, question))
        return self.last


def results_of(torch: Any, case: Case, operands: Operands, device: str) -> Iterator[tuple[str, Any, Any]]:
    """Each way of this case's call: what it is called, what came out and what should have, tuples of tensors."""
    a, b, options = operands.a, operands.b, {**operands.options}
    options["backend"] = "emulator" if device == "cpu" else "auto"
    outs = tuple(room(torch, case, device, like) for like in operands.wanted)
    given = outs if len(outs) > 1 else outs[0]
    if case.way in ("out", "prepared"):
        options |= {"out": given, "out_dtype": None}
    if case.way == "stream" and device != "cpu":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        found = tilewright.matmul(a, b, stream=side if case.seed % 2 else side.cuda_stream, **options)
        torch.cuda.current_stream().wait_stream(side)
        yield "", found, operands.wanted
    elif case.way == "prepared":
        with tilewright.Matmul(a, b, **options) as prepared:
            for name in ("", "again", "and again"):
                for out in outs:
                    out.fill_(float("nan"))
                yield name, prepared.execute(), operands.wanted
            other = Operands(torch, case, device)
            changed = {key: other.options[key] for key in ("c", "bias", "args") if key in other.options}
            yield "on other arrays", prepared.execute(other.a, other.b, **changed), other.wanted
    else:
        invariant = case.way == "invariant"
        yield "", tilewright.matmul(a, b, batch_invariant=invariant, **options), operands.wanted
        if invariant and a.dim() == 2 and case.follows != "reductions" and case.a[0] > 1:
            yield from rows_of(torch, case, operands, options)


def rows_of(torch: Any, case: Case, operands: Operands, options: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Some rows of a product that is rounded, alone and among all."""
    b = operands.b[0] if isinstance(operands.b, tuple) else operands.b
    a = torch.randn(case.a, device=b.device, dtype=torch.float32).to(b.dtype)
    b = b * torch.rand((), device=b.device).to(b.dtype)
    if b.dim() > 2:
        return
    plain = {"backend": options["backend"], "out_dtype": torch.float32, "batch_invariant": True}
    first = case.seed % (case.a[0] - 1)
    last = first + 1 + case.seed % (case.a[0] - first)
    yield "rows alone", tilewright.matmul(a[first:last], b, **plain), (tilewright.matmul(a, b, **plain)[first:last],)


def differs(torch: Any, found: Any, wanted: Sequence[Any]) -> str:
    """What is wrong with results; nothing where they are what they should be, bit for bit but for the sign of 0."""
    results = found if isinstance(found, tuple) else (found,)
    if len(results) != len(wanted):
        return f"{len(results)} results and not {len(wanted)}"
    for number, (one, other) in enumerate(zip(results, wanted, strict=True)):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"result {number} is {one.dtype} {tuple(one.shape)} and not {other.dtype} {tuple(other.shape)}"
        if not torch.equal(one, other):
            wrong = (one != other).nonzero()
            at = tuple(wrong[0].tolist())
            return f"result {number}: {len(wrong)} elements, first {at} is {float(one[at])} and not {float(other[at])}"
    return ""


def answer(torch: Any, case: Case, device: str, choices: Choices) -> Answer:
    """What came of a case: ``wrong`` says what was not right, and ``broken`` whether the context is of no more use."""
    torch.manual_seed(case.seed)
    hot.forget()
    ready.forget()  # what was prepared holds memory on the host
    choices.begin()
    wrong, broken = "", False
    before = tilewright.compiles().compiled
    try:
        operands = Operands(torch, case, device)
        for name, found, wanted in results_of(torch, case, operands, device):
            said = differs(torch, found, wanted)
            wrong = wrong or (f"{name}: {said}" if said and name else said)
    except Exception as error:  # whatever it is, it is what this call came to
        wrong = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        broken = isinstance(error, LaunchError) or "CUDA error" in str(error)
    last = choices.last
    ran = "nothing" if last is None else last.plan.of
    packs = "" if last is None else " and ".join(sorted(each.operand for each in last.packs))
    return {
        "case": asdict(case), "wrong": wrong, "broken": broken, "kernel": ran, "packed": packs,
        "batched": last is not None and bool(getattr(last.plan, "batched", False)),
        "compiled": tilewright.compiles().compiled - before,
    }  # fmt: skip


def main(device: str, most: str, macs: str, known: str, plans: str) -> None:
    """Answer lines of seeds."""
    import torch

    choices = Choices(Known(Path(known)), int(plans))
    choices.install()
    for line in sys.stdin:
        for seed in json.loads(line):
            found = answer(torch, drawn(int(seed), int(most), int(macs)), device, choices)
            print(json.dumps(found), flush=True)
            if found["broken"]:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
