"""A process that is spoken to in lines of JSON, and that may hang or crash without taking this one along."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

END_S = 30.0


class Silent(Exception):
    """It said nothing for as long as it may."""


class Ended(Exception):
    """It has ended, perhaps in the middle of a line. ``status`` is its exit status, below 0 a signal's number."""

    def __init__(self, status: int) -> None:
        super().__init__(f"its process was ended by signal {-status}" if status < 0 else f"it ended with {status}")
        self.status = status


class LineProcess:
    """One process of a command line; its standard error goes to ``errors``, or to this one's."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, errors: IO[Any] | None = None
    ) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=env, text=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def send(self, values: Any) -> None:
        """Write a line. That nobody reads any more is told by ``receive``."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()

    def receive(self, patience_s: float) -> Any:
        """The next line. Raises ``Silent`` when none comes within so many seconds, ``Ended`` when none can come."""
        try:
            line = self._lines.get(timeout=patience_s)
        except queue.Empty:
            raise Silent from None
        if line is None or not line.endswith("\n"):
            raise Ended(self._process.wait())
        return json.loads(line)

    def kill(self) -> None:
        """Stop it; whoever waits for a line learns that."""
        self._process.kill()

    def end(self) -> None:
        """Stop it and wait for that, though not for ever: the kernel may not let go of one that hangs in a driver."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
            self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
