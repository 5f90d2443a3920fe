"""Spam traps: mail to them, and its training."""

import pytest
from support.scanning import as_delivered

from spamnb.errors import StoreError
from spamnb.feedback.spool import Spool
from spamnb.mail.envelope import Envelope
from spamnb.scan.access_lists import Traps
from spamnb.scan.values import ScanRequest

RAW = b"Subject: buy\r\n\r\nnow\r\n"


def request(*to, **more):
    return ScanRequest(as_delivered(RAW), len(RAW), Envelope(recipients=to), **more)


@pytest.mark.parametrize(
    ("to", "trap"),
    [
        (("trap@example.org",), "trap@example.org"),
        (("bob@example.org", "Trap@Example.ORG"), "trap@example.org"),
        (("bob@example.org",), ""),
        (("trap@example.net",), ""),
    ],
)
def test_any_recipient_may_be_a_trap(to, trap):
    """One trap among several recipients is enough; case does not matter."""
    assert Traps(["trap@example.org"]).caught(request(*to)) == trap


def test_half_a_message_is_not_learnt():
    """What was not seen whole has another digest than what lies in mailboxes."""
    assert Traps(["trap@example.org"]).caught(request("trap@example.org", whole=False)) == ""


def test_trap_mail_is_spooled_as_a_label_of_an_admin(tmp_path):
    """In a private spool, by the channel trap, with the bytes that mailboxes hold."""
    spool = Spool(tmp_path / "traps", private=True)
    spool.make()
    traps = Traps(["trap@example.org"], spool.folder)
    traps.keep(request("trap@example.org"), "trap@example.org")
    found = []
    assert spool.drain(("ham", "spam"), found.append) == 1
    assert found[0].head == {"channel": "trap", "for": "trap@example.org", "trust": "admin"}
    assert (found[0].label, found[0].raw) == ("spam", as_delivered(RAW))


def test_a_spool_that_takes_nothing_is_an_error(tmp_path):
    """A failed write raises an error and leaves no file."""
    with pytest.raises(StoreError):
        Traps(["t@x"], tmp_path / "nowhere").keep(request("t@x"), "t@x")
    assert list(tmp_path.iterdir()) == []
