"""What a split of K over blocks that do not meet costs: partial sums through L2, and how evenly the work lies.

For the families of split-K and stream-K, whose blocks write fp32 parts of a tile to a workspace that the last to arrive
adds up, in the order of K. All functions take NumPy arrays that broadcast.
"""

from __future__ import annotations

import numpy as np

from tilewright.plan_parts import CLUSTER_BYTES_PER_CLOCK
from tilewright.planner.machine import Machine
from tilewright.planner.persistent import STORE_BYTES_PER_CLK
from tilewright.planner.raster import Bools, Floats, Ints

PARTIAL_BYTES = 4  # of a sum in fp32
# Fitted to the sweep:
ARRIVE_US = 1.1
"""From a part's last store to what its last arriver can rely on: a fence, a counter in L2, and its answer."""
EXCHANGE_US = 1.0
"""Of a cluster whose blocks add up in each other's shared memory, what is not bytes, for each doubling of the blocks:
accumulators change places, and the last of more blocks is waited for."""


def splitk_items(tiles: Ints, splits: Ints) -> Ints:
    """Blocks' worth of work of a grid in which each tile is cut into ``splits`` parts."""
    return tiles * splits


def streamk_tiles(tiles: Ints, places: Ints, two_tiles: Bools) -> Ints:
    """Tiles that share K, of a stream-K grid of ``places`` blocks: those that do not fill a round.

    The others are computed whole, round by round. None where the tiles fill their rounds. With ``two_tiles`` the last
    full round is shared too, so that no block has less than one and more than two tiles' worth.
    """
    rest = tiles % places
    shared: Ints = rest + np.where((rest > 0) & (tiles > places) & two_tiles, places, 0)
    return shared


def balance(tiles: Ints, splits: Ints, places: Ints) -> Floats:
    """The share of places with work over the rounds of a split-K grid."""
    items = splitk_items(tiles, splits)
    share: Floats = items / (-(-items // places) * places)
    return share


def reduction_us(parts: Ints, tiles: Ints, tile_elements: Ints, machine: Machine) -> tuple[Floats, Floats]:
    """Writing ``parts`` of ``tiles`` that are cut, and the last arriver's sum of one, in microseconds.

    All SMs write the parts, at what one stores; only the blocks that come last read, each those of its tile, at what
    one SM draws: all at once, or in groups and then their sums, which is a root of as many twice. Nothing where no tile
    is cut: ``parts`` is then 0, or as many as the tiles.
    """
    c = machine.calibration
    cut = (parts > tiles) & (tiles > 0)
    bytes_of = tile_elements * float(PARTIAL_BYTES)
    active = np.minimum(np.maximum(parts, 1), machine.sms)
    hertz = c.boost_clock_mhz * 1e6
    write = parts * bytes_of / (active * STORE_BYTES_PER_CLK * hertz)
    each = parts / np.maximum(tiles, 1)
    one = bytes_of / (c.l2_alone_bytes_per_clk * hertz) * 1e6
    groups = 2 * np.ceil(np.sqrt(each))
    last = np.minimum(each * one + ARRIVE_US, groups * one + 2 * ARRIVE_US)
    return np.where(cut, write * 1e6, 0.0), np.where(cut, last, 0.0)


def exchange_us(blocks: Ints, tile_elements: Ints, machine: Machine) -> Floats:
    """What ``blocks`` of a cluster need to add up their accumulators of a tile in each other's shared memory.

    Each receives its share of the tile from all others. In microseconds; nothing where a block is alone.
    """
    received = (blocks - 1) / blocks * tile_elements * float(PARTIAL_BYTES)
    moved = received / (CLUSTER_BYTES_PER_CLOCK * machine.calibration.boost_clock_mhz)
    return np.where(blocks > 1, EXCHANGE_US * np.log2(blocks) + moved, 0.0)


def workspace_bytes(parts: Ints, tile_elements: Ints) -> Ints:
    """Of the parts in fp32, each in its place."""
    found: Ints = parts * tile_elements * PARTIAL_BYTES
    return found
