"""Mailboxes on a scripted IMAP server: junk and moves, and what servers do."""

import tracemalloc
from dataclasses import replace
from threading import Thread

import pytest
from support.imap_client import MOVED, WAYS, begin, handled, places, user_moves, verdict_of
from support.imap_server import SAYINGS
from support.waiting import LIMIT_S, until

from spamnb.errors import PeerError, StoreMissingError
from spamnb.imap.client import LoginRefusedError
from spamnb.scan.judge import ScanFault
from spamnb.settings.values import ImapTimes


@pytest.mark.parametrize("way", WAYS)
def test_new_junk_is_filed(imap_reader, way):
    """Old mail stays where it is; each new message is judged once."""
    box = imap_reader(hide=WAYS[way])
    begin(box)
    box.once()
    box.once()
    assert places(box) == handled(way)
    assert sorted(box.judged) == ["ham1", "ham2", "spam1", "spam2"]
    assert box.labels() == []


@pytest.mark.parametrize("way", ["move", "copy"])
def test_moves_are_learnt_once(imap_reader, way):
    """In both directions; a move to the trash teaches nothing, nor does one made by spamnb."""
    box = imap_reader(hide=WAYS[way])
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


# --- what servers do -----------------------------------------------------------------------------


@pytest.mark.parametrize("say", SAYINGS)
def test_a_wrong_answer_ends_the_run_within_bounds(imap_reader, say):
    """Endless literals and lines, numbers that are none, silence: one error, little memory."""
    box = imap_reader(say=say)
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
def test_new_uids_teach_nothing_and_judge_nothing_again(imap_reader, folder):
    """A changed UIDVALIDITY: reading begins at the end of the folder."""
    box = imap_reader()
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


def test_a_renamed_junk_folder_is_found_again(imap_reader):
    """The mark of the server counts; moves are recognised across the rename."""
    box = imap_reader()
    begin(box)
    box.once()
    box.ask("rename", "Junk", "Junk mail")
    box.ask("move", "spam1", "Junk mail", "INBOX")
    box.ask("add", "spam3", "INBOX", "spam")
    box.once()
    assert box.labels() == [("spam1", "ham")]
    assert box.ask("dump")["Junk mail"] == ["filed", "spam2", "spam3"]


def test_without_a_junk_folder_nothing_is_judged(imap_reader):
    """New mail waits; it is judged when the folder is there."""
    box = imap_reader()
    begin(box)
    box.ask("rename", "Junk", "Other")
    with pytest.raises(PeerError, match="no junk folder"):
        box.once()
    assert box.judged == []
    box.ask("rename", "Other", "Junk")
    box.once()
    assert places(box) == handled("move")


def test_a_message_that_is_delivered_twice_teaches_nothing(imap_reader):
    """Its first copy lies in the junk folder; the second one is no move out of it."""
    box = imap_reader()
    begin(box)
    box.once()
    box.once()
    box.ask("add", "spam1", "INBOX", "spam1")
    box.once()
    assert box.labels() == []
    assert box.ask("dump")["INBOX"][-1] == "spam1"


def test_a_move_by_copying_is_a_move(imap_reader):
    """The mail program copies out of the junk folder, and deletes there a moment later."""
    box = imap_reader()
    begin(box)
    box.once()
    box.once()
    box.ask("add", "spam1", "INBOX", "spam1")
    box.waited = lambda: box.ask("move", "spam1", "Junk", "Trash")
    box.once()
    assert box.labels() == [("spam1", "ham")]


def test_what_no_server_can_read_does_not_stop_the_rest(imap_reader):
    """A message that the server refuses to give is reported, and the others are judged."""
    box = imap_reader(broken=2)
    begin(box)
    box.once()
    assert sorted(box.judged) == ["ham1", "ham2", "spam2"]
    assert [(one.done, one.uid) for one in box.reports if one.done == "unscanned"] == [
        ("unscanned", 2)
    ]


@pytest.mark.parametrize("hide", ["", "IDLE"])
def test_it_runs_until_told_to_stop(imap_reader, hide, monkeypatch):
    """New mail by IDLE or by looking; a lost connection is made again."""
    # On a slow machine the server ends more connections, and the pauses double up to this.
    monkeypatch.setattr("spamnb.imap.sync.LONGEST_PAUSE_S", 1.0)
    box = imap_reader(hide=hide, drop=30)
    box.params = replace(box.params, poll_s=0.05 if hide else 5.0)
    box.ask("add", "old", "INBOX", "spam")
    thread = Thread(target=box.account().run)
    thread.start()
    until(lambda: box.read, what="its first pass")
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


def test_a_refused_login_hides_the_password_and_waits(imap_reader):
    """The server may repeat the password; it is in no error, and the next try is minutes later."""
    box = imap_reader()
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


def test_a_large_mailbox_costs_nothing_at_the_first_start(imap_reader):
    """100,000 messages are not read, and later ones are judged."""
    box = imap_reader()
    box.ask("fill", 100_000)
    box.once()
    assert (box.judged, box.ask("commands") < 20) == ([], True)
    box.ask("add", "spam1", "INBOX", "spam")
    box.once()
    assert box.judged == ["spam1"]
    assert box.ask("dump")["Junk"] == ["spam1"]


def test_no_step_depends_on_the_clock(imap_reader, monkeypatch):
    """A clock that jumps changes nothing, because nothing reads it."""
    box = imap_reader()
    begin(box)
    monkeypatch.setattr("time.time", None)
    monkeypatch.setattr("time.time_ns", None)
    box.once()
    assert places(box) == handled("move")


@pytest.mark.parametrize("hide", ["", "SASL-IR"])
def test_an_access_token_is_a_login(imap_reader, hide):
    """XOAUTH2, with and without an initial response; the server's error needs an answer."""
    box = imap_reader(hide=hide)
    box.params = replace(box.params, auth="xoauth2")
    box.once()
    (box.home / "password").write_text("expired-token\n")
    with pytest.raises(LoginRefusedError):
        box.once()


def test_without_a_model_mail_waits(imap_reader, monkeypatch):
    """However often it is tried: the mail is judged when there is a model again."""
    box = imap_reader()
    begin(box)
    judge = box.judge
    monkeypatch.setattr(box, "judge", lambda raws, _: [ScanFault("model") for _ in raws])
    for _ in range(5):
        with pytest.raises(StoreMissingError):
            box.once()
    monkeypatch.setattr(box, "judge", judge)
    box.once()
    assert places(box) == handled("move")


def test_a_message_that_cannot_be_judged_stays_in_the_inbox(imap_reader, monkeypatch):
    """It is tried twice, and the others are filed."""
    box = imap_reader()
    begin(box)

    def judge(raws, _):
        return [ScanFault("fault") if b"spam1" in raw else verdict_of(raw) for raw in raws]

    monkeypatch.setattr(box, "judge", judge)
    box.once()
    assert places(box) == {"INBOX": ["old", "spam1", "ham1", "ham2"], "Junk": ["filed", "spam2"]}
    assert [one.uid for one in box.reports if one.done == "unscanned"] == [2]
