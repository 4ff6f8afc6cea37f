"""Calls that PyTorch has to see: forward mode, dispatch modes, transforms, autocast. Skips without PyTorch."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

import tilewright
from tilewright import UsageError, matmul
from tilewright.library import hot

torch: Any = pytest.importorskip("torch")
forward_ad: Any = pytest.importorskip("torch.autograd.forward_ad")

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # PyTorch's own

E: dict[str, Any] = {"backend": "emulator"}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def tensor(*shape: int) -> Any:
    """Small integers, so that sums are exact."""
    return torch.randint(-4, 5, shape).float()


@pytest.mark.parametrize("activation", [None, "silu"])
def test_tangents(activation: str | None) -> None:
    theirs: Any = {None: lambda x: x, "silu": torch.nn.functional.silu}
    ours = None if activation is None else getattr(tilewright, activation)
    given = [tensor(2, 3, 40) / 8, tensor(40, 16), tensor(16), tensor(3, 16)]
    tangents = [torch.randn(each.shape) for each in given]
    for which in ((0, 1, 2, 3), (0,), (1,), (2,), (3,)):
        with forward_ad.dual_level():
            pairs = enumerate(zip(given, tangents, strict=True))
            x, w, bias, c = (forward_ad.make_dual(x, t) if n in which else x for n, (x, t) in pairs)
            found = forward_ad.unpack_dual(matmul(x, w, bias=bias, c=c, alpha=0.5, beta=2, epilogue=ours, **E))
            wanted = forward_ad.unpack_dual(theirs[activation](0.5 * (x @ w) + 2 * c + bias))
            torch.testing.assert_close(tuple(found), tuple(wanted), rtol=1e-4, atol=1e-4)


def test_a_tangent_is_never_lost() -> None:
    x, w, t = tensor(24, 40), tensor(40, 16), tensor(24, 40)
    layer = tilewright.nn.Linear(40, 16, backend="emulator").requires_grad_(False)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        torch.testing.assert_close(forward_ad.unpack_dual(layer(dual)).tangent, t @ layer.weight.mT)
        with pytest.raises(UsageError, match="has a tangent, which the operation by itself would lose"):
            torch.ops.tilewright.matmul(dual, w, None, None, 1.0, 0.0, "none", None, "emulator")
        with pytest.raises(UsageError, match="epilogue is '<lambda>', which has no gradient here"):
            matmul(dual, w, epilogue=lambda acc: acc, **E)
        with tilewright.Matmul(dual, w, **E) as product, pytest.raises(UsageError, match="a Matmul does not give"):
            product.execute()
        assert torch.equal(matmul(x, w, **E), x @ w), "of tensors without a tangent there is none"


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_torch_func() -> None:
    w, x, t = tensor(40, 16), tensor(3, 40) / 8, tensor(3, 40)

    def ours(x: Any) -> Any:
        return matmul(x, w, epilogue=tilewright.silu, **E)

    def theirs(x: Any) -> Any:
        return torch.nn.functional.silu(x @ w)

    torch.testing.assert_close(torch.func.jvp(ours, (x,), (t,)), torch.func.jvp(theirs, (x,), (t,)))
    hessians = [torch.func.hessian(lambda x, of=each: of(x).square().sum())(x[:1]) for each in (ours, theirs)]
    torch.testing.assert_close(*hessians, rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.vmap(lambda x: matmul(x, w, **E))(torch.stack([x, t])), torch.stack([x, t]) @ w)


class Seen(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """A mode that notes the operations it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_every_call() -> None:
    a, b = tensor(24, 40), tensor(40, 16)
    with tilewright.Matmul(a, b, **E) as product:
        product.execute()
        with Seen() as mode:
            assert torch.equal(matmul(a, b, **E), a @ b)
            assert torch.equal(matmul(a, b, epilogue=tilewright.relu, **E), torch.relu(a @ b))
            with pytest.raises(UsageError, match="epilogue is '<lambda>'"):
                matmul(a, b, epilogue=lambda acc: acc, **E)
            with pytest.raises(UsageError, match="a dispatch mode of PyTorch is active"):
                product.execute()
            assert (matmul(a.numpy(), b.numpy(), **E) == (a @ b).numpy()).all()
    assert mode.names.count("tilewright.matmul.default") == 2


def test_a_recorded_graph_has_the_product() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    w, x, y = tensor(40, 16), tensor(24, 40), tensor(24, 40)
    graph = make_fx(lambda x: matmul(x, w, **E))(x)
    assert "tilewright.matmul.default" in [str(node.target) for node in graph.graph.nodes]
    assert torch.equal(graph(y), y @ w)


class Wrapped(torch.Tensor):  # type: ignore[misc]
    """A tensor without memory, which holds another."""

    @staticmethod
    def __new__(cls, held: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, strides=held.stride())

    def __init__(self, held: Any) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(function(*[each.held if isinstance(each, cls) else each for each in args], **(kwargs or {})))


def test_tensors_without_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    a, b = tensor(24, 40), tensor(40, 16)
    with FakeTensorMode():
        fakes = torch.empty(24, 40), torch.empty(40, 16)
        found = matmul(*fakes, **E)
    for each in (found, matmul(*fakes, **E)):
        assert isinstance(each, FakeTensor)
        assert each.shape == (24, 16)
    wrapped = matmul(Wrapped(a), b, **E)
    assert isinstance(wrapped, Wrapped)
    assert torch.equal(wrapped.held, a @ b)
    assert matmul(a.to("meta"), b.to("meta"), **E).shape == (24, 16)
    for name in ("a", "bias"):
        given: dict[str, Any] = {"a": a, "b": b, "bias": tensor(16), **E}
        matmul(**given)
        given[name] = given[name].clone()
        given[name].untyped_storage().resize_(0)
        with pytest.raises(UsageError, match=f"{name} is a tensor without memory of its own"):
            matmul(**given)


def test_autocast_is_that_of_an_operator() -> None:
    a, b = tensor(24, 40), tensor(40, 16)
    with torch.autocast("cpu", torch.bfloat16):
        for x, y in ((a, b), (a.bfloat16(), b), (a, b.bfloat16())):
            found = matmul(x, y, **E)
            assert found.dtype == torch.bfloat16
            assert torch.equal(found, x @ y)
        assert matmul(a, b, out=torch.empty(24, 16), **E).dtype == torch.float32, "as PyTorch's with an out"
        x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
        matmul(x, w, **E).sum().backward()
        with pytest.raises(UsageError, match=r"a has dtype torch\.float64"):
            matmul(a.double(), b.double(), **E)
    assert x.grad.dtype == w.grad.dtype == torch.float32
    assert torch.equal(x.grad, b.sum(1).expand(24, 40))
    assert matmul(a, b, **E).dtype == torch.float32


def test_what_is_seen_is_told_cheaply() -> None:
    assert not hot.watched()
    with Seen():
        assert hot.watched()
        assert hot.unwatched(hot.watched) is False
    with forward_ad.dual_level():
        assert hot.watched()
    with torch.autocast("cpu"):
        assert hot.watched()
    assert torch.vmap(lambda x: x * hot.watched())(torch.ones(2)).all()
    assert not hot.watched()


def test_a_layer_is_a_drop_in() -> None:
    layer = tilewright.nn.Linear(40, 16, activation="relu", backend="emulator")
    assert tilewright.nn.Linear(40, 16, device="meta")(torch.empty(3, 40, device="meta")).shape == (3, 16)
    x = tensor(24, 40)
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(layer, torch.nn.ReLU()))
    assert torch.equal(graph(x), layer(x))
    assert [node.op for node in graph.graph.nodes].count("call_function") == 1
    again = pickle.loads(pickle.dumps(torch.fx.symbolic_trace(layer)))
    assert torch.equal(again(x), layer(x))
    w = tensor(40, 16)
    traced = torch.jit.trace(lambda x: matmul(x, w, **E), (x,))
    assert torch.equal(traced(2 * x), 2 * x @ w)


def test_the_operations_are_there_beside_the_import_alone() -> None:
    """``torch.export.load`` looks for them by name."""
    code = (
        "import sys, torch, tilewright; print(torch.ops.tilewright.matmul.default); "
        "assert not {'tilewright.library', 'torch._dynamo'} & set(sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.stdout.strip() == "tilewright.matmul.default", said.stderr
