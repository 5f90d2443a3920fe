"""A real Exim around the real daemon, joined as the documentation says."""

import email
import shutil
import smtplib
from pathlib import Path

import pytest
from support.exim import Exim, needs_exim
from support.postfix import Daemon, started
from support.waiting import until

pytestmark = needs_exim

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A home with a model of the sample."""
    daemon = Daemon(tmp_path_factory.mktemp("model"), "")
    daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
    return daemon.home


@pytest.fixture
def site(model, tmp_path):
    """Exim and the daemon; ended afterwards."""
    exim = Exim()
    shutil.copytree(model, tmp_path / "home", ignore=shutil.ignore_patterns("*.sock"))
    exim.daemon = Daemon(tmp_path, exim.settings())
    with started(exim):
        yield exim


def mail_of(label, number):
    """A message of the sample."""
    return sorted((SAMPLE / label).iterdir())[number].read_bytes()


def test_mail_is_judged_and_filed(site):
    """Ham comes to the inbox, spam to Junk, both with the added headers, once for each person."""
    people = ["alice@example.org", "bob@example.org"]
    site.send(mail_of("ham", 3), people)
    site.send(b"X-Spam-Flag: NO\r\n" + mail_of("spam", 3), people)
    for name in ("alice", "bob"):
        junk = until(lambda name=name: site.delivered(name, "X-Spam-Flag", ".Junk"))
        good = until(lambda name=name: site.delivered(name, "X-Spam-Flag"))
        assert [email.message_from_bytes(raw).get_all("X-Spam-Flag") for raw in junk] == [["YES"]]
        assert [email.message_from_bytes(raw)["X-Spam-Flag"] for raw in good] == ["NO"]
        assert email.message_from_bytes(junk[0])["X-Spamnb-Signature"]
    assert "R=spamnb T=spamnb" in site.log()
    assert "== " not in site.log()


def test_what_was_sent_arrives_whole(site):
    """8-bit text, dots, long lines and the sender of a bounce."""
    text = b"Subject: whole\r\n\r\n.dot\r\n" + "blå".encode() + b"\r\n" + b"x" * 3000 + b"\r\n"
    site.send(text, ["alice@example.org"], sender="", mail_options=["BODY=8BITMIME"])
    arrived = until(lambda: site.delivered("alice", "Subject: whole"))[0]
    assert arrived.partition(b"\n\n")[2] == text.replace(b"\r\n", b"\n").partition(b"\n\n")[2]
    assert b"Return-path" not in arrived or b"Return-path: <>" in arrived


def test_nothing_is_lost_while_the_daemon_is_away(site):
    """Exim keeps what it took, tries again soon, and bounces nothing."""
    site.daemon.stop()
    site.send(b"Subject: patience\r\n\r\ntext\r\n", ["alice@example.org"])
    until(lambda: "Connection refused" in site.log(), what="a try in vain")
    site.daemon.start()
    until(lambda: site.delivered("alice", "patience"))
    assert "** " not in site.log()


def test_mail_that_exim_does_not_take_back_waits_there(site):
    """What the port for returned mail refuses for now is not lost between the two."""
    site.refuse()
    site.send(b"Subject: later\r\n\r\ntext\r\n", ["alice@example.org"])
    until(lambda: "== alice@example.org R=spamnb" in site.log(), what="a try in vain")
    site.take_again()
    until(lambda: site.delivered("alice", "Subject: later"))
    assert "** " not in site.log()


def test_only_what_comes_back_is_believed(site):
    """From loopback to the port of the world nothing is relayed."""
    with pytest.raises(smtplib.SMTPRecipientsRefused):
        site.send(b"Subject: relay\r\n\r\nx\r\n", ["somebody@elsewhere.example"])
