"""The filter in a real OpenSMTPD, as the documentation says."""

import os
import signal
import smtplib

import pytest
from support.cli import ONE_HAM, ONE_SPAM, forked
from support.docs_snippets import snippet
from support.filtering import LISTENER, daemon_in, short_home
from support.opensmtpd import OpenSmtpd, needs_opensmtpd
from support.waiting import LIMIT_S, until

pytestmark = needs_opensmtpd

HAM, SPAM = ONE_HAM.read_bytes(), ONE_SPAM.read_bytes()
WHOLE = (
    b"Subject: whole\r\n\r\n.dot\r\n..\r\na|b|c\r\n"
    + "blå".encode()
    + b"\r\n"
    + b"x" * 900
    + b"\r\n"
)


@pytest.fixture
def home(trained):
    """A home with a short name."""
    with short_home(trained) as place:
        yield place


def body(raw):
    """The text after the header, with LF."""
    return raw.replace(b"\r\n", b"\n").partition(b"\n\n")[2]


def test_mail_is_marked_and_filed(home):
    """Ham comes to the inbox and spam to Junk, marked and whole; forged copies are removed."""
    listener = snippet("opensmtpd.md", "The listener", "spamnb.toml")
    assert listener.partition("\n")[2] == LISTENER.format(home="/run/spamnb", more="")
    with daemon_in(home), OpenSmtpd(home / "scan.sock").ready() as mta:
        for raw in (HAM, b"X-Spam-Flag: NO\n" + SPAM, WHOLE):
            assert mta.send(raw)[0] == 250
        [ham] = until(lambda: mta.delivered(body(HAM)), "the ham")
        [spam] = until(lambda: mta.delivered(body(SPAM), ".Junk"), "the spam")
        [whole] = until(lambda: mta.delivered(b"Subject: whole"), "the message")
        assert ham.count(b"X-Spam-Flag: ") == spam.count(b"X-Spam-Flag: ") == 1
        assert b"\nX-Spam-Flag: NO\n" in b"\n" + ham
        assert b"\nX-Spam-Flag: YES\n" in b"\n" + spam
        assert b"\nX-Spamnb-Signature: " in spam
        assert body(whole) == body(WHOLE)
    assert "alice@example.org" in forked(home, "history", "--json").out


def test_a_rejected_message_is_refused(home):
    """The action `reject` gives 550 while the sender waits, and the connection goes on."""
    with (
        daemon_in(home, '[actions]\nreject = "reject"\n'),
        OpenSmtpd(home / "scan.sock").ready() as mta,
    ):
        code, text = mta.send(SPAM)
        assert (code, text) == (550, b"5.7.1 This message is not wanted here")
        assert mta.send(HAM)[0] == 250
        until(lambda: mta.delivered(body(HAM)), "the ham")
        assert mta.delivered(b"", ".Junk") == []


def test_mail_passes_while_the_daemon_is_away(home):
    """Unscanned, with a line in the log; when the daemon comes back, mail is marked again."""
    with OpenSmtpd(home / "scan.sock", "--deadline", "1").ready() as mta:
        assert mta.send(b"X-Spamnb-Verdict: deliver\n" + WHOLE)[0] == 250
        [whole] = until(lambda: mta.delivered(b"Subject: whole"), "the message")
        assert whole.count(b"X-Spamnb-Verdict") == 1
        assert b"X-Spamnb-Verdict: unscanned; reason=fault\n" in whole
        assert body(whole) == body(WHOLE)
        until(lambda: "passes unscanned: no scanner at unix:" in mta.log(), "the line")
    with daemon_in(home) as daemon, OpenSmtpd(home / "scan.sock").ready() as mta:
        for worker in daemon.children("worker"):
            os.kill(worker, signal.SIGKILL)
        assert mta.send(SPAM)[0] == 250
        until(lambda: mta.delivered(body(SPAM), ".Junk"), "the spam")
        assert "passes unscanned" not in mta.log()


def test_signals_and_clients_that_leave_do_not_end_the_filter(home):
    """OpenSMTPD would end with it; the other sessions go on."""
    with daemon_in(home), OpenSmtpd(home / "scan.sock").ready() as mta:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            os.kill(mta.filter_process(), number)
        with smtplib.SMTP("127.0.0.1", mta.port, timeout=LIMIT_S) as client:
            client.ehlo()
            client.mail("a@example.net")
            client.rcpt("alice@example.org")
            assert client.docmd("DATA")[0] == 354
            client.send(b"Subject: half\r\n\r\nte")
            client.close()
        assert mta.send(SPAM)[0] == 250
        until(lambda: mta.delivered(body(SPAM), ".Junk"), "the spam")
        assert mta.delivered(b"half") == []


def test_opensmtpd_ends_with_its_filter_and_the_sender_keeps_the_mail(home):
    """After `kill -9` of the filter no message gets a 250, and none is delivered by half."""
    with daemon_in(home), OpenSmtpd(home / "scan.sock").ready() as mta:
        with smtplib.SMTP("127.0.0.1", mta.port, timeout=LIMIT_S) as client:
            client.ehlo()
            client.mail("a@example.net")
            client.rcpt("alice@example.org")
            assert client.docmd("DATA")[0] == 354
            client.send(b"Subject: half\r\n\r\ntext\r\n")
            os.kill(mta.filter_process(), signal.SIGKILL)
            mta.process.wait(LIMIT_S)
            with pytest.raises(smtplib.SMTPServerDisconnected):
                client.docmd(".")
            client.close()
        assert mta.delivered(b"half") == mta.delivered(b"half", ".Junk") == []
