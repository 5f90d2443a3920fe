"""A real Sendmail asks the real daemon as a milter, as the documentation says."""

import email
import shutil
import smtplib

import pytest
from support.postfix import PROJECT, Daemon, started
from support.sendmail import Sendmail, needs_sendmail
from support.waiting import until

pytestmark = needs_sendmail

SAMPLE = PROJECT / "corpora" / "sample"
ACTIONS = '[actions]\njunk = "tag"\nreject = "reject"\n'
HAM, JUNK, REJECTED = ("ham", 3), ("spam", 3), ("spam", 1)
"""messages of the sample by the decision"""


def mail_of(label, number):
    """A message of the sample."""
    return sorted((SAMPLE / label).iterdir())[number].read_bytes()


@pytest.fixture(scope="module")
def site(trained, tmp_path_factory):
    """Sendmail and the daemon."""
    folder, sendmail = tmp_path_factory.mktemp("sendmail"), Sendmail()
    shutil.copytree(trained, folder / "home", ignore=shutil.ignore_patterns("*.sock"))
    sendmail.daemon = Daemon(folder, sendmail.settings() + ACTIONS)
    with started(sendmail):
        yield sendmail


def test_mail_is_marked(site):
    """All added headers come after Sendmail's own line; forged copies are deleted."""
    forged = (
        b"X-Spam-Flag: YES\r\nx-spam-flag: YES\r\nX-Spam-Status: Yes,\r\n score=9\r\n"
        b"X-Spamnb-Verdict: junk\r\nX-Test: marked\r\n"
    )
    site.send(forged + mail_of(*HAM), ["alice@example.org"])
    found = email.message_from_bytes(site.relayed("X-Test: marked"))
    assert found.keys()[:6] == [
        "Received", "X-Spam-Flag", "X-Spam-Status", "X-Spam-Score", "X-Spam-Level",
        "X-Spamnb-Verdict",
    ]  # fmt: skip
    for name in ("X-Spam-Flag", "X-Spam-Status", "X-Spamnb-Verdict"):
        assert len(found.get_all(name)) == 1
    assert found["X-Spam-Flag"] == "NO"


def test_the_subject_is_tagged(site):
    """Junk with the action `tag` is delivered with a marked subject."""
    site.send(b"X-Test: tagged\r\n" + mail_of(*JUNK), ["alice@example.org"])
    found = email.message_from_bytes(site.relayed("X-Test: tagged"))
    (subject,) = found.get_all("Subject")
    before = email.message_from_bytes(mail_of(*JUNK))["Subject"]
    assert subject.split() == ["[SPAM]", *before.split()]
    assert found["X-Spam-Flag"] == "YES"


def test_spam_is_refused_in_the_session(site):
    """The sender gets 550 with a reference that the log knows."""
    with pytest.raises(smtplib.SMTPDataError) as refused:
        site.send(mail_of(*REJECTED), ["alice@example.org"])
    assert refused.value.smtp_code == 550
    reference = refused.value.smtp_error.decode().rpartition("reference ")[2].rstrip(")")
    until(lambda: f"reference={reference}" in site.daemon.log.read_text())


def test_sendmail_defers_while_the_daemon_is_down(site):
    """With `F=T` the sender gets 451 without the daemon; afterwards mail is accepted again."""
    site.daemon.stop()
    try:
        with pytest.raises(smtplib.SMTPException) as deferred:
            site.send(mail_of(*HAM), ["alice@example.org"])
        assert "451" in str(deferred.value)
    finally:
        site.daemon.start()
    site.send(b"X-Test: again\r\n" + mail_of(*HAM), ["alice@example.org"])
    site.relayed("X-Test: again")
