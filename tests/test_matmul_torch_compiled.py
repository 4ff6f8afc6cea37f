"""``torch.compile`` of calls that no graph can hold. Skips without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tilewright
from tilewright import UsageError, matmul
from tilewright.library import hot

torch: Any = pytest.importorskip("torch")
testing: Any = pytest.importorskip("torch._dynamo.testing")

E: dict[str, Any] = {"backend": "emulator"}


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


A, B = torch.arange(32.0).reshape(4, 8), torch.arange(40.0).reshape(8, 5)
OTHERS: dict[str, Any] = {"epilogue": lambda acc: (acc * 1, acc), "out": torch.empty(4, 5)}


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_graph_cannot_hold_runs_beside_it(name: str) -> None:
    counter = testing.CompileCounter()

    @torch.compile(backend=counter)  # type: ignore[untyped-decorator,unused-ignore]
    def called(a: Any, b: Any) -> Any:
        found = matmul(a + 1, b, **{name: OTHERS[name]}, **E)
        return (found[0] if name == "epilogue" else found) * 2

    assert torch.equal(called(A, B), (A + 1) @ B * 2)
    assert counter.frame_count == 2, "what is before and what is after, nothing of the planner"


def test_a_function_made_within_what_is_compiled() -> None:
    @torch.compile(backend="eager")  # type: ignore[untyped-decorator,unused-ignore]
    def called(a: Any, b: Any) -> Any:
        with torch.no_grad():
            return matmul(a, b, epilogue=lambda acc: acc * 1, **E)

    assert torch.equal(called(A.clone().requires_grad_(), B), A @ B)


def test_a_matmul_within_what_is_compiled() -> None:
    with tilewright.Matmul(A, B, **E) as product:
        called = torch.compile(lambda a: product.execute(a) + 1, backend="eager")
        assert torch.equal(called(A), A @ B + 1)
        assert torch.equal(called(A.flip(0).contiguous()), A.flip(0) @ B + 1)


def test_a_repeated_call_within_what_is_compiled() -> None:
    """What ``execute`` looks at first, addresses, no graph can hold: it runs beside it."""
    a, out, starts = A.clone(), torch.empty(4, 5), []
    with tilewright.Matmul(a, B, out=out, stream=0, **E) as product:
        known: Any = SimpleNamespace(swapped=False, start=lambda pointers, on: starts.append((pointers, on)))
        product.execute()
        hot.recorded()  # by which PyTorch is known
        product._again = hot.again(known, a, B, out, (None, a.data_ptr(), B.data_ptr(), out.data_ptr()))
        called = torch.compile(lambda x: product.execute() + x, backend="eager")
        assert torch.equal(called(out), A @ B * 2)
        assert starts == [((a.data_ptr(), B.data_ptr(), out.data_ptr(), 0), 0)]


def test_errors_are_those_of_a_call() -> None:
    called: Any = torch.compile(lambda a: matmul(a, B, epilogue=lambda acc: acc * 1, **E), backend="eager")
    with pytest.raises(UsageError, match="epilogue is '<lambda>', which has no gradient here"):
        called(A.clone().requires_grad_())
    whole: Any = torch.compile(lambda a: matmul(a, B, sms=4, **E), backend="eager", fullgraph=True)
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match=r"torch\.ops\.tilewright takes a, b, c, .*fullgraph=True forbids"
    ):
        whole(A)


def test_autocast_is_part_of_the_graph() -> None:
    called: Any = torch.compile(lambda a: matmul(a, B, **E), backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = called(A)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, A.bfloat16() @ B.bfloat16())
