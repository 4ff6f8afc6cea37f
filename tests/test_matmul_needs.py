"""What users of other libraries ran into, where no other test has it: docs/matmul.md lists all. NumPy's arrays."""

from __future__ import annotations

import numpy as np
from matmul_cases import exact, integers, same

from tilewright import BF16, FP16, FP32, explain, matmul


def test_alpha_of_0_multiplies_like_any_number(where: str) -> None:
    a, b, c = integers(1, (6, 8), FP32), integers(2, (8, 5), FP32), integers(3, (6, 5), FP32)
    a[1, 2], a[4, 3] = np.nan, np.inf
    found = matmul(a, b, alpha=0, beta=1, c=c, backend=where)
    np.testing.assert_array_equal(np.delete(found, [1, 4], axis=0), np.delete(c, [1, 4], axis=0))
    assert np.isnan(found[[1, 4]]).all(), "0 times infinity is NaN, too"


def test_fp32_keeps_every_integer_that_it_has(where: str) -> None:
    """Numbers of 11 bits and more, which a tensor core rounds."""
    numbers = np.arange(46 * 46, dtype=np.float32).reshape(46, 46) + 0.5
    same(matmul(np.eye(46, dtype=np.float32), numbers, backend=where), numbers)


def test_what_ran_before_and_what_lies_around_leaves_nothing(where: str) -> None:
    """K is no multiple of what is copied at once, so that copies have room that no element fills."""
    whole, b = np.full((9, 48), np.nan, BF16.numpy), integers(2, (33, 24), BF16)
    dirty = np.full((5, 33), np.nan, BF16.numpy)
    assert np.isnan(matmul(dirty, np.full((33, 24), np.nan, BF16.numpy), backend=where).astype(np.float32)).all()
    whole[2:7, 3:36] = integers(1, (5, 33), BF16)
    same(matmul(np.ascontiguousarray(whole[2:7, 3:36]), b, backend=where), exact(whole[2:7, 3:36], b, BF16))
    same(matmul(whole[2:7, 3:36], b, backend=where), exact(whole[2:7, 3:36], b, BF16))
    large = np.full((5, 33), 55, BF16.numpy), np.full((33, 24), 55, BF16.numpy)
    same(matmul(*large, backend=where), np.full((5, 24), 55 * 55 * 33, BF16.numpy))
    assert np.isfinite(matmul(*large, backend=where).astype(np.float32)).all(), "beyond what fp16 has"


def test_odd_extents_take_a_path_that_says_so(where: str) -> None:
    a, b = integers(1, (1, 105), FP16), integers(2, (105, 105), FP16)
    same(matmul(a, b, backend=where), exact(a, b, FP16))
    told = str(explain(a, b, backend=where).to_dict())
    assert "210 bytes apart" in told if where == "emulator" else "to the GPU" in told


def test_sms_that_are_left_to_others_are_left(where: str) -> None:
    """A GPU puts blocks on every SM that is free: a grid of at most so many keeps to so many."""
    a, b = integers(1, (16, 64), BF16), integers(2, (64, 2560), BF16)
    for sms in (1, 7, 64):
        told = explain(a, b, sms=sms, backend=where)
        assert told.plan is not None
        assert told.plan["blocks"] <= sms
        assert "more than sms" not in str(told)
    same(matmul(a[:, :16], b[:16, :520], sms=7, backend=where), exact(a[:, :16], b[:16, :520], BF16))
    several = explain(np.ones((3, 16, 64), BF16.numpy), np.ones((3, 64, 512), BF16.numpy), sms=5, backend=where)
    assert several.plan is not None
    assert several.plan["blocks"] <= 5
    same(
        matmul(np.ones((70, 8), np.float32), np.ones((8, 300), np.float32), sms=1, backend=where),
        np.float32(8) * np.ones((70, 300), np.float32),
    )
    told = explain(np.ones((70, 8), np.float32), np.ones((8, 300), np.float32), sms=1, backend=where)
    assert "blocks, more than sms=1: no kernel that computes this keeps to so few" in str(told)
