"""Snippets of configuration from the documentation, for the tests."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippet(page, section, file):
    """Find the fenced block of a section with a first line that names the file."""
    text = (DOCS / page).read_text("utf-8")
    part = re.split(r"^## ", text, flags=re.MULTILINE)
    found = [
        block
        for chapter in part
        if chapter.startswith(section + "\n")
        for block in _FENCED.findall(chapter)
        if re.match(rf"(?:#!/bin/sh\n)?(?:#|dnl|<\?php //) {re.escape(file)}(?!\w)", block)
    ]
    assert len(found) == 1, f"{page}, {section}: {len(found)} snippets for {file}"
    return found[0]


def changed(text, changes):
    """Replace ports and paths; each must occur, or the snippet is not the expected one.

    In one pass, because an inserted port may begin like a port that is to be replaced.
    """
    for old in changes:
        assert old in text, f"{old!r} is not in the snippet"
    olds = sorted(changes, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, olds)), lambda found: str(changes[found[0]]), text)


def commands(page, section):
    """Return the shell commands of a section, a line each."""
    text = (DOCS / page).read_text("utf-8")
    part = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
    blocks = re.findall(r"^```sh\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def shell(page):
    """Return all shell blocks of a page as one script, from top to bottom."""
    text = (DOCS / page).read_text("utf-8")
    return "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
