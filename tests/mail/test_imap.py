"""`spamnb imap` with a real Dovecot: junk is moved, moves are learnt, no message is lost."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from contextlib import closing, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from support import dovecot_versions
from support.cli import PROGRAM, environment, spamnb
from support.daemon import serve, settings_in
from support.imap_rig import ImapRig, certificate, sample
from support.names import name_server
from support.postfix import needs_rig
from support.signing import Signer
from support.waiting import LIMIT_S, until

from spamnb import Filter

pytestmark = [needs_rig, pytest.mark.usefixtures("alone")]

KINDS = {
    "full": (),
    "without MOVE": ("MOVE",),
    "without MOVE, UIDPLUS": ("MOVE", "UIDPLUS"),
    "without IDLE": ("IDLE",),
}


@pytest.fixture(scope="module")
def cert(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def rigs(cert):
    """Servers with and without extensions, started when a test needs them."""
    made = {}

    def rig(kind):
        if kind not in made:
            made[kind] = ImapRig(*KINDS[kind], tls=cert)
        return made[kind]

    yield rig
    for one in made.values():
        one.stop()


@pytest.fixture
def boxes(rigs):
    """Makes mailboxes of new users."""
    made = []

    def box(kind="full"):
        made.append(rigs(kind).mailbox())
        return made[-1]

    yield box
    for one in made:
        one.imap.logout()


def once(home, config, *options):
    done = spamnb(home, "--config", config, "imap", "--once", "--json", *options)
    assert done.code == 0, done.err
    return done.json


def journal(home, config):
    """The labels learnt from moves, oldest first: (message id, label, number)."""
    words = ["journal", "--limit", "0", "--channel", "imap", "--json"]
    found = spamnb(home, "--config", config, *words)
    return [(one["message_id"], one["after"], one["event"]) for one in found.json][::-1]


@pytest.mark.parametrize("kind", ["full", "without MOVE"])
def test_junk_is_moved_and_moves_are_learnt(home, tmp_path, boxes, kind):
    """Junk is filed; old mail is not judged; each move is learnt once, and can be undone."""
    box = boxes(kind)
    config = box.settings(tmp_path)
    old, old_id = sample("spam", 1)
    box.append(old)
    assert once(home, config) == []
    (spam, spam_id), (ham, ham_id) = sample("spam", 2), sample("ham", 3)
    box.append(spam)
    box.append(ham)
    done = once(home, config)
    assert sorted((one["uid"], one["done"]) for one in done) == [(2, "moved"), (3, "judged")]
    assert (box.messages(), box.messages("Junk")) == ([old_id, ham_id], [spam_id])
    assert once(home, config) == []
    box.move(spam_id, "Junk", "INBOX")
    box.move(ham_id, "INBOX", "Junk")
    assert [one["state"] for one in once(home, config)] == ["learnt", "learnt"]
    assert once(home, config) == []
    events = journal(home, config)
    assert [event[:2] for event in events] == [(ham_id, "spam"), (spam_id, "ham")]
    assert (box.messages(), box.messages("Junk")) == ([old_id, spam_id], [ham_id])
    for *_, number in reversed(events):
        assert spamnb(home, "--config", config, "undo", number).code == 0
    assert once(home, config) == []


def test_a_move_teaches_the_results_that_were_scored(home, tmp_path, boxes, monkeypatch):
    """A mailbox keeps no field with the results, so the history does; see `rights`."""
    monkeypatch.setenv("SPAMNB_AUTH_VERIFY", "true")
    signer, box = Signer("shop.example"), boxes()
    raw, ident = sample("ham", 5)
    raw = re.sub(rb"(?im)^from:.*\n(?:[ \t].*\n)*", b"From: news@shop.example\n", raw, count=1)
    head, _, body = raw.partition(b"\n\n")
    head = b"Received: from x.example (x.example [192.0.2.7])\n\tby mx.example.org; now\n" + head
    raw = signer.sign((head + b"\n\n" + body).replace(b"\n", b"\r\n"))
    zone = signer.zone() | {("shop.example", "TXT"): ["v=spf1 ip4:192.0.2.7 -all"]}
    with name_server(zone) as server:
        (tmp_path / "spamnb.toml").write_text(
            f'[local]\nhosts = ["mx.example.org"]\nauthserv_ids = ["mx.example.org"]\n'
            f'[auth]\nresolvers = ["{server.address}"]\n'
        )
        config = box.settings(tmp_path)
        box.append(raw)
        once(home, config, "--existing")
        (verdict,) = spamnb(home, "--config", config, "history", "--json").json
        assert "dkim=pass shop.example" in verdict["notes"]["auth"]
        assert "dmarc=" in verdict["notes"]["auth"]
        folder = "INBOX" if box.messages() else "Junk"
        box.move(ident, folder, "Junk" if folder == "INBOX" else "INBOX")
        assert [one["state"] for one in once(home, config)] == ["learnt"]
    (_, _, number) = journal(home, config)[0]
    with Filter.open(home) as model, model.store.read() as view:
        (scored,) = model.history.newest()
        taught = view.event(number)
        assert [list(one) for one in taught.ids] == [list(one) for one in scored.ids]
        assert [list(one) for one in model.example(raw).ids] != [list(one) for one in scored.ids]


def test_without_move_and_uidplus_junk_is_flagged(home, tmp_path, boxes):
    """An expunge without UIDs would remove what the user has marked as deleted."""
    box = boxes("without MOVE, UIDPLUS")
    config = box.settings(tmp_path)
    (spam, spam_id), (other, other_id) = sample("spam", 4), sample("ham", 4)
    box.append(other)
    box.flag(other_id, r"\Deleted")
    box.append(spam)
    assert [one["done"] for one in once(home, config, "--existing")] == ["judged", "flagged"]
    assert (box.messages(), box.messages("Junk")) == ([other_id, spam_id], [])
    assert "$Junk" in box.flags(spam_id)


@pytest.mark.parametrize(("act", "flags"), [("flag", ["$Junk"]), ("nothing", [])])
def test_what_is_not_moved_stays_unseen(home, tmp_path, boxes, act, flags):
    """With `act` junk is flagged, or only logged."""
    box = boxes()
    config = box.settings(tmp_path, more=f'act = "{act}"\n')
    spam, spam_id = sample("spam", 5)
    box.append(spam)
    (done,) = once(home, config, "--existing")
    assert done["decision"] in ("junk", "reject")
    assert box.messages() == [spam_id]
    assert [flag for flag in box.flags(spam_id) if "Recent" not in flag] == flags


def test_two_mailboxes_are_read(home, tmp_path, boxes):
    """Each has its own folders, state and user; the model is one."""
    one, two = boxes(), boxes("without MOVE")
    one.settings(tmp_path, "one")
    config = two.settings(tmp_path, "two")
    (spam, spam_id), (ham, ham_id) = sample("spam", 6), sample("ham", 6)
    one.append(spam)
    two.append(ham)
    found = once(home, config, "--existing")
    assert [(done["account"], done["done"]) for done in found] == [
        ("one", "moved"),
        ("two", "judged"),
    ]
    one.move(spam_id, "Junk", "INBOX")
    two.move(ham_id, "INBOX", "Junk")
    assert [done["after"] for done in once(home, config)] == ["ham", "spam"]
    users = spamnb(home, "journal", "--limit", "2", "--json").json
    assert [event["user"] for event in users] == [two.user, one.user]


@pytest.mark.parametrize("tls", ["implicit", "starttls"])
def test_certificates_are_verified(home, tmp_path, boxes, rigs, cert, tls):
    """An unknown authority or another name is refused before the password is sent."""
    box = boxes()
    port = rigs("full").port_of(tls)
    config = box.settings(tmp_path, more=f'ca_file = "{cert[0]}"\n')
    text = config.read_text().replace('tls = "none"', f'tls = "{tls}"')
    text = re.sub("port = .*", f"port = {port}", text)

    def run(text):
        config.write_text(text)
        return spamnb(home, "--config", config, "imap", "--once")

    good = run(text.replace('"127.0.0.1"', '"localhost"'))
    assert good.code == 0, good.err
    for wrong in (text, re.sub("ca_file.*", "", text.replace('"127.0.0.1"', '"localhost"'))):
        done = run(wrong)
        assert done.code == 4
        assert "the certificate is not valid" in done.err
        assert "pw-" not in done.err


class Tokens(BaseHTTPRequestHandler):
    """A server that knows which user an access token belongs to, as Dovecot asks it."""

    known: ClassVar[dict[str, str]] = {}

    def do_GET(self):
        user = self.known.get(parse_qs(urlsplit(self.path).query)["token"][0], "")
        body = json.dumps({"active": bool(user), "user": user}).encode()
        self.send_response(200 if user else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.skipif(
    not dovecot_versions.missing() and dovecot_versions.version() != "2.3",
    reason="these settings of Dovecot are those of 2.3",
)
def test_an_access_token_is_a_login(home, tmp_path):
    """Dovecot asks a server whose token it is; one that has expired is refused in one line."""
    with HTTPServer(("127.0.0.1", 0), Tokens) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rig = ImapRig(tokens=f"http://127.0.0.1:{server.server_port}")
        try:
            box = rig.mailbox()
            config = box.settings(tmp_path, more='auth = "xoauth2"\n')
            (tmp_path / f"{box.user}.password").write_text("a-token\n")
            Tokens.known["a-token"] = box.user
            raw, ident = sample("spam", 4)
            box.append(raw)
            once(home, config, "--existing")
            assert ident in box.messages() + box.messages("Junk")
            del Tokens.known["a-token"]
            refused = spamnb(home, "--config", config, "imap", "--once")
            assert refused.code == 4
            assert "refuses the login" in refused.err
            assert "a-token" not in refused.err + refused.out
            box.imap.logout()
        finally:
            rig.stop()
            server.shutdown()


class Program:
    """`spamnb imap` as a program that runs until it is stopped."""

    def __init__(self, home, config):
        command = [*PROGRAM, "--home", home, "--config", config, "imap", "--existing"]
        self.process = subprocess.Popen(
            list(map(str, command)),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def stop(self, number=signal.SIGTERM):
        os.kill(self.process.pid, number)
        _, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, errors.decode()


@pytest.mark.parametrize("kind", ["full", "without MOVE"])
def test_killed_again_and_again_it_handles_each_message_once(home, tmp_path, boxes, kind):
    """Kill -9 at any time: the count of messages stays, junk is filed, nothing is learnt."""
    box = boxes(kind)
    config = box.settings(tmp_path)
    sent = [sample(label, number) for number in range(20) for label in ("spam", "ham")]
    for raw, _ in sent:
        box.append(raw)
    for messages in (1, 5, 9, 13):
        program = Program(home, config)
        until(lambda: program.process.poll() or len(box.messages("Junk")) >= messages, "moves")  # noqa: B023
        assert program.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    once(home, config, "--existing")
    everything = box.messages() + box.messages("Junk")
    assert sorted(everything) == sorted(ident for _, ident in sent)
    assert set(box.messages("Junk")) <= {ident for _, ident in sent[::2]}
    assert len(box.messages("Junk")) > 15
    assert journal(home, config) == []


@pytest.mark.parametrize("kind", ["full", "without IDLE"])
def test_it_watches_until_sigterm(home, tmp_path, boxes, kind):
    """New mail and moves are handled while it runs; SIGTERM is a good end."""
    box = boxes(kind)
    config = box.settings(tmp_path, more="poll_s = 5\n")
    program = Program(home, config)
    try:
        spam, ident = sample("spam", 7)
        box.append(spam)
        until(lambda: program.process.poll() or ident in box.messages("Junk"), "the move")
        box.move(ident, "Junk", "INBOX")
        until(lambda: program.process.poll() or journal(home, config), "the label")
    finally:
        code, errors = program.stop()
    assert (code, errors) == (0, "")
    assert [event[:2] for event in journal(home, config)] == [(ident, "ham")]


def has_begun(home):
    """Whether the reader has noted where the inbox ends: mail from then on is new."""
    path = home / "imap" / "box.sqlite"
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database,
    ):
        return database.execute("SELECT 1 FROM folders WHERE name = 'INBOX'").fetchone()


def test_the_daemon_reads_mailboxes(home, tmp_path, boxes):
    """In a process of its own, which teaches by the control socket."""
    box = boxes()
    more = box.settings(tmp_path).read_text()
    config = settings_in(tmp_path, more=more)
    spam, ident = sample("spam", 8)
    with serve(tmp_path, config=config) as daemon:
        daemon.ready()
        until(partial(has_begun, home), what="its place in the inbox")
        box.append(spam)
        daemon.wait_for("imap", account="box", done="moved")
        box.move(ident, "Junk", "INBOX")
        daemon.wait_for("imap", account="box", done="learnt")
        done = spamnb(home, "--config", config, "imap", "--once")
        assert done.code == 3
        assert "another process reads the mailbox box" in done.err
        assert not any("pw-" in str(record) for record in daemon.records)
    assert [event[:2] for event in journal(home, config)] == [(ident, "ham")]


def test_the_status_shows_which_mailbox_cannot_be_read(home, tmp_path, boxes):
    """With the time of the first failure and the reason, until it is read again; in the metrics."""
    box, good = boxes(), boxes()
    box.settings(tmp_path)
    more = good.settings(tmp_path, "good").read_text()
    password = tmp_path / f"{box.user}.password"
    password.rename(tmp_path / "hidden")
    config = settings_in(tmp_path, more=more)

    def status(*options):
        done = spamnb(home, "--config", config, "status", *options)
        assert done.code == 0, done.err
        return done

    with serve(tmp_path, config=config) as daemon:
        daemon.ready()
        (first,) = until(lambda: status("--json").json[0]["mailboxes_away"], what="the status")
        assert first["account"] == "box"
        assert str(password) in first["reason"]
        daemon.wait_for("mailbox cannot be read", count=3, account="box")
        assert status("--json").json[0]["mailboxes_away"] == [first]
        text = status().out
        assert re.search(r"mailbox box +cannot be read since \d{4}-", text)
        assert "! 1 mailboxes on IMAP servers cannot be read" in text
        assert "spamnb_mailboxes_away 1\n" in status("--prometheus").out
        since = first["since_us"] / 1e6
        line = f'spamnb_mailbox_away_since_timestamp_seconds{{account="box"}} {since}'
        assert line in status("--prometheus").out
        (tmp_path / "hidden").rename(password)
        until(lambda: not status("--json").json[0]["mailboxes_away"], what="the reader")
        assert "spamnb_mailboxes_away 0\n" in status("--prometheus").out
        assert "mailboxes" not in status().out


def test_config_check_reports_a_password_that_others_may_read(home, tmp_path, boxes):
    """And nothing else of a good section."""
    box = boxes()
    config = settings_in(tmp_path, more=box.settings(tmp_path).read_text())
    assert spamnb(home, "--config", config, "config", "check").code == 0
    (tmp_path / f"{box.user}.password").chmod(0o644)
    done = spamnb(home, "--config", config, "config", "check")
    assert (done.code, "other users may read" in done.err) == (2, True)


# --- figures -------------------------------------------------------------------------------------


@pytest.mark.full
def test_ten_thousand_messages(home, tmp_path, boxes):
    """All are judged, junk is filed, and none is lost."""
    box = boxes()
    config = box.settings(tmp_path)
    sent = [sample(("spam", "ham")[number % 2], number) for number in range(10_000)]
    for raw, _ in sent:
        box.append(raw)
    began = time.perf_counter()
    done = once(home, config, "--existing")
    took = time.perf_counter() - began
    filed = box.messages("Junk")
    print(f"10,000 messages in {took:.0f} s, {len(filed)} filed")
    assert len(done) == 10_000
    assert sorted(box.messages() + filed) == sorted(ident for _, ident in sent)
    assert set(filed) <= {ident for _, ident in sent[::2]}
    assert once(home, config) == []


@pytest.mark.timed
def test_new_mail_is_judged_within_seconds(home, tmp_path, boxes):
    """From the delivery to the move, within 5 s, by IDLE."""
    box = boxes()
    program = Program(home, box.settings(tmp_path))
    took = []
    try:
        until(partial(has_begun, home), what="its place in the inbox")
        for _ in range(20):
            spam, ident = sample("spam", 2)
            box.append(spam)
            began = time.perf_counter()
            until(lambda ident=ident: ident in box.messages("Junk"), what="the move")
            took.append(time.perf_counter() - began)
    finally:
        program.stop()
    print(f"new junk is moved after {sorted(took)[10]:.2f} s, at most {max(took):.2f} s")
    assert max(took) < 5
