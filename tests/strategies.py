"""What hypothesis draws: problems and dtypes, small enough that an example takes milliseconds."""

from __future__ import annotations

from hypothesis import strategies as st

from tilewright.dtypes import DTYPES, DType
from tilewright.problem import Layout, Problem

dtypes: st.SearchStrategy[DType] = st.sampled_from(list(DTYPES.values()))
layouts: st.SearchStrategy[Layout] = st.sampled_from(["row", "column"])
seeds = st.integers(0, 2**32 - 1)


@st.composite
def problems(draw: st.DrawFn, *, least: int = 0, most: int = 24, padded: bool = False) -> Problem:
    """A problem with every size in ``least..most``; with ``padded``, any layout and leading dimensions."""
    m, n, k = (draw(st.integers(least, most)) for _ in range(3))
    dtype, out_dtype = draw(dtypes), draw(dtypes)
    if not padded:
        return Problem(m, n, k, dtype, out_dtype)
    tight = Problem(m, n, k, dtype, out_dtype, draw(layouts), draw(layouts))
    padding = st.integers(0, 9)
    return tight.changed(lda=tight.lda + draw(padding), ldb=tight.ldb + draw(padding), ldc=tight.ldc + draw(padding))
