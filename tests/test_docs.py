"""The documents keep their word: what the README shows is run, what it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import spamnb

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()


def blocks(language):
    """The README's blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands_of(language):
    """The commands in these blocks, from top to bottom."""
    text = "\n".join(blocks(language))
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def surroundings(place):
    """What a reader's shell has: spamnb on the path, a home."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    root = {"SPAMNB_SERVE_USER": "root"} if os.geteuid() == 0 else {}
    return os.environ | {"PATH": path, "SPAMNB_HOME": str(place / "home")} | root


def works(command, place):
    """Run one, as a reader would type it."""
    ran = subprocess.run(
        command,
        shell=True,
        cwd=place,
        env=surroundings(place),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    assert "Traceback" not in ran.stderr


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
    commands = commands_of("sh")
    assert len(commands) > 10
    for command in commands:
        works(command, place)


def test_every_command_for_the_daemon_works(place):
    """Those that ask a daemon, beside one that serves."""
    commands = commands_of("sh daemon")
    assert len(commands) > 5
    words = [sys.executable, "-m", "spamnb", "serve", "--create"]
    words += ["--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:9"]
    with (place / "log").open("w") as log:
        daemon = subprocess.Popen(words, env=surroundings(place), cwd=PROJECT, stderr=log)
    try:
        end = time.monotonic() + 60
        while " ready " not in (place / "log").read_text():
            assert daemon.poll() is None, (place / "log").read_text()
            assert time.monotonic() < end, (place / "log").read_text()
            time.sleep(0.05)
        for command in commands:
            works(command, place)
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0


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
