"""The operation of PyTorch on the CPU, in the emulator: gradients, fake kernels, dispatch. Skips without PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from test_matmul_docs import EXAMPLES

import tilewright
from tilewright import UsageError, matmul
from tilewright.library import hot

torch: Any = pytest.importorskip("torch")

E: dict[str, Any] = {"backend": "emulator"}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def tensor(*shape: int, learns: bool = False) -> Any:
    """Small integers, so that sums are exact."""
    return torch.randint(-4, 5, shape).float().requires_grad_(learns)


def test_tensors_of_the_cpu_in_the_emulator() -> None:
    a, b = tensor(24, 40).bfloat16(), tensor(40, 16).bfloat16()
    found = matmul(a, b, **E)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, (a.float() @ b.float()).bfloat16())
    assert torch.equal(matmul(a, b, out_dtype=torch.float32, **E), a.float() @ b.float())
    with pytest.raises(UsageError, match="in host memory: move it to a GPU"):
        matmul(a, b)
    with pytest.raises(UsageError, match="in host memory: move it to a GPU"):
        tilewright.explain(a, b)
    with pytest.raises(UsageError, match=r"b has dtype torch.float64; both operands"):
        matmul(a, b.double(), **E)
    with pytest.raises(UsageError, match=r"b is a tensor of layout torch.sparse_coo"):
        matmul(a, b.to_sparse(), **E)


ACTIVATIONS: dict[str, Any] = {
    "none": (None, lambda x: x),
    "relu": (tilewright.relu, torch.relu),
    "gelu": (tilewright.gelu, torch.nn.functional.gelu),
    "silu": (tilewright.silu, torch.nn.functional.silu),
    "relu_squared": (tilewright.relu_squared, lambda x: torch.relu(x) ** 2),
    "sigmoid": (tilewright.sigmoid, torch.sigmoid),
    "tanh": (tilewright.tanh, torch.tanh),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(activation: str) -> None:
    ours, theirs = ACTIVATIONS[activation]
    a, b = tensor(2, 3, 40, learns=True), tensor(40, 16, learns=True)
    bias, c = tensor(16, learns=True), tensor(3, 16, learns=True)
    given = (a, b, bias, c)
    twins = [each.detach().clone().requires_grad_() for each in given]
    wanted = theirs(twins[0] @ twins[1] / 64 + 0.25 * twins[3] + twins[2])
    found = matmul(a, b, bias=bias, c=c, alpha=1 / 64, beta=0.25, epilogue=ours, **E)
    torch.testing.assert_close(found, wanted)
    losses: list[Any] = [lambda y: y.sum(), lambda y: (torch.cat([y, y[:1]]) * torch.arange(16)).sum()]
    for loss in losses:
        for each in (*given, *twins):
            each.grad = None
        loss(found).backward(retain_graph=True)
        loss(wanted).backward(retain_graph=True)
        for each, twin in zip(given, twins, strict=True):
            torch.testing.assert_close(each.grad, twin.grad, rtol=1e-4, atol=1e-4)


def test_what_has_no_gradient() -> None:
    a, b = tensor(24, 40, learns=True), tensor(40, 16)
    with pytest.raises(UsageError, match="epilogue is '<lambda>', which has no gradient here"):
        matmul(a, b, epilogue=lambda acc: acc * 2, **E)
    with pytest.raises(UsageError, match="out is given for tensors that need a gradient"):
        matmul(a, b, out=torch.empty(24, 16), **E)
    with pytest.raises(UsageError, match="b is a pair for tensors that need a gradient"):
        matmul(a.detach(), (b, tensor(40, 16, learns=True)), epilogue=tilewright.swiglu, **E)
    with torch.no_grad():
        assert not matmul(a, b, epilogue=lambda acc: acc * 2, **E).requires_grad


def test_a_pair_and_reductions_of_tensors() -> None:
    a, gate, up = tensor(24, 40).bfloat16(), tensor(40, 15).bfloat16(), tensor(40, 15).bfloat16()
    found = matmul(a, (gate, up), epilogue=lambda x, y: (x - y, tilewright.row_max(x), tilewright.col_absmax(y)), **E)
    first, second = a.float() @ gate.float(), a.float() @ up.float()
    for one, other in zip(found, ((first - second).bfloat16(), first.amax(1), second.abs().amax(0)), strict=True):
        assert torch.equal(one, other)
    empty = matmul(a[:0], (gate, up), epilogue=lambda x, y: (x, tilewright.col_max(y)), **E)[1]
    assert torch.equal(empty, torch.full((15,), -torch.inf))


def test_what_would_lose_a_gradient_is_refused() -> None:
    a, b = tensor(24, 40, learns=True), tensor(40, 16)
    with pytest.raises(UsageError, match="batch_invariant is given for tensors that need a gradient"):
        matmul(a, b, batch_invariant=True, **E)
    with pytest.raises(UsageError, match="alpha is a Tensor; it must be a number"):
        matmul(a, b, alpha=torch.tensor(2.0, requires_grad=True), **E)
    with pytest.raises(UsageError, match="b is a ndarray and another array a tensor"):
        matmul(a, b.numpy(), **E)
    with pytest.raises(UsageError, match=r"epilogue is \[1\], which has no gradient here"):
        matmul(a, b, epilogue=[1], **E)
    with pytest.raises(UsageError, match="out is given for tensors that need a gradient"):
        matmul(a.detach(), b, out=torch.zeros(24, 16, requires_grad=True), **E)
    with tilewright.Matmul(a, b, **E) as product:
        with pytest.raises(UsageError, match="needs a gradient, which a Matmul does not give"):
            product.execute()
        with torch.no_grad():
            assert torch.equal(product.execute(), a @ b)


def test_autograd_sees_that_out_has_changed() -> None:
    a, b, kept, x = tensor(24, 40), tensor(40, 16), torch.ones(24, 16), torch.ones(24, 16, requires_grad=True)
    loss = (x * kept).sum()
    matmul(a, b, out=kept, **E)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        assert torch.equal(matmul(a, b, out=torch.zeros(24, 16), **E), a @ b)


def test_vectors_with_gradients_take_what_they_take_without() -> None:
    a, v, b = tensor(3, 24, 40), tensor(40), tensor(2, 40, 16)
    for x, y, shape in ((a, v, (24,)), (a, v, (3, 1)), (a[0], v, (24,)), (v, b, (16,)), (v, b, (2, 1)), (v, v, ())):
        c = tensor(*shape).requires_grad_()
        found = matmul(x, y, c=c, beta=2, **E)
        assert torch.equal(found, x @ y + 2 * c)
        assert torch.equal(found, matmul(x, y, c=c.detach(), beta=2, **E))
        found.sum().backward()
        assert torch.equal(c.grad, torch.full_like(c, 2 * found.numel() / c.numel()))
    bias = tensor(24, learns=True)
    assert torch.equal(matmul(a, v, bias=bias, **E), a @ v + bias)
    with pytest.raises(UsageError, match=r"c has shape \(2, 2\), which does not fit"):
        matmul(a[0], b[0].clone().requires_grad_(), c=torch.ones(2, 2), **E)


def test_a_first_call_with_more_than_a_product_finds_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot._Torch, "types", ())
    a, b, bias = tensor(24, 40), tensor(40, 16), tensor(16)
    asked: list[Any] = []
    monkeypatch.setattr(hot, "look_up", asked.append)
    matmul(a, b, bias=bias, **E)
    assert len(asked) == 1


def test_gradients_of_nothing_are_zeros() -> None:
    """A batch of no rows, as a rank without tokens has it: PyTorch's own give the same."""
    for shape in ((0, 40), (2, 0, 40)):
        x, w, bias = tensor(*shape, learns=True), tensor(40, 16, learns=True), tensor(16, learns=True)
        found = matmul(x, w, bias=bias, epilogue=tilewright.relu, **E)
        assert found.shape == (*shape[:-1], 16)
        found.sum().backward()
        assert x.grad.shape == x.shape
        assert torch.equal(w.grad, torch.zeros(40, 16))
        assert torch.equal(bias.grad, torch.zeros(16))


@pytest.mark.parametrize("text", [each for each in EXAMPLES if each.startswith("# needs PyTorch")])
def test_an_example_of_the_docs_runs(text: str) -> None:
    exec(compile(text, "docs/matmul.md", "exec"), {"__name__": "example"})


def test_the_layer_needs_no_import_of_its_own() -> None:
    assert tilewright.__getattr__("nn").Linear(2, 3).out_features == 3
    assert tilewright.__getattr__("torch_op").ACTIVATIONS[0] == "none"
    assert {"nn", "torch_op"} <= set(dir(tilewright))
    assert "nn" not in tilewright.__all__, "importing all names imports no PyTorch"


def test_pytorch_of_any_version_is_told_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_one_tensor(given: Any) -> None:
        if not isinstance(given, torch.Tensor):
            raise TypeError
        given.add_(0)

    x = tensor(2)
    hot._counter(torch)((x,))
    assert x._version == 1
    monkeypatch.setattr(torch._C, "_increment_version", of_one_tensor)
    monkeypatch.setattr(torch.autograd.graph, "increment_version", of_one_tensor)
    hot._counter(torch)((x,))
    assert x._version == 2


def test_what_cannot_be_hashed_goes_the_long_way() -> None:
    a, b = tensor(24, 40), tensor(40, 16)
    first, second = matmul(a, b, epilogue=lambda acc: (acc, acc), out_dtype=[torch.float32, torch.bfloat16], **E)
    assert (first.dtype, second.dtype) == (torch.float32, torch.bfloat16)
    with pytest.raises(UsageError, match="plan is a dict; it must be a Plan"):
        matmul(a, b, plan={}, **E)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"backend \[\] is not one of"):
        matmul(a, b, backend=[])  # type: ignore[arg-type]
    assert torch.isinf(matmul(a.abs() + 1, b.abs() + 1, alpha=10**400, **E)).all()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_by_torch_func() -> None:
    x, w, bias = tensor(6, 8), tensor(8, 5), tensor(5)

    def ours(x: Any) -> Any:
        return matmul(x, w, bias=bias, epilogue=tilewright.silu, **E).square().sum()

    def theirs(x: Any) -> Any:
        return torch.nn.functional.silu(x @ w + bias).square().sum()

    torch.testing.assert_close(torch.func.grad(ours)(x / 8), torch.func.grad(theirs)(x / 8))
    both = torch.stack([x, -x]) / 8
    torch.testing.assert_close(
        torch.vmap(torch.func.grad(ours))(both), torch.vmap(torch.func.grad(theirs))(both), msg="of each sample"
    )
    assert torch.equal(torch.func.vjp(lambda x: matmul(x, w, **E), x)[1](torch.ones(6, 5))[0], torch.ones(6, 5) @ w.mT)


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_opcheck(activation: str) -> None:
    operation = torch.ops.tilewright.matmul if activation == "none" else torch.ops.tilewright.matmul_with_input
    given = (tensor(24, 40, learns=True), tensor(40, 16, learns=True), tensor(16, learns=True), None)
    torch.library.opcheck(operation, (*given, 1.0, 0.0, activation, None, "emulator"))


def test_no_graph_break_and_no_recompile_for_another_m() -> None:
    counter = torch._dynamo.testing.CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)  # type: ignore[untyped-decorator,unused-ignore]
    def called(x: Any, w: Any, bias: Any) -> Any:
        return matmul(x, w, bias=bias, epilogue=tilewright.relu, backend="emulator") * 2

    w, bias = tensor(40, 16), tensor(16)
    for m in (3, 4, 5, 7, 9):
        x = tensor(m, 40)
        assert torch.equal(called(x, w, bias), torch.relu(x @ w + bias) * 2)
    assert counter.frame_count <= 2, "one graph for the first M, one for every other"


def test_linear_is_torchs() -> None:
    from tilewright.nn import Linear

    theirs = torch.nn.Linear(40, 16)
    ours = Linear(40, 16, activation="relu", backend="emulator")
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 40)
    torch.testing.assert_close(ours(x), torch.relu(theirs(x)))
    torch.testing.assert_close(ours(x[0, 0]), torch.relu(theirs(x[0, 0])))
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
    with pytest.raises(UsageError, match="activation 'swish' is not one of none, relu"):
        Linear(40, 16, activation="swish")
