"""Ask a GPU how many wavefronts a shared-memory request costs: the facts behind the emulator's rule.

One warp does one load or store of 2, 4, 8 or 16 bytes a lane, at addresses out of a table; ``ncu`` counts. In order:

    python scripts/probe_wavefronts.py metrics > metrics.txt         # those of METRICS that this ncu knows
    ncu --clock-control none --csv --log-file ncu.csv --metrics $(cat metrics.txt) \
        python scripts/probe_wavefronts.py run --out patterns.json
    python scripts/probe_wavefronts.py join --patterns patterns.json --ncu ncu.csv \
        --out tests/fixtures/wavefronts_h200.json

``run`` launches one kernel a pattern, in the order of the file it writes; ``join`` puts the counters beside them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ncu_counters
import numpy as np

from tilewright.errors import TilewrightError, UsageError
from tilewright.source import KernelSource

SCHEMA = "tilewright.wavefronts/1"
LANES = range(32)
SHARED_BYTES = 40 << 10  # every pattern fits, and it is below the default limit of 48 KiB
INACTIVE = 0xFFFFFFFF  # in the table: this lane takes no part
METRICS = [
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
]
# Counted by patching the kernel, which takes ncu longer; ncu's names for them differ between versions.
SASS_METRICS = [
    "smsp__sass_inst_executed_op_shared_ld.sum",
    "smsp__sass_inst_executed_op_shared_st.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_ideal.sum",
    "smsp__sass_l1tex_pipe_lsu_wavefronts_mem_shared.sum",
    "smsp__sass_l1tex_pipe_lsu_wavefronts_mem_shared_ideal.sum",
]


@dataclass(frozen=True)
class Pattern:
    """One request: ``addresses`` holds each lane's first byte, None for a lane that takes no part."""

    name: str
    op: str
    width: int
    addresses: list[int | None]


def patterns() -> list[Pattern]:
    """Every pattern, as a load and as a store."""
    found = []
    for width in (2, 4, 8, 16):
        for name, element in _maps(width):
            at = [element(lane) for lane in LANES]
            addresses = [None if index is None else index * width for index in at]
            found += [Pattern(f"{op}{width} {name}", op, width, addresses) for op in ("ld", "st")]
    return found


Map = Callable[[int], int | None]  # from a lane to the index of its element, counted in elements of the width


def contiguous(distinct: int, step: int = 1) -> Map:
    """``distinct`` elements, ``step`` apart, each read by neighbouring lanes."""
    return lambda lane: lane * distinct // 32 * step


def interleaved(distinct: int, step: int = 1) -> Map:
    """``distinct`` elements, ``step`` apart, read in turn."""
    return lambda lane: lane % distinct * step


def transposed(rows: int, pitch: int, spacing: int = 1) -> Map:
    """Down ``rows`` rows that lie ``spacing * pitch`` apart, then the next column."""
    return lambda lane: lane % rows * spacing * pitch + lane // rows


def some(active: Callable[[int], bool], element: Callable[[int], int]) -> Map:
    """Only the active lanes."""
    return lambda lane: element(lane) if active(lane) else None


def _maps(width: int) -> Iterator[tuple[str, Map]]:
    line = 128 // width  # elements that lie side by side before the banks begin anew
    yield "coalesced", lambda lane: lane
    yield "reversed", lambda lane: 31 - lane
    yield "broadcast", lambda lane: 0
    yield "shifted by 7", lambda lane: lane + 7
    for k in (2, 4, 8, 16):
        yield f"{k} distinct, contiguous", contiguous(k)
        yield f"{k} distinct, interleaved", interleaved(k)
        yield f"{k} distinct of one bank, contiguous", contiguous(k, line)
        yield f"{k} distinct of one bank, interleaved", interleaved(k, line)
    yield "32 distinct of one bank", lambda lane: lane * line
    for stride in STRIDES[width]:
        yield f"stride {stride}", interleaved(32, stride)
    yield "stride 2, 16 lanes twice", interleaved(16, 2)
    yield "pairs swapped", lambda lane: lane ^ 1
    yield "halves swapped", lambda lane: lane ^ 16
    yield "bits reversed", lambda lane: int(f"{lane:05b}"[::-1], 2)
    yield "pairs equal, stride 2", contiguous(16, 2)
    yield "two lines in turn", lambda lane: lane % 2 * line + lane // 2
    yield "halves on two lines, same banks", lambda lane: lane % 16 + lane // 16 * line
    yield "quarters on four lines, same banks", lambda lane: lane % 8 + lane // 8 * line
    yield "xor swizzle, rows of 8", lambda lane: lane // 8 * 8 + (lane % 8 ^ lane // 8)
    yield "column of an xor swizzle", lambda lane: lane % 8 * line + (lane % 8 ^ lane // 8) % line
    yield "transposed 4x8", transposed(4, 8)
    yield "transposed 8x4", transposed(8, 4)
    for pitch in PITCHES[width]:  # a piece of a row-major tile on its way into a transposed tile with padded rows
        yield f"4 rows, pitch {pitch}", transposed(4, pitch)
        yield f"8 rows, pitch {pitch}", transposed(8, pitch)
        yield f"8 rows 4 apart, pitch {pitch}", transposed(8, pitch, spacing=4)
    for count in (1, 8, 16):
        yield f"first {count} lanes", some(lambda lane, n=count: lane < n, int)  # type: ignore[misc]
    yield "even lanes", some(lambda lane: lane % 2 == 0, int)
    yield "every fourth lane, packed", some(lambda lane: lane % 4 == 0, lambda lane: lane // 4)
    yield "first and last 8 lanes, packed", some(lambda lane: lane // 8 in (0, 3), lambda lane: lane % 24)
    for distinct in (2, 3, 4, 6, 8, 16, 32):
        generator = random.Random(f"{width}/{distinct}")
        pool = generator.sample(range(1024), distinct)
        yield f"random, {distinct} distinct", [generator.choice(pool) for _ in LANES].__getitem__


STRIDES = {
    2: (2, 3, 33, 64, 66),
    4: (2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 33),
    8: (2, 3, 4, 5, 8, 9, 17),
    16: (2, 3, 4, 5, 8, 9, 17),
}
PITCHES = {2: (66, 72), 4: (33, 36, 129, 132), 8: (17, 66), 16: (9, 33)}


def kernel(op: str, width: int) -> KernelSource:
    """The kernel of one kind of access: exactly one shared-memory instruction."""
    count, kind = max(width // 4, 1), {2: "u16", 4: "u32", 8: "v2.u32", 16: "v4.u32"}[width]
    values = [f"v{i}" for i in range(count)]
    places = [f"%{i + (op == 'st')}" for i in range(count)]
    registers = "{" + ", ".join(places) + "}" if count > 1 else places[0]
    c_type, letter = ("unsigned short", "h") if width == 2 else ("unsigned", "r")
    if op == "ld":
        outputs = ", ".join(f'"={letter}"({v})' for v in values)
        access = f'asm volatile("ld.shared.{kind} {registers}, [%{count}];" : {outputs} : "r"(at));'
        keep = "".join(f"out[threadIdx.x * {count} + {i}] = {v};" for i, v in enumerate(values))
    else:
        inputs = ", ".join(f'"{letter}"({v})' for v in values)
        access = f'asm volatile("st.shared.{kind} [%0], {registers};" :: "r"(at), {inputs} : "memory");'
        keep = ""
    declared = "".join(f"{c_type} {v} = ({c_type})(threadIdx.x + {i}u);" for i, v in enumerate(values))
    name = f"probe_{op}_{width}"
    text = f"""
extern "C" __global__ void {name}(const unsigned* offsets, unsigned* out) {{
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned offset = offsets[threadIdx.x];
    unsigned at = (unsigned)__cvta_generic_to_shared(shared) + offset;
    {declared}
    if (offset != {INACTIVE}u) {{
        {access}
        {keep}
    }}
}}
"""
    return KernelSource(name, text, "gpu", None, entry=name)


def run(out: Path) -> None:
    """Launch one kernel a pattern and write the patterns."""
    from tilewright.backends.base import Matrix
    from tilewright.backends.cuda import CudaBackend
    from tilewright.dtypes import FP32

    backend = CudaBackend()
    todo = patterns()
    table = np.array([[INACTIVE if a is None else a for a in p.addresses] for p in todo], dtype=np.uint32)
    offsets = backend.upload(table.view(np.float32))  # bytes are bytes
    result = backend.empty(32, 4, FP32)
    kernels = {key: backend.compile(kernel(*key)) for key in {(p.op, p.width) for p in todo}}
    for number, pattern in enumerate(todo):
        row = Matrix(offsets.pointer + number * table.shape[1] * 4, 1, 32, 32, FP32, offsets.owner)
        chosen = kernels[pattern.op, pattern.width]
        backend.launch(chosen, (1, 1, 1), (32, 1, 1), [row, result], SHARED_BYTES)
        backend.synchronize()
    values = {
        "schema": SCHEMA,
        **ncu_counters.machine(backend),
        "patterns": [asdict(pattern) for pattern in todo],
    }
    out.write_text(json.dumps(values, indent=1) + "\n")
    print(f"{len(todo)} patterns written to {out}", file=sys.stderr)


def known_metrics(listing: str, sass: bool = False) -> list[str]:
    """The counters whose base name stands in ``ncu --query-metrics``'s listing."""
    return ncu_counters.known(listing, METRICS + SASS_METRICS if sass else METRICS)


def read_counters(lines: Iterable[str]) -> list[tuple[str, dict[str, float]]]:
    """The probe's kernels in ``ncu --csv`` output, in order, each with its counters."""
    return ncu_counters.read(lines, [*METRICS, *SASS_METRICS], "probe_")


def join(values: dict[str, Any], counters: list[tuple[str, dict[str, float]]]) -> dict[str, Any]:
    """The patterns with what was counted for each. Raises ``UsageError`` when the two do not belong together."""
    todo = values["patterns"]
    if len(counters) != len(todo):
        raise UsageError(f"ncu counted {len(counters)} probe kernels; there are {len(todo)} patterns")
    joined = []
    for pattern, (name, found) in zip(todo, counters, strict=True):
        op, width = pattern["op"], pattern["width"]
        if not name.startswith(f"probe_{op}_{width}"):
            raise UsageError(f"{pattern['name']} was counted as {name}: the files are not of one run")
        executed = [v for metric, v in found.items() if metric.endswith(f"inst_executed_op_shared_{op}.sum")]
        if any(value != 1 for value in executed):
            raise UsageError(f"{pattern['name']} executed {executed} shared-memory instructions instead of 1")
        wavefronts = found.get(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum")
        conflicts = found.get(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum")
        joined.append({**pattern, "wavefronts": wavefronts, "bank_conflicts": conflicts, "counters": found})
    return {**values, "patterns": joined}


def _write_joined(patterns_file: Path, ncu_file: Path, out: Path) -> None:
    with ncu_file.open(encoding="utf-8") as lines:
        joined = join(json.loads(patterns_file.read_text()), read_counters(lines))
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n  ".join(json.dumps(pattern) for pattern in joined.pop("patterns"))
    head = json.dumps(joined, indent=1).removesuffix("\n}")
    out.write_text(f'{head},\n "patterns": [\n  {rows}\n ]\n}}\n')


def main(arguments: list[str] | None = None) -> int:
    """Run one of the modes; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    asking = modes.add_parser("metrics", help="print the counters to ask ncu for")
    asking.add_argument("--sass", action="store_true", help="with those that patch the kernel")
    modes.add_parser("run", help="launch the patterns (under ncu)").add_argument("--out", type=Path, required=True)
    joiner = modes.add_parser("join", help="put ncu's counters beside the patterns")
    for name in ("--patterns", "--ncu", "--out"):
        joiner.add_argument(name, type=Path, required=True)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.mode == "metrics":
            print(",".join(known_metrics(ncu_counters.listing(), chosen.sass)))
        elif chosen.mode == "run":
            run(chosen.out)
        else:
            _write_joined(chosen.patterns, chosen.ncu, chosen.out)
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
