"""The documents keep their word: what the README shows is run, what it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spamnb

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()


def blocks(language):
    """The README's blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with ham/, spam/ and new/, and spamnb on the path."""
    place = tmp_path_factory.mktemp("readme")
    for label in ("ham", "spam"):
        (place / label).symlink_to(PROJECT / "corpora" / "sample" / label)
    maker = [sys.executable, str(PROJECT / "scripts" / "make-sample"), str(place / "new")]
    subprocess.run([*maker, "--ham", "3", "--spam", "3", "--seed", "2"], check=True)
    return place


def test_every_command_of_the_readme_works(place):
    """The README's shell blocks run from top to bottom, as a reader would type them."""
    lines = [
        line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()
    ]
    commands = [line for line in lines if line]
    assert len(commands) > 10
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "SPAMNB_HOME": str(place / "home")}
    for command in commands:
        ran = subprocess.run(
            command,
            shell=True,
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        assert "Traceback" not in ran.stderr


def test_the_python_of_the_readme_works(place, monkeypatch, capsys):
    """The README's Python block runs, given one message."""
    monkeypatch.chdir(place)
    raw = next((place / "new" / "spam").iterdir()).read_bytes()
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {"raw": raw})
    assert capsys.readouterr().out


def test_every_public_name_is_in_the_readme():
    """Whoever reads the README knows the whole door."""
    assert [name for name in spamnb.__all__ if f"`{name}`" not in README] == ["__version__"]


def test_every_command_is_in_the_readme():
    """No command hides from whoever reads the README."""
    from spamnb.cli.main import COMMANDS

    listed = README + (PROJECT / "CHANGELOG.md").read_text()
    assert [name for name in COMMANDS if name not in listed] == []


def test_every_link_of_the_readme_leads_somewhere():
    """Links to files and headings exist."""
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in README.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target:
            assert (PROJECT / target).exists(), target
