"""The block of a tensor-core rung's page that holds a GPU's counters: the rung, the one before it, and cuBLAS."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import probe_counters as probe
from ladder_records import MISSING, ROOT, table

from tilewright import ladder
from tilewright.dtypes import BF16
from tilewright.ladder import Rung
from tilewright.report.table import number
from tilewright.results import Record

Counters = Mapping[str, float]
FILE = ROOT / "results" / "counters_h200.json"
REASONS_SHOWN = 3


def counters_block(rung: Rung, _: Sequence[Record]) -> str:
    """What ncu counted at the measured problem, as scripts/probe_counters.py wrote them down."""
    if not FILE.is_file():
        return "Not measured yet: there are no counters of this rung at the size that is timed.\n"
    probed = json.loads(FILE.read_text("utf-8"))
    return shown(rung, probed)


def shown(rung: Rung, probed: Mapping[str, Any]) -> str:
    """The table of a rung's counters beside those of its neighbours, from what the probe wrote."""
    runs = {run["name"]: run for run in probed["runs"]}
    mine = runs.get(probe.name_of(rung))
    if mine is None:
        return "Not measured yet: there are no counters of this rung at the size that is timed.\n"
    if mine["plan"] != rung.plan(BF16).to_dict():
        return "Not measured yet: the counters that there are, are of another plan.\n"
    before = ladder.rung(rung.number - 1)
    columns = {
        f"{before.number} {before.name}": runs.get(probe.name_of(before)),
        f"{rung.number} {rung.name}": mine,
        "cuBLAS": runs.get(probe.VENDOR),
    }
    there = {name: run["counters"] for name, run in columns.items() if run is not None}
    rows = [[name, *cells] for name, make in ROWS.items() if any(cells := [make(c) for c in there.values()])]
    kept = [[row[0], *(cell or MISSING for cell in row[1:])] for row in rows]
    m, n, k = probed["shape"]
    said = (
        f"ncu on an {probed['gpu']}, driver {probed['driver']}, NVRTC {probed['nvrtc']}, {probed['date'][:10]}: bf16 "
        f"{m} x {n} x {k}, row-major A and B, one launch each with cold caches. Not a measure of speed."
    )
    return f"{said}\n\n{table(['', *there], kept)}"


def _plain(metric: str, scale: float = 1, form: str = "{}") -> Callable[[Counters], str]:
    def cell(counters: Counters) -> str:
        return form.format(number(counters[metric] * scale)) if metric in counters else ""

    return cell


def _first_of(metrics: Sequence[str], form: str) -> Callable[[Counters], str]:
    def cell(counters: Counters) -> str:
        return next((form.format(number(counters[metric])) for metric in metrics if metric in counters), "")

    return cell


def _reasons(counters: Counters) -> str:
    """Where the warps' time went, the largest parts first."""
    parts = {name: counters[metric] for name, metric in probe.STALLS.items() if metric in counters}
    largest = sorted(parts, key=lambda name: -parts[name])[:REASONS_SHOWN]
    return ", ".join(f"{name} {parts[name]:.0f}%" for name in largest)


_MB, _MILLIONS = 1e-6, 1e-6
ROWS: Mapping[str, Callable[[Counters], str]] = {
    "tensor pipe busy, of all cycles": _first_of(probe.TENSOR_ELAPSED, "{}%"),
    "of the cycles in which an SM has work": _first_of(probe.TENSOR_ACTIVE, "{}%"),
    "tensor instructions (HMMA or HGMMA), millions": lambda c: _tensor_instructions(c),
    "warp instructions, millions": _plain(probe.INSTRUCTIONS, _MILLIONS),
    "issue slots used": _plain(probe.ISSUE, form="{}%"),
    "the warps' time": _reasons,
    "read from L2, MB": _plain(probe.L2_SECTORS, 32 * _MB),
    "arriving at the SMs, MB": _plain(probe.ARRIVING, _MB),
    "L2 reads that hit": _plain(probe.L2_HITS, form="{}%"),
    "read from DRAM, MB": _plain(probe.DRAM_READ, _MB),
    "written to DRAM, MB": _plain(probe.DRAM_WRITE, _MB),
    "shared wavefronts of lanes, millions": _plain(probe.WAVEFRONTS, _MILLIONS),
    "of these bank conflicts, millions": _plain(probe.CONFLICTS, _MILLIONS),
    "registers a thread": _plain(probe.REGISTERS),
}


def _tensor_instructions(counters: Counters) -> str:
    found = [counters[metric] for metric in probe.TENSOR_INSTRUCTIONS if metric in counters]
    return number(sum(found) * _MILLIONS) if found else ""
