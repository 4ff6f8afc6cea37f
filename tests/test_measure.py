from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.backends.base import DeviceInfo, Dim3, Kernel, Matrix
from tilewright.dtypes import BF16, FP32, DType
from tilewright.errors import LaunchError, UsageError
from tilewright.measure import (
    AGAIN,
    SUSTAINED,
    Launch,
    Measurement,
    Rival,
    Schedule,
    Slot,
    Summary,
    Timing,
    graph_launches,
    measure,
    replays,
    rotation,
    round_order,
)
from tilewright.problem import Layout, Problem
from tilewright.rivals import operand_sets
from tilewright.source import KernelSource
from tilewright.telemetry import Snapshot, Telemetry, decode_throttle


@dataclass
class FakePrepared:
    launches: int
    method: str
    note: str
    which: Sequence[Launch]


class FakeTimer:
    """A clock that advances by what each launch says it costs, as if the GPU slowed down with use."""

    def __init__(self) -> None:
        self.slots: list[tuple[int, int]] = []
        self.prepared: list[int] = []
        self.heat = 1.0

    def prepare(self, launches: Sequence[Launch], count: int) -> FakePrepared:
        self.prepared.append(count)
        return FakePrepared(count, "graph", "", launches)

    def slot(self, prepared: FakePrepared, warm: int, timed: int, sample: Callable[[], None] | None = None) -> Slot:
        self.slots.append((warm, timed))
        cost: list[float] = []
        for launch in prepared.which:
            launch(cost)
        if sample is not None:
            self.heat *= 1.01
            sample()
        known = len(self.slots) % 2 == 0
        clock_mhz = 1500 / self.heat if known else None
        return Slot(self.heat * sum(cost) / len(cost), clock_mhz, "" if known else "not read")


def costs(name: str, us: float, sets: int = 3) -> Rival:
    return Rival(name, [lambda stream: stream.append(us)] * sets)


def breaks(name: str, after: int) -> Rival:
    calls = 0

    def launch(stream: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise LaunchError("illegal address\nand more")
        stream.append(5.0)

    return Rival(name, [launch])


QUICK = Schedule(slot_ms=10, rounds=4, graph_ms=1)


def test_ratios_are_of_one_round_and_so_survive_a_slowing_clock() -> None:
    timer = FakeTimer()
    result = measure([costs("base", 10), costs("twice as fast", 5)], timer, schedule=QUICK)
    ratio = result.ratio("twice as fast")
    assert ratio is not None
    assert ratio.median == pytest.approx(2, rel=0.02)
    base = result.timings["base"].time_us
    assert base is not None
    assert base.high > base.low
    assert len(result.timings["base"].samples_us) == 8, "the baseline runs twice a round"
    assert len(result.timings["twice as fast"].samples_us) == 4
    assert result.noise is not None
    assert 0.95 < result.noise.low <= result.noise.median <= result.noise.high < 1.05
    inverse = result.ratio("base", "twice as fast")
    assert inverse is not None
    assert inverse.median == pytest.approx(0.5, rel=0.02)


def test_rounds_are_left_out_once_there_are_enough() -> None:
    asked: list[int] = []

    def enough(found: Measurement) -> bool:
        asked.append(len(found.rounds))
        return len(found.rounds) == 3

    states = iter([Snapshot(power_w=float(number)) for number in range(1000)])
    result = measure([costs("base", 10)], FakeTimer(), schedule=QUICK, enough=enough, snapshot=lambda: next(states))
    assert asked == [1, 2, 3]
    assert len(result.rounds) == 3
    assert result.timings["base"].samples_us == [time for each in result.rounds for time in each.values()] != []
    assert result.after.power_w is not None
    assert result.after.power_w > len(result.timings["base"].snapshots), "read at the end"


def test_tflops_and_conditions() -> None:
    states = iter([Snapshot(sm_clock_mhz=clock, power_w=700.0) for clock in range(1000, 2000)])
    result = measure([costs("base", 10)], FakeTimer(), schedule=QUICK, snapshot=lambda: next(states))
    timing = result.timings["base"]
    assert timing.time_us is not None
    assert timing.tflops(2e9) == pytest.approx(2e9 / timing.time_us.median / 1e6)
    assert timing.power_w() == 700
    assert timing.clock_mhz() is not None
    assert result.before.sm_clock_mhz == 1000
    assert result.after.sm_clock_mhz == 1009


def test_a_rival_that_fails_leaves_the_others_their_figures() -> None:
    result = measure([costs("base", 10), breaks("late", 4), breaks("at once", 0)], FakeTimer(), schedule=QUICK)
    assert result.timings["at once"].error == "LaunchError: illegal address"
    assert result.timings["at once"].time_us is None
    assert result.timings["at once"].tflops(1e9) is None
    assert result.ratio("at once") is None
    assert result.timings["late"].error is not None
    assert 0 < len(result.timings["late"].samples_us) < 4
    assert result.ratio("late") is not None
    assert len(result.timings["base"].samples_us) == 8


def test_a_baseline_that_fails_leaves_no_ratios() -> None:
    result = measure([breaks("base", 0), costs("other", 10)], FakeTimer(), schedule=QUICK)
    assert result.ratio("other") is None
    assert result.noise is None
    assert len(result.timings["other"].samples_us) == 4


def test_progress_and_order() -> None:
    seen: list[str] = []
    measure(
        [costs("a", 1), costs("b", 1)],
        FakeTimer(),
        baseline="b",
        schedule=QUICK,
        progress=lambda name, slot, slots: seen.append(f"{name} {slot}/{slots}"),
    )
    assert len(seen) == 12
    assert sorted(s.split(" ")[0] for s in seen[:3]) == ["a", "b", "b"]
    assert [s.rsplit(" ")[-1] for s in seen] == [f"{i}/12" for i in range(12)]
    assert any(f"b{AGAIN} " in s for s in seen)


def test_a_known_time_takes_no_trial_and_a_short_slot_is_not_sampled() -> None:
    timer = FakeTimer()
    known = dataclasses.replace(costs("a", 10, sets=3), estimate_us=20.0)
    result = measure([known], timer, schedule=dataclasses.replace(QUICK, sampled=False))
    assert timer.prepared == [51], "50 launches of 20 us are 1 ms, rounded up to whole turns of 3 sets"
    assert len(timer.slots) == 2 * QUICK.rounds
    assert result.timings["a"].snapshots == []
    assert timer.heat == 1.0, "nobody looked at the GPU"


def test_graphs_are_long_enough_and_cover_the_sets_evenly() -> None:
    timer = FakeTimer()
    measure([costs("a", 10, sets=3)], timer, schedule=QUICK)
    assert timer.prepared == [3, 102], "100 launches of 10 us are 1 ms, rounded up to whole turns of 3 sets"


@pytest.mark.parametrize(
    ("rivals", "baseline"),
    [
        ([], None),
        ([costs("a", 1), costs("a", 1)], None),
        ([costs("a", 1)], "b"),
        ([costs("a", 1), costs("a (again)", 1)], None),
    ],
)
def test_bad_rivals(rivals: list[Rival], baseline: str | None) -> None:
    with pytest.raises(UsageError):
        measure(rivals, FakeTimer(), baseline=baseline)


def test_the_baseline_warms_the_card_up_and_leaves_no_figure() -> None:
    timer, cold = FakeTimer(), FakeTimer()
    schedule = dataclasses.replace(QUICK, warm_slots=3)
    warmed = measure([costs("a", 10), costs("b", 10)], timer, schedule=schedule, baseline="b")
    measure([costs("a", 10), costs("b", 10)], cold, schedule=QUICK, baseline="b")
    assert len(timer.slots) == len(cold.slots) + 3
    assert len(warmed.timings["b"].samples_us) == 8
    broken = measure([breaks("base", 4), costs("b", 10)], FakeTimer(), schedule=schedule)
    assert broken.timings["base"].error == "LaunchError: illegal address"
    assert broken.timings["base"].samples_us == []
    assert len(broken.timings["b"].samples_us) == 4


def test_sustained_reaches_the_power_limit_on_both_sides() -> None:
    assert SUSTAINED.slot_ms >= 250
    assert SUSTAINED.warm_fraction == 0.4
    assert SUSTAINED.rounds >= 5
    assert SUSTAINED.graph_ms >= 8
    assert SUSTAINED.warm_slots > 0
    text = str(SUSTAINED)
    assert text.startswith(
        "CUDA graph replays in 250 ms slots after 6 of the baseline, the first 40% untimed, 5 rounds"
    )


def test_clocks_of_the_slots_that_have_one() -> None:
    timing = measure([costs("base", 10)], FakeTimer(), schedule=QUICK).timings["base"]
    assert 0 < len(timing.clocks_mhz) < len(timing.samples_us)
    assert timing.clock_note == "not read"
    clock = timing.clock_mhz_in_kernel()
    assert clock is not None
    assert 1300 < clock < 1500
    assert Timing("nothing").clock_mhz_in_kernel() is None


@pytest.mark.parametrize(
    "values", [{"warm_slots": -1}, {"rounds": 0}, {"slot_ms": 0}, {"warm_fraction": 1.0}, {"graph_ms": -1}]
)
def test_bad_schedules(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not a way to measure"):
        Schedule(**values)


@given(st.lists(st.text(max_size=3), max_size=9, unique=True), st.integers(0, 99))
def test_orders_are_permutations_and_repeat(names: list[str], seed: int) -> None:
    order = round_order(names, seed, 1)
    assert sorted(order) == sorted(names)
    assert order == round_order(names, seed, 1)


def test_orders_differ_between_rounds() -> None:
    names = list("abcdef")
    assert len({tuple(round_order(names, 0, number)) for number in range(8)}) > 4


@given(st.floats(0, 1e7), st.integers(1, 600))
def test_launches_of_a_graph(estimate_us: float, sets: int) -> None:
    schedule = Schedule()
    count = graph_launches(estimate_us, sets, schedule)
    assert count % sets == 0
    assert count >= sets
    assert count < schedule.max_launches + sets
    assert count * estimate_us >= schedule.graph_ms * 1e3 * 0.999 or count >= schedule.max_launches


@given(st.floats(0, 1e7))
def test_replays_of_a_slot(replay_us: float) -> None:
    warm, timed = replays(replay_us, Schedule())
    assert warm >= 1
    assert timed >= 1
    if 1 < replay_us < 50e3:
        assert 250e3 * (1 - 1e-9) <= (warm + timed) * replay_us < 250e3 + replay_us * 1.01
        assert warm / (warm + timed) == pytest.approx(0.4, abs=0.15)


@given(st.integers(0, 2**34), st.sampled_from([50 * 2**20, 60 * 2**20]))
def test_rotation_leaves_the_cache_cold_or_says_so(bytes_per_set: int, l2_bytes: int) -> None:
    found = rotation(bytes_per_set, l2_bytes)
    assert 2 <= found.sets <= 512
    assert found.footprint_bytes == found.sets * bytes_per_set
    assert (found.policy == "cold") == (found.footprint_bytes > 2 * l2_bytes)
    assert found.label.startswith("L2-cold" if found.policy == "cold" else "L2-warm in part")


def test_rotation_when_warm_is_asked_for() -> None:
    found = rotation(2**20, 60 * 2**20, "warm")
    assert (found.sets, found.policy) == (1, "warm")


def test_summary() -> None:
    found = Summary.of([5.0, 1.0, 2.0, 3.0, 4.0])
    assert found.to_dict() == {"median": 3.0, "min": 1.0, "max": 5.0, "iqr": 2.0}
    assert Summary.of([7.0]).to_dict() == {"median": 7.0, "min": 7.0, "max": 7.0, "iqr": 0.0}
    with pytest.raises(UsageError):
        Summary.of([])


class HostBackend:
    """Just enough of a backend to make operands."""

    name = "host"

    def __init__(self) -> None:
        self.kept: dict[int, np.ndarray[Any, Any]] = {}

    def upload(self, array: np.ndarray[Any, Any], ld: int | None = None, layout: Layout = "row") -> Matrix:
        self.kept[len(self.kept)] = array
        rows, cols = array.shape
        dtype = FP32 if array.dtype == np.float32 else BF16
        return Matrix(len(self.kept) - 1, rows, cols, ld or cols, dtype, array, layout)

    def empty(self, rows: int, cols: int, dtype: DType, ld: int | None = None, layout: Layout = "row") -> Matrix:
        return self.upload(np.full((rows, cols), np.nan, dtype.numpy), ld)

    def device(self) -> DeviceInfo:
        raise NotImplementedError

    def download(self, matrix: Matrix) -> np.ndarray[Any, Any]:
        return self.kept[matrix.pointer]

    def padding_intact(self, matrix: Matrix) -> bool:
        raise NotImplementedError

    def compile(self, source: KernelSource) -> Kernel:
        raise NotImplementedError

    def launch(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        args: Sequence[Any],
        shared_bytes: int,
        *,
        cluster: int = 1,
        dependent: bool = False,
        stream: Any = None,
    ) -> None:
        raise NotImplementedError


def test_operand_sets_differ_and_follow_the_problem() -> None:
    backend = HostBackend()
    first, second = operand_sets(backend, Problem(3, 5, 7, BF16, lda=9), 2)
    assert (first.a.rows, first.a.cols, first.a.ld) == (3, 7, 9)
    assert (first.b.rows, first.b.cols) == (7, 5)
    assert (first.c.rows, first.c.cols) == (3, 5)
    assert not np.array_equal(backend.download(first.a), backend.download(second.a))
    assert np.isnan(backend.download(first.c).astype(np.float32)).all()


def test_operands_have_the_layouts_of_the_problem() -> None:
    (only,) = operand_sets(HostBackend(), Problem(3, 5, 7, BF16, a_layout="column", ldb=8), 1)
    assert [(x.layout, x.ld) for x in (only.a, only.b, only.c)] == [("column", 3), ("row", 8), ("row", 5)]


def test_telemetry_without_a_gpu_is_empty_and_with_one_is_not() -> None:
    telemetry = Telemetry()
    snapshot = telemetry.snapshot()
    if telemetry.present:
        assert snapshot.sm_clock_mhz is not None
        assert telemetry.driver_version()
    else:
        assert snapshot == Snapshot()
        assert telemetry.driver_version() is None
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot


def test_throttle_reasons() -> None:
    assert decode_throttle(0) == ()
    assert decode_throttle(0x4 | 0x40) == ("sw_power_cap", "hw_thermal")
    assert decode_throttle(0x1 | 0x1000) == ("gpu_idle", "0x1000")
    state = Snapshot(sm_clock_mhz=1980, throttle=("sw_power_cap",))
    assert Snapshot.from_dict(state.to_dict()) == state


def test_rotation_of_at_least_so_many_bytes() -> None:
    assert rotation(2**20, 2**20, least_bytes=200 * 2**20).sets == 201
    assert rotation(2**30, 2**20, least_bytes=200 * 2**20).sets == 2
