"""Epilogues written by hand, with what they do in NumPy, and small plans of every kernel that applies one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ladder_cases import SMALL
from part_cases import small_plan

from tilewright.backends.base import Backend, Matrix
from tilewright.branches import LAYOUTS, kernel
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.epilogue.code import ArgSpec, ArrayValue, BoundEpilogue, EpilogueCode
from tilewright.kernel_file import KernelFile
from tilewright.ladder import rung
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_decode import GemvPlan, MmaPlan
from tilewright.plan_simt32 import TILES, Simt32Plan
from tilewright.plan_swapab import SwapAbPlan
from tilewright.problem import Problem
from tilewright.run import Operands, make_operands

Array = np.ndarray[Any, Any]

# One argument of every kind, and a second output: the value before the last step.
EVERYTHING = EpilogueCode(
    """namespace epilogue {
constexpr bool NONE = false;
struct Args {
  tw::EpilogueScalar scale;
  tw::EpilogueArray<tw::bf16> residual;
  tw::EpilogueArray<float> bias;
  tw::EpilogueArray<tw::fp16> gain;
  tw::EpilogueArray<float> lift;
  tw::EpilogueArray<tw::bf16> before;
};
template <int N> __device__ __forceinline__ void apply(float (&acc)[N], const Args& args, const tw::Place& at) {
  float x0[N], x1[N], x2[N], x3[N], y0[N];
  tw::epilogue_read<tw::Along::kFull>(x0, args.residual, at);
  tw::epilogue_read<tw::Along::kColumn>(x1, args.bias, at);
  tw::epilogue_read<tw::Along::kRow>(x2, args.gain, at);
  tw::epilogue_read<tw::Along::kStrided>(x3, args.lift, at);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float v0 = tw::add(tw::mul(acc[i], args.scale.value), x0[i]);
    const float v1 = tw::sub(tw::mul(v0, x2[i]), x1[i]);
    const float v2 = tw::div(v1, x3[i]);
    y0[i] = v2;
    acc[i] = v2 < 0.0f ? 0.0f : v2;
  }
  tw::epilogue_write(args.before, y0, at);
}
}  // namespace epilogue
""",
    (
        ArgSpec("scale", "scalar", FP32),
        ArgSpec("residual", "array", BF16),
        ArgSpec("bias", "array", FP32),
        ArgSpec("gain", "array", FP16),
        ArgSpec("lift", "array", FP32),
    ),
    (ArgSpec("before", "array", BF16),),
)
SCALE = 0.3


@dataclass(frozen=True)
class Bound:
    """``EVERYTHING`` bound to arrays, which are kept as NumPy has them, and the matrix of its output."""

    epilogue: BoundEpilogue
    arrays: dict[str, Array]
    before: Matrix

    def expected(self, acc: Array) -> tuple[Array, Array]:
        """C and the second output in fp32, of the sums in fp32."""
        given = {name: each.astype(np.float32) for name, each in self.arrays.items()}
        value = acc * np.float32(SCALE) + given["residual"]
        value = (value * given["gain"] - given["bias"]) / given["lift"]
        return np.where(value < 0, np.float32(0), value), value


def bind(backend: Backend, m: int, n: int, *, shift: int = 0, seed: int = 1) -> Bound:
    """``EVERYTHING`` on arrays of random values, which begin ``shift`` elements after 16-byte boundaries."""
    rng = np.random.default_rng(seed)

    def array(rows: int, cols: int, dtype: DType) -> Array:
        return rng.uniform(0.5, 4, (rows, cols)).astype(dtype.numpy)

    arrays = {
        "residual": array(m, n, BF16) * BF16.numpy.type(-8),
        "bias": array(1, n, FP32),
        "gain": array(m, 1, FP16),
        "lift": array(m, n, FP32),
    }
    placed = {
        name: shifted(backend, each, shift, "column" if name == "lift" else "row") for name, each in arrays.items()
    }
    before = part_of(backend.empty(m, n + shift, BF16, (n + 15) // 8 * 8 + shift), shift)
    values: dict[str, Any] = {name: value_of(each) for name, each in {**placed, "before": before}.items()}
    return Bound(BoundEpilogue(EVERYTHING, {**values, "scale": SCALE}), arrays, before)


def shifted(backend: Backend, array: Array, shift: int, layout: Any = "row") -> Matrix:
    """A copy of an array whose lines begin ``shift`` elements on, and are an odd number apart where it is not 0."""
    wide = np.zeros((array.shape[0], array.shape[1] + shift), array.dtype)
    wide[:, shift:] = array
    line = wide.shape[1] if layout == "row" else wide.shape[0]
    return part_of(backend.upload(wide, (line + 7) // 8 * 8 + shift, layout), shift)


def part_of(matrix: Matrix, col: int) -> Matrix:
    """A matrix without its first columns."""
    apart = 1 if matrix.layout == "row" else matrix.ld
    return replace(matrix, pointer=matrix.pointer + col * apart * matrix.dtype.itemsize, cols=matrix.cols - col)


def value_of(matrix: Matrix) -> ArrayValue:
    """A matrix as an epilogue's array; one of a row or a column is that of all."""
    row, col = (matrix.ld, 1) if matrix.layout == "row" else (1, matrix.ld)
    return ArrayValue(matrix.pointer, row if matrix.rows > 1 else 0, col if matrix.cols > 1 else 0, owner=matrix.owner)


@dataclass(frozen=True)
class Case:
    """A kernel with a small plan, and a size of which no part is a multiple of its tile's."""

    name: str
    kernel: KernelFile
    plan: Plan
    shape: tuple[int, int, int]

    def operands(self, backend: Backend, seed: int = 0) -> Operands:
        """Operands of small integers, whose sums fp32 holds, and a C of the plan's type full of NaN."""
        plan = self.plan
        problem = Problem(*self.shape, plan.dtype, plan.c_dtype, plan.a_layout, plan.b_layout).padded()
        return make_operands(backend, problem, *random_operands(problem, seed, "integers"))


def _ladder(number: int, dtype: DType = BF16, **changes: Any) -> tuple[KernelFile, Plan]:
    found = rung(number)
    return found, found.plan(dtype).with_(**{**SMALL[number], **changes})


def _swapab(dtype: DType = BF16, **changes: Any) -> tuple[KernelFile, Plan]:
    values = {"bm": 16, "bn": 64, "bk": 64, "stages": 2, "blocks": 2 * changes.get("cluster_k", 1)}
    plan = SwapAbPlan(dtype=dtype, a_layout=LAYOUTS[0], b_layout=LAYOUTS[1], **{**values, **changes})
    return kernel("swapab", "swap-ab"), plan


def _parts(branch: str, dtype: DType = BF16, **changes: Any) -> tuple[KernelFile, Plan]:
    return kernel(branch, {"splitk": "split-k", "streamk": "stream-k"}[branch]), small_plan(branch, dtype, **changes)


CASES = [
    Case(f"{name}-{out}", kernel, plan.storing(out), shape)
    for name, (kernel, plan), out, shape in (
        ("rung5", _ladder(5), FP32, (70, 75, 40)),
        ("rung11", _ladder(11), BF16, (70, 77, 40)),
        ("rung11", _ladder(11, FP16), FP32, (70, 77, 40)),
        ("simt", (kernel("simt", "fp32"), Simt32Plan(**TILES[-1])), FP32, (37, 75, 40)),
        ("simt", (kernel("simt", "fp32"), Simt32Plan(**TILES[-1])), BF16, (37, 75, 40)),
        ("gemv", (kernel("decode", "gemv"), GemvPlan(BF16, bm=2, rw=2, wk=2)), FP16, (3, 37, 72)),
        ("mma", (kernel("decode", "mma"), MmaPlan(FP16, wk=2)), BF16, (9, 37, 72)),
        ("swapab", _swapab(), FP16, (18, 70, 72)),
        ("swapab", _swapab(FP16, cluster_k=2), FP32, (18, 70, 136)),
        ("splitk", _parts("splitk", cluster_k=2), FP16, (70, 77, 392)),
        ("streamk", _parts("streamk", FP16), FP32, (70, 77, 200)),
    )
]
