"""The check of senders in the whole daemon: a real name server, mail by SMTP, faults of both."""

import email
import http.client
import json
import smtplib

from support.cli import HAM, SAMPLE, SPAM
from support.cli import forked as spamnb
from support.daemon import delivered, environment, serve, settings_in
from support.names import name_server
from support.signing import Signer
from support.waiting import LIMIT_S, until

from spamnb import Filter
from spamnb.mail.envelope import LocalHosts

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
        log = daemon.wait_for("message", auth="spf=pass shop.example, dkim=pass shop.example, "
                              "dmarc=pass shop.example")  # fmt: skip
        assert log["verdict"] in ("ham", "spam")
        (found,) = results(sent(daemon, tmp_path, raw_of(2), client="198.51.100.9"))
        assert found == (
            f"{SITE}; spf=fail smtp.mailfrom=shop.example; dkim=none; dmarc=fail"
            " header.from=shop.example policy.dmarc=reject"
        )
        assert daemon.stop() == 0
    rows = map(json.loads, spamnb(tmp_path / "home", "history", "--json").lines)
    assert {row["notes"]["auth"].partition(",")[0] for row in rows} == {
        "spf=pass shop.example",
        "spf=fail shop.example",
    }
    (seen,) = map(json.loads, spamnb(tmp_path / "home", "senders", "seen", "--json").lines)
    counts = ("domain", "messages", "checked", "authentic")
    assert [seen[name] for name in counts] == ["shop.example", 2, 2, 1]
    lines = spamnb(tmp_path / "home", "senders", "seen").lines
    assert lines[0].split() == ["domain", "messages", "filed", "authentic", "first", "last"]
    assert lines[1].split()[:4:3] == ["shop.example", "50%"]


def test_a_stored_message_has_the_features_of_its_scan(tmp_path):
    """The delivered copy has the probability of the scan, also without the field of a stranger."""
    with name_server(ZONE) as server, started(tmp_path, server).ready() as daemon:
        daemon.wait_for("senders are checked")
        copies = [
            sent(daemon, tmp_path, SIGNER.sign(raw_of(3))),
            sent(daemon, tmp_path, raw_of(4), client="198.51.100.9"),
        ]
        assert daemon.stop() == 0
    local = LocalHosts(authserv_ids=(SITE,), domains=("example.org",))
    words = []
    with Filter.open(tmp_path / "home", readonly=True, local=local) as model:
        for raw in copies:
            said = email.message_from_bytes(raw)["X-Spamnb-Verdict"]
            verdict = model.score(raw)
            assert f"p={verdict.probability:.4f}" in said
            forged = raw.replace(b"spf=pass", b"spf=none").replace(b"spf=fail", b"spf=pass")
            assert model.score(forged).spam_log_odds != verdict.spam_log_odds  # no proof any more
            words.append({clue.token for clue in verdict.clues(10_000)})
    assert "author shop.example authentic" in words[0]
    assert "author shop.example not authentic" in words[1]


def test_the_default_name_is_of_this_program_alone(tmp_path):
    """Without local.authserv_ids the fields of other servers stay; one under its name does not."""
    with name_server(ZONE) as server:
        home = tmp_path / "home"
        assert spamnb(home, "train", HAM, SPAM).code == 0
        more = MORE.format(resolver=server.address, wait_s=2.0)
        more = more.replace(f'authserv_ids = ["{SITE}"]', "")
        config = settings_in(tmp_path, more=more, serve='hostname = "mx.example.org"')
        with serve(tmp_path, config=config, env=CHECKED).ready() as daemon:
            daemon.wait_for("senders are checked")
            other = b"Authentication-Results: mx.example.org; dkim=pass header.d=bank.example\r\n"
            forged = other.replace(b"mx.", b"spamnb.mx.")
            found = results(sent(daemon, tmp_path, forged + other + raw_of(7)))
            assert [one.partition(";")[0] for one in found] == ["spamnb.mx.example.org", SITE]
            assert "bank" not in found[0]
            assert daemon.stop() == 0


def test_a_wanted_sender_is_one_who_is_authentic(tmp_path):
    """No other verifier is needed; the same address without proof stays what the model says."""
    spam = min((SAMPLE / "spam").iterdir()).read_bytes()
    body = spam.partition(b"\n\n")[2].replace(b"\n", b"\r\n")
    head = b"From: news@shop.example\r\nSubject: win money\r\nMessage-ID: <%d@shop.example>\r\n\r\n"
    with name_server(ZONE) as server, started(tmp_path, server).ready() as daemon:
        daemon.wait_for("senders are checked")
        done = spamnb(tmp_path / "home", "senders", "add", "wanted", "shop.example")
        assert done.code == 0, done.err
        true = sent(daemon, tmp_path, SIGNER.sign(head % 1 + body))
        forged = sent(daemon, tmp_path, head % 2 + body, client="198.51.100.9")
        assert b"reason=wanted-by-site" in true
        assert b"reason=wanted" not in forged
        assert daemon.stop() == 0


def test_a_client_of_a_scanner_gets_the_verdict_of_the_relay(tmp_path):
    """The protocol of rspamd names client, sender and HELO; the reply has no proof."""
    scanner = '[listener.ask]\nprotocol = "scanner"\naddress = "127.0.0.1:0"\n'
    with name_server(ZONE) as server:
        home = tmp_path / "home"
        assert spamnb(home, "train", HAM, SPAM).code == 0
        more = MORE.format(resolver=server.address, wait_s=2.0) + scanner
        config = settings_in(tmp_path, more=more)
        with serve(tmp_path, config=config, env=CHECKED).ready() as daemon:
            daemon.wait_for("senders are checked")
            raw = raw_of(5)
            copy = sent(daemon, tmp_path, raw, client="198.51.100.9")
            asked = http.client.HTTPConnection("127.0.0.1", daemon.port("ask"), timeout=LIMIT_S)
            named = {"IP": "198.51.100.9", "From": "news@shop.example", "Helo": "x.example"}
            asked.request("POST", "/checkv2", raw, named)
            reply = json.loads(asked.getresponse().read())
            asked.close()
            status = "".join(email.message_from_bytes(copy)["X-Spam-Score"].split())
            assert f"{reply['score']:.1f}" == status
            assert "Results" not in json.dumps(reply)
            assert daemon.stop() == 0


def test_a_filter_without_a_daemon_finds_what_the_relay_finds(tmp_path):
    """The client is in the Received field of the site's server; a correction has the results."""
    raw = SIGNER.sign(raw_of(5))
    received = f"Received: from x.example (x.example [192.0.2.7])\r\n\tby {SITE}; now\r\n"
    home, config = tmp_path / "home", tmp_path / "alone.toml"
    with name_server(ZONE) as server:
        with started(tmp_path, server).ready() as daemon:
            daemon.wait_for("senders are checked")
            sent(daemon, tmp_path, raw)
            assert daemon.stop() == 0
        hosts = MORE.replace("[local]", f'[local]\nhosts = ["{SITE}"]')
        config.write_text(hosts.format(resolver=server.address, wait_s=2.0))
        stored = received.encode() + raw
        asked = ("--config", config, "filter", "--sender", "news@shop.example")
        done = spamnb(home, *asked, stdin=stored, SPAMNB_AUTH_VERIFY="true")
        assert done.code == 0, done.err
        seen = spamnb(home, "--config", config, "history", "--json").json
    assert "dkim=pass shop.example" in seen[0]["notes"]["auth"]
    assert [one["notes"]["auth"] for one in seen] == [seen[0]["notes"]["auth"]] * 2
    done = spamnb(home, "--config", config, "correct", "spam", "-", "--json", stdin=stored)
    assert done.code == 0, done.err
    with Filter.open(home) as model, model.store.read() as view:
        scored = next(model.history.newest())
        taught = view.event(done.json[0]["event"])
    assert [list(one) for one in taught.ids] == [list(one) for one in scored.ids]


def test_name_servers_that_fail_while_mail_arrives(tmp_path):
    """Each message is delivered once; what is not known is temperror."""
    with name_server(ZONE) as server, started(tmp_path, server, wait_s=0.3).ready() as daemon:
        daemon.wait_for("senders are checked")
        server.gone = True
        for number in range(10, 18):
            sender = f"a@d{number}.example"
            raw = raw_of(number, sender)
            (found,) = results(sent(daemon, tmp_path, raw, sender=sender))
            assert "spf=temperror" in found
            assert "dmarc=temperror" in found
        assert daemon.stop() == 0


def test_without_a_name_server_mail_is_as_before(tmp_path):
    """The daemon says so, and adds nothing."""
    with name_server({}) as server:
        server.gone = True
        with started(tmp_path, server, wait_s=0.3).ready() as daemon:
            daemon.wait_for("senders are not checked")
            copy = sent(daemon, tmp_path, SIGNER.sign(raw_of(6)))
            assert results(copy) == []
            assert b"X-Spamnb-Results" not in copy
            assert daemon.stop() == 0


PEOPLE = """
[persons]
enabled = true
[scan]
own_clients = ["203.0.113.0/24"]
"""


def letter(number, to="news@shop.example"):
    head = f"From: Bob Miller <bob@example.org>\r\nTo: {to}\r\nSubject: dear {number}\r\n"
    return f"{head}Message-ID: <own{number}@example.org>\r\n\r\nhello\r\n".encode()


def known(raw):
    """How the author is known, as the message says; empty if it does not."""
    return "".join(results(raw)).partition("x-known=")[2]


def test_people_whom_one_writes_to_are_known(tmp_path):
    """Own mail teaches it; a forged author, another person and several recipients get nothing.

    The name of a user at another address is a result for all recipients.
    """
    with name_server(ZONE) as server:
        home = tmp_path / "home"
        assert spamnb(home, "train", HAM, SPAM).code == 0
        more = MORE.format(resolver=server.address, wait_s=2.0) + PEOPLE
        config = settings_in(tmp_path, more=more)
        with serve(tmp_path, config=config, env=CHECKED).ready() as daemon:
            daemon.wait_for("senders are checked")
            assert known(sent(daemon, tmp_path, SIGNER.sign(raw_of(20)))) == ""

            def send(raw, sender, to, client):
                with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as peer:
                    peer.ehlo()
                    peer.docmd("XFORWARD", f"ADDR={client} SOURCE=REMOTE")
                    peer.sendmail(sender, to, raw)

            send(letter(1), "bob@example.org", ["news@shop.example", "dan@example.org"],
                 "203.0.113.5")  # fmt: skip
            until(lambda: known(sent(daemon, tmp_path, SIGNER.sign(raw_of(21)))), "bob's letter")
            assert known(sent(daemon, tmp_path, SIGNER.sign(raw_of(22)))) == "correspondent"
            answer = b"In-Reply-To: <own1@example.org>\r\n" + raw_of(23)
            assert known(sent(daemon, tmp_path, SIGNER.sign(answer))) == "reply"
            forged = b"In-Reply-To: <own1@example.org>\r\n" + raw_of(24)
            assert known(sent(daemon, tmp_path, forged, client="198.51.100.9")) == ""
            both = SIGNER.sign(raw_of(25))
            send(both, "news@shop.example", ["bob@example.org", "dan@example.org"], "192.0.2.7")
            ident = email.message_from_bytes(both)["Message-ID"]
            (copy,) = until(lambda: delivered(tmp_path, ident, "dan"), "the copy of dan")
            assert known(copy) == ""
            for number, author, is_named in (
                (26, '"Miller, Bob" <boss@evil.example>', True),
                (27, "bob MILLER <news@shop.example>", True),
                (28, "Bob Miller <bob@example.org>", False),
                (29, "Bob Milner <boss@evil.example>", False),
                (30, "Bob <boss@evil.example>", False),
            ):
                copy = sent(daemon, tmp_path, raw_of(number, author), client="198.51.100.9")
                assert ("x-name=user" in results(copy)[0]) is is_named, author
            assert daemon.stop() == 0
        config_flags = ("--config", config)
        done = spamnb(home, *config_flags, "persons", "erase", "--yes", "bob")
        assert "5 correspondents" in done.out, done.out + done.err


def test_sent_mail_is_read_from_folders(tmp_path):
    """`spamnb train --sent` names whom a person writes to, and refuses what would be unclear."""
    home, folder = tmp_path / "home", tmp_path / "sent"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.eml").write_bytes(letter(number, f"a{number}@x.example"))
    (folder / "auto.eml").write_bytes(b"Auto-Submitted: auto-replied\r\n" + letter(4))
    assert spamnb(home, "train", HAM, SPAM).code == 0
    done = spamnb(home, "train", "--sent", folder)
    assert done.lines == ["4 messages: 3 correspondents, 1 messages are no letters"]
    assert spamnb(home, "train", "--sent", folder, HAM, SPAM).code == 2
    assert spamnb(home, "train", "--sent", folder, "--person", "ann").code == 2
    config = settings_in(tmp_path, more=MORE.format(resolver="127.0.0.1", wait_s=1) + PEOPLE)
    assert spamnb(home, "--config", config, "train", "--sent", folder).code == 2
    done = spamnb(home, "--config", config, "train", "--sent", folder, "--person", "bob", "--json")
    assert json.loads(done.out) == {"messages": 4, "correspondents": 3, "skipped": 1}
