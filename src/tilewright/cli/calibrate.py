"""``tilewright calibrate``: measure the constants that the planner's predictions rest on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tilewright.cli import output
from tilewright.cli.options import Json
from tilewright.errors import TilewrightError, UsageError

if TYPE_CHECKING:
    from tilewright.calibrate.fit import Fitted


def calibrate(
    out: Annotated[Path | None, typer.Option(help="Write the calibration there, for `plan --calibration`.")] = None,
    readings: Annotated[Path | None, typer.Option(help="Append the raw readings to this JSON-lines file.")] = None,
    refit: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: fit the newest readings of this file again.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure this GPU for the planner: each constant by a microbenchmark of its own, in about a minute.

    Without a GPU only --from works.
    """
    from tilewright.calibrate import fit, session
    from tilewright.calibrate import readings as raw
    from tilewright.gpu import get_gpu

    for path in (out, readings):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {path.absolute().parent}")
    if refit is not None:
        found = raw.latest(raw.load(refit))
        origin = next((reading.provenance for reading in found if reading.provenance), None)
        if origin is None:
            raise UsageError(f"{refit} has no readings that tell which GPU they are of")
        measured = session.Session(tuple(found), {}, get_gpu(origin.gpu), origin)
    else:
        session.require_hopper()
        with output.progress() as report:
            measured = session.run(tuple(session.MICROBENCHMARKS), report)
        if readings is not None:
            raw.append(readings, measured.readings)
    for name, error in measured.errors.items():
        output.say_error(f"{name}: {error}")
    limit = (measured.provenance.before or {}).get("power_limit_w")
    if limit is None:
        raise UsageError("the power limit is not known: NVML did not tell it (pip install nvidia-ml-py)")
    try:
        fitted = fit.calibrate(measured.readings, measured.spec, measured.label, float(limit))
    except UsageError as error:
        if not measured.errors:
            raise
        raise TilewrightError(f"the calibration is not complete: {error}") from error
    if out is not None:
        fitted.calibration.save(out)
    if json:
        output.print_json(fitted.calibration.to_dict())
    else:
        _print(fitted)
    if measured.errors:
        raise typer.Exit(1)


def _print(fitted: Fitted) -> None:
    from tilewright.calibrate.fit import table
    from tilewright.planner.calibration import constant_names

    console = output.stdout()
    output.say(fitted.calibration.label)
    constants = Table("constant", "value", "quartiles", "from", box=None, pad_edge=False)
    for row in table(fitted, constant_names(), shown):
        constants.add_row(*row)
    console.print(constants)
    power = Table("steady state", "W", "MHz", "model less measured, W", box=None, pad_edge=False)
    for state, missed in zip(fitted.states, fitted.power.residuals_w, strict=True):
        power.add_row(state.state, f"{state.power_w:.0f}", f"{state.clock_mhz:.0f}", f"{missed:+.0f}")
    console.print(power)


def shown(name: str, value: Any) -> str:
    """A constant as text: four figures, rates in TB/s, curves as a list."""
    if isinstance(value, Mapping):
        return ", ".join(f"{width}: {clocks:.4g}" for width, clocks in value.items())
    if isinstance(value, tuple):
        return ", ".join(f"{size / 2**20:.0f} MiB: {rate / 1e12:.2f}" for size, rate in value) + " TB/s"
    return f"{value / 1e12:.3f} TB/s" if name.endswith("bytes_per_s") else f"{value:.4g}"
