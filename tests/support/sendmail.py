"""A real Sendmail on loopback that asks the daemon as a milter, in a folder of its own.

Sendmail need not be installed, because Debian installs either Sendmail or Postfix: $SENDMAIL may
name a program that was only unpacked. Sendmail waits a minute if the name of the host has no dot,
so it runs in a namespace with another host name. It refuses connections on a busy machine unless
its settings say otherwise.
"""

import contextlib
import os
import shutil
import signal
import smtplib
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.docs_snippets import changed, snippet
from support.postfix import free_ports
from support.sink import Sink
from support.waiting import LIMIT_S, until

PROGRAM = Path(os.environ.get("SENDMAIL") or "/usr/libexec/sendmail/sendmail")
MACROS = PROGRAM.parents[2] / "share/sendmail/cf"
HOST = "mx.example.org"

MC = """define(`_CF_DIR_', `{macros}/')dnl
include(`{macros}/m4/cf.m4')dnl
OSTYPE(`linux')dnl
define(`QUEUE_DIR', `{root}/queue')dnl
define(`STATUS_FILE', `{root}/statistics')dnl
define(`confPID_FILE', `{root}/sendmail.pid')dnl
define(`confSERVICE_SWITCH_FILE', `{root}/switch')dnl
define(`confCW_FILE', `{root}/names')dnl
define(`HELP_FILE', `')dnl
define(`ALIAS_FILE', `')dnl
define(`confTO_IDENT', `0')dnl
define(`confQUEUE_LA', `9999')dnl
define(`confREFUSE_LA', `9999')dnl
define(`SMART_HOST', `relay:[127.0.0.1]')dnl
define(`RELAY_MAILER_ARGS', `TCP $h {sink}')dnl
define(`RELAY_MAILER_FLAGS', `8')dnl
FEATURE(`no_default_msa')dnl
FEATURE(`nocanonify')dnl
FEATURE(`accept_unresolvable_domains')dnl
DAEMON_OPTIONS(`Name=MTA, Addr=127.0.0.1, Port={mx}')dnl
RELAY_DOMAIN(`example.org')dnl
{recipe}
MAILER(`smtp')dnl
{mailers}
"""


def why_not():
    """Return why Sendmail cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "Sendmail needs root to start"
    if not PROGRAM.exists() or not MACROS.is_dir():
        return "Sendmail is neither installed nor named by $SENDMAIL"
    missing = [name for name in ("m4", "unshare") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


needs_sendmail = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


class Sendmail:
    """Sendmail configured by the guide, ready to start."""

    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix="spamnb-sendmail-"))
        self.root.chmod(0o755)
        self.port = dict(zip(("mx", "filter"), free_ports(2), strict=True))
        self.sink = Sink()
        self.filters = ""
        """lines of other milters, before that of spamnb"""
        self.mailers = ""
        """lines after those of the mailer smtp"""
        self.process = None

    def settings(self):
        """The daemon's part of the recipe."""
        text = snippet("milter.md", "The listener", "spamnb.toml")
        return changed(text, {":10025": f":{self.port['filter']}"})

    def recipe(self):
        """The lines of the guide."""
        text = snippet("milter.md", "Sendmail", "sendmail.mc")
        return changed(text, {"inet:10025": f"inet:{self.port['filter']}"})

    def write(self):
        """Write the configuration."""
        (self.root / "queue").mkdir(mode=0o700)
        (self.root / "switch").write_text("hosts files\naliases files\n")
        (self.root / "names").touch()
        values = {"root": self.root, "macros": MACROS, "sink": self.sink.address.rpartition(":")[2]}
        values |= {"recipe": self.filters + self.recipe(), "mailers": self.mailers}
        (self.root / "sendmail.mc").write_text(MC.format(**values, **self.port))
        with (self.root / "sendmail.cf").open("wb") as cf:
            m4 = ["m4", f"{self.root}/sendmail.mc"]
            subprocess.run(m4, stdout=cf, check=True)

    def start(self):
        """Write the configuration, and begin."""
        self.write()
        run = f'hostname {HOST}; exec "$0" -bD -C "$1/sendmail.cf" -X "$1/traffic" -q1s'
        command = ["unshare", "--uts", "sh", "-c", run, str(PROGRAM), str(self.root)]
        self.process = subprocess.Popen(command, start_new_session=True)
        until(self.answers, what="Sendmail listening")

    def answers(self):
        """Whether Sendmail listens."""
        assert self.process.poll() is None, "Sendmail has ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port["mx"]), 1).close()
            return True
        return False

    def stop(self):
        """End it, and wait until it is gone."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(LIMIT_S)
        self.sink.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def log(self):
        """What Sendmail said and heard so far."""
        return (self.root / "traffic").read_text(errors="replace")

    def send(self, raw, to, sender="stranger@example.net"):
        """Send from outside, with the line ends of SMTP."""
        raw = raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        with smtplib.SMTP("127.0.0.1", self.port["mx"], timeout=LIMIT_S) as client:
            return client.sendmail(sender, to, raw)

    def relayed(self, tag):
        """Wait for the one message with a text that the next hop has got."""
        (raw,) = until(lambda: [one for one in self.sink.messages if tag.encode() in one])
        return raw
