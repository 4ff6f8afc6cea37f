"""The emulator against an H200: what the rungs move by ncu's counters, and what they compute.

The fixture is written by scripts/probe_rungs.py. The emulator traces every block of the same problems. What TMA and the
tensor cores move is in none of these counters: test_hardware_tensor.py has what they do.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probe_rungs import SHAPE, cases, operands_of, sampled

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import Counts
from tilewright.backends.emulator_trace import trace
from tilewright.plan_simt import SimtPlan
from tilewright.run import launch_arguments, make_operands

FIXTURE = json.loads((Path(__file__).parent / "fixtures" / "rungs_h200.json").read_text())
RUNS: dict[str, dict[str, Any]] = {run["name"]: run for run in FIXTURE["runs"]}
CASES = {name: (rung, plan) for name, rung, plan in cases()}


@cache
def emulated(name: str) -> tuple[Counts, list[float]]:
    """The counts of all blocks of a case, and the sampled elements of C."""
    rung, plan = CASES[name]
    backend = EmulatorBackend()
    problem, pair = operands_of(plan.dtype)
    operands = make_operands(backend, problem, *pair)
    source = rung.source(plan, "host")
    launch = (source, plan.grid(problem), plan.block, launch_arguments(backend, plan, operands), plan.shared_bytes)
    counts = trace(backend, *launch, cluster=plan.cluster)
    return counts, sampled(backend.download(operands.c))


def counter(name: str, metric: str) -> int:
    """One of ncu's sums."""
    return int(RUNS[name]["counters"][f"{metric}.sum"])


def test_the_fixture_is_of_these_plans() -> None:
    assert FIXTURE["gpu"] == "NVIDIA H200"
    assert tuple(FIXTURE["shape"]) == SHAPE
    assert list(RUNS) == list(CASES)
    for name, (_, plan) in CASES.items():
        assert RUNS[name]["plan"] == plan.to_dict(), f"{name}: measure again with scripts/probe_rungs.py"


@pytest.mark.parametrize("name", CASES)
def test_outputs_agree_within_rounding(name: str) -> None:
    _, c = emulated(name)
    # The GPU rounds a fused multiply-add once and the host twice, in the same order: sqrt(K) roundings of 2**-24 of
    # sums of order sqrt(K), then, in bf16, one of 2**-8.
    fp32 = name.endswith("fp32")
    np.testing.assert_allclose(c, RUNS[name]["c"], rtol=1e-5 if fp32 else 2**-7, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_global_requests_and_sectors_are_ncus(name: str) -> None:
    counts, _ = emulated(name)
    loads = counts.operands["a"].loads + counts.operands["b"].loads
    stores = counts.operands["c"].stores
    if isinstance(CASES[name][1], SimtPlan):  # the others' are the tensor cores'
        assert counts.multiply_adds == counter(name, "smsp__sass_thread_inst_executed_op_ffma_pred_on")
    assert loads.requests == counter(name, "l1tex__t_requests_pipe_lsu_mem_global_op_ld")
    assert loads.cost == counter(name, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld")
    assert stores.requests == counter(name, "l1tex__t_requests_pipe_lsu_mem_global_op_st")
    assert stores.cost == counter(name, "l1tex__t_sectors_pipe_lsu_mem_global_op_st")


@pytest.mark.parametrize("name", CASES)
def test_shared_wavefronts_are_ncus(name: str) -> None:
    counts, _ = emulated(name)
    loads = counts.shared_loads
    assert loads.cost == counter(name, "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld")
    assert loads.cost - loads.ideal == counter(name, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld")
    # Stores by threads; what cp.async writes is not in these counters.
    stores = sum(
        (
            line.requests.cost
            for line in counts.lines
            if line.memory == "shared" and line.kind == "store" and not line.asynchronous
        ),
        0,
    )
    conflicts = counter(name, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st")
    assert stores + conflicts == counter(name, "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st")
    # In two of them stores meet the writes of cp.async or TMA: a matter of timing, not of addresses.
    if "double_buffered" not in name and "overlapped_epilogue" not in name:
        assert conflicts == 0
