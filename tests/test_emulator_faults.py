"""Each detector finds the kernel that was broken for it, and nothing in its corrected twin."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from observed import KERNELS, Call, Product, kernel_source, product

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.dtypes import BF16, FP32, DType
from tilewright.errors import EmulatorFault
from tilewright.ladder import rungs
from tilewright.problem import Problem

TILE = 16
SHARED = {"cp_async_no_barrier": 1024, "missing_syncwarp": 512, "misaligned_vector": 0}
RACES = {  # kernel: what its report says, and what stands in the source lines of the two parties
    "missing_barrier_before_read": ("write-then-read race", r"s\.[ab]\[ty\]\[tx\] =", r"tw::ffma"),
    "missing_barrier_after_read": ("read-then-overwrite race", r"tw::ffma", r"s\.[ab]\[ty\]\[tx\] ="),
    "missing_syncwarp": ("read-then-overwrite race", r"acc \+ s\.part", r"s\.part\[ty / 2\]\[tx\] = acc"),
    "cp_async_no_wait": ("write-then-read race at shared+", r"tw::cp_async<4>", r"tw::ffma"),
    "cp_async_no_commit": ("write-then-read race", r"tw::cp_async<4>", r"tw::ffma"),
    "cp_async_no_barrier": ("write-then-read race", r"tw::cp_async<4>", r"s\.b\[kk\]"),
    "cp_async_overwrites": ("read-then-overwrite race", r"tw::ffma", r"tw::cp_async<4>"),
}
ALL = sorted(path.stem for path in (KERNELS / "broken").glob("*.cu"))


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Every compiler found here."""
    found: HostCompiler = request.param
    return found


@pytest.fixture
def emulator(compiler: HostCompiler) -> EmulatorBackend:
    return EmulatorBackend(compiler=compiler)


def call(name: str, operands: Product, *, broken: bool, blocks: list[int] | None = None) -> Call:
    shared_bytes = SHARED.get(name, 2 * TILE * TILE * 4)
    source = kernel_source(
        f"broken/{name}.cu", TILE=TILE, BROKEN=int(broken), THREADS=TILE * TILE, SHARED_BYTES=shared_bytes
    )
    tiles = -(-operands.c.rows // TILE) * -(-operands.c.cols // TILE)
    return Call(source, (tiles, 1, 1), (TILE * TILE, 1, 1), operands.args, shared_bytes, blocks)


def lines_named(fault: EmulatorFault, name: str) -> list[str]:
    """The source lines that a report names, in its order."""
    text = (KERNELS / "broken" / f"{name}.cu").read_text().splitlines()
    return [text[int(number) - 1] for number in re.findall(rf"{name}\.cu:(\d+)", fault.detail)]


@pytest.mark.parametrize("name", ALL)
def test_corrected_twin_is_clean(emulator: EmulatorBackend, name: str) -> None:
    operands = product(emulator, 20, 24, 40, padding=4)
    twin = call(name, operands, broken=False)
    check_bounds(emulator, *twin)
    check_races(emulator, *twin)
    np.testing.assert_allclose(emulator.download(operands.c), operands.expected(emulator), atol=1e-4)
    assert emulator.padding_intact(operands.c)


@pytest.mark.parametrize("name", RACES)
def test_race_is_named(emulator: EmulatorBackend, name: str) -> None:
    says, first, second = RACES[name]
    with pytest.raises(EmulatorFault, match=re.escape(says)) as caught:
        check_races(emulator, *call(name, product(emulator, 32, 32, 64), broken=True))
    assert caught.value.kind == "race"
    finding = next(line for line in caught.value.detail.splitlines() if says in line)
    parties = lines_named(EmulatorFault("race", finding), name)
    assert re.search(first, parties[0]), finding
    assert re.search(second, parties[1]), finding
    assert ("a cp.async of thread" in finding) == name.startswith("cp_async"), finding


def test_missing_write_is_an_uninitialised_read(emulator: EmulatorBackend) -> None:
    with pytest.raises(EmulatorFault, match=r"shared\+(19[89]\d|20[0-4]\d) is read but nobody wrote it") as caught:
        check_races(emulator, *call("uninitialised_tile", product(emulator, 16, 16, 16), broken=True))
    assert caught.value.kind == "uninitialised"
    assert "tw::ffma" in lines_named(caught.value, "uninitialised_tile")[0]


@pytest.mark.parametrize(
    ("name", "padding", "says"),
    [
        ("read_past_row_end", 3, r"read of 4 bytes at .*matrix 0 .*row \d+, column 19"),
        ("read_past_row_end", 0, "read of 4 bytes at .*0 bytes past the end of matrix 0 "),
        ("store_into_padding", 3, r"write of 4 bytes at .*matrix 2 .*row \d+, column 21"),
        ("shared_overflow", 0, r"write of 4 bytes at .*shared\+2048 of block rank 0, which has 2048 shared bytes"),
    ],
)
def test_exact_bounds(emulator: EmulatorBackend, name: str, padding: int, says: str) -> None:
    # 17 x 19 floats end 4 bytes before a 16-byte boundary: what lies behind is memory that nothing protects.
    operands = product(emulator, 17, 21, 19, padding=padding)
    with pytest.raises(EmulatorFault, match=says) as caught:
        check_bounds(emulator, *call(name, operands, broken=True))
    assert caught.value.kind == "out-of-bounds"
    assert re.search(r"\[block \d+,0,0 thread \d+\]", caught.value.detail)
    assert re.search(r"\ba\[row|\bc\[row|s\.b\[0\]", lines_named(caught.value, name)[0])


def test_bounds_of_named_blocks_only(emulator: EmulatorBackend) -> None:
    operands = product(emulator, 32, 40, 16, padding=3)
    check_bounds(emulator, *call("store_into_padding", operands, broken=True, blocks=[0, 1, 3, 4]))
    with pytest.raises(EmulatorFault, match="block 5,0,0"):
        check_bounds(emulator, *call("store_into_padding", operands, broken=True, blocks=[0, 5]))


def test_misaligned_vector(emulator: EmulatorBackend) -> None:
    with pytest.raises(EmulatorFault, match=r"read of 16 bytes, not at a multiple of 16: .* matrix 1 ") as caught:
        check_bounds(emulator, *call("misaligned_vector", product(emulator, 16, 64, 8), broken=True))
    assert caught.value.kind == "misaligned"


@pytest.mark.parametrize("check", [check_bounds, check_races])
def test_divergent_barrier(emulator: EmulatorBackend, check: Callable[..., None]) -> None:
    with pytest.raises(EmulatorFault, match=r"__syncthreads.*of 256 threads arrived") as caught:
        check(emulator, *call("divergent_barrier", product(emulator, 16, 16, 16), broken=True))
    assert caught.value.kind == "deadlock"


@pytest.mark.parametrize("case", [0, 1, 2, 3, 4, 5, 100, 102, 103, 104, 105, 106])
def test_what_orders_memory(emulator: EmulatorBackend, case: int) -> None:
    source = kernel_source("observed/orders.cu", CASE=case, SHARED_BYTES=388)
    numbers = emulator.upload(np.arange(64, dtype=np.float32).reshape(1, 64))
    wanted = Call(source, (1, 1, 1), (64, 1, 1), [numbers, emulator.empty(1, 64, FP32)], 388)
    if case < 100:
        check_races(emulator, *wanted)
        return
    with pytest.raises(EmulatorFault) as caught:
        check_races(emulator, *wanted)
    assert caught.value.kind == "race"


def test_blocks_of_a_cluster_are_watched_apart(emulator: EmulatorBackend) -> None:
    operands = product(emulator, 32, 32, 32)
    check_races(emulator, *call("missing_barrier_after_read", operands, broken=False), cluster=2)
    with pytest.raises(EmulatorFault, match="race") as caught:
        check_races(emulator, *call("missing_barrier_after_read", operands, broken=True), cluster=2)
    assert "of block rank" not in caught.value.detail  # both blocks do it; the first is named
    assert len(caught.value.detail.splitlines()) <= 5  # a finding a pair of lines, not one an unrolled copy


def test_observers_of_threads_do_not_mix(emulator: EmulatorBackend) -> None:
    operands = [product(emulator, 32, 32, 32) for _ in range(4)]
    names = ["missing_barrier_before_read", "missing_barrier_after_read"] * 2

    def found(index: int) -> str:
        try:
            check_races(emulator, *call(names[index], operands[index], broken=index >= 2))
        except EmulatorFault as fault:
            return fault.detail
        return ""

    with ThreadPoolExecutor(4) as pool:
        details = list(pool.map(found, range(4)))
    assert details[:2] == ["", ""]
    assert all(names[i] in details[i] for i in (2, 3))


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("number", range(5))
def test_ladder_is_clean(emulator: EmulatorBackend, number: int, dtype: DType) -> None:
    rung = rungs()[number]
    plan = rung.plan(dtype, aligned=False)
    problem = Problem(130, 131, 33, dtype)
    operands = product(emulator, 130, 131, 33, dtype=dtype, padding=3)
    blocks = plan.edge_blocks(problem)[-2:]
    corner = Call(rung.source(plan, "host"), plan.grid(problem), plan.block, operands.args, plan.shared_bytes, blocks)
    check_bounds(emulator, *corner)
    check_races(emulator, *corner)
