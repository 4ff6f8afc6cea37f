"""Packing: any strides of any sign, in any layout, come out as tight lines, and nothing else is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ladder_cases import vast
from sass_cases import instructions

from tilewright.backends.base import Backend, Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import EmulatorFault, UsageError
from tilewright.ladder import rung
from tilewright.library.pack import PackPlan, Strided, plan_for, predicted_us, prepare, tight
from tilewright.planner.plan import machine_of
from tilewright.problem import Layout
from tilewright.run import Launch, Operands, run

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int, int, int]
LAYOUTS: tuple[Layout, Layout] = ("row", "column")
GAP = 5  # elements before the array that belong to nobody, so that it starts anywhere


def placed(backend: Backend, dtype: DType, shape: Shape, steps: Shape) -> tuple[Strided, Array]:
    """An array of random bits with such strides in a backend's memory, as small as holds it, and the same in NumPy."""
    reach = [step * (size - 1) for size, step in zip(shape, steps, strict=True)]
    first = GAP - sum(min(each, 0) for each in reach)
    length = first + sum(max(each, 0) for each in reach) + 1
    bits = np.random.default_rng(length).integers(0, 256, length * dtype.itemsize, np.uint8)
    memory = bits.view(dtype.numpy).reshape(1, -1)
    there = backend.upload(memory)
    array = Strided(
        there.pointer + first * dtype.itemsize, shape[3], shape[4], steps[3], steps[4], dtype, shape[:3], steps[:3],
        there.owner,
    )  # fmt: skip
    strides = [step * dtype.itemsize for step in steps]
    return array, np.lib.stride_tricks.as_strided(memory[0, first:], shape, strides)


def made(backend: Backend, array: Strided, layout: Layout) -> tuple[Launch, Array, Matrix]:
    """The launch, and the copy as words of the element's size, lines with their padding, once it has been launched."""
    copy = tight(array, layout)
    elements = copy.nbytes // copy.dtype.itemsize
    memory = backend.empty(1, elements + 8, array.dtype)
    launch, found = prepare(backend, array, layout, memory)
    assert found == copy
    launch(backend)
    word = np.uint32 if array.dtype.itemsize == 4 else np.uint16
    words = backend.download(memory).view(word)[0]
    poison = backend.download(backend.empty(1, 1, array.dtype)).view(word)[0, 0]
    np.testing.assert_array_equal(words[elements:], poison, err_msg="what lies behind the copy")
    return launch, words[:elements].reshape(copy.matrices, copy.lines, copy.ld), memory


def check_copy(backend: Backend, dtype: DType, shape: Shape, steps: Shape, layout: Layout) -> None:
    array, seen = placed(backend, dtype, shape, steps)
    copy = tight(array, layout)
    _, lines, _ = made(backend, array, layout)
    assert copy.ld * dtype.itemsize % 16 == 0
    np.testing.assert_array_equal(lines[:, :, copy.length :], 0)
    flat = lines.reshape(-1)
    apart = (copy.ld, 1) if layout == "row" else (1, copy.ld)
    strides = [step * flat.itemsize for step in (*copy.steps, *apart)]
    found = np.lib.stride_tricks.as_strided(flat, shape, strides)
    np.testing.assert_array_equal(found, seen.view(flat.dtype) if seen.ndim == 0 else np.array(seen).view(flat.dtype))
    assert copy.matrices == np.prod([size if step else 1 for size, step in zip(shape[:3], steps[:3], strict=True)])


CASES: list[tuple[Shape, Shape]] = [
    ((1, 1, 1, 70, 130), (0, 0, 0, 131, 1)),  # lines off 16-byte boundaries
    ((1, 1, 1, 130, 70), (0, 0, 0, 1, 133)),
    ((1, 1, 1, 65, 67), (0, 0, 0, 200, 3)),  # no axis is contiguous
    ((1, 1, 1, 65, 67), (0, 0, 0, -70, -1)),  # backwards
    ((1, 1, 1, 65, 67), (0, 0, 0, 0, 1)),  # one row, again and again
    ((1, 1, 1, 30, 20), (0, 0, 0, 0, 0)),  # one element
    ((1, 1, 1, 40, 9), (0, 0, 0, 2, 1)),  # rows that overlap
    ((2, 3, 2, 5, 7), (210, 0, 35, 7, 1)),  # a batch, one dimension of it broadcast
    ((3, 2, 1, 1, 9), (-18, 9, 10**15, -(10**15), 1)),  # what a stride is where there is one place means nothing
    ((1, 1, 3, 66, 1), (0, 0, 66, 1, 77)),
]


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_strides(backend: Backend, dtype: DType, layout: Layout, case: tuple[Shape, Shape]) -> None:
    check_copy(backend, dtype, case[0], case[1], layout)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Shape, Shape]:
    shape = (*(draw(st.integers(1, 3)) for _ in range(3)), *(draw(st.integers(1, 80)) for _ in range(2)))
    step = st.one_of(st.sampled_from([0, 1, -1, 2]), st.integers(-100, 100))
    return shape, tuple(draw(step) for _ in range(5))  # type: ignore[return-value]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=arrays(), dtype=st.sampled_from([FP16, FP32]), layout=st.sampled_from(LAYOUTS))
def test_any_strides_in_the_emulator(emulator: Backend, case: Any, dtype: DType, layout: Layout) -> None:
    check_copy(emulator, dtype, case[0], case[1], layout)


@pytest.mark.cuda
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=arrays(), dtype=st.sampled_from([FP16, FP32]), layout=st.sampled_from(LAYOUTS))
def test_any_strides_on_a_gpu(cuda: Backend, case: Any, dtype: DType, layout: Layout) -> None:
    check_copy(cuda, dtype, case[0], case[1], layout)


@pytest.mark.cuda
def test_a_batch_of_many(cuda: Backend) -> None:
    check_copy(cuda, BF16, (70_000, 1, 2, 3, 2), (7, 0, 70_001 * 7, 2, 1), "column")


def test_steps_past_32_bits(backend: Backend) -> None:
    apart = 2**31 + 8
    far = vast(backend, 2, 20, FP32, apart)
    values = np.random.default_rng(0).standard_normal((2, 20)).astype(np.float32)
    run(backend, rung(0), Operands(backend.upload(values), backend.upload(np.eye(20, dtype=np.float32)), far))
    for array in (
        Strided(far.pointer, 2, 20, apart, 1, FP32, owner=far.owner),
        Strided(far.pointer, 1, 20, 0, 1, FP32, (1, 1, 2), (0, 0, apart), far.owner),
        Strided(far.pointer + 4 * apart, 2, 20, -apart, 1, FP32, owner=far.owner),
    ):
        _, lines, _ = made(backend, array, "row")
        np.testing.assert_array_equal(lines.reshape(2, 20).view(np.float32), values[:: -1 if array.row < 0 else 1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_without_elements_launches_nothing(backend: Backend, layout: Layout) -> None:
    for changes in ({"rows": 0}, {"cols": 0}, {"sizes": (1, 0, 2)}):
        array = replace(placed(backend, FP32, (1, 1, 1, 2, 3), (0, 0, 0, 3, 1))[0], **changes)
        launch, _ = prepare(backend, array, layout, backend.empty(1, 64, FP32))
        assert launch.grid[0] == 0


# ---- what no result shows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_no_races_and_no_access_out_of_bounds(dtype: DType, layout: Layout) -> None:
    emulator = EmulatorBackend("lazy")
    array, _ = placed(emulator, dtype, (1, 2, 1, 70, 75), (0, 75 * 70, 0, 75, 1))
    assert not check_launch(emulator, made(emulator, array, layout)[0])


def check_launch(emulator: EmulatorBackend, launch: Launch, right: str = "", wrong: str = "") -> str:
    """The kind of what is wrong with a launch, its kernel's text changed; nothing where all is well."""
    plan = PackPlan(launch.args[2].dtype.itemsize, "ACROSS = true" in launch.kernel.source.text)  # type: ignore[attr-defined]
    source = plan.source(emulator)
    assert right in source.text
    if right:
        source = replace(source, text=source.text.replace(right, wrong))
    try:
        blocks = list(range(launch.grid[0]))
        check_bounds(emulator, source, launch.grid, launch.block, launch.args, launch.shared_bytes, blocks)
        check_races(emulator, source, launch.grid, launch.block, launch.args, launch.shared_bytes, blocks[-2:])
    except EmulatorFault as fault:
        return fault.kind
    return ""


@pytest.mark.parametrize(
    ("right", "wrong", "kind"),
    [
        ("  __syncthreads();\n", "", "race"),
        ("mine = lane <", "mine = lane <=", "out-of-bounds"),
        ("at0 + at >= length", "at0 + at > length + V", "out-of-bounds"),
    ],
)  # fmt: skip
def test_a_broken_kernel_is_caught(right: str, wrong: str, kind: str) -> None:
    emulator = EmulatorBackend("lazy")
    array, _ = placed(emulator, FP32, (1, 1, 1, 20, 24), (0, 0, 0, 24, 1))
    launch = made(emulator, array, "row")[0]
    assert check_launch(emulator, launch) == ""
    assert check_launch(emulator, launch, right, wrong) == kind


def test_the_loads_of_a_thread_are_in_flight_together() -> None:
    plans = [PackPlan(size, across) for size in (2, 4) for across in (False, True)]
    for names in instructions([plan.source for plan in plans]):
        assert names[: names.index("STS")].count("LDG") >= 64 * 64 // 256 - 2


# ---- what is refused, and what it takes ------------------------------------------------------------------------------


def test_what_is_refused(backend: Backend) -> None:
    array, _ = placed(backend, FP32, (1, 1, 1, 4, 6), (0, 0, 0, 6, 1))
    memory = backend.empty(1, 64, FP32)
    with pytest.raises(UsageError, match=r"is 80 bytes in a row at .*must be a row of 128 on a 16-byte boundary"):
        prepare(backend, array, "row", replace(memory, cols=20))
    with pytest.raises(UsageError, match=r"must be a row of 96 on a 16-byte boundary"):
        prepare(backend, array, "column", replace(memory, pointer=memory.pointer + 4, cols=60))
    with pytest.raises(UsageError, match="would lie in the array that is packed"):
        prepare(backend, replace(array, pointer=memory.pointer + 8), "row", memory)
    with pytest.raises(UsageError, match="rows of the array to pack is -1"):
        replace(array, rows=-1)
    with pytest.raises(UsageError, match="sizes of the array to pack is 2147483648"):
        replace(array, sizes=(1, 2**31, 1))
    with pytest.raises(UsageError, match="packing takes 4194304000 blocks; a grid has at most"):
        plan_for(array, "row").blocks(tight(replace(array, sizes=(2**10, 4096, 1000), steps=(1, 1, 1)), "row"))


def test_a_predicted_time_grows_with_what_is_moved() -> None:
    machine, _ = machine_of("h200", None, None)
    rows = Strided(0, 4096, 4096, 4097, 1, BF16)
    us = predicted_us(rows, "row", machine)
    assert us > machine.calibration.launch_us + 2 * 4096 * 4096 * 2 / machine.calibration.hbm_read_bytes_per_s * 1e6 / 2
    apart = predicted_us(replace(rows, row=2**16, col=16), "row", machine)
    assert apart > 4 * us, "a sector for each element"
    assert predicted_us(replace(rows, sizes=(8, 1, 1)), "row", machine) == us, "a broadcast batch is packed once"
    assert predicted_us(replace(rows, sizes=(8, 1, 1), steps=(2**25, 0, 0)), "row", machine) > 6 * us
    assert predicted_us(replace(rows, rows=0), "row", machine) == 0
    one_block = predicted_us(replace(rows, rows=64, cols=64), "row", machine)
    assert one_block < us
