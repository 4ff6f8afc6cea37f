"""The swap-AB branch: weights on the rows of wgmma, a deep ring of them, K shared by a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.plan_parts import CLUSTER_BYTES_PER_CLOCK
from tilewright.plan_swapab import CLUSTERS, MOST_TOKENS, WEIGHT_ROWS, SwapAbPlan
from tilewright.plan_tensor import SHARED_LIMIT, SWIZZLE_ROW
from tilewright.planner import constraints
from tilewright.planner import stream_constraints as limits
from tilewright.planner.candidate import Candidate, Predicted, Raster
from tilewright.planner.facts import Shape, candidate
from tilewright.planner.family import Family, Offer, register
from tilewright.planner.judgement import Finding
from tilewright.planner.lazy import LazySequence, chained
from tilewright.planner.machine import Machine
from tilewright.planner.persistent import ISSUE_CLK, PROLOGUE_CLK
from tilewright.planner.raster import Bools, Floats, Ints, columns_of
from tilewright.planner.stream import Stream, StreamEstimate, latency_source
from tilewright.planner.supply import AS_ALONE, BEFORE_FIRST, DRIFT, FILL, SAME_LINES, askew
from tilewright.problem import Layout, Problem

TOKENS = tuple(range(8, MOST_TOKENS + 1, 8))
DEPTHS = (64, 128, 256)  # of others none is 2% faster than the fastest of these
WALK = Raster(1, "n")  # all tokens of some weights, then the next weights: cuda/branches/swapab.cu
SPREAD = (0.92, 1.12)
# Of what a lane stores of C at once, 8 elements where rows are aligned, else one; of these a warp has 16 bytes of a row
# at a time, half of what a sector of L2 takes.
BY_ELEMENTS = 8 * 2
EXCHANGE_WAYS = (
    2  # through distributed shared memory that the exchange of a cluster is, each about as long as one to L2
)
# Fitted to the sweep:
FIXED_US = 0.5  # beside launch, loads, products and stores
STORE_BYTES_PER_CLK = 12  # of C, by warps, while nothing is multiplied
RESERVED = 1024  # bytes of shared memory that each block on an SM takes beside its own

Kind = tuple[int, int, int, int, int]
KINDS: tuple[Kind, ...] = tuple(product(TOKENS, (WEIGHT_ROWS, 2 * WEIGHT_ROWS), DEPTHS, CLUSTERS, (1, 2)))


def kind_plan(kind: Kind, dtype: DType, a: Layout, b: Layout, aligned: bool = True) -> SwapAbPlan:
    """A plan of tokens, weights, depth, cluster and blocks an SM, with all the stages that these leave room for.

    Its grid is a cluster; ``offer`` gives it the GPU's. Raises ``UsageError`` where no kernel has it.
    """
    tokens, weights, depth, cluster, per_sm = kind
    least = SwapAbPlan(
        dtype, tokens, weights, depth, aligned, a, b, stages=2, cluster_k=cluster, blocks=cluster * per_sm
    )
    rest = least.shared_bytes - 2 * (least.stage_bytes + 16)
    stages = (_room(per_sm) - rest) // (least.stage_bytes + 16)
    if stages < 2:
        raise UsageError(
            f"{least.of}: {per_sm} blocks an SM have {_room(per_sm)} bytes of shared memory each, too few for 2 stages"
        )
    return replace(least, stages=stages)


def _room(per_sm: int) -> int:
    """Bytes of shared memory that each of so many blocks on an SM has."""
    return (SHARED_LIMIT + RESERVED) // per_sm - RESERVED


@dataclass(frozen=True)
class _Table:
    """Plans, with what of them no problem changes."""

    plans: tuple[SwapAbPlan, ...]
    columns: dict[str, Ints]
    refused: tuple[Kind, ...] = ()


@lru_cache(maxsize=32)
def table(dtype: DType, a: Layout, b: Layout, aligned: bool) -> _Table:
    """Every kind once; of those refused none for two blocks an SM that is for one."""
    plans: dict[Kind, SwapAbPlan] = {}
    for kind in KINDS:
        with suppress(UsageError):
            plans[kind] = kind_plan(kind, dtype, a, b, aligned)
    refused = tuple(kind for kind in KINDS if kind not in plans and (kind[-1] == 1 or (*kind[:-1], 1) in plans))
    return _table(list(plans.values()), [kind[-1] for kind in plans], refused)


def _table(plans: Sequence[SwapAbPlan], per_sm: Sequence[int], refused: tuple[Kind, ...] = ()) -> _Table:
    each = {
        "bm": [p.bm for p in plans],
        "bn": [p.bn for p in plans],
        "bk": [p.bk for p in plans],
        "split": [p.cluster_k for p in plans],
        "stages": [p.stages for p in plans],
        "per_sm": per_sm,
    }
    return _Table(tuple(plans), columns_of(each), refused)


class SwapAb(Family):
    """Every tile of tokens and weights, with a full ring, or half of one and two blocks an SM."""

    name = "swapab"
    residuals = ("turnaround", "fixed")

    def prices(self, plan: Plan) -> bool:
        """Those of its kernel."""
        return isinstance(plan, SwapAbPlan)

    def refusal(self, problem: Problem) -> str | None:
        """What the plan says of the dtype, and TMA of the lines of A and B."""
        try:
            kind_plan((64, 64, 64, 1, 1), problem.dtype, problem.a_layout, problem.b_layout)
        except UsageError as error:
            return str(error)
        lines = constraints.tma_lines(problem, "AB")
        return None if lines.ok else lines.sentence

    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """A tile of 64 tokens, with the reason."""
        return _refused(problem, (64, 64, 64, 1, 1), machine, reason)

    def priced(self, plan: Plan, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan, as it is."""
        assert isinstance(plan, SwapAbPlan)
        clusters = min(plan.blocks // plan.cluster_k, machine.places(plan.cluster_k) * self._per_sm(plan))
        per_sm = -(-clusters // machine.places(plan.cluster_k))
        found = _table([plan], [per_sm])
        return self._offered(found, np.array([clusters]), problem, machine, np.array([plan.dependent_launch]))

    def staged(self, candidate: Candidate, stages: int) -> SwapAbPlan:
        """With as many blocks an SM as the candidate has."""
        plan = candidate.plan
        assert isinstance(plan, SwapAbPlan)
        found, per_sm = plan.with_(stages=stages), self._per_sm(plan)
        if self._per_sm(found) < per_sm:
            raise UsageError(
                f"{plan.of}: {stages} stages take {found.shared_bytes} bytes of shared memory; {per_sm} blocks an SM "
                f"have {_room(per_sm)} each"
            )
        return found

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """Every legal kind, of token tiles of which there are as many the smallest."""
        whole = table(problem.dtype, problem.a_layout, problem.b_layout, problem.aligned)
        t = whole.columns
        fits, least = t["split"] <= machine.sms, t["bm"] == _least_tokens(problem)[t["bm"] // 8]
        (chosen,), dependent = machine.launches(np.flatnonzero(fits & least).tolist())
        found = _Table(tuple(whole.plans[at] for at in chosen), {name: values[chosen] for name, values in t.items()})
        offer = self._offered(found, machine.places_of(found.columns["split"]) * t["per_sm"][chosen], problem, machine,
                              dependent)  # fmt: skip

        def passed_over(which: Ints) -> LazySequence[Candidate]:
            return LazySequence(
                len(which), lambda index: _passed_over(whole.plans[int(which[index])], problem, machine)
            )

        refused = LazySequence(len(whole.refused), lambda index: _refused(problem, whole.refused[index], machine))
        rejected = chained([refused, passed_over(np.flatnonzero(~fits)), passed_over(np.flatnonzero(fits & ~least))])
        return replace(offer, rejected=rejected)

    def kernels(self, tile: tuple[int, int, int], problem: Problem, machine: Machine) -> Iterator[Plan]:
        """Of any tile, in each cluster and with one block an SM and two."""
        for cluster, per_sm in product((each for each in CLUSTERS if each <= machine.sms), (1, 2)):
            with suppress(UsageError):
                plan = kind_plan(
                    (*tile, cluster, per_sm), problem.dtype, problem.a_layout, problem.b_layout, problem.aligned
                )
                yield plan.with_(
                    blocks=machine.places(cluster) * cluster * per_sm, dependent_launch=machine.dependent_launch
                )

    def unlisted(self, tile: tuple[int, int, int], problem: Problem) -> str | None:
        """Why a tile is no candidate: fewer tokens are as many tiles; or it is the depth of a stage."""
        tokens, _, depth = tile
        if depth not in DEPTHS:
            return f"stages of {', '.join(map(str, DEPTHS))} k are the candidates: of {depth} k they are not 2% faster"
        least = int(_least_tokens(problem)[tokens // 8])
        if tokens == least:
            return None
        tiles = -(-problem.m // tokens)
        return (
            f"M = {problem.m} is {tiles} tile{'' if tiles == 1 else 's'} of {tokens} tokens and as many of {least}, "
            "which are never slower: they leave more room and multiply less"
        )

    def source(self, term: str, candidate: Candidate, said: str) -> str:
        """A latency before the loop, and after it what a cluster adds up."""
        adds = f", added up over {candidate.split} blocks" if term == "epilogue" and candidate.split > 1 else ""
        return latency_source(term, candidate, said + adds, FIXED_US)

    def findings(self, candidate: Candidate, problem: Problem, machine: Machine) -> Iterator[Finding]:
        """The ring, what is in flight, the SMs that have work, tokens and how often they are read."""
        plan = candidate.plan
        assert isinstance(plan, SwapAbPlan)
        c, places = machine.calibration, machine.places(plan.cluster_k)
        per_sm = max(1, -(-plan.blocks // (places * plan.cluster_k)))
        weights = plan.bn * plan.bk * plan.dtype.itemsize
        yield limits.tokens(problem.m, plan.bm, MOST_TOKENS, "the N of its wgmma")
        yield limits.ring(plan.stage_bytes, plan.stages, plan.full().stages, weights, per_sm)
        blocks = plan.grid(problem)[0]
        turnaround = float(self._turnaround_us(np.array(plan.stage_bytes), machine))
        reached = places * plan.cluster_k  # SMs, of which clusters leave some empty
        resident = min(per_sm, -(-blocks // reached))
        deep = min(problem.k, -(-problem.k // (plan.bk * plan.cluster_k)) * plan.bk)  # of K, what a block has
        moving = min((plan.stages - 1) * weights, min(plan.bn, problem.n) * deep * plan.dtype.itemsize)
        yield limits.in_flight(resident, moving, blocks, reached, turnaround, c.hbm_read_bytes_per_s)
        yield limits.reach(plan.cluster_k, places, machine.sms, candidate.tiles, per_sm)
        yield limits.tokens_read(problem, plan.bm, plan.bn, "a tile")
        if plan.cluster_k > 1:
            yield limits.k_shares(problem.k, plan.bk, plan.cluster_k, "blocks of a cluster")

    @staticmethod
    def _per_sm(plan: SwapAbPlan) -> int:
        """Blocks of the plan that have room on an SM at a time."""
        return max(1, (SHARED_LIMIT + RESERVED) // (plan.shared_bytes + RESERVED))

    def _turnaround_us(self, stage_bytes: Ints, machine: Machine) -> Floats:
        """The latency of HBM, and a stage's bytes as fast as all SMs are given them at the same time.

        Bytes are in flight as long as they wait for those of other SMs: a ring of few stages has no others meanwhile.
        """
        c = machine.calibration
        clk = c.tma_latency_hbm_clk + stage_bytes / c.l2_bytes_per_clk_per_sm
        found: Floats = clk / c.boost_clock_mhz * c.residual(self.name, "turnaround")
        return found

    def _offered(self, found: _Table, places: Ints, problem: Problem, machine: Machine, dependent: Bools) -> Offer:
        t, c = found.columns, machine.calibration
        itemsize, port = problem.dtype.itemsize, machine.gpu.shared_bytes_per_clock
        bm, bn, bk, split = t["bm"], t["bn"], t["bk"], t["split"]
        down, across = -(-problem.m // bm), -(-problem.n // bn)
        tiles = down * across
        steps = -(-np.maximum(1, -(-problem.k // bk)) // split)  # of the block that has most
        depth = np.minimum(steps * bk, np.maximum(problem.k, 1))
        slices = steps * bk / SWIZZLE_ROW
        weights = problem.n / across * depth * itemsize
        tokens = problem.m / down * depth * itemsize
        groups = bn / WEIGHT_ROWS
        tensor = slices * 4 * groups * c.wgmma_clocks_of(bm)
        reads = slices * 4 * groups * (64 + bm) * 16 * itemsize / port
        fills = (weights + tokens) / port
        # Fragments of 8 tokens by 16 weights: some blocks may add up one more than others.
        fragments = bm * bn // 128
        partial = -(-fragments // split) * 128 * 4.0 * (split - 1)
        ways = EXCHANGE_WAYS * (c.tma_latency_l2_clk + partial / CLUSTER_BYTES_PER_CLOCK)
        exchange = np.where(split > 1, ways, 0.0)
        ones = np.ones(len(bm))
        first = PROLOGUE_CLK + c.tma_latency_hbm_clk
        lines = problem.ldc * problem.out_dtype.itemsize % 16 == 0
        stores = bm * bn * problem.out_dtype.itemsize / STORE_BYTES_PER_CLK * (1 if lines else BY_ELEMENTS)
        out = exchange + stores
        rounds = -(-tiles // places)
        # Rounds whose C leaves while the next tile's stages come; the blocks of a cluster wait for each other's.
        under = np.where((split == 1) & lines, rounds - 1, 0)
        a_cost, b_cost = askew(problem)
        rows = bn / WEIGHT_ROWS * t["per_sm"]
        fixed_us = FIXED_US * c.residual(self.name, "fixed")
        stream = Stream(
            tiles=tiles,
            split=split,
            places=places,
            reached=places // t["per_sm"] * split,
            own_bytes=a_cost * tokens + b_cost * weights + FILL * (bm - problem.m / down) * depth * itemsize,
            shared_bytes=0 * weights,
            weight_bytes=weights / down,
            run_bytes=bk * itemsize,
            chain=steps / (t["stages"] - 1),
            turnaround_us=self._turnaround_us((bm + bn) * bk * itemsize, machine),
            tensor_clk=tensor + (under > 0) * out,
            port_clk=reads + c.port_contention * fills,
            issue_clk=(steps * ISSUE_CLK).astype(float),
            ring_clk=0 * weights,
            last_part=ones,
            launch_us=np.where(split > 1, c.cluster_launch_us, c.launch_us),
            ramp_us=BEFORE_FIRST * fixed_us,
            first_clk=ones * first,
            end_us=ones * (1 - BEFORE_FIRST) * fixed_us,
            end_clk=(exchange + stores * t["per_sm"]) * (rounds - under),  # the blocks of an SM store at the same time
            dependent=dependent,
            shown_clk=0.0,
            flows=split < 0,
            round_us=0.0,
            # Blocks that start together and have whole tiles ask for the same lines at the same time: in a dependent
            # launch, where they start one by one as room is left, only at about the same time, and in clusters along K
            # not at all where these have several tiles. Lines that lie askew come in halves, which do not meet.
            same=np.select(
                [(down > 1) & (split > 1) | (max(a_cost, b_cost) > 1), dependent | (split > 1)],
                [1.0, SAME_LINES],
                AS_ALONE,
            ),
            apart=0.0 * ones,
            # The blocks of each row of token tiles read all weights, out of step with each other.
            again_bytes=np.where(dependent & (split == 1), DRIFT * rows * down * problem.n * problem.k * itemsize, 0.0),
            useful_elements=problem.m * problem.n / (tiles * bm * bn),
            flop=2.0 * bm * bn * depth,
            pj_per_flop=c.energy_pj_per_flop,
        )
        estimate = StreamEstimate(stream, problem, machine)

        def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            plan = replace(
                found.plans[index], blocks=int(places[index] * split[index]), dependent_launch=bool(dependent[index])
            )
            shape = _shape(plan, int(places[index]))
            return candidate(
                problem, shape, raster=WALK, plan=plan, terms_us=terms, predicted_us=predicted, split=plan.cluster_k,
                swap_ab=True,
            )  # fmt: skip

        # Of the same time the smaller cluster, one block an SM, then the more warpgroups (one waits while another
        # multiplies), the fewer tokens, the deeper stage.
        ties = np.stack([dependent, split, t["per_sm"], -bn, bm, -bk], axis=1)
        nothing: LazySequence[Candidate] = LazySequence(0, lambda index: make(index, {}, Predicted(0, 0, 0, 0)))
        return Offer(estimate.sustained(), estimate.burst(), ties, stream.useful, make, nothing, SPREAD, dependent)


def _least_tokens(problem: Problem) -> Ints:
    """By the tokens of a tile in eights, the fewest that are as many tiles and that A's layout allows."""
    allowed = [tokens for tokens in TOKENS if problem.a_layout == "row" or tokens % SWIZZLE_ROW == 0]
    fewest: dict[int, int] = {}
    for tokens in allowed:
        fewest.setdefault(-(-problem.m // tokens), tokens)
    by_eights = [fewest.get(-(-problem.m // tokens), tokens) for tokens in TOKENS]
    return np.array([0, *by_eights], dtype=np.int64)


def _shape(plan: SwapAbPlan, places: int) -> Shape:
    full = (SHARED_LIMIT - plan.shared_bytes + plan.stages * (plan.stage_bytes + 16)) // (plan.stage_bytes + 16)
    return Shape(
        family=SwapAb.name,
        tile=(plan.bm, plan.bn, plan.bk),
        stages=plan.stages,
        max_stages=full,
        max_stages_no_epilogue=SHARED_LIMIT // (plan.stage_bytes + 16),
        shared_bytes=plan.shared_bytes,
        accumulator_registers_per_thread=plan.bm // 2,
        consumers=plan.bn // WEIGHT_ROWS,
        schedule="cooperative",
        places=places,
    )


def _passed_over(plan: SwapAbPlan, problem: Problem, machine: Machine) -> Candidate:
    """A kind that a kernel has and that is no choice."""
    if plan.cluster_k > machine.sms:
        reason: str | None = (
            f"a cluster of {plan.cluster_k} blocks does not fit on {machine.sms} SM{'s' * (machine.sms != 1)}"
        )
    else:
        reason = SWAP_AB.unlisted((plan.bm, plan.bn, plan.bk), problem)
    shape = _shape(plan, max(1, machine.sms // plan.cluster_k))
    return candidate(problem, shape, rejected=reason, split=plan.cluster_k, swap_ab=True)


def _refused(problem: Problem, kind: Kind, machine: Machine, reason: str | None = None) -> Candidate:
    """A kind that no kernel has, with two stages, and the reason where it is not what the plan says."""
    tokens, weights, depth, cluster, _ = kind
    if reason is None:
        try:
            kind_plan(kind, problem.dtype, problem.a_layout, problem.b_layout, problem.aligned)
        except UsageError as error:
            reason = str(error)
    stage = (tokens + weights) * depth * problem.dtype.itemsize
    shape = Shape(
        family=SwapAb.name,
        tile=(tokens, weights, depth),
        stages=2,
        max_stages=SHARED_LIMIT // (stage + 16),
        max_stages_no_epilogue=SHARED_LIMIT // (stage + 16),
        shared_bytes=2 * (stage + 16),
        accumulator_registers_per_thread=tokens // 2,
        consumers=weights // WEIGHT_ROWS,
        schedule="cooperative",
        places=max(1, machine.sms // cluster),
    )
    return candidate(problem, shape, raster=WALK, rejected=reason, split=cluster, swap_ab=True)


SWAP_AB = SwapAb()
register(SWAP_AB)
