"""docs/matmul.md: its examples run, its table is the one that programs get, the tests it names exist.

The examples of other pages, and README's of ``matmul``, run too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.library.support import markdown

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "matmul.md").read_text(encoding="utf-8")
_EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
EXAMPLES = _EXAMPLE.findall(PAGE)


@pytest.mark.parametrize("text", [each for each in EXAMPLES if not each.startswith("# needs")])
def test_an_example_runs(text: str) -> None:
    exec(compile(text, "docs/matmul.md", "exec"), {"__name__": "example"})


def test_the_examples_of_other_pages_run() -> None:
    ran, needing = 0, 0
    for page in ("README.md", "docs/epilogues.md", "docs/emulator.md", "docs/tune.md"):
        for text in _EXAMPLE.findall((ROOT / page).read_text(encoding="utf-8")):
            code = compile(text, page, "exec")
            if text.startswith("# needs a GPU"):
                needing += 1
                continue
            exec(code, {"__name__": "example"})
            ran += 1
    assert (ran, needing) == (5, 2)


@pytest.mark.parametrize("text", [each for each in EXAMPLES if each.startswith("# needs")])
def test_an_example_that_needs_more_is_python(text: str) -> None:
    compile(text, "docs/matmul.md", "exec")


def test_the_table_of_what_is_supported() -> None:
    block = re.search(r"<!-- supported: .*? -->\n(.*?)\n<!-- end of supported -->", PAGE, re.DOTALL)
    assert block is not None
    assert block[1] == markdown()


def test_the_tests_that_it_names_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", PAGE)
    assert len(named) > 20
    for file, test in named:
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{file} has no {test}"


def test_each_fault_has_a_test_or_a_reason() -> None:
    tables = PAGE[PAGE.index("## What users of other libraries ran into") :].split("\n### ")[1:]
    rows = [
        [line.strip("| ").split(" | ") for line in each.splitlines() if line.startswith("| ")][1:] for each in tables
    ]
    assert [len(each) for each in rows] == [10, 14, 14, 12, 12]
    for fault, here in (row for each in rows for row in each):
        assert re.search(r"`test_\w+\.py|^not built: \w|^by construction: \w", here), fault
