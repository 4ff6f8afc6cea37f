"""Candidates, plannings and comparisons as JSON: the documented keys, there and back, and what is none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from html_structure import Structure
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import CANDIDATE_KEYS, PLANNING_KEYS, candidate, planning, tensor_plan
from strategies import problems

import tilewright
from tilewright import ladder
from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.plan_splitk import SplitKPlan
from tilewright.planner.candidate import Candidate, Predicted, Raster
from tilewright.planner.planning import Planning
from tilewright.planner.reasons import reasons
from tilewright.planner.why import Why, why
from tilewright.problem import Problem
from tilewright.report.plan_words import explained, predicted
from tilewright.roofline import amount, held, number

whole = st.integers(0, 2**40)
counted = st.integers(1, 2**40)
real = st.floats(0, 1e12)


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    """Any candidate, whether or not there could be such a kernel."""
    rejected = draw(st.none() | st.text(min_size=1))
    times = None if rejected else Predicted(*(draw(real) for _ in range(4)))
    return Candidate(
        family=draw(st.text(min_size=1)),
        tile=draw(st.tuples(counted, counted, counted)),
        cluster=draw(st.tuples(counted, counted)),
        schedule=draw(st.sampled_from(["cooperative", "pingpong", "simt"])),
        raster=Raster(draw(st.integers(1, 99)), draw(st.sampled_from(["m", "n"]))),
        tail=draw(st.sampled_from(["whole", "half"])),
        k_alternates=draw(st.booleans()),
        register_split=draw(st.none() | st.tuples(whole, whole)),
        plan=draw(st.sampled_from([None, tensor_plan(), tensor_plan(bn=192, half_tail=False, alternate_k=True)])),
        terms_us=draw(st.dictionaries(st.sampled_from(["launch", "l2", "main_loop", "fix_up"]), real)),
        predicted_us=times,
        rejected=rejected,
        swap_ab=draw(st.booleans()),
        intensity_flop_per_byte=draw(real),
        wave_efficiency=draw(real),
        **{
            name: draw(whole)
            for name in (
                "stages", "max_stages", "max_stages_no_epilogue", "operand_traffic_bytes",
                "operand_traffic_bytes_multicast", "stage_bytes", "shared_bytes", "accumulator_registers_per_thread",
                "tiles", "waves",
            )
        },
        consumers=draw(counted),
        split=draw(counted),
    )  # fmt: skip


def through_json(values: dict[str, Any]) -> Any:
    return json.loads(json.dumps(values, allow_nan=False))


@given(candidates())
def test_any_candidate_comes_back_from_its_json(made: Candidate) -> None:
    values = made.to_dict()
    assert Candidate.from_dict(through_json(values)) == made
    assert set(values) == CANDIDATE_KEYS
    assert values["label"] == made.label


@given(problems(least=1, padded=True), st.lists(candidates(), max_size=3), st.booleans())
def test_any_planning_comes_back_from_its_json(problem: Problem, made: list[Candidate], assumed: bool) -> None:
    ranked = tuple(each for each in made if each.rejected is None)
    rejected = tuple(each for each in made if each.rejected is not None)
    asked = planning(problem, ranked=ranked, rejected=rejected, assumed_gpu=assumed)
    values = through_json(asked.to_dict(all=True))
    assert Planning.from_dict(values) == asked
    assert set(values) == PLANNING_KEYS


def test_a_planning_of_the_planner_comes_back_from_its_json() -> None:
    asked = tilewright.plan(640, 7168, 7168, layout="rc", gpu="h200", sms=96, clock="burst")
    again = Planning.from_dict(through_json(asked.to_dict(all=True)))
    assert again == asked
    assert again.pick == asked.pick
    assert len(again.rejected) == len(asked.rejected) > 0


ASKED: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
    ((8192, 8192, 8192), {}), ((2560, 1280, 16384), {}), ((256, 256, 16384), {}), ((16, 4096, 4096), {"pdl": True}),
    ((1, 14336, 4096), {"layout": "rc"}), ((8, 4096, 4096), {"layout": "rc"}), ((1024, 1024, 1024), {"dtype": "fp32"}),
    ((4096, 4096, 4097), {}), ((768, 768, 768), {"out_dtype": "fp32"}), ((1000, 1000, 1000), {"clock": "burst"}),
    ((512, 512, 64), {}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "more"), ASKED)
def test_numbers_of_a_candidate_are_those_of_its_plan_and_of_what_is_said(
    shape: tuple[int, int, int], more: dict[str, Any]
) -> None:
    """Of the first candidate of each family and a later one: the JSON's fields, the plan's, and the sentences."""
    asked = tilewright.plan(*shape, gpu="h200", **more)
    whole = asked.to_dict(top=20)
    assert Planning.from_dict(through_json(whole)).to_dict() == whole
    first = {one.family: one for one in reversed(asked.ranked)}
    last = {one.family: one for one in asked.ranked[:40]}
    for each in (*first.values(), *last.values()):
        values, plan, alone = through_json(each.to_dict()), each.plan, replace(asked, ranked=(each,))
        assert plan is not None
        assert values["tile"] == [plan.bm, plan.bn, plan.bk]
        assert values["shared_bytes"] == plan.shared_bytes == values["plan"].get("shared_bytes", plan.shared_bytes)
        assert values["stages"] <= values["max_stages"] <= values["max_stages_no_epilogue"]
        along_k = getattr(plan, "cluster_k", 1)
        parts = plan.parts(asked.problem) if isinstance(plan, SplitKPlan) else 1
        assert values["split"] == (along_k if each.swap_ab else parts)
        times, terms = values["predicted_us"], values["terms_us"]
        assert times["low"] <= times[asked.clock] <= times["high"]
        adding = sum(terms[name] for name in ("launch", "first_load", "main_loop", "epilogue"))
        assert times[asked.clock] == pytest.approx(adding, rel=1e-9)
        said = dict(explained(each, reasons(alone)))
        assert f"{values['tiles']:,} tiles in {values['waves']:,} wave" in said["waves"]
        assert f"{values['wave_efficiency']:.1%} of the places busy" in said["waves"]
        group, along = values["raster"].values()
        assert f"super-rows of {group} along {along.upper()}" in said["waves"]
        assert f" = {number(values['intensity_flop_per_byte'])} FLOP/B" in said["intensity"]
        assert f" = {values['operand_traffic_bytes']:,} B" in said["operand traffic"]
        assert f"L2 delivers {amount(values['operand_traffic_bytes_multicast'])} / " in said["L2 bandwidth"]
        stages = [values["max_stages_no_epilogue"], values["max_stages"], values["stages"]]
        if values["register_split"] is not None:
            fit = re.search(r"= ([\d,]+) B; 227 KB a block hold (\d+), (\d+) beside .*; (\d+) asked", said["stages"])
            assert fit is not None
            assert [int(one.replace(",", "")) for one in fit.groups()] == [values["stage_bytes"], *stages], each.label
            loading, multiplying = values["register_split"]
            assert (
                f"128 threads x {loading} + {128 * each.consumers} threads x {multiplying} = " in said["register file"]
            )
            assert f" = {values['accumulator_registers_per_thread']} registers a thread" in said["accumulators"]
        elif each.swap_ab:
            assert said["ring"].startswith(f"{stages[2]} stages of {held(values['stage_bytes'])}")
            assert f"; {stages[1]} fit a block" in said["ring"]
        elif each.schedule in ("gemv", "mma"):
            assert said["stages"].startswith(f"{stages[2]} batch")
        else:
            assert said["stages"].startswith(
                f"{stages[2]} of {held(values['stage_bytes'])}; {stages[1]} fit, {stages[0]}"
            )
        page = Structure(alone._repr_html_())
        assert all(page.has(sentence) for sentence in said.values())
        assert page.has(predicted(alone).split(" (")[0])
        compared = why(asked.pick, each, clock=asked.clock)
        assert compared.difference_us == pytest.approx(sum(term.difference_us for term in compared.terms if term.adds))
        launch = next(term.b_from for term in compared.terms if term.name == "launch")
        blocks = each.cluster[0] * each.cluster[1] * along_k
        assert launch.split(",")[0] == (f"clusters of {blocks}" if blocks > 1 else "no clusters")


def test_the_top_of_the_candidates_is_the_beginning_of_all_of_them() -> None:
    asked = planning()
    everything = asked.to_dict(all=True)["candidates"]
    assert [each["rejected"] is None for each in everything] == [True, True, True, False]
    for top in (1, 2, 3, 9):
        shown = asked.to_dict(top)
        assert shown["candidates"] == everything[: min(top, 3)]
        assert shown["pick"] == everything[0]
    wrong: tuple[Any, ...] = ("3", 2.5, True)
    for each in wrong:
        with pytest.raises(UsageError, match=f"top is {each!r}; at least 1"):
            asked.to_dict(each)
    with pytest.raises(UsageError, match="top is 0; at least 1"):
        asked.to_dict(0)


def test_a_planning_of_nothing_has_no_pick() -> None:
    nothing = planning(Problem(0, 8, 8, "bf16"), ranked=(), rejected=())
    assert nothing.to_dict()["pick"] is None
    assert Planning.from_dict(nothing.to_dict()) == nothing
    with pytest.raises(UsageError, match="C has no elements, so there is nothing to launch"):
        _ = nothing.pick


def test_a_comparison_comes_back_from_its_json() -> None:
    first, second, third = planning().ranked
    extra = replace(third, terms_us={**third.terms_us, "fix_up": 2.5})
    for found in (why(first, second), why(second, first, clock="burst"), why(first, extra)):
        values = through_json(found.to_dict())
        assert Why.from_dict(values) == found
        assert values["says"] == str(found)
        assert values["difference_us"] == sum(term["difference_us"] for term in values["terms"] if term["adds"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tile": [128, 256]}, r"candidate field 'tile' is \[128, 256\]; 3 whole numbers are possible"),
        ({"tile": "128x256x64"}, "candidate field 'tile'"),
        ({"stages": 4.5}, "candidate field 'stages' is 4.5; a whole number is possible"),
        ({"stages": True}, "candidate field 'stages' is True"),
        ({"stages": -4}, "'stages' is -4; a whole number, 0 or more, is possible"),
        ({"tile": [128, -256, 64]}, r"'tile' is \[128, -256, 64\]; a whole number above 0"),
        ({"split": 0}, "'split' is 0; a whole number above 0"),
        ({"wave_efficiency": -0.5}, "'wave_efficiency' is -0.5; a number, 0 or more, is possible"),
        ({"raster": {"group": 0}}, "raster field 'group' is 0; a whole number above 0"),
        ({"predicted_us": {"burst": -1.0}}, "predicted_us field 'burst' is -1.0; a number, 0 or more"),
        ({"schedule": "turns"}, "'schedule' is 'turns'; cooperative, pingpong, simt, gemv, mma are possible"),
        ({"raster": {"group": 1, "along": "k"}}, "raster field 'along' is 'k'; m, n are possible"),
        ({"raster": 8}, "a raster is 8"),
        ({"swap_ab": 1}, "'swap_ab' is 1; true and false are possible"),
        ({"wave_efficiency": "all"}, "'wave_efficiency' is 'all'; a number is possible"),
        ({"terms_us": [1]}, "'terms_us'"),
        ({"terms_us": {"l2": None}}, "'terms_us'"),
        ({"predicted_us": {"burst": 1.0}}, "a predicted_us is incomplete: missing 3 required"),
        ({"family": None}, "'family' is None; a string is possible"),
        ({"colour": "red"}, "candidate field 'colour' is not one of family, tile"),
        ({"plan": {"rung": 11}}, "plan"),
    ],
)
def test_what_is_no_candidate_is_a_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Candidate.from_dict({**planning().pick.to_dict(), **changes})


def test_what_is_no_planning_is_a_sentence() -> None:
    good = planning().to_dict()
    for changes, says in (
        ({"schema": "tilewright.plan/0"}, "'schema' is 'tilewright.plan/0'; 'tilewright.plan/1' is possible"),
        ({"candidates": "none"}, "'candidates' is 'none'; a list is possible"),
        ({"regime": "tired"}, "'regime' is 'tired'; compute, L2"),
        ({"clock": "wall"}, "'clock' is 'wall'; sustained, burst"),
        ({"sms": -3}, "planning field 'sms' is -3; a whole number above 0 is possible"),
        ({"clock_mhz": 0}, "planning field 'clock_mhz' is 0; a number above 0 is possible"),
    ):
        with pytest.raises(UsageError, match=says):
            Planning.from_dict({**good, **changes})
    with pytest.raises(UsageError, match="a planning is incomplete: missing 1 required positional argument: 'gpu'"):
        Planning.from_dict({name: value for name, value in good.items() if name != "gpu"})
    with pytest.raises(UsageError, match="it must be an object"):
        Planning.from_dict([])  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, 3, 5, 11])
def test_a_plan_with_a_number_below_0_is_none(number: int) -> None:
    rung = ladder.rung(number)
    good = rung.plan(rung.dtypes[0]).to_dict()
    for name, value in good.items():
        if type(value) is int and name != "rung":
            with pytest.raises(UsageError, match="-4"):  # some say it of a tile or a team
                Plan.from_dict({**good, name: -4})


@given(st.integers(1, 4096), st.integers(1, 4096))
@settings(max_examples=20)
def test_labels_of_ranked_candidates_are_unique(m: int, n: int) -> None:
    found = tilewright.plan(m, n, 512, layout="rc", gpu="h200")
    labels = [each.label for each in found.ranked]
    assert len(set(labels)) == len(labels)


def test_a_label_says_what_tells_two_candidates_apart() -> None:
    problem = Problem(4096, 4096, 4096, "bf16", b_layout="column")
    plain = candidate(problem, tensor_plan())
    assert plain.label == "128x256x64 s4 2x1 cooperative"
    one = replace(plain, consumers=1, tail="half", k_alternates=True, split=3, swap_ab=True)
    assert one.label == "128x256x64 s4 2x1 cooperative 1wg half-tail alt-k split3 swap-AB"
