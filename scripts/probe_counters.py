#!/usr/bin/env python3
"""Ask a GPU's counters where the tensor-core rungs spend their time and what they move, beside cuBLAS.

Each rung from the last CUDA-core one on runs once in bf16 on the problem of the ladder's measurements, with its default
plan; ``ncu`` counts. In order (PyTorch, for cuBLAS, has to be there):

    python scripts/probe_counters.py metrics > metrics.txt             # those of METRICS that this ncu knows
    ncu --clock-control none --kernel-name "regex:$(python scripts/probe_counters.py kernels)" \
        --csv --print-units base --log-file ncu.csv --metrics $(cat metrics.txt) \
        python scripts/probe_counters.py run --out runs.json
    python scripts/probe_counters.py join --runs runs.json --ncu ncu.csv --out results/counters_h200.json

scripts/ladder_pages.py shows the result on the pages of the rungs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ncu_counters

from tilewright import ladder, results
from tilewright.dtypes import BF16
from tilewright.errors import UsageError
from tilewright.ladder import Rung
from tilewright.operands import random_operands
from tilewright.plan_tensor import FIRST
from tilewright.problem import Problem
from tilewright.source import ENTRY

SCHEMA = "tilewright.tensor-counters/1"
SHAPE = (4096, 4096, 4096)
VENDOR = "cuBLAS"
# The kernels of cuBLAS on Hopper; PyTorch's own (filling, converting) are none of these.
VENDOR_KERNELS = ("nvjet", "cutlass", "gemm", "xmma")

# Metrics of GH100, as `ncu --query-metrics` lists them. HGMMA (wgmma) and HMMA (mma.sync) share one pipe.
_PIPES = ("sm__pipe_tensor_cycles_active", "sm__pipe_tensor_op_hmma_cycles_active")
TENSOR_ELAPSED = tuple(f"{pipe}.avg.pct_of_peak_sustained_elapsed" for pipe in _PIPES)
TENSOR_ACTIVE = tuple(f"{pipe}.avg.pct_of_peak_sustained_active" for pipe in _PIPES)
TENSOR_INSTRUCTIONS = tuple(f"sm__inst_executed_pipe_tensor_op_{op}.sum" for op in ("hmma", "gmma"))
INSTRUCTIONS = "smsp__inst_executed.sum"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
L2_SECTORS = "lts__t_sectors_srcunit_tex_op_read.sum"  # a multicast once
ARRIVING = "l1tex__m_xbar2l1tex_read_bytes.sum"  # at each SM that receives it
L2_HITS = "lts__t_sector_op_read_hit_rate.pct"
DRAM_READ, DRAM_WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
REGISTERS = "launch__registers_per_thread"
# By the name that it has in the docs, the share of a resident warp's cycles that go to a reason not to issue.
STALLS = {
    name: f"smsp__warp_issue_stalled_{key}_per_warp_active.pct"
    for name, key in {
        "waiting for wgmma": "gmma",
        "barrier": "barrier",
        "global or mbarrier (long scoreboard)": "long_scoreboard",
        "shared memory (short scoreboard)": "short_scoreboard",
        "tensor pipe full": "math_pipe_throttle",
        "memory queue full": "mio_throttle",
        "global queue full": "lg_throttle",
        "asleep": "sleeping",
        "fixed latency": "wait",
        "branch": "branch_resolving",
        "no instruction": "no_instruction",
        "not selected": "not_selected",
        "memory barrier": "membar",
        "dispatch": "dispatch_stall",
        "issuing": "selected",
    }.items()
}
METRICS = [
    *TENSOR_ELAPSED, *TENSOR_ACTIVE, *TENSOR_INSTRUCTIONS, INSTRUCTIONS, ISSUE, L2_SECTORS, ARRIVING, L2_HITS,
    DRAM_READ, DRAM_WRITE, WAVEFRONTS, CONFLICTS, REGISTERS, *STALLS.values(),
]  # fmt: skip


def name_of(rung: Rung) -> str:
    """What a rung's run is called."""
    return f"{rung.path.stem} {BF16}"


def probed() -> list[Rung]:
    """The rungs that are run: those on tensor cores, and the one that the first of them is compared with."""
    return [rung for rung in ladder.rungs().values() if rung.number >= FIRST - 1]


def run(out: Path) -> None:
    """Launch every rung and cuBLAS once, and write down what ran."""
    from tilewright.backends.cuda import CudaBackend
    from tilewright.rivals import cublas
    from tilewright.run import make_operands, prepare

    backend = CudaBackend()
    problem = Problem(*SHAPE, BF16)
    operands = make_operands(backend, problem, *random_operands(problem))
    found = []
    for rung in probed():
        plan = rung.plan(BF16)
        prepare(backend, rung, plan, operands)(backend)
        found.append({"name": name_of(rung), "plan": plan.to_dict()})
    backend.synchronize()
    with backend.current():
        cublas(backend, [operands]).launches[0](backend.stream)
    backend.synchronize()
    values = {
        "schema": SCHEMA,
        **ncu_counters.machine(backend),
        "date": results.now(),
        "commit": results.commit(),
        "shape": SHAPE,
        "runs": found,
    }
    out.write_text(json.dumps(values, indent=1) + "\n")
    print(f"{len(found)} rungs and {VENDOR} ran; written to {out}", file=sys.stderr)


def join(values: dict[str, Any], counters: list[tuple[str, ncu_counters.Counters]]) -> dict[str, Any]:
    """The runs with what was counted for each, cuBLAS's last. Raises ``UsageError`` when they do not fit."""
    ours = [found for name, found in counters if name.startswith(ENTRY)]
    vendors = [(name, found) for name, found in counters if not name.startswith(ENTRY)]
    if len(ours) != len(values["runs"]):
        raise UsageError(f"ncu counted {len(ours)} kernels of the ladder; there are {len(values['runs'])} runs")
    runs = [{**each, "counters": found} for each, found in zip(values["runs"], ours, strict=True)]
    if vendors:
        kernel, found = vendors[-1]
        runs.append({"name": VENDOR, "kernel": kernel, "counters": found})
    return {**values, "runs": runs}


if __name__ == "__main__":
    ncu_counters.steps(__doc__, METRICS, run, join, "", {"kernels": (ENTRY, *VENDOR_KERNELS)})
