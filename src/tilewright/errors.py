"""Every error tilewright raises on purpose, with the exit code the command line gives it.

Each message is one sentence that names the argument, what it was and what is possible.
"""

from __future__ import annotations


class TilewrightError(Exception):
    """Base of all tilewright errors. ``exit_code`` is what the command line returns."""

    exit_code = 1


class UsageError(TilewrightError, ValueError):
    """An argument is out of range, of the wrong kind, or contradicts another."""

    exit_code = 2


class UnavailableError(TilewrightError):
    """A device, driver, compiler or package that the request needs is missing here."""

    exit_code = 3


class CompileError(TilewrightError):
    """A compiler refused a kernel. ``log`` is its output, ``source`` the text it was given."""

    def __init__(self, message: str, *, log: str = "", source: str = "") -> None:
        super().__init__(message if not log else f"{message}\n{log.rstrip()}")
        self.log = log
        self.source = source


class LaunchError(TilewrightError):
    """The driver refused or aborted a kernel."""


class EmulatorFault(TilewrightError):
    """A kernel did something a GPU would not forgive.

    ``kind`` is one of ``out-of-bounds``, ``uninitialised``, ``race``, ``deadlock``, ``divergence``,
    ``misaligned``, ``cp.async``, ``wgmma``, ``misuse``, ``trap``, ``interrupted``, or ``internal`` when the emulator
    itself failed; ``detail`` is the full report.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class VerifyError(TilewrightError):
    """A result lies outside its error bound."""
