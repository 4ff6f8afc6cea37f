"""``tilewright.matmul`` with the arrays of GPU libraries. test_matmul.py has what NumPy's arrays can show anywhere."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
from matmul_cases import operand, wanted

import tilewright
from tilewright import Matmul, UsageError, matmul
from tilewright.library import hot, ready

pytestmark = pytest.mark.cuda

LAYOUTS = ("row", "column", "padded", "offset", "broadcast row", "flipped", "every other")
DTYPES = ("bfloat16", "float16", "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
def test_every_layout_and_dtype(torch: Any, dtype: str, a_layout: str, b_layout: str) -> None:
    for m, n, k in ((129, 257, 65), (256, 512, 128), (1, 96, 64), (96, 1, 40)):
        a, b = operand(torch, a_layout, m, k, dtype), operand(torch, b_layout, k, n, dtype)
        for out in (None, torch.full((m, n), float("nan"), device="cuda", dtype=a.dtype)):
            found = matmul(a, b, out=out)
            assert out is None or found is out
            assert torch.equal(found, wanted(a, b)), (m, n, k)
        column = torch.full((n, m), float("nan"), device="cuda", dtype=a.dtype).T
        padded = torch.full((m, n + 5), 7.0, device="cuda", dtype=a.dtype)
        assert torch.equal(matmul(a, b, out=column), wanted(a, b))
        assert torch.equal(matmul(a, b, out=padded[:, 2 : 2 + n]), wanted(a, b))
        assert bool((padded[:, :2] == 7).all())
        assert bool((padded[:, 2 + n :] == 7).all())


def test_the_result_is_a_tensor_of_the_same_device(torch: Any) -> None:
    a, b = operand(torch, "row", 64, 64, "bfloat16"), operand(torch, "row", 64, 64, "bfloat16")
    found = matmul(a, b)
    assert isinstance(found, torch.Tensor)
    assert (found.device, found.dtype, tuple(found.shape)) == (a.device, a.dtype, (64, 64))
    assert tuple(matmul(a[0], b).shape) == (64,)
    assert matmul(a[0], b[:, 0]).shape == ()
    assert torch.equal(matmul(a.expand(3, 2, 64, 64).contiguous(), b)[2, 1], wanted(a, b))


def test_the_second_call_goes_the_short_way_with_other_addresses(torch: Any) -> None:
    ready.forget()
    hot.forget()
    out = torch.empty((256, 256), device="cuda", dtype=torch.bfloat16)
    for _ in range(4):
        a, b = operand(torch, "row", 256, 128, "bfloat16"), operand(torch, "column", 128, 256, "bfloat16")
        assert torch.equal(matmul(a, b, out=out), wanted(a, b))
        assert torch.equal(matmul(a, b), wanted(a, b))
    with pytest.raises(UsageError, match="out shares memory with a"):
        held = operand(torch, "row", 256, 256, "bfloat16")
        matmul(held[:, :128].copy_(a), b, out=held)
    with pytest.raises(UsageError, match="out shares memory with a"):
        square = operand(torch, "row", 256, 256, "bfloat16")
        matmul(square, operand(torch, "column", 256, 256, "bfloat16"), out=square)


def test_the_current_stream_and_a_given_one(torch: Any) -> None:
    side = torch.cuda.Stream()
    a, b = operand(torch, "row", 2048, 2048, "bfloat16"), operand(torch, "row", 2048, 2048, "bfloat16")
    expected = wanted(a, b)
    torch.cuda.synchronize()
    late = torch.zeros_like(a)
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # the product must wait for what is queued on its stream
        late.copy_(a)
        found = matmul(late, b)
    side.synchronize()
    assert torch.equal(found, expected)
    late.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late.copy_(a)
    found = matmul(late, b, stream=side)
    side.synchronize()
    assert torch.equal(found, expected)
    assert torch.equal(matmul(a, b, stream=torch.cuda.current_stream().cuda_stream), expected)


def captured(torch: Any, call: Any) -> Any:
    """A graph of one call, captured without any call before it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@pytest.mark.parametrize("shape", [(256, 512, 128), (16, 2560, 8192), (129, 257, 65)])
def test_the_first_call_ever_may_be_inside_of_a_capture(torch: Any, shape: tuple[int, int, int]) -> None:
    ready.forget()
    hot.forget()
    ready.close_all()
    m, n, k = shape
    a, b = operand(torch, "row", m, k, "bfloat16"), operand(torch, "column", k, n, "bfloat16")
    torch.cuda.synchronize()
    graph, found = captured(torch, lambda: matmul(a, b))
    for _ in range(3):
        a.copy_(operand(torch, "row", m, k, "bfloat16"))
        expected = wanted(a, b)
        found.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, expected)
        eager = matmul(a, b)
        torch.cuda.synchronize()
        assert torch.equal(eager, expected)


def test_threads_share_what_is_prepared(torch: Any) -> None:
    a = [operand(torch, "row", 512, 256, "bfloat16") for _ in range(8)]
    b = operand(torch, "row", 256, 512, "bfloat16")
    expected = [wanted(each, b) for each in a]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(50):
                found = matmul(a[number], b)
                stream.synchronize()
                if not torch.equal(found, expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_another_device_than_the_current_one(torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    a = operand(torch, "row", 128, 64, "bfloat16").to("cuda:1")
    b = operand(torch, "row", 64, 128, "bfloat16").to("cuda:1")
    found = matmul(a, b)
    assert found.device == a.device
    assert torch.cuda.current_device() == 0
    assert torch.equal(found, wanted(a, b))
    with pytest.raises(UsageError, match="a lies on GPU 1 and b on GPU 0"):
        matmul(a, b.to("cuda:0"))
    prepared = Matmul(a, b, out=found, stream=0)
    for _ in range(3):
        found.zero_()
        assert torch.equal(prepared.execute(), wanted(a, b))


@pytest.mark.parametrize("own_stream", [False, True])
def test_a_prepared_launch_where_another_context_or_none_is_current(torch: Any, own_stream: bool) -> None:
    from cuda.bindings import driver

    a, b = operand(torch, "row", 128, 64, "bfloat16"), operand(torch, "row", 64, 128, "bfloat16")
    out, expected = torch.empty((128, 128), device="cuda", dtype=torch.bfloat16), wanted(a, b)
    stream = torch.cuda.Stream().cuda_stream if own_stream else 0
    prepared = Matmul(a, b, out=out, stream=stream)
    prepared.execute()

    def here() -> None:
        prepared.execute()

    def elsewhere() -> None:
        code, context = driver.cuCtxCreate(None, 0, driver.CUdevice(0))
        assert int(code) == 0
        try:
            prepared.execute()
            assert int(driver.cuCtxGetCurrent()[1]) == int(context), "what was current is again"
        finally:
            driver.cuCtxDestroy(context)

    for act in (here, elsewhere):
        torch.cuda.synchronize()
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert torch.equal(out, expected), act.__name__


def test_a_prepared_matmul(torch: Any) -> None:
    a, b = operand(torch, "row", 256, 128, "bfloat16"), operand(torch, "row", 128, 512, "bfloat16")
    out = torch.empty((256, 512), device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.current_stream().cuda_stream
    with Matmul(a, b, out=out, stream=stream) as prepared:
        for _ in range(3):
            a.copy_(operand(torch, "row", 256, 128, "bfloat16"))
            out.zero_()
            version = out._version
            assert prepared.execute() is out
            assert out._version == version + 1, "autograd is told"
            assert torch.equal(out, wanted(a, b))
        other = operand(torch, "row", 256, 128, "bfloat16")
        assert torch.equal(prepared.execute(other), wanted(other, b))
        assert torch.equal(prepared.execute(), wanted(a, b))
        with pytest.raises(UsageError, match="this Matmul was made for"):
            prepared.execute(other[:128])
    with Matmul(a, b) as prepared:
        first, second = prepared.execute(), prepared.execute()
        assert first.data_ptr() != second.data_ptr()
        assert torch.equal(first, second)


def test_tensors_that_cannot_be_multiplied(torch: Any) -> None:
    a = operand(torch, "row", 64, 64, "bfloat16")
    for other, message in (
        (a.cpu(), "a lies on GPU 0 and b on the host"),
        (a.double(), "b has dtype torch.float64; both operands can be bf16"),
        (a.to_sparse(), "b is a tensor of layout torch.sparse_coo"),
        (np.zeros((64, 64), np.float16), r"a is a torch.Tensor and b a numpy.ndarray|a is bf16 and b is fp16"),
    ):
        with pytest.raises(UsageError, match=message):
            matmul(a, other)
    with pytest.raises(UsageError, match="in host memory: move it to a GPU"):
        matmul(a.cpu(), a.cpu())
    negated = torch.zeros(64, 64, dtype=torch.complex64, device="cuda").conj().imag
    with pytest.raises(UsageError, match="a is a view that negates its elements"):
        matmul(negated, negated)


def test_the_same_bits_again(torch: Any) -> None:
    for m, n, k in ((16, 512, 16384), (256, 256, 16384)):
        a = torch.randn((m, k), device="cuda", dtype=torch.bfloat16)
        b = torch.randn((k, n), device="cuda", dtype=torch.bfloat16)
        first = matmul(a, b)
        for _ in range(20):
            assert torch.equal(matmul(a, b), first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_for_every_number_of_rows(torch: Any, dtype: str) -> None:
    a = torch.randn((4096, 4096), device="cuda").to(getattr(torch, dtype))
    b = torch.randn((4096, 1024), device="cuda").to(getattr(torch, dtype))
    whole = matmul(a, b, out_dtype=torch.float32, batch_invariant=True)
    for m in (1, 2, 7, 8, 64, 65, 1000):
        assert torch.equal(matmul(a[-m:], b, out_dtype=torch.float32, batch_invariant=True), whole[-m:]), m


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(torch: Any, dtype: str) -> None:
    def integers(*shape: int) -> Any:
        return torch.randint(-4, 5, shape, device="cuda").to(getattr(torch, dtype))

    for a_batch, b_batch in (((3,), (3,)), ((2, 3), (3,)), ((), (5,)), ((2, 1), (1, 3)), ((70_000,), (70_000,))):
        m, n, k = (9, 24, 40) if a_batch == (70_000,) else (129, 264, 72)
        a, b = integers(*a_batch, m, k), integers(*b_batch, k, n)
        for left, right in ((a, b), (a.mT.contiguous().mT, b.mT.contiguous().mT), (a[..., 1:], b[..., 1:, :])):
            assert torch.equal(matmul(left, right), wanted(left, right)), (a_batch, b_batch)
    a, b = integers(2, 3, 129, 72), integers(3, 72, 264)
    c, bias = integers(3, 129, 264), integers(2, 1, 1, 264)
    found = matmul(a, b, alpha=0.5, beta=1, c=c, bias=bias, epilogue=tilewright.relu)
    expected = torch.relu((a.double() @ b.double()).float() * 0.5 + c.float() + bias.float())
    assert torch.equal(found, expected.to(a.dtype))


def test_batch_steps_beyond_32_bits(torch: Any) -> None:
    held = torch.zeros((2, 2**31 + 4096), device="cuda", dtype=torch.float16)  # 8 GiB
    a = held[:, -64 * 64 :].unflatten(1, (64, 64))
    a.copy_(torch.randint(-4, 5, (2, 64, 64), device="cuda"))
    b = torch.randint(-4, 5, (2, 64, 96), device="cuda").half()
    assert torch.equal(matmul(a, b), wanted(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_what_follows_the_product(torch: Any, dtype: str, out_dtype: str) -> None:
    kind, out_kind = getattr(torch, dtype), getattr(torch, out_dtype)
    for m, n, k in ((129, 257, 65), (256, 512, 128), (16, 2560, 8192), (2, 512, 4096)):
        a, b = operand(torch, "row", m, k, dtype), operand(torch, "column", k, n, dtype)
        c, bias = operand(torch, "row", m, n, out_dtype), operand(torch, "row", 1, n, dtype)[0]
        residual = operand(torch, "every other", m, n, dtype)
        before = (a.double() @ b.double()).float() * 0.5 + c.float() * 2 + bias.float()
        expected = torch.relu(before) * 3 + residual.float()

        def after(acc: Any, residual: Any, scale: Any) -> Any:
            return tilewright.relu(acc) * scale + residual, acc

        for _ in range(2):
            found = matmul(
                a, b, alpha=0.5, beta=2, c=c, bias=bias, epilogue=after, args={"residual": residual, "scale": 3},
                out_dtype=(out_kind, torch.float32),
            )  # fmt: skip
            assert torch.equal(found[0], expected.to(out_kind)), (m, n, k)
            assert torch.equal(found[1], before)
        held = c.clone()
        matmul(a, b, beta=1, c=held, out=held)
        assert torch.equal(held, ((a.double() @ b.double()).float() + c.float()).to(out_kind))
        assert found[0].dtype == out_kind
        assert a.dtype == kind


def test_gradients_and_the_compiler(torch: Any) -> None:
    def tensor(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    x, w, bias = tensor(4, 33, 256), tensor(512, 256), tensor(512)
    twins = [each.detach().double().requires_grad_() for each in (x, w, bias)]
    found = matmul(x, w.mT, bias=bias, epilogue=tilewright.gelu)
    expected = torch.nn.functional.gelu(twins[0] @ twins[1].mT + twins[2])
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.05)
    found.sum().backward()
    expected.sum().backward()
    for each, twin in zip((x, w, bias), twins, strict=True):
        torch.testing.assert_close(each.grad.double(), twin.grad, rtol=0.03, atol=0.02 * float(twin.grad.abs().max()))
    compiled = torch.compile(lambda x: matmul(x, w.mT, bias=bias, epilogue=tilewright.gelu) * 2, fullgraph=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what PyTorch's own compiler imports
        assert torch.equal(compiled(x), found * 2)


def test_offsets_beyond_32_bits(torch: Any) -> None:
    m, n, k = 40960, 65536, 64  # an out of 5 GiB
    a, b = operand(torch, "row", m, k, "float16"), operand(torch, "row", k, n, "float16")
    found = matmul(a, b)
    assert torch.equal(found[-130:, -130:], wanted(a[-130:], b[:, -130:]))
