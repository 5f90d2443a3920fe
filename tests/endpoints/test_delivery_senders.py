"""Mail to wanted@ and unwanted@: whose list changes, and which messages name a sender."""

import pytest
from support.delivery_agent import MESSAGE, files, logins, running_agent
from test_delivery_feedback import ALICE, NOTHING, SPAM, report, scored, send

from spamnb.engine.filter import Filter
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import ListTarget
from spamnb.policy.actions import PersonNames

LISTS = {"wanted": "wanted", "unwanted": "never"}


@pytest.fixture
def settings(tmp_path):
    return {
        "root": str(tmp_path / "mail"),
        "passwords": logins(tmp_path / "passwords", alice_at_x_example=("secret", ALICE)),
        "plain_login": True,
        "hostname": "mx.x.example",
    }


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path / "model", create=True) as made:
        yield made


def test_without_the_settings_wanted_is_a_mailbox(settings, tmp_path):
    """The addresses of lists exist only if they are named."""
    with running_agent(**settings) as rig:
        send(rig, report(SPAM), "wanted@x.example", login=True)
    assert rig.taught == []
    assert len(files(tmp_path / "mail")) == 1


def test_a_message_lists_its_author(settings, tmp_path):
    """The user's list takes the author of each attached message; the receipt says so."""
    with running_agent(**settings | LISTS) as rig:
        sent = report(SPAM, MESSAGE)
        assert send(rig, sent, "wanted@x.example", login=True) == "250 2.0.0 2 listed"
        assert send(rig, report(SPAM), "Never@x.example", login=True) == "250 2.0.0 1 listed"
    assert [one.word for one in rig.taught] == ["wanted", "wanted", "unwanted"]
    assert {one.target for one in rig.taught} == {ListTarget(ALICE, "user")}
    assert rig.taught[0].raw
    receipts = [path.read_text() for path in files(tmp_path / "mail")]
    assert any("To undo it: spamnb senders remove a@b.example" in one for one in receipts)


@pytest.fixture
def lists(settings, model, tmp_path):
    """An agent that changes the lists of persons, and what these are."""
    domains = frozenset({"x.example"})
    names = PersonNames(logins=domains, served=domains)
    service = FeedbackService(model, ReviewQueue(tmp_path / "review"), persons=names)

    def found():
        with model.store.read() as view:
            lists = list(view.sender_lists())
        return {(one.name, entry.sender): entry.word for _, one in lists for entry in one}

    with running_agent(**settings | LISTS) as rig:
        rig.teach = service.list_sender
        yield rig, found


def test_a_user_lists_senders_by_mail(lists, model):
    """An attached message names the sender; the opposite word replaces the other one."""
    rig, found = lists
    assert send(rig, report(MESSAGE), "wanted@x.example", login=True) == "250 2.0.0 1 listed"
    assert found() == {("alice", "a@b.example"): "wanted"}
    assert send(rig, report(MESSAGE), "wanted@x.example", login=True) == "250 2.0.0 1 no change"
    assert send(rig, report(MESSAGE), "never@x.example", login=True) == "250 2.0.0 1 listed"
    assert found() == {("alice", "a@b.example"): "unwanted"}


def test_a_stranger_lists_no_sender(lists, model):
    """Neither a stranger nor the holder of a signature changes a list, not even an own one."""
    rig, found = lists
    kept = scored(model, MESSAGE, ALICE)
    for raw in (report(MESSAGE), report(kept), kept):
        reply = send(rig, raw, "wanted@x.example", sender=ALICE)
        assert reply == f"250 {NOTHING}"
    assert found() == {}


@pytest.mark.parametrize(
    "author",
    [b"a@b.example, c@d.example", b"nobody", b"x@localhost", b"*@b.example", b"",
     b"a" * 5000 + b"@b.example", b"<a@b.example\x00>", b'"a@b.example',
     b"a@b.example\r\nFrom: c@d.example"],
)  # fmt: skip
def test_a_message_without_a_single_author_lists_nothing(lists, author):
    """Several authors, none, and hostile ones are refused."""
    rig, found = lists
    raw = b"From: " + author + b"\r\nSubject: x\r\n\r\nHello\r\n"
    reply = send(rig, report(raw), "wanted@x.example", login=True)
    assert reply.startswith("250 2.0.0 1 not learnt"), reply
    assert found() == {}
