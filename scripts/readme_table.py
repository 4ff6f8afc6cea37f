#!/usr/bin/env python3
"""Write the ladder's table into README.md from the records in results/. With --check, only say whether it is current.

The newest H200 record of each rung on one problem is shown, beside the vendor's of the same runs. A rung without a
record shows dashes; nothing is typed by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from tilewright import gpu, ladder, results, roofline
from tilewright.dtypes import BF16, FP32, DType
from tilewright.results import Record

ROOT = Path(__file__).resolve().parent.parent
SIZE = 4096
GPU = "h200"
BEGIN = "<!-- ladder table: written by scripts/readme_table.py from results/, do not edit -->"
END = "<!-- end of ladder table -->"
HEADER = """\
| rung | what it adds | fp32 TFLOPS | of the roof | to cuBLAS | bf16 TFLOPS | of the roof |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
"""
DTYPES = (FP32, BF16)
ROOF = {d: roofline.roof_of(d) for d in DTYPES}  # of the CUDA cores: bf16 is multiplied in fp32
VENDOR_ROOF = {FP32: roofline.roof_of(FP32), BF16: roofline.roof_of(BF16, tensor_cores=True)}


def of_gpu(records: Sequence[Record]) -> list[Record]:
    """The records of the GPU and the problem that the table is about."""
    return [r for r in results.select(records, m=SIZE, n=SIZE, k=SIZE) if _key(r.provenance.gpu) == GPU]


def _key(name: str) -> str | None:
    try:
        return gpu.get_gpu(name).key
    except ValueError:  # a GPU that the tables do not know
        return None


def table(records: Sequence[Record]) -> str:
    """The Markdown between the markers."""
    mine = of_gpu(records)
    lines = [HEADER]
    shown: list[Record] = []
    for rung in ladder.rungs().values():
        found = {d: results.latest(mine, what="rung", rung=rung.number, dtype=d.name) for d in DTYPES}
        shown += [record for record in found.values() if record is not None]
        cells = [
            f"{rung.number} {rung.name}",
            rung.title,
            *_speed(found[FP32], ROOF[FP32]),
            _ratio(found[FP32]),
            *_speed(found[BF16], ROOF[BF16]),
        ]
        lines.append(f"| {' | '.join(cells)} |\n")
    for fp32, bf16 in zip_longest(*(_vendors(mine, shown, d) for d in DTYPES)):
        name = (fp32 or bf16).name
        cells = [*_speed(fp32, VENDOR_ROOF[FP32]), "", *_speed(bf16, VENDOR_ROOF[BF16])]
        cores = " (bf16: on tensor cores, of their roof)" if bf16 is not None else ""
        lines.append(f"| | {name}, in the same run{cores} | {' | '.join(cells)} |\n")
    lines += ["\n", _provenance(shown), "\n"]
    return "".join(lines)


def _speed(record: Record | None, roof: roofline.Roof) -> tuple[str, str]:
    if record is None or record.tflops is None:
        return "-", "-"
    percent = roofline.percent_of_roof(record.tflops, gpu.get_gpu(GPU), roof).value
    return f"{record.tflops:.1f}", f"{percent:.0f}%"


def _ratio(record: Record | None) -> str:
    """How much faster than the vendor, with the spread of the repeats."""
    for name, ratio in (record.ratios if record else {}).items():
        if name.lower().startswith("cublas"):
            return f"{ratio['median']:.3f}x ({ratio['min']:.3f}-{ratio['max']:.3f})"
    return "-"


def _vendors(records: Sequence[Record], shown: Sequence[Record], dtype: DType) -> list[Record]:
    """The vendor's records at a dtype of the runs that are shown."""
    runs = {record.provenance.date for record in shown}
    return [
        r for r in results.select(records, what="vendor", dtype=dtype.name) if r.provenance.date in runs and r.tflops
    ]


def _provenance(shown: Sequence[Record]) -> str:
    if not shown:
        return f"No record of this problem ({SIZE} x {SIZE} x {SIZE}) yet.\n"
    gpus = sorted({record.provenance.gpu for record in shown})
    dates = sorted({record.provenance.date[:10] for record in shown})
    drivers = sorted({str(record.provenance.driver) for record in shown})
    return (
        f"M = N = K = {SIZE}, row-major; {', '.join(gpus)}, driver {', '.join(drivers)}; measured {', '.join(dates)}. "
        "bf16 is converted on the way to registers and multiplied in fp32. The ratio is the vendor's time over ours.\n"
    )


def replaced(readme: str, new: str) -> str:
    """The README with ``new`` between the markers. Raises ``ValueError`` when they are not there once."""
    pattern = re.compile(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        raise ValueError(f"README.md must hold, once, {BEGIN!r} and later {END!r}")
    return pattern.sub(lambda _: f"{BEGIN}\n{new}{END}", readme)


def main() -> int:
    """Write the table, or with --check compare it: 1 when it is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the table is not current")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the repository (default: this one)")
    arguments = parser.parse_args()
    path = arguments.root / "README.md"
    old = path.read_text(encoding="utf-8")
    new = replaced(old, table(results.load(arguments.root / "results")))
    if arguments.check:
        print(f"README table: {'current' if new == old else 'not current: run scripts/readme_table.py'}")
        return 0 if new == old else 1
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
