"""What users of other libraries ran into on a GPU, where no other test has it: docs/matmul.md lists all."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest
from matmul_cases import operand, wanted
from test_matmul_docs import EXAMPLES

import tilewright
from tilewright import Matmul, Problem, explain, matmul
from tilewright.library import hot, ready

pytestmark = pytest.mark.cuda


def test_very_tall_and_narrow_with_a_bias(torch: Any) -> None:
    a, b, bias = (operand(torch, "row", *size, "float16") for size in ((655_360, 10), (10, 10), (1, 10)))
    expected = ((a.double() @ b.double()).float() + bias.float()).half()
    assert torch.equal(matmul(a, b, bias=bias[0]), expected)


@pytest.mark.parametrize("k", [64, 128, 256, 4096])
def test_constants_add_up_a_thousand_times(torch: Any, k: int) -> None:
    a, b = (torch.full(size, 0.5, device="cuda", dtype=torch.float16) for size in ((256, k), (k, 256)))
    out = torch.empty((256, 256), device="cuda", dtype=torch.float16)
    wrong = torch.zeros((), device="cuda", dtype=torch.bool)
    for number in range(1000):
        if number % 10 == 0:
            out.fill_(float("nan"))
        matmul(a, b, out=out)
        wrong |= (out != k / 4).any()
    assert not bool(wrong)


def test_two_streams_with_partial_sums_at_once(torch: Any) -> None:
    m, n, k = 128, 256, 16384
    ranked = tilewright.plan(problem=Problem(m, n, k, "bf16")).ranked
    plans = [next(each.plan for each in ranked if each.family == family) for family in ("splitk", "streamk")]
    a, b = operand(torch, "row", m, k, "bfloat16"), operand(torch, "row", k, n, "bfloat16")
    expected = wanted(a, b)
    assert explain(a, b, plan=plans[0]).workspace_bytes, "there are sums to be kept apart"
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for number in range(60):
        with torch.cuda.stream(streams[number % 2]):
            found.append(matmul(a, b, plan=plans[number // 2 % 2]))
    torch.cuda.synchronize()
    assert all(torch.equal(each, expected) for each in found)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("sms", [1, 7, 64])
def test_few_sms_hang_nothing(torch: Any, sms: int) -> None:
    for m, n, k in ((16, 2560, 8192), (640, 256, 16384)):
        a, b = operand(torch, "row", m, k, "bfloat16"), operand(torch, "column", k, n, "bfloat16")
        busy = torch.cuda.Stream()
        with torch.cuda.stream(busy):
            torch.cuda._sleep(10_000_000)
        assert torch.equal(matmul(a, b, sms=sms), wanted(a, b))


def test_kernels_that_nobody_holds_stay_for_a_capture(torch: Any) -> None:
    a, b = operand(torch, "row", 256, 128, "bfloat16"), operand(torch, "row", 128, 512, "bfloat16")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = matmul(a, b)
        hot.forget()
        ready.forget()
        gc.collect()
        again = matmul(a, b)
    hot.forget()
    ready.forget()
    gc.collect()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, wanted(a, b))
    assert torch.equal(again, found)


def test_a_running_maximum_in_a_captured_graph(torch: Any) -> None:
    a, b = operand(torch, "row", 64, 128, "bfloat16"), operand(torch, "row", 128, 96, "bfloat16")
    y, amax = torch.empty(64, 96, device="cuda", dtype=torch.bfloat16), torch.full((96,), 3.0, device="cuda")

    def scaled(x: Any, h: Any) -> Any:
        return x / h, tilewright.col_absmax(tilewright.maximum(x, h))

    def expected(h: Any) -> tuple[Any, Any]:
        acc = a.float() @ b.float()
        return (acc / h).to(torch.bfloat16), torch.maximum(acc, h).abs().amax(dim=0)

    before = expected(amax)
    matmul(a, b, out=(y, amax), epilogue=scaled, args={"h": amax})
    torch.testing.assert_close((y, amax), before)
    with Matmul(a, b, out=(y, amax), epilogue=scaled, args={"h": amax}) as prepared:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            prepared.execute()
        for start in (2.0, 5.0):
            amax.fill_(start)
            before = expected(amax)
            graph.replay()
            torch.testing.assert_close((y, amax), before)


def test_reductions_of_nothing_on_the_stream_that_was_given(torch: Any) -> None:
    a, b = torch.empty(0, 8, device="cuda"), torch.empty(8, 6, device="cuda")
    out, busy = (torch.empty(0, 6, device="cuda"), torch.full((6,), 7.0, device="cuda")), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(500_000_000)
    matmul(a, b, out=out, epilogue=lambda x: (x, tilewright.col_max(x)), stream=busy)
    assert torch.equal(out[1], torch.full_like(out[1], 7.0)), "not before what the stream was given"
    busy.synchronize()
    assert torch.equal(out[1], torch.full_like(out[1], -torch.inf))


def test_the_first_call_of_a_process_from_a_thread(torch: Any) -> None:
    text = (
        "import threading, numpy, tilewright\n"
        "found = []\n"
        "def work(n):\n"
        "    a = numpy.ones((64, 32 + 8 * n), numpy.float16)\n"
        "    found.append(bool((tilewright.matmul(a, a.T.copy()) == 32 + 8 * n).all()))\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
        "[each.start() for each in threads], [each.join() for each in threads]\n"
        "assert found == [True] * 8, found\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)


def test_a_child_that_is_forked_after_the_import_has_the_gpu(cuda: Any) -> None:
    text = (
        "import os, numpy, tilewright, tilewright.library.api\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    a = numpy.ones((64, 32), numpy.float16)\n"
        "    os._exit(0 if (tilewright.matmul(a, a.T.copy()) == 32).all() else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)


@pytest.mark.parametrize("text", [each for each in EXAMPLES if each.startswith("# needs a GPU")])
def test_an_example_of_the_docs_runs(cuda: Any, text: str) -> None:
    for library in ("torch", "cupy"):
        if f"import {library}" in text:
            pytest.importorskip(library)
    exec(compile(text, "docs/matmul.md", "exec"), {"__name__": "example"})
