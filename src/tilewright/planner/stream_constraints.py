"""The constraints of kernels that stream the weights, each a function that says it with its numbers filled in.

As in ``constraints``: a *hard* one no kernel breaks, of the others one that does is slower for it.
"""

from __future__ import annotations

from tilewright.planner.judgement import Finding
from tilewright.problem import Problem
from tilewright.roofline import amount, held, number

MUCH_READ = 0.5  # of the bytes of the weights; beyond it tokens that are read again are worth a finding
ENOUGH_SMS = 0.6  # of all, to draw nearly the bandwidth of HBM: 85 of 132 do
GOOD_SHARES = 0.8
_OCCUPANCY = "cuOccupancyMaxActiveClusters on an H200 of 132 SMs"
_REGISTERS = "CUDA C++ Programming Guide, registers of an SM; what ptxas takes beside them was counted"
_LITTLE = "arithmetic, Little's law: bytes in flight are a rate times the time they are on their way"
_TOKENS = "arithmetic: every block, or warp, asks for its tokens over all of its K"
_WORKSPACE = "arithmetic: a tile of fp32 for each part"
_SHARES = "arithmetic: K in steps, dealt out to those that share it"


def tokens(m: int, bm: int, most: int, what: str) -> Finding:
    """Rows of C against those that one pass over the weights serves."""
    passes = -(-m // bm)
    said = f"M is {number(m)}; a tile has {bm} token{'s' if bm != 1 else ''}, {what}, of at most {most}"
    if passes > 1:
        said += f": {number(passes)} passes over the weights, all but one of them from L2"
    return Finding("tokens", passes <= 1, m, bm, "rows", said, _TOKENS, hard=False)


def lane_registers(held: int, spare: int, available: int, blocks: int, threads: int, *, hard: bool = True) -> Finding:
    """Registers of a thread that loads fill and sums take, against those of an SM that so many blocks share.

    Where it is not ``hard`` there is a kernel with more than those, whose compiler finds the room or spills the rest.
    """
    needed = held + spare
    said = (
        f"loads and sums are {held} registers a thread, the rest about {spare}: {needed}; {blocks} block"
        f"{'s' if blocks != 1 else ''} of {threads} threads on an SM leave {available}"
    )
    if needed > available and not hard:
        said += "; what finds no room there is spilled"
    return Finding("lane registers", needed <= available, needed, available, "registers", said, _REGISTERS, hard)


def in_flight(resident: int, block_bytes: int, blocks: int, sms: int, turnaround_us: float, rate: float) -> Finding:
    """Bytes of weights on their way to the SMs, against what the bandwidth of HBM asks for over a turnaround.

    ``sms`` are those that blocks find room on, up to ``resident`` of them on each.
    """
    active = min(blocks, sms)
    at_once = min(blocks, active * resident)
    moving = at_once * block_bytes
    needed = rate * turnaround_us * 1e-6
    where = f"{active} SM{'s' if active != 1 else ''} x {resident} block{'s' if resident != 1 else ''}"
    if at_once < active * resident:
        where = f"{at_once} blocks on {active} SMs"
    said = (
        f"{where} x {amount(block_bytes)} of weights = {amount(moving)} in flight; {number(rate / 1e12)} TB/s over the "
        f"{number(turnaround_us)} us until a load is replaced ask for {amount(needed)}"
    )
    return Finding("bytes in flight", moving >= needed, moving, needed, "B", said, _LITTLE, hard=False)


def tokens_read(problem: Problem, bm: int, bn: int, what: str) -> Finding:
    """How often the tokens are read, beside the weights, which are read once."""
    size = problem.dtype.itemsize
    again = -(-problem.n // bn) * min(bm, problem.m) * -(-problem.m // bm) * problem.k * size
    weights = problem.n * problem.k * size
    share = again / weights if weights else 0.0
    said = (
        f"{what} holds {bn} row{'s' if bn != 1 else ''} of weights, so that tokens come {-(-problem.n // bn):,} times "
        f"from L2, {amount(again)} beside {amount(weights)} of weights: {share:.0%}"
    )
    return Finding("tokens again", share <= MUCH_READ, share, MUCH_READ, "", said, _TOKENS, hard=False)


def k_shares(k: int, bk: int, sharing: int, what: str) -> Finding:
    """Steps of K for each of those that share it, and how even that is."""
    steps = max(1, -(-k // bk))
    each = -(-steps // sharing)
    even = steps / (each * sharing)
    said = (
        f"K = {number(k)} is {number(steps)} step{'s' if steps != 1 else ''} of {bk}, over {sharing} {what} at most "
        f"{number(each)} each: {even:.0%} of that has work"
    )
    return Finding("shares of K", even >= GOOD_SHARES, even, GOOD_SHARES, "", said, _SHARES, hard=False)


def ring(stage_bytes: int, count: int, most: int, weight_bytes: int, blocks_per_sm: int) -> Finding:
    """Stages of the ring, against those that a block's shared memory holds; one is multiplied, the others load."""
    said = (
        f"{count} stages of {held(stage_bytes)}, {held(weight_bytes)} of them weights; {most} fit a block; one is "
        f"multiplied while {count - 1} load{'s' if count == 2 else ''}"
    )
    if blocks_per_sm > 1:
        said += f", in {blocks_per_sm} blocks an SM"
    return Finding("ring", 2 <= count <= most, count, most, "stages", said, "cuda/branches/swapab.cu")


def reach(split: int, clusters: int, sms: int, tiles: int, blocks_per_sm: int = 1) -> Finding:
    """SMs that have work: blocks that share K in clusters, of which the GPCs hold so many with a block on each SM."""
    blocks = min(tiles, clusters) * split
    said = f"{number(tiles)} tile{'s' if tiles != 1 else ''}"
    if split > 1:
        said += f", K of each shared by {split}: clusters of {split} find {clusters * blocks_per_sm} places"
    if blocks_per_sm > 1:
        said += f", {blocks_per_sm} blocks an SM"
    said += f"; {blocks} of {sms} SM{'s have' if sms != 1 else ' has'} work at a time"
    least = ENOUGH_SMS * sms
    return Finding("SMs with work", blocks >= least, blocks, least, "SMs", said, _OCCUPANCY, hard=False)


def cut(said: str, used: float) -> Finding:
    """How K of the tiles is dealt out, in the plan's words, and how much of the places has work."""
    return Finding("parts", used >= GOOD_SHARES, used, GOOD_SHARES, "", said, _SHARES, hard=False)


def workspace(count: int, keeps: float) -> Finding:
    """Bytes of partial sums, written once and read once, against those that stay in L2."""
    said = f"partial sums and counters take a workspace of {amount(count)}; L2 keeps {amount(keeps)}"
    return Finding("workspace", count <= keeps, count, keeps, "B", said, _WORKSPACE, hard=False)
