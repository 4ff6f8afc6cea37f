#!/usr/bin/env python3
"""Write the tables of README.md from the records in results/, and what a command prints, from the command itself.

The ladder: the newest H200 record of each rung on one problem, beside the vendor's of the same runs. The main kernel:
the rows of tensor_rows.json. What has no record shows dashes; nothing is typed by hand. With --check, only say whether
all is current.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tensor_table
from command_output import command_block
from ladder_records import GPU, ROOT, SIZE, of_gpu, on_tensor_cores, record_of

from tilewright import ladder, results, roofline
from tilewright.dtypes import BF16, FP32
from tilewright.results import Record

BEGIN = "<!-- {}: written by scripts/readme_table.py, do not edit -->"
END = "<!-- end of {} -->"
HEADER = """\
| rung | what it adds | fp32 TFLOPS | of the roof | to cuBLAS | bf16 TFLOPS | of the roof | to cuBLAS |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
DTYPES = (FP32, BF16)
PLAN = "tilewright plan 8192 8192 8192 --layout rc --gpu h200 --top 3"


def table(records: Sequence[Record]) -> str:
    """The ladder's table, as Markdown."""
    mine = of_gpu(records)
    lines = [HEADER]
    shown: list[Record] = []
    for rung in ladder.rungs().values():
        found = {d: record_of(mine, rung, d) for d in DTYPES}
        shown += [record for record in found.values() if record is not None]
        cells = [f"{rung.number} {rung.name}", rung.title]
        for record in found.values():
            cells += [*_speed(record, on_tensor_cores(rung)), _ratio(record)]
        lines.append(f"| {' | '.join(cells)} |\n")
    for where, beside in _vendors(mine, shown).items():
        cells = [*_speed(beside.get("fp32"), False), "", *_speed(beside.get("bf16"), True), ""]
        lines.append(f"| | {where} | {' | '.join(cells)} |\n")
    lines += ["\n", _provenance(shown), "\n"]
    return "".join(lines)


def _speed(record: Record | None, tensor_cores: bool) -> tuple[str, str]:
    if record is None or record.tflops is None:
        return "-", "-"
    percent = roofline.percent_of_roof(record.tflops, GPU, "bf16_tensor" if tensor_cores else "fp32").value
    return f"{record.tflops:.1f}", f"{percent:.0f}%"


def _ratio(record: Record | None) -> str:
    """How much faster than the vendor, with the spread of the repeats."""
    for name, ratio in (record.ratios if record else {}).items():
        if name.lower().startswith("cublas"):
            return f"{ratio['median']:.3f}x ({ratio['min']:.3f}-{ratio['max']:.3f})"
    return "-"


def _vendors(records: Sequence[Record], shown: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """The vendor's records of the runs that are shown, by which rungs stood beside it there and by dtype."""
    found: dict[str, dict[str, Record]] = {}
    for dtype in DTYPES:
        for vendor in results.select(records, what="vendor", dtype=dtype.name):
            same_run = [r.rung for r in shown if r.provenance.date == vendor.provenance.date and r.rung is not None]
            if same_run and vendor.tflops:
                first, last = min(same_run), max(same_run)
                which = f"rungs {first} to {last}" if last > first else f"rung {first}"
                where = f"{vendor.name}, in the run of {which}"
                found.setdefault(where, {})[dtype.name] = vendor
    return found


def _provenance(shown: Sequence[Record]) -> str:
    if not shown:
        return f"No record of this problem ({SIZE} x {SIZE} x {SIZE}) yet.\n"
    gpus = sorted({record.provenance.gpu for record in shown})
    dates = sorted({record.provenance.date[:10] for record in shown})
    drivers = sorted({str(record.provenance.driver) for record in shown})
    return (
        f"M = N = K = {SIZE}, row-major; {', '.join(gpus)}, driver {', '.join(drivers)}; measured {', '.join(dates)}. "
        "Rungs 0 to 4 multiply in fp32 on CUDA cores, bf16 converted on the way to registers: a roof of "
        f"{GPU.fp32_tflops:g} TFLOPS. Rungs 5 to 11, and cuBLAS in bf16, run on tensor cores: "
        f"{GPU.bf16_tensor_tflops:g}. The ratio is cuBLAS's time over ours.\n"
    )


def planned(records: Sequence[Record]) -> str:
    """What ``tilewright plan`` answers to one question: predicted, so no record has a part in it."""
    return command_block(PLAN)


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "ladder table": table,
    "main kernel table": tensor_table.summary,
    "plan": planned,
}


def replaced(readme: str, name: str, new: str) -> str:
    """The README with ``new`` between the markers of a block. Raises ``ValueError`` when they are not there once."""
    begin, end = BEGIN.format(name), END.format(name)
    pattern = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        raise ValueError(f"README.md must hold, once, {begin!r} and later {end!r}")
    return pattern.sub(lambda _: f"{begin}\n{new}{end}", readme)


def main() -> int:
    """Write the tables, or with --check compare them: 1 when one is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a table is not current")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the repository (default: this one)")
    arguments = parser.parse_args()
    path = arguments.root / "README.md"
    old = new = path.read_text(encoding="utf-8")
    records = results.load(arguments.root / "results")
    for name, make in TABLES.items():
        new = replaced(new, name, make(records))
    if arguments.check:
        print(f"README blocks: {'current' if new == old else 'not current: run scripts/readme_table.py'}")
        return 0 if new == old else 1
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
