"""The commands of docs/trial.md work on a user's mail."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import SAMPLE, environment
from support.docs_snippets import DOCS

TEXT = (DOCS / "trial.md").read_text()
MARK = b"X-Bogosity: Ham, tests=bogofilter, spamicity=0.1\n"
RSPAMD = b"X-Spam: Yes\n"
RECEIVED = (
    b"Received: from a (a [192.0.2.1]) by mx.example.org with ESMTP; 1 Nov 2026 10:00:00 +0000\n"
)


def commands(section):
    """Return the shell commands of a section."""
    part = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)[1]
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", part, re.DOTALL | re.MULTILINE)
    return [line.strip() for block in blocks for line in block.splitlines()]


@pytest.fixture
def place(tmp_path):
    """Give a user's folder: a Maildir with marks of two filters, answers."""
    for label, folder in (("ham", ".Friends"), ("spam", ".Junk")):
        cur = tmp_path / "Maildir" / folder / "cur"
        cur.mkdir(parents=True)
        (cur.parent / "new").mkdir()
        for path in sorted((SAMPLE / label).iterdir())[:30]:
            message = MARK + RECEIVED + RSPAMD + path.read_bytes()
            (cur / f"{path.stem}:2,S").write_bytes(message)
    (tmp_path / "answers.txt").write_text("spam 00\n")
    return tmp_path


def run(place, line):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "HOME": str(place), "SPAMNB_HOME": str(place / "home")}
    return subprocess.run(
        line, shell=True, cwd=place, env=environment(**variables), capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("section", ["On mail that lies there", "The report"])
def test_the_commands_on_a_maildir_work(place, section):
    """Each command prints a report of all messages; bogofilter needs its words first."""
    lines = commands(section)
    assert lines
    for line in lines:
        if "bogofilter" in line:
            if shutil.which("bogofilter") is None:
                continue
            (place / ".bogofilter").mkdir()
            names = "".join(f"{path}\n" for path in (place / "Maildir").rglob("cur/*"))
            subprocess.run(
                ["bogofilter", "-C", "-d", place / ".bogofilter", "-n", "-b"],
                input=names.encode(), check=True,
            )  # fmt: skip
        done = run(place, line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "60 messages with both verdicts" in done.stdout
