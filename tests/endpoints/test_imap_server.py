"""Mailboxes on a scripted IMAP server: connections that end anywhere, kills, and wrong answers."""

import os
import signal
import tracemalloc
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Thread

import pytest
from support.imap_client import Reader, verdict_of
from support.imap_server import SAYINGS, Server
from support.waiting import LIMIT_S, until

from spamnb.endpoints.imap.connection import ImapConnection
from spamnb.endpoints.imap.login import LoginRefusedError
from spamnb.endpoints.imap.params import ImapTimes
from spamnb.endpoints.imap.state import MailboxState
from spamnb.errors import PeerError, SpamnbError, StoreMissingError
from spamnb.service.scanning.model_session import ScanFault

WAYS = {"move": "", "copy": "MOVE", "flag": "MOVE,UIDPLUS"}


@pytest.fixture(scope="module")
def server():
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def reader(server, tmp_path):
    """Makes the reader of a mailbox for which the server fails in some way."""
    made = []

    def make(**options):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Reader(server, server.user(**options), folder))
        return made[-1]

    yield make
    for one in made:
        one.close()


def begin(box):
    """A first run with old mail; then new mail."""
    box.ask("add", "old", "INBOX", "spam")
    box.ask("add", "filed", "Junk", "by the server")
    box.once()
    for name in ("spam1", "ham1", "spam2", "ham2"):
        box.ask("add", name, "INBOX", name)


def handled(way):
    """Where messages are when all is done."""
    if way == "flag":
        return {"INBOX": ["old", "spam1!", "ham1", "spam2!", "ham2"], "Junk": ["filed"]}
    return {"INBOX": ["old", "ham1", "ham2"], "Junk": ["filed", "spam1", "spam2"]}


def places(box):
    found = box.ask("dump")
    return {name: found[name] for name in ("INBOX", "Junk")}


@pytest.mark.parametrize("way", WAYS)
def test_new_junk_is_filed(reader, way):
    """Old mail stays where it is; each new message is judged once."""
    box = reader(hide=WAYS[way])
    begin(box)
    box.once()
    box.once()
    assert places(box) == handled(way)
    assert sorted(box.judged) == ["ham1", "ham2", "spam1", "spam2"]
    assert box.labels() == []


def user_moves(box):
    """What the user does after that."""
    box.ask("move", "ham1", "INBOX", "Junk")
    box.ask("move", "filed", "Junk", "Work")
    box.ask("move", "ham2", "INBOX", "Trash")
    box.ask("move", "spam1", "Junk", "INBOX")
    box.ask("move", "spam2", "Junk", "Trash")


MOVED = [("filed", "ham"), ("ham1", "spam"), ("spam1", "ham")]


@pytest.mark.parametrize("way", ["move", "copy"])
def test_moves_are_learnt_once(reader, way):
    """In both directions; a move to the trash teaches nothing, nor does one made by spamnb."""
    box = reader(hide=WAYS[way])
    begin(box)
    box.once()
    user_moves(box)
    box.once()
    box.once()
    assert sorted(box.labels()) == MOVED
    box.ask("move", "spam1", "INBOX", "Junk")
    box.ask("move", "ham1", "Junk", "Work")
    box.once()
    box.once()
    assert sorted(box.labels()) == sorted([*MOVED, ("ham1", "ham"), ("spam1", "spam")])


def until_done(box):
    """Run until a run succeeds, as a service does; how many failed."""
    for failures in range(20):
        try:
            box.once()
        except SpamnbError:
            continue
        return failures
    raise AssertionError("no run succeeds")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["drop", "lose"])
def test_a_connection_that_ends_at_any_command_loses_nothing(reader, way, fault):
    """Before a command is carried out, or after it and before its reply."""
    for number in range(1, 60):
        box = reader(hide=WAYS[way], **{fault: number})
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
def test_a_connection_that_ends_at_any_byte_loses_nothing(reader, way, step):
    """Between any two bytes of the server's answers."""
    for size in range(1, 4000, step):
        box = reader(hide=WAYS[way], cut=size)
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
def test_a_connection_that_ends_while_moves_are_learnt_loses_none(reader, fault):
    """Each label is learnt once, also if the connection ends at any command of that run."""
    for number in range(1, 60):
        box = reader()
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
def test_a_run_that_is_killed_anywhere_is_continued(reader, way, monkeypatch):
    """No message is lost or doubled; junk is filed, and nothing is learnt from that."""
    for number in range(1, 400):
        box = reader(hide=WAYS[way])
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


def test_a_run_that_is_killed_while_it_learns_learns_each_move_once(reader, monkeypatch):
    """At every commit, label and command of the run that learns."""
    for number in range(1, 400):
        box = reader()
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


def test_what_the_user_takes_out_while_the_reader_is_dead_is_learnt(reader, monkeypatch):
    """Killed after the move, before it is noted; the user moves the message back."""
    learnt = 0
    for number in range(1, 400):
        box = reader()
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


# --- what servers do -----------------------------------------------------------------------------


@pytest.mark.parametrize("say", SAYINGS)
def test_a_wrong_answer_ends_the_run_within_bounds(reader, say):
    """Endless literals and lines, numbers that are none, silence: one error, little memory."""
    box = reader(say=say)
    box.times = ImapTimes(step_s=0.5, command_s=2.0)
    box.ask("add", "spam1", "INBOX", "spam")
    box.existing = True
    if say in ("idle", "deaf"):
        thread = Thread(target=box.account().run)
        thread.start()
        until(lambda: box.reports and (say == "idle" or box.troubles), what="the reader")
        box.stop.set()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    elif say == "others":
        box.once()
        assert places(box) == {"INBOX": [], "Junk": ["spam1"]}
    else:
        tracemalloc.start()
        with pytest.raises(PeerError):
            box.once()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20
    assert sum(map(len, places(box).values())) == 1


@pytest.mark.parametrize("folder", ["INBOX", "Junk"])
def test_new_uids_teach_nothing_and_judge_nothing_again(reader, folder):
    """A changed UIDVALIDITY: reading begins at the end of the folder."""
    box = reader()
    begin(box)
    box.once()
    box.ask("move", "ham1", "INBOX", "Junk")
    box.ask("renew", folder)
    box.once()
    assert box.labels() == ([] if folder == "Junk" else [("ham1", "spam")])
    assert len(box.judged) == 4
    box.ask("add", "spam3", "INBOX", "spam")
    box.ask("move", "spam1", "Junk", "INBOX")
    box.once()
    assert box.labels()[-1] == ("spam1", "ham")
    assert "spam3" in places(box)["Junk"]


def test_a_renamed_junk_folder_is_found_again(reader):
    """The mark of the server counts; moves are recognised across the rename."""
    box = reader()
    begin(box)
    box.once()
    box.ask("rename", "Junk", "Junk mail")
    box.ask("move", "spam1", "Junk mail", "INBOX")
    box.ask("add", "spam3", "INBOX", "spam")
    box.once()
    assert box.labels() == [("spam1", "ham")]
    assert box.ask("dump")["Junk mail"] == ["filed", "spam2", "spam3"]


def test_without_a_junk_folder_nothing_is_judged(reader):
    """New mail waits; it is judged when the folder is there."""
    box = reader()
    begin(box)
    box.ask("rename", "Junk", "Other")
    with pytest.raises(PeerError, match="no junk folder"):
        box.once()
    assert box.judged == []
    box.ask("rename", "Other", "Junk")
    box.once()
    assert places(box) == handled("move")


def test_a_message_that_is_delivered_twice_teaches_nothing(reader):
    """Its first copy lies in the junk folder; the second one is no move out of it."""
    box = reader()
    begin(box)
    box.once()
    box.once()
    box.ask("add", "spam1", "INBOX", "spam1")
    box.once()
    assert box.labels() == []
    assert box.ask("dump")["INBOX"][-1] == "spam1"


def test_a_move_by_copying_is_a_move(reader):
    """The mail program copies out of the junk folder, and deletes there a moment later."""
    box = reader()
    begin(box)
    box.once()
    box.once()
    box.ask("add", "spam1", "INBOX", "spam1")
    box.waited = lambda: box.ask("move", "spam1", "Junk", "Trash")
    box.once()
    assert box.labels() == [("spam1", "ham")]


def test_what_no_server_can_read_does_not_stop_the_rest(reader):
    """A message that the server refuses to give is reported, and the others are judged."""
    box = reader(broken=2)
    begin(box)
    box.once()
    assert sorted(box.judged) == ["ham1", "ham2", "spam2"]
    assert [(one.done, one.uid) for one in box.reports if one.done == "unscanned"] == [
        ("unscanned", 2)
    ]


@pytest.mark.parametrize("hide", ["", "IDLE"])
def test_it_runs_until_told_to_stop(reader, hide):
    """New mail by IDLE or by looking; a lost connection is made again."""
    box = reader(hide=hide, drop=30)
    box.params = replace(box.params, poll_s=0.05 if hide else 5.0)
    box.ask("add", "old", "INBOX", "spam")
    thread = Thread(target=box.account().run)
    thread.start()
    until(lambda: box.ask("commands") > 3, what="its first pass")
    for number in range(10):
        box.ask("add", f"spam-{number}", "INBOX", "spam")
        until(lambda n=number: f"spam-{n}" in places(box)["Junk"], what="the move")
    box.ask("move", "spam-3", "Junk", "INBOX")
    until(box.labels, what="the label")
    box.stop.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert box.labels() == [("spam-3", "ham")]
    assert places(box)["INBOX"] == ["old", "spam-3"]


def test_a_refused_login_hides_the_password_and_waits(reader):
    """The server may repeat the password; it is in no error, and the next try is minutes later."""
    box = reader()
    (box.home / "password").write_text("guess-a-secret\n")
    with pytest.raises(LoginRefusedError) as caught:
        box.once()
    assert "guess" not in str(caught.value)
    assert "****" in str(caught.value)
    thread = Thread(target=box.account().run)
    thread.start()
    ((name, error, pause_s),) = until(lambda: box.troubles, what="the report")
    box.stop.set()
    thread.join(LIMIT_S)
    assert (name, type(error)) == ("box", LoginRefusedError)
    assert pause_s >= 200


def test_a_large_mailbox_costs_nothing_at_the_first_start(reader):
    """100,000 messages are not read, and later ones are judged."""
    box = reader()
    box.ask("fill", 100_000)
    box.once()
    assert (box.judged, box.ask("commands") < 20) == ([], True)
    box.ask("add", "spam1", "INBOX", "spam")
    box.once()
    assert box.judged == ["spam1"]
    assert box.ask("dump")["Junk"] == ["spam1"]


def test_no_step_depends_on_the_clock(reader, monkeypatch):
    """A clock that jumps changes nothing, because nothing reads it."""
    box = reader()
    begin(box)
    monkeypatch.setattr("time.time", None)
    monkeypatch.setattr("time.time_ns", None)
    box.once()
    assert places(box) == handled("move")


@pytest.mark.parametrize("hide", ["", "SASL-IR"])
def test_an_access_token_is_a_login(reader, hide):
    """XOAUTH2, with and without an initial response; the server's error needs an answer."""
    box = reader(hide=hide)
    box.params = replace(box.params, auth="xoauth2")
    box.once()
    (box.home / "password").write_text("expired-token\n")
    with pytest.raises(LoginRefusedError):
        box.once()


def test_a_message_on_which_the_reader_dies_is_left_alone(reader, monkeypatch):
    """It is judged twice, the second time alone; the others are filed."""
    box = reader()
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


def test_without_a_model_mail_waits(reader, monkeypatch):
    """However often it is tried: the mail is judged when there is a model again."""
    box = reader()
    begin(box)
    judge = box.judge
    monkeypatch.setattr(box, "judge", lambda raws, _: [ScanFault("model") for _ in raws])
    for _ in range(5):
        with pytest.raises(StoreMissingError):
            box.once()
    monkeypatch.setattr(box, "judge", judge)
    box.once()
    assert places(box) == handled("move")


def test_a_message_that_cannot_be_judged_stays_in_the_inbox(reader, monkeypatch):
    """It is tried twice, and the others are filed."""
    box = reader()
    begin(box)

    def judge(raws, _):
        return [ScanFault("fault") if b"spam1" in raw else verdict_of(raw) for raw in raws]

    monkeypatch.setattr(box, "judge", judge)
    box.once()
    assert places(box) == {"INBOX": ["old", "spam1", "ham1", "ham2"], "Junk": ["filed", "spam2"]}
    assert [one.uid for one in box.reports if one.done == "unscanned"] == [2]
