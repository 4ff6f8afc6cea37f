"""Other ways to pick a configuration, on the same candidates as the planner: what its regret is compared with.

Each takes the candidates of a shape and returns one, None where it has no opinion. All but the last are rules anybody
can state; the last asks NVIDIA's library where the user has installed it: it is not part of this project, and nothing
here is fitted to what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from tilewright.gpu import GpuSpec
from tilewright.planner.candidate import Candidate
from tilewright.problem import Problem
from tilewright.roofline import peak_tflops, roof_of

Rule = Callable[[Sequence[Candidate], Problem, GpuSpec], Candidate | None]
ASKED = 32  # configurations that NVIDIA's library is asked for


def largest_tile(candidates: Sequence[Candidate], problem: Problem, gpu: GpuSpec) -> Candidate | None:
    """The largest tile that fits into an SM, as all candidates do, and, in steps of 64, into C."""
    rows, cols = (64 * max(1, -(-size // 64)) for size in (problem.m, problem.n))
    fitting = [each for each in candidates if each.tile[0] <= rows and each.tile[1] <= cols]
    return min(fitting, key=lambda each: (-each.tile[0] * each.tile[1], *_plain(each)), default=None)


def fewest_waves(candidates: Sequence[Candidate], problem: Problem, gpu: GpuSpec) -> Candidate | None:
    """As DeepGEMM is publicly described to choose: the fewest waves, then the fullest last wave, then the larger block.

    It shares K between no blocks and knows no swapped operands; of equal ones clusters of two, whose loads are
    multicast, go first.
    """

    def key(each: Candidate) -> tuple[Any, ...]:
        bm, bn, _ = each.tile
        tiles = -(-problem.m // bm) * -(-problem.n // bn)
        waves = -(-tiles // gpu.sm_count)
        last = tiles - (waves - 1) * gpu.sm_count
        return waves, -last, -bm * bn, math.prod(each.cluster) != 2, *_plain(each)

    whole = [each for each in candidates if each.split == 1 and not each.swap_ab]
    return min(whole, key=key, default=None)


def roofline_only(candidates: Sequence[Candidate], problem: Problem, gpu: GpuSpec) -> Candidate | None:
    """The least of max(FLOPs at the peak, bytes at HBM's rate), both of whole tiles, each tile reading its operands.

    Blocks of a cluster read together. No waves, no launches, no latencies.
    """
    peak = peak_tflops(gpu, roof_of(problem.dtype, tensor_cores=True)) * 1e12

    def seconds(each: Candidate) -> float:
        bm, bn, _ = each.tile
        flops = 2.0 * -(-problem.m // bm) * bm * -(-problem.n // bn) * bn * problem.k
        moved = each.operand_traffic_bytes_multicast + problem.bytes_c
        return max(flops / peak, moved / gpu.hbm_bytes_per_s)

    return min(candidates, key=lambda each: (seconds(each), *_plain(each)), default=None)


def nvidia_heuristics(candidates: Sequence[Candidate], problem: Problem, gpu: GpuSpec) -> Candidate | None:
    """The candidate that is most like the best answer of nvidia-matmul-heuristics; None without the package.

    Of its answers in its order the first of which there is a candidate with the same tile, cluster and split; if there
    is none, the first with the same tile.
    """
    library = heuristics_library()
    if library is None:
        return None
    answers = list(_answers(library, problem))
    for compared in (5, 2):  # all, or the tile alone
        for answer in answers:
            found = [each for each in candidates if _of(each)[:compared] == answer[:compared]]
            if found:
                return min(found, key=_plain)
    return None


RULES: Mapping[str, Rule] = {
    "largest tile that fits": largest_tile,
    "DeepGEMM-style: fewest waves": fewest_waves,
    "roofline only": roofline_only,
    "nvidia-matmul-heuristics": nvidia_heuristics,
}


@cache
def heuristics_library() -> Any | None:
    """NVIDIA's package, None where it is not installed (pip install nvidia-matmul-heuristics)."""
    try:
        return import_module("nvMatmulHeuristics")
    except ImportError:
        return None


def _answers(library: Any, problem: Problem) -> Iterable[tuple[int, ...]]:
    """BM, BN, cluster along M and N, and split of what the library advises for a row-major A, B column-major."""
    interface, layout, hardware = _session(library)
    found = interface.get_with_mnk(problem.m, problem.n, problem.k, layout, ASKED, hardware)
    for each in sorted(found, key=lambda one: float(one["runtime"])):
        kernel = each["kernel"]
        yield (
            int(kernel.cta_tile_m), int(kernel.cta_tile_n), int(getattr(kernel, "cluster_m", 1)),
            int(getattr(kernel, "cluster_n", 1)), max(1, int(kernel.split_k)),
        )  # fmt: skip


@cache
def _session(library: Any) -> tuple[Any, Any, Any]:
    """Its interface for bf16 in and out, the layout, and the GPU: an H200, or an H100 where it does not know that."""
    flags = library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
    target = library.NvMatmulHeuristicsTarget.CUTLASS3
    interface = library.NvMatmulHeuristicsInterface(target, precision="TST", flags=flags)
    hardware = interface.createHardwareDescriptor()
    known = library.NvMatmulHeuristicsNvidiaGpu
    gpu = next(getattr(known, name) for name in ("H200_SXM", "H200", "H100_SXM") if hasattr(known, name))
    interface.setHardwarePredefinedGpu(hardware, gpu)
    layout = library.NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR
    interface.loadInternalDiscoverySet(layout, hardware)
    return interface, layout, hardware


def _of(each: Candidate) -> tuple[int, ...]:
    return (*each.tile[:2], *each.cluster, each.split)


def _plain(each: Candidate) -> tuple[Any, ...]:
    """An order that says nothing of speed: whole tiles, cooperative, no cluster, the wider, then by name."""
    return (
        each.tail != "whole", each.schedule != "cooperative", math.prod(each.cluster), -each.tile[1], -each.stages,
        each.family, each.label,
    )  # fmt: skip
