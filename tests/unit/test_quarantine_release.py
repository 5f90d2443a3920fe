"""Releases of a message in quarantine to some recipients: their record, and what a kill leaves."""

import json
import subprocess
import sys
import threading

import pytest
from support.waiting import LIMIT_S

from spamnb.errors import PeerError, RefError, RefusedError, StoreFullError, UserError
from spamnb.mail.envelope import Envelope
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.values import ReleaseReply
from spamnb.settings.values import QuarantineLimits
from spamnb.telemetry import now_us

NAMES = ("ann@a.example", "bob@b.example", "carl@c.example")
ENVELOPE = Envelope(
    sender="x@x.example",
    recipients=NAMES,
    mail_line=b"MAIL FROM:<x@x.example>",
    rcpt_lines=tuple(b"RCPT TO:<%s>" % name.encode() for name in NAMES),
)
OK = ReleaseReply(250, "Ok")
LATER = ReleaseReply(451, "later")
NO_REPLY = ReleaseReply(0)
KILLED = """
import os, sys
from pathlib import Path
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.values import ReleaseReply
folder, identity, only, left = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
def dying(call):
    def run(*args, **more):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return call(*args, **more)
    return run
def send(released):
    with open(folder + ".sent", "wb") as file:
        file.write(b"".join(line + bytes(1) for line in released.rcpt_lines))
    return [ReleaseReply(250)] * len(released.rcpt_lines)
os.fsync, os.rename = dying(os.fsync), dying(os.rename)
Path.unlink, send = dying(Path.unlink), dying(send)
only = [int(at) for at in only]
Quarantine(Path(folder)).release(identity, send, only=only)
"""


@pytest.fixture
def quarantine(tmp_path):
    return Quarantine(tmp_path / "quarantine", upstream="127.0.0.1:25")


@pytest.fixture
def identity(quarantine):
    return quarantine.keep(b"Subject: x\r\n\r\nbody\r\n", ENVELOPE, {})


def never(_):
    pytest.fail("sent")


def test_a_release_to_some_leaves_the_message_to_the_others(quarantine, identity):
    """Each recipient gets it once; it is deleted when none waits any more."""
    sent = []

    def send(released):
        sent.append(released.rcpt_lines)
        return [OK] * len(released.rcpt_lines)

    after = quarantine.release(identity, send, only={1})
    assert (after.open, after.state) == ((0, 2), "kept")
    assert after.results()[1] == ("bob@b.example", "delivered")
    with pytest.raises(RefusedError, match="not kept for any of these recipients"):
        quarantine.release(identity, never, only={1})
    quarantine.release(identity, send, only={1, 2})
    quarantine.release(identity, send)
    assert sent == [(ENVELOPE.rcpt_lines[at],) for at in (1, 2, 0)]
    with pytest.raises(RefError):
        quarantine.get(identity)


def test_only_recipients_of_the_message_can_be_named(quarantine, identity):
    """An address of another message, or one that the caller may not name, is an error."""
    entry = quarantine.get(identity)
    assert entry.numbers_of(["bob@b.example"], range(3)) == {1}
    for name, among in (("eve@b.example", range(3)), ("bob@b.example", {0, 2}), ("", range(3))):
        with pytest.raises(UserError, match="not a recipient"):
            entry.numbers_of([name], among)
    with pytest.raises(RefusedError):
        quarantine.release(identity, never, only={7})
    with pytest.raises(RefusedError):
        quarantine.release(identity, never, only=())


def test_an_interrupted_release_concerns_its_recipients_alone(quarantine, identity):
    """Those who may have it need `again`; the others do not."""

    def killed(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quarantine.release(identity, killed, only={0})
    assert quarantine.get(identity).sending == {0}
    for only in ({0}, {0, 1}, None):
        with pytest.raises(RefusedError, match="may have been sent"):
            quarantine.release(identity, never, only=only)
    assert quarantine.release(identity, lambda _: [OK], only={1}).sending == {0}
    after = quarantine.release(identity, lambda _: [NO_REPLY, LATER], again=True)
    assert (after.sending, after.replies) == ({0}, {"0": "no reply", "2": "451 later"})
    assert quarantine.release(identity, lambda _: [OK], only={2}).open == (0,)
    with pytest.raises(PeerError):
        quarantine.release(identity, refused, again=True)
    assert quarantine.release(identity, lambda _: [OK]).open == ()


def refused(_):
    raise PeerError("not reached")


def test_releases_to_different_recipients_run_side_by_side(quarantine, identity):
    """Each records its own result, in whatever order they end; neither forgets the other's."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(_):
        inside.set()
        assert go_on.wait(LIMIT_S)
        return [OK]

    first = threading.Thread(target=quarantine.release, args=(identity, slow),
                             kwargs={"only": {0}})  # fmt: skip
    first.start()
    assert inside.wait(LIMIT_S)
    other = Quarantine(quarantine.folder)
    assert other.release(identity, lambda _: [LATER], only={1}).sending == {0}
    with pytest.raises(RefusedError):
        other.release(identity, never, only={0})
    go_on.set()
    first.join(LIMIT_S)
    after = quarantine.get(identity)
    assert (after.done, after.sending, after.replies) == ({0}, set(), {"1": "451 later"})


def test_a_message_is_deleted_for_one_recipient(quarantine, identity):
    """The others still have it; a deleted one gets nothing by a later release."""
    quarantine.delete_for(identity, {0})
    assert quarantine.get(identity).open == (1, 2)
    assert quarantine.get(identity).results()[0] == ("ann@a.example", "deleted")
    sent = []
    quarantine.release(identity, lambda one: sent.append(one.rcpt_lines) or [OK, LATER])
    assert sent == [ENVELOPE.rcpt_lines[1:]]
    quarantine.delete_for(identity, {1, 2})
    with pytest.raises(RefError):
        quarantine.get(identity)
    quarantine.restore(identity, lambda _: {1, 2})
    assert (quarantine.get(identity).done, quarantine.get(identity).open) == ({1}, (2,))


def test_a_deletion_is_taken_back_for_an_hour(tmp_path):
    """Then the message is gone with its files; sooner if the room is needed."""
    quarantine = Quarantine(tmp_path / "home" / "quarantine")
    first, second = (quarantine.keep(b"x" * 1_000, ENVELOPE, {}) for _ in range(2))
    for name in (first, second):
        quarantine.delete_for(name)
    assert quarantine.ids() == []
    quarantine.restore(first)
    assert quarantine.raw(first) == b"x" * 1_000
    for name in (first, "20260101T000000000000-01234567"):
        with pytest.raises(RefError):
            quarantine.restore(name)
    assert quarantine.expire(now_us() + 3_500_000_000) == 0
    quarantine.restore(second)
    for name in (first, second):
        quarantine.delete_for(name)
    quarantine.expire(now_us() + 3_700_000_000)
    assert [path.name for path in quarantine.folder.iterdir()] == [".lock"]
    with pytest.raises(RefError):
        quarantine.restore(second)


def test_deleted_messages_make_room(tmp_path):
    """A full quarantine first removes what was deleted; what waits stays."""
    limits = QuarantineLimits(limit_bytes=8_000)
    quarantine = Quarantine(tmp_path / "home" / "quarantine", limits)
    kept, deleted = (quarantine.keep(b"x" * 2_000, ENVELOPE, {}) for _ in range(2))
    quarantine.delete_for(deleted)
    more = quarantine.keep(b"x" * 3_000, ENVELOPE, {})
    assert quarantine.ids() == [kept, more]
    with pytest.raises(RefError):
        quarantine.restore(deleted)
    with pytest.raises(StoreFullError):
        quarantine.keep(b"x" * 3_000, ENVELOPE, {})


def test_a_killed_deletion_loses_no_message_that_waits(quarantine, identity):
    """With both sidecars the message waits; an hour later only the second sidecar is gone."""
    sidecar = quarantine.folder / f"{identity}.json"
    sidecar.with_suffix(".deleted").write_bytes(sidecar.read_bytes())
    with pytest.raises(RefError):
        quarantine.restore(identity)
    quarantine.expire(now_us() + 3_700_000_000)
    assert quarantine.raw(identity)
    assert not sidecar.with_suffix(".deleted").exists()


def test_what_some_see_has_nothing_of_the_others(quarantine, identity):
    """A recipient does not learn of others, which may have a blind copy."""
    quarantine.release(identity, lambda _: [OK, LATER], only={0, 1})
    seen = quarantine.get(identity).as_dict({0, 2})
    assert (seen["recipients"], seen["waiting"]) == ([NAMES[0], NAMES[2]], [NAMES[2]])
    assert (seen["replies"], seen["state"]) == ({}, "kept")
    assert "bob" not in json.dumps(seen)


@pytest.mark.parametrize("decision", ["reject", "junk", "unsure", None])
def test_the_settings_say_what_users_may_release(quarantine, decision):
    """What was to be rejected may need an administrator."""
    entry = quarantine.get(quarantine.keep(b"x", ENVELOPE, {"decision": decision}))
    assert entry.may_release("all")
    assert entry.may_release("junk") == (decision != "reject")
    assert not entry.may_release("no")


def test_records_of_earlier_versions_are_read(quarantine, identity):
    """They say that a release was begun, and not to whom: all that wait may have it."""
    path = quarantine.folder / f"{identity}.json"
    found = json.loads(path.read_text())
    assert found.keys().isdisjoint({"sending", "dropped"})
    path.write_text(json.dumps(found | {"state": "releasing", "done": [1]}))
    assert quarantine.get(identity).sending == {0, 2}


@pytest.mark.parametrize("only", ["0", "12", "012"])
def test_a_kill_at_any_step_sends_nothing_twice(quarantine, identity, only):
    """After a kill at each step: a recipient that was sent to is done, or needs `again`."""
    raw = (quarantine.folder / f"{identity}.eml").read_bytes()
    record = (quarantine.folder / f"{identity}.json").read_bytes()
    mark = quarantine.folder.parent / "quarantine.sent"
    for step in range(1, 40):
        (quarantine.folder / f"{identity}.eml").write_bytes(raw)
        (quarantine.folder / f"{identity}.json").write_bytes(record)
        mark.unlink(missing_ok=True)
        program = [sys.executable, "-c", KILLED, str(quarantine.folder), identity, only, str(step)]
        code = subprocess.run(program, check=False, timeout=LIMIT_S).returncode
        check_state(quarantine, identity, {int(at) for at in only}, sent=mark.exists())
        if code == 0:
            break
        assert code == 9
    assert code == 0
    assert step > 6


def check_state(quarantine, identity, only, *, sent):
    if identity not in quarantine.ids():
        assert sent
        assert only == {0, 1, 2}
        return
    entry = quarantine.get(identity)
    assert quarantine.raw(identity)
    if sent:
        assert only <= entry.done | entry.sending
        with pytest.raises(RefusedError):
            quarantine.release(identity, never, only=only)
    else:
        assert not entry.done
    others = {0, 1, 2} - only
    assert not others & (entry.done | entry.sending)
    if others:
        assert (
            quarantine.release(identity, lambda _: [OK] * len(others), only=others).done >= others
        )
