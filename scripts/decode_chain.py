"""The four GEMMs of a decoder layer one after another, each on what the one before it wrote: ours against the vendor's.

One launch of a rival is the whole chain. The first columns of a layer's C are the next layer's A, in place, so that the
chain is really dependent: a kernel with dependent launch may load its weights early and nothing else. Weights are
N(0, 1 / K), which keeps the activations near 1 from layer to layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sweep_plans import LEAST_BYTES, planned, values_of
from tensor_bench import CUBLAS, LT_BEST, Bench

from tilewright import measure, verify
from tilewright.backends.base import Matrix
from tilewright.climb_timing import provenance
from tilewright.dtypes import BF16
from tilewright.errors import VerifyError
from tilewright.measure import Rival
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.results import CHAIN_SCHEMA
from tilewright.rivals import kernel_rival
from tilewright.run import Operands
from tilewright.selection import kernel_of

LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # N and K: QKV, output, gate and up, down
MUSTS: Mapping[int, float] = {1: 1.15, 8: 1.10, 16: 1.10, 64: 1.05}  # by M: the ratio to cuBLAS, with dependent launch
SCHEDULE = measure.Schedule(slot_ms=30.0, rounds=7, graph_ms=4.0, warm_slots=4)
OURS, DEPENDENT = "tilewright", "tilewright PDL"
Chain = list[Operands]


def chain_sets(bench: Bench, m: int, count: int, seed: int = 0) -> list[Chain]:
    """``count`` chains of operands for ``m`` tokens, each C full of NaN."""
    torch = bench.torch
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def drawn(rows: int, cols: int) -> Any:
        return torch.randn((rows, cols), device="cuda", generator=generator)

    chains = []
    for _ in range(count):
        x = drawn(m, LAYERS[0][1]).to(torch.bfloat16)
        chain: Chain = []
        for n, k in LAYERS:
            read = x[:, :k]
            weights = (drawn(n, k) * k**-0.5).to(torch.bfloat16)
            c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
            chain.append(
                Operands(
                    Matrix(read.data_ptr(), m, k, x.shape[1], BF16, read),
                    Matrix(weights.data_ptr(), k, n, k, BF16, weights.T, "column"),
                    Matrix(c.data_ptr(), m, n, n, BF16, c),
                )
            )
            x = c
        chains.append(chain)
    torch.cuda.synchronize()
    return chains


def together(name: str, layers: Sequence[Rival]) -> Rival:
    """The rival of which a launch is one of each layer's, in their order."""

    def launch_of(index: int) -> measure.Launch:
        launches = [layer.launches[index] for layer in layers]

        def launch(stream: Any) -> None:
            for each in launches:
                each(stream)

        return launch

    return Rival(name, [launch_of(index) for index in range(len(layers[0].launches))])


def checked(bench: Bench, rival: Rival, chains: Sequence[Chain]) -> verify.Report:
    """Run each chain once with every C poisoned, and hold each layer against what it was really given: the worst."""
    reports = []
    for launch, chain in zip(rival.launches, chains, strict=True):
        for layer in chain:
            bench.backend.poison(layer.c)
        with bench.backend.current():
            launch(bench.backend.stream)
        bench.backend.synchronize()
        reports += [verify.verify(layer.c.owner, layer.a.owner, layer.b.owner) for layer in chain]
    return max(reports, key=lambda report: (not report.ok, report.max_error_over_bound))


def plans_for(m: int, *, pdl: bool = False) -> list[Plan]:
    """The planner's pick for each layer of ``m`` tokens."""
    written = (LAYERS[0][1], *(n for n, _ in LAYERS))  # the lines that a layer's A lies in are as long as C before it
    return [
        planned(Problem(m, n, k, BF16, None, "row", "column", lda=lda), pdl=pdl)
        for (n, k), lda in zip(LAYERS, written[:-1], strict=True)
    ]


def rivals_of(bench: Bench, chains: Sequence[Chain], plans: Mapping[str, Sequence[Plan]]) -> Iterable[Rival]:
    """cuBLAS, the best of cublasLt, and ours without and with dependent launch."""
    layers = [[chain[place] for chain in chains] for place in range(len(LAYERS))]
    vendors: dict[str, list[Rival]] = {CUBLAS: [], LT_BEST: []}
    for sets in layers:
        for rival, _ in bench.vendors(sets):
            vendors[rival.name].append(rival)
    yield from (together(name, found) for name, found in vendors.items() if len(found) == len(LAYERS))
    for name, chosen in plans.items():
        ours = [
            kernel_rival(bench.backend, kernel_of(p), p, sets, name) for p, sets in zip(chosen, layers, strict=True)
        ]
        yield together(name, ours)


def measure_chain(bench: Bench, m: int, schedule: measure.Schedule = SCHEDULE) -> dict[str, Any]:
    """Check and time the chain of ``m`` tokens; the line of the file. Raises ``VerifyError`` for a wrong result."""
    bytes_moved = sum(2 * n * k for n, k in LAYERS)
    rotation = measure.rotation(bytes_moved, bench.l2_bytes, least_bytes=LEAST_BYTES)
    chains = chain_sets(bench, m, rotation.sets)
    plans = {OURS: plans_for(m), DEPENDENT: plans_for(m, pdl=True)}
    rivals = list(rivals_of(bench, chains, plans))
    errors = {}
    for rival in rivals:
        report = checked(bench, rival, chains)
        if not report.ok:
            raise VerifyError(f"{rival.name}: {report}")
        errors[rival.name] = report.max_error_over_bound
    with bench.backend.telemetry() as snapshot:
        measurement = measure.measure(rivals, bench.timer, baseline=CUBLAS, schedule=schedule, snapshot=snapshot)
    return line_of(m, plans, measurement, errors, asdict(provenance(bench.backend, measurement, rotation.label)))


def line_of(
    m: int,
    plans: Mapping[str, Sequence[Plan]],
    measurement: measure.Measurement,
    errors: Mapping[str, float],
    source: Mapping[str, Any],
) -> dict[str, Any]:
    """The line of a measured chain: times in microseconds a layer, and ratios to cuBLAS, by rival."""
    timed = {name: timing for name, timing in measurement.timings.items() if timing.time_us is not None}
    noise = measurement.noise
    return {
        "schema": CHAIN_SCHEMA,
        "m": m,
        "layers": [list(layer) for layer in LAYERS],
        "plans": {name: [values_of(plan) for plan in chosen] for name, chosen in plans.items()},
        "samples_us": {name: [us / len(LAYERS) for us in timing.samples_us] for name, timing in timed.items()},
        "ratios": {name: ratio.to_dict() for name in timed if (ratio := measurement.ratio(name)) is not None},
        "noise": None if noise is None else noise.to_dict(),
        "sm_clock_mhz_in_kernel": {name: timing.clock_mhz_in_kernel() for name, timing in timed.items()},
        "errors": {name: timing.error for name, timing in measurement.timings.items() if timing.error is not None},
        "verified": dict(errors),
        "provenance": dict(source),
    }


def verdict(lines: Iterable[Mapping[str, Any]]) -> tuple[bool, str]:
    """Whether the newest line of each M is what is asked for, and a table as Markdown."""
    newest = {line["m"]: line for line in lines}
    table = [
        "| chain, M | cuBLAS us a layer | Lt best | without PDL | with PDL | must, with | |",
        "|--:|--:|--:|--:|--:|--:|---|",
    ]
    every = True
    for m, must in MUSTS.items():
        line = newest.get(m, {"ratios": {}, "samples_us": {}})
        ratios = {name: ratio["median"] for name, ratio in line["ratios"].items()}
        ok = ratios.get(DEPENDENT, 0.0) >= must
        every &= ok
        times = line["samples_us"].get(CUBLAS)
        us = f"{measure.Summary.of(times).median:.1f}" if times else "-"
        figures = " | ".join(f"{ratios[name]:.3f}" if name in ratios else "-" for name in (LT_BEST, OURS, DEPENDENT))
        table.append(f"| {m} | {us} | {figures} | {must:.2f} | {'met' if ok else 'MISSED'} |")
    return every, "\n".join(table)
