"""`spamnb quarantine`, on a real home and against a real next hop."""

import json
import socket
import subprocess
import threading
from contextlib import suppress

import pytest
from support.cli import ONE_SPAM, PROGRAM, environment, spamnb
from support.waiting import LIMIT_S

from spamnb.mail.envelope import Envelope
from spamnb.scan.quarantine import Quarantine

pytestmark = pytest.mark.usefixtures("alone")
RAW = ONE_SPAM.read_bytes()


@pytest.fixture
def hop():
    """A next hop that takes everything, and its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(LIMIT_S)
    heard = []

    def serve():
        with suppress(OSError):
            while True:
                wire, _ = listener.accept()
                with wire, wire.makefile("rb") as lines:
                    wire.sendall(b"220 hop\r\n")
                    for line in lines:
                        heard.append(line)
                        reply = b"354 go\r\n" if line == b"DATA\r\n" else b"250 Ok\r\n"
                        if reply == b"354 go\r\n":
                            wire.sendall(reply)
                            reply = b"250 Ok\r\n"
                            heard.append(b"".join(iter(lines.readline, b".\r\n")))
                        wire.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", heard
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(LIMIT_S)


def kept(home, upstream="", raw=RAW):
    """Put a message into a home's quarantine."""
    envelope = Envelope(
        sender="evil\x1b[2J@a.example",
        recipients=("bob@b.example",),
        mail_line=b"MAIL FROM:<evil\x1b[2J@a.example> BODY=8BITMIME",
        rcpt_lines=(b"RCPT TO:<bob@b.example> NOTIFY=NEVER",),
    )
    facts = {"verdict": "spam", "probability": 0.9987, "decision": "junk"}
    return Quarantine(home / "quarantine", upstream=upstream).keep(raw, envelope, facts)


def test_what_is_kept_is_listed_for_people_and_programs(home):
    """One line each, oldest first, without a stranger's control characters."""
    first, second = kept(home), kept(home)
    shown = spamnb(home, "quarantine", "list")
    assert [line.split()[0] for line in shown.lines] == [first, second]
    assert "  kept  junk  spam  0.9987  " in shown.out
    assert "\x1b" not in shown.out
    listed = spamnb(home, "quarantine", "list", "--json").json
    assert [line["id"] for line in listed] == [first, second]
    assert listed[0]["recipients"] == listed[0]["waiting"] == ["bob@b.example"]
    assert listed[0]["facts"]["decision"] == "junk"
    assert spamnb(home / "nothing", "quarantine", "list").out == ""


def test_the_list_shows_subjects(home):
    """Subjects are decoded, on one line, without control characters, and cut if long."""
    for subject in (b"=?utf-8?q?gr=C3=BC=C3=9Fe?=", b"two\r\n lines", b"\x1b[31mred", b"x" * 500):
        kept(home, raw=b"To: a@b.example\r\nSubject: " + subject + b"\r\n\r\nbody\r\n")
    kept(home, raw=b"To: a@b.example\r\n\r\nSubject: of the body\r\n")
    shown = spamnb(home, "quarantine", "list").lines
    ends = ["grüße", "two lines", "<U+001B>[31mred", "b.example  " + "x" * 40, "b.example"]
    assert all(line.endswith(end) for line, end in zip(shown, ends, strict=True))
    subjects = [line["subject"] for line in spamnb(home, "quarantine", "list", "--json").json]
    assert subjects == ["grüße", "two lines", "<U+001B>[31mred", "x" * 500, ""]


def test_a_message_can_be_looked_at(home):
    """Its envelope and text, safe on a terminal; or byte for byte."""
    raw = b"Subject: \x1b[31mred\xff\r\n\r\nbody \x07\r\n"
    identity = kept(home, raw=raw)
    shown = spamnb(home, "quarantine", "show", identity)
    for word in ("NOTIFY=NEVER", "Subject:", "body", "0.9987", identity):
        assert word in shown.out
    assert "\x1b" not in shown.out
    assert "\x07" not in shown.out
    shown = spamnb(home, "quarantine", "show", identity, "--json").json[0]
    assert shown["raw"].encode("latin-1") == raw


def test_the_message_comes_out_byte_for_byte(home):
    """--json lists the same messages for programs."""
    raw = b"Subject: x\r\n\r\nbody \xff\x00\r\n"
    command = [*PROGRAM, "--home", str(home), "quarantine", "show", kept(home, raw=raw), "--raw"]
    done = subprocess.run(
        command, capture_output=True, check=True, timeout=LIMIT_S, env=environment()
    )  # fmt: skip
    assert done.stdout == raw


def test_a_release_sends_it_on_and_teaches(home, hop):
    """The next hop gets the message with its envelope; it leaves quarantine and is ham."""
    address, heard = hop
    identity = kept(home, address)
    done = spamnb(home, "quarantine", "release", identity, "--learn")
    assert done.code == 0, done.err
    assert f"{identity}: bob@b.example: delivered" in done.out
    assert "spam -> ham" in done.out or "untrained -> ham" in done.out
    assert b"RCPT TO:<bob@b.example> NOTIFY=NEVER\r\n" in heard
    body = max(heard, key=len)
    assert body.startswith(b"X-Spam-Flag: NO\r\n")
    assert body.endswith(RAW.replace(b"\n", b"\r\n"))
    assert spamnb(home, "quarantine", "list").out == ""
    path = home / "again.eml"
    path.write_bytes(RAW)
    assert spamnb(home, "score", path, "--json").json[0]["label"] == "ham"


def test_a_next_hop_that_is_not_there_keeps_it(home):
    """Exit status 4; the error has the address, and the message stays in quarantine."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        identity = kept(home, address)
        done = spamnb(home, "quarantine", "release", identity)
    assert done.code == 4
    assert address in done.err
    assert [line["state"] for line in spamnb(home, "quarantine", "list", "--json").json] == ["kept"]


def test_a_message_without_a_next_hop_asks_for_one(home, hop):
    """A release without a known next hop is an error."""
    identity = kept(home)
    done = spamnb(home, "quarantine", "release", identity)
    assert done.code == 4
    assert "--upstream" in done.err
    assert spamnb(home, "quarantine", "release", identity, "--upstream", hop[0]).code == 0


def test_a_release_that_was_broken_off_asks_before_it_sends_again(home, hop):
    """What may have been sent is shown so, and goes out again only with --again."""
    identity = kept(home, hop[0])
    sidecar = home / "quarantine" / f"{identity}.json"
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"state": "releasing"}))
    assert "maybe sent" in spamnb(home, "quarantine", "list").out
    done = spamnb(home, "quarantine", "release", identity)
    assert done.code == 2
    assert "--again" in done.err
    assert spamnb(home, "quarantine", "release", identity, "--again").code == 0


def test_what_is_thrown_away_is_gone(home):
    """An unknown ID is a usage error."""
    identity = kept(home)
    assert spamnb(home, "quarantine", "delete", identity).code == 0
    assert spamnb(home, "quarantine", "list").out == ""
    assert spamnb(home, "quarantine", "delete", identity).code == 2
    assert spamnb(home, "quarantine", "show", "../x").code == 2


def test_what_is_too_old_is_thrown_away(home):
    """Messages expire after the days of the settings."""
    old, new = kept(home), kept(home)
    # A message's name begins with its time, which is what expiry reads.
    ancient = "2020" + old[4:]
    for ending in ("json", "eml"):
        path = home / "quarantine" / f"{old}.{ending}"
        path.rename(path.with_name(f"{ancient}.{ending}"))
    assert spamnb(home, "quarantine", "expire").out == "1 messages expired\n"
    assert [line["id"] for line in spamnb(home, "quarantine", "list", "--json").json] == [new]
