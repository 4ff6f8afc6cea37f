"""docs/planner.md: its commands print what the page shows, and its tables are current."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import planner_docs
import planner_fitted
import pytest
from ladder_pages import renew
from planner_docs import COMMANDS, MAKERS, kept

from tilewright.plan_decode import MmaPlan
from tilewright.planner import supply
from tilewright.planner.calibration import shipped
from tilewright.planner.families import simt
from tilewright.planner.rank import TIE

PAGE = Path(__file__).resolve().parent.parent / planner_docs.PAGE
JUDGEMENT = """\
H100 SXM, 132 SMs: a problem
times
a tile fits
  ok    stages       four of
                     four
  slow  L2 bandwidth  much
                     of it
  -     intensity    85
mistake: one
  a sentence
better
  another
"""


@pytest.mark.parametrize("name", MAKERS)
def test_a_block_is_current(name: str) -> None:
    text = PAGE.read_text("utf-8")
    block = re.search(rf"<!-- generated: {name} -->\n.*?<!-- end: {name} -->", text, re.DOTALL)
    assert block is not None
    found = renew(block[0], {name: MAKERS[name]}, planner_docs.SCRIPT)
    if found.unmade:
        pytest.skip(found.unmade[0])
    assert found.stale + found.wrong == []


def test_every_block_of_the_page_is_made() -> None:
    names = re.findall(r"<!-- generated: (\w+) -->", PAGE.read_text("utf-8"))
    assert sorted(names) == sorted(MAKERS)


def test_a_stale_block_is_found() -> None:
    stale = "<!-- generated: tiles -->\nold\n<!-- end: tiles -->\n"
    found = renew(stale, {"tiles": MAKERS["tiles"]}, planner_docs.SCRIPT)
    assert found.stale == ["block tiles is not current: run scripts/planner_docs.py"]


def test_rows_left_out_are_marked() -> None:
    assert kept(JUDGEMENT, ("stages",)) == (
        "H100 SXM, 132 SMs: a problem\ntimes\na tile fits\n"
        "  ok    stages       four of\n                     four\n  ...\n"
    )
    assert kept(JUDGEMENT, ("L2 bandwidth", "mistakes")) == (
        "H100 SXM, 132 SMs: a problem\ntimes\na tile fits\n  ...\n"
        "  slow  L2 bandwidth  much\n                     of it\n  ...\nmistake: one\n  a sentence\n  ...\n"
    )
    with pytest.raises(ValueError, match="no waves among L2 bandwidth, better, intensity, mistakes, stages"):
        kept(JUDGEMENT, ("waves",))


# What the two texts ask about which the page is written, and what they call mistakes: in the page's words.
QUESTIONS = {
    "Which tile": [
        "Why must it be large in M and N?", "Why is BK 64?", "What stops it from growing?", "How many stages?",
        "Why not keep the sums in shared memory and make the tile larger?", "What changes with fp8?",
        "128x256 or 256x128?", "When is a tile too large?", "What of a batch of 16?",
    ],
    "From a naive kernel to the roof": [
        "Where does a problem stand?", "What does each step change?", "What changes for bf16 on the CUDA cores?",
        "What is a good speed on tensor cores?", "How is a kernel known to be right?", "And for a decode step, M = 8?",
    ],
}  # fmt: skip
WRONG = (
    "Holding a tile's intensity against the ridge of HBM", "Sizing a tile by shared memory alone.",
    "A tile of 128 rows for a few rows of C", "Picking BK for reuse.",
    "A tile in shared memory without a register block.", "Calling 300 TFLOPS the peak.",
    "A layout with bank conflicts", "One warm run as a throughput.",
)  # fmt: skip


def test_every_question_and_every_mistake_is_answered_by_a_command() -> None:
    page = text()
    answers = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL))
    for part, questions in QUESTIONS.items():
        section = page[page.index(f"## {part}\n") :]
        for question in questions:
            assert question in answers, question
            assert f"### {question}\n" in section
            assert "<!-- generated: " in answers[question], question
    slugs = {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-"): answer for name, answer in answers.items()}
    mistakes = page[page.index("## Common mistakes") : page.index("## How a time is predicted")]
    told = dict(re.findall(r"^\*\*(.+?)\*\*(.*?)(?=^\*\*|\Z)", mistakes, re.MULTILINE | re.DOTALL))
    assert set(WRONG) <= set(told)
    for name, said in told.items():
        above = re.findall(r"\[above\]\(#([\w-]+)\)", said)
        assert "<!-- generated: " in said or above, name
        assert all("<!-- generated: " in slugs[link] for link in above), name


def test_the_constants_in_the_prose_are_those_of_the_code() -> None:
    page = " ".join(text().split())
    assert f"log(time) / log({round(math.exp(TIE), 6):g})" in page
    assert f"{supply.SAME_LINES:g} times it, as other SMs ask for the same lines, and {supply.AS_ALONE:g} times" in page
    assert f"{supply.together([np.ones(1)] * 2)[0]:.2f} times where two take as long" in page
    assert f"it is the eighth, {supply.under_ring(np.ones(1), np.ones(1))[0]:.2f} times" in page
    assert f"for up to {MmaPlan.most_tokens} rows" in page
    assert f"the probe has 1.0 for none and {_same_lines_by_the_probe():.2f} for all" in page
    assert f"`AS_ALONE`, {supply.AS_ALONE:g} times L2's rate" in page
    assert (len(simt.TILES), "rung 4 in four tiles" in page) == (4, True)
    assert (supply.MULTICAST_TRANSPORT, "another block costs half of what one from L2 does" in page) == (0.5, True)


def _same_lines_by_the_probe() -> float:
    """By the last readings of 16 MiB, the rate of lines that all SMs ask for over that of lines of their own."""
    rates = {}
    for line in (PAGE.parent.parent / "results/calibration_h200.jsonl").read_text("utf-8").splitlines():
        reading = json.loads(line)
        if reading["microbenchmark"] == "l2_read" and reading["conditions"]["working_set_bytes"] == 2**24:
            where = reading["conditions"]
            if (where["sms"], where["cluster"]) == (132, 1):
                rates[where["pattern"]] = reading["values"]["bytes_per_clk_per_sm"]
    return float(rates["together"] / rates["swept"])


def test_the_commands_of_plan_name_a_gpu() -> None:
    # Else the page would depend on the machine it is made on.
    for shown in COMMANDS.values():
        for each in shown:
            assert " --gpu " in each.command or " --backend emulator" in each.command


def test_the_fitted_constants_are_those_of_the_code_and_at_most_three_a_family() -> None:
    """The table of docs/planner.md, against the modules it names and the prices that move with them."""
    fitted = planner_fitted.rows(text())
    moved = planner_fitted.used(fitted)
    for each in fitted:
        if each.residual:
            assert shipped("h200").residual(each.of, each.residual) == pytest.approx(each.value, abs=5e-3)
        else:
            assert planner_fitted.value_of(each.path) == each.value, each.path
        assert all(each in moved[name] for name in each.owners), each.name
        assert any(each in constants for constants in moved.values()), f"{each.name} moves no price"
    own = {name: [each for each in constants if name in each.owners] for name, constants in moved.items()}
    assert {name for name, constants in own.items() if not constants} == {"wgmma"}, "which has those of all kernels"
    assert max(map(len, own.values())) <= 3
    assert len(fitted) > 15


def text() -> str:
    return PAGE.read_text("utf-8")
