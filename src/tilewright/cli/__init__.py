"""The command line: ``tilewright climb | plan | calibrate | tune | verify | source | diff | doctor | cache``.

Data goes to stdout, talk to stderr. Exit codes: 0 ok, 1 a check failed, 2 the request makes no sense, 3 a device or
compiler is missing, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)  # what writing to stdout may end in


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    if sys.stderr is None:  # closed by whoever started this: what is said goes nowhere
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.exit("error: standard output is closed, and there is nowhere to print to")
    try:
        from tilewright.cli.app import app  # typer takes a moment to load: not for whoever imports the package

        _run(app)
    except KeyboardInterrupt:  # where no command runs yet: in the imports, most likely
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _run(app: Callable[..., None]) -> None:
    try:
        try:
            app(prog_name="tilewright")
        finally:
            sys.stdout.flush()  # else Python would only find out at its very end
    except BrokenPipeError:  # the reader has enough
        abandon_stdout()
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise  # a file's, and a bug
        abandon_stdout()
        sys.exit(f"error: standard output cannot be written: {error.strerror or error}")


def abandon_stdout() -> None:
    """Let what is still to be written go nowhere, so that Python does not try again at exit and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
