#!/usr/bin/env python3
"""Write the generated blocks of docs/planner.md. With --check, only say which are not current.

Most blocks are a command with what it really prints, 80 columns wide, stdout and stderr together; of a judgement only
the rows that a question is about, the others as ``...``. No command needs a GPU, and none sees one. Exit 1 names each
block that is not current; 3 says what is not installed that a block is made with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import planner_fitted
import planner_report
from ladder_pages import renew
from typer.testing import CliRunner

from tilewright import roofline
from tilewright.backends.host_compiler import available_compilers
from tilewright.cli.app import app
from tilewright.errors import UnavailableError
from tilewright.gpu import get_gpu
from tilewright.planner import constraints
from tilewright.planner.calibration import constant_names, shipped

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/planner.md"
SCRIPT = "scripts/planner_docs.py"
WIDTH = 80
Maker = Callable[[], str]

_ROW = re.compile(r"^  (?:ok|NO|slow|-)\s+(\S(?:.*?\S)??)\s{2,}")


@dataclass(frozen=True)
class Shown:
    """A command line. Of a judgement, with ``keep``, only the rows of these findings, ``MISTAKES`` and ``BETTER``."""

    command: str
    keep: tuple[str, ...] = ()
    emulator: bool = False


MISTAKES, BETTER = "mistakes", "better"
_BYTES = ("intensity", "operand traffic", "L2 bandwidth")
_REGISTERS = ("stages", "accumulators", "thread registers")
_EDGES = ("waves", "edge waste")


def _judged(shape: str, tile: str, *keep: str, gpu: str = "h100") -> Shown:
    return Shown(f"tilewright plan {shape} --gpu {gpu} --tile {tile}", keep)


def _emulated(words: str) -> Shown:
    return Shown(f"tilewright {words} --backend emulator", emulator=True)


_CUBE, _WIDE = "8192 8192 8192", "640 7168 7168"
COMMANDS: dict[str, tuple[Shown, ...]] = {
    "pick": (Shown(f"tilewright plan {_CUBE} --gpu h200 --top 3"),),
    "large": (
        _judged(_CUBE, "64x64x64", *_BYTES),
        _judged(_CUBE, "128x128x64", *_BYTES),
        _judged(_CUBE, "128x256x64", *_BYTES),
        _judged(_CUBE, "128x256x64 --cluster 2x1", *_BYTES),
    ),
    "small": (_judged(_CUBE, "64x64x64", MISTAKES, BETTER),),
    "bk": (_judged(_CUBE, "128x128x64", "stages", "swizzle row"),),
    "bk_mistake": (_judged(_CUBE, "128x256x128", "stages", "swizzle row", "kernel", MISTAKES),),
    "walls": (_judged(_CUBE, "128x256x64 --stages 4", *_REGISTERS, "register file"),),
    "too_large": (_judged(_CUBE, "256x256x64 --stages 3", *_REGISTERS, "kernel", MISTAKES, BETTER),),
    "sixteen": (
        _judged(_CUBE, "64x64x64 --consumers 2 --schedule cooperative", "instruction", "accumulators", "kernel"),
        _judged(_CUBE, "64x64x64 --consumers 1", "instruction", "accumulators", "kernel"),
    ),
    "seven": (_judged(_CUBE, "128x128x64 --stages 7 --consumers 2", "stages", "pipeline depth", "kernel", MISTAKES),),
    "short": (_judged(_CUBE, "64x64x64 --stages 2", "stages", "pipeline depth", MISTAKES),),
    "waves": (_judged(_WIDE, "128x256x64", *_EDGES, MISTAKES, BETTER),),
    "picture": (Shown(f"tilewright plan {_WIDE} --gpu h100 --top 1 --picture"),),
    "decode": (_judged("16 8192 8192", "128x256x64", "HBM bandwidth", *_EDGES, "rows of C", MISTAKES, BETTER),),
    "eight": (Shown("tilewright plan 8 4096 4096 --gpu h100 --top 1"),),
    "orientation": (
        _judged("8192 128 4096", "128x256x64", *_EDGES, MISTAKES),
        _judged("8192 128 4096", "256x128x64", *_EDGES),
    ),
    "clusters": (_judged(_CUBE, "128x256x64 --cluster 2x2", "clusters", MISTAKES, gpu="h200"),),
    "misaligned": (_judged("4096 4096 4097", "256x192x64", "TMA lines", "kernel", BETTER, gpu="h200"),),
    "why": (Shown(f"tilewright plan {_CUBE} --gpu h200 --why 1 2"),),
    "why_families": (Shown("tilewright plan 640 7168 7168 --gpu h200 --why wgmma splitk"),),
    "ridge": (_judged("4096 4096 4096", "128x128x64", "intensity", "HBM bandwidth"),),
    "roof": (Shown("tilewright plan 4096 4096 4096 --gpu h100 --top 1"),),
    "climb": (_emulated("climb --size 256 --rungs 0-2 --dtype fp32"),),
    "bf16": (_emulated("climb --size 256 --rungs 0-2 --dtype bf16"),),
    "verify": (_emulated("verify --m 200 --n 136 --k 120 --rungs 11 --dtype bf16 --fill probe"),),
    "warm": (Shown(f"tilewright plan {_CUBE} --gpu h200 --clock burst --top 1"),),
    "unknown": (Shown("tilewright plan 4096 4096 4096 --gpu b200"),),
}
CODE = {
    "sums": """\
from tilewright import get_gpu
from tilewright.roofline_tensor import accumulator_port_demand

print(accumulator_port_demand(get_gpu("h100")))""",
    "steps": """\
from tilewright import Problem, get_gpu
from tilewright.derive import derived
from tilewright.ladder import rungs
from tilewright.results import latest, load, recorded_results_dir

gemm = Problem(4096, 4096, 4096, "bf16")
records = load(recorded_results_dir() / "ladder_h200.jsonl")
for number, rung in list(rungs().items())[1:]:
    said = derived(rung.plan(gemm.dtype), get_gpu("h200"))
    tflops = latest(records, problem=gemm, rung=number, what="rung").tflops
    print(f"{number:2} {rung.name:20}{said['flop_per_byte']:6.1f} FLOP/B{tflops:6.1f} TFLOPS; {said['bottleneck']}")""",
    "throughput": """\
from tilewright import Problem
from tilewright.results import latest, load, recorded_results_dir

gemm = Problem(8192, 8192, 8192, "bf16", b_layout="column")
record = latest(load(recorded_results_dir()), problem=gemm, name="tilewright")
print(record.provenance.method)
print(record.provenance.l2)
print("us in each slot:", *(round(us, 1) for us in record.samples_us))
median, gigahertz = record.time_us["median"], record.sm_clock_mhz_in_kernel / 1e3
print(f"{median:,.1f} us at {gigahertz:.2f} GHz, {record.tflops:.1f} TFLOPS")
print(f"the baseline against itself: {record.noise['min']:.3f} to {record.noise['max']:.3f}")""",
    "fp8": """\
from tilewright import get_gpu
from tilewright.planner import constraints
from tilewright.roofline import bandwidth_needed, k_step_bytes, peak_tflops

gpu = get_gpu("h100")
for itemsize, bk, roof in ((2, 64, "bf16_tensor"), (1, 128, "fp8_tensor")):
    print(constraints.swizzle_row(bk, itemsize).sentence)
    print(k_step_bytes(128, 256, bk, itemsize))
    flop_per_byte = constraints.intensity(128, 256, itemsize).value
    print(bandwidth_needed(peak_tflops(gpu, roof), flop_per_byte))""",
}


# ---- commands --------------------------------------------------------------------------------------------------------


ENVIRONMENT: dict[str, str | None] = {
    "COLUMNS": str(WIDTH), "LINES": "50", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8", "CUDA_VISIBLE_DEVICES": "", "FORCE_COLOR": None, "TILEWRIGHT_BACKEND": None,
}  # fmt: skip


def printed(command: str) -> str:
    """What ``tilewright ...`` prints, stdout and stderr, on a terminal of ``WIDTH`` columns without colours."""
    done = CliRunner().invoke(app, shlex.split(command)[1:], env=ENVIRONMENT)
    return "".join(f"{line.rstrip()}\n" for line in done.output.splitlines())


def printed_by(words: Sequence[str]) -> str:
    """The same of any command, in a process of its own."""
    environment = {name: value for name, value in {**os.environ, **ENVIRONMENT}.items() if value is not None}
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", env=environment, check=False
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def shown(commands: Sequence[Shown]) -> str:
    """Commands with their output. Raises ``UnavailableError`` where one needs a compiler that is not here."""
    if any(each.emulator for each in commands) and not available_compilers():
        raise UnavailableError("no C++ compiler is installed, which the emulator needs")
    parts = []
    for each in commands:
        text = printed(each.command)
        parts.append(f"$ {each.command}\n{kept(text, each.keep) if each.keep else text}")
    return fenced("text", "\n".join(parts))


def kept(text: str, names: Sequence[str]) -> str:
    """A judgement's text with what ``names`` says; ``...`` stands for rows left out."""
    lines: list[str] = []
    found: set[str] = set()
    name = ""  # of what a line belongs to; the head has none
    for line in text.splitlines():
        if (row := _ROW.match(line)) is not None:
            name = row[1]
        elif not line.startswith(" ") and found:
            name = MISTAKES if line.startswith("mistake") else BETTER
        found |= {name} - {""}
        if not name or name in names:
            lines.append(line)
        elif lines[-1] != "  ...":
            lines.append("  ...")
    if missing := [each for each in names if each not in found]:
        raise ValueError(f"no {', '.join(missing)} among {', '.join(sorted(found))}")
    return "".join(f"{line}\n" for line in lines)


def ran(code: str) -> str:
    """Python code and what it prints."""
    return fenced("python", f"{code}\n") + "\n" + fenced("text", printed_by([sys.executable, "-c", code]))


def fenced(language: str, text: str) -> str:
    """A code block."""
    return f"```{language}\n{text}```\n"


# ---- tables ----------------------------------------------------------------------------------------------------------


def tiles_block() -> str:
    """Four tiles and what stops each, as a kernel of two consumer warpgroups would have them."""
    gpu = get_gpu("h100")
    lines = [
        "| tile | FLOP/B | stage | stages, no epilogue | beside the least epilogue | accumulators a thread | kernel |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for bm, bn in ((64, 64), (128, 128), (128, 256), (256, 256)):
        stage = int(roofline.k_step_bytes(bm, bn, 64, 2).value)
        fit = [constraints.stages_that_fit(stage, gpu, epilogue) for epilogue in (0, 2 * 64 * 16 * 2)]
        held = constraints.accumulators(bm, bn, 2, "cooperative", gpu)
        rows = constraints.instruction(bm, bn, 2, "cooperative")
        why = "no: 255 registers a thread at most" if not held.ok else "no: 2 warpgroups need 128 rows"
        lines.append(
            f"| {bm}x{bn}x64 | {constraints.intensity(bm, bn, 2).value:.1f} | {stage // 1024} KB | {fit[0]} | {fit[1]} "
            f"| {held.value:.0f} | {'yes' if held.ok and rows.ok else why} |"
        )
    return "\n".join(lines) + "\n"


def constants_block() -> str:
    """Every constant of the calibrations that are shipped, with its source."""
    lines = []
    for key in ("h200", "h100"):
        found = shipped(key).to_dict()
        lines += [f"**{key}: {found['label']}**", "", "| constant | value | source |", "| --- | ---: | --- |"]
        for name in constant_names():
            entry = found["constants"][name]
            lines.append(f"| `{name}` | {_value(entry['value'])} | {entry['source']} |")
        lines.append("")
        if residuals := shipped(key).residuals:
            told = ", ".join(f"`{of}` {name} x {factor:g}" for of, name, factor in residuals)
            lines += [f"Residuals, fitted to times of kernels: {told}.", ""]
    return "\n".join(lines)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {each:g}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(f"{each[1] / 1e12:.3g} TB/s at {each[0] / 1e6:.4g} MB" for each in value)
    return f"{value:.4g}"


_CONSTANT = re.compile(r"^([A-Z_]+_CLK) = (\d+)\s+# (.+)$", re.MULTILINE)  # clocks, or bytes a clock


def kernels_block() -> str:
    """What the kernels themselves cost, as the modules of the model have it."""
    folder = ROOT / "src/tilewright/planner"
    lines = ["| module | constant | value | what |", "| --- | --- | ---: | --- |"]
    for path in [*sorted(folder.glob("*.py")), *sorted((folder / "families").glob("*.py"))]:
        for name, value, what in _CONSTANT.findall(path.read_text("utf-8")):
            module = path.relative_to(folder).as_posix()
            lines.append(f"| [{module}](../src/tilewright/planner/{module}) | `{name}` | {value} | {what} |")
    return "\n".join(lines) + "\n"


def _readings(microbenchmark: str) -> dict[str, dict[str, Any]]:
    """The values of the last run's readings by their conditions as JSON, of a repetition the last."""
    found = {}
    for line in (ROOT / "results/calibration_h200.jsonl").read_text("utf-8").splitlines():
        reading = json.loads(line)
        if reading["microbenchmark"] == microbenchmark:
            where = {name: value for name, value in reading["conditions"].items() if name not in ("repeat", "order")}
            found[json.dumps(where, sort_keys=True)] = reading["values"]
    return found


def questions_block() -> str:
    """What the readings say of the questions that public figures left open."""
    l2 = {(of["sms"], of["cluster"], of["pattern"], of["working_set_bytes"] >> 20): values["bytes_per_clk_per_sm"]
          for of, values in ((json.loads(key), values) for key, values in _readings("l2_read").items())}  # fmt: skip
    swept = {size: l2[132, 1, "swept", size] for size in (16, 40, 48, 56, 96, 128)}
    wgmma = {of["n"]: values["clk"] for of, values in
             ((json.loads(key), values) for key, values in _readings("wgmma_rate").items())
             if (of["sms"], of["warpgroups"]) == (132, 2)}  # fmt: skip
    beside = {tuple(of["tile"]): values for of, values in
              ((json.loads(key), values) for key, values in _readings("tma_beside_wgmma").items())
              if of["sms"] == 132}  # fmt: skip
    power = {json.loads(key)["state"]: values for key, values in _readings("power").items()}
    rows = [
        (
            "what L2 supplies an SM, and how it falls past 40 MB",
            f"{swept[16]:.1f} bytes a clock of lines of its own while all SMs load, from 16 MiB; "
            + ", ".join(f"{rate:.1f} from {size}" for size, rate in list(swept.items())[1:])
            + f" MiB. One SM alone {l2[1, 1, 'swept', 16]:.1f}, all on the same lines "
            f"{l2[132, 1, 'together', 16]:.1f}, "
            f"clusters of 2 {l2[132, 2, 'swept', 16]:.1f}",
        ),
        (
            "wgmma's rate below N = 128",
            "clocks of m64nNk16, where N / 2 is the full rate: "
            + ", ".join(f"{wgmma[n]:.1f} at N = {n}" for n in (8, 16, 32, 48, 64, 96, 128, 256)),
        ),
        (
            "whether TMA's writes delay wgmma's reads",
            "clocks of a K block of 64 alone and beside loads: "
            + ", ".join(
                f"{bm}x{bn} {values['alone_k_block_clk']:,.1f} and {values['k_block_clk']:,.1f} "
                f"with {values['loaded_bytes_per_clk']:.0f} bytes a clock written"
                for (bm, bn), values in sorted(beside.items())
            ),
        ),
        (
            "the clock against power",
            "; ".join(
                f"{state} {power[state]['power_w']:.0f} W at {power[state]['clock_mhz']:,.0f} MHz"
                for state in ("spin", "hbm", "l2", "wgmma 1/4", "wgmma 1/2", "wgmma", "wgmma + l2", "wgmma + hbm")
            ),
        ),
    ]
    return "\n".join(["| question | read |", "| --- | --- |", *(f"| {name} | {said} |" for name, said in rows)]) + "\n"


def fitted_block() -> str:
    """The fitted constants that the price of each family moves with, its own first."""
    lines = ["| family | its own | shared | in all |", "| --- | --- | --- | ---: |"]
    for name, moved in planner_fitted.used(planner_fitted.rows((ROOT / PAGE).read_text("utf-8"))).items():
        parted = [[f"`{each.name}`" for each in moved if (name in each.owners) == own] for own in (True, False)]
        lines.append(f"| {name} | {' | '.join(', '.join(part) or '-' for part in parted)} | {len(moved)} |")
    return "\n".join(lines) + "\n"


def accuracy_block() -> str:
    """Predictions beside every configuration that was measured, in groups."""
    records = planner_report.kernels(sorted((ROOT / "results").glob("*_h200.jsonl")))
    found = planner_report.points(records)
    return f"Predicted with: {shipped('h200').label}.\n\n{planner_report.tables(found).rpartition(chr(10) * 2)[2]}\n"


MAKERS: dict[str, Maker] = {
    **{name: partial(shown, commands) for name, commands in COMMANDS.items()},
    **{name: partial(ran, code) for name, code in CODE.items()},
    "tiles": tiles_block,
    "constants": constants_block,
    "kernels": kernels_block,
    "questions": questions_block,
    "fitted": fitted_block,
    "accuracy": accuracy_block,
}


def main() -> int:
    """Write the blocks, or with --check compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a block is not current")
    parser.add_argument("page", nargs="?", type=Path, default=ROOT / PAGE, help=f"the page (default: {PAGE})")
    given = parser.parse_args()
    page: Path = given.page
    found = renew(page.read_text("utf-8"), MAKERS, SCRIPT)
    if not given.check:
        page.write_text(found.text, "utf-8")
        found.stale.clear()
    for problem in (*found.wrong, *found.stale, *found.unmade):
        print(f"{page.name}: {problem}", file=sys.stderr)
    return 1 if found.wrong or found.stale else 3 if found.unmade else 0


if __name__ == "__main__":
    sys.exit(main())
