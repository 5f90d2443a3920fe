"""The commands of docs/switching.md work on a user's mail, as far as the other filter is there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import SAMPLE, environment, spamnb
from support.docs_snippets import commands, snippet

STARTS = ("SpamAssassin", "rspamd", "bogofilter", "DSPAM", "Nothing", "Side by side")


@pytest.fixture
def place(tmp_path):
    """Give a user's folder: sorted mail, a Maildir with keywords, a backup of sa-learn."""
    names = []
    for label, folder, keyword in (("ham", ".Friends", "b"), ("spam", ".Junk", "a")):
        (tmp_path / label).mkdir()
        cur = tmp_path / "Maildir" / folder / "cur"
        cur.mkdir(parents=True)
        (cur.parent / "new").mkdir()
        (cur.parent / "dovecot-keywords").write_text("0 $Junk\n1 $NotJunk\n")
        for path in sorted((SAMPLE / label).iterdir())[:30]:
            shutil.copy(path, tmp_path / label / path.name)
            shutil.copy(path, cur / f"{path.stem}:2,S{keyword}")
            found = re.search(r"(?im)^message-id: *<([^>]+)>", path.read_text(errors="replace"))
            names += [f"s\t{label[0]}\t{found[1]}\n"] if found else []
    (tmp_path / "sa-backup.txt").write_text("v\t3\tdb_version\n" + "".join(names))
    return tmp_path


def train_bogofilter(place):
    (place / ".bogofilter").mkdir()
    for label, option in (("ham", "-n"), ("spam", "-s")):
        names = "\n".join(str(path) for path in (place / label).iterdir()) + "\n"
        command = ["bogofilter", "-C", "-d", place / ".bogofilter", option, "-b"]
        subprocess.run(command, input=names.encode(), check=True)


def train_spamassassin(place):
    for label in ("ham", "spam"):
        command = ["sa-learn", f"--{label}", place / label]
        subprocess.run(
            command, env=environment(HOME=str(place)), stdout=subprocess.DEVNULL, check=True
        )


@pytest.mark.parametrize("section", STARTS)
def test_the_commands_of_each_start_work(place, section):
    """Each command succeeds from top to bottom; those of a filter that is missing are left out."""
    if section == "bogofilter":
        if shutil.which("bogofilter") is None:
            pytest.skip("bogofilter is not installed")
        train_bogofilter(place)
    if section == "SpamAssassin" and shutil.which("sa-learn"):
        train_spamassassin(place)
    if section == "Side by side":
        spamnb(place / "home", "train", place / "ham", place / "spam")
    lines = commands("switching.md", section)
    assert lines
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "HOME": str(place), "SPAMNB_HOME": str(place / "home")}
    for line in lines:
        if shutil.which(line.split()[0], path=path) is None:
            continue
        done = subprocess.run(
            line, shell=True, cwd=place, env=environment(**variables), capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    [stats] = spamnb(place / "home", "stats", "--json").json
    assert min(stats["messages"].values()) >= 10


def test_the_listener_of_the_page_is_valid(place):
    """The settings for a trial beside another filter pass the check."""
    settings = place / "spamnb.toml"
    text = snippet("switching.md", "Side by side", "spamnb.toml")
    settings.write_text(f'[serve]\nuser = "root"\n{text}' if os.geteuid() == 0 else text)
    spamnb(place / "home", "train", place / "ham", place / "spam")
    done = spamnb(place / "home", "--config", settings, "config", "check")
    assert done.code == 0, done.out + done.err
