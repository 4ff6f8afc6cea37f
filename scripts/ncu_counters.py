"""What the hardware probes share: which counters an ``ncu`` knows, reading its CSV, and the steps of a probe."""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import TilewrightError, UnavailableError, UsageError

if TYPE_CHECKING:
    from tilewright.backends.cuda import CudaBackend

Counters = dict[str, float]


def listing() -> str:
    """The counters that the installed ncu knows. Raises ``UnavailableError`` when it does not run."""
    command = ["ncu", "--query-metrics"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(f"{' '.join(command)} failed: {error}") from error


def known(listing: str, wanted: Iterable[str]) -> list[str]:
    """Those of ``wanted`` whose base name (what stands before the first dot) is listed.

    What a launch is made with (``launch__...``) has no listing and is always known.
    """
    words = set(listing.split())
    return [metric for metric in wanted if metric.startswith("launch__") or metric.partition(".")[0] in words]


def read(lines: Iterable[str], wanted: Iterable[str], prefix: str) -> list[tuple[str, Counters]]:
    """The kernels of ``ncu --csv`` whose name starts with ``prefix``, in order, with the ``wanted`` counters.

    Other output around the table is skipped. Understands both of ncu's forms: a line a counter, and (``--page raw``)
    a line a kernel. Raises ``UsageError`` when there is no table.
    """
    kept = [line for line in lines if line.startswith('"')]
    reader = csv.DictReader(kept)
    columns = reader.fieldnames or []
    if "Kernel Name" not in columns:
        raise UsageError("the ncu output holds no table of kernels: was it written with --csv?")
    names = set(wanted)
    found: dict[str, tuple[str, Counters]] = {}
    for row in reader:
        if not row["ID"].strip().isdigit():
            continue  # the units below the header of the wide form
        _, counters = found.setdefault(row["ID"], (row["Kernel Name"], {}))
        pairs = [(row["Metric Name"], row["Metric Value"])] if "Metric Name" in columns else list(row.items())
        for name, value in pairs:
            if name in names and (number := _number(value)) is not None:
                counters[name] = number
    return [entry for entry in found.values() if entry[0].startswith(prefix)]


def machine(backend: CudaBackend) -> dict[str, Any]:
    """What was probed and with what, for the head of a probe's file."""
    from tilewright.telemetry import Telemetry

    info = backend.device()
    return {
        "gpu": info.name,
        "driver": Telemetry(info.details["uuid"]).driver_version(),
        "nvrtc": ".".join(map(str, info.details["nvrtc"])),
    }


def steps(
    about: str | None,
    metrics: Sequence[str],
    run: Callable[[Path], None],
    join: Callable[[dict[str, Any], list[tuple[str, Counters]]], dict[str, Any]],
    prefix: str,
    listed: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """A probe's command line: ``metrics``, ``run`` under ncu, ``join``, and others that only print what is ``listed``.

    ``prefix`` begins the names of the kernels that ``join`` is given.
    """
    printed = listed or {}
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("metrics", *printed):
        commands.add_parser(name)
    commands.add_parser("run").add_argument("--out", type=Path, required=True)
    joiner = commands.add_parser("join")
    for option in ("--runs", "--ncu", "--out"):
        joiner.add_argument(option, type=Path, required=True)
    given = parser.parse_args()
    try:
        if given.command == "metrics":
            print(",".join(known(listing(), metrics)))
        elif given.command in printed:
            print("|".join(printed[given.command]))
        elif given.command == "run":
            run(given.out)
        else:
            with given.ncu.open(encoding="utf-8") as lines:
                found = read(lines, metrics, prefix)
            joined = join(json.loads(given.runs.read_text()), found)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(joined, indent=1) + "\n")
    except TilewrightError as error:
        sys.exit(f"error: {error}")


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() else value
