"""How a judgement is shown, each limit with a word for how it stands, and what is none when it is read back."""

from __future__ import annotations

import io
from typing import Any

import pytest
from plan_cases import judgement
from rich.console import Console

from tilewright import judge
from tilewright.errors import UsageError
from tilewright.planner.judgement import Judgement
from tilewright.report.plan_table import judgement_text
from tilewright.report.plan_words import mark


def shown(made: Judgement, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, highlight=False)
    for part in judgement_text(made):
        console.print(part)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_judgement_has_every_limit_and_fits_the_terminal(width: int) -> None:
    lines = shown(judgement(), width)
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("H200 SXM, 132 SMs: 4096x4096x4096 bf16")
    assert "fits: 108.0 us sustained, 1,273 TFLOPS" in text
    for words in ("ok stages 4 stages of 48 KB", "slow waves Half of", "- intensity 128 x 256", "ok registers"):
        assert words in text
    assert "mistake: intensity against the HBM ridge It is held against 206. instead: Hold it against L2." in text
    assert "128x256x64 s4 2x1 cooperative wgmma, 8 along M 100.0 us 1.080x" in text or width == 60


def test_a_tile_that_does_not_fit_has_no_time_and_no_gain() -> None:
    text = " ".join(" ".join(shown(judgement(False), 120)).split())
    assert "256x256x64 s4 2x1 cooperative does not fit" in text
    assert "NO registers" in text
    assert "what fits 128x256x64 s4 2x1 cooperative wgmma, 8 along M 100.0 us" in text
    assert "1.080x" not in text


def test_marks_tell_four_kinds_apart() -> None:
    assert [mark(each) for each in judgement(False).findings] == ["ok", "NO", "slow", "-"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tile": [1, 2]}, "judgement field 'tile' is"),
        ({"unknown": 1}, "judgement field 'unknown' is not one of problem, gpu"),
        ({"findings": [{"name": 1}]}, "finding field 'name' is 1; a string is possible"),
        ({"schedule": "alone"}, "judgement field 'schedule' is 'alone'"),
        ({"schema": "other"}, "judgement field 'schema' is 'other'; 'tilewright.judgement/1' is possible"),
        ({"stages": 0}, "judgement field 'stages' is 0; a whole number above 0 is possible"),
        ({"tile": [128, -1, 64]}, "a whole number above 0"),
        ({"better": [5]}, "judgement field 'better' is"),
    ],
)
def test_what_is_no_judgement(change: Any, sentence: str) -> None:
    values = judge(8192, 8192, 8192, tile=(128, 256, 64), gpu="h200").to_dict()
    with pytest.raises(UsageError, match=sentence):
        Judgement.from_dict({**values, **change})


def test_a_judgement_needs_its_lists_and_finite_numbers() -> None:
    values = judge(8192, 8192, 8192, tile=(128, 256, 64), gpu="h200").to_dict()
    with pytest.raises(UsageError, match=r"a judgement is incomplete: missing .* 'findings'"):
        Judgement.from_dict({name: value for name, value in values.items() if name != "findings"})
    values["findings"][0]["value"] = float("nan")
    with pytest.raises(UsageError, match="finding field 'value' is nan; a number is possible"):
        Judgement.from_dict(values)
