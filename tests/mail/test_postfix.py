"""A real Postfix and a real Dovecot around the real daemon, joined as the documentation says."""

import email
import smtplib
from email.message import EmailMessage
from pathlib import Path
from uuid import uuid4

import pytest
from support.docs_snippets import changed, snippet
from support.dovecot import with_junk
from support.postfix import Daemon, Rig, needs_rig, started
from support.waiting import until

pytestmark = needs_rig

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"
WAYS = {"before": "Before the queue", "after": "After the queue"}


def mail_of(label, number):
    """A message of the sample, with the sender it names."""
    return sorted((SAMPLE / label).iterdir())[number].read_bytes()


def header(raw, name):
    return email.message_from_bytes(raw)[name]


def joined(rig, way):
    """The rig with Postfix's recipe for a way; the daemon's settings for it."""
    port = rig.port
    back = {"127.0.0.1:10026": f"127.0.0.1:{port['back']}"}
    front = {"127.0.0.1:10025": f"127.0.0.1:{port['filter']}"}
    rig.master = changed(snippet("postfix.md", "The return listener", "master.cf"), back)
    there = {"[127.0.0.1]:10025": f"[127.0.0.1]:{port['filter']}"} if way == "after" else front
    mine = {"smtp            inet": f"127.0.0.1:{port['mx']} inet", **there}
    rig.master += changed(snippet("postfix.md", WAYS[way], "master.cf"), mine)
    section = WAYS[way] if way == "after" else ""
    text = snippet("postfix.md", section, "spamnb.toml") if section else introduction()
    return changed(text, front | back)


def introduction():
    """The settings at the head of the page, which belong to no section."""
    page = (PROJECT / "docs/postfix.md").read_text().partition("\n## ")[0]
    return page.partition("```toml\n")[2].partition("```")[0]


def delivering(rig):
    """Postfix accepts mail as usual, and delivers it through spamnb."""
    port, section = rig.port, "In front of an LMTP server"
    rig.master = f"127.0.0.1:{port['mx']} inet n - n - - smtpd\n"
    there = {"127.0.0.1:10025": f"127.0.0.1:{port['filter']}"}
    rig.main += changed(snippet("postfix.md", section, "main.cf"), there)
    toml = snippet("postfix.md", section, "spamnb.toml")
    return changed(toml, there | {"127.0.0.1:24": f"127.0.0.1:{port['lmtp']}"})


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A home with a model of the sample."""
    folder = tmp_path_factory.mktemp("model")
    daemon = Daemon(folder, "")
    daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
    return daemon.home


@pytest.fixture(scope="module", params=["before", "after"])
def site(request, model, tmp_path_factory):
    """Everything up, in one of the two ways."""
    yield from running(model, tmp_path_factory.mktemp(request.param), request.param)


def running(model, tmp_path, way, more=lambda _: ""):
    """Postfix, Dovecot and the daemon; ended afterwards."""
    import shutil

    rig = Rig()
    shutil.copytree(model, tmp_path / "home", ignore=shutil.ignore_patterns("*.sock"))
    with_junk(rig)
    toml = delivering(rig) if way == "lmtp" else joined(rig, way)
    daemon = Daemon(tmp_path, toml + more(rig))
    rig.daemon, rig.way = daemon, way
    with started(rig):
        yield rig


def test_mail_is_judged_and_filed(site):
    """Ham comes to the inbox, spam to Junk, both with the added headers, and nothing is bounced."""
    rig = site
    rig.send(mail_of("ham", 3), ["alice@example.org", "bob@example.org"])
    rig.send(mail_of("spam", 3), ["alice@example.org"])
    good = until(lambda: rig.delivered("bob", "X-Spam-Flag"))
    assert header(good[0], "X-Spam-Flag") == "NO"
    assert rig.delivered("alice", "X-Spam-Flag: NO")
    junk = until(lambda: rig.delivered("alice", "X-Spam-Flag: YES", ".Junk"))
    assert header(junk[0], "X-Spamnb-Verdict").startswith("junk; label=spam;")
    assert header(junk[0], "X-Spamnb-Signature")
    assert "postfix/spamnb/smtpd" in rig.log()
    assert "203.0.113.9" in rig.daemon.log.read_text()


def test_what_the_sender_asked_for_goes_through(site):
    """DSN parameters, 8-bit text, long lines and dots arrive as they were sent."""
    rig = site
    text = b"Subject: whole\r\n\r\n.dot\r\n" + "blå".encode() + b"\r\n" + b"x" * 3000 + b"\r\n"
    options = {
        "mail_options": ["BODY=8BITMIME", "RET=HDRS", "ENVID=Abc+2Bd"],
        "rcpt_options": ["NOTIFY=NEVER"],
    }
    rig.send(text, ["alice@example.org"], **options)
    arrived = until(lambda: rig.delivered("alice", "Subject: whole"))[0].replace(b"\r\n", b"\n")
    # Postfix itself breaks lines of more than 998 bytes (smtp_line_length_limit).
    assert text.partition(b"\r\n\r\n")[2][:12] in arrived.replace(b"\n", b"\r\n")
    assert arrived.count(b"x") >= 3000


STRANGERS = """
[listener.strangers]
address = "127.0.0.1:{post}"
upstream = "127.0.0.1:{back}"
peers = ["192.0.2.0/24"]
recipient_domains = ["example.org"]
"""
"""a listener that trusts no client of this machine, in front of a Postfix that takes XCLIENT"""
NAMED = "ADDR=203.0.113.77 NAME=mail.example.net"


@pytest.mark.parametrize(
    ("xclient", "ehlo", "helo"),
    [
        ("", "mx+41.example=1", "mx+41.example=1"),
        ("", "mx+0D+0AMAIL", "mx+0D+0AMAIL"),
        (" HELO=a+2Bb+3Dc+2B41", "", "a+b=c+41"),
        (" HELO=a+0D+0AXFORWARD+20ADDR=198.51.100.1", "", "a??XFORWARD?ADDR=198.51.100.1"),
    ],
)
def test_attributes_of_xclient_arrive_decoded_once(site, xclient, ehlo, helo):
    """Address, name and HELO of XCLIENT reach the log and the next hop; xtext is decoded once.

    Postfix itself makes ? of control characters and blanks.
    """
    rig, sender, returned = site, f"{uuid4().hex}@example.net", len(site.log())
    with smtplib.SMTP("127.0.0.1", rig.port["mx"], timeout=60) as client:
        client.ehlo()
        assert client.has_extn("xclient")
        assert client.docmd("XCLIENT", NAMED + xclient)[0] == 220
        if ehlo:
            assert client.ehlo(ehlo)[0] == 250
        for command in (f"MAIL FROM:<{sender}>", "RCPT TO:<bob@example.org>"):
            assert client.docmd(command)[0] == 250
        assert client.data(b"Subject: named\r\n\r\nx\r\n")[0] == 250
    said = until(lambda: [line for line in rig.daemon.log.read_text().splitlines()
                          if " message " in line and sender in line])  # fmt: skip
    assert len(said) == 1
    assert " client=203.0.113.77 " in said[0]
    assert f" helo={as_logged(helo)} " in said[0]
    hop = "orig_client=mail.example.net[203.0.113.77]"
    until(lambda: hop in rig.log()[returned:])
    assert "[198.51.100.1]" not in rig.log()[returned:]


def as_logged(text):
    """A value as the log writes it."""
    return text if text.isascii() and not set(text) & set(' ="?') else f'"{text}"'


def test_the_relay_passes_no_xclient(model, tmp_path):
    """A client cannot name another by XCLIENT, though the next hop accepts it from the relay."""
    for rig in running(model, tmp_path, "before", lambda rig: STRANGERS.format(**rig.port)):
        for port in ("post", "filter"):
            with smtplib.SMTP("127.0.0.1", rig.port[port], timeout=60) as client:
                client.ehlo()
                assert not client.has_extn("xclient")
                assert client.has_extn("xforward") == (port == "filter")
                assert client.docmd("XCLIENT", "ADDR=198.51.100.1")[0] == 502
                if port == "post":
                    assert client.docmd("XFORWARD", "ADDR=198.51.100.1")[0] == 550
                client.sendmail("a@example.net", ["bob@example.org"], b"Subject: me\r\n\r\nx\r\n")
        with smtplib.SMTP("127.0.0.1", rig.port["back"], timeout=60) as client:
            client.ehlo()
            assert client.has_extn("xclient")
        assert rig.daemon.log.read_text().count(" client=127.0.0.1 ") == 2
        assert "198.51.100.1" not in rig.log() + rig.daemon.log.read_text()


def test_nothing_is_lost_while_the_daemon_is_away(site):
    """Before the queue the sender is asked to wait; after it Postfix does."""
    rig = site
    rig.daemon.stop()
    raw = b"Subject: patience\r\n\r\ntext\r\n"
    if rig.way == "before":
        with pytest.raises((smtplib.SMTPDataError, smtplib.SMTPRecipientsRefused)) as refused:
            rig.send(raw, ["alice@example.org"])
        assert "4" in str(getattr(refused.value, "smtp_code", 451))[:1]
        rig.daemon.start()
        rig.send(raw, ["alice@example.org"])
    else:
        rig.send(raw, ["alice@example.org"])
        until(lambda: "status=deferred" in rig.log())
        rig.daemon.start()
    until(lambda: rig.delivered("alice", "patience"))
    assert "status=bounced" not in rig.log()


def report_of(raw, sender, to):
    """A message forwarded as an attachment."""
    report = EmailMessage()
    report["From"], report["To"], report["Subject"] = sender, to, "Fwd: look"
    report.set_content("this one\n")
    report.add_attachment(email.message_from_bytes(raw))
    return report.as_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def with_feedback(rig):
    """The recipe for feedback by mail."""
    post = f"127.0.0.1:{rig.port['post']}"
    main = snippet("postfix.md", "Feedback by mail", "main.cf")
    rig.main += changed(main, {"[127.0.0.1]:10027": f"[127.0.0.1]:{rig.port['post']}"})
    rig.master += snippet("postfix.md", "Feedback by mail", "master.cf")
    toml = snippet("postfix.md", "Feedback by mail", "spamnb.toml")
    return changed(toml, {"127.0.0.1:10027": post})


def test_only_users_teach_by_mail(model, tmp_path):
    """Reports of a logged-in user count under that user; Postfix refuses those of strangers."""
    for rig in running(model, tmp_path, "before", with_feedback):

        def newest(rig=rig):
            return rig.daemon.spamnb("journal", "--limit", "1", "--json")

        before = newest()
        rig.send(mail_of("spam", 7), ["alice@example.org"])
        junk = until(lambda rig=rig: rig.delivered("alice", "X-Spam-Flag", ".Junk"))[0]
        for to in ("spam@example.org", "ham@example.org"):
            with pytest.raises(smtplib.SMTPRecipientsRefused):
                rig.send(report_of(junk, "alice@example.org", to), [to], sender="alice@example.org")
        assert newest() == before
        rig.submit(report_of(junk, "alice@example.org", "ham@example.org"),
                   ["ham@example.org"], "alice")  # fmt: skip
        until(lambda newest=newest, before=before: newest() != before)
        event = newest()
        assert '"user": "alice' in event
        assert '"after": "ham"' in event
        assert '"channel": "address"' in event


def trusts(rig):
    """What the reports so far were worth, in order."""
    lines = rig.daemon.log.read_text().splitlines()
    return [word for line in lines for word in line.split() if word.startswith("trust=")]


def test_only_a_login_makes_a_report_that_of_a_user(model, tmp_path):
    """Reports of an authenticated webmail count for its user, those of sendmail do not."""
    for rig in running(model, tmp_path, "before", with_feedback):
        report = report_of(mail_of("spam", 6), "alice@example.org", "spam@example.org")
        rig.submit(report, ["spam@example.org"], "alice")
        until(lambda rig=rig: trusts(rig) == ["trust=user"], what="the user's report")
        rig.sendmail(report, "spam@example.org", sender="alice@example.org")
        until(lambda rig=rig: len(trusts(rig)) == 2, what="the program's report")
        assert trusts(rig) == ["trust=user", "trust=stranger"]


def test_in_front_of_delivery_each_recipient_has_a_reply(model, tmp_path):
    """LMTP on both sides: Dovecot refuses one of two, and Postfix bounces that one alone."""
    for rig in running(model, tmp_path, "lmtp"):
        rig.send(mail_of("ham", 7), ["alice@example.org", "bob@example.org"])
        until(lambda rig=rig: rig.delivered("alice", "X-Spam-Flag: NO"))
        until(lambda rig=rig: rig.delivered("bob", "X-Spam-Flag: NO"))
        # Postfix knows the recipient nobody, Dovecot does not.
        to = ["alice@example.org", "nobody@example.org"]
        rig.send(b"Subject: for one\r\n\r\nx\r\n", to)
        until(lambda rig=rig: "status=bounced" in rig.log())
        sent = "status=sent (250 2.0.0 <alice@example.org>"
        until(lambda rig=rig, sent=sent: rig.log().count(sent) == 2)
        bounced = [line for line in rig.log().splitlines() if "status=bounced" in line]
        assert len(bounced) == 1
        assert "to=<nobody@example.org>" in bounced[0]
