"""The commands and settings of docs/trial.md work on a user's mail."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import SAMPLE, environment, spamnb
from support.docs_snippets import DOCS, snippet

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


@pytest.mark.parametrize("section", ["On mail in folders", "Labels for drawn messages"])
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


def test_the_settings_of_the_page_are_valid(place):
    """The listener and the question pass the check; nothing is recorded yet."""
    parts = [
        snippet("trial.md", "Beside the filter that runs", file)
        for file in ("spamnb.toml", "trial.toml")
    ]
    settings = place / "spamnb.toml"
    user = '[serve]\nuser = "root"\n' if os.geteuid() == 0 else ""
    settings.write_text(user + "\n".join(parts))
    home = place / "home"
    spamnb(home, "train", "--labels", "folders", "--yes", place / "Maildir")
    done = spamnb(home, "--config", settings, "config", "check")
    assert done.code == 0, done.out + done.err
    (line,) = commands("Beside the filter that runs")
    done = run(place, f"{line} ")
    assert done.returncode == 2
    assert "no verdict of another filter in the last 7 days" in done.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[listener.x]\nother = "rspamd"\n', "a listener behind rspamd can only observe"),
        ('[listener.x]\nprotocol = "scanner"\nobserve = true\nother = "any"\n', "can only observe"),
        ('[listener.x]\nother = "hal"\n', "spamassassin"),
        ('[trial]\nask = "hal:1"\n', "one of bogofilter, spamd, rspamd"),
        ('[trial]\nask = "rspamd:"\n', "write rspamd:HOST:PORT"),
    ],
)
def test_settings_that_contradict_a_trial_are_refused(tmp_path, text, reason):
    """Two filters that mark the same mail, and filters that cannot be asked, are errors."""
    settings = tmp_path / "spamnb.toml"
    settings.write_text(text)
    done = spamnb(tmp_path / "home", "--config", settings, "config", "check")
    assert done.code == 2
    assert reason in done.out + done.err
