"""What becomes of mail that the milter of the real daemon does not simply mark, with Postfix."""

import email
import shutil
import smtplib
import subprocess
from itertools import count

import pytest
from support.docs_snippets import changed, snippet
from support.postfix import Daemon, Rig, free_ports, needs_rig, started
from support.waiting import LIMIT_S, until

pytestmark = needs_rig

SETTINGS = """
upstream = "127.0.0.1:{back}"
[listener.deferring]
protocol = "milter"
address = "127.0.0.1:{deferring}"
upstream = "127.0.0.1:{back}"
on_fault = "defer"
[actions]
reject = "quarantine"
[rules]
block = "{block}"
[quarantine]
limit_bytes = 1048576
[serve]
workers = 1
"""
MASTER = """127.0.0.1:{mx} inet n - n - - smtpd
127.0.0.1:{strict} inet n - n - - smtpd
    -o smtpd_milters=inet:127.0.0.1:{deferring}
127.0.0.1:{lenient} inet n - n - - smtpd
    -o milter_default_action=accept
127.0.0.1:{back} inet n - n - - smtpd
    -o smtpd_milters=
"""
"""Postfix's ports: as documented; with `on_fault = "defer"`; with `accept` instead of `tempfail`;
without a milter, for released mail. One worker, because each counts the quarantine's size itself"""
BLOCKED = "spammer@bad.example"


@pytest.fixture(scope="module")
def rig(trained, tmp_path_factory):
    """Postfix and the daemon."""
    folder, rig = tmp_path_factory.mktemp("outcomes"), Rig()
    shutil.copytree(trained, folder / "home", ignore=shutil.ignore_patterns("*.sock"))
    (folder / "block").write_text(f"sender {BLOCKED}\n")
    others = ("strict", "lenient", "deferring")
    rig.port |= dict(zip(others, free_ports(len(others)), strict=True))
    here = {"127.0.0.1:10025": f"127.0.0.1:{rig.port['filter']}"}
    rig.master = MASTER.format(**rig.port)
    rig.main += changed(snippet("milter.md", "Postfix", "main.cf"), here)
    toml = changed(snippet("milter.md", "The listener", "spamnb.toml"), here)
    rig.daemon = Daemon(folder, toml + SETTINGS.format(block=folder / "block", **rig.port))
    with started(rig):
        yield rig


def send(rig, subject, text="text\r\n", *, port="mx", sender="ann@example.net", head=""):
    """Send a message to alice; the code of the reply."""
    raw = f"{head}From: <{sender}>\r\nSubject: {subject}\r\n\r\n{text}".encode()
    with smtplib.SMTP("127.0.0.1", rig.port[port], timeout=LIMIT_S) as client:
        try:
            client.sendmail(sender, ["alice@example.org"], raw)
        except smtplib.SMTPSenderRefused as refused:
            return refused.smtp_code
        except smtplib.SMTPDataError as refused:
            return refused.smtp_code
    return 250


def came(rig, subject):
    """The message of alice with a subject."""
    (raw,) = until(lambda: rig.delivered("alice", f"Subject: {subject}"))
    return email.message_from_bytes(raw)


def kept(rig):
    """The names of the messages in quarantine."""
    return [line.split()[0] for line in rig.daemon.spamnb("quarantine", "list").splitlines()]


def test_a_message_is_kept_and_released(rig):
    """After the 250 the message is in quarantine; a release does not pass the milter again."""
    assert send(rig, "kept", sender=BLOCKED) == 250
    (name,) = kept(rig)
    assert not rig.delivered("alice", "Subject: kept")
    rig.daemon.spamnb("quarantine", "release", name)
    found = came(rig, "kept")
    assert found.get_all("X-Spamnb-Verdict") == ["released"]
    assert found["X-Spam-Flag"] == "NO"
    assert kept(rig) == []


def test_a_full_quarantine_lets_mail_pass_marked(rig):
    """What does not fit is delivered with the mark of spam and the reason."""
    for subject in ("first", "second"):
        big = "a line of a large message\r\n" * 25_000
        assert send(rig, subject, big, sender=BLOCKED) == 250
    found = came(rig, "second")
    assert found["X-Spam-Flag"] == "YES"
    (name,) = kept(rig)
    rig.daemon.spamnb("quarantine", "delete", name)
    until(lambda: "quarantine-full" in rig.daemon.log.read_text(), what="the reason in the log")


def test_a_full_disk_lets_mail_pass_marked(rig):
    """What cannot be written into the quarantine is delivered; later mail is kept again."""
    folder = rig.daemon.home / "quarantine"
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", folder]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        big = "a line of a large message\r\n" * 10_000
        assert send(rig, "no room", big, sender=BLOCKED) == 250
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    found = came(rig, "no room")
    assert found["X-Spam-Flag"] == "YES"
    assert found.get_payload() == big.replace("\r\n", "\n")
    assert kept(rig) == []
    assert send(rig, "room again", big, sender=BLOCKED) == 250
    (name,) = kept(rig)
    rig.daemon.spamnb("quarantine", "delete", name)


def test_mail_passes_unscanned_in_a_bypass(rig):
    """`spamnb bypass` holds for milters: the header says so, and forged marks are deleted."""
    numbers = count()

    def verdict():
        subject = f"bypassed {next(numbers)}."
        assert send(rig, subject, head="X-Spamnb-Verdict: deliver\r\n") == 250
        (found,) = came(rig, subject).get_all("X-Spamnb-Verdict")
        return found

    rig.daemon.spamnb("bypass", "on")
    until(lambda: verdict() == "unscanned; reason=bypass", "the bypass")
    rig.daemon.spamnb("bypass", "off")
    until(lambda: "p=" in verdict(), "the end of the bypass")


def test_accept_passes_forged_marks_while_the_daemon_is_down(rig):
    """With `milter_default_action = accept` a forged mark passes, but no message has both."""
    rig.daemon.stop()
    try:
        assert send(rig, "strict") == 451
        assert send(rig, "lenient", port="lenient", head="X-Spam-Flag: NO\r\n") == 250
    finally:
        rig.daemon.start()
    found = came(rig, "lenient")
    assert found["X-Spam-Flag"] == "NO"
    assert "X-Spamnb-Signature" not in found


def test_mail_without_a_usable_model(rig):
    """A fault of the daemon is a header, or 451 with `on_fault = "defer"`; it never refuses."""
    with rig.daemon.damaged():
        assert send(rig, "damaged", head="X-Spam-Flag: NO\r\n") == 250
        assert send(rig, "deferred", port="strict") == 451
    found = came(rig, "damaged")
    assert found["X-Spamnb-Verdict"].startswith("unscanned; reason=")
    assert "X-Spam-Flag" not in found
    assert send(rig, "repaired", port="strict") == 250
    assert came(rig, "repaired")["X-Spam-Flag"] == "NO"
