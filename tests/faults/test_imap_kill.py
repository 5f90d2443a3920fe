"""A reader of mailboxes loses and repeats nothing, wherever it or its connection ends."""

import os
import signal
from contextlib import contextmanager, suppress

import pytest
from support.imap_client import (
    MOVED,
    WAYS,
    begin,
    handled,
    places,
    until_done,
    user_moves,
    verdict_of,
)

from spamnb.imap.client import ImapConnection
from spamnb.imap.sync import MailboxState


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["drop", "lose"])
def test_a_connection_that_ends_at_any_command_loses_nothing(imap_reader, way, fault):
    """Before a command is carried out, or after it and before its reply."""
    for number in range(1, 60):
        box = imap_reader(hide=WAYS[way], **{fault: number})
        for name in ("spam1", "ham1", "spam2", "ham2"):
            box.ask("add", name, "INBOX", name)
        box.ask("add", "filed", "Junk", "by the server")
        box.existing = True
        failures = until_done(box)
        box.once()
        found = places(box)
        expected = handled(way)
        expected["INBOX"].remove("old")
        assert found == expected, number
        assert sorted(box.judged) == ["ham1", "ham2", "spam1", "spam2"]
        assert box.labels() == []
        if not failures:
            return
    raise AssertionError("the runs never reach the end")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.full)])
def test_a_connection_that_ends_at_any_byte_loses_nothing(imap_reader, way, step):
    """Between any two bytes of the server's answers."""
    for size in range(1, 4000, step):
        box = imap_reader(hide=WAYS[way], cut=size)
        for name in ("spam1", "ham1", "spam2", "ham2"):
            box.ask("add", name, "INBOX", name)
        box.ask("add", "filed", "Junk", "by the server")
        box.existing = True
        failures = until_done(box)
        box.once()
        expected = handled(way)
        expected["INBOX"].remove("old")
        assert places(box) == expected, size
        assert box.labels() == []
        if not failures:
            return
    raise AssertionError("the runs never reach the end")


@pytest.mark.parametrize("fault", ["drop", "lose"])
def test_a_connection_that_ends_while_moves_are_learnt_loses_none(imap_reader, fault):
    """Each label is learnt once, also if the connection ends at any command of that run."""
    for number in range(1, 60):
        box = imap_reader()
        begin(box)
        box.once()
        user_moves(box)
        box.ask("fail_next", fault, number)
        failures = until_done(box)
        box.once()
        assert sorted(box.labels()) == MOVED, number
        if not failures:
            return
    raise AssertionError("the runs never reach the end")


# --- kills ---------------------------------------------------------------------------------------


class Killer:
    """Kills this process at its nth step: a commit, a label, bytes sent or received."""

    def __init__(self, monkeypatch, box):
        self.left = 0
        changing, send, receive = MailboxState.changing, ImapConnection.send, ImapConnection.receive

        @contextmanager
        def stepped(state):
            self.step()
            with changing(state):
                yield
                self.step()
            self.step()

        def around(method):
            def run(*arguments):
                self.step()
                found = method(*arguments)
                self.step()
                return found

            return run

        monkeypatch.setattr(MailboxState, "changing", stepped)
        monkeypatch.setattr(ImapConnection, "send", around(send))
        monkeypatch.setattr(ImapConnection, "receive", around(receive))
        monkeypatch.setattr(box, "teach", around(box.teach))

    def step(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self, box, number):
        """Run once in a process that is killed at that step; whether it was."""
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                self.left = number
                box.once()
                os._exit(0)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -signal.SIGKILL), (number, status)
        return status != 0


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_killed_anywhere_is_continued(imap_reader, way, monkeypatch):
    """No message is lost or doubled; junk is filed, and nothing is learnt from that."""
    for number in range(1, 400):
        box = imap_reader(hide=WAYS[way])
        begin(box)
        with monkeypatch.context() as patch:
            was_killed = Killer(patch, box).run(box, number)
        box.once()
        box.once()
        assert places(box) == handled(way), number
        assert box.labels() == [], number
        assert set(box.known()) <= {"ham", "junk"}
        if not was_killed:
            return
    raise AssertionError("the runs never reach the end")


def test_a_run_that_is_killed_while_it_learns_learns_each_move_once(imap_reader, monkeypatch):
    """At every commit, label and command of the run that learns."""
    for number in range(1, 400):
        box = imap_reader()
        begin(box)
        box.once()
        user_moves(box)
        with monkeypatch.context() as patch:
            was_killed = Killer(patch, box).run(box, number)
        box.once()
        box.once()
        assert sorted(box.labels()) == MOVED, number
        if not was_killed:
            return
    raise AssertionError("the runs never reach the end")


def test_what_the_user_takes_out_while_the_reader_is_dead_is_learnt(imap_reader, monkeypatch):
    """Killed after the move, before it is noted; the user moves the message back."""
    learnt = 0
    for number in range(1, 400):
        box = imap_reader()
        begin(box)
        with monkeypatch.context() as patch:
            was_killed = Killer(patch, box).run(box, number)
        if "spam1" in places(box)["Junk"]:
            box.ask("move", "spam1", "Junk", "INBOX")
            box.once()
            assert box.labels() == [("spam1", "ham")], number
            assert "spam1" in places(box)["INBOX"]
            learnt += 1
        if not was_killed:
            break
    assert learnt > 5


def test_a_message_on_which_the_reader_dies_is_left_alone(imap_reader, monkeypatch):
    """It is judged twice, the second time alone; the others are filed."""
    box = imap_reader()
    begin(box)
    deaths = []

    def judge(raws, _):
        if any(b"spam1" in raw for raw in raws):
            os.kill(os.getpid(), signal.SIGKILL)
        return [verdict_of(raw) for raw in raws]

    monkeypatch.setattr(box, "judge", judge)
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                box.once()
            os._exit(0)
        deaths.append(os.waitpid(pid, 0)[1])
    assert deaths == [signal.SIGKILL, signal.SIGKILL, 0, 0]
    assert places(box) == {"INBOX": ["old", "spam1", "ham1", "ham2"], "Junk": ["filed", "spam2"]}
