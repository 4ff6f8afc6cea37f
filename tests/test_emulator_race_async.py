"""Kernels with TMA and tensor cores, each broken in one way: what finds it, and what does not.

``tests/kernels/broken/async`` has a few small kernels. ``plan::FAULT`` picks what each does wrong, by the place of its
name in the kernel's ``enum Fault``; with ``NONE`` it is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from observed import KERNELS, kernel_source

from tilewright.backends.base import Dim3, Matrix, TensorMap
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_races
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.dtypes import BF16, FP32
from tilewright.errors import EmulatorFault

Array = np.ndarray[Any, Any]
FOLDER = KERNELS / "broken" / "async"
TILE_BYTES = 64 * 64 * 2


@dataclass(frozen=True)
class Launch:
    """What a kernel is launched with; ``expected`` is what ``result`` holds after a correct run."""

    block: Dim3
    args: list[Any]
    shared_bytes: int
    result: Matrix
    expected: Array
    grid: Dim3 = (1, 1, 1)
    cluster: int = 1


def integers(*shape: int) -> Array:
    """Small ones: their products and sums are exact in bf16."""
    return np.random.default_rng(sum(shape)).integers(-1, 2, shape).astype(BF16.numpy)


def product(emulator: EmulatorBackend, m: int, n: int, k: int) -> tuple[TensorMap, TensorMap, Array]:
    """K-major A and B in 64-wide boxes of all their rows, and their product."""
    a, b = integers(m, k), integers(n, k)
    maps = [TensorMap(emulator.upload(x), (64, min(len(x), 64))) for x in (a, b)]
    return maps[0], maps[1], a.astype(np.float32) @ b.astype(np.float32).T


def ring(emulator: EmulatorBackend) -> Launch:
    a, b, c = product(emulator, 64, 64, 5 * 64)
    out = emulator.empty(64, 64, BF16)
    return Launch((256, 1, 1), [a, b, np.int32(5 * 64), out], 4 * TILE_BYTES + 32, out, c)


def generic_operand(emulator: EmulatorBackend) -> Launch:
    a, b, c = product(emulator, 64, 64, 64)
    out = emulator.empty(64, 64, BF16)
    return Launch((128, 1, 1), [b, a.matrix, out], 2 * TILE_BYTES + 8, out, 2 * c)


def store(emulator: EmulatorBackend) -> Launch:
    image = integers(3 * 64, 64)
    out = emulator.empty(3 * 64, 64, BF16)
    args = [TensorMap(out, (64, 64)), emulator.upload(image), np.int32(3)]
    return Launch((128, 1, 1), args, TILE_BYTES, out, image)


def multicast(emulator: EmulatorBackend) -> Launch:
    a, b, c = product(emulator, 64, 128, 3 * 64)
    out = emulator.empty(64, 128, BF16)
    args = [a, b, np.int32(3 * 64), out]
    return Launch((128, 1, 1), args, 2 * TILE_BYTES + 16, out, c, (2, 1, 1), 2)


def remote_arrive(emulator: EmulatorBackend) -> Launch:
    out = emulator.empty(1, 32, FP32)
    return Launch((32, 1, 1), [out], 16, out, np.ones((1, 32)), (2, 1, 1), 2)


def remote_sum(emulator: EmulatorBackend) -> Launch:
    out = emulator.empty(1, 64, FP32)
    sent = sum(round * 64 + np.arange(64) for round in range(3))
    return Launch((32, 1, 1), [out], 2 * 512 + 16, out, np.roll(sent, 32)[None], (2, 1, 1), 2)


def ldmatrix_ring(emulator: EmulatorBackend) -> Launch:
    a, b, c = product(emulator, 16, 8, 3 * 64)
    out = emulator.empty(16, 8, FP32)
    return Launch((64, 1, 1), [a, b, np.int32(3 * 64), out], 24 * 128 + 16, out, c)


LAUNCHES: dict[str, Callable[[EmulatorBackend], Launch]] = {
    f.__name__: f for f in (ring, generic_operand, store, multicast, remote_arrive, remote_sum, ldmatrix_ring)
}


def faults_of(kernel: str) -> list[str]:
    """The names of its ``enum Fault``, in order."""
    names = re.search(r"enum Fault \{(.*?)\}", (FOLDER / f"{kernel}.cu").read_text(), re.S)
    assert names is not None
    return [name.strip() for name in names[1].split(",")]


def source(kernel: str, fault: str, launch: Launch) -> Any:
    return kernel_source(
        f"broken/async/{kernel}.cu", FAULT=faults_of(kernel).index(fault), SHARED_BYTES=launch.shared_bytes
    )


def outcome(kernel: str, fault: str, policy: Policy) -> str:
    """``"right"``, ``"wrong"``, or the kind of fault that ended the run."""
    emulator = EmulatorBackend(policy, seed=1)
    launch = LAUNCHES[kernel](emulator)
    compiled = emulator.compile(source(kernel, fault, launch))
    try:
        emulator.launch(compiled, launch.grid, launch.block, launch.args, launch.shared_bytes, cluster=launch.cluster)
    except EmulatorFault as ended:
        return ended.kind
    result = emulator.download(launch.result).astype(np.float32)
    return "right" if np.array_equal(result, launch.expected.astype(np.float32)) else "wrong"


def check(emulator: EmulatorBackend, kernel: str, fault: str) -> None:
    launch = LAUNCHES[kernel](emulator)
    check_races(
        emulator,
        source(kernel, fault, launch),
        launch.grid,
        launch.block,
        launch.args,
        launch.shared_bytes,
        cluster=launch.cluster,
    )


@dataclass(frozen=True)
class Race:
    """What the race detector says, and what stands in the source lines of the two parties."""

    says: str
    first: str
    second: str = ""  # an exit has no line


@dataclass(frozen=True)
class Case:
    """A broken kernel. ``runs`` are the policies under which a plain run shows it: by a wrong result or a fault."""

    kernel: str
    fault: str
    runs: tuple[Policy, ...]
    race: Race | None  # None: it is no race, and the checked run ends in the same fault

    def __str__(self) -> str:
        return f"{self.kernel}-{self.fault}"


def unfenced(access: str, first: str, second: str) -> Race:
    return Race(f"generic {access} not fenced for the async proxy", first, second)


INIT, ARRIVE, WGMMA = "mbarrier_init", "mbarrier_arrive", "tw::wgmma<"
LOAD_A, STMATRIX, STORE = "tma_load_2d(&s.stages[stage].a", "stmatrix_x4", "tma_store_2d"
SEND, READ_SLOT = "store_remote", "tw::load<4>"
WRITE_THEN_READ, OVERWRITE, WRITE_WRITE = "write-then-read race", "read-then-overwrite race", "write-write race"
BOTH: tuple[Policy, ...] = ("eager", "lazy")
CASES = [
    Case("ring", "NO_FULL_WAIT", BOTH, Race(OVERWRITE, WGMMA, LOAD_A)),
    Case("ring", "NO_EMPTY_WAIT", BOTH, Race(WRITE_WRITE, LOAD_A, LOAD_A)),
    Case("ring", "TOO_MANY_BYTES", BOTH, None),  # nobody gets any further
    Case("ring", "TOO_FEW_BYTES", BOTH, Race(WRITE_THEN_READ, "tma_load_2d(&s.stages[stage].b", WGMMA)),
    Case("ring", "READ_BEFORE_WAIT", ("lazy",), None),  # registers are no shared memory
    Case("ring", "RELEASED_TOO_EARLY", (), Race(OVERWRITE, WGMMA, LOAD_A)),
    Case("ring", "LOADS_TOO_MUCH", BOTH, None),
    Case("ring", "INITIALISED_TOO_LATE", (), Race(f"{WRITE_THEN_READ} at mbarrier", INIT, "mbarrier_wait(s.full")),
    Case("generic_operand", "NO_FENCE", (), unfenced("write", "tw::store<8>", WGMMA)),
    Case("generic_operand", "FENCE_BEFORE_WRITE", (), unfenced("write", "tw::store<8>", WGMMA)),
    Case("generic_operand", "ONE_THREAD_FENCES", (), unfenced("write", "tw::store<8>", WGMMA)),
    Case("generic_operand", "NO_BARRIER", ("eager",), Race(WRITE_THEN_READ, "tw::store<8>", WGMMA)),
    Case("generic_operand", "UNWRITTEN", BOTH, Race("is read but nobody wrote it", WGMMA, WGMMA)),
    Case("store", "NO_FENCE", (), unfenced("write", STMATRIX, STORE)),
    Case("store", "OVERWRITES", ("lazy",), Race(OVERWRITE, STORE, STMATRIX)),
    Case("store", "NO_BARRIER_AFTER_WAIT", BOTH, Race(OVERWRITE, STORE, STMATRIX)),
    Case("store", "NO_BARRIER_BEFORE_STORE", BOTH, Race(WRITE_THEN_READ, STMATRIX, STORE)),
    Case("store", "NO_WAIT_AT_EXIT", BOTH, None),
    Case("multicast", "PEER_NOT_READY", (), Race(f"{WRITE_THEN_READ} at mbarrier", INIT, "multicast(&s.a")),
    Case("multicast", "PEER_STILL_READS", (), Race(OVERWRITE, WGMMA, "multicast(&s.a")),
    Case("multicast", "LEAVES_EARLY", BOTH, None),
    Case("remote_arrive", "NO_CLUSTER_BARRIER", (), Race(f"{WRITE_THEN_READ} at mbarrier", INIT, ARRIVE)),
    Case("remote_arrive", "ORDINARY_WRITE", (), Race(f"{WRITE_WRITE} at mbarrier", "mbarrier_wait", "s.come.state")),
    Case("remote_arrive", "UNSEEN_AT_EXIT", (), Race("traffic in flight at exit: mbarrier", "(s.go, 0)")),
    Case("remote_sum", "PEER_NOT_READY", BOTH, None),
    Case("remote_sum", "ONE_SET", BOTH, Race(OVERWRITE, READ_SLOT, SEND)),
    Case("remote_sum", "ARRIVES_TOO_EARLY", (), Race(WRITE_THEN_READ, SEND, READ_SLOT)),
    Case("remote_sum", "NO_SYNCWARP", (), Race(WRITE_THEN_READ, SEND, READ_SLOT)),
    Case("remote_sum", "READS_TOO_EARLY", BOTH, Race(WRITE_THEN_READ, SEND, READ_SLOT)),
    Case("remote_sum", "LEAVES_EARLY", BOTH, None),
    Case("remote_sum", "SENDS_ON", (), Race("traffic in flight at exit: shared", "SENDS_ON")),
    Case("remote_sum", "PAST_THE_END", BOTH, None),
    Case("ldmatrix_ring", "NO_FENCE", (), unfenced("read", "ldmatrix_x4", "tma_load_2d(&s.a")),
    Case("ldmatrix_ring", "NO_WAIT", BOTH, Race(WRITE_WRITE, "tma_load_2d(&s.a", "tma_load_2d(&s.a")),
]
CORRECT = [
    *((kernel, "NONE") for kernel in LAUNCHES),
    ("generic_operand", "READERS_FENCE"),  # where the fence stands between write and read does not matter
    ("ldmatrix_ring", "LANE_FENCES"),
    ("ldmatrix_ring", "LOADER_FENCES"),
]


def finding(case: Case, race: Race, found: EmulatorFault) -> str:
    """The first line of the report that says it."""
    matching = [line for line in found.detail.splitlines() if race.says in line and names(case, race, line)]
    assert matching, found.detail
    return matching[0]


def names(case: Case, race: Race, line: str) -> bool:
    """Whether a finding names the two source lines."""
    text = (FOLDER / f"{case.kernel}.cu").read_text().splitlines()
    lines = [text[int(number) - 1] for number in re.findall(rf"{case.kernel}\.cu:(\d+)", line)]
    return race.second in lines[-1] and race.first in lines[0]


def test_every_fault_is_tested() -> None:
    listed = {(case.kernel, case.fault) for case in CASES} | set(CORRECT)
    assert listed == {(kernel, fault) for kernel in LAUNCHES for fault in faults_of(kernel)}
    assert {path.stem for path in FOLDER.glob("*.cu")} == set(LAUNCHES)


@pytest.mark.parametrize(("kernel", "fault"), CORRECT)
@pytest.mark.parametrize("policy", POLICIES)
def test_correct_kernels_are_clean(policy: Policy, kernel: str, fault: str) -> None:
    assert outcome(kernel, fault, policy) == "right"
    check(EmulatorBackend(policy, seed=3), kernel, fault)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_a_plain_run_shows(case: Case) -> None:
    shown = [policy for policy in BOTH if outcome(case.kernel, case.fault, policy) != "right"]
    assert shown == list(case.runs)


@pytest.mark.parametrize("compiler", available_compilers(), ids=lambda c: c.kind)
@pytest.mark.parametrize("case", [case for case in CASES if case.race], ids=str)
def test_race_is_named(case: Case, compiler: HostCompiler) -> None:
    assert case.race is not None
    with pytest.raises(EmulatorFault) as caught:
        check(EmulatorBackend(compiler=compiler), case.kernel, case.fault)
    assert caught.value.kind == ("uninitialised" if case.fault == "UNWRITTEN" else "race")
    finding(case, case.race, caught.value)


@pytest.mark.parametrize("case", [case for case in CASES if not case.race and case.runs == BOTH], ids=str)
def test_fault_ends_the_checked_run(case: Case) -> None:
    with pytest.raises(EmulatorFault) as caught:
        check(EmulatorBackend(), case.kernel, case.fault)
    assert caught.value.kind == ("deadlock" if case.fault == "TOO_MANY_BYTES" else "misuse")


def test_an_early_look_at_accumulators_is_no_race() -> None:
    check(EmulatorBackend(), "ring", "READ_BEFORE_WAIT")  # of registers; that the run was late shows it


def test_parties_are_named_as_people_know_them() -> None:
    says = {
        ("multicast", "PEER_NOT_READY"): "a TMA load issued by thread 0 of block rank 1 used at",
        ("multicast", "PEER_STILL_READS"): "a wgmma of warp 0 read at",
        ("store", "OVERWRITES"): "a TMA store issued by thread 0 read at",
        ("remote_arrive", "NO_CLUSTER_BARRIER"): "thread 0 initialised at",
    }
    for (kernel, fault), words in says.items():
        with pytest.raises(EmulatorFault) as caught:
            check(EmulatorBackend(), kernel, fault)
        assert words in caught.value.detail


SHOWN = re.compile(r"`(\w+)` of\s\[\w+\.cu\]\(\.\./tests/kernels/broken/async/(\w+)\.cu\).*?```text\n(.*?)\n```", re.S)
REPORTS = SHOWN.findall((KERNELS.parents[1] / "docs/emulator.md").read_text("utf-8"))


def test_reports_in_the_docs_are_what_the_emulator_says() -> None:
    assert len(REPORTS) == 4
    for fault, kernel, shown in REPORTS:
        with pytest.raises(EmulatorFault) as caught:
            check(EmulatorBackend(), kernel, fault)
        assert str(caught.value) == shown
