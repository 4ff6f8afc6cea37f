"""docs/planner.md: its commands print what the page shows, and its tables are current."""

from __future__ import annotations

import operator
import re
from importlib import import_module
from pathlib import Path

import planner_docs
import pytest
from ladder_pages import renew
from planner_docs import COMMANDS, MAKERS, kept

from tilewright.planner.calibration import shipped
from tilewright.planner.family import families

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


def test_the_commands_of_plan_name_a_gpu() -> None:
    # Else the page would depend on the machine it is made on.
    for shown in COMMANDS.values():
        for each in shown:
            assert " --gpu " in each.command or " --backend emulator" in each.command


def test_the_fitted_constants_are_those_of_the_code_and_at_most_three_a_family() -> None:
    """The table of docs/planner.md, against the modules it names."""
    rows = re.findall(
        r"^\| ([\w, ]*) ?\| (?:\[`([\w.]+)`\]\(\S+\)|residual `(\w+)`) \| ([\d.]+) \|", text(), re.MULTILINE
    )
    found: dict[str, int] = {}
    family = ""
    for named, path, residual, value in rows:
        family = named.strip() or family
        for each in family.split(", "):
            found[each] = found.get(each, 0) + 1
        if residual:
            assert shipped("h200").residual(family, residual) == pytest.approx(float(value), abs=5e-3)
        else:
            assert code_value(path) == float(value), path
    assert {each.name for each in families()} - set(found) == {"wgmma"}, "which has those of all kernels of tiles"
    assert max(found.values()) == 3
    assert sum(found.values()) > 15


def code_value(path: str) -> object:
    """What a path under ``tilewright.planner`` is, such as ``supply.FILL``."""
    module, *names = re.split(r"\.(?=[A-Z])", path)
    return operator.attrgetter(".".join(names))(import_module(f"tilewright.planner.{module}"))


def text() -> str:
    return PAGE.read_text("utf-8")
