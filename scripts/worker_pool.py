"""Tasks for processes that may hang, crash or run out of GPU: what is lost is one task, not what was to follow it.

A worker reads lines of standard input, each a JSON list of tasks (text), and answers each task in turn with a line of
standard output, a JSON object. Other processes are started for the tasks left when a worker

- exits with status 0, which it may after any answer (its GPU context is broken, say);
- says nothing for a while, or is ended by a signal: the task it had in hand is lost, and that is its result.

One that exits with another status is a mistake of the program, and ends everything.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilewright.line_process import Ended, LineProcess, Silent

Answer = dict[str, Any]


class Pool:
    """Processes of one command line, which share tasks.

    ``start_s`` is the longest time to a process's first answer, ``silence_s`` that between two, in seconds.
    """

    def __init__(
        self, command: Sequence[str], workers: int, *, start_s: float = 120.0, silence_s: float = 60.0
    ) -> None:
        self._command, self._workers = list(command), workers
        self._start_s, self._silence_s = start_s, silence_s
        self._lock = threading.Lock()
        self._left: list[list[str]] = []
        self._processes: set[_Process] = set()
        self._results: queue.Queue[tuple[str, Answer | str] | BaseException | None] = queue.Queue()
        self._until = 0.0
        self._ready: Callable[[str], None] | None = None

    def run(
        self, tasks: Sequence[str], *, at_once: int, seconds: float, ready: Callable[[str], None] | None = None
    ) -> Iterator[tuple[str, Answer | str]]:
        """Every task with its answer, as they come; with why there is none where it was lost.

        Hands out ``at_once`` tasks at a time, and none once ``seconds`` have passed. ``ready`` is called with each
        before it is handed out, and may wait for what the task needs. Raises ``RuntimeError`` when a worker ends with a
        status other than 0.
        """
        self._ready = ready
        self._left = [list(tasks[i : i + at_once]) for i in range(0, len(tasks), at_once)][::-1]
        self._until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._serve, daemon=True) for _ in range(min(self._workers, len(self._left)))
        ]
        for thread in threads:
            thread.start()
        try:
            working = len(threads)
            while working:
                result = self._results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    working -= 1
                else:
                    yield result
        finally:
            self._until = 0.0
            for process in list(self._processes):
                process.kill()
            for thread in threads:
                thread.join()

    def _take(self) -> list[str]:
        with self._lock:
            taken = self._left.pop() if self._left and time.monotonic() < self._until else []
        if self._ready is not None:
            for task in taken:
                self._ready(task)
        return taken

    def _give_back(self, tasks: list[str]) -> None:
        if tasks:
            with self._lock:
                self._left.append(tasks)

    def _serve(self) -> None:
        """Hand tasks to one process after another until nothing is left."""
        process: _Process | None = None
        try:
            while tasks := self._take():
                patience = self._silence_s if process else self._start_s
                if process is None:
                    process = _Process(self._command)
                    self._processes.add(process)
                answered, lost = 0, ""
                for answer in process.answers(tasks, patience, self._silence_s):
                    if isinstance(answer, str):
                        lost = answer
                        break
                    self._results.put((tasks[answered], answer))
                    answered += 1
                if answered == len(tasks):
                    continue
                self._end(process)
                process = None
                if lost:
                    self._results.put((tasks[answered], lost))
                    answered += 1
                self._give_back(tasks[answered:])
            self._results.put(None)
        except BaseException as error:
            self._results.put(error)
        finally:
            if process is not None:
                self._end(process)

    def _end(self, process: _Process) -> None:
        process.end()
        self._processes.discard(process)


class _Process(LineProcess):
    """One worker."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self._fresh = True

    def answers(self, tasks: Sequence[str], first_s: float, next_s: float) -> Iterator[Answer | str]:
        """An answer for each task; fewer when it exits, and before the end the reason when it was lost."""
        self.send(list(tasks))
        patience = first_s
        for _ in tasks:
            try:
                answer = self.receive(patience)
            except Silent:
                yield f"no answer within {patience:g} s"
                return
            except Ended as ended:
                if ended.status > 0 or (ended.status == 0 and self._fresh):
                    status = f"a worker ended with status {ended.status}"
                    raise RuntimeError(status + " and no answer" * self._fresh) from None
                if ended.status < 0:
                    yield str(ended)
                return
            self._fresh = False
            yield answer
            patience = next_s
