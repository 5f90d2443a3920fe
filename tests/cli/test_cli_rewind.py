"""Going back from the command line: what is shown, asked, done and kept."""

import os
import pty
import shutil
import subprocess

import pytest
from support.cli import ONE_HAM, PROGRAM, SAMPLE, environment, spamnb, undated
from support.waiting import LIMIT_S

from spamnb.engine.filter import Filter
from spamnb.engine.values import Source

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(scope="module")
def mistaught(trained, tmp_path_factory):
    """Let mallory call ten ham spam; tests copy it."""
    home = shutil.copytree(trained, tmp_path_factory.mktemp("cli") / "home")
    with Filter.open(home, history=False) as model:
        for path in sorted((SAMPLE / "ham").iterdir())[:10]:
            model.correct(path.read_bytes(), "spam", source=Source("mallory", "imap"))
    return home


@pytest.fixture
def home(mistaught, tmp_path):
    """A home of the test's own."""
    return shutil.copytree(mistaught, tmp_path / "home")


def stats(home):
    found = spamnb(home, "stats", "--json").json[0]
    return found["messages"], found["events"]


def test_the_journal_is_filtered_by_person_channel_time_and_message(home):
    """Each filter alone, and together; a message by its file and by its id."""
    mallory = spamnb(home, "journal", "--json", "--user", "mallory").json
    assert len(mallory) == 10
    assert {line["channel"] for line in mallory} == {"imap"}
    assert spamnb(home, "journal", "--user", "mallory", "--channel", "cli").lines == []
    assert spamnb(home, "journal", "--user", "mallory", "--until", "2020-01-01").lines == []
    assert len(spamnb(home, "journal", "--user", "mallory", "--until", "2099-01-01").lines) == 10
    of_one = spamnb(home, "journal", "--json", "--message", ONE_HAM).json
    assert [line["kind"] for line in of_one] == ["move", "learn"]
    by_digest = spamnb(home, "journal", "--json", "--message", of_one[0]["digest"]).json
    assert by_digest == of_one
    assert spamnb(home, "journal", "--message", "nobody@x.test").code == 2
    assert spamnb(home, "journal", "--until", "soon").code == 2


@pytest.mark.parametrize(("answer", "code", "events"), [(b"n\n", 1, 410), (b"y\n", 0, 420)])
def test_a_question_goes_to_stderr(home, answer, code, events):
    """Questions go to stderr, results to stdout; the answer no changes nothing."""
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    command = [*PROGRAM, "--home", str(home), "undo", "--user", "mallory"]
    done = subprocess.run(
        command, stdin=theirs, capture_output=True, check=False, timeout=LIMIT_S, env=environment()
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == code
    assert done.stdout == (b"nothing was changed\n" if code else b"10 events undone.\n")
    assert b"[y/N]" in done.stderr
    assert stats(home)[1] == events


def test_all_events_of_a_user_are_undone(home):
    """The command counts them and asks; without a terminal it needs --yes."""
    asked = spamnb(home, "undo", "--user", "mallory")
    assert asked.code == 2
    assert "10 events can be undone" in asked.err
    done = spamnb(home, "undo", "--user", "mallory", "--yes")
    assert done.lines == ["10 events undone."]
    assert stats(home) == ({"ham": 200, "spam": 200}, 420)
    assert spamnb(home, "undo", "--user", "mallory", "--yes", "--json").json[0]["undone"] == 0


def test_a_later_label_of_another_user_stays(home):
    """An event that another user's label replaced is reported and left."""
    assert spamnb(home, "correct", "ham", ONE_HAM).code == 0
    done = spamnb(home, "undo", "--user", "mallory", "--yes", "--json").json[0]
    assert done == {"undone": 9, "superseded": 1}
    assert stats(home)[0] == {"ham": 200, "spam": 200}


@pytest.mark.parametrize("arguments", [["undo"], ["undo", 5, "--user", "mallory"]])
def test_undo_needs_numbers_or_options(home, arguments):
    """Without either it would undo everything; with both its meaning would be unclear."""
    assert spamnb(home, *arguments).code == 2
    assert stats(home)[1] == 410


def test_rewind_brings_back_the_model_and_keeps_the_other(home):
    """The journal ends where the time says; `restore` takes the kept file."""
    before = stats(home)
    moment = spamnb(home, "journal", "--json", "--user", "mallory").json[-1]["time"]
    refused = spamnb(home, "rewind", moment)
    assert (refused.code, "9 events" in refused.err) == (2, True)
    assert stats(home) == before
    done = spamnb(home, "rewind", moment, "--yes", "--json").json[0]
    assert done["events_dropped"] == 9
    assert stats(home) == ({"ham": 199, "spam": 201}, 401)
    assert spamnb(home, "check").code == 0
    assert spamnb(home, "rewind", moment, "--yes").lines == ["no training since then"]
    assert spamnb(home, "restore", "--force", done["kept"]).code == 0
    assert stats(home) == before


@pytest.mark.parametrize(
    "arguments", [["rewind", "", "--yes"], ["undo", "--user", "mallory", "--since", "", "--yes"]]
)
def test_an_empty_time_is_no_time(home, arguments):
    """An empty time is refused: an unset shell variable must not select all events."""
    done = spamnb(home, *arguments)
    assert (done.code, "is not a time" in done.err) == (2, True)
    assert stats(home)[1] == 410


def test_rewind_before_the_first_training_leaves_an_empty_model(home):
    """It keeps its key and labels, so it can be trained again; the old one can be brought back."""
    assert spamnb(home, "rewind", "2020-01-01", "--yes").code == 0
    assert stats(home) == ({"ham": 0, "spam": 0}, 0)
    (kept,) = home.glob("before-*.mdb")
    back = spamnb(home, "rewind", kept.name, "--yes")
    assert (back.code, back.err) == (0, "")
    assert stats(home)[1] == 410
    assert spamnb(home, "rewind", "2020-01-01", "--yes").code == 0
    assert spamnb(home, "correct", "ham", ONE_HAM).code == 0


def test_rewind_before_the_checkpoint_is_refused(home):
    """What was folded cannot be taken apart; the error says where it ends."""
    with Filter.open(home, history=False) as model:
        model.store.transact(lambda view: view.fold(1 << 60, 300))
    refused = spamnb(home, "rewind", "2020-01-01", "--yes")
    assert refused.code == 2
    assert "events up to 300 are in the checkpoint" in refused.err


def test_rewind_where_all_is_in_the_checkpoint_says_so(home):
    """If all events are in the checkpoint, the error gives no earliest time: it is not known."""
    with Filter.open(home, history=False) as model:
        model.store.transact(lambda view: view.fold(1 << 60, 1000))
    refused = spamnb(home, "rewind", "1m", "--yes")
    assert (refused.code, "in the checkpoint, and there are no later" in refused.err) == (2, True)


def test_relearn_without_a_user(home, tmp_path):
    """The new model never learnt from that user; the copy is the old model."""
    plain = tmp_path / "plain"
    asked = spamnb(home, "relearn", "--without", "mallory")
    assert asked.code == 2
    assert "10 events will be removed, 400 retrained" in asked.err
    done = spamnb(home, "relearn", "--without-channel", "imap", "--yes", "--json").json[0]
    assert (done["taught"], done["dropped"], done["idle"]) == (400, 10, 0)
    assert spamnb(home, "check").code == 0
    shutil.copytree(home, plain)
    assert spamnb(plain, "restore", "--force", done["kept"]).code == 0
    first = spamnb(plain, "journal", "--json", "--user", "mallory").json[-1]["event"]
    for event in range(first + 9, first - 1, -1):
        assert spamnb(plain, "undo", event).code == 0
    # Corrections are sums: with nothing taught in between, both ways lead to the same numbers.
    exports = [
        undated(spamnb(where, "export", "-").out).splitlines()[1:] for where in (home, plain)
    ]
    assert exports[0] == exports[1]


def test_relearn_with_another_constant(home):
    """The trainings of the journal, with another step."""
    assert spamnb(home, "relearn", "--set", "eta=4", "--yes").code == 0
    assert spamnb(home, "stats", "--json").json[0]["constants"]["eta"] == 4
    assert spamnb(home, "check").code == 0
    for wrong in ("beta=1", "eta=fast", "alpha=0", "eta=-1"):
        assert spamnb(home, "relearn", "--set", wrong, "--yes").code == 2
    with Filter.open(home, history=False) as model:
        model.store.transact(lambda view: view.fold(1 << 60, 10))
    assert spamnb(home, "relearn", "--set", "eta=8", "--yes").code == 2
    assert spamnb(home, "relearn", "--without", "mallory", "--yes").code == 0


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["relearn", "--without", "malory"], "no event of the user 'malory'"),
        (["relearn", "--without", "mallory", "--without", "bob"], "no event of the user 'bob'"),
        (["relearn", "--without-channel", "arf"], "no event of the channel 'arf'"),
        (["undo", "--user", "malory"], "no event of the user 'malory'"),
        (["undo", "--user", "mallory", "--channel", "arf"], "no event of the channel 'arf'"),
    ],
)
def test_a_name_without_an_event_is_refused(home, arguments, missing):
    """A mistyped name is reported in one line, before anything is relearnt or undone."""
    refused = spamnb(home, *arguments, "--yes")
    assert (refused.code, missing in refused.err) == (2, True)
    assert len(refused.err.splitlines()) == 1
    assert not list(home.glob("before-*"))
    assert stats(home)[1] == 410


@pytest.mark.parametrize(
    "arguments", [["rewind", "2020-01-01"], ["relearn", "--without", "mallory"]]
)
def test_a_model_in_use_is_not_replaced(home, arguments):
    """A process that has the model open would continue with a deleted file."""
    with Filter.open(home, history=False):
        refused = spamnb(home, *arguments, "--yes")
    assert refused.code == 3
    assert "stop that process" in refused.err or "close it" in refused.err
    assert stats(home)[1] == 410


def test_bisect_names_the_training_that_did_it(home):
    """A ham that mallory called spam: the strongest share is that call, and leads to spam."""
    found = spamnb(home, "bisect", ONE_HAM, "--json", "--limit", 5).json[0]
    assert found["between"] == ["spam", "ham"]
    assert len(found["shares"]) == 5
    assert found["shares"][0]["user"] == "mallory"
    assert found["shares"][0]["nats"] > 1
    digest = found["shares"][0]["digest"]
    lines = spamnb(home, "bisect", digest).lines
    assert lines[0].startswith("log-odds +")
    assert len(lines) == 21
    assert "mallory/imap" in lines[1]
    assert spamnb(home, "bisect", "nobody@x.test").code == 2
