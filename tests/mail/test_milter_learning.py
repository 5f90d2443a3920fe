"""Mail that came by the milter is learnt when a user of a real Dovecot files it."""

import email
import json

import pytest
from support.cli import undated
from support.docs_snippets import changed, snippet
from support.dovecot import SAMPLE, Person, move, with_teaching
from support.postfix import Daemon, Rig, needs_rig, started
from support.waiting import until

pytestmark = needs_rig

MORE = '[serve]\ndelegates = ["mail"]\n[feedback]\nspool = "{spool}"\n'


@pytest.fixture
def site(tmp_path):
    """Postfix, Dovecot and the daemon, by docs/milter.md and docs/dovecot.md."""
    rig = Rig()
    spool = rig.root / "spool"
    with_teaching(rig, spool)
    here = {"127.0.0.1:10025": f"127.0.0.1:{rig.port['filter']}"}
    rig.master = f"127.0.0.1:{rig.port['mx']} inet n - n - - smtpd\n"
    rig.main += changed(snippet("milter.md", "Postfix", "main.cf"), here)
    toml = changed(snippet("milter.md", "The listener", "spamnb.toml"), here)
    rig.daemon = Daemon(tmp_path, toml + MORE.format(spool=spool))
    rig.daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
    with started(rig):
        yield rig


def counts(daemon):
    """The exported model: all counts."""
    path = daemon.home.parent / "export"
    daemon.spamnb("export", path)
    return undated(path.read_text())


def learnt(daemon):
    """The events of the users' labels, newest first."""
    lines = daemon.spamnb("journal", "--limit", "0", "--channel", "imap", "--json").splitlines()
    return [json.loads(line) for line in lines]


def test_a_move_to_junk_is_learnt_and_undone(site):
    """The label is that of the scanned message; undoing it restores every count."""
    raw = sorted((SAMPLE / "ham").iterdir())[5].read_bytes().replace(b"\n", b"\r\n")
    ident = "by-the-milter@example.net"
    other = email.message_from_bytes(raw)["Message-ID"].encode()
    raw = raw.replace(other, f"<{ident}>".encode()) + b"words of a newsletter\r\n"
    site.send(raw, ["alice@example.org"])
    (delivered,) = until(lambda: site.delivered("alice", ident))
    signature = email.message_from_bytes(delivered)["X-Spamnb-Signature"]
    before = counts(site.daemon)
    alice = Person(site, "alice")
    alice.imap.select("INBOX")
    (number,) = alice.imap.search(None, "HEADER", "Message-ID", ident)[1][0].split()
    move(alice.imap, number.decode(), "Junk")
    alice.imap.logout()
    (event,) = until(lambda: learnt(site.daemon), what="the label")
    assert (event["message_id"], event["before"], event["after"]) == (ident, None, "spam")
    assert event["user"].startswith("alice")
    verdicts = site.daemon.spamnb("history", "--json", "--limit", "0").splitlines()
    assert (signature, event["digest"]) in [
        (one["signature"], one["id"]) for one in map(json.loads, verdicts)
    ]
    assert counts(site.daemon) != before
    site.daemon.spamnb("undo", event["event"])
    assert counts(site.daemon) == before
