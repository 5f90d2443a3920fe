"""`spamnb imap` with a real Dovecot: junk is moved, moves are learnt, no message is lost."""

import pytest
from support.cli import spamnb
from support.imap_rig import ImapRig, sample
from support.postfix import needs_rig

pytestmark = [needs_rig, pytest.mark.usefixtures("alone")]


@pytest.fixture(scope="module", params=[(), ("MOVE",)], ids=["full", "without MOVE"])
def rig(request):
    made = ImapRig(*request.param)
    yield made
    made.stop()


@pytest.fixture
def box(rig):
    made = rig.mailbox()
    yield made
    made.imap.logout()


def once(home, config, *options):
    done = spamnb(home, "--config", config, "imap", "--once", "--json", *options)
    assert done.code == 0, done.err
    return done.json


def journal(home, config):
    """The labels learnt from moves, oldest first: (message id, label, number)."""
    found = spamnb(
        home, "--config", config, "journal", "--limit", "0", "--channel", "imap", "--json"
    )
    return [(one["message_id"], one["after"], one["event"]) for one in found.json][::-1]


def test_junk_is_moved_and_moves_are_learnt(home, tmp_path, box):
    """Junk is filed; old mail is not judged; each move is learnt once, and can be undone."""
    config = box.settings(tmp_path)
    old, old_id = sample("spam", 1)
    box.append(old)
    assert once(home, config) == []
    (spam, spam_id), (ham, ham_id) = sample("spam", 2), sample("ham", 3)
    box.append(spam)
    box.append(ham)
    done = once(home, config)
    assert sorted((one["uid"], one["done"]) for one in done) == [(2, "moved"), (3, "judged")]
    assert (box.messages(), box.messages("Junk")) == ([old_id, ham_id], [spam_id])
    assert once(home, config) == []
    box.move(spam_id, "Junk", "INBOX")
    box.move(ham_id, "INBOX", "Junk")
    assert [one["state"] for one in once(home, config)] == ["learnt", "learnt"]
    assert once(home, config) == []
    events = journal(home, config)
    assert [event[:2] for event in events] == [(ham_id, "spam"), (spam_id, "ham")]
    assert (box.messages(), box.messages("Junk")) == ([old_id, spam_id], [ham_id])
    for *_, number in reversed(events):
        assert spamnb(home, "--config", config, "undo", number).code == 0
    assert once(home, config) == []
