"""The blocks of the documentation that hold what was measured: records of results/, and a GPU's counters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import readme_table

from tilewright import gpu, ladder, results, roofline
from tilewright.dtypes import BF16, FP32, DType
from tilewright.ladder import Rung
from tilewright.problem import Problem
from tilewright.report.table import number
from tilewright.results import Record

ROOT = Path(__file__).resolve().parent.parent
SIZE = readme_table.SIZE
GPU = gpu.get_gpu(readme_table.GPU)
DTYPES = (FP32, BF16)
MISSING = "-"

# What is commonly expected of each step of such a ladder, in fp32 on an H100: these are claims to be answered by
# records, not measurements.
EXPECTED = {
    0: "0.5 to 2 TFLOPS",
    1: "8 to 12 TFLOPS, 20 to 30 times rung 0",
    2: "15 to 20 TFLOPS",
    3: "1.1 to 1.2 times rung 2",
    4: "1.1 to 1.3 times rung 3, and 60 to 70% of the roof",
}
# A row of the counters' table: the sum of one ncu counter over another's, times a factor.
_GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
_FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
COUNTERS: tuple[tuple[str, str, str, int], ...] = (
    ("sectors a load request, A and B together", _GLOBAL.format("sectors", "ld"), _GLOBAL.format("requests", "ld"), 1),
    ("sectors a store request", _GLOBAL.format("sectors", "st"), _GLOBAL.format("requests", "st"), 1),
    ("wavefronts of shared loads a warp's FMA", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", _FFMA, 32),
    ("of these bank conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", _FFMA, 32),
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, the columns after the first ``left`` to the right."""
    marks = ["---"] * left + ["---:"] * (len(head) - left)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, marks, *rows))


def hardware_block(rung: Rung, _: Sequence[Record]) -> str:
    """The GPU's own counters for the rung, as scripts/probe_rungs.py wrote them down."""
    probed = json.loads((ROOT / "tests/fixtures/rungs_h200.json").read_text("utf-8"))
    runs = {run["name"]: run["counters"] for run in probed["runs"]}
    found = [runs[f"{rung.path.stem} {dtype}"] for dtype in DTYPES]

    def cell(counters: Mapping[str, float], over: str, under: str, scale: int) -> str:
        return number(counters[over] / counters[under] * scale) if counters[under] else MISSING

    rows = [[name, *(cell(each, over, under, scale) for each in found)] for name, over, under, scale in COUNTERS]
    m, n, k = probed["shape"]
    said = (
        f"ncu on an {probed['gpu']}, driver {probed['driver']}, NVRTC {probed['nvrtc']}; all blocks of {m} x {n} x {k}."
    )
    return f"{said}\n\n{table(['', *map(str, DTYPES)], rows)}"


def record_of(records: Sequence[Record], rung: Rung, dtype: DType, mistake: str | None = None) -> Record | None:
    """The newest record of a rung, or of a mistake in that rung's newest run."""
    right = results.latest(records, what="rung", rung=rung.number, dtype=dtype.name)
    if mistake is None or right is None:
        return right
    same_run = {"date": right.provenance.date, "dtype": dtype.name, "rung": rung.number}
    return results.latest(records, what="counter-example", name=f"{rung.number} {mistake}", **same_run)


def tflops(record: Record | None) -> str:
    """TFLOPS at the median, or a dash."""
    return MISSING if record is None or record.tflops is None else f"{record.tflops:.3g}"


def ratio(record: Record | None, rival: str) -> str:
    """How many times faster than a rival of the same run, with the spread over the rounds."""
    found = None if record is None else next((r for n, r in record.ratios.items() if n.startswith(rival)), None)
    if found is None:
        return MISSING
    median, low, high = (number(found[key]) for key in ("median", "min", "max"))
    return f"{median}x ({low} to {high})"


def rungs_below(rung: Rung) -> list[Rung]:
    """What a rung is compared with: the one below it and rung 0."""
    return [ladder.rung(number) for number in dict.fromkeys((rung.number - 1, 0)) if 0 <= number < rung.number]


def measured_block(rung: Rung, records: Sequence[Record]) -> str:
    """Time, speed and ratios of the newest run, with where they come from."""
    found = {dtype: record_of(records, rung, dtype) for dtype in DTYPES}
    if not any(found.values()):
        return f"Not measured yet: there is no {GPU.name} record of {SIZE}^3.\n"
    rows: dict[str, list[str]] = {}
    for record in found.values():
        for name, cell in _measured_cells(rung, record):
            rows.setdefault(name, []).append(cell)
    said = dict.fromkeys(_provenance(record) for record in found.values() if record is not None)
    return table(["", *map(str, DTYPES)], [[n, *cells] for n, cells in rows.items()]) + "\n" + "\n".join(said) + "\n"


def _measured_cells(rung: Rung, record: Record | None) -> Iterator[tuple[str, str]]:
    time = record.time_us if record is not None and record.time_us is not None else None
    yield (
        "time, us (lowest to highest)",
        MISSING if time is None else f"{time['median']:,.1f} ({time['min']:,.1f} to {time['max']:,.1f})",
    )
    yield "TFLOPS", tflops(record)
    yield "of the fp32 roof", percent(record)
    for other in rungs_below(rung):
        yield f"to rung {other.number}", ratio(record, f"{other.number} {other.name}")
    yield "to cuBLAS", ratio(record, "cuBLAS")
    noise = None if record is None else record.noise
    yield "the baseline to itself", MISSING if noise is None else f"{noise['min']:.3f} to {noise['max']:.3f}"
    yield "SM clock, MHz", number(record.clock_mhz if record else None, 4)
    yield "power, W", number(record.power_w if record else None)


def percent(record: Record | None) -> str:
    """Of the CUDA cores' roof."""
    if record is None or record.tflops is None:
        return MISSING
    return f"{roofline.percent_of_roof(record.tflops, GPU, 'fp32').value:.0f}%"


def _provenance(record: Record) -> str:
    p = record.provenance
    versions = f"driver {p.driver}, NVRTC {p.nvrtc}, tilewright {p.version} at {p.commit or 'no commit'}"
    return f"{record.dtype}: {p.gpu}, {p.date}; {versions}. {p.l2}; {p.method}."


def expectation_block(rung: Rung, records: Sequence[Record]) -> str:
    """What is commonly expected of this step, and what was recorded."""
    record = record_of(records, rung, FP32)
    said = "not measured yet"
    if record is not None:
        parts = [f"{tflops(record)} TFLOPS, {percent(record)} of the roof"]
        for other in rungs_below(rung):
            parts.append(f"{ratio(record, f'{other.number} {other.name}')} to rung {other.number}")
        said = "; ".join(parts)
    return table(["expected of this step, fp32 on an H100", f"recorded, fp32 on an {GPU.name}"],
                 [[EXPECTED[rung.number], said]], left=2)  # fmt: skip


def runs_block(records: Sequence[Record]) -> str:
    """Every run that there are records of, with the command that made it."""
    runs: dict[tuple[str, ...], int] = {}
    for record in records:
        p = record.provenance
        problem = Problem.from_dict(record.problem)
        key = (p.date, p.gpu, str(problem), p.commit or MISSING, f"`{p.command}`" if p.command else MISSING)
        runs[key] = runs.get(key, 0) + 1
    if not runs:
        return "There are no records yet.\n"
    head = ["date", "GPU", "problem", "commit", "command", "records"]
    return table(head, [[*key, str(runs[key])] for key in sorted(runs)], left=5)
