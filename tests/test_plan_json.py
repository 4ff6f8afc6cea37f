"""Plans as JSON: every kind comes back as it was, and what is no plan is a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tilewright.dtypes import BF16, FP32
from tilewright.errors import UsageError
from tilewright.ladder import rung, rungs
from tilewright.plan_base import Plan
from tilewright.plan_space import sample_plans

SIMT, TENSOR = rung(4).plan(FP32).to_dict(), rung(11).plan(BF16).to_dict()


def through_json(plan: Plan) -> Plan:
    return Plan.from_dict(json.loads(json.dumps(plan.to_dict())))


@pytest.mark.parametrize("number", range(12))
def test_the_default_plans_come_back(number: int) -> None:
    found = rung(number)
    for dtype in found.dtypes:
        plan = found.plan(dtype, aligned=number == 11)
        back = through_json(plan)
        assert back == plan
        assert type(back) is found.plan_kind
        assert back.header() == plan.header()


@pytest.mark.parametrize("number", range(5, 12))
def test_a_sample_of_all_plans_comes_back(number: int) -> None:
    plans = sample_plans(number, 100)
    assert [through_json(plan) for plan in plans] == plans


def test_counter_examples_come_back() -> None:
    count = 0
    for found in rungs().values():
        for example in found.counter_examples:
            plan = found.plan(example.dtypes[0]).with_(**example.changes)
            assert through_json(plan) == plan != found.plan(example.dtypes[0])
            count += 1
    assert count == 2


def test_what_has_a_default_may_be_left_out() -> None:
    few = {name: TENSOR[name] for name in ("rung", "dtype", "bm", "bn", "bk", "consumers")}
    plan = Plan.from_dict({**few, "rung": 7})
    assert (plan.threads, plan.a_layout, plan.aligned) == (256, "row", True)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "a plan is {}; it must be an object whose rung is a whole number"),
        ([1], r"a plan is \[1\]; it must be an object"),
        ({"rung": True}, "it must be an object whose rung is a whole number"),
        ({**SIMT, "rung": 12}, "rung 12 does not exist; the ladder has 0, 1, 2"),
        ({**SIMT, "stage": 2}, "plan value 'stage' is not one of rung, dtype, bm, "),
        ({**SIMT, "consumers": 2}, "plan value 'consumers' is not one of rung, dtype, bm, "),
        ({name: SIMT[name] for name in SIMT if name != "bm"}, "plan value 'bm' is missing"),
        ({**SIMT, "bm": "128"}, "plan value 'bm' is '128'; a whole number is possible"),
        ({**SIMT, "bm": 128.0}, "plan value 'bm' is 128.0; a whole number is possible"),
        ({**SIMT, "swapped": 1}, "plan value 'swapped' is 1; true and false are possible"),
        ({**TENSOR, "a_layout": "r"}, "plan value 'a_layout' is 'r'; row and column are possible"),
        ({**TENSOR, "dtype": "int8"}, "dtype 'int8' is not one of fp32, "),
        ({**TENSOR, "shared_bytes": 1}, "plan value 'shared_bytes' is 1; the others make it 229440"),
        ({**TENSOR, "threads": 256}, "plan value 'threads' is 256; the others make it 384"),
        ({**TENSOR, "bm": 512}, "rung 11: "),
    ],
)
def test_what_is_no_plan(values: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Plan.from_dict(values)
