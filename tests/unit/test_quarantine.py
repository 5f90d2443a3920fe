"""The quarantine on a real disk: envelopes byte for byte, crashes, limits, and releases."""

import email
import os
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import LIMIT_S

from spamnb.errors import PeerError, RefError, RefusedError, StoreDamagedError, StoreFullError
from spamnb.mail.envelope import Client, Envelope
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.values import ReleaseReply
from spamnb.settings.values import QuarantineLimits
from spamnb.telemetry import now_us

RAW = b"X-Spam-Flag: YES\r\nSubject: x\r\n\r\n.body \xff\r\n"
ENVELOPE = Envelope(
    sender="ann@a.example",
    recipients=("bob@b.example", "carl@c.example"),
    client=Client(address="192.0.2.1"),
    mail_line=b"MAIL FROM:<ann@a.example> SIZE=123 RET=HDRS ENVID=QQ+2Bx \xe9\xff",
    rcpt_lines=(b"rcpt to:<bob@b.example> NOTIFY=NEVER", b"RCPT TO:<=?q?x=0D=0A?=@c.example>"),
    xforward_lines=(b"XFORWARD NAME=x ADDR=192.0.2.1 \x80",),
)
OK = ReleaseReply(250, "2.0.0 Ok")


@pytest.fixture
def quarantine(tmp_path):
    return Quarantine(tmp_path / "home" / "quarantine", upstream="127.0.0.1:25")


def files(quarantine):
    return sorted(path.name for path in quarantine.folder.iterdir() if path.name != ".lock")


def aged(path, days):
    """A file that was last written days ago."""
    then = path.stat().st_mtime - days * 86_400
    os.utime(path, (then, then))


# --- keeping -------------------------------------------------------------------------------------


def test_a_message_is_kept_with_its_envelope_byte_for_byte(quarantine):
    """A release sends the same bytes that were received, also invalid ones."""
    identity = quarantine.keep(RAW, ENVELOPE, {"probability": 0.99, "verdict": "spam"})
    (entry,) = Quarantine(quarantine.folder).messages()
    assert (entry.id, entry.sender, entry.recipients) == (
        identity, "ann@a.example", ENVELOPE.recipients,
    )  # fmt: skip
    assert (entry.state, entry.upstream, entry.size_bytes) == ("kept", "127.0.0.1:25", len(RAW))
    assert entry.facts == {"probability": 0.99, "verdict": "spam"}
    parcels = []
    quarantine.release(identity, lambda released: parcels.append(released) or [OK, OK])
    (released,) = parcels
    assert released.raw.endswith(RAW.removeprefix(b"X-Spam-Flag: YES\r\n"))
    assert released.mail_line == ENVELOPE.mail_line
    assert (released.rcpt_lines, released.xforward_lines) == (
        ENVELOPE.rcpt_lines, ENVELOPE.xforward_lines,
    )  # fmt: skip
    assert released.upstream == "127.0.0.1:25"


def test_what_is_kept_is_private(quarantine):
    """Quarantined mail is readable by the daemon's user only."""
    old = os.umask(0)
    try:
        identity = quarantine.keep(RAW, ENVELOPE, {})
    finally:
        os.umask(old)
    assert stat.S_IMODE(quarantine.folder.stat().st_mode) == 0o700
    for ending in ("eml", "json"):
        path = quarantine.folder / f"{identity}.{ending}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("steps", range(1, 11))
def test_a_crash_at_any_step_lists_no_message_without_its_body(tmp_path, steps):
    """Killed at the first, second, third ... call to the disk: kept whole, or not listed."""
    program = """
import os, sys
from spamnb.mail.envelope import Envelope
from spamnb.scan.quarantine import Quarantine
from pathlib import Path
left = int(sys.argv[2])
def dying(call):
    def run(*args, **more):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return call(*args, **more)
    return run
os.fsync, Path.rename = dying(os.fsync), dying(Path.rename)
print(Quarantine(Path(sys.argv[1])).keep(b"body", Envelope(), {}))
"""
    folder = tmp_path / "quarantine"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(steps)],
        capture_output=True, check=False, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    quarantine = Quarantine(folder)
    kept = quarantine.messages()
    for entry in kept:
        assert quarantine.raw(entry.id) == b"body"
    if done.returncode == 0:
        assert [entry.id for entry in kept] == done.stdout.split()
    else:
        assert done.returncode == 9
    for path in folder.iterdir():
        aged(path, 1)
    quarantine.expire(now_us())
    assert len(files(quarantine)) == 2 * len(kept)


def test_a_full_quarantine_takes_no_more_and_is_none_the_worse(tmp_path):
    """At the limit a message is refused with the reason; deleting makes room again."""
    quarantine = Quarantine(tmp_path / "q", QuarantineLimits(limit_bytes=30_000))
    kept = quarantine.keep(b"x" * 20_000, ENVELOPE, {})
    with pytest.raises(StoreFullError, match="30000 bytes"):
        quarantine.keep(b"x" * 20_000, ENVELOPE, {})
    assert len(files(quarantine)) == 2
    quarantine.delete(kept)
    assert Quarantine(quarantine.folder, quarantine.limits).keep(b"x" * 20_000, ENVELOPE, {})


def test_a_full_disk_leaves_nothing_behind(quarantine):
    """A write that is cut short is StoreFullError, and no half of a message stays."""
    quarantine.keep(b"x", ENVELOPE, {})
    before = files(quarantine)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreFullError):
            quarantine.keep(b"x" * 200_000, ENVELOPE, {})
        with pytest.raises(StoreFullError):  # the message fits, its sidecar does not
            quarantine.keep(b"x" * 10, ENVELOPE, {"much": "x" * 200_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(quarantine) == before


# --- looking, and letting go ---------------------------------------------------------------------


NOT_HERE = "20260101T000000000000-01234567"


@pytest.mark.parametrize("identity", ["", "../../etc/passwd", "x", NOT_HERE])
def test_an_id_that_is_not_here_is_an_error(quarantine, identity):
    """No ID names a file outside of the folder."""
    for ask in (quarantine.get, quarantine.raw, quarantine.delete):
        with pytest.raises(RefError):
            ask(identity)


def test_a_sidecar_that_cannot_be_read_hides_no_other(quarantine):
    """The rest is listed; asked for by name it says what is wrong."""
    broken, whole = (quarantine.keep(RAW, ENVELOPE, {}) for _ in range(2))
    (quarantine.folder / f"{broken}.json").write_text("{")
    assert [entry.id for entry in quarantine.messages()] == [whole]
    with pytest.raises(StoreDamagedError):
        quarantine.get(broken)


def test_old_messages_and_old_halves_go(quarantine, monkeypatch):
    """30 days, also where the sidecar is damaged, and what a crash left behind; no others."""
    new = quarantine.keep(RAW, ENVELOPE, {})
    now = quarantine.get(new).time_us
    monkeypatch.setattr("spamnb.scan.quarantine.now_us", lambda: now - 31 * 86_400_000_000)
    monkeypatch.setattr(quarantine, "_tidy_at", time.monotonic() + 1000)
    _, damaged = (quarantine.keep(RAW, ENVELOPE, {}) for _ in range(2))
    (quarantine.folder / f"{damaged}.json").write_text("{")
    lost = [quarantine.folder / name for name in (".x.tmp", "20260101T000000000000-01234567.eml")]
    for path in lost:
        path.write_bytes(b"x")
    assert quarantine.expire(now) == 2
    assert [entry.id for entry in quarantine.messages()] == [new]
    assert all(path.exists() for path in lost)
    for path in lost:
        aged(path, 1)
    assert quarantine.expire(now) == 0
    assert files(quarantine) == [f"{new}.eml", f"{new}.json"]


def test_a_flood_that_expires_costs_two_syncs(quarantine, monkeypatch):
    """Messages of one day expire within one scan, which must not wait for minutes."""
    now = quarantine.get(quarantine.keep(RAW, ENVELOPE, {})).time_us
    for _ in range(20):
        quarantine.keep(RAW, ENVELOPE, {})
    synced = []
    monkeypatch.setattr("spamnb.scan.quarantine.sync_folder", synced.append)
    assert quarantine.expire(now + 31 * 86_400_000_000) == 21
    assert synced == [quarantine.folder] * 2
    assert files(quarantine) == []


# --- releasing -----------------------------------------------------------------------------------


def test_a_release_is_marked_before_and_gone_after(quarantine):
    """On the disk it is releasing while it is sent; after a 250 for all nothing is left."""
    identity = quarantine.keep(RAW, ENVELOPE, {})
    states = []

    def send(released):
        states.append(Quarantine(quarantine.folder).get(identity).state)
        return [OK, OK]

    after = quarantine.release(identity, send)
    assert states == ["releasing"]
    assert after.done == {0, 1}
    assert files(quarantine) == []


def test_a_released_message_is_no_junk_for_later_filters(quarantine):
    """The lines that say why it was kept go, and the signature stays for a correction."""
    signature = "s" + "a" * 26
    identity = quarantine.keep(RAW, ENVELOPE, {"signature": signature})
    sent = []
    quarantine.release(identity, lambda released: sent.append(released.raw) or [OK, OK])
    message = email.message_from_bytes(sent[0])
    assert message.get_all("X-Spam-Flag") == ["NO"]
    assert message["X-Spamnb-Verdict"] == "released"
    assert message["X-Spamnb-Signature"] == signature
    assert sent[0].endswith(RAW.partition(b"\r\n")[2])


def test_a_next_hop_that_took_nothing_leaves_it_kept(quarantine):
    """If nothing was sent, the message can be released again immediately."""
    identity = quarantine.keep(RAW, ENVELOPE, {})

    def send(released):
        raise PeerError("not reached")

    with pytest.raises(PeerError):
        quarantine.release(identity, send)
    assert quarantine.get(identity).state == "kept"
    assert quarantine.release(identity, lambda _: [OK, OK]).open == ()


def test_a_retry_goes_only_to_recipients_without_the_message(quarantine):
    """A recipient is crossed out by the next hop's 250 alone."""
    identity = quarantine.keep(RAW, ENVELOPE, {})
    after = quarantine.release(identity, lambda _: [OK, ReleaseReply(452, "full")])
    assert (after.state, after.done, after.replies) == ("kept", {0}, {"1": "452 full"})
    parcels = []
    quarantine.release(identity, lambda released: parcels.append(released) or [OK])
    assert parcels[0].rcpt_lines == ENVELOPE.rcpt_lines[1:]
    assert quarantine.messages() == []


def test_a_release_that_never_ended_is_not_begun_again_unasked(quarantine):
    """After a kill while sending, or no final reply, the record says that it may be sent."""
    identity = quarantine.keep(RAW, ENVELOPE, {})

    def killed(released):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quarantine.release(identity, killed)
    with pytest.raises(RefusedError, match="may have been sent"):
        quarantine.release(identity, lambda _: pytest.fail("sent twice"))
    after = quarantine.release(identity, lambda _: [OK, ReleaseReply(0)], again=True)
    assert (after.state, after.done, after.replies) == ("releasing", {0}, {"1": "no reply"})
    with pytest.raises(RefusedError):
        quarantine.release(identity, lambda _: pytest.fail("sent twice"))
    assert quarantine.release(identity, lambda _: [OK], again=True).open == ()


def test_what_is_thrown_away_while_it_is_released_does_not_come_back(quarantine):
    """A message that was deleted during its release stays deleted."""
    identity = quarantine.keep(RAW, ENVELOPE, {})

    def send(_):
        Quarantine(quarantine.folder).delete(identity)
        return [OK, ReleaseReply(451, "later")]

    assert quarantine.release(identity, send).open == (1,)
    assert files(quarantine) == []


def test_a_message_without_its_body_is_not_marked(quarantine):
    """A release that cannot be sent is not recorded as begun."""
    identity = quarantine.keep(RAW, ENVELOPE, {})
    Path(quarantine.folder / f"{identity}.eml").unlink()
    with pytest.raises(Exception, match="No such file"):
        quarantine.release(identity, lambda _: [OK, OK])
    assert quarantine.get(identity).state == "kept"
