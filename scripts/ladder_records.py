"""The blocks of the documentation that hold what was measured: records of results/, and a GPU's counters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tilewright import gpu, ladder, results, roofline
from tilewright.dtypes import BF16, FP32, DType
from tilewright.ladder import Rung
from tilewright.plan_tensor import FIRST
from tilewright.problem import Problem
from tilewright.report.table import number
from tilewright.results import Record

ROOT = Path(__file__).resolve().parent.parent
SIZE = 4096
GPU = gpu.get_gpu("h200")
MISSING = "-"

# What is commonly expected of each step of such a ladder on an H100, in fp32 and from rung 5 on in bf16: these are
# claims to be answered by records, not measurements.
EXPECTED = {
    0: "0.5 to 2 TFLOPS",
    1: "8 to 12 TFLOPS, 20 to 30 times rung 0",
    2: "15 to 20 TFLOPS",
    3: "1.1 to 1.2 times rung 2",
    4: "1.1 to 1.3 times rung 3, and 60 to 70% of the roof",
    5: "about 60% of the tensor roof at the most: the instruction's limit on Hopper",
    6: "300 to 400 TFLOPS",
    7: "500 to 700 TFLOPS",
    8: "no figure of its own is commonly quoted",
    9: "12% at 65536 x 1024 x 1024 (Triton TLX), little where K is long",
    10: "under 1% of speed (Triton TLX), half of the L2 reads of one operand",
    11: "1.00 to 1.07 times cuBLAS at 4096^3 (public kernels of this kind, H100)",
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
    found = [runs[f"{rung.path.stem} {dtype}"] for dtype in rung.dtypes]

    def cell(counters: Mapping[str, float], over: str, under: str, scale: int) -> str:
        return number(counters[over] / counters[under] * scale) if counters[under] else MISSING

    rows = [[name, *(cell(each, over, under, scale) for each in found)] for name, over, under, scale in COUNTERS]
    m, n, k = probed["shape"]
    said = (
        f"ncu on an {probed['gpu']}, driver {probed['driver']}, NVRTC {probed['nvrtc']}; all blocks of {m} x {n} x {k}."
    )
    return f"{said}\n\n{table(['', *map(str, rung.dtypes)], rows)}"


def of_gpu(records: Sequence[Record]) -> list[Record]:
    """The records of the GPU and the problem that the ladder's tables are about."""
    return [record for record in results.select(records, m=SIZE, n=SIZE, k=SIZE) if is_of_gpu(record)]


def is_of_gpu(record: Record) -> bool:
    """Whether a record is of the GPU that the tables are about."""
    try:
        return gpu.get_gpu(record.provenance.gpu) == GPU
    except ValueError:  # a GPU that nothing is known of
        return False


def record_of(records: Sequence[Record], rung: Rung, dtype: DType, mistake: str | None = None) -> Record | None:
    """The newest record of a rung on row-major operands, or of a mistake in that rung's newest run."""
    row_major = {"a_layout": "row", "b_layout": "row"}
    right = results.latest(records, what="rung", rung=rung.number, dtype=dtype.name, **row_major)
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
    median, low, high = (_factor(found[key]) for key in ("median", "min", "max"))
    return f"{median}x ({low} to {high})"


def _factor(value: float) -> str:
    """A ratio at three significant digits, zeros at the end among them: 1.00."""
    return f"{value:#.3g}" if value < 99.5 else number(value)


def rungs_below(rung: Rung) -> list[Rung]:
    """What a rung is compared with: the one below it and rung 0."""
    return [ladder.rung(number) for number in dict.fromkeys((rung.number - 1, 0)) if 0 <= number < rung.number]


def measured_block(rung: Rung, records: Sequence[Record]) -> str:
    """Time, speed and ratios of the newest run, with where they come from."""
    found = {dtype: record_of(records, rung, dtype) for dtype in rung.dtypes}
    if not any(found.values()):
        return f"Not measured yet: there is no {GPU.name} record of {SIZE}^3.\n"
    rows: dict[str, list[str]] = {}
    for record in found.values():
        for name, cell in _measured_cells(rung, record):
            rows.setdefault(name, []).append(cell)
    said = dict.fromkeys(_provenance(record) for record in found.values() if record is not None)
    shown = table(["", *map(str, rung.dtypes)], [[name, *cells] for name, cells in rows.items()])
    return shown + "\n" + "\n".join(said) + "\n"


def _measured_cells(rung: Rung, record: Record | None) -> Iterator[tuple[str, str]]:
    time = record.time_us if record is not None and record.time_us is not None else None
    yield (
        "time, us (lowest to highest)",
        MISSING if time is None else f"{time['median']:,.1f} ({time['min']:,.1f} to {time['max']:,.1f})",
    )
    yield "TFLOPS", tflops(record)
    yield f"of the {'tensor' if on_tensor_cores(rung) else 'fp32'} roof", percent(record, rung)
    for other in rungs_below(rung):
        yield f"to rung {other.number}", ratio(record, f"{other.number} {other.name}")
    yield "to cuBLAS", ratio(record, "cuBLAS")
    noise = None if record is None else record.noise
    yield "the baseline to itself", MISSING if noise is None else f"{noise['min']:.3f} to {noise['max']:.3f}"
    yield "SM clock by NVML, MHz", number(record.clock_mhz if record else None, 4)
    if on_tensor_cores(rung):
        yield "SM clock in the kernels, MHz", number(record.sm_clock_mhz_in_kernel if record else None, 4)
        yield "tensor cores busy at that clock", busy(record)
    yield "power, W", number(record.power_w if record else None)


def on_tensor_cores(rung: Rung) -> bool:
    """Which of the two roofs is the rung's."""
    return rung.number >= FIRST


def percent(record: Record | None, rung: Rung) -> str:
    """Of the roof of the units that the rung multiplies with."""
    if record is None or record.tflops is None:
        return MISSING
    roof = roofline.roof_of(rung.dtypes[0], tensor_cores=on_tensor_cores(rung))
    return f"{roofline.percent_of_roof(record.tflops, GPU, roof).value:.0f}%"


def busy(record: Record | None) -> str:
    """The share of the tensor cores' cycles in use, at the clock that the kernels ran at."""
    clock, per_clock = record and record.sm_clock_mhz_in_kernel, GPU.bf16_tensor_flop_per_clock
    if record is None or record.tflops is None or not clock or per_clock is None:
        return MISSING
    return f"{record.tflops * 1e12 / (GPU.sm_count * per_clock * clock * 1e6):.0%}"


def _provenance(record: Record) -> str:
    p = record.provenance
    versions = f"driver {p.driver}, NVRTC {p.nvrtc}, tilewright {p.version} at {p.commit or 'no commit'}"
    return f"{record.dtype}: {p.gpu}, {p.date}; {versions}. {p.l2}; {p.method}."


def expectation_block(rung: Rung, records: Sequence[Record]) -> str:
    """What is commonly expected of this step, and what was recorded."""
    dtype = BF16 if on_tensor_cores(rung) else FP32
    record = record_of(records, rung, dtype)
    said = "not measured yet"
    if record is not None:
        parts = [f"{tflops(record)} TFLOPS, {percent(record, rung)} of the roof"]
        for other in rungs_below(rung):
            found = ratio(record, f"{other.number} {other.name}")
            if found != MISSING:  # of another run: no ratio
                parts.append(f"{found} to rung {other.number}")
        said = "; ".join(parts)
    return table([f"expected of this step, {dtype} on an H100", f"recorded, {dtype} on an {GPU.name}"],
                 [[EXPECTED[rung.number], said]], left=2)  # fmt: skip


def runs_block(records: Sequence[Record]) -> str:
    """Every run that there are records of, with the command that made it: a line a command and commit."""
    runs: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        p = record.provenance
        runs.setdefault((p.gpu, p.commit or MISSING, p.command or p.date), []).append(record)
    if not runs:
        return "There are no records yet.\n"
    rows = []
    for (gpu_name, commit, _), made in runs.items():
        problems = list(dict.fromkeys(str(Problem.from_dict(record.problem)) for record in made))
        command = made[0].provenance.command
        rows.append([
            min(record.provenance.date for record in made),
            gpu_name,
            ", ".join(problems) if len(problems) <= 2 else f"{len(problems)} problems",
            commit,
            f"`{command}`" if command else MISSING,
            str(len(made)),
        ])  # fmt: skip
    return table(["since", "GPU", "problem", "commit", "command", "records"], sorted(rows), left=5)
