"""The generated blocks of the documentation, and what its pages promise: links, commands, the emulator's reports."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import ladder_blocks
import ladder_figures
import ladder_pages
import pytest
from observed import Call, kernel_source, product

from tilewright import ladder
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.host_compiler import available_compilers
from tilewright.errors import EmulatorFault, UnavailableError

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")])
FENCED = re.compile(r"^```([\w+]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


# The blocks


def test_blocks_missing_doubled_and_unknown_are_found() -> None:
    text = "".join(f"<!-- generated: {name} -->\nold\n<!-- end: {name} -->\n" for name in ("twice", "twice", "unknown"))
    found = ladder_pages.renew(text, {"twice": lambda: "new\n", "absent": lambda: "new\n"})
    assert found.wrong == [
        "block twice stands there 2 times",
        "block absent stands there 0 times",
        "block unknown is one that nothing makes",
    ]
    assert found.text.count("new") == 2
    assert "unknown -->\nold\n" in found.text


def test_a_block_that_cannot_be_made_keeps_its_text() -> None:
    def unavailable() -> str:
        raise UnavailableError("no compiler")

    text = "by hand\n<!-- generated: x -->\nold\n<!-- end: x -->\n"
    found = ladder_pages.renew(text, {"x": unavailable})
    assert (found.text, found.stale) == (text, [])
    assert found.unmade == ["block x cannot be made here: no compiler"]


@pytest.mark.parametrize("number", ladder.rungs())
def test_counted_blocks_are_the_same_with_every_compiler(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = set()
    for compiler in available_compilers():
        backend = EmulatorBackend(compiler=compiler)
        monkeypatch.setattr(ladder_figures, "emulator", lambda backend=backend: backend)
        ladder_figures.counted.cache_clear()
        rung = ladder.rung(number)
        made = ladder_blocks.blocks_of(rung)
        texts.add("".join(made[name](rung, []) for name in ("counted", "mistake") if name in made))
    ladder_figures.counted.cache_clear()
    assert len(texts) == 1


# What the pages promise


def anchors(text: str) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_resolve() -> None:
    broken, seen = [], 0
    for page in PAGES:
        text = FENCED.sub("", page.read_text("utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"\w+:", target):
                continue
            seen += 1
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            line = re.fullmatch(r"L(\d+)", anchor)
            if not file.exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
            elif line is not None:
                if int(line[1]) > len(file.read_text("utf-8").splitlines()):
                    broken.append(f"{page.relative_to(ROOT)}: {target} is past the end")
            elif anchor and anchor not in anchors(file.read_text("utf-8")):
                broken.append(f"{page.relative_to(ROOT)}: {target} has no such heading")
    assert broken == []
    assert seen > 50


def commands() -> list[str]:
    """Every line of a code block that calls the command line, without its comment."""
    found = set()
    for page in PAGES:
        for language, text in FENCED.findall(page.read_text("utf-8")):
            if language in ("", "sh"):
                found |= {line for line in text.splitlines() if line.startswith("tilewright ")}
    return sorted(found)


@pytest.mark.parametrize("line", commands())
def test_commands_are_understood(line: str) -> None:
    import typer

    from tilewright.cli.app import app

    words = shlex.split(line.partition(">")[0], comments=True)[1:]
    group = typer.main.get_command(app)
    with group.make_context("tilewright", words) as context:
        name, command, rest = group.resolve_command(context, words)  # type: ignore[attr-defined]
        command.make_context(name, rest, parent=context).close()


SHOWN = {  # kernel: the check, M, N, K, padding, shared bytes
    "missing_barrier_after_read": (check_races, 32, 32, 64, 0, 2048),
    "missing_syncwarp": (check_races, 32, 32, 64, 0, 512),
    "cp_async_no_wait": (check_races, 32, 32, 64, 0, 2048),
    "cp_async_no_barrier": (check_races, 32, 32, 64, 0, 1024),
    "cp_async_overwrites": (check_races, 32, 32, 64, 0, 2048),
    "uninitialised_tile": (check_races, 16, 16, 16, 0, 2048),
    "read_past_row_end": (check_bounds, 17, 21, 19, 3, 2048),
    "store_into_padding": (check_bounds, 17, 21, 19, 3, 2048),
    "shared_overflow": (check_bounds, 17, 21, 19, 0, 2048),
    "misaligned_vector": (check_bounds, 16, 64, 8, 0, 0),
    "divergent_barrier": (check_races, 16, 16, 16, 0, 2048),
}
REPORT = re.compile(r"\(\.\./tests/kernels/broken/(\w+)\.cu\)[^`]*?```text\n(.*?)\n```", re.DOTALL)
REPORTS = dict(REPORT.findall((ROOT / "docs/emulator.md").read_text("utf-8")))


def test_every_report_shown_is_checked() -> None:
    assert sorted(REPORTS) == sorted(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_reports_are_what_the_emulator_says(emulator: EmulatorBackend, name: str) -> None:
    check, m, n, k, padding, shared_bytes = SHOWN[name]
    source = kernel_source(f"broken/{name}.cu", TILE=16, BROKEN=1, THREADS=256, SHARED_BYTES=shared_bytes)
    operands = product(emulator, m, n, k, padding=padding)
    tiles = -(-m // 16) * -(-n // 16)
    with pytest.raises(EmulatorFault) as caught:
        check(emulator, *Call(source, (tiles, 1, 1), (256, 1, 1), operands.args, shared_bytes))
    assert re.sub(r"0x[0-9a-f]+", "0x...", str(caught.value)) == REPORTS[name]
