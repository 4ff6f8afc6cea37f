"""What a command of tilewright prints, for the docs that show it: run for real, its stdout, without colour."""

from __future__ import annotations

import shlex

from typer.testing import CliRunner

from tilewright.cli.app import app


def command_block(command: str, columns: int = 100) -> str:
    """A fenced block with the command (``tilewright ...``) and what it prints in ``columns``.

    Raises ``ValueError`` for one that does not end well.
    """
    program, *arguments = shlex.split(command)
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns), "NO_COLOR": "1", "FORCE_COLOR": None})
    if program != "tilewright" or done.exit_code:
        raise ValueError(f"{command}: exit {done.exit_code}: {done.stderr}")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "\n".join(["```", f"$ {command}", *lines, "```", ""])
