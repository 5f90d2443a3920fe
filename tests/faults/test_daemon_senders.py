"""Lists of senders in the whole daemon: mail by SMTP, changes over the control socket."""

import email
import json
import smtplib

import pytest
from support.cli import HAM, SAMPLE, SPAM
from support.cli import forked as spamnb
from support.daemon import delivered, serve, settings_in
from support.waiting import LIMIT_S, until

from spamnb.errors import RefusedError, UserError
from spamnb.operations.protocol import ControlClient

MORE = """
[local]
domains = ["example.org"]
hosts = ["mx.example.org"]
authserv_ids = ["mx.example.org"]
[persons]
enabled = true
"""
RAW = (SAMPLE / "spam" / "0119.eml").read_bytes()
IDENT = email.message_from_bytes(RAW)["Message-ID"]
HOP = b"Received: from shop.example ([192.0.2.7]) by mx.example.org; now\n"
PASSED = b"Authentication-Results: mx.example.org; spf=pass smtp.mailfrom=shop.example\n" + HOP


def shown(daemon, folder, name, raw=RAW, sender="news@shop.example"):
    """Send one message; return flag and verdict of the copy of a user."""
    before = len(delivered(folder, IDENT, name))
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
        client.ehlo()
        assert client.docmd("XFORWARD", "ADDR=192.0.2.7 SOURCE=REMOTE")[0] == 250  # as an MTA does
        client.sendmail(sender, [f"{name}@example.org"], raw)
    until(lambda: len(delivered(folder, IDENT, name)) > before, f"mail for {name}")
    place = (folder / "home" / "mail" / name).rglob("new/*")
    newest = max(place, key=lambda path: path.stat().st_mtime_ns)
    message = email.message_from_bytes(newest.read_bytes())
    return message["X-Spam-Flag"], "".join(message["X-Spamnb-Verdict"].split())


def test_a_daemon_keeps_lists_of_senders(tmp_path):
    """A change holds from the next message on, for its owner alone, until its opposite."""
    home = tmp_path / "home"
    assert spamnb(home, "train", HAM, SPAM).code == 0
    config = settings_in(tmp_path, more=MORE)

    def senders(*words):
        done = spamnb(home, "--config", config, "senders", *words)
        assert done.code == 0, done.err
        return done

    with serve(tmp_path, config=config).ready() as daemon:
        assert shown(daemon, tmp_path, "bob")[0] == "YES"
        senders("add", "--person", "bob@example.org", "wanted", "shop.example")
        flag, verdict = shown(daemon, tmp_path, "bob", PASSED + RAW)
        assert (flag, "reason=wanted-by-person" in verdict) == ("NO", True)
        assert shown(daemon, tmp_path, "bob")[0] == "YES"  # forged
        assert shown(daemon, tmp_path, "ann", PASSED + RAW)[0] == "YES"
        with ControlClient(home / "control.sock", LIMIT_S) as caller:
            user = {"for": "ann", "trust": "user"}
            answer = caller.ask("sender", RAW, word="unwanted", **user).header
            assert (answer["state"], answer["facts"]["owner"]) == ("listed", "ann")
            for other in ({"person": "bob"}, {"domain": "example.org"}):
                with pytest.raises(RefusedError):
                    caller.ask("sender", word="wanted", sender="x.example", **user, **other)
            with pytest.raises(RefusedError):
                caller.ask("sender", word="wanted", sender="x.example", **{"for": "x@y.example",
                           "trust": "stranger"})  # fmt: skip
            with pytest.raises(UserError):
                caller.ask("sender", word="perhaps", sender="x.example")
            (mine,) = caller.ask("senders", **user).body.splitlines()
            assert b'"owner": "ann"' in mine
        log = daemon.wait_for("sender listed")
        assert "shop.example" in str(log)
        done = senders("remove", "--person", "bob", "shop.example")
        assert done.lines == ["person bob: shop.example is not listed, was wanted"]
        assert shown(daemon, tmp_path, "bob", PASSED + RAW)[0] == "YES"
        assert daemon.stop() == 0
    assert spamnb(home, "check").code == 0
    assert len(senders("list").lines) == 1


def test_a_forged_result_opens_no_list(tmp_path):
    """A stranger's result below the MTA's hop, for lists of the site, a person, the administrator.

    The same result above the hop opens each of the lists.
    """
    home, allow = tmp_path / "home", tmp_path / "allow"
    assert spamnb(home, "train", HAM, SPAM).code == 0
    allow.write_text("domain boss.example\n")
    config = settings_in(tmp_path, more=f'{MORE}[rules]\nallow = "{allow}"\n')
    for words in (("site.example",), ("--person", "bob@example.org", "own.example")):
        *owner, sender = words
        done = spamnb(home, "--config", config, "senders", "add", *owner, "wanted", sender)
        assert done.code == 0, done.err
    spam = [path.read_bytes() for path in sorted((SAMPLE / "spam").iterdir())[:30]]
    domains = ("site.example", "own.example", "boss.example")
    with serve(tmp_path, config=config).ready() as daemon:
        with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
            client.ehlo()
            for domain in domains:
                field = PASSED.removesuffix(HOP).replace(b"shop.example", domain.encode())
                for raw in (*(HOP + field + HOP + one for one in spam), field + HOP + spam[0]):
                    client.docmd("XFORWARD", "ADDR=192.0.2.7 SOURCE=REMOTE")
                    client.sendmail(f"x@{domain}", ["bob@example.org"], raw)
        assert daemon.stop() == 0
    rows = map(json.loads, spamnb(home, "history", "--json", "--limit", "0").lines)
    opened = [row["notes"]["from"] for row in rows if "list" in row["notes"]]
    assert sorted(opened) == sorted(f"x@{domain}" for domain in domains)
