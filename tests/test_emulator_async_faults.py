"""What mbarriers, TMA and clusters do not forgive, and how the emulator names it, whenever copies happen to be done."""

from __future__ import annotations

import re

import numpy as np
import pytest
from observed import kernel_source

from tilewright.backends.base import Matrix, TensorMap
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.backends.emulator_tensor_map import encode, pack
from tilewright.dtypes import BF16
from tilewright.errors import EmulatorFault, UsageError

SHARED_BYTES = 3072
FAULTS = {  # CASE of async_faults.cu: blocks of its cluster, the fault's kind, its report
    0: (1, "misuse", "mbarrier_arrive: mbarrier shared+2056 is not initialised [block 0,0,0 thread 0]"),
    1: (1, "misuse", "mbarrier_arrive: mbarrier shared+2048 has been overwritten [block 0,0,0 thread 0]"),
    2: (1, "misuse", "mbarrier shared+2048 already has the 1 arrivals of its phase, which waits for 16 bytes"),
    3: (1, "misuse", "shared+2048 has all 1 arrivals of its phase, and 16 bytes more than they expected"),
    4: (1, "deadlock", "mbarrier wait shared+2048 parity 0 (phase 0, 0 arrivals missing, 16 bytes missing) [block"),
    5: (1, "misaligned", "mbarrier_arrive: the mbarrier shared+4 is not at a multiple of 8"),
    6: (1, "misuse", "is not in this block's 3072 bytes of shared memory"),
    7: (1, "misuse", "mbarrier_init: mbarrier shared+2048 is initialised already"),
    8: (1, "misuse", "mbarrier_init: 0 arrivals; 1 to 1048575 are possible"),
    9: (1, "misuse", "mbarrier_wait: parity 2; it is 0 or 1"),
    10: (2, "misuse", "mbarrier_arrive_remote: block rank 2 of a cluster of 2"),
    11: (
        1,
        "deadlock",
        "no thread can run:\n  warps 0-1: mbarrier wait shared+2048 parity 0 (phase 0, 2 arrivals missing)",
    ),
    12: (1, "misuse", "1048576 bytes are outstanding in its phase; it counts up to 1048575 either way"),
    13: (1, "misuse", "shared+2056 has all 2 arrivals of its phase, and 1008 bytes more than they expected"),
    20: (1, "misuse", "is not a tensor map"),
    21: (1, "misuse", "tma_load: 3 coordinates for a tensor map of rank 2"),
    22: (1, "misaligned", "shared+128 is not at a multiple of 1024, as a box with 128 bytes of swizzle has to be"),
    23: (1, "out-of-bounds", "the box of 1024 bytes at shared+2560 is not in this block's 3072 bytes"),
    24: (2, "misuse", "tma_load: mbarrier shared+2048 of block rank 1 is not initialised [block 0,0,0 thread 0]"),
    25: (2, "misuse", "tma_load: multicast to blocks 0x5 of a cluster of 2"),
    26: (2, "misuse", "multicast to block rank 1, which has returned, and its shared memory with it"),
    27: (1, "misuse", "in flight at exit: the block returns, and no thread of it has waited for 1024 bytes that TMA"),
    28: (1, "misuse", "in flight at exit: the thread returns with 1 TMA stores that may still read shared memory"),
    29: (1, "misuse", "since it has not waited for them; 1 of them are not committed"),
    30: (1, "misuse", "in flight at exit: the block returns, and its mbarrier shared+2048 still expects 48 bytes"),
    31: (2, "misuse", "the arrivals of block rank 0 warp 0 at its mbarriers have come [block 1,0,0"),
    32: (2, "misuse", "mbarrier_arrive_remote: block rank 1 has returned, and its shared memory with it"),
    33: (2, "misuse", "no thread of it has waited for 1024 bytes that TMA loads bring into it, counted on mbarrier"),
    34: (2, "misuse", "nothing has told it that the arrivals of block rank"),
    35: (1, "misaligned", "is not at a multiple of 64"),
    36: (1, "misaligned", "tma_store: shared+64 is not at a multiple of 1024"),
    40: (2, "misuse", "cluster_arrive: the thread has not waited since it arrived last"),
    41: (2, "misuse", "cluster_wait: the thread has not arrived"),
    42: (2, "deadlock", "\n  block rank 0 warp 1 lanes 8-8: mbarrier wait shared+2048 parity 0 (phase 0, 1 arrivals"),
}


def launch(emulator: EmulatorBackend, case: int, cluster: int) -> None:
    source = kernel_source("core/async_faults.cu", SHARED_BYTES=SHARED_BYTES, CASE=case)
    matrix = emulator.upload(np.ones((16, 64), BF16.numpy))
    args = [TensorMap(matrix, (64, 8)), matrix, np.uint32(0)]
    emulator.launch(emulator.compile(source), (cluster, 1, 1), (64, 1, 1), args, SHARED_BYTES, cluster=cluster)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", FAULTS)
def test_fault(case: int, policy: Policy) -> None:
    cluster, kind, says = FAULTS[case]
    with pytest.raises(EmulatorFault, match=re.escape(says)) as caught:
        launch(EmulatorBackend(policy), case, cluster)
    assert caught.value.kind == kind


def test_a_deadlock_names_the_barrier_of_the_cluster() -> None:
    with pytest.raises(EmulatorFault) as caught:
        launch(EmulatorBackend(), 42, 2)
    waiting = "cluster_wait (126 of the cluster's 128 live threads arrived)"
    assert caught.value.detail.splitlines()[1:4] == [
        f"  block rank 0 warp 0 lanes 0-31: {waiting}",
        f"  block rank 0 warp 1 lanes 0-7: {waiting}",
        "  block rank 0 warp 1 lanes 8-8: mbarrier wait shared+2048 parity 0 (phase 0, 1 arrivals missing)",
    ]


def test_the_next_launch_starts_afresh() -> None:
    emulator = EmulatorBackend("lazy")
    for case in (27, 42, 33, 28):
        with pytest.raises(EmulatorFault):
            launch(emulator, case, FAULTS[case][0])
        launch(emulator, 99, 2)  # nothing but a barrier of the cluster


BASE, EXTENTS, STRIDES, BOX = 4096, (128, 32), (256,), (64, 8)


@pytest.mark.parametrize(
    ("base", "extents", "strides", "box", "swizzle", "says"),
    [
        (4104, EXTENTS, STRIDES, BOX, 128, "multiple of 16"),
        (BASE, (0, 32), STRIDES, BOX, 128, "1 to 2^32"),
        (BASE, (2**32 + 1, 32), STRIDES, BOX, 128, "1 to 2^32"),
        (BASE, EXTENTS, (264,), BOX, 128, "multiples of 16 below 2^40"),
        (BASE, EXTENTS, (2**40,), BOX, 128, "multiples of 16 below 2^40"),
        (BASE, EXTENTS, STRIDES, (64, 257), 128, "1 to 256"),
        (BASE, EXTENTS, STRIDES, (0, 8), 0, "1 to 256"),
        (BASE, EXTENTS, STRIDES, (12, 8), 0, "no multiple of 16"),
        (BASE, EXTENTS, STRIDES, (128, 8), 128, "more than the swizzle's 128"),
        (BASE, EXTENTS, STRIDES, (32, 8), 128, "no shorter ones"),
        (BASE, EXTENTS, STRIDES, BOX, 96, "0, 32, 64, 128 are possible"),
        (BASE, EXTENTS, (), BOX, 128, "a stride less"),
        (BASE, (128,), (), (64,), 128, "2 to 5 extents"),
    ],
)
def test_rules_of_tensor_maps(
    base: int, extents: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], swizzle: int, says: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        encode(base, 2, extents, strides, box, swizzle)
    with pytest.raises(UsageError, match="element_bytes is 3"):
        encode(BASE, 3, EXTENTS, STRIDES, BOX, 128)


@pytest.mark.parametrize(("rows", "cols", "ld"), [(1, 64, 65), (0, 64, 64), (8, 0, 0), (8, 0, 3)])
def test_what_has_no_second_line_has_no_stride(rows: int, cols: int, ld: int) -> None:
    assert len(pack(TensorMap(Matrix(BASE, rows, cols, ld, BF16, None), (64, 8)))) == 128


def test_a_map_of_a_matrix_that_tma_cannot_read() -> None:
    with pytest.raises(UsageError, match=r"strides are \(130,\) bytes"):
        pack(TensorMap(Matrix(BASE, 8, 64, 65, BF16, None), (64, 8)))
