"""The present program on the homes that releases left behind; each is one of release_home.py."""

import json
import os
import re
import subprocess

import pytest
from support.cli import PROJECT
from support.console import console
from support.daemon import send
from support.release_home import HOMES, QUESTIONS, Home, settings
from support.sink import Sink

from spamnb import __version__

AS_ROOT = {"SPAMNB_SERVE_USER": "root"} if os.geteuid() == 0 else {}
RELEASES = sorted(HOMES.glob("*.tar.gz"))


@pytest.fixture(params=RELEASES, ids=[path.name.removesuffix(".tar.gz") for path in RELEASES])
def home(request, tmp_path):
    """The unpacked home of a release."""
    subprocess.run(["tar", "-xzpf", request.param, "--no-same-owner", "-C", tmp_path], check=True)
    return Home(tmp_path)


def test_the_last_release_is_among_them():
    """The newest one of the changelog; `scripts/release` demands the home of its version."""
    changelog = (PROJECT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert {f"{release}.tar.gz" for release in releases} == {path.name for path in RELEASES}
    assert releases[0] == __version__


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_the_answer_of_the_release(home, question):
    """Counts, journal, verdicts, persons, lists and waiting mail are what they were.

    A later version may say more about each of them, and finds passages in texts. Scores move by a
    few percent at most: a later version reads features that the model has not learnt.
    """
    now, then = rounded(home.ask(question)), rounded(home.answers[question])
    for one, old in zip(now, then, strict=True):
        if any(clue["location"] == "passage" for clue in one.get("clues", ())):
            assert one["log_odds"] > old["log_odds"]
        else:
            assert {name: one[name] for name in old} == like(old)


def like(old):
    """What equals this value, with numbers that are within 3 % of those of a score."""
    if isinstance(old, float):
        return pytest.approx(old, rel=0.03, abs=0.001)
    if isinstance(old, list):
        return [like(one) for one in old]
    return {name: like(one) for name, one in old.items()} if isinstance(old, dict) else old


def rounded(lines):
    """Decode lines of JSON; the last digits of a score depend on the processor."""
    return [json.loads(line, parse_float=short) for line in lines.splitlines()]


def short(number):
    return round(float(number), 6)


def test_settings_and_model_hold(home):
    """No line of the settings is refused, and the model is what its journal says."""
    home.run("config", "check", **AS_ROOT)
    assert home.run("check").startswith("sound:")


def test_a_backup_before_the_upgrade_is_a_way_back(home, tmp_path):
    """A copy made before the model is changed gives the answers of the release."""
    home.run("backup", tmp_path / "copy")
    home.run("correct", "ham", "mail/spam.32.eml")
    assert home.ask("export") != home.answers["export"]
    home.run("restore", "--force", tmp_path / "copy")
    assert home.ask("export") == home.answers["export"]


def test_its_trainings_can_be_undone(home):
    """All events that the release wrote, the newest first: nothing is left of them."""
    home.run("undo", "--since", "2020-01-01", "--yes")
    totals, *features = home.lines("export")
    assert totals["messages"] == [0, 0]
    assert not [one for one in features if any(one.get("n", ())) or any(one.get("w", ()))]


def test_a_daemon_goes_on_with_it(home):
    """Mail is judged and kept, and a new label of the same person is learnt."""
    sink, before = Sink(), home.lines("quarantine")
    with console(home.folder, **settings(sink)) as (daemon, _):
        send(daemon.port(), "another message for the quarantine")
        assert [one for one in home.lines("quarantine") if one not in before]
        home.run("correct", "--person", "ann@example.org", "spam", "mail/spam.32.eml")
        home.run("check")
    sink.close()
