"""`spamnb doctor` with a real Postfix and a real Dovecot: each check passes, and fails."""

import email
import imaplib
import json
import os
import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import dovecot_versions
from support.docs_snippets import changed, snippet
from support.doctor import CHECKS, Site
from support.dovecot import with_teaching
from support.postfix import Rig, free_ports, needs_rig
from support.waiting import LIMIT_S, until
from test_postfix import joined

pytestmark = needs_rig

SURELY_HAM = (
    b"From: Bob <bob@example.net>\r\nTo: alice@example.org\r\nSubject: lunch\r\n"
    b"Message-ID: <lunch@example.net>\r\n\r\nSee you at noon in the garden.\r\n"
)

TOML = """
[serve]
delegates = ["mail"]
[local]
hosts = ["mx.example.org", "{host}"]
[feedback]
spool = "{spool}"
"""


def by_the_milter(rig):
    """Postfix asks by docs/milter.md; the settings of the daemon."""
    here = {"127.0.0.1:10025": f"127.0.0.1:{rig.port['filter']}"}
    rig.master = f"127.0.0.1:{rig.port['mx']} inet n - n - - smtpd\n"
    rig.main += changed(snippet("milter.md", "Postfix", "main.cf"), here)
    return changed(snippet("milter.md", "The listener", "spamnb.toml"), here)


class Served(Site):
    """Postfix, the daemon, Dovecot; alice has a mailbox."""

    def __init__(self, folder, way="before"):
        self.rig = Rig()
        spool = self.rig.root / "spool"
        with_teaching(self.rig, spool)
        settings = by_the_milter(self.rig) if way == "milter" else joined(self.rig, way)
        super().__init__(folder, settings + TOML.format(spool=spool, host=socket.gethostname()))
        self.password = folder / "password"
        self.password.write_text("pw-alice\n")

    def alice(self, *more):
        port = self.rig.port
        return self.doctor(
            "--rcpt", "alice@example.org", "--smtp", f"127.0.0.1:{port['mx']}",
            "--imap", f"127.0.0.1:{port['imap']}", "--user", "alice",
            "--password-file", self.password, "--wait", "10", *more,
        )  # fmt: skip

    @contextmanager
    def other(self, path, old, new):
        """Change a file within the block."""
        path = self.rig.root / path
        text = path.read_text()
        assert old in text
        try:
            path.write_text(text.replace(old, str(new)))
            yield
        finally:
            path.write_text(text)

    @contextmanager
    def other_dovecot(self, old, new):
        """Change a setting of Dovecot within the block."""
        try:
            with self.other("dovecot/dovecot.conf", old, new):
                self._dovecot_anew()
                yield
        finally:
            self._dovecot_anew()

    def _dovecot_anew(self):
        # Not `doveadm reload`: nothing shows when the old processes have stopped listening.
        pid = self.rig.dovecot_pid()
        os.kill(pid, signal.SIGTERM)
        until(lambda: not Path(f"/proc/{pid}").exists(), what="Dovecot's end")
        self.rig.start_dovecot()
        until(lambda: self.rig.answers("imap"), what="Dovecot")

    def lying(self):
        """Messages of all users, in all folders."""
        mail = self.rig.root / "mail"
        return [path for part in ("new", "cur") for path in mail.rglob(f"{part}/*")]


@contextmanager
def running(folder, way="before"):
    """A site that runs within the block."""
    site = Served(folder, way)
    try:
        site.daemon.start()
        site.rig.start()
        yield site
    finally:
        site.daemon.stop()
        site.rig.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with running(tmp_path_factory.mktemp("served")) as site:
        yield site


@pytest.fixture
def unchanged(served):
    """After the test no message is left, and the model is unchanged."""
    before = served.learnt()
    yield
    assert served.lying() == []
    assert served.learnt() == before


def test_all_is_well(served, unchanged):
    """Every check is ok: into Junk by MOVE, back by COPY, with labels of the mailbox's user."""
    before = served.export()
    result = served.alice()
    assert result.names("ok") == CHECKS, result.whole
    assert (result.code, result.whole["ok"]) == (0, True)
    assert "by MOVE" in result.checks["move"]["what"]
    assert "by COPY" in result.checks["move back"]["what"]
    changes = [(was, now) for was, now, _ in served.events(result.whole["message_id"])]
    assert changes == [(None, "spam"), ("spam", "ham"), ("ham", None)]
    assert served.export() == before


@contextmanager
def others(served):
    """Two other messages in the inbox, one of them marked as deleted; both must stay."""
    with imaplib.IMAP4("127.0.0.1", served.rig.port["imap"]) as imap:
        imap.login("alice", "pw-alice")
        for name in ("one", "two"):
            imap.append("INBOX", None, None, f"Subject: {name}\r\n\r\n{name}\r\n".encode())
        imap.select("INBOX")
        imap.store("1", "+FLAGS", r"(\Deleted)")
        try:
            yield imap
            imap.noop()
            assert imap.search(None, "SUBJECT", "one")[1] == [b"1"]
            assert imap.search(None, "SUBJECT", "two")[1] == [b"2"]
        finally:
            imap.store("1:*", "+FLAGS", r"(\Deleted)")
            imap.expunge()


def test_nothing_else_in_the_mailbox_is_touched(served, unchanged):
    """Other messages stay, also those marked as deleted."""
    with others(served):
        assert served.alice().names("ok") == CHECKS


def test_a_server_that_can_do_little(served, unchanged):
    """Without MOVE it copies and deletes; without UIDPLUS it leaves its message and says so."""
    able = "protocol imap {\n  imap_capability = IMAP4rev1 SASL-IR LITERAL+ ENABLE IDLE\n"
    with served.other_dovecot("protocol imap {\n", able):
        result = served.alice()
        assert result.names("ok") == CHECKS, result.whole
        assert "by COPY" in result.checks["move"]["what"]
        assert "by COPY" in result.checks["move back"]["what"]
        with others(served):
            result = served.alice()
            result.is_broken("cleaning up", "only marked as deleted", "delete the message")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_what_can_be_encrypted_is(served, unchanged):
    """STARTTLS where it is offered, before the password; on loopback by any certificate."""
    cert, key = served.rig.root / "cert", served.rig.root / "key"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=mx"
    command = [*make.split(), "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    log = served.rig.root / "dovecot.log"
    began = log.stat().st_size
    with served.other_dovecot("ssl = no", dovecot_versions.tls(cert, key)):
        assert served.alice().names("ok") == CHECKS
    lines = log.read_text()[began:].splitlines()
    logins = [line for line in lines if "user=<alice>, method=" in line]
    assert logins
    assert all("TLS" in line for line in logins)


def test_a_dovecot_without_imap_sieve_is_reported(served, unchanged):
    """The check learning fails, and its hint names the documentation."""
    with served.other_dovecot("protocol imap {", "protocol lda {"):
        result = served.alice("--wait", "2")
    result.is_broken("learning", "nothing was learnt within 2 s", "docs/dovecot.md")


def without_the_rule_for_junk(site):
    """What the doctor says if Dovecot does not run the script that files marked mail."""
    # Another name of the setting switches it off: Dovecot ignores plugin settings that it does not
    # know. Version 2.4 knows the place of the script.
    is_old = dovecot_versions.version() == "2.3"
    rule = "sieve_before = " if is_old else "sieve/spamnb-junk.sieve"
    other = "sieve_unused = " if is_old else "sieve/none.sieve"
    with site.other_dovecot(rule, other):
        return site.alice()


def test_a_dovecot_without_the_rule_for_junk_is_reported(served, unchanged):
    """Without `sieve_before` marked mail stays in the inbox: the check marked mail fails."""
    result = without_the_rule_for_junk(served)
    result.is_broken("marked mail", "but it is in the inbox, not in Junk", "docs/dovecot.md")
    assert result.checks["filing"]["state"] == "ok"


@pytest.mark.parametrize("way", ["after", "milter"])
def test_marked_mail_is_sent_each_way(tmp_path, way):
    """After the queue and by the milter all checks pass, and fail without the rule for junk.

    A message that was delivered has the score of its verdict when it is scored in the mailbox.
    """
    with running(tmp_path, way) as site:
        assert site.alice().names("ok") == CHECKS
        result = without_the_rule_for_junk(site)
        result.is_broken("marked mail", "but it is in the inbox, not in Junk", "docs/dovecot.md")
        site.rig.send(SURELY_HAM, ["alice@example.org"])
        (delivered,) = until(lambda: site.rig.delivered("alice", "lunch@example.net"))
        signature = email.message_from_bytes(delivered)["X-Spamnb-Signature"]
        file = tmp_path / "delivered.eml"
        file.write_bytes(delivered)
        (scored,) = json.loads("[" + site.daemon.spamnb("score", "--json", file) + "]")
        history = site.daemon.spamnb("history", "--json").splitlines()
        (judged,) = (one for one in map(json.loads, history) if one["signature"] == signature)
        assert scored["log_odds"] == pytest.approx(judged["log_odds"], abs=1e-4)


def test_a_dovecot_without_the_folder_junk_is_reported(served, unchanged):
    """Debian's Dovecot makes no Junk folder: the hint has the command that makes it."""
    made = "mailbox Junk {\n    auto = "
    with served.other_dovecot(f"{made}subscribe", f"{made}no"):
        for folder in (served.rig.root / "mail").rglob(".Junk"):
            shutil.rmtree(folder)
        result = served.alice()
    result.is_broken("mailbox", "the folder Junk cannot be opened", "doveadm mailbox create")


def test_a_wrong_spool_is_reported(served, unchanged):
    """The script writes into another spool than the daemon reads."""
    spool = served.rig.root / "elsewhere"
    spool.mkdir(mode=0o777)
    spool.chmod(0o777)
    with served.other("bin/spool", f"{served.rig.root}/spool", f"{spool}"):
        result = served.alice("--wait", "2")
    result.is_broken("learning", "nothing was learnt within 2 s", "feedback.spool")
    assert "spamnb forget" in result.checks["cleaning up"]["todo"]
    assert list(spool.glob("*.spam"))


def test_mail_that_bypasses_spamnb_is_reported(served, unchanged):
    """Without the headers of spamnb the check headers fails; the other checks run."""
    result = served.alice("--smtp", f"127.0.0.1:{served.rig.port['back']}")
    result.is_broken("headers", "did not pass through spamnb", "docs/postfix.md")
    assert result.checks["learning"]["state"] == "ok"


def test_the_mail_server_refuses(served, unchanged):
    """The report has the reply of the mail server."""
    result = served.alice("--rcpt", "alice@example.net")
    result.is_broken("delivery", "554 5.7.1", "the mail server's log")


def test_a_server_that_is_missing_in_local_hosts_is_named(served, unchanged):
    """The doctor finds the name after Dovecot's `by` in its own message."""
    config, name = served.daemon.config, socket.gethostname()
    text = config.read_text()
    config.write_text(text.replace(f', "{name}"', ""))
    served.daemon.spamnb("reload")
    try:
        result = served.alice()
    finally:
        config.write_text(text)
        served.daemon.spamnb("reload")
    result.is_broken("hosts", f"does not name {name}", f'hosts = ["mx.example.org", "{name}"]')


def test_a_wrong_port_of_the_return_listener_is_reported(served, unchanged):
    """Doctor and `config check` say the same of a port without Postfix; status warns."""
    (wrong,) = free_ports(1)
    right = served.rig.port["back"]
    config = served.daemon.config
    text = config.read_text()
    config.write_text(text.replace(f"127.0.0.1:{right}", f"127.0.0.1:{wrong}"))
    served.daemon.spamnb("reload")
    try:
        result = served.alice()
        checked = served.daemon.command("config", "check")
        # The workers publish their counters at their next heartbeat.
        warning = "could not pass mail to the next hop"
        until(lambda: warning in served.daemon.spamnb("status"), what="the warning")
    finally:
        config.write_text(text)
        served.daemon.spamnb("reload")
    assert result.names("broken")[:2] == ["next hops", "delivery"], result.whole
    check = result.checks["next hops"]
    assert f"127.0.0.1:{wrong}, does not answer" in check["what"]
    assert f"{check['what']} - {check['todo']}" in checked.err


def test_a_folder_that_is_not_there(served, unchanged):
    """An unknown junk folder makes the check mailbox fail, and its hint names --junk."""
    result = served.alice("--junk", "Werbung")
    result.is_broken("mailbox", "Werbung cannot be opened", "--junk")


def test_the_daemon_is_away(served, unchanged):
    """No mail is sent: its labels would wait in the spool, to be learnt later."""
    served.daemon.stop()
    try:
        result = served.alice()
        result.is_broken("daemon", "no daemon serves this home", "spamnb serve")
        assert result.checks["delivery"]["state"] == "skipped"
    finally:
        served.daemon.start()


def test_a_wrong_password(served, unchanged):
    """The check mailbox fails; no mail is sent. The last test: Dovecot delays later logins."""
    served.password.write_text("wrong\n")
    try:
        result = served.alice()
    finally:
        served.password.write_text("pw-alice\n")
    result.is_broken("mailbox", "refuses the login", "--user")
    assert result.checks["delivery"]["state"] == "skipped"
