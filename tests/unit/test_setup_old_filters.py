"""`spamnb setup` finds the data of other filters; the command that it prints works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import SPAM

from spamnb.setup.old_filters import homes_of_users, notes


def touched(home, name):
    path = home / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    return path


def test_each_filter_is_named_once(tmp_path):
    """With the place of its data, the number of other users, and a command."""
    homes = [tmp_path / name for name in ("ann", "bob", "eve")]
    words = [touched(home, ".bogofilter/wordlist.db") for home in homes[:2]]
    tokens = touched(homes[2], ".spamassassin/bayes_toks")
    said = [one for one in notes(homes) if str(tmp_path) in one]
    assert [one.split()[0] for one in said] == ["bogofilter", "SpamAssassin"]
    assert f"({words[0]}, and 1 more)" in said[0]
    assert f"sa-learn --dbpath {tokens.parent}/bayes --backup" in said[1]
    assert not [one for one in notes([tmp_path / "none"]) if str(tmp_path) in one]


def test_a_home_that_cannot_be_searched(tmp_path):
    """A home that is a file, and one with a name that is too long, have no data."""
    (tmp_path / "file").write_text("")
    assert list(notes([tmp_path / "file", tmp_path / ("x" * 300)])) == list(notes([]))


def test_root_has_a_home():
    """System users have none."""
    assert Path("/root") in set(homes_of_users())
    assert Path("/var/mail") not in set(homes_of_users())


@pytest.mark.skipif(shutil.which("bogofilter") is None, reason="bogofilter is not installed")
def test_the_counts_of_a_real_bogofilter(tmp_path):
    """The printed command takes over the words that bogofilter has learnt."""
    folder = tmp_path / "a home" / ".bogofilter"
    folder.mkdir(parents=True)
    for path in sorted(Path(SPAM).iterdir())[:5]:
        with path.open("rb") as raw:
            subprocess.run(["bogofilter", "-s", "-d", folder], stdin=raw, check=True)
    (said,) = (one for one in notes([tmp_path / "a home"]) if str(tmp_path) in one)
    command = re.search("`(.*)`", said)[1]
    program = tmp_path / "bin" / "spamnb"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spamnb "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "SPAMNB_HOME": str(tmp_path / "model"),
    }
    asked = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(["sh", "-c", command], check=False, **asked)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "data.mdb").exists()
