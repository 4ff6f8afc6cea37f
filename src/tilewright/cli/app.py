"""The typer application: its commands, and how an expected failure ends."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tilewright import __version__
from tilewright.cli import abandon_stdout, cache, calibrate, climb, doctor, output, plan, source, tune, verify
from tilewright.errors import TilewrightError


class Commands(TyperGroup):
    """Turns what a command raises on purpose into one sentence on stderr and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = output.show_warning
            if any(action == "error" and issubclass(UserWarning, kind) for action, _, kind, *_ in warnings.filters):
                warnings.filterwarnings("default", category=UserWarning)  # ours are for the person, whatever -W says
            try:
                return super().invoke(ctx)
            except TilewrightError as error:
                output.say_error(str(error))
                raise typer.Exit(error.exit_code) from None
            except (MemoryError, OverflowError, ValueError) as error:
                if not _is_too_large(error):
                    raise
                output.say_error(f"there is not enough memory for this: {str(error) or 'an allocation failed'}")
                raise typer.Exit(1) from None
            except KeyboardInterrupt:
                output.say("interrupted")
                raise typer.Exit(130) from None
            except BrokenPipeError:  # `tilewright source 3 | head`: the reader has enough
                abandon_stdout()
                raise typer.Exit(0) from None


def _is_too_large(error: Exception) -> bool:
    """Whether an array was asked for that no memory holds, in the words of Python and numpy."""
    words = ("array is too big", "maximum allowed dimension", "maximum supported dimension", "too large", "too big")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A GEMM on a GPU from naive to past cuBLAS: every rung run, verified, counted and, on a GPU, measured.",
    epilog="Exit codes: 0 ok, 1 a check failed, 2 usage, 3 a device or compiler is missing, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        output.print_plain(f"tilewright {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A GEMM on a GPU from naive to past cuBLAS: every rung run, verified, counted and, on a GPU, measured."""


app.command("climb")(climb.climb)
app.command("plan", cls=plan.PlanCommand)(plan.plan)
app.command("calibrate")(calibrate.calibrate)
app.command("tune")(tune.tune)
app.command("verify")(verify.verify)
app.command("source")(source.source)
app.command("diff")(source.diff)
app.command("doctor")(doctor.doctor)
app.add_typer(cache.app, name="cache")
