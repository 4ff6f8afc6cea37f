"""``matmul`` at its edges, in the emulator: further results of any layout, vectors beside vectors, odd arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matmul_cases import Array, Exported, exact, integers, same

import tilewright
from tilewright import BF16, FP16, FP32, Matmul, UnavailableError, UsageError, explain, matmul
from tilewright.backends import cuda_errors

E: dict[str, Any] = {"backend": "emulator"}


@pytest.mark.parametrize("first", ["row", "column"])
@pytest.mark.parametrize("second", ["row", "column", "apart"])
def test_each_result_has_a_layout_of_its_own(first: str, second: str) -> None:
    a, b = integers(1, (5, 7), FP32), integers(2, (7, 6), FP32)

    def room(layout: str) -> Array:
        whole = np.zeros((6, 5) if layout == "column" else (5, 12), np.float32)
        return whole.T if layout == "column" else whole[:, ::2] if layout == "apart" else whole[:, :6]

    out = room(first), room(second)
    matmul(a, b, out=out, epilogue=lambda acc: (acc, acc * 2), **E)
    wanted = exact(a, b, FP32)
    same(out[0], wanted)
    same(out[1], wanted * 2)
    if second == "apart":
        assert out[1].base is not None
        assert not out[1].base[:, 1::2].any()


@pytest.mark.parametrize("shape", [(5,), (1,), (3, 1), (3, 5)])
@pytest.mark.parametrize("name", ["c", "x"])
def test_what_is_broadcast_to_the_result_of_a_vector(name: str, shape: tuple[int, ...]) -> None:
    a, v, more = integers(1, (3, 5, 7), FP32), integers(2, (7,), FP32), integers(3, shape, FP32)
    options: dict[str, Any] = {"c": more, "beta": 1} if name == "c" else {
        "epilogue": lambda acc, x: acc + x, "args": {"x": more}
    }  # fmt: skip
    same(matmul(a, v, **options, **E), exact(a, v, FP32) + more)


def test_what_is_broadcast_to_the_result_of_a_vector_in_front() -> None:
    v, b = integers(1, (7,), FP32), integers(2, (2, 3, 7, 6), FP32)
    for shape in ((6,), (3, 6), (3, 1), (2, 1, 6)):
        c = integers(3, shape, FP32)
        same(matmul(v, b, c=c, beta=1, **E), exact(v, b, FP32) + c)
    bias = integers(4, (3, 5, 1), FP32)[..., 0]
    a = integers(5, (3, 5, 7), FP32)
    same(matmul(a, v, bias=bias, **E), exact(a, v, FP32) + bias)
    same(matmul(a, v, bias=bias[0], **E), exact(a, v, FP32) + bias[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plan": {"of": "rung 5"}}, "plan is a dict; it must be a Plan"),
        ({"sms": [1]}, r"sms is \[1\]; it must be a number of SMs"),
        ({"out_dtype": ("fp32", "fp16")}, "out_dtype has 2 dtypes and the product is the only result"),
        ({"out": np.zeros((24, 16), np.float16), "out_dtype": ("fp16", "fp16")}, "out_dtype has 2 dtypes and out 1"),
        ({"out": [np.zeros((24, 16), np.float16)] * 2}, "out has 2 arrays and the call 1 results"),
        ({"bias": np.ma.masked_array(np.zeros(16, np.float16))}, "bias has a mask, which no kernel knows"),
    ],
)
def test_odd_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    a, b = integers(1, (24, 40), FP16), integers(2, (40, 16), FP16)
    for call in (matmul, explain, Matmul):
        with pytest.raises(UsageError, match=message):
            found = call(a, b, **{**E, **options})
            if isinstance(found, Matmul):
                found.execute()


def test_numbers_beyond_those_of_floats_are_infinite() -> None:
    a, b = integers(1, (24, 40), FP32) + 10, integers(2, (40, 16), FP32) + 10
    assert (matmul(a, b, alpha=10**400, **E) == np.inf).all()
    assert (matmul(a, b, epilogue=lambda acc, s: acc * s, args={"s": -(10**400)}, **E) == -np.inf).all()


def test_arrays_by_dlpack_in_host_memory() -> None:
    a, b = integers(1, (24, 40), FP32), integers(2, (40, 16), FP32)
    same(matmul(Exported(a), Exported(b), **E), exact(a, b, FP32))
    with pytest.raises(UsageError, match=r"a is a \w+.Exported and b a numpy.ndarray"):
        matmul(Exported(a), b, **E)
    with pytest.raises(UsageError, match=r"a is a \w+.Exported in host memory"):
        matmul(Exported(a), Exported(b))
    with pytest.raises(UsageError, match=r"a of type \w+.Exported cannot be used"):
        matmul(Exported(integers(1, (24, 40), BF16)), Exported(b), **E)
    raw = np.zeros(24 * 40 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(24, 40)
    with pytest.raises(UsageError, match="an array of fp32 lies at a multiple of 4"):
        matmul(Exported(raw), Exported(b), **E)


def test_an_array_that_says_it_lies_on_a_gpu_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Said:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"shape": (4, 4), "typestr": "<f4", "data": (4096, False), "version": 3}

    monkeypatch.setattr(cuda_errors, "cuda_unavailable_reason", lambda: "no driver")
    with pytest.raises(UnavailableError, match=r"lies on a GPU, and there is none \(no driver\)"):
        matmul(Said(), Said())


def test_nothing_is_packed_of_an_operand_without_elements() -> None:
    a, b, c = np.zeros((8, 0), np.float32), np.zeros((0, 1), np.float32), integers(1, (8, 1), FP32)
    same(matmul(a, b, c=c, beta=2, batch_invariant=True, **E), 2 * c)
    plan = tilewright.plan(8, 12, 16, dtype="fp32", layout="cr").pick.plan
    same(matmul(a, np.zeros((0, 12), np.float32), plan=plan, **E), np.zeros((8, 12), np.float32))
