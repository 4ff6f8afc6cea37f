"""What the compiler makes of the microbenchmarks' kernels for Hopper: their loops hold what they measure."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import sass_lint

from tilewright import nvrtc
from tilewright.calibrate.probes import Probe
from tilewright.calibrate.session import MICROBENCHMARKS, _Target

PROBES = list({probe.name + str(probe): probe for each in MICROBENCHMARKS.values() for probe in each.probes()}.values())


@pytest.fixture(scope="module")
def kernels() -> list[tuple[Probe, nvrtc.Compiled, Sequence[sass_lint.Instruction]]]:
    """Every kernel of a calibration with its disassembly."""
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda probe: nvrtc.compile_kernel(probe.source(_Target("sm_90a"))), PROBES))
    return list(zip(PROBES, made, sass_lint.disassemble([each.cubin for each in made], "tw_gemm"), strict=True))


def test_nothing_spills_and_nothing_is_warned_of(kernels: list[tuple[Probe, nvrtc.Compiled, object]]) -> None:
    for probe, made, _ in kernels:
        report = made.report
        assert (report.spill_bytes, report.stack_bytes, report.warnings) == (0, 0, ()), probe


def test_main_loops_hold_what_is_measured(
    kernels: list[tuple[Probe, object, Sequence[sass_lint.Instruction]]],
) -> None:
    counted: dict[str, int] = {}
    for probe, _, code in kernels:
        loops = sass_lint.loops(code)
        multiply = {"tile_loop": "HGMMA", "mma_rate": "HMMA", "fma_rate": "FFMA"}.get(probe.name)
        if multiply is not None:
            (loop,) = sass_lint.innermost(loops, lambda loop, name=multiply: loop.has(name))  # type: ignore[misc]
            issued = sum(each.name == multiply for each in loop.code)
            sets, rows, consumers = (probe.plan.get(name, 1) for name in ("SETS", "BM", "CONSUMERS"))
            least = {"mma_rate": 32, "fma_rate": 512}.get(probe.name, sets * 4 * (rows // 64 // consumers))
            assert issued > 0, probe
            assert issued % least == 0, (probe, issued)
            if probe.name != "tile_loop":
                assert len(loop.code) <= issued + 8, "the loop does little else"
            assert not sass_lint.problems(code), probe
        if probe.name == "tma_stream":
            wanted = [name for name, on in (("UTMALDG", probe.plan["LOAD"]), ("UTMASTG", probe.plan["STORE"])) if on]
            for name in wanted:
                assert any(loop.has(name) for loop in loops), (probe, name)
        counted[probe.name] = counted.get(probe.name, 0) + 1
    assert counted == {"tma_stream": 4, "tma_latency": 1, "tile_loop": 29, "mma_rate": 1, "fma_rate": 1, "launch": 2}
