"""`spamnb doubt`: wrong labels are found, shown and changed."""

import os
import pty
import shutil
import subprocess

import pytest
from support.cli import PROGRAM, SAMPLE, environment, spamnb
from support.waiting import LIMIT_S

from spamnb.engine.filter import Filter
from spamnb.engine.values import Source
from spamnb.maintenance.attribution import doubts

pytestmark = pytest.mark.usefixtures("alone")

WRONG = 4


@pytest.fixture(scope="module")
def clearest(trained):
    """The four messages of the sample that are ham most clearly."""
    raws = [path.read_bytes() for path in sorted((SAMPLE / "ham").iterdir())]
    with Filter.open(trained, readonly=True) as model:
        return sorted(raws, key=lambda raw: model.score(raw, remember=False).log_odds)[:WRONG]


@pytest.fixture(scope="module")
def mislabelled(trained, clearest, tmp_path_factory):
    """The sample's model, in which mallory has trained these messages as spam."""
    home = shutil.copytree(trained, tmp_path_factory.mktemp("cli") / "home")
    with Filter.open(home, history=False) as model:
        for raw in clearest:
            model.forget(raw)
            model.learn(raw, "spam", source=Source("mallory", "imap"))
    return home


@pytest.fixture
def home(mislabelled, tmp_path):
    """A copy that the test may change."""
    return shutil.copytree(mislabelled, tmp_path / "home")


def test_wrong_labels_are_listed_first(mislabelled):
    """Mallory's four wrong labels, of 400, are among the first eight doubts."""
    found = spamnb(mislabelled, "doubt", "--json", "--limit", 2 * WRONG).json
    assert sum(line["user"] == "mallory" for line in found) == WRONG
    nats = [line["nats"] for line in found]
    assert nats == sorted(nats, reverse=True)
    assert nats[-1] > 0
    mallory = spamnb(mislabelled, "doubt", "--user", "mallory", "--limit", 0).lines
    assert "spam, likely ham" in mallory[0]
    assert all("mallory/imap" in line for line in mallory)
    assert spamnb(mislabelled, "doubt", "--user", "trent").lines == []


def test_a_doubt_is_the_score_without_the_training(mislabelled, clearest, tmp_path):
    """The listed evidence is the log-odds of the message after its training is forgotten."""
    home = shutil.copytree(mislabelled, tmp_path / "copy")
    with Filter.open(home, history=False) as model:
        with model.store.read() as view:
            (first,) = doubts(view, model.recipe, lambda event: event.user == "mallory", 1)
        (raw,) = [raw for raw in clearest if model.example(raw).digest == first.digest]
        model.forget(raw)
        z = dict(zip(model.labels, model.score(raw).z, strict=True))
    assert z["ham"] - z["spam"] == pytest.approx(first.nats, abs=1e-9)


def answered(home, keys):
    """Run `doubt --ask` on a terminal on which these keys are typed; return what it prints."""
    inside, outside = pty.openpty()
    os.write(inside, keys)
    command = [*PROGRAM, "--home", str(home), "doubt", "--user", "mallory", "--ask"]
    done = subprocess.run(
        command, stdin=outside, capture_output=True, check=False, timeout=LIMIT_S, env=environment()
    )
    os.close(inside)
    os.close(outside)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    return done.stdout.decode()


def test_a_key_changes_the_label_and_can_be_undone(home):
    """K keeps the first label, c changes the second one, q ends; undo restores the label."""
    before = spamnb(home, "stats", "--json").json[0]["messages"]
    out = answered(home, b"kxcq")
    assert out.count(" of 4: ") == 3
    changed = [line for line in out.splitlines() if line.startswith("spam -> ham")]
    assert len(changed) == 1
    after = spamnb(home, "stats", "--json").json[0]["messages"]
    assert after == {"ham": before["ham"] + 1, "spam": before["spam"] - 1}
    event = changed[0].split("event ")[1].split(":")[0]
    assert spamnb(home, "undo", event).code == 0
    assert spamnb(home, "stats", "--json").json[0]["messages"] == before


def test_ask_needs_a_terminal(mislabelled):
    """Without a terminal nothing is asked, and the error names the other way."""
    refused = spamnb(mislabelled, "doubt", "--ask")
    assert (refused.code, "needs a terminal" in refused.err) == (2, True)
