"""A real Postfix asks the real daemon about each message, as the documentation says."""

import email
import shutil
import smtplib
from itertools import count

import pytest
from support.docs_snippets import changed, snippet
from support.dovecot import with_junk
from support.postfix import PROJECT, STRANGER, Daemon, Rig, needs_rig, started
from support.waiting import until

pytestmark = needs_rig

SAMPLE = PROJECT / "corpora" / "sample"
REFUSING = '[actions]\njunk = "reject"\nreject = "reject"\n[rules]\nexempt = ["bob@example.org"]\n'


def mail_of(label, number):
    """A message of the sample."""
    return sorted((SAMPLE / label).iterdir())[number].read_bytes()


def mail_id(label, number):
    return email.message_from_bytes(mail_of(label, number))["Message-ID"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A home with a model of the sample."""
    daemon = Daemon(tmp_path_factory.mktemp("model"), "")
    daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
    return daemon.home


@pytest.fixture(scope="module")
def site(model, tmp_path_factory):
    """Postfix, Dovecot and the daemon."""
    folder, rig = tmp_path_factory.mktemp("milter"), Rig()
    shutil.copytree(model, folder / "home", ignore=shutil.ignore_patterns("*.sock"))
    with_junk(rig)
    here = {"127.0.0.1:10025": f"127.0.0.1:{rig.port['filter']}"}
    rig.master = f"127.0.0.1:{rig.port['mx']} inet n - n - - smtpd\n"
    rig.main += changed(snippet("milter.md", "Postfix", "main.cf"), here)
    toml = changed(snippet("milter.md", "The listener", "spamnb.toml"), here)
    rig.daemon = Daemon(folder, toml + REFUSING)
    with started(rig):
        yield rig


def test_mail_is_marked_and_filed(site):
    """Ham comes to the inbox, spam to Junk, with all added headers after Postfix's own line."""
    site.send(mail_of("ham", 3), ["alice@example.org", "bob@example.org"])
    site.send(mail_of("spam", 3), ["bob@example.org"])
    (good,) = until(lambda: site.delivered("alice", "X-Spam-Flag"))
    found = email.message_from_bytes(good)
    assert found["X-Spam-Flag"] == "NO"
    names = found.keys()
    first = names.index("X-Spam-Flag")
    assert names[first:][:5] == [
        "X-Spam-Flag", "X-Spam-Status", "X-Spam-Score", "X-Spam-Level", "X-Spamnb-Verdict"
    ]  # fmt: skip
    (junk,) = until(lambda: site.delivered("bob", "X-Spam-Flag: YES", ".Junk"))
    found = email.message_from_bytes(junk)
    assert "label=spam" in found["X-Spamnb-Verdict"]
    until(lambda: STRANGER in site.daemon.log.read_text())


def test_forged_copies_are_deleted(site):
    """Whatever the case and the folding of a copy, one header of a name is left: the added one."""
    forged = (
        b"X-Spam-Flag: NO\r\nx-spam-flag: NO\r\nX-Spam-Status: No,\r\n score=-9\r\n"
        b"X-Spamnb-Verdict: deliver; p=0.0\r\nX-Spam-Flag: NO\r\n"
    )
    site.send(forged + mail_of("ham", 7), ["bob@example.org"])
    (raw,) = until(lambda: site.delivered("bob", mail_id("ham", 7)))
    found = email.message_from_bytes(raw)
    for name in ("X-Spam-Flag", "X-Spam-Status", "X-Spamnb-Verdict"):
        assert len(found.get_all(name)) == 1
    assert "score=-9" not in found["X-Spam-Status"]


def test_spam_is_refused_in_the_session(site):
    """The sender gets 550 with a reference that the log knows; nothing is delivered."""
    with pytest.raises(smtplib.SMTPDataError) as refused:
        site.send(mail_of("spam", 3), ["alice@example.org"])
    assert refused.value.smtp_code == 550
    reference = refused.value.smtp_error.decode().rpartition("reference ")[2].rstrip(")")
    until(lambda: f"reference={reference}" in site.daemon.log.read_text())


def test_the_delivered_message_is_the_scanned_one(site):
    """A signature names the message in a correction; the delivered file has the same digest."""
    site.send(mail_of("ham", 5), ["alice@example.org"])
    (raw,) = until(lambda: site.delivered("alice", mail_id("ham", 5)))
    signature = email.message_from_bytes(raw)["X-Spamnb-Signature"]
    path = site.daemon.home / "delivered.eml"
    path.write_bytes(raw)
    site.daemon.spamnb("correct", "spam", signature)
    again = site.daemon.spamnb("correct", "spam", path)
    assert "already" in again


def test_postfix_defers_while_the_daemon_is_down(site):
    """Without the daemon the sender gets 451; afterwards mail is accepted again."""
    site.daemon.stop()
    try:
        with pytest.raises(smtplib.SMTPException) as deferred:
            site.send(mail_of("ham", 6), ["bob@example.org"])
        assert "451" in str(deferred.value)
    finally:
        site.daemon.start()
    site.send(mail_of("ham", 6), ["bob@example.org"])


def test_the_way_back(site):
    """Without `smtpd_milters` Postfix delivers mail unmarked, and needs no daemon."""
    main, line = site.root / "postfix/main.cf", snippet("milter.md", "Postfix", "main.cf")
    here = {"127.0.0.1:10025": f"127.0.0.1:{site.port['filter']}"}
    line = changed(line, here).splitlines()[1] + "\n"
    assert line.startswith("smtpd_milters = ")
    text = main.read_text()
    numbers = count()

    def flag():
        tag = f"way back {next(numbers)}."
        site.send(f"Subject: {tag}\r\n\r\ntext\r\n".encode(), ["bob@example.org"])
        (raw,) = until(lambda: site.delivered("bob", tag))
        return email.message_from_bytes(raw)["X-Spam-Flag"]

    try:
        main.write_text(changed(text, {line: ""}))
        site.postfix("reload")
        until(lambda: flag() is None, what="mail without a milter")
        site.daemon.stop()
        assert flag() is None
    finally:
        main.write_text(text)
        site.postfix("reload")
        site.daemon.start()
    until(lambda: flag() == "NO", what="mail with the milter")
