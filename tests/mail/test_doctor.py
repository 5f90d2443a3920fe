"""`spamnb doctor` without any mail server: each check failing in turn, and nothing left behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.doctor import CHECKS, DoctorResult, Site
from support.postfix import free_ports
from support.waiting import LIMIT_S, until

EMBEDDED = """
[serve]
workers = 1
[listener.mx]
address = "127.0.0.1:{mx}"
[delivery]
address = "127.0.0.1:{post}"
[rules]
block = "{block}"
[domain."kept.example"]
reject = "quarantine"
"""


class Embedded(Site):
    """Without any mail server: the built-in delivery agent, and `spamnb watch`."""

    def __init__(self, folder):
        mx, self.post = free_ports(2)
        block = folder / "block"
        block.write_text("recipient jill@example.org\nrecipient bob@kept.example\n")
        super().__init__(folder, EMBEDDED.format(mx=mx, post=self.post, block=block))
        self.mail = self.daemon.home / "mail"
        for name in ("bob", "jill"):
            for inner in ("", ".Junk"):
                for part in ("tmp", "new", "cur"):
                    (self.mail / name / "Maildir" / inner / part).mkdir(parents=True)
        self.maildir = self.mail / "bob" / "Maildir"

    def doctor_of(self, name, *more):
        return self.doctor(*self.person(name), *more)

    def person(self, name):
        return ["--rcpt", f"{name}@example.org", "--user", name, "--wait", "10",
                "--maildir", self.mail / name / "Maildir"]  # fmt: skip

    @contextmanager
    def watch(self):
        """`spamnb watch` beside the daemon."""
        state = self.daemon.home / "watch.json"
        state.unlink(missing_ok=True)
        home = ["--home", self.daemon.home, "--config", self.daemon.config]
        command = [sys.executable, "-m", "spamnb", *home, "watch", "--quiet", "0.2"]
        people = [f"{name}={self.mail / name / 'Maildir'}" for name in ("bob", "jill")]
        with subprocess.Popen(
            [*command, *people], stdout=subprocess.DEVNULL, env=self.daemon.environment
        ) as running:
            try:
                until(state.exists, what="the watch")
                yield
            finally:
                running.terminate()
                running.wait(LIMIT_S)

    def lying(self):
        """Messages in all folders."""
        return [path for part in ("new", "cur") for path in self.mail.rglob(f"{part}/*")]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    made = Embedded(tmp_path_factory.mktemp("embedded"))
    made.daemon.start()
    yield made
    made.daemon.stop()


@pytest.fixture
def unchanged(embedded):
    """After each test no message is left, and the model is unchanged."""
    before = embedded.learnt()
    yield
    assert embedded.lying() == []
    assert embedded.learnt() == before


def test_all_is_well_in_a_maildir(embedded, unchanged):
    """Every check is ok; the checks teach the labels spam, ham and none."""
    before = embedded.export()
    with embedded.watch():
        result = embedded.doctor_of("bob")
    assert embedded.export() == before
    assert result.names("ok") == CHECKS, result.whole
    assert (result.code, result.whole["ok"]) == (0, True)
    assert embedded.events(result.whole["message_id"]) == [
        (None, "spam", "bob"),
        ("spam", "ham", "bob"),
        ("ham", None, "root" if os.geteuid() == 0 else embedded.events("")[-1][2]),
    ]


def test_moves_without_a_watcher_are_reported(embedded, unchanged):
    """Without `spamnb watch` the check learning fails, and its hint names the command."""
    result = embedded.doctor_of("bob", "--wait", "1")
    result.is_broken("learning", "nothing was learnt within 1 s", "spamnb watch")
    assert result.names("skipped") == ["score", "move back", "learning again"]
    assert "spamnb forget" in result.checks["cleaning up"]["todo"]


def test_bypass_is_reported(embedded, unchanged):
    """Mail that passes unscanned has no verdict: nothing is sent at all."""
    embedded.bypass("on")
    try:
        result = embedded.doctor_of("bob")
        result.is_broken("daemon", "bypass", "spamnb bypass off")
        assert result.checks["delivery"]["state"] == "skipped"
    finally:
        embedded.bypass("off")


def test_a_closed_smtp_port_is_reported(embedded, unchanged):
    """With a closed port the check delivery fails."""
    (port,) = free_ports(1)
    result = embedded.doctor_of("bob", "--smtp", f"127.0.0.1:{port}")
    result.is_broken("delivery", "cannot be reached", "docs/postfix.md")


def test_it_arrives_elsewhere(embedded, unchanged):
    """Mail for a recipient with another mailbox does not arrive, and cleaning up finds nothing."""
    result = embedded.doctor_of("bob", "--rcpt", "carol@example.org", "--wait", "1")
    assert result.names("broken") == ["arrival", "cleaning up"]
    assert "may still arrive" in result.checks["cleaning up"]["what"]
    (elsewhere,) = (embedded.mail / "carol").rglob("new/*")
    elsewhere.unlink()


def test_it_is_kept_in_quarantine(embedded, unchanged):
    """A message in quarantine does not arrive: the doctor says so, and deletes it there."""
    result = embedded.doctor_of("bob", "--rcpt", "bob@kept.example", "--wait", "1")
    result.is_broken("arrival", "in quarantine", "[actions]")
    assert embedded.daemon.spamnb("quarantine", "list") == ""


def test_without_our_headers(embedded, unchanged):
    """Mail that is sent directly to the delivery agent, without the relay."""
    with embedded.watch():
        result = embedded.doctor_of("bob", "--smtp", f"127.0.0.1:{embedded.post}")
    assert "headers" in result.names("broken")
    assert "did not pass through spamnb" in result.checks["headers"]["what"]
    assert result.checks["filing"]["state"] == "skipped"


def test_what_is_not_given_is_skipped(embedded, unchanged):
    """The doctor skips checks without their options; daemon and model are always checked."""
    result = embedded.doctor()
    assert result.names("ok") == ["daemon", "next hops", "model"]
    assert result.code == 0
    assert "--imap" in result.checks["mailbox"]["what"]
    result = embedded.doctor("--maildir", embedded.maildir)
    assert result.names("ok") == ["daemon", "next hops", "model", "mailbox"]
    assert "--rcpt" in result.checks["delivery"]["what"]


def test_called_junk_goes_the_other_way_round(embedded, unchanged):
    """Both labels are taught for any verdict: a move out of Junk, then a move into it."""
    with embedded.watch():
        result = embedded.doctor_of("jill")
    assert result.names("ok") == CHECKS, result.whole
    assert "YES" in result.checks["filing"]["what"]
    labels = [after for _, after, _ in embedded.events(result.whole["message_id"])]
    assert labels == ["ham", "spam", None]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_an_interrupted_doctor_leaves_no_message_and_no_training(embedded, unchanged, number):
    """After Ctrl-C amid the checks, the message and its training are removed."""
    with subprocess.Popen(
        embedded.command(*embedded.person("bob"), "--wait", "60"), env=embedded.daemon.environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as running:  # fmt: skip
        junk = embedded.maildir / ".Junk" / "cur"
        until(lambda: list(junk.iterdir()), what="the move")
        running.send_signal(number)
        out, _ = running.communicate(timeout=LIMIT_S)
    result = DoctorResult(running.returncode, out, "")
    assert running.returncode == 130
    assert list(result.checks)[-1] == "cleaning up"
    assert result.checks["cleaning up"]["state"] == "ok"


def test_the_daemon_goes_away_on_the_way(embedded, unchanged):
    """Without the daemon the doctor still forgets the trained message."""
    with embedded.watch(), subprocess.Popen(
        embedded.command(*embedded.person("bob"), "--wait", "2"), env=embedded.daemon.environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as running:  # fmt: skip
        junk = embedded.maildir / ".Junk" / "cur"
        until(lambda: list(junk.iterdir()), what="the move")
        embedded.daemon.stop()
        out, _ = running.communicate(timeout=LIMIT_S)
    try:
        result = DoctorResult(running.returncode, out, "")
        assert result.checks["cleaning up"]["state"] == "ok", result.checks["cleaning up"]
        result = embedded.doctor_of("bob")
        result.is_broken("daemon", "no daemon", "spamnb serve")
        assert result.names("ok") == ["next hops", "model", "mailbox"]
    finally:
        embedded.daemon.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_root_reads_as_the_owner_of_each_file():
    """The doctor becomes the owner of the home, and the owner of the mail, never root."""
    place = Path(tempfile.mkdtemp(prefix="spamnb-doctor-"))
    try:
        place.chmod(0o755)
        (place / "home").mkdir(mode=0o700)
        os.chown(place / "home", 54_321, 54_321)
        site = Site(place, "")
        for part in ("Maildir/cur", "Maildir/.Junk/cur"):
            (place / part).mkdir(parents=True)
        for path in (place / "Maildir", *(place / "Maildir").rglob("*")):
            os.chown(path, 54_322, 54_322)
            path.chmod(0o700)
        result = site.doctor("--maildir", place / "Maildir")
        result.is_broken("daemon", "no daemon", "spamnb serve")
        assert result.names("ok") == ["next hops", "model", "mailbox"], result.whole
        assert "of 54322" in result.checks["mailbox"]["what"]
        assert {path.stat().st_uid for path in site.daemon.home.rglob("*")} == {54_321}
    finally:
        shutil.rmtree(place)
