"""A real OpenSMTPD, only unpacked, in namespaces of its own.

It cannot be installed beside another mail server, and its folders are compiled in. $OPENSMTPD names
the folder of the unpacked package. In the namespaces its users and a user alice exist, and its
folders are in memory; no file of the machine is read or changed.
"""

import os
import shutil
import signal
import smtplib
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.daemon import command_of
from support.docs_snippets import changed, snippet
from support.postfix import children, free_ports
from support.waiting import LIMIT_S, until

PACKAGE = os.environ.get("OPENSMTPD", "")
NAMESPACES = ("unshare", "--mount", "--uts", "--")
ALICE = 61_790
QUEUE_GROUP = 61_792
PLACE = """
set -e
for folder in /var/spool /var/lib /run; do mount -t tmpfs none $folder; done
mkdir -p /var/lib/opensmtpd/empty /run/etc
mkdir -m 711 /var/spool/smtpd
mount --bind {package}/usr/libexec /usr/libexec
cp /etc/passwd /etc/group /run/etc
for name in opensmtpd:61791 opensmtpq:{queue} alice:{alice}; do
    echo "${{name%:*}}:x:${{name#*:}}:${{name#*:}}::{root}/${{name%:*}}:/bin/sh" >>/run/etc/passwd
    echo "${{name%:*}}:x:${{name#*:}}:" >>/run/etc/group
done
mount --bind /run/etc/passwd /etc/passwd
mount --bind /run/etc/group /etc/group
hostname mx.example.org
"""
"""what its namespaces need before it starts"""
START = PLACE + "exec {package}/usr/sbin/smtpd -d -f {root}/smtpd.conf\n"


def why_not():
    """Return why OpenSMTPD cannot run here; empty if it can."""
    if not PACKAGE:
        return "$OPENSMTPD names no unpacked package of OpenSMTPD"
    if os.geteuid() != 0:
        return "OpenSMTPD needs root to start"
    if not shutil.which("unshare") or not Path("/usr/libexec").is_dir():
        return "there is no program unshare, or no folder /usr/libexec"
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"no namespaces: {tried.stderr.decode()}"


needs_opensmtpd = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


class OpenSmtpd:
    """OpenSMTPD with the snippet of the documentation."""

    def __init__(self, socket_path, *options):
        self.root = Path(tempfile.mkdtemp(prefix="spamnb-smtpd-"))
        self.root.chmod(0o755)
        (self.port,) = free_ports(1)
        self.mail = self.root / "alice" / "Maildir"
        self.mail.parent.mkdir()
        shutil.chown(self.mail.parent, ALICE, ALICE)
        command = " ".join((str(socket_path), *options))
        changes = {
            "/usr/local/bin/spamnb opensmtpd": f"{self._program()} opensmtpd {command}",
            "user spamnb": "user root",
            "listen on 0.0.0.0": f"listen on 127.0.0.1 port {self.port}",
        }
        conf = changed(snippet("opensmtpd.md", "OpenSMTPD", "/etc/smtpd.conf"), changes)
        conf += 'match from any for domain "example.org" action "local"\n'
        (self.root / "smtpd.conf").write_text(conf)
        start = START.format(package=PACKAGE, root=self.root, alice=ALICE, queue=QUEUE_GROUP)
        with (self.root / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*NAMESPACES, "sh", "-c", start], stdout=log, stderr=log, start_new_session=True
            )

    def _program(self):
        path = self.root / "spamnb"
        paths = os.pathsep.join(filter(None, sys.path))
        run = f"PYTHONPATH={paths} exec {sys.executable} -m spamnb"
        path.write_text(f'#!/bin/sh\n{run} "$@"\n')
        path.chmod(0o755)
        return path

    def __enter__(self):
        return self

    def ready(self):
        """Wait until it accepts mail."""

        def answers():
            assert self.process.poll() is None, self.log()
            try:
                with smtplib.SMTP("127.0.0.1", self.port, timeout=LIMIT_S) as client:
                    return client.noop()[0] == 250
            except OSError:
                return False

        until(answers, "OpenSMTPD")
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(LIMIT_S)
        print(self.log()[-6000:])  # shown if the test fails
        shutil.rmtree(self.root)

    def filter_process(self):
        """The pid of the filter; because of `exec` it is a single process."""
        found = children(self.process.pid)
        return next(pid for pid in found if "spamnb.opensmtpd" in command_of(pid))

    def log(self):
        """Read what it has written."""
        return (self.root / "log").read_text(errors="replace")

    def send(self, raw, sender="stranger@example.net"):
        """Send a message to alice; the last reply."""
        raw = raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        with smtplib.SMTP("127.0.0.1", self.port, timeout=LIMIT_S) as client:
            client.ehlo("client.example.net")
            client.mail(sender, ["BODY=8BITMIME"])
            assert client.rcpt("alice@example.org")[0] == 250
            return client.data(raw)

    def delivered(self, tag, folder="."):
        """Messages of alice that hold a text."""
        found = (self.mail / folder / "new").glob("*")
        return [raw for raw in map(Path.read_bytes, found) if tag in raw]
