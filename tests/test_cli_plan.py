"""``tilewright plan``: what it prints at 80 and 120 columns, its JSON, its page, its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_runner import process, run, squeezed
from html_structure import Structure
from plan_cases import CANDIDATE_KEYS, PLANNING_KEYS, judgement, planning
from typer.testing import CliRunner, Result

import tilewright
from tilewright.cli.app import app
from tilewright.gpu import known_gpus
from tilewright.planner.planning import Planning

H200 = ("--gpu", "h200")


def wide(columns: int, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": str(columns)})


def document(*arguments: str) -> dict[str, Any]:
    done = run("plan", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# the answer


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ("8192", "8192", "8192", "--layout", "rc"), ("16", "4096", "4096"), ("1000", "777", "333"), ("1", "1", "1"),
        ("4096", "4096", "4096", "--dtype", "fp32"), ("640", "7168", "7168", "--picture"),
        ("64", "64", "0", "--picture"),
        ("4096", "4096", "4096", "--why", "1", "2"), ("16384", "16384", "1024", "--picture", "--top", "9"),
    ],
)  # fmt: skip
def test_what_is_shown_fits_the_terminal_and_no_cell_is_cut(arguments: tuple[str, ...], columns: int) -> None:
    done = wide(columns, *arguments, *H200)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in done.stdout
    assert lines[0].startswith("H200 SXM, 132 SMs: ")


def test_the_pick_comes_with_its_reasons_and_times() -> None:
    done = run("plan", "8192", "8192", "8192", "--layout", "rc", *H200)
    asked = tilewright.plan(8192, 8192, 8192, layout="rc", gpu="h200")
    text = " ".join(done.stdout.split())
    times = asked.pick.predicted_us
    assert times is not None
    assert f"take {asked.pick.label} (wgmma)" in text
    assert f"{times.sustained:,.1f} us sustained at {asked.clock_mhz / 1e3:.2f} GHz" in text
    assert f"(assumed range {times.low:,.1f} to {times.high:,.1f})" in text
    assert f"{times.burst:,.1f} us burst at {asked.other_clock_mhz / 1e3:.2f} GHz" in text
    assert f"{2 * 8192**3 / times.sustained / 1e6:,.1f} TFLOPS" in text
    assert f"{asked.regime}-limited: " in text
    assert re.search(r"launch [\d.]+ \+ first load [\d.]+ \+ main loop [\d.,]+ \+ epilogue [\d.]+ us", text)
    assert f"= {asked.pick.accumulator_registers_per_thread} registers a thread, of at most 255" in text
    assert f"L2 delivers {asked.pick.operand_traffic_bytes_multicast / 1e9:.4g} GB / " in text
    assert asked.pick.tail == "half"
    halves = "(halves in a last one at most half full)"
    assert f"{asked.pick.tiles:,} tiles in {asked.pick.waves} waves {halves}, {asked.pick.wave_efficiency:.1%}" in text
    assert f"{len(asked.ranked):,} candidates, {len(asked.rejected):,} rejected" in done.stderr


def test_the_gpu_is_assumed_where_none_is_present_and_none_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.planner.plan._present_gpu", lambda: None)
    # sizes that no other test asks for: an answer is kept
    assert run("plan", "511", "511", "511").stdout.startswith("H200 SXM (assumed: no GPU here, none named), 132 SMs: ")
    assert document("511", "511", "511")["assumed_gpu"] is True
    named = document("511", "511", "511", *H200)
    assert named["assumed_gpu"] is False
    assert named["gpu"] == "h200"
    assert run("plan", "511", "511", "511", "--gpu", "H100 SXM").stdout.startswith("H100 SXM, 132 SMs: ")


def test_an_unknown_gpu_exits_2_and_lists_the_known() -> None:
    done = run("plan", "64", "64", "64", "--gpu", "b200")
    assert done.exit_code == 2
    assert all(key in done.stderr for key in known_gpus())


def test_json_has_the_documented_keys() -> None:
    found = document("4096", "4096", "4096", "--layout", "rc", *H200, "--all")
    assert set(found) == PLANNING_KEYS
    assert found["schema"] == "tilewright.plan/1"
    for each in found["candidates"]:
        assert set(each) == CANDIDATE_KEYS
        assert (each["rejected"] is None) == (each["predicted_us"] is not None)
    assert set(found["candidates"][0]["predicted_us"]) == {"burst", "sustained", "low", "high"}
    assert found["pick"] == found["candidates"][0]
    assert Planning.from_dict(found) == tilewright.plan(4096, 4096, 4096, layout="rc", gpu="h200")


def test_how_many_are_asked_for_does_not_change_the_ranking() -> None:
    everything = document("640", "7168", "7168", *H200, "--all")["candidates"]
    ranked = [each for each in everything if each["rejected"] is None]
    assert everything[: len(ranked)] == ranked  # the rejected ones come last
    for top in (1, 2, 5, 40, 10**6):
        found = document("640", "7168", "7168", *H200, "--top", str(top))
        assert found["candidates"] == ranked[:top]
        assert found["pick"] == ranked[0]
    assert document("640", "7168", "7168", *H200)["candidates"] == ranked[:5]


def test_all_gives_each_rejected_candidate_with_its_reason() -> None:
    asked = tilewright.plan(1000, 777, 333, gpu="h200")
    done = run("plan", "1000", "777", "333", *H200, "--all")
    text = squeezed(done.stdout)
    assert f"{len(asked.rejected):,}rejected" in text
    for each in (*asked.ranked, *asked.rejected):
        assert squeezed(each.label) in text
    assert all(squeezed(str(each.rejected)) in text for each in asked.rejected)
    assert "rejected\n" not in run("plan", "1000", "777", "333", *H200).stdout


def test_fewer_sms_and_another_clock_are_other_answers() -> None:
    full, part = document("4096", "4096", "4096", *H200), document("4096", "4096", "4096", *H200, "--sms", "64")
    burst = document("4096", "4096", "4096", *H200, "--clock", "burst")
    assert (full["sms"], part["sms"]) == (132, 64)
    assert part["pick"]["predicted_us"]["sustained"] > full["pick"]["predicted_us"]["sustained"]
    assert part["pick"]["plan"]["blocks"] <= 64
    assert burst["clock"] == "burst"
    assert burst["clock_mhz"] > full["clock_mhz"]
    assert "us burst at" in run("plan", "4096", "4096", "4096", *H200, "--clock", "burst").stdout


def test_the_clock_constants_may_come_from_a_file(tmp_path: Path) -> None:
    from tilewright.planner.calibration import shipped

    path = tmp_path / "mine.json"
    shipped("h100").save(path)
    found = document("512", "512", "512", "--calibration", str(path))
    assert (found["gpu"], found["assumed_gpu"], found["calibration"]) == ("h100", False, shipped("h100").label)
    refused = run("plan", "512", "512", "512", *H200, "--calibration", str(path))
    assert refused.exit_code == 2
    assert "the plan is for h200 (H200 SXM)" in squeezed_words(refused.stderr)
    assert shipped("h100").label in squeezed_words(run("plan", "512", "512", "512", "--calibration", str(path)).stdout)


def squeezed_words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("sizes", [("0", "8", "8"), ("8", "0", "8"), ("0", "0", "0")])
def test_a_c_without_elements_needs_no_kernel(sizes: tuple[str, str, str], tmp_path: Path) -> None:
    done = run("plan", *sizes, *H200, "--picture", "--all", "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0
    assert f"C is {sizes[0]} x {sizes[1]}: it has no elements, so there is nothing to launch" in done.stdout
    found = document(*sizes, *H200)
    assert found["pick"] is None
    assert found["candidates"] == []
    assert "nothing to launch" in (tmp_path / "page.html").read_text()


def test_a_k_of_0_still_writes_c() -> None:
    found = document("512", "512", "0", *H200)
    assert found["pick"]["terms_us"]["tensor"] == 0
    assert found["pick"]["predicted_us"]["sustained"] > 0
    assert "0.0 TFLOPS" in squeezed_words(run("plan", "512", "512", "0", *H200).stdout)


# two compared


def test_why_compares_by_rank_and_by_label() -> None:
    asked = tilewright.plan(4096, 4096, 4096, layout="rc", gpu="h200")
    question = ("4096", "4096", "4096", "--layout", "rc", *H200)
    by_rank = run("plan", *question, "--why", "1", "3").stdout
    assert by_rank == run("plan", *question, "--why", asked.ranked[0].label, asked.ranked[2].label).stdout
    text = squeezed_words(by_rank)
    for rank in (0, 2):
        assert asked.ranked[rank].label in text
    for term in asked.pick.terms_us:
        assert {"l2": "L2", "hbm": "HBM"}.get(term, term.replace("_", " ")) in text
    why = document(*question, "--why", "1", "3")["why"]
    assert why["a"] == asked.ranked[0].to_dict()
    assert why["difference_us"] > 0
    assert why["says"] in text


# pictures and the page


def test_the_page_is_written_and_well_formed(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    done = run("plan", "640", "7168", "7168", *H200, "--html", str(path), "--why", "1", "2", "--all")
    assert done.exit_code == 0
    found = Structure(path.read_text(encoding="utf-8"))
    asked = tilewright.plan(640, 7168, 7168, gpu="h200")
    assert found.has(asked.pick.label)
    assert found.has(f"{len(asked.rejected):,} rejected, each with its reason")
    assert found.has("Why one beats the other")


def test_the_picture_is_shown_when_it_is_asked_for() -> None:
    question = ("640", "7168", "7168", *H200)
    shown = run("plan", *question, "--picture").stdout
    assert "tiles of C: " in shown
    assert "shared memory of a block: 232,448 B" in shown
    assert "registers of an SM: 65,536" in shown
    assert "tiles of C: " not in run("plan", *question).stdout


# a tile of one's own


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a stand-in for ``tilewright.judge``, which keeps its arguments."""
    calls: list[dict[str, Any]] = []

    def judge(**arguments: Any) -> Any:
        calls.append(arguments)
        return judgement()

    monkeypatch.setattr(tilewright, "judge", judge, raising=False)
    return calls


def test_a_tile_is_judged_as_it_was_asked(judged: list[dict[str, Any]], tmp_path: Path) -> None:
    question = ("plan", "4096", "4096", "4096", "--layout", "rc", *H200)
    done = run(*question, "--tile", "128x256x64")
    assert done.exit_code == 0, done.output
    assert "fits: 108.0 us sustained" in done.stdout
    path = tmp_path / "page.html"
    options = ("--stages", "4", "--cluster", "2x1", "--schedule", "pingpong", "--consumers", "2", "--clock", "burst")
    run(*question, "--tile", "128X192x64", *options, "--top", "1", "--html", str(path), "--picture")
    assert Structure(path.read_text()).has("fits: 108.0 us sustained")
    assert json.loads(run(*question, "--tile", "64x64x64", "--json").stdout) == judgement().to_dict()
    first, second, third = judged
    common = {"problem": first["problem"], "gpu": "h200", "sms": None, "pdl": False, "calibration": None}
    assert first == {**common, "tile": (128, 256, 64), "clock": "sustained"}
    chosen = {"stages": 4, "cluster": (2, 1), "schedule": "pingpong", "consumers": 2}
    assert second == {**common, "tile": (128, 192, 64), "clock": "burst", "top": 1, **chosen}
    assert third["tile"] == (64, 64, 64)
    assert (first["problem"].m, first["problem"].b_layout) == (4096, "column")


def test_a_real_tile_that_does_not_fit_is_an_answer(tmp_path: Path) -> None:
    question = ("plan", "4096", "4096", "4096", "--layout", "rc", *H200, "--tile", "256x256x64")
    done = run(*question, "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0
    text = squeezed_words(done.stdout)
    assert "256x256x64 s3 1x1 cooperative does not fit" in text
    assert "NO accumulators C is held in 256 x 256 / 256 threads = 256 registers a thread, of at most 255" in text
    assert Structure((tmp_path / "page.html").read_text()).has("does not fit")
    found = json.loads(run(*question, "--json").stdout)
    assert found["fits"] is False
    assert found["candidate"] is None
    fits = run(*question[:-1], "128x256x64", "--stages", "4", "--cluster", "2x1", "--picture")
    assert "128x256x64 s4 2x1 cooperative fits: " in squeezed_words(fits.stdout)
    assert "registers of an SM: 65,536" in fits.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_a_judgement_fits_the_terminal(columns: int) -> None:
    done = wide(columns, "640", "7168", "7168", "--layout", "rc", *H200, "--tile", "128x256x64")
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert "mistake: " in done.stdout


# mistakes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["8", "8"], "Missing argument 'K'"),
        (["8", "8", "8", "8"], "unexpected extra argument"),
        (["-5", "8", "8"], "-5 is negative; M, N and K are whole numbers, 0 or more"),
        (["8", "8", "-12"], "-12 is negative"),
        (["8", "8", "1e3"], "'1e3' is not a whole number"),
        (["8", "many", "8"], "'many' is not a whole number"),
        (["8", "8", str(2**31)], "k is 2147483648; it must be at least 0 and below 2**31"),
        (["8", "8", "9" * 40], "too large"),
        (["8", "8", "8", "--dtype", "fp8"], "'fp32', 'bf16', 'fp16'"),
        (["8", "8", "8", "--layout", "rx"], "is not one of rr, rc, cr, cc"),
        (["8", "8", "8", "--lda", "4"], "lda is 4, shorter than the row"),
        (["8", "8", "8", "--gpu", ""], "GPU '' is not one of h100"),
        (["8", "8", "8", *H200, "--sms", "0"], "sms is 0; H200 SXM has 1 to 132"),
        (["8", "8", "8", *H200, "--sms", "133"], "sms is 133; H200 SXM has 1 to 132"),
        (["8", "8", "8", "--sms", "-1"], "'-1' is not a whole number"),
        (["8", "8", "8", "--top", "0"], "--top is 0; at least 1"),
        (["8", "8", "8", "--clock", "wall"], "'sustained', 'burst'"),
        (["8", "8", "8", "--calibration", "/no/such.json"], "/no/such.json cannot be read: No such file"),
        (["8", "8", "8", "--tile", "128x256"], "'128x256' is not 3 whole numbers above 0 with an x between"),
        (["8", "8", "8", "--tile", "0x8x8"], "'0x8x8' is not 3 whole numbers above 0"),
        (["8", "8", "8", "--tile", "128 256 64"], "is not 3 whole numbers"),
        (["8", "8", "8", "--tile", "\u0661x8x8"], "is not 3 whole numbers"),
        (["8", "8", "8", "--tile", "8x8x8", "--cluster", "2"], "'2' is not 2 whole numbers above 0"),
        (["8", "8", "8", "--tile", "8x8x8", "--schedule", "turns"], "'cooperative', 'pingpong'"),
        (["8", "8", "8", "--tile", "8x8x8", "--why", "1", "2"], "give one of them"),
        (["8", "8", "8", "--tile", "8x8x8", "--all"], "--all shows every candidate; give one of them"),
        (["8", "8", "8", "--stages", "4"], "--stages is of a tile of one's own; add --tile"),
        (["8", "8", "8", "--cluster", "2x1"], "--cluster is of a tile"),
        (["8", "8", "8", "--schedule", "pingpong"], "--schedule is of a tile"),
        (["8", "8", "8", "--why", "1"], "requires 2 arguments"),
        (["8", "8", "8", *H200, "--why", "1", "99999"], "'99999' names no candidate: a rank from 1 to"),
        (["8", "8", "8", *H200, "--why", "tall", "1"], "'tall' names no candidate"),
        (["0", "8", "8", *H200, "--why", "1", "2"], "nothing to launch"),
        (["8", "8", "8", *H200, "--html", "/no/such/page.html"], "--html /no/such/page.html cannot be written"),
        (["8", "8", "8", "--fast"], "--fast"),
    ],
)
def test_a_mistake_exits_2_and_says_what_is_possible(arguments: list[str], says: str) -> None:
    done = run("plan", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert squeezed(says) in squeezed(done.stderr)


def test_no_kernel_for_a_problem_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilewright, "plan", lambda **_: planning(ranked=()))
    for more in ((), ("--json",)):
        done = run("plan", "8", "8", "8", *more)
        assert done.exit_code == 2
        assert "no kernel computes 8x8x8 bf16: 256 accumulators do not fit" in done.stderr


def test_a_real_process_speaks_without_colour_and_survives_a_closed_pipe() -> None:
    done = process("plan", "640", "7168", "7168", "--picture", "--gpu", "h200")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[0].startswith("H200 SXM")
    coloured = process("plan", "640", "7168", "7168", "--picture", "--gpu", "h200", FORCE_COLOR="1", NO_COLOR="")
    assert "\x1b[" in coloured.stdout
