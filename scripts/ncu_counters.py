"""What the hardware probes share: which counters an ``ncu`` knows, and reading its CSV."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable

from tilewright.errors import UnavailableError, UsageError

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


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() else value
