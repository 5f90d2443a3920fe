"""The check of senders in the whole daemon: a real name server, mail by SMTP, faults of both."""

import email
import smtplib

from support.cli import HAM, SAMPLE, SPAM
from support.cli import forked as spamnb
from support.daemon import delivered, environment, serve, settings_in
from support.names import name_server
from support.signing import Signer
from support.waiting import LIMIT_S, until

SITE = "mx.example.org"
MORE = """
[local]
domains = ["example.org"]
authserv_ids = ["mx.example.org"]
[auth]
resolvers = ["{resolver}"]
wait_s = {wait_s}
"""
SIGNER = Signer("shop.example")
ZONE = SIGNER.zone() | {
    ("shop.example", "TXT"): ["v=spf1 ip4:192.0.2.7 -all"],
    ("_dmarc.shop.example", "TXT"): ["v=DMARC1; p=reject"],
}
CHECKED = environment(SPAMNB_AUTH_VERIFY="true")


def raw_of(number, sender="news@shop.example"):
    ham = sorted((SAMPLE / "ham").iterdir())[number].read_bytes()
    body = ham.partition(b"\n\n")[2].replace(b"\n", b"\r\n")
    head = f"From: {sender}\r\nTo: bob@example.org\r\nSubject: letter {number}\r\n"
    return f"{head}Message-ID: <{number}@shop.example>\r\n\r\n".encode() + body


def sent(daemon, folder, raw, client="192.0.2.7", sender="news@shop.example"):
    """Send a message as an MTA does; return the delivered copy."""
    ident = email.message_from_bytes(raw)["Message-ID"]
    before = len(delivered(folder, ident))
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as peer:
        peer.ehlo()
        assert peer.docmd("XFORWARD", f"ADDR={client} SOURCE=REMOTE")[0] == 250
        peer.sendmail(sender, ["bob@example.org"], raw)
    until(lambda: len(delivered(folder, ident)) > before, f"the message {ident}")
    return delivered(folder, ident)[-1]


def results(raw):
    fields = email.message_from_bytes(raw).get_all("Authentication-Results", [])
    return [" ".join(one.split()) for one in fields]


def started(folder, server, wait_s=2.0):
    home = folder / "home"
    assert spamnb(home, "train", HAM, SPAM).code == 0
    config = settings_in(folder, more=MORE.format(resolver=server.address, wait_s=wait_s))
    return serve(folder, config=config, env=CHECKED)


def test_a_daemon_checks_the_sender(tmp_path):
    """The results are in the message, and a forged copy under the site's name is not."""
    with name_server(ZONE) as server, started(tmp_path, server).ready() as daemon:
        daemon.wait_for("senders are checked")
        signed = SIGNER.sign(raw_of(1))
        forged = b"Authentication-Results: mx.example.org; dkim=pass header.d=bank.example\r\n"
        (found,) = results(sent(daemon, tmp_path, forged + signed))
        assert found == (
            f"{SITE}; spf=pass smtp.mailfrom=shop.example; dkim=pass header.d=shop.example"
            " header.s=s1 header.a=rsa-sha256; dmarc=pass header.from=shop.example"
            " policy.dmarc=reject"
        )
        (found,) = results(sent(daemon, tmp_path, raw_of(2), client="198.51.100.9"))
        assert found == (
            f"{SITE}; spf=fail smtp.mailfrom=shop.example; dkim=none; dmarc=fail"
            " header.from=shop.example policy.dmarc=reject"
        )
        assert daemon.stop() == 0
