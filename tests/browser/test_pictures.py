"""The pictures of the pages: small, shown, and made again by their script."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.browser import CHROMIUM

PROJECT = Path(__file__).resolve().parents[2]
PICTURES = PROJECT / "docs" / "pictures"
MOST_BYTES = 900_000


def test_the_pictures_are_small_and_shown():
    """Each is on docs/console.md or in a decision record, and none is missing there."""
    records = sorted((PROJECT / "docs" / "decisions").glob("*.md"))
    text = "".join(page.read_text() for page in (PROJECT / "docs" / "console.md", *records))
    found = sorted(PICTURES.iterdir())
    assert all(f"pictures/{one.name})" in text for one in found)
    assert text.count("pictures/") == len(found) > 7
    assert sum(one.stat().st_size for one in found) < MOST_BYTES


@pytest.mark.full
def test_the_pictures_can_be_made_again(tmp_path):
    """The script makes pictures of the same names."""
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    script = PROJECT / "scripts" / "console-pictures"
    subprocess.run([sys.executable, script, tmp_path], check=True, capture_output=True)
    page = (PROJECT / "docs" / "console.md").read_text("utf-8")
    shown = set(re.findall(r"\]\(pictures/([^)]+)\)", page))
    assert {one.name for one in tmp_path.iterdir()} == shown
