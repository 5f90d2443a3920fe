"""docs/lectures.md keeps its word: every line runs, and prints what the page shows."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.docs_snippets import shell

PAGE = Path(__file__).parents[2] / "docs" / "lectures.md"
TEXT = PAGE.read_text("utf-8")
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"^```pycon\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
    for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
}


@pytest.mark.parametrize("title", SECTIONS)
def test_each_section_prints_what_it_shows(title, monkeypatch, tmp_path):
    """A section is complete: its blocks run from top to bottom in a new session."""
    monkeypatch.chdir(tmp_path)
    assert SECTIONS[title], "a section without an example"
    examples = doctest.DocTestParser().get_doctest("\n".join(SECTIONS[title]), {}, title, None, 0)
    assert len(examples.examples) > 3
    report = []
    found = doctest.DocTestRunner().run(examples, out=report.append)
    assert found.failed == 0, "".join(report)


def test_a_changed_number_is_found():
    """The comparison itself fails if one digit of the page is another."""
    changed = "\n".join(SECTIONS["Play tennis"]).replace("0.0206", "0.0205")
    examples = doctest.DocTestParser().get_doctest(changed, {}, "changed", None, 0)
    assert doctest.DocTestRunner().run(examples, out=lambda _: None).failed == 1


def test_explain_prints_the_numbers_of_the_page(tmp_path):
    """`spamnb explain` gives each clue, the bias, the sum and the probability of the section."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-eu", "-c", shell("lectures.md")],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "SPAMNB_HOME": str(tmp_path / "home"), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    number = re.compile(r"^\s*([+-]\d+\.\d{3}) (.*)$", re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    printed = [
        (nats, rest.split()[-1])
        for nats, rest in number.findall(ran.stdout)
        if " self " not in rest
    ]
    assert [(nats, rest.split()[-1]) for nats, rest in number.findall(shown)] == printed
    for nats, word in printed[:4]:
        assert f"{nats} {word}\n" in SECTIONS["The filter"][1]
    assert f"{printed[-1][0]} log-odds, 80.06% spam" in SECTIONS["The filter"][1]
    assert "80.06% spam" in ran.stdout
