"""Forged and true results of authentication through other MTAs, as the documentation says.

Exim and OpenSMTPD ask about a message that has their own Received field; Exim may write a result
above it. Sendmail asks the border, OpenDKIM and spamnb as milters.
"""

import json
import shutil
import smtplib
from contextlib import suppress
from functools import partial

import pytest
from support.cli import forked
from support.docs_snippets import changed, snippet
from support.exim import AskingExim, Exim, needs_scanning_exim
from support.filtering import daemon_in, short_home
from support.forged_results import DOMAIN, SITE, VARIANTS, forged
from support.opensmtpd import OpenSmtpd, needs_opensmtpd
from support.postfix import Daemon, free_ports, started
from support.sendmail import Sendmail, needs_sendmail
from support.verifiers import needs_opendkim, opendkim, signed
from support.waiting import until

RESULTS = "Results of authentication"
BOSS = f"boss@{DOMAIN}"
LOCAL = f"""
[local]
hosts = ["{SITE}"]
authserv_ids = ["{SITE}"]
[rules]
allow = "{{allow}}"
"""
VERIFIED = f"""
  warn senders = {BOSS}
       add_header = :at_start:Authentication-Results: {SITE}; spf=pass smtp.mailfrom=$sender_address
"""
"""Exim in place of a program that checks SPF"""


WAYS = {
    "after the queue": Exim,
    "protocol of spamd": lambda: AskingExim("protocol of spamd"),
    "protocol of rspamd": lambda: AskingExim("protocol of rspamd"),
}


def settings(folder):
    """Names of the site, and a sender that all want."""
    allow = folder / "allow"
    allow.write_text(f"domain {DOMAIN}\n")
    return LOCAL.format(allow=allow)


def allowed(rows):
    """Subjects of messages that the list has let pass."""
    notes = [row["notes"] for row in rows]
    return [note["subject"] for note in notes if note.get("list", "").startswith("allow")]


@needs_scanning_exim
@pytest.mark.parametrize("way", WAYS)
def test_exim(way, trained, tmp_path_factory):
    """None of 60 forged results is believed; the one that Exim wrote at the start is."""
    folder, exim = tmp_path_factory.mktemp("auth"), WAYS[way]()
    shutil.copytree(trained, folder / "home", ignore=shutil.ignore_patterns("*.sock"))
    exim.daemon = Daemon(folder, exim.settings() + settings(folder))
    with started(exim):
        parts = exim.parts()
        exim.configure(parts | {"acl": parts.get("acl", "") + VERIFIED})
        exim.reload()
        for name in VARIANTS:
            exim.send(forged(name, f"forged {name} end"), ["alice@example.org"])
        exim.send(forged("", "true"), ["alice@example.org"], sender=BOSS)
        until(lambda: exim.delivered("alice", "Subject: true\n"), "the true message")
        for name in VARIANTS:
            until(partial(exim.delivered, "alice", f"Subject: forged {name} end\n"), name)
        rows = exim.daemon.spamnb("history", "--json", "--limit", "0").splitlines()
    rows = [json.loads(row) for row in rows]
    assert len(rows) == len(VARIANTS) + 1
    assert allowed(rows) == ["true"]


@needs_opensmtpd
def test_opensmtpd(trained):
    """None of 60 forged results is believed: OpenSMTPD's own field is on top, with its id."""
    with short_home(trained) as home:
        more = settings(home)
        with daemon_in(home, more), OpenSmtpd(home / "scan.sock").ready() as mta:
            sent = [one for one in VARIANTS if mta.send(forged(one, f"forged {one} end"))[0] == 250]
            for name in sent:
                tag = f"forged {name} end".encode()
                until(partial(mta.delivered, tag), name)
        rows = [json.loads(row) for row in forked(home, "history", "--json", "--limit", "0").lines]
    refused = set(VARIANTS) - set(sent)  # by OpenSMTPD itself
    assert refused <= {"very long", "after a line that is no field"}
    assert len(rows) >= len(sent)
    assert allowed(rows) == []


@needs_sendmail
@needs_opendkim
def test_sendmail(trained, tmp_path_factory):
    """None of 60 forged results is believed; those of OpenDKIM behind the border are."""
    folder, sendmail = tmp_path_factory.mktemp("auth"), Sendmail()
    shutil.copytree(trained, folder / "home", ignore=shutil.ignore_patterns("*.sock"))
    (border,) = free_ports(1)
    listener = snippet("milter.md", RESULTS, "spamnb.toml").partition("[listener.border]")
    toml = changed("".join(listener[1:]), {"10024": str(border)})
    sendmail.daemon = Daemon(folder, sendmail.settings() + toml + settings(folder))
    with opendkim(tmp_path_factory.mktemp("opendkim"), [DOMAIN]) as verifier:
        lines = snippet("milter.md", RESULTS, "sendmail.mc")
        sendmail.filters = changed(lines, {"10024": str(border), "8891": str(verifier)})
        with started(sendmail):
            taken = []
            for name in VARIANTS:
                with suppress(smtplib.SMTPDataError):  # Sendmail itself refuses a few
                    sendmail.send(forged(name, f"forged {name} end"), ["alice@example.org"])
                    taken.append(name)
            assert set(VARIANTS) - set(taken) <= {"very long", "after a bare CR", "after a NUL"}
            true = [f"true {number} end" for number in range(24)]  # OpenDKIM shows the signature
            for tag in true:
                sendmail.send(signed(forged("", tag), DOMAIN), ["alice@example.org"])
            for tag in (*true, *(f"forged {name} end" for name in taken)):
                sendmail.relayed(f"Subject: {tag}\r\n")
            rows = sendmail.daemon.spamnb("history", "--json", "--limit", "0").splitlines()
    rows = [json.loads(row) for row in rows]
    assert len(rows) >= len(taken) + len(true)
    assert sorted(allowed(rows)) == sorted(true)
