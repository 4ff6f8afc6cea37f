"""Two candidates compared: every microsecond of the difference is in a term, and names find what a person means."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import TERMS, candidate, planning, tensor_plan

import tilewright
from tilewright.errors import UsageError
from tilewright.planner.candidate import INSIDE, Predicted
from tilewright.planner.why import REST, find, time_us, why
from tilewright.problem import Problem

PROBLEM = Problem(4096, 4096, 4096, "bf16", b_layout="column")
us = st.floats(0, 1e4)


@given(*(st.tuples(*(us for _ in TERMS)) for _ in range(2)), st.floats(-1e3, 1e3))
def test_the_terms_that_add_up_are_the_whole_difference(
    first: tuple[float, ...], second: tuple[float, ...], unexplained: float
) -> None:
    a, b = (candidate(PROBLEM, tensor_plan(), terms) for terms in (first, second))
    times = b.predicted_us
    assert times is not None
    b = replace(b, predicted_us=replace(times, sustained=times.sustained + unexplained))
    found = why(a, b)
    explained = sum(term.difference_us for term in found.terms if term.adds)
    assert explained == pytest.approx(found.difference_us, abs=1e-6 + 2e-6 * (abs(times.sustained) + 4e4))
    assert {term.name for term in found.terms if not term.adds} == set(INSIDE)


def test_the_sentence_names_the_faster_one_and_what_decides_first() -> None:
    first, second, third = planning().ranked
    says = str(why(first, third))
    assert says == (
        "128x256x64 s4 2x1 cooperative takes 25.50 us (20.3%) less than 128x192x64 s5 2x1 pingpong: "
        "main loop -29.00 us, epilogue +3.50 us"
    )
    assert str(why(third, first)) == says  # whichever is named first
    assert "takes 8.00 us (7.4%) less than 256x128x64" in str(why(first, second))
    twin = replace(first, tile=(256, 128, 64))
    assert str(why(first, twin)).endswith("take the same time; the tie rule decides")
    assert str(why(first, first)) == "A and B are the same candidate, 128x256x64 s4 2x1 cooperative"


def test_what_terms_do_not_explain_is_a_row() -> None:
    first, second, _ = planning().ranked
    slower = replace(second, predicted_us=Predicted(90, 150, 140, 160))
    rows = {term.name: term for term in why(first, slower).terms}
    assert rows[REST].a_us == 0
    assert rows[REST].b_us == 42
    assert REST not in {term.name for term in why(first, second).terms}


def test_a_term_of_a_family_of_its_own_is_shown_and_added() -> None:
    first, second, _ = planning().ranked
    times = second.predicted_us
    assert times is not None
    split = replace(
        second, family="split-k", terms_us={**second.terms_us, "fix_up": 5.0},
        predicted_us=replace(times, sustained=times.sustained + 5),
    )  # fmt: skip
    found = why(first, split)
    assert [(term.a_us, term.b_us, term.adds) for term in found.terms if term.name == "fix_up"] == [(0, 5, True)]
    assert found.difference_us == 13
    assert "fix up +5.00 us" not in str(found)  # it is what the faster one saves
    assert "fix up -5.00 us" in str(found)


def test_a_rejected_candidate_has_nothing_to_compare() -> None:
    asked = planning()
    with pytest.raises(UsageError, match="has no predicted time: 256 accumulators do not fit"):
        why(asked.pick, asked.rejected[0])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("1", 1), ("#2", 2), (" 3 ", 3), ("128x256x64", 1), ("128x256", 1), ("128X192", 3), ("pingpong", 3),
        ("256x128x64 s4 2x1 cooperative half-tail", 2), ("half-tail", 2), ("wgmma s5", 3),
    ],
)  # fmt: skip
def test_a_name_is_a_rank_or_words_of_a_label(name: str, rank: int) -> None:
    asked = planning()
    assert find(asked, name) is asked.ranked[rank - 1]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("0", "'0' names no candidate: a rank from 1 to 3 is possible, or words of a label such as '128x256x64 s4"),
        ("4", "'4' names no candidate"),
        ("", "'' names no candidate"),
        ("128x256 pingpong", "names no candidate"),
        ("256x256", "has no predicted time: 256 accumulators do not fit the 255 registers"),
        ("\u0661", "names no candidate"),
    ],
)
def test_a_name_of_none_is_a_sentence(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        find(planning(), name)


def test_the_planner_s_own_candidates_are_explained_by_their_terms() -> None:
    """What the model adds up to is what it predicts, at both clocks: no row is left over."""
    for clock in ("sustained", "burst"):
        asked = tilewright.plan(4096, 4096, 4096, layout="rc", gpu="h200", clock=clock)
        for other in asked.ranked[1:20]:
            found = why(asked.pick, other, clock=asked.clock)
            assert REST not in {term.name for term in found.terms}
            tie = 0.001 * time_us(asked.pick, asked.clock)
            assert found.difference_us >= -tie


def test_what_two_kernels_take_before_they_begin_is_each_kernel_s() -> None:
    """Neither has clusters, and their launches differ all the same."""
    asked = tilewright.plan(64, 4096, 4096, layout="rc", gpu="h200")
    compared = why(find(asked, "swapab 1x1"), find(asked, "splitk 1x1"))
    launch = next(term for term in compared.terms if term.name == "launch")
    assert launch.a_us != launch.b_us
    start = "no clusters, and the kernel's own start"
    assert launch.source == f"A: {start}, swapab; B: {start}, splitk"
    one = next(term for term in why(asked.pick, asked.pick).terms if term.name == "launch")
    assert one.source == start


_FEW, _WAVES = (16, 8192, 8192), (640, 7168, 7168)
_SUMS = "written, waited for and added up"
_START, _END = ", and the kernel's own start", ", and the kernel's own end"


@pytest.mark.parametrize(
    ("shape", "families", "term", "of_a", "of_b"),
    [
        (_WAVES, ("wgmma", "splitk"), "epilogue", "", f", and partial sums of 2 parts of K: {_SUMS}{_END}"),
        (_WAVES, ("wgmma", "splitk"), "first_load", ", and 2.8 us to begin and end", ""),
        (_WAVES, ("wgmma", "splitk"), "l2", "", ", which blocks of a part ask for together"),
        (_WAVES, ("wgmma", "splitk"), "issue", "", ", the steps of the ring among them"),
        (_WAVES, ("streamk", "splitk"), "hbm", "; blocks at different K of shared tiles read lines again", ""),
        (_FEW, ("swapab", "streamk"), "epilogue", _END, f", and partial sums of shared tiles: {_SUMS}"),
        (_FEW, ("swapab", "mma_sync"), "launch", _START, ""),
    ],
)  # fmt: skip
def test_what_kernels_of_two_families_differ_in_is_what_their_models_put_there(
    shape: tuple[int, int, int], families: tuple[str, str], term: str, of_a: str, of_b: str
) -> None:
    asked = tilewright.plan(*shape, layout="rc" if shape == _FEW else "rr", gpu="h200")
    a, b = (find(asked, family) for family in families)
    found = next(each for each in why(a, b).terms if each.name == term)
    assert found.a_us != found.b_us
    for each, said, more in ((a, found.a_from, of_a), (b, found.b_from, of_b)):
        generic = said.removesuffix(f", {each.family}")
        assert generic.endswith(more)
        shared = re.sub(r", \d+ stages$", "", generic.removesuffix(more))  # what holds of any tile
        assert not {",", ";"} & set(shared)


def test_a_swapped_kernel_waits_for_a_latency_and_no_stage() -> None:
    asked = tilewright.plan(*_FEW, layout="rc", gpu="h200")
    first = next(
        term for term in why(find(asked, "swapab"), find(asked, "mma_sync")).terms if term.name == "first_load"
    )
    assert first.a_from == "a latency of HBM"
    assert first.b_from.startswith("a stage of ")


def test_what_a_dependent_launch_hides_is_under_the_kernel_before() -> None:
    asked = tilewright.plan(16, 8192, 8192, layout="rc", gpu="h200", pdl=True)
    terms = {term.name: term for term in why(asked.pick, find(asked, "splitk pdl")).terms}
    assert asked.pick.family == "swapab"
    assert terms["launch"].a_us == 0
    assert terms["launch"].a_from.endswith(", under the kernel before")
    assert (terms["first_load"].a_us, terms["first_load"].a_from) == (0, "under the kernel before")
    assert terms["first_load"].b_us > 0
    assert terms["first_load"].b_from == "a latency of HBM"  # of A, which the kernel before writes


def test_stream_k_with_nothing_to_share_adds_nothing_up() -> None:
    """132 tiles of 128x256 in clusters of 2 fill a wave."""
    asked = tilewright.plan(128 * 132, 256, 4096, layout="rr", gpu="h200")
    whole = find(asked, "streamk 128x256 2x1")
    epilogue = next(term for term in why(asked.pick, whole).terms if term.name == "epilogue")
    assert whole.waves == 1
    assert epilogue.b_from == "1 wave of tiles of 128x256"


def test_one_tile_is_one() -> None:
    pick = tilewright.plan(8, 8, 8, layout="rc", gpu="h200").pick
    assert pick.tiles == 1
    tensor = next(term for term in why(pick, pick).terms if term.name == "tensor")
    assert tensor.source.startswith("1 tile in 1 wave, ")
