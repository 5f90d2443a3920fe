"""Feedback of strangers to a running daemon: their signatures, and the replies."""

import re
import smtplib
from email.message import EmailMessage

import pytest
from support.daemon import delivered, serve, settings_in
from support.waiting import LIMIT_S

from spamnb.operations.protocol import ControlClient

SCAN = '[scan]\nown_clients = ["198.51.100.0/24"]\n[feedback]\nstranger_per_day = {most}\n'
OWN = "ADDR=198.51.100.7"
SIGNATURE = re.compile(rb"(?m)^X-Spamnb-Signature: (s[a-z2-7]{26})\r?$")


@pytest.fixture
def site(home):
    """A daemon in observe mode; its next hop takes mail for every domain, and reports."""
    running = []

    def start(most=20):
        hop = f"unix:{home}/post.sock"
        config = settings_in(
            home,
            listener=f'upstream = "{hop}"\nobserve = true\n',
            delivery=f'[delivery]\naddress = "{hop}"\n',
            more=SCAN.format(most=most),
        )
        running.append(serve(home, config=config))
        return running[-1].ready()

    yield start
    for one in running:
        one.__exit__()


def handed_in(daemon, raw, to, sender="carl@far.example", xforward=""):
    """Send a message; the last reply."""
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
        client.ehlo()
        if xforward:
            assert client.docmd("XFORWARD", xforward)[0] == 250
        assert client.mail(sender)[0] == 250
        assert client.rcpt(to)[0] == 250
        code, text = client.data(raw)
        return f"{code} {text.decode()}"


def stamped(home, daemon, number, to, **how):
    """The signature in a message as its recipient has it; empty if there is none."""
    raw = f"Subject: offer\nMessage-ID: <{number}@far.example>\n\nwords{number} of gardens\n"
    assert handed_in(daemon, raw.encode(), to, **how).startswith("250")
    (copy,) = delivered(home, f"<{number}@far.example>", to.partition("@")[0])
    found = SIGNATURE.search(copy)
    return found[1].decode() if found else ""


def reported(daemon, signature, sender):
    """Report a message by its signature, from elsewhere; the reply."""
    mail = EmailMessage()
    mail["Subject"], mail["From"] = "Fwd", sender
    mail.set_content(f"> X-Spamnb-Signature: {signature}\n")
    return handed_in(daemon, mail.as_bytes(), "spam@example.org", sender, "ADDR=192.0.2.9")


def answer(home, op="status", **fields):
    with ControlClient(home / "home" / "control.sock") as caller:
        return caller.ask(op, **fields).header


def test_outgoing_mail_gives_outsiders_nothing_to_teach_with(home, site):
    """Mail of own clients has no signature; one that reached an outsider otherwise waits."""
    daemon = site()
    assert stamped(home, daemon, 1, "eve@out.example", xforward=OWN) == ""
    assert stamped(home, daemon, 2, "eve@out.example", xforward="SOURCE=LOCAL") == ""
    signature = stamped(home, daemon, 3, "eve@out.example")
    before = answer(home)["status"]["model"]["events"]
    for sender in ("eve@out.example", "eve", "eve@OUT.example."):
        reported(daemon, signature, sender)
    assert answer(home)["status"]["model"]["events"] == before
    assert answer(home, "review", do="list")["entries"] > 0


def test_a_sender_gets_a_reply_on_what_became_of_a_report(home, site):
    """Bob's second report is above his daily quota: the reply is temporary, not a success."""
    daemon = site(most=1)
    mine = [stamped(home, daemon, number, "bob@example.org") for number in (1, 2)]
    theirs = [stamped(home, daemon, number, "eve@out.example") for number in (3, 4)]
    replies = [reported(daemon, one, "eve@out.example") for one in theirs]
    assert replies[0] == "250 2.0.0 Report accepted, thank you"
    assert replies[1] == "250 2.0.0 Received, but nothing was learnt from it"
    replies = [reported(daemon, one, "bob@example.org") for one in mine]
    assert replies[0] == "250 2.0.0 Report accepted, thank you"
    assert replies[1].startswith("450 4.7.1 Report not learnt")
