"""Commands while a daemon serves the home: they send each change to the daemon."""

import contextlib
import os
import pwd
import subprocess
import sys

import pytest
from support.cli import PROGRAM, PROJECT, SAMPLE, SECONDS, environment
from support.cli import forked as spamnb
from support.learner import Learner, events, learner, mail, score
from support.waiting import until

from spamnb.cli.import_ahead import import_all, is_world_readable
from spamnb.engine.filter import Filter, new_recipe

NOBODY = pwd.getpwnam("nobody")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextlib.contextmanager
def daemon(place):
    """The learner at the home's own socket, as the daemon puts it there."""
    home = place / "m"
    with learner(home, place) as running:
        (home / "control.sock").symlink_to(running.path)
        yield running


def test_commands_that_ask_the_daemon_load_no_model(place):
    """To import numpy, LMDB and the parser would take half of the time of a correction."""
    message = place / "x.eml"
    message.write_bytes(mail(1, "garden tools"))
    commands = [
        *(["correct", "spam", message], ["undo", "3"], ["forget", message], ["status", "--json"]),
        ["review", "list"],
    ]
    if is_world_readable():  # else root imports everything before it becomes the home's owner
        commands.append(["quarantine", "list"])
    with daemon(place) as running:
        for arguments in commands:
            done = subprocess.run(
                [*PROGRAM, "--home", running.home, *arguments], capture_output=True, text=True,
                check=False, env=environment(PYTHONPROFILEIMPORTTIME="1"),
            )  # fmt: skip
            errors, loaded = [], set()
            for line in done.stderr.splitlines():
                timed = line.startswith("import time:")
                (loaded.add if timed else errors.append)(line.rpartition("|")[2].strip())
            assert (done.returncode, errors) == (0, []), arguments
            assert "spamnb.settings" in loaded
            assert not loaded & {"numpy", "lmdb", "regex", "selectolax"}, arguments


def test_the_daemon_says_whether_it_takes_documents(place):
    """A model of documents learns plain text through the daemon; a model of mail refuses it."""
    text = place / "news.txt"
    text.write_text("goals in the last minute of the second half\n")
    home = place / "m"
    recipe = new_recipe(labels=("sport", "trade"), documents=True)
    with Filter.open(home, create=True, recipe=recipe) as model:
        model.learn(b"shares fell by a tenth", "trade")
    with daemon(place):
        done = spamnb(home, "correct", "sport", text, "--json")
        assert (done.code, done.json[0]["after"], done.err) == (0, "sport", "")
        assert spamnb(home, "forget", text).code == 0
    mails = place / "mails"
    mails.mkdir()
    with daemon(mails) as running:
        done = spamnb(running.home, "correct", "spam", text)
        assert done.code == 2
        assert "not mail" in done.err


def pids_that_wrote(home):
    """User and channel of each event."""
    return [(event.user, event.channel) for event in events(home).values()]


def test_a_correction_goes_through_the_daemon(place):
    """Command, output and receipts are those without a daemon; the daemon's counters move."""
    message = place / "x.eml"
    message.write_bytes(mail(1, "garden tools"))
    with daemon(place) as running:
        home = running.home
        first = spamnb(home, "correct", "spam", message, "--json")
        assert (first.code, first.json[0]["after"], first.json[0]["state"]) == (0, "spam", "learnt")
        again = spamnb(home, "correct", "spam", stdin=message.read_bytes())
        assert again.out.startswith("unchanged: already learnt")
        assert "nothing to undo" in again.out
        third = spamnb(home, "correct", "spam", "--json", stdin=message.read_bytes()).json[0]
        assert (third["changed"], third["event"]) == (False, None)
        assert third["already"] == first.json[0]["event"]
        by_id = spamnb(home, "correct", "ham", "<1@a.example>")
        assert by_id.out.startswith("spam -> ham")
        assert spamnb(home, "undo", first.json[0]["event"] + 1).code == 0
        assert spamnb(home, "forget", first.json[0]["digest"]).code == 0
        counters = running.ask("status").header["status"]["counters"]
        assert (counters["learned_spam"], counters["learned_ham"]) == (2, 1)
        assert (counters["forgotten"], counters["feedback_unchanged"]) == (1, 2)
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert {source for source in pids_that_wrote(home) if source[0] != "owner"} == {(user, "cli")}


def test_mistakes_are_reported_as_without_a_daemon(place):
    """Output and exit code of mistakes do not depend on a daemon; the output is one line."""
    mistakes = [
        ("correct", "spam", "nobody@nowhere.example"),
        ("correct", "junk", "1@a.example"),
        ("correct", "", "1@a.example"),
        ("undo", "999"),
        ("forget", "0" * 32),
        ("import", "/dev/null"),
    ]
    with daemon(place) as running:
        there = [spamnb(running.home, *arguments) for arguments in mistakes]
    here = [spamnb(place / "m", *arguments) for arguments in mistakes]
    assert there == here
    assert [(done.code, done.err.count("\n")) for done in here] == [(2, 1)] * len(mistakes)


def test_training_goes_through_the_daemon(place):
    """The daemon learns the sample in the trainer's order; a second run learns nothing."""
    with daemon(place) as running:
        home = running.home
        first = spamnb(home, "train", SAMPLE / "ham", SAMPLE / "spam", "--json").json[0]
        again = spamnb(home, "train", SAMPLE / "ham", SAMPLE / "spam", "--json").json[0]
        assert (first["learnt"], first["refused"], first["unreadable"]) == (400, 0, 0)
        assert (again["learnt"], again["duplicates"]) == (0, 400)
        assert running.ask("status").header["status"]["counters"]["learned_ham"] == 200
    train_here = spamnb(place / "h", "train", SAMPLE / "ham", SAMPLE / "spam", "--json").json[0]
    assert train_here["labels"] == first["labels"]
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        there = [e.digest for e in view.events() if e.channel == "cli"]
    with Filter.open(place / "h", readonly=True, history=False) as here, here.store.read() as view:
        assert [e.digest for e in view.events() if e.channel == "cli"] == there


def test_training_makes_the_model_that_the_daemon_waits_for(place):
    """A daemon without a model finds the one that `train` makes, without a restart."""
    home = place / "m"
    home.mkdir(mode=0o700)
    with learner(home, place, model=False) as running:
        (home / "control.sock").symlink_to(running.path)
        done = spamnb(home, "train", SAMPLE / "ham", SAMPLE / "spam")
        assert (done.code, "400 learnt" in done.out) == (0, True), done.err
        assert running.ask("status").header["status"]["counters"]["learned_spam"] == 200


def test_upkeep_goes_through_the_daemon_or_is_refused(place):
    """The daemon imports and expires; commands that need the model alone say what to do."""
    with daemon(place) as running:
        home = running.home
        lines = spamnb(home, "export", "-").out.encode()
        (place / "kept").mkdir()
        done = spamnb(home, "import", "--json", "-", stdin=lines, TMPDIR=str(place / "kept"))
        assert done.code == 0, done.err
        assert not any((place / "kept").iterdir())
        assert done.json[0]["features"] == lines.count(b"\n") - 1
        (place / "e").write_bytes(lines)
        assert spamnb(home, "import", place / "e").code == 0
        assert spamnb(home, "expire").out.startswith("0 events merged")
        assert spamnb(home, "backup", place / "b").code == 0
        for arguments in (("compact",), ("restore", "--force", place / "b")):
            refused = spamnb(home, *arguments)
            assert (refused.code, "a daemon serves" in refused.err) == (2, True)
    assert spamnb(home, "compact").code == 0
    assert spamnb(home, "check").code == 0


def test_readers_need_no_daemon_and_do_not_disturb_it(place):
    """Commands read scores, statistics and the journal from the store while the daemon runs."""
    message = place / "x.eml"
    message.write_bytes(mail(1, "garden tools"))
    with daemon(place) as running:
        for arguments in (("score", message), ("explain", message), ("stats",), ("journal",)):
            done = spamnb(running.home, *arguments)
            assert done.code == 0, done.err


def test_a_daemon_that_hangs_is_an_error_and_nothing_is_written(place):
    """While a daemon is there only it writes, also when it does not answer."""
    with daemon(place) as running:
        held = events(running.home).keys()
        os.kill(running.process.pid, 19)  # SIGSTOP
        try:
            done = spamnb(running.home, "correct", "spam", stdin=mail(1))
        finally:
            os.kill(running.process.pid, 18)
        assert (done.code, "does not answer" in done.err) == (3, True)
        assert events(running.home).keys() == held


def test_a_dead_daemon_leaves_the_model_to_the_commands(place):
    """A control socket without a listener stops no command."""
    with daemon(place) as running:
        home = running.home
    running.listener.close()
    assert (home / "control.sock").is_symlink()
    assert spamnb(home, "correct", "spam", stdin=mail(1)).code == 0


def test_the_socket_may_be_named_in_the_settings(place):
    """Commands find the socket by serve.control, in a file or the environment."""
    with learner(place / "m", place) as running:
        done = spamnb(
            running.home, "correct", "spam", stdin=mail(1), SPAMNB_SERVE_CONTROL=str(running.path)
        )
        assert done.code == 0
        assert running.ask("status").header["status"]["counters"]["learned_spam"] == 1


def test_the_daemon_of_another_home_is_not_used(place):
    """A command sends nothing to a daemon that serves another model."""
    with learner(place / "m", place) as running:
        other = place / "other"
        Filter.open(other, create=True).close()
        done = spamnb(
            other, "correct", "spam", stdin=mail(1), SPAMNB_SERVE_CONTROL=str(running.path)
        )
        assert done.code == 0
        assert running.ask("status").header["status"]["counters"]["learned_spam"] == 0


def as_nobody(running, *arguments, stdin=b""):
    """Run a command as another user, without imports: Python may lie below /root."""
    import_all()
    place = {"SPAMNB_SERVE_CONTROL": str(running.path)}
    return spamnb(running.home, *arguments, stdin=stdin, user=NOBODY.pw_uid, **place)


@needs_root
def test_a_user_corrects_their_own_mail(place):
    """A user that cannot read the home trains under the uid that the kernel reports."""
    raw, theirs = mail(1, "garden tools"), mail(2, "garden seeds")
    with learner(place / "m", place) as running:
        signature = score(running.home, raw, to="nobody@example.org")
        score(running.home, theirs, to="alice@example.org")
        done = as_nobody(running, "correct", "spam", signature)
        assert done.out.startswith("untrained -> spam"), done.err
        assert as_nobody(running, "correct", "ham", stdin=raw).out.startswith("spam -> ham")
        assert as_nobody(running, "correct", "spam", "2@a.example").code == 2
        done = as_nobody(running, "correct", "spam", stdin=theirs)
        assert done.out.startswith("queued for review")
        assert as_nobody(running, "train", SAMPLE / "ham", SAMPLE / "spam").code != 0
        assert as_nobody(running, "review", "list").code == 2
        assert as_nobody(running, "status").code == 0
    assert {e.user for e in events(place / "m").values()} == {"owner", "nobody"}


# --- review and status ------------------------------------------------------------------------


def a_waiting_report(running):
    fields = {"label": "spam", "channel": "address", "trust": "stranger", "for": "x@a.example"}
    return running.ask("teach", mail(1), **fields).header["review"]


@pytest.mark.parametrize("do", ["accept", "refuse"])
@pytest.mark.parametrize("serving", [True, False])
def test_review_with_and_without_a_daemon(place, do, serving):
    """`spamnb review` lists, shows and decides alike with and without a daemon."""
    with daemon(place) as running:
        home, name = running.home, a_waiting_report(running)
        if serving:
            _decided(home, name, do)
    if not serving:
        _decided(home, name, do)
    assert len(events(home)) == (3 if do == "accept" else 2)


def _decided(home, name, do):
    listed = spamnb(home, "review", "list", "--json").json[0]
    assert (listed["name"], listed["user"]) == (name, "x@a.example")
    assert name in spamnb(home, "review", "list").out
    shown = spamnb(home, "review", "show", name).out
    assert "quarterly figures" in shown
    done = spamnb(home, "review", do, name)
    assert done.code == 0, done.err
    assert ("untrained -> spam" in done.out) == (do == "accept")
    assert spamnb(home, "review", "list").out == ""
    assert spamnb(home, "review", "show", name).code == 2


def test_status_of_a_daemon(place):
    """`spamnb status` writes text, JSON and Prometheus metrics; exit 0."""
    with daemon(place) as running:
        running.ask("teach", mail(1), label="spam")
        plain = spamnb(running.home, "status")
        assert (plain.code, "learned spam" in plain.out, "learner" in plain.out) == (0, True, True)
        facts = spamnb(running.home, "status", "--json").json[0]
        assert (facts["serving"], facts["counters"]["learned_spam"]) == (True, 1)
        numbers = spamnb(running.home, "status", "--prometheus").out
        assert "spamnb_learned_spam_total 1" in numbers
        assert spamnb(running.home, "status", "--json", "--prometheus").code == 2


def test_status_without_a_daemon(place):
    """It says that no daemon runs, shows the figures of the model, and exits with 1."""
    with daemon(place) as running:
        home = running.home
    plain = spamnb(home, "status")
    assert (plain.code, "no daemon serves" in plain.out) == (1, True)
    facts = spamnb(home, "status", "--json")
    assert (facts.code, facts.json[0]["serving"]) == (1, False)
    assert facts.json[0]["model"]["messages"] == {"ham": 1, "spam": 1}
    assert spamnb(home, "status", "--prometheus").code == 2
    nothing = spamnb(place / "none", "status", "--json")
    assert (nothing.code, nothing.json[0]["model"]) == (1, None)


def test_a_learner_that_is_replaced_goes_on_at_the_same_socket(place):
    """The supervisor keeps the socket: a new learner answers requests that came before it."""
    with daemon(place) as running:
        running.kill()
        message = place / "x.eml"
        message.write_bytes(mail(1))
        waiting = subprocess.Popen(
            [sys.executable, "-m", "spamnb", "--home", running.home, "correct", "spam", message],
            stdout=subprocess.PIPE, cwd=PROJECT,
        )  # fmt: skip
        second = Learner(running.home, place, listener=running.listener)
        try:
            out, _ = waiting.communicate(timeout=SECONDS)
            assert out.startswith(b"untrained -> spam")
            until(lambda: second.ask("ping").header["pid"] == second.process.pid)
        finally:
            assert second.end() == 0
        running.process = second.process
