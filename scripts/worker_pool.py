"""Tasks for processes that may hang, crash or run out of GPU: what is lost is one task, not what was to follow it.

A worker reads lines of standard input, each a JSON list of tasks (text), and answers each task in turn with a line of
standard output, a JSON object. Other processes are started for the tasks left when a worker

- exits with status 0, which it may after any answer (its GPU context is broken, say);
- says nothing for a while, or is ended by a signal: the task it had in hand is lost, and that is its result.

One that exits with another status is a mistake of the program, and ends everything.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

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


class _Process:
    """One worker."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._fresh = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def answers(self, tasks: Sequence[str], first_s: float, next_s: float) -> Iterator[Answer | str]:
        """An answer for each task; fewer when it exits, and before the end the reason when it was lost."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(list(tasks)) + "\n")
            self._process.stdin.flush()
        patience = first_s
        for _ in tasks:
            try:
                line = self._lines.get(timeout=patience)
            except queue.Empty:
                yield f"no answer within {patience:g} s"
                return
            if line is None or not line.endswith("\n"):  # it has ended, perhaps in the middle of an answer
                status = self._process.wait()
                if status > 0 or (status == 0 and self._fresh):
                    raise RuntimeError(f"a worker ended with status {status}" + " and no answer" * self._fresh)
                if status < 0:
                    yield f"its process was ended by signal {-status}"
                return
            self._fresh = False
            yield json.loads(line)
            patience = next_s

    def kill(self) -> None:
        """Stop it; whoever waits for an answer learns that."""
        self._process.kill()

    def end(self) -> None:
        """Stop it and wait for that."""
        self.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
