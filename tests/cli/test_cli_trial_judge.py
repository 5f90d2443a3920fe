"""`spamnb trial judge`: labels of drawn messages by keys, on disk at once, taken back by a key."""

import os
import pty
import shutil
import subprocess

import pytest
from support.cli import PROGRAM, SAMPLE, environment, spamnb
from support.waiting import LIMIT_S

from spamnb.engine.filter import Filter
from spamnb.records.verdicts import HistoryEntry
from spamnb.telemetry import now_us

pytestmark = pytest.mark.usefixtures("alone")

DIFFERENT = 5
"""so many messages on which the filters differ; on one more they agree"""


def entry(model, raw, number):
    """Return the verdict on a message as the daemon records it; the first has the same of both."""
    verdict = model.score(raw, remember=False)
    other = "ham 0.5/5" if number else "spam 8/5"
    return HistoryEntry(
        now_us(), os.urandom(16), verdict.digest, verdict.message_id, verdict.label,
        verdict.probability, verdict.log_odds, "junk", model.example(raw).ids,
        notes={"other": other, "from": f"a{number}@far.example", "subject": f"pills {number}"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded(trained, tmp_path_factory):
    """Give a model with a history of spam that the other filter calls ham."""
    home = shutil.copytree(trained, tmp_path_factory.mktemp("cli") / "home")
    paths = sorted((SAMPLE / "spam").iterdir())[: DIFFERENT + 1]
    with Filter.open(home) as model:
        for path in paths:
            model.forget(path.read_bytes())
        for number, path in enumerate(paths):
            model.history.add([entry(model, path.read_bytes(), number)])
    return home


@pytest.fixture
def home(recorded, tmp_path):
    """A copy that the test may change."""
    return shutil.copytree(recorded, tmp_path / "home")


def typed(keys, home, *arguments):
    """Run `spamnb trial` on a terminal on which these keys are typed; return what it prints."""
    inside, outside = pty.openpty()
    os.write(inside, keys)
    command = [*PROGRAM, "--home", str(home), "trial", *map(str, arguments)]
    done = subprocess.run(
        command, stdin=outside, capture_output=True, check=False, timeout=LIMIT_S, env=environment()
    )
    os.close(inside)
    os.close(outside)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    return done.stdout.decode()


def sample_of(home):
    [found] = spamnb(home, "trial", "report", "--json").json
    return found["sample"]


def labels_of(home):
    """Return the label of each drawn message, in the order in which they are asked."""
    rows = spamnb(home, "trial", "judge", "--json").json
    return [row["answer"] for row in sorted(rows, key=lambda row: row["id"])]


def test_each_key_is_a_label_on_disk_or_takes_one_back(home):
    """A message is asked until it has a label; u returns to the last one; nothing is learnt."""
    before = spamnb(home, "stats", "--json").json
    assert labels_of(home) == [None] * DIFFERENT
    out = typed(b"uxhsnuhsq", home, "judge")
    assert "no label of this session to undo" in out
    assert "pills" in out
    assert "ham 0.5" not in out
    assert labels_of(home) == ["ham", "ham", "spam", None, None]
    assert "3 of 5 drawn messages have a label" in out
    out = typed(b"ss", home, "judge")
    assert out.count(" of 2: ") == 2
    assert labels_of(home) == ["ham", "ham", "spam", "spam", "spam"]
    assert spamnb(home, "stats", "--json").json == before
    found = sample_of(home)
    assert (found["messages"], found["answered"], found["own_right"]) == (5, 5, 3)
    assert (found["low"], found["high"]) == (3, 3)


def test_other_lines_of_the_file_stay(home):
    """A comment stays as it is, whatever its encoding."""
    path = home / "trial-answers"
    path.write_bytes(b"# m\xfcller\n")
    typed(b"hq", home, "judge")
    assert path.read_bytes().startswith(b"# m\xfcller\nham ")


def test_with_teach_a_label_is_an_event_and_the_sample_stays(home):
    """Labels that were trained count as answers, and not as labels of users; u undoes the event."""
    before = spamnb(home, "stats", "--json").json[0]["messages"]
    typed(b"ssuhq", home, "judge", "--teach")
    assert labels_of(home) == ["spam", "ham", None, None, None]
    after = spamnb(home, "stats", "--json").json[0]["messages"]
    assert after == {"ham": before["ham"] + 1, "spam": before["spam"] + 1}
    found = sample_of(home)
    assert (found["messages"], found["answered"]) == (5, 2)
    kinds = [event["kind"] for event in spamnb(home, "journal", "--json", "--limit", 4).json]
    assert "undo" in kinds
    assert spamnb(home, "check").code == 0


def test_mail_in_folders_is_shown_and_labelled(tmp_path, home):
    """`trial maildir --judge` shows how a message begins; the report follows, with its bounds."""
    inbox = tmp_path / "Maildir" / "cur"
    inbox.mkdir(parents=True)
    raw = b"From: ann@far.example\nSubject: lunch\n\nsee you at noon\n"
    mark = b"X-Spam-Status: Yes, score=8.0 required=5.0 tests=A\n"
    (inbox / "1:2,S").write_bytes(mark + raw)
    answers = tmp_path / "answers"
    arguments = "--other", "spamassassin", "--answers", answers, "--judge", inbox.parent
    out = typed(b"h", home, "maildir", *arguments)
    assert "see you at noon" in out
    assert answers.read_text().startswith("ham ")
    assert "by 1 answers spamnb is right on 1 of 1 (1 to 1)" in out


def test_only_a_terminal_is_asked(home, tmp_path):
    """Without one the error names the list; a file that is no list of answers stays as it is."""
    refused = spamnb(home, "trial", "judge")
    assert (refused.code, "--json" in refused.err) == (2, True)
    other = tmp_path / "other"
    other.write_text("maybe 1\n")
    refused = spamnb(home, "trial", "judge", "--json", "--answers", other)
    assert (refused.code, "line 1 of" in refused.err) == (2, True)
    assert other.read_text() == "maybe 1\n"
