"""What a warpgroup has to do in order and alike: wgmma with its fences, groups and waits, and setmaxnreg."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from observed import kernel_source

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.dtypes import FP32
from tilewright.errors import EmulatorFault

Array = np.ndarray[Any, Any]


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Every compiler found here."""
    found: HostCompiler = request.param
    return found


def order(compiler: HostCompiler, policy: Policy, case: int, *, seed: int = 0, threads: int = 128) -> Array:
    """Run a case of wgmma_order.cu; its rows of 128 results."""
    backend = EmulatorBackend(policy, seed=seed, compiler=compiler)
    out = backend.empty(3, 128, FP32)
    code = backend.compile(kernel_source("core/wgmma_order.cu", CASE=case, SHARED_BYTES=2048))
    backend.launch(code, (1, 1, 1), (threads, 1, 1), [out], 2048)
    return backend.download(out)


def test_a_wait_gives_back_what_its_groups_had(compiler: HostCompiler) -> None:
    eager, lazy = (order(compiler, policy, 0) for policy in ("eager", "lazy"))
    np.testing.assert_array_equal(eager, np.repeat([[16.0], [16.0], [32.0]], 128, axis=1))
    np.testing.assert_array_equal(lazy[[0, 2]], eager[[0, 2]])
    assert np.isnan(lazy[1]).all()
    early = np.stack([order(compiler, "random", 0, seed=seed)[1] for seed in range(4)]).reshape(4, 4, 32)
    assert (np.isnan(early) == np.isnan(early[:, :, :1])).all()  # a warp's registers come together
    assert 0 < np.isnan(early).sum() < early.size
    assert (early[~np.isnan(early)] == 16).all()


def test_an_accumulator_comes_back_when_its_last_group_does(compiler: HostCompiler) -> None:
    for policy in POLICIES:
        out = order(compiler, policy, 1)
        np.testing.assert_array_equal(out[1], 48.0)
        if policy == "lazy":
            assert np.isnan(out[0]).all()


def test_operands_in_shared_memory_are_read_until_the_wait(compiler: HostCompiler) -> None:
    np.testing.assert_array_equal(order(compiler, "eager", 2)[0], 16.0)
    np.testing.assert_array_equal(order(compiler, "lazy", 2)[0], 64.0)


def test_registers_of_a_are_read_at_issue(compiler: HostCompiler) -> None:
    for policy in POLICIES:
        np.testing.assert_array_equal(order(compiler, policy, 3)[0], 48.0)


NO_FENCE = "wgmma without a wgmma_fence since its warp began or got back accumulators"


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        (10, "misuse", NO_FENCE),
        (11, "misuse", NO_FENCE),
        (12, "wgmma", "the warp returns with 2 wgmmas it has not waited for, 1 of them not committed"),
        (14, "misuse", "wgmma: its 4 accumulator registers are in flight as part of 8 others"),
        (15, "misuse", "wgmma: 256 accumulator registers a thread in flight; it has 255"),
        (20, "out-of-bounds", r"wgmma: its descriptor has A end at shared\+2320 of block rank 0, which has 2048"),
        (21, "out-of-bounds", r"wgmma: its descriptor has B end at shared\+3328 of block rank 0, which has 2048"),
        (22, "misuse", "the descriptor of B has a base offset of 1; 0 is possible here"),
        (23, "misuse", r"the descriptor of B is 0x0000000800404000, with bits that no field has"),
        (30, "divergence", "instruction 0 of the warpgroup is wgmma of width 8 in warp 2, and .* width 16 in warp 3"),
        (31, "divergence", "instruction 0 .* width 16 in warp 2, and .* width 16 of other operands in warp 3"),
        (32, "divergence", "warp 2 returns after 0 instructions of its warpgroup; warp 3 went on to wgmma of width 16"),
        (33, "divergence", "warp 2 returns after 1 instructions of its warpgroup; warp 3 went on to wgmma of width 16"),
        (36, "divergence", "instruction 0 .* width 16, for which warp 3 is not there: it has returned"),
        (34, "divergence", "wgmma of another shape, descriptor or flag than lane 0's .* thread 37]"),
        (35, "divergence", "warp 1 returns after 0 instructions of its warpgroup; warp 3 went on"),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_misused_wgmma(compiler: HostCompiler, policy: Policy, case: int, kind: str, text: str) -> None:
    with pytest.raises(EmulatorFault, match=text) as caught:
        order(compiler, policy, case)
    assert caught.value.kind == kind


def test_writing_an_accumulator_in_flight(compiler: HostCompiler) -> None:
    with pytest.raises(EmulatorFault, match=r"accumulator register 3 was written while .* in flight .* thread 37\]"):
        order(compiler, "lazy", 13)


def test_a_warpgroup_that_the_block_does_not_fill(compiler: HostCompiler) -> None:
    with pytest.raises(EmulatorFault, match="wgmma of width 16 in warp 2, whose warpgroup the block's 96 threads"):
        order(compiler, "eager", 1, threads=96)


def test_a_good_launch_after_a_fault(compiler: HostCompiler) -> None:
    for case in (12, 14, 33):
        with pytest.raises(EmulatorFault):
            order(compiler, "lazy", case)
        np.testing.assert_array_equal(order(compiler, "lazy", 1)[1], 48.0)


# ---- setmaxnreg ------------------------------------------------------------------------------------------------------


def set_registers(compiler: HostCompiler, case: int) -> Array:
    backend = EmulatorBackend(compiler=compiler)
    out = backend.empty(1, 384, FP32)
    code = backend.compile(kernel_source("core/setmaxnreg.cu", CASE=case))
    backend.launch(code, (1, 1, 1), (384, 1, 1), [out], 0)
    return backend.download(out)


@pytest.mark.parametrize("case", [0, 1])
def test_setmaxnreg(compiler: HostCompiler, case: int) -> None:
    assert (set_registers(compiler, case) == 1).all()


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        (10, "divergence", r"instruction 0 .* is setmaxnreg.dec 40 in warp 6, and setmaxnreg.dec 48 in warp 4"),
        (11, "divergence", "warp 6 returns after 0 instructions of its warpgroup; warp 4 went on to setmaxnreg.dec 40"),
        (12, "misuse", "warpgroups with 512 registers a thread in all; a block of 384 threads has at most 504"),
        (13, "misuse", "setmaxnreg decreases to 176 registers a thread, of at most 168"),
        (14, "misuse", "setmaxnreg increases to 32 registers a thread, of 40"),
        (15, "divergence", "setmaxnreg needs the 32 lanes of warp 0, of which 0xffffff7f are there"),
    ],
)
def test_misused_setmaxnreg(compiler: HostCompiler, case: int, kind: str, text: str) -> None:
    with pytest.raises(EmulatorFault, match=text) as caught:
        set_registers(compiler, case)
    assert caught.value.kind == kind
