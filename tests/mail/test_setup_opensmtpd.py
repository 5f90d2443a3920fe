"""`spamnb setup` on a machine with a real OpenSMTPD that writes Maildirs."""

import os
import re
import shutil
import signal
import smtplib
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.cli import PROGRAM, Done, environment
from support.opensmtpd import (
    ALICE,
    NAMESPACES,
    PACKAGE,
    PLACE,
    QUEUE_GROUP,
    needs_opensmtpd,
)
from support.postfix import Daemon, free_ports
from support.setup_site import Site, done_by
from support.waiting import LIMIT_S, until

from spamnb.setup import opensmtpd
from spamnb.setup.edits import without_blocks

pytestmark = [
    needs_opensmtpd,
    pytest.mark.skipif(not shutil.which("nsenter"), reason="there is no program nsenter"),
]
CONF = """
# a comment
listen on 127.0.0.1 \\
    port {port}
action "local" maildir
match from any for domain "example.org" action "local"
"""
NO_DOVECOT = "[ ! -d /etc/dovecot ] || mount -t tmpfs none /etc/dovecot\n"


class SmtpdSite(Site):
    """OpenSMTPD in namespaces of its own, and the daemon."""

    def __init__(self, folder):
        self.root = Path(tempfile.mkdtemp(prefix="spamnb-smtpd-"))
        self.root.chmod(0o755)
        self.conf = self.root / "smtpd.conf"
        self.port, other = free_ports(2)
        # As the package installs it: with the group opensmtpq of the namespaces.
        control = self.root / "bin" / "smtpctl"
        control.parent.mkdir()
        shutil.copy(f"{PACKAGE}/usr/sbin/smtpctl", control)
        os.chown(control, 0, QUEUE_GROUP)
        control.chmod(0o2755)
        self.home = self.root / "alice"
        self.home.mkdir()
        shutil.chown(self.home, ALICE, ALICE)
        self.conf.write_text(CONF.format(port=self.port))
        self.daemon = Daemon(
            folder, f'[listener.other]\nprotocol = "milter"\naddress = "127.0.0.1:{other}"\n'
        )
        self.train()
        self.smtpd = None
        place = PLACE.format(package=PACKAGE, root=self.root, alice=ALICE, queue=QUEUE_GROUP)
        ready = self.root / "ready"
        holding = f"{place}{NO_DOVECOT}touch {ready}\nexec sleep infinity\n"
        self.holder = subprocess.Popen([*NAMESPACES, "sh", "-c", holding], start_new_session=True)
        until(ready.exists, "the namespaces")

    def inside(self, *command, **more):
        """Start a program in the namespaces."""
        path = f"{self.root}/bin:{PACKAGE}/usr/sbin:{os.environ['PATH']}"
        entering = ["nsenter", "-t", str(self.holder.pid), "-m", "-u", "--", *map(str, command)]
        variables = environment(PATH=path, SPAMNB_SERVE_USER="root")
        return subprocess.Popen(entering, env=variables, **more)

    def setup(self, *arguments):
        """Run `spamnb setup` in the namespaces."""
        common = ("--home", self.daemon.home, "--config", self.daemon.config)
        places = ("--opensmtpd", self.conf)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = self.inside(*PROGRAM, *common, "setup", *arguments, *places, **pipes)
        out, err = process.communicate(timeout=LIMIT_S)
        return Done(process.returncode, out, err)

    def restart(self):
        """Let OpenSMTPD read its settings."""
        self.end_smtpd()
        with (self.root / "log").open("a") as log:
            self.smtpd = self.inside("smtpd", "-d", "-f", self.conf, stdout=log, stderr=log)
        until(self.answers, "OpenSMTPD")

    def answers(self):
        assert self.smtpd.poll() is None, (self.root / "log").read_text()
        try:
            with smtplib.SMTP("127.0.0.1", self.port, timeout=LIMIT_S) as client:
                return client.noop()[0] == 250
        except OSError:
            return False

    def end_smtpd(self):
        if self.smtpd is None:
            return
        # `nsenter` becomes the program itself.
        self.smtpd.send_signal(signal.SIGTERM)
        self.smtpd.wait(LIMIT_S)

    def files(self):
        """All settings: path -> bytes."""
        paths = [self.conf, self.daemon.config, self.daemon.config.with_name("setup.json")]
        return {path: path.read_bytes() for path in paths if path.exists()}

    def submit(self, raw):
        """Send a message to Alice from outside."""
        with smtplib.SMTP("127.0.0.1", self.port, timeout=LIMIT_S) as client:
            text = raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
            client.sendmail("stranger@example.net", ["alice@example.org"], text)

    def arrives(self, message_id, folder=""):
        """Wait for a message of Alice; return it."""

        def found():
            paths = (self.home / "Maildir" / folder).glob("new/*")
            return [one for one in map(Path.read_bytes, paths) if message_id.encode() in one]

        return until(found, f"mail in {folder}")[0]

    def close(self):
        """End all."""
        self.end_smtpd()
        self.daemon.stop()
        self.holder.kill()
        self.holder.wait()
        shutil.rmtree(self.root)


@pytest.fixture
def site(tmp_path):
    made = SmtpdSite(tmp_path)
    try:
        made.daemon.start()
        made.restart()
        yield made
    finally:
        print((made.root / "log").read_text()[-4000:], made.daemon.log.read_text()[-4000:])
        made.close()


def test_from_bare_to_filed_and_taught(site):
    """Mail is scanned and filed, a move in the Maildir teaches, and removing leaves no byte."""
    before = site.files()
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))
    output = done_by(site.setup("--yes", "--answer", "act=file"))
    assert "after a restart" in output
    assert "spamnb watch" in output
    site.restart()
    spam = site.send("spam")
    assert b"X-Spam-Flag: YES" in site.arrives(spam, ".Junk")
    assert b"label=ham" in site.arrives(site.send("ham"))

    maildir = site.home / "Maildir"
    watch = ("watch", "--once", "--quiet", "0", f"alice={maildir}")
    site.daemon.spamnb(*watch)
    (path,) = (one for one in maildir.glob(".Junk/new/*") if spam.encode() in one.read_bytes())
    path.rename(maildir / "cur" / f"{path.name}:2,S")
    site.daemon.spamnb(*watch)
    entries = site.daemon.spamnb("journal", "--channel", "maildir", "--json")
    assert '"ham"' in entries

    site.is_done_and_taken_out(before)
    site.restart()
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))


PATHS = """listen on all
action a maildir "/srv/%{user.username}" virtual <v>
action b maildir ~/mail junk
action c mbox
"""
TWICE = """filter x proc-exec "filter-x"
listen on 192.0.2.1 filter x
listen on 192.0.2.2 filter x
"""
CONFS = {
    "debian": ('listen on localhost\naction "local" maildir alias <aliases>\n', 1, 1),
    "a socket, a submission port": (
        "listen on socket\nlisten on all tls pki p\nlisten on all port 587 tls pki p auth\n", 1, 0,
    ),
    "loopback beside all": ("listen on lo\nlisten on all inet4\n", 1, 0),
    "two addresses": ("listen on 192.0.2.1\nlisten on 192.0.2.2 tag x # a comment\n", 2, 0),
    "another filter": (
        'filter "x" proc-exec "filter-x"\nlisten on all filter "x" port 25\n', 1, 0,
    ),
    "one filter at two listeners": (TWICE, 2, 0),
    "paths of Maildirs": (PATHS, 1, 1),
    "no line feed at its end": ("action a maildir\nlisten on all \\\n  port 25", 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFS)
def test_settings_of_opensmtpd(site_paths, tmp_path, name):
    """The right listeners ask, the right actions file, and taken out all is as before."""
    text, listeners, actions = CONFS[name]
    file = tmp_path / "smtpd.conf"
    file.write_text(text)
    found = opensmtpd.find("/usr/bin/spamnb opensmtpd", "spamnb", file)
    assert found.problems == ()
    stage = found.stage("unix:/run/spamnb/scan.sock")
    after = stage.edits[0].after
    said = [line for line in after.splitlines() if not line.startswith("#")]
    asking = [one for one in said if re.search(r"listen .*filter", one)]
    assert len(asking) == listeners
    assert sum(" junk" in one for one in said) == actions + text.count(" junk")
    assert sum("proc-exec" in one and "/run/spamnb/scan.sock" in one for one in said) == 1
    assert without_blocks(after) == text
    file.write_text(after)
    again = opensmtpd.find("/usr/bin/spamnb opensmtpd", "spamnb", file)
    assert again.stage("unix:/run/spamnb/scan.sock") is None
    assert len(set(said)) == len(said)
    if name == "another filter":
        assert 'chain { "x", spamnb }' in after
        assert 'filter "x-and-spamnb" port 25' in after


@pytest.fixture
def site_paths(monkeypatch):
    """A path of programs with those of OpenSMTPD."""
    monkeypatch.setenv("PATH", f"{PACKAGE}/usr/sbin{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('filter "c" chain { "a", "b" }\nlisten on all filter "c"\n', "chain of filters"),
        ("listen on socket\n", "no listener"),
        ('include "/etc/mail/listeners"\n', "no listener"),
    ],
)
def test_an_opensmtpd_that_setup_leaves(site_paths, tmp_path, text, why):
    """Setup says why, and has no edit."""
    file = tmp_path / "smtpd.conf"
    file.write_text(text)
    assert why in opensmtpd.find("spamnb opensmtpd", "spamnb", file).problems[0]
