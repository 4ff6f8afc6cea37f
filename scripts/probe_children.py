"""Cases asked in child processes, so that a fault, which costs a process its context, costs no other case's answer."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Literal

from probe_case import Array, Case, is_fault
from probe_cases import SLICES, cases, chunks

from tilewright.backends import open_backend

CASE_LIMIT = 60.0  # seconds from one answer to the next, a kernel's compilation for the emulator included
# A fork of a server that has these starts sooner. Nothing of CUDA: it does not survive a fork.
_PRELOADED = ["numpy", "ml_dtypes", "tilewright.backends.emulator", "tilewright.ladder", "tilewright.run"]


def _child(out: Connection, backend_name: Literal["cuda", "emulator"], names: Sequence[str]) -> None:
    """Send each case's answer, or what went wrong as a string; end after a fault, whose context may be lost."""
    known = {case.name: case for case in cases()}
    try:
        backend = open_backend(backend_name)
        for name in names:
            found = known[name].answer(backend)
            out.send(found)
            if is_fault(found) and backend_name == "cuda":
                return
    except Exception as error:  # whatever it is: the others' answers are kept
        out.send(f"{type(error).__name__}: {error}")


def ask_in_turn(
    context: Any, backend_name: str, asked: Sequence[Case], deadline: float
) -> tuple[dict[str, Array], dict[str, str]]:
    """Ask these one after another, in a new process after each that went wrong."""
    arrays, errors = dict[str, Array](), dict[str, str]()
    left = [case.name for case in asked]
    while left and time.monotonic() < deadline:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(sender, backend_name, left), daemon=True)
        child.start()
        sender.close()  # the child has the other copy, so that its end shows
        answered = 0
        try:
            while left:
                patience = min(CASE_LIMIT, max(0.0, deadline - time.monotonic()))
                if not receiver.poll(patience):
                    errors[left.pop(0)] = f"no answer within {patience:.0f} s"
                    break
                found = receiver.recv()
                name, answered = left.pop(0), answered + 1
                if isinstance(found, str):
                    errors[name] = found
                    break
                arrays[name] = found
        except EOFError:  # it is gone: after a fault that is an answer, or for no reason that it told
            child.join(10)
            if not (answered and is_fault(arrays[name])):
                errors[left.pop(0)] = f"the process ended with {child.exitcode}"
        finally:
            receiver.close()
            child.join(0 if left else 10)
            child.kill()
            child.join(10)
    return arrays, errors | dict.fromkeys(left, "not asked: the time is up")


def ask(backend_name: str, asked: Sequence[Case], seconds: float) -> tuple[dict[str, Array], dict[str, str]]:
    """Answers and errors by name, each in the order of ``asked``; what is not done in that time is an error."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    deadline = time.monotonic() + seconds
    arrays, errors = dict[str, Array](), dict[str, str]()
    with ThreadPoolExecutor(SLICES) as threads:
        for parts in chunks(asked):  # round after round: the usual cases are over before anything may trap
            for found, wrong in threads.map(lambda part: ask_in_turn(context, backend_name, part, deadline), parts):
                arrays |= found
                errors |= wrong
    return tuple({c.name: d[c.name] for c in asked if c.name in d} for d in (arrays, errors))  # type: ignore[return-value]
