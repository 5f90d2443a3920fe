"""The pictures of docs/console.md: small, and made again by their script."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.browser import CHROMIUM

PROJECT = Path(__file__).resolve().parents[2]
PICTURES = PROJECT / "docs" / "pictures"
MOST_BYTES = 700_000


def test_the_pictures_are_small_and_shown():
    """All are on the page, and none is missing there."""
    text = (PROJECT / "docs" / "console.md").read_text("utf-8")
    found = sorted(PICTURES.iterdir())
    assert all(f"](pictures/{one.name})" in text for one in found)
    assert text.count("](pictures/") == len(found) == 7
    assert sum(one.stat().st_size for one in found) < MOST_BYTES


@pytest.mark.full
def test_the_pictures_can_be_made_again(tmp_path):
    """The script makes pictures of the same names."""
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    script = PROJECT / "scripts" / "console-pictures"
    subprocess.run([sys.executable, script, tmp_path], check=True, capture_output=True)
    assert {one.name for one in tmp_path.iterdir()} == {one.name for one in PICTURES.iterdir()}
