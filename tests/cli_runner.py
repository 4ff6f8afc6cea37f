"""Ways to run the command line in a test."""

from __future__ import annotations

import os
import subprocess
import sys

from typer.testing import CliRunner, Result

from tilewright.cli.app import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def process(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A real process, where exit codes and streams are the shell's."""
    command = [sys.executable, "-m", "tilewright", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)


def squeezed(text: str) -> str:
    """Text without spaces, line ends and frames, so that how a message is wrapped does not matter."""
    return "".join(character for character in text if character not in " │\n")
