"""Pages and notebook pieces: well-formed, escaped, complete, and with nothing to fetch."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from html_structure import Structure
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import judgement, planning

import tilewright
from tilewright.planner.judgement import Finding
from tilewright.planner.why import why
from tilewright.problem import Problem
from tilewright.report.plan_html import page, planning_html
from tilewright.report.plan_words import _COVERS, explained

FACTS = {name for name, _ in explained(planning().pick, ())} | set(_COVERS)  # reasons that stand in for one
NASTY = "<script>alert('x')</script> & \"quoted\""


def test_a_page_is_well_formed_and_needs_nothing_else() -> None:
    asked = planning()
    compared = why(asked.pick, asked.ranked[2])
    text = page(planning_html(asked, rejected=True, why=compared), "a <title>")
    found = Structure(text)
    assert text.startswith("<!doctype html>")
    assert found.links == []
    assert not re.search(r"@import|url\(|<script|http(?!://www\.w3\.org/2000/svg)", text)
    assert found.tags.count("html") == found.tags.count("body") == found.tags.count("main") == 1
    assert "a <title>" in found.texts
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    for each in asked.ranked:
        assert found.has(each.label)
    assert found.has("H200 SXM (assumed: no GPU here, none named), 132 SMs: 4096x4096x4096 bf16")
    assert found.has("128x256x64 s4 2x1 cooperative takes 25.50 us (20.3%) less")
    assert found.has("256 accumulators do not fit the 255 registers of a thread")
    assert not Structure(planning_html(asked)).has("do not fit")
    assert found.tags.count("svg") == 5


def told_reason(text: str) -> Finding:
    return Finding(text, True, 1, 2, "B", text, "the guide")


@given((st.text() | st.just(NASTY)).filter(lambda text: text not in FACTS))
def test_what_comes_from_outside_is_escaped(text: str) -> None:
    asked = planning()
    first = replace(asked.pick, family=text)
    told = planning(
        ranked=(first, *asked.ranked[1:]),
        gpu=text,
        calibration=text,
        rejected=(replace(asked.rejected[0], rejected=text),),
    )
    shown = page(planning_html(told, rejected=True, reasons=[told_reason(text)], why=why(first, told.ranked[1])), text)
    assert "<script" not in shown
    compared = why(asked.pick, asked.ranked[1])
    plain = page(planning_html(asked, rejected=True, reasons=[told_reason("b")], why=compared), "x")
    assert Structure(shown).tags == Structure(plain).tags


def test_notebook_pieces_are_well_formed() -> None:
    asked = planning()
    for made in (asked, asked.pick, asked.rejected[0], why(asked.pick, asked.ranked[1]), judgement(), judgement(False)):
        found = Structure(made._repr_html_())
        assert found.tags[0] == "section"
        assert found.links == []
    assert Structure(asked.rejected[0]._repr_html_()).has("rejected: 256 accumulators do not fit")
    assert Structure(asked.pick._repr_html_()).has("launch 3.00 + first load 1.00 + main loop 92.00 + epilogue 4.00 us")


def test_a_judgement_s_page_has_every_finding_and_mistake() -> None:
    for made in (judgement(), judgement(False)):
        found = Structure(made._repr_html_())
        assert found.has("fits: 108.0 us sustained" if made.fits else "does not fit")
        for finding in made.findings:
            assert found.has(finding.sentence)
        for mistake in made.mistakes:
            assert found.has(mistake.sentence)
        for other in made.better:
            assert found.has(other.label)
    assert Structure(judgement()._repr_html_()).has("1.080x")


def test_a_page_of_nothing_says_so() -> None:
    nothing = planning(Problem(8, 0, 8, "bf16"), ranked=(), rejected=())
    found = Structure(page(planning_html(nothing), "x"))
    assert found.has("C is 8 x 0: it has no elements, so there is nothing to launch")
    assert "svg" not in found.tags


@pytest.mark.parametrize(
    "problem",
    [Problem(16384, 16384, 1024, "bf16"), Problem(300, 5000, 777, "bf16"), Problem(100, 100, 100), Problem(8, 8, 0)],
)
def test_a_page_of_the_planner_is_well_formed_and_not_large(problem: Problem) -> None:
    asked = tilewright.plan(problem=problem, gpu="h200")
    text = page(planning_html(asked), "x")
    assert Structure(text).has(asked.pick.label)
    assert len(text) < 400_000


def test_no_template_is_left_without_its_styles() -> None:
    """Each piece brings its styles along, since a notebook shows it alone; they reach nothing outside of it."""
    css = re.search(r"<style>(.*?)</style>", planning()._repr_html_(), re.DOTALL)
    assert css is not None
    rules = re.findall(r"([^{}]+)\{", css.group(1))
    selectors = [each.strip() for rule in rules for each in rule.split(",") if not each.strip().startswith("@")]
    assert selectors
    assert all(each.startswith(".tw-plan") for each in selectors)
