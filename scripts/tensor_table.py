"""The main kernel against the vendor, row by row of tensor_rows.json: Markdown from the records in results/.

A row is shown from the records of the plan that it has now: with another plan it counts as not measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields

from ladder_records import MISSING, busy, is_of_gpu, table
from tensor_bench import CUBLAS, LT_BEST, Row, read_rows

from tilewright import results
from tilewright.plan_tensor import LAST, TensorPlan
from tilewright.report.table import number
from tilewright.results import Record

_RIVALS = ("to cuBLAS", "to the best of cublasLt")
_LETTERS = {"row": "row", "column": "col"}


def measured(records: Sequence[Record], row: Row) -> list[Record]:
    """The runs of a row's plan on its problem, on the GPU of the tables, at the newest commit that has any."""
    asked = row.candidate.plan.to_dict()
    found = [
        record
        for record in results.select(records, what="kernel", rung=row.candidate.rung.number, problem=row.problem)
        if record.time_us is not None
        and is_of_gpu(record)
        and all(asked.get(name) == value for name, value in (record.plan or {}).items())
    ]
    newest = max(found, key=lambda record: record.provenance.date).provenance.commit if found else None
    return [record for record in found if record.provenance.commit == newest]


def rows_block(records: Sequence[Record]) -> str:
    """Every row of the main kernel with its plan, its speed, the two ratios and what is asked of them."""
    shown = _main_kernel(records)
    plan = "plan, where it is not the rung's own"
    head = ["problem", "A, B", plan, "runs", "TFLOPS", *_RIVALS, "asked", "MHz", "busy"]
    lines = [
        [
            _problem(row),
            _layouts(row),
            differences(row),
            number(len(found)),
            _median(found, lambda record: record.tflops),
            _ratio(found, CUBLAS),
            _ratio(found, LT_BEST),
            _asked(row),
            _median(found, lambda record: record.sm_clock_mhz_in_kernel, 4),
            busy(_middle(found)),
        ]
        for row, found in shown
    ]
    return f"{table(head, lines, left=3)}\n{_provenance([r for _, found in shown for r in found])}"


def summary(records: Sequence[Record]) -> str:
    """The rows of the main kernel at a glance, for the README."""
    shown = _main_kernel(records)
    head = ["problem", "A, B", "TFLOPS", *_RIVALS]
    lines = [
        [
            _problem(row),
            _layouts(row),
            _median(found, lambda record: record.tflops),
            _ratio(found, CUBLAS),
            _ratio(found, LT_BEST),
        ]
        for row, found in shown
    ]
    return f"{table(head, lines, left=2)}\n{_provenance([r for _, found in shown for r in found])}"


def _main_kernel(records: Sequence[Record]) -> list[tuple[Row, list[Record]]]:
    return [(row, measured(records, row)) for row in read_rows() if row.candidate.rung.number == LAST]


def differences(row: Row) -> str:
    """What a row's plan has that its rung's default has not, in few words."""
    plan, rung = row.candidate.plan, row.candidate.rung
    assert isinstance(plan, TensorPlan)
    default = rung.plan(plan.dtype, a_layout=plan.a_layout, b_layout=plan.b_layout)
    changed = {f.name for f in fields(plan) if getattr(plan, f.name) != getattr(default, f.name)}
    said = [said for names, say in _WORDS if changed & set(names) and (said := say(plan))]
    return f"rung {rung.number}: {', '.join(said) or 'its own'}" if rung.number != LAST else ", ".join(said)


_WORDS: tuple[tuple[tuple[str, ...], Callable[[TensorPlan], str]], ...] = (
    (("pingpong",), lambda p: "ping-pong" if p.pingpong else "cooperative"),
    (("bm", "bn"), lambda p: f"{p.bm}x{p.bn}"),
    (("stages",), lambda p: f"{p.stages} stages"),
    (
        ("epilogue_columns", "epilogue_slabs"),
        lambda p: f"{p.epilogue_slabs} slabs of {p.epilogue_columns} columns",
    ),
    (
        ("cluster_m", "cluster_n"),
        lambda p: f"cluster {p.cluster_m}x{p.cluster_n}" if p.cluster > 1 else "no cluster",
    ),
    (("group", "along_n"), lambda p: f"super-rows of {p.group} along {'N' if p.along_n else 'M'}"),
    (("half_tail",), lambda p: "half-tile tail" if p.half_tail else ""),
    (("alternate_k",), lambda p: "alternating K" if p.alternate_k else ""),
    (("store_evict_first",), lambda p: "C evict-first" if p.store_evict_first else ""),
    (
        ("producer_registers", "consumer_registers"),
        lambda p: f"{p.producer_registers}/{p.consumer_registers} registers",
    ),
)


def _problem(row: Row) -> str:
    p = row.problem
    shape = f"{p.m}^3" if p.m == p.n == p.k else f"{p.m}x{p.n}x{p.k}"
    return f"{p.dtype} {shape}"


def _layouts(row: Row) -> str:
    return f"{_LETTERS[row.problem.a_layout]}, {_LETTERS[row.problem.b_layout]}"


def _asked(row: Row) -> str:
    asked = [(row.must, "{:g}x cuBLAS"), (row.must_lt, "{:g}x cublasLt"), (row.must_tflops, "{:g} TFLOPS")]
    return ", ".join(form.format(least) for least, form in asked if least is not None)


def _middle(found: Sequence[Record]) -> Record | None:
    """The run whose speed is the median's, or just below it."""
    speeds = sorted(found, key=lambda record: record.tflops or 0)
    return speeds[(len(speeds) - 1) // 2] if speeds else None


def _median(found: Sequence[Record], of: Callable[[Record], float | None], digits: int = 3) -> str:
    values = [value for record in found if (value := of(record)) is not None]
    return number(statistics.median(values), digits) if values else MISSING


def _ratio(found: Sequence[Record], rival: str) -> str:
    """The median over the runs of each run's median; in brackets the lowest and highest run, of one run its rounds."""
    ratios = [record.ratios[rival] for record in found if rival in record.ratios]
    if not ratios:
        return MISSING
    values = [ratio["median"] for ratio in ratios]
    low, high = (min(values), max(values)) if len(values) > 1 else (ratios[0]["min"], ratios[0]["max"])
    return f"{statistics.median(values):.3f}x ({low:.3f} to {high:.3f})"


def _provenance(shown: Sequence[Record]) -> str:
    """Where the figures come from, or that there are none."""
    if not shown:
        return "Not measured yet with these plans: there is no record of them.\n"
    sources = [record.provenance for record in shown]
    said = {
        "GPU": sorted({source.gpu for source in sources}),
        "driver": sorted({f"driver {source.driver}" for source in sources}),
        "date": sorted({source.date[:10] for source in sources}),
        "commit": sorted({f"tilewright at {source.commit or 'no commit'}" for source in sources}),
    }
    methods = sorted({source.method for source in sources if source.method})
    return f"{'; '.join(', '.join(words) for words in said.values())}. {'; '.join(methods)}.\n"
