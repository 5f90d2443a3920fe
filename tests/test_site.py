"""The pages of `scripts/site` are complete, their links work, and nothing comes from elsewhere."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urldefrag

import click
import headers
import log_events
import pytest
import reference
from selectolax.lexbor import LexborHTMLParser

from spamnb.cli.main import cli
from spamnb.model.verdict import Clue
from spamnb.operations.table import OPERATIONS
from spamnb.policy import headers as verdict_headers
from spamnb.settings.table import FAMILIES, SETTINGS
from spamnb.telemetry import COUNTERS, HISTOGRAMS

PROJECT = Path(__file__).resolve().parent.parent
SCRIPT = PROJECT / "scripts" / "site"


def make(folder, script=SCRIPT):
    """Write the site; returns the finished process."""
    return subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = make(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Return the parsed pages: path -> tree."""
    return {path: LexborHTMLParser(path.read_text("utf-8")) for path in site.rglob("*.html")}


def anchors(tree):
    return {node.attributes["id"] for node in tree.css("[id]")}


def test_every_link_leads_to_a_page_and_a_heading(pages):
    """Links within the site are relative; their files and anchors exist."""
    known = {path.resolve(): anchors(tree) for path, tree in pages.items()}
    count = 0
    for path, tree in pages.items():
        for node in tree.css("a[href]"):
            place, anchor = urldefrag(node.attributes["href"])
            if re.match(r"https?:", place):
                continue
            found = (path.parent / place).resolve() if place else path.resolve()
            assert found in known, (path, place)
            assert not anchor or anchor in known[found], (path, place, anchor)
            count += 1
    assert count > 1000


def test_a_page_loads_nothing_from_elsewhere(pages, site):
    """All that a page loads is a file of the site, and its policy forbids everything else."""
    for path, tree in pages.items():
        loaded = [node.attributes["src"] for node in tree.css("[src]")]
        loaded += [node.attributes["href"] for node in tree.css("link")]
        assert all(one == "data:," or (path.parent / one).is_file() for one in loaded), path
        assert "default-src 'none'" in tree.css_first("meta[http-equiv]").attributes["content"]
    theme = (site / "style.css").read_text() + (site / "search.js").read_text()
    assert not re.search(r"https?:|url\(|@import|innerHTML|eval\(", theme)


def test_every_document_is_a_page(pages, site):
    """The site has all of docs/, and the search finds each of its headings."""
    names = {str(path.relative_to(site)) for path in pages}
    for path in (PROJECT / "docs").rglob("*.md"):
        place = path.relative_to(PROJECT / "docs").with_suffix(".html")
        assert str(place).replace("README", "index") in names
    index = (site / "search-index.js").read_text("utf-8")
    rows = json.loads(index.removeprefix("window.searchIndex = ").rstrip(";\n"))
    heads = {
        f"{path.relative_to(site)}#{node.attributes['id']}"
        for path, tree in pages.items()
        for node in tree.css(":is(h1, h2, h3, h4)[id]")
    }
    assert {row[0] for row in rows} == heads


def test_it_is_the_same_each_time(site, tmp_path):
    """Two runs give the same bytes."""
    assert make(tmp_path).returncode == 0
    for path in site.rglob("*.*"):
        assert path.read_bytes() == (tmp_path / path.relative_to(site)).read_bytes()


def test_a_broken_page_is_reported(tmp_path):
    """A link to no file or no heading, or a page with two titles, is one line; nothing is made."""
    for part in ("scripts", "docs"):
        shutil.copytree(PROJECT / part, tmp_path / part, ignore=shutil.ignore_patterns("bench"))
    shutil.copytree(PROJECT / "corpora", tmp_path / "corpora", ignore=lambda *_: ["sample"])
    for path in PROJECT.glob("*.md"):
        shutil.copy(path, tmp_path)
    out = tmp_path / "out"
    install = tmp_path / "docs" / "install.md"
    install.write_text(install.read_text() + "\n[a](none.md) [b](upgrade.md#none)\n")
    done = make(out, tmp_path / "scripts" / "site")
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [
            "docs/install.md: none.md does not exist",
            "docs/install.md: upgrade.md#none is no heading",
        ],
    )
    install.write_text("# One\n\n# Two\n")
    done = make(out, tmp_path / "scripts" / "site")
    assert done.returncode == 1
    assert "docs/install.md: it needs one heading of the first level" in done.stderr
    assert not out.exists()


def test_the_reference_has_every_setting_command_metric_and_operation():
    """The reference is made from the same tables as the program."""
    found = reference.pages()
    families = [one for family in FAMILIES.values() for one in family.settings]
    for one in (*SETTINGS, *families):
        assert f"\n### {one.name}\n" in found["settings"]
    top = click.Context(cli, info_name="spamnb")
    for name in cli.list_commands(top):
        assert f"\n## spamnb {name}\n" in found["commands"]
    for name in (*COUNTERS, *HISTOGRAMS, *reference.GAUGES):
        assert f"`spamnb_{name}" in found["metrics"]
    for name, operation in OPERATIONS.items():
        assert f"\n## {name}\n\n{operation.summary[:20]}" in found["socket"]
        for parameter in operation.parameters:
            assert f"\n| `{parameter.name}` | " in found["socket"]


def test_every_key_of_the_log_is_explained():
    """The source logs no key without a meaning, and no meaning is left of a key that is gone."""
    found = log_events.events()
    assert {"message", "delivery", "ready", "fault"} <= {one.name for one in found}
    assert {key for one in found for key in one.keys} == log_events.KEYS.keys()


def table_names():
    """Return all names of the table, in lower case."""
    groups = headers.GROUPS
    return {name.lower() for one in groups for row in one.headers for name in row.names.split(", ")}


def test_every_header_that_is_written_is_in_the_table():
    """The fields of all verdicts, and every name that the source writes into a message."""
    clues = (Clue("body", "word", 1.0),)
    verdict = verdict_headers.ScanVerdict("spam", 0.99, 5.0, "junk", "0" * 32, "rule", clues)
    written = [
        *verdict_headers.scanned_fields(verdict, 0.0, redirect="Junk"),
        *verdict_headers.unscanned_fields("fault"),
        *verdict_headers.released_fields("0" * 32),
    ]
    names = {name for name, _ in written}
    for path in (PROJECT / "spamnb").rglob("*.py"):
        text = path.read_text("utf-8")
        names |= set(re.findall(r"\"(X-Spam[A-Za-z-]*)\"", text))
        names |= set(re.findall(r"mail\[\"([A-Za-z-]+)\"\]", text))
    assert len(names) > 10
    assert {name.lower() for name in names} <= table_names()


def test_every_header_of_a_request_is_in_the_table():
    """The fields that a scanner listener reads of its clients."""
    names = set()
    for path in (PROJECT / "spamnb" / "scanner").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "header":
                names |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    assert len(names) > 8
    assert names <= table_names()
