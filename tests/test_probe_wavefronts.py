"""The script that asks a GPU for its wavefronts: its patterns and what it makes of ncu's output."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tilewright import nvrtc
from tilewright.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import probe_wavefronts as probe

LD = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
EXECUTED = "smsp__inst_executed_op_shared_ld.sum"

LONG = f"""\
==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","warm_up","Command line profiler metrics","{LD}","","9"
"1","1","probe_ld_4","Command line profiler metrics","{LD}","","1,024"
"1","1","probe_ld_4","Command line profiler metrics","{CONFLICTS}","","0"
"1","1","probe_ld_4","Command line profiler metrics","{EXECUTED}","inst","1"
==PROF== Disconnected
"2","1","probe_ld_16(unsigned int const *)","Command line profiler metrics","{LD}","","4"
"2","1","probe_ld_16(unsigned int const *)","Command line profiler metrics","{CONFLICTS}","","n/a"
"""
WIDE = f"""\
"ID","Kernel Name","{LD}","{CONFLICTS}","{EXECUTED}"
"","","","","inst"
"0","probe_ld_4","1,024","0","1"
"1","probe_ld_16","4","n/a",""
"""


def two_patterns() -> dict[str, Any]:
    chosen = [p for p in probe.patterns() if p.name in ("ld4 coalesced", "ld16 coalesced")]
    return {"schema": probe.SCHEMA, "gpu": "NVIDIA H200", "patterns": [asdict(p) for p in chosen]}


def test_patterns_are_named_aligned_and_in_range() -> None:
    found = probe.patterns()
    assert 300 < len(found) < 600
    assert len({p.name for p in found}) == len(found)
    for pattern in found:
        assert len(pattern.addresses) == 32
        active = [a for a in pattern.addresses if a is not None]
        assert active
        assert all(a % pattern.width == 0 and 0 <= a <= probe.SHARED_BYTES - pattern.width for a in active)


def test_patterns_that_matter_are_there() -> None:
    found = {p.name: p.addresses for p in probe.patterns()}
    assert found["ld16 coalesced"] == [16 * lane for lane in range(32)]
    assert found["ld16 2 distinct, contiguous"] == [0] * 16 + [16] * 16
    assert found["ld16 4 distinct of one bank, interleaved"] == [128 * (lane % 4) for lane in range(32)]
    assert found["ld16 stride 2, 16 lanes twice"] == [32 * (lane % 16) for lane in range(32)]
    assert found["st2 coalesced"] == [2 * lane for lane in range(32)]
    assert found["ld4 first 8 lanes"] == [*range(0, 32, 4)] + [None] * 24
    assert found["st4 8 rows 4 apart, pitch 132"][:3] == [0, 4 * 4 * 132, 8 * 4 * 132]


@pytest.mark.skipif(not nvrtc.available(), reason="cuda-core or NVRTC is not installed")
@pytest.mark.parametrize("op", ["ld", "st"])
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_kernels_compile(op: str, width: int) -> None:
    source = probe.kernel(op, width)
    assert source.text.count(".shared.") == 1
    assert nvrtc.compile_kernel(replace(source, arch="sm_90a")).report.warnings == ()


@pytest.mark.parametrize("output", [LONG, WIDE])
def test_counters_join_their_patterns(output: str, tmp_path: Path) -> None:
    (tmp_path / "patterns.json").write_text(json.dumps(two_patterns()))
    (tmp_path / "ncu.csv").write_text(output)
    names = {"--patterns": "patterns.json", "--ncu": "ncu.csv", "--out": "new/fixture.json"}
    assert probe.main(["join", *(str(x) for flag, name in names.items() for x in (flag, tmp_path / name))]) == 0
    joined = json.loads((tmp_path / "new" / "fixture.json").read_text())
    first, second = joined["patterns"]
    assert (first["name"], first["wavefronts"], first["bank_conflicts"]) == ("ld4 coalesced", 1024, 0)
    assert (second["name"], second["wavefronts"], second["bank_conflicts"]) == ("ld16 coalesced", 4, None)
    assert joined["gpu"] == "NVIDIA H200"


def test_output_of_another_run_is_refused() -> None:
    values = two_patterns()
    counters = probe.read_counters(LONG.splitlines(keepends=True))
    with pytest.raises(UsageError, match="1 probe kernels"):
        probe.join(values, counters[:1])
    with pytest.raises(UsageError, match="not of one run"):
        probe.join(values, counters[::-1])
    with pytest.raises(UsageError, match="instructions instead of 1"):
        probe.join(values, [(name, {**found, EXECUTED: 2.0}) for name, found in counters])
    with pytest.raises(UsageError, match="no table"):
        probe.read_counters(["==ERROR== no permission\n"])


def test_only_known_metrics_are_asked_for() -> None:
    listing = f"Device NVIDIA H200\n{LD.removesuffix('.sum')}   Counter  wavefronts\nother  Counter\n"
    assert probe.known_metrics(listing) == [LD]
    assert probe.known_metrics(listing, sass=True) == [LD]
