"""The CUDA backend on a GPU: memory, launches, streams, views, timing."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from ladder_cases import LAYOUTS

from tilewright.backends.base import Matrix, TensorMap
from tilewright.backends.cuda import CudaBackend
from tilewright.backends.cuda_tensor_map import encode
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import LaunchError, UnavailableError, UsageError
from tilewright.ladder import rungs
from tilewright.measure import Rival, Schedule, measure, rotation
from tilewright.operands import random_operands
from tilewright.problem import Layout, Problem
from tilewright.rivals import cublas, operand_sets
from tilewright.run import Operands, make_operands, prepare
from tilewright.source import KernelSource
from tilewright.telemetry import Telemetry

needs_gpu = pytest.mark.cuda
others_warn = pytest.mark.filterwarnings("default")  # what PyTorch and CuPy warn of is not ours to mend

# One thread an output; every value in and out is exact, so that results can be compared bit for bit.
SCALE = """\
typedef long long i64;
extern "C" __global__ void tw_gemm(int rows, int cols, float factor, const {T}* a, i64 lda, {T}* c, i64 ldc) {{
    extern __shared__ float tile[];
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = factor;
    __syncthreads();
    if (at < rows * cols) c[at / cols * ldc + at % cols] = a[at / cols * lda + at % cols] * ({T})tile[threadIdx.x];
}}
"""


def scale_source(c_type: str = "float") -> KernelSource:
    return KernelSource("scale", SCALE.format(T=c_type), "gpu")


def scale_arguments(a: Matrix, c: Matrix, factor: float = 2.0) -> list[Any]:
    return [np.int32(a.rows), np.int32(a.cols), np.float32(factor), a, np.int64(a.ld), c, np.int64(c.ld)]


def scale(
    backend: CudaBackend, a: Matrix, c: Matrix, factor: float = 2.0, shared: int = 128, stream: Any = None
) -> None:
    kernel = backend.compile(scale_source())
    blocks = -(-a.rows * a.cols // 32)
    backend.launch(kernel, (blocks, 1, 1), (32, 1, 1), scale_arguments(a, c, factor), shared, stream=stream)


@pytest.fixture
def gpu(cuda: CudaBackend) -> CudaBackend:
    return cuda


@needs_gpu
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(("rows", "cols", "ld"), [(3, 5, None), (3, 5, 9), (1, 1, None), (0, 4, None), (4, 0, 3)])
def test_upload_and_download(gpu: CudaBackend, dtype: DType, rows: int, cols: int, ld: int | None) -> None:
    array = np.random.default_rng(0).standard_normal((rows, cols)).astype(dtype.numpy)
    matrix = gpu.upload(array, ld)
    assert np.array_equal(gpu.download(matrix), array)
    assert gpu.padding_intact(matrix)
    assert np.isnan(gpu.download(gpu.empty(rows, cols, dtype, ld)).astype(np.float32)).all()


@needs_gpu
def test_a_kernel_runs_and_leaves_the_padding_alone(gpu: CudaBackend) -> None:
    array = np.arange(35, dtype=np.float32).reshape(5, 7)
    a, c = gpu.upload(array, 8), gpu.empty(5, 7, FP32, 11)
    scale(gpu, a, c)
    assert np.array_equal(gpu.download(c), array * 2)
    assert gpu.padding_intact(c)
    assert gpu.padding_intact(a)


@needs_gpu
def test_padding_that_was_written_is_noticed(gpu: CudaBackend) -> None:
    c = gpu.empty(4, 8, FP32)
    scale(gpu, gpu.upload(np.ones((4, 8), np.float32)), c)
    narrower = Matrix(c.pointer, 4, 6, 8, FP32, c.owner)
    assert not gpu.padding_intact(narrower)
    gpu.poison(c)
    assert gpu.padding_intact(narrower)


@needs_gpu
def test_more_than_48_kib_of_shared_memory(gpu: CudaBackend) -> None:
    a, c = gpu.upload(np.ones((4, 8), np.float32)), gpu.empty(4, 8, FP32)
    limit = gpu.device().details["shared_bytes_per_block"]
    scale(gpu, a, c, shared=limit)
    assert (gpu.download(c) == 2).all()
    with pytest.raises(UsageError, match=f"this GPU has {limit}"):
        scale(gpu, a, c, shared=limit + 4)


@needs_gpu
def test_launches_that_cannot_be(gpu: CudaBackend) -> None:
    a, c = gpu.upload(np.ones((4, 8), np.float32)), gpu.empty(4, 8, FP32)
    kernel = gpu.compile(scale_source())
    with pytest.raises(LaunchError, match=r"launching scale.*block \(4096, 1, 1\)"):
        gpu.launch(kernel, (1, 1, 1), (4096, 1, 1), scale_arguments(a, c), 0)
    with pytest.raises(UsageError, match="clusters of 2"):
        gpu.launch(kernel, (3, 1, 1), (32, 1, 1), [], 0, cluster=2)
    gpu.launch(kernel, (0, 1, 1), (32, 1, 1), [], 0)
    scale(gpu, a, c)
    assert (gpu.download(c) == 2).all(), "the GPU still works after refused launches"


CLUSTER = """\
extern "C" __global__ void tw_gemm(unsigned* out) {
    unsigned size, rank;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) out[blockIdx.x] = (gridDim.x << 8) + (size << 4) + rank;
}
"""


@needs_gpu
def test_grids_count_blocks_with_clusters_too(gpu: CudaBackend) -> None:
    if gpu.compute_capability < (9, 0):
        pytest.skip("this GPU has no clusters")
    kernel = gpu.compile(KernelSource("cluster", CLUSTER, "gpu"))
    out = gpu.empty(1, 8, FP32)
    gpu.launch(kernel, (8, 1, 1), (32, 1, 1), [out], 0, cluster=2)
    assert gpu.download(out).view(np.uint32).tolist() == [[(8 << 8) + (2 << 4) + block % 2 for block in range(8)]]


@needs_gpu
def test_tensor_maps_and_clusters_in_a_graph(gpu: CudaBackend) -> None:
    # A graph holds copies of its kernels' arguments: what was packed for a launch is gone when it is replayed.
    rung = rungs()[11]
    problem = Problem(520, 776, 200, BF16)
    a, b = random_operands(problem, fill="integers")
    operands = make_operands(gpu, problem, a, b)
    launch = prepare(gpu, rung, rung.plan(BF16).with_(dependent_launch=True), operands)
    assert launch.cluster == 2
    assert launch.dependent
    builder = gpu.stream.create_graph_builder()
    builder.begin_building("relaxed")
    for _ in range(3):
        launch(gpu, builder)
    builder.end_building()
    graph = builder.complete()
    gpu.poison(operands.c)
    with gpu.current():
        graph.launch(gpu.stream)
    exact = (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16.numpy)
    np.testing.assert_array_equal(gpu.download(operands.c), exact)


@needs_gpu
@pytest.mark.parametrize(("rows", "cols", "ld", "pointer"), [(2, 8, 12, 0), (2, 8, 8, 8), (2, 8, 2**39, 0)])
def test_tensor_maps_that_cannot_be(gpu: CudaBackend, rows: int, cols: int, ld: int, pointer: int) -> None:
    with pytest.raises(UsageError, match="TMA needs a multiple of 16"):
        encode(TensorMap(Matrix(pointer, rows, cols, ld, BF16, None), (64, 64)))


@needs_gpu
@others_warn
def test_a_view_of_a_torch_tensor(gpu: CudaBackend) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(60, dtype=torch.float32, device=f"cuda:{gpu.device_id}").reshape(6, 10)
    part = whole[1:5, 2:8].requires_grad_()
    seen = gpu.view(part)
    assert (seen.rows, seen.cols, seen.ld, seen.dtype) == (4, 6, 10, FP32)
    assert np.array_equal(gpu.download(seen), part.detach().cpu().numpy())
    out = torch.full((4, 6), float("nan"), device=whole.device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    scale(gpu, seen, gpu.view(out), 3.0, stream=stream)
    stream.synchronize()
    assert torch.equal(out, part.detach() * 3)
    scale(gpu, seen, gpu.view(out), 4.0, stream=torch.cuda.current_stream())
    assert torch.equal(out, part.detach() * 4), "ordered with PyTorch's default stream, whose handle is 0"
    assert gpu.view(whole.bfloat16()).dtype == BF16
    columns = gpu.view(whole.t())
    assert (columns.rows, columns.cols, columns.ld, columns.layout) == (10, 6, 10, "column")
    assert np.array_equal(gpu.download(columns), whole.t().cpu().numpy())
    with pytest.raises(UsageError, match="next to each other"):
        gpu.view(whole[:, ::2])
    with pytest.raises(UsageError, match="device -1"):
        gpu.view(torch.zeros(2, 2))
    with pytest.raises(UsageError, match="2 dimensions"):
        gpu.view(whole[0])


@needs_gpu
@others_warn
def test_a_view_of_a_cupy_array(gpu: CudaBackend) -> None:
    cupy = pytest.importorskip("cupy")
    array = cupy.arange(60, dtype=cupy.float32).reshape(6, 10)
    out = cupy.full((6, 10), cupy.nan, dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    scale(gpu, gpu.view(array), gpu.view(out), stream=stream)
    stream.synchronize()
    assert (out == array * 2).all()


@needs_gpu
def test_out_of_memory_is_told_with_the_size(gpu: CudaBackend) -> None:
    with pytest.raises(UnavailableError, match=r"1048576\.0 MiB were asked for"):
        gpu.empty(2**19, 2**19, FP32)


@needs_gpu
def test_an_illegal_address_is_told(gpu: CudaBackend) -> None:
    code = """
import numpy as np
from tilewright.backends.base import Matrix
from tilewright.backends.cuda import CudaBackend
from tilewright.dtypes import FP32
from tilewright.errors import LaunchError
from tilewright.source import KernelSource
backend = CudaBackend()
text = 'extern "C" __global__ void tw_gemm(float* c) { c[threadIdx.x] = 1; }'
kernel = backend.compile(KernelSource("wild", text, "gpu"))
try:
    backend.launch(kernel, (1, 1, 1), (32, 1, 1), [Matrix(4096, 1, 32, 32, FP32, None)], 0)
    backend.synchronize()
except LaunchError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in told.stdout
    assert "start a new process" in told.stdout
    assert told.stderr == ""


@needs_gpu
def test_device_details(gpu: CudaBackend) -> None:
    info = gpu.device()
    assert info.name
    assert info.details["sm_count"] > 0
    assert info.details["l2_bytes"] > 0
    with gpu.telemetry() as snapshot:
        assert snapshot().sm_clock_mhz is not None or not Telemetry().present


def scale_rival(gpu: CudaBackend, sets: list[Operands], name: str = "scale") -> Rival:
    def enqueue(operands: Operands, stream: Any) -> None:
        scale(gpu, operands.a, operands.c, stream=stream)

    return Rival(name, [partial(enqueue, operands) for operands in sets])


@needs_gpu
def test_timing_a_copy_gives_a_credible_bandwidth(gpu: CudaBackend) -> None:
    from tilewright.backends.cuda_timer import CudaTimer

    problem = Problem(4096, 4096, 4096)
    turns = rotation(2 * problem.bytes_a, gpu.device().details["l2_bytes"])
    sets = operand_sets(gpu, problem, turns.sets)
    result = measure([scale_rival(gpu, sets)], CudaTimer(gpu), schedule=Schedule(slot_ms=40, rounds=3, graph_ms=2))
    timing = result.timings["scale"]
    assert timing.error is None
    assert timing.method == "graph"
    assert timing.time_us is not None
    bytes_per_s = 2 * problem.bytes_a / timing.time_us.median * 1e6
    assert 0.05e12 < bytes_per_s < 10e12
    assert result.noise is not None
    assert 0.7 < result.noise.median < 1.4


@needs_gpu
@others_warn
@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_cublas_on_the_same_operands(
    gpu: CudaBackend, dtype: DType, library: str, layouts: tuple[Layout, Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.backends.cuda_timer import CudaTimer

    pytest.importorskip(library)
    monkeypatch.setattr("tilewright.rivals.vendor_library", lambda: library)
    problem = Problem(512, 384, 256, dtype, None, *layouts)
    sets = operand_sets(gpu, problem, 2)
    try:
        vendor = cublas(gpu, sets)
    except UnavailableError as error:
        if library == "torch" or dtype is FP32:
            raise
        pytest.skip(f"this CuPy has no bf16: {error}")
    result = measure([vendor], CudaTimer(gpu), schedule=Schedule(slot_ms=20, rounds=2, graph_ms=1))
    timing = result.timings["cuBLAS"]
    assert timing.error is None
    assert library == "cupy" or timing.method == "graph", timing.note
    for operands in sets:
        a, b, c = (gpu.download(m).astype(np.float64) for m in (operands.a, operands.b, operands.c))
        bound = (problem.k * 2.0**-24 * 2 + 2 * dtype.unit_roundoff) * (np.abs(a) @ np.abs(b))
        assert (np.abs(c - a @ b) <= bound).all(), "no TF32"
