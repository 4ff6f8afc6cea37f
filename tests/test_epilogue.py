"""Epilogues in every kernel that applies them: the same numbers as NumPy's, on both backends, whatever lies where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from epilogue_cases import CASES, EVERYTHING, Case, bind, value_of
from ladder_cases import product

from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.checked import check
from tilewright.dtypes import BF16, FP32
from tilewright.epilogue.code import PLAIN, ArgSpec, ArrayValue, BoundEpilogue, EpilogueCode, Value
from tilewright.errors import UsageError
from tilewright.ladder import rung
from tilewright.problem import Problem
from tilewright.run import prepare, run

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
@pytest.mark.parametrize("shift", [0, 1])
def test_results_are_those_of_numpy(backend: Backend, case: Case, shift: int) -> None:
    m, n, _ = case.shape
    operands, bound = case.operands(backend), bind(backend, m, n, shift=shift)
    assert bound.epilogue.compiled.aligned == (shift == 0)
    run(backend, case.kernel, operands, case.plan, epilogue=bound.epilogue)
    a, b = (backend.download(each).astype(np.float32) for each in (operands.a, operands.b))
    c, before = bound.expected(a @ b)
    np.testing.assert_array_equal(backend.download(operands.c), c.astype(operands.c.dtype.numpy))
    np.testing.assert_array_equal(backend.download(bound.before), before.astype(BF16.numpy))
    assert backend.padding_intact(operands.c)


OTHER = [case for case in CASES if case.plan.c_dtype not in (case.plan.dtype, FP32)]


@pytest.mark.parametrize("case", OTHER, ids=lambda case: case.name)
def test_c_of_the_other_type_of_16_bits(backend: Backend, case: Case) -> None:
    problem = Problem(*case.shape, case.plan.dtype, case.plan.c_dtype, case.plan.a_layout, case.plan.b_layout)
    product(backend, case.kernel, problem.padded(), case.plan)


@each_case
def test_nothing_races_and_nothing_is_read_past_its_end(emulator: EmulatorBackend, case: Case) -> None:
    m, n, _ = case.shape
    assert check(emulator, case.kernel, case.plan, case.operands(emulator), bind(emulator, m, n, shift=1).epilogue)


@pytest.mark.parametrize("case", CASES[1::3], ids=lambda case: case.name)
def test_c_may_be_read_where_it_is_written(backend: Backend, case: Case) -> None:
    m, n, _ = case.shape
    text = """namespace epilogue {
constexpr bool NONE = false;
struct Args { tw::EpilogueArray<plan::Out> c; };
template <int N> __device__ __forceinline__ void apply(float (&acc)[N], const Args& args, const tw::Place& at) {
  float x0[N];
  tw::epilogue_read<tw::Along::kFull>(x0, args.c, at);
#pragma unroll
  for (int i = 0; i < N; ++i) acc[i] = tw::add(acc[i], x0[i]);
}
}  // namespace epilogue
"""
    operands = case.operands(backend)
    old = np.arange(m * n).reshape(m, n) % 7 - 3
    c = backend.upload(old.astype(operands.c.dtype.numpy), operands.c.ld)
    code = EpilogueCode(text, (ArgSpec("c", "array", c.dtype),))
    run(backend, case.kernel, replace(operands, c=c), case.plan, epilogue=BoundEpilogue(code, {"c": value_of(c)}))
    a, b = (backend.download(each).astype(np.float32) for each in (operands.a, operands.b))
    np.testing.assert_array_equal(backend.download(c), (a @ b + old.astype(np.float32)).astype(c.dtype.numpy))


# ---- the code and its arguments --------------------------------------------------------------------------------------


def test_the_plain_text_is_that_of_no_epilogue(emulator: EmulatorBackend) -> None:
    case = CASES[0]
    assert case.kernel.source(case.plan, "host", None, PLAIN) == case.kernel.source(case.plan, "host")
    assert BoundEpilogue().argument(3, 4).data == b"\0"
    with_text = case.kernel.source(case.plan, "host", None, EVERYTHING).text
    assert '#line 1 "epilogue"\nnamespace epilogue {' in with_text
    assert "struct Args {};" not in with_text


def test_what_tells_codes_apart() -> None:
    spec = ArgSpec("x", "array", BF16)
    codes = [
        EpilogueCode("a"), EpilogueCode("b"), EpilogueCode("a", (spec,)), EpilogueCode("a", (), (spec,)),
        EpilogueCode("a", (ArgSpec("x", "array", FP32),)), EpilogueCode("a", (spec,), aligned=True),
    ]  # fmt: skip
    assert len({code.digest for code in codes}) == len(codes)
    assert EpilogueCode("a", (spec,)).digest == codes[2].digest


def test_arguments_are_packed_as_the_kernel_reads_them() -> None:
    code = EpilogueCode("", (ArgSpec("s", "scalar", FP32), ArgSpec("x", "array", BF16)), (ArgSpec("y", "array", FP32),))
    values: dict[str, Value] = {"y": ArrayValue(64, 8, 1), "x": ArrayValue(2**40, -3, 2**33, (4, 0, -5)), "s": 1e39}
    fields = np.frombuffer(code.pack(values), "<i8")
    assert fields[1:].tolist() == [2**40, -3, 2**33, 4, 0, -5, 64, 8, 1, 0, 0, 0]
    assert np.frombuffer(code.pack({**values, "s": 0.3}), "<f4")[:2].tolist() == [np.float32(0.3), 0]
    assert np.frombuffer(code.pack(values), "<f4")[0] == np.inf


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"s": 1.0}, "is given s; it takes s, x"),
        ({"s": 1.0, "x": ArrayValue(0, 1, 1), "z": 2.0}, "is given s, x, z; it takes s, x"),
        ({"s": ArrayValue(0, 1, 1), "x": ArrayValue(0, 1, 1)}, "s of the epilogue is ArrayValue.*must be a number"),
        (
            {"s": 1.0, "x": ArrayValue(65, 1, 1)},
            "x of the epilogue lies at 0x41; an array of bf16 lies at a multiple of 2",
        ),
        ({"s": 1.0, "x": 2.0}, "x of the epilogue is 2.0; it must be an ArrayValue"),
    ],
)
def test_values_that_do_not_fit(values: Any, says: str) -> None:
    code = EpilogueCode("", (ArgSpec("s", "scalar", FP32), ArgSpec("x", "array", BF16)))
    for given in (code.pack, lambda values: BoundEpilogue(code, values)):
        with pytest.raises(UsageError, match=says):
            given(values)


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (ArrayValue(64, 8, 1), [64 + 16 * i for i in range(3)]),
        (ArrayValue(64, 1, 8), [64 + 16 * i for i in range(5)]),
        (ArrayValue(64, 0, 1), [64]),
        (ArrayValue(64, 7, 0), [64, 78, 92]),
        (ArrayValue(64, 0, 0), [64]),
        (ArrayValue(64, 9, 2), [64]),
        (ArrayValue(64, -8, 1), [32]),
    ],
)
def test_what_is_seen_of_an_array(value: ArrayValue, lines: list[int]) -> None:
    seen = value.seen(BF16, 3, 5)
    size = 2 * seen.line
    assert [seen.pointer + 2 * i * seen.ld for i in range(seen.lines)] == lines
    starts = {value.pointer + 2 * (i * value.row + j * value.col) for i in range(3) for j in range(5)}
    assert all(any(line <= start < line + size for line in lines) for start in starts)
    assert value.seen(BF16, 0, 5).span == 0


@pytest.mark.parametrize(
    ("value", "aligned"),
    [
        (ArrayValue(64, 8, 1), True),
        (ArrayValue(64, 9, 1), False),
        (ArrayValue(66, 8, 1), False),
        (ArrayValue(64, 8, 1, (0, 12, 0)), False),
        (ArrayValue(64, 0, 1), True),
        (ArrayValue(66, 9, 0), True),
        (ArrayValue(66, 1, 9), True),
    ],
)
def test_wide_accesses_are_compiled_in_where_all_arrays_allow_them(value: ArrayValue, aligned: bool) -> None:
    code = EpilogueCode("", (ArgSpec("x", "array", BF16), ArgSpec("y", "array", FP32)))
    bound = BoundEpilogue(code, {"x": value, "y": ArrayValue(32, 4, 1)})
    assert bound.compiled == replace(code, aligned=aligned)
    assert not BoundEpilogue().compiled.aligned
    assert "ALIGNED = true" in replace(code, aligned=True).header()


def test_kernels_that_apply_none(emulator: EmulatorBackend) -> None:
    plain, other = rung(6), CASES[1]
    operands = other.operands(emulator)
    bound = bind(emulator, *other.shape[:2]).epilogue
    with pytest.raises(UsageError, match=r"06_wgmma\.cu applies no epilogue"):
        prepare(emulator, plain, plain.plan(BF16), operands, epilogue=bound)


def test_arrays_that_others_overwrite(emulator: EmulatorBackend) -> None:
    case = CASES[0]
    m, n, _ = case.shape
    operands, bound = case.operands(emulator), bind(emulator, m, n)
    c, before = operands.c, bound.epilogue.values["before"]
    assert isinstance(before, ArrayValue)
    for changes, says in (
        ({"before": ArrayValue(operands.a.pointer, 8, 1)}, "before of the epilogue shares memory with A"),
        ({"before": ArrayValue(c.pointer, c.ld, 1)}, "before of the epilogue shares memory with C"),
        ({"residual": ArrayValue(c.pointer, c.ld + 1, 1)}, "residual of the epilogue shares memory with C"),
        ({"before": replace(before, row=0)}, "before of the epilogue has strides 0 and 1; an output has an element"),
    ):
        values = {**bound.epilogue.values, **changes}
        with pytest.raises(UsageError, match=says):
            prepare(emulator, case.kernel, case.plan, operands, epilogue=BoundEpilogue(EVERYTHING, values))
