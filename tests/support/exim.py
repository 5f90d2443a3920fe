"""A real Exim on loopback around the daemon, by the recipe in docs, with its own folder.

It need not be installed, because Debian installs either it or Postfix: $EXIM may name a program
that was only unpacked. Nothing of the machine's mail system is read or changed.
"""

import contextlib
import os
import pwd
import shutil
import signal
import smtplib
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.docs_snippets import changed, snippet
from support.postfix import PEOPLE, free_ports
from support.waiting import LIMIT_S, until

PAGE, WAY, JUNK = "exim.md", "After the queue", "File spam into Junk"
USER = "Debian-exim"
PROGRAM = os.environ.get("EXIM") or shutil.which("exim4")

CONF = """
exim_path = {program}
spool_directory = {root}/spool
log_file_path = {root}/log/%slog
pid_file_path = {root}/exim.pid
primary_hostname = mx.example.org
domainlist local_domains = example.org
keep_environment =
never_users =
deliver_drop_privilege = true
tls_advertise_hosts =
acl_smtp_rcpt = acl_check_rcpt
{main}
begin acl
acl_check_rcpt:
  defer condition = ${{if and{{{{eq{{$received_port}}{{{back}}}}}{{exists{{{root}/closed}}}}}}}}
{acl}
  accept domains = +local_domains
  deny message = relay not permitted
begin routers
{routers}
{junk_router}
people:
  driver = accept
  domains = +local_domains
  local_parts = {people}
  transport = people
begin transports
{transports}
{junk_transport}
people:
  driver = appendfile
  maildir_format
  directory = {root}/mail/$local_part_data/Maildir
  user = {user}
begin retry
{retry}
*  *  F,2h,15m
"""


def why_not():
    """Return why Exim cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "Exim needs root to start"
    if PROGRAM is None:
        return "Exim is neither installed nor named by $EXIM"
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return f"there is no user {USER}, as whom Debian's Exim runs"
    return ""


needs_exim = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


class Exim:
    """Exim configured by the guide, ready to start."""

    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix="spamnb-exim-"))
        self.root.chmod(0o755)
        self.port = dict(zip(("mx", "back", "filter"), free_ports(3), strict=True))

    def settings(self):
        """The daemon's part of the recipe."""
        front, back = (f"127.0.0.1:{self.port[name]}" for name in ("filter", "back"))
        text = snippet(PAGE, WAY, "spamnb.toml")
        return changed(text, {"127.0.0.1:10025": front, "127.0.0.1:10026": back})

    def start(self):
        """Write the configuration, and begin."""
        for sub in ("spool", "log", "mail"):
            (self.root / sub).mkdir()
            shutil.chown(self.root / sub, USER, USER)
        (self.root / "exim.conf").write_text(self._conf())
        self.exim("-bd", "-q1s")
        until((self.root / "exim.pid").exists, what="Exim's number")

    def exim(self, *arguments):
        """Run the program on its configuration."""
        command = [PROGRAM, "-C", self.root / "exim.conf", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _conf(self):
        mx, back, front = self.port["mx"], self.port["back"], self.port["filter"]
        return_port = {"10026": back}
        interfaces = {"= 25": f"= {mx}", "0.0.0.0 ; ::0": "127.0.0.1", **return_port}
        local_user = f"local_parts = {' : '.join(PEOPLE)}\n  user = {USER}"
        home = f"{self.root}/mail/$local_part_data"
        return CONF.format(
            root=self.root, back=back, program=PROGRAM, user=USER,
            people=" : ".join(PEOPLE),
            main=_part(WAY, "main", interfaces),
            acl=_part(WAY, "acl", return_port),
            routers=_part(WAY, "routers", return_port),
            transports=_part(WAY, "transports", {"10025": front}),
            retry=_part(WAY, "retry", {"1m": "1s"}),
            junk_router=_part(JUNK, "routers", {"check_local_user": local_user}),
            junk_transport=_part(JUNK, "transports", {"$home": home}),
        )  # fmt: skip

    def stop(self):
        """End it, and wait until it is gone."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int((self.root / "exim.pid").read_text())
            os.kill(pid, signal.SIGTERM)
            until(lambda: not Path(f"/proc/{pid}").exists(), what="the end")
        shutil.rmtree(self.root, ignore_errors=True)

    def refuse(self):
        """Let the port for what comes back refuse for now."""
        (self.root / "closed").touch()

    def take_again(self):
        """No longer; and all that waits is tried, for a recipient's retry is 15 minutes away."""
        (self.root / "closed").unlink()
        self.exim("-qff")

    def log(self):
        """What Exim wrote so far."""
        return (self.root / "log/mainlog").read_text(errors="replace")

    def send(self, raw, to, sender="stranger@example.net", **options):
        """Send from outside, with the line ends of SMTP."""
        raw = raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        with smtplib.SMTP("127.0.0.1", self.port["mx"], timeout=LIMIT_S) as client:
            return client.sendmail(sender, to, raw, **options)

    def delivered(self, name, tag, folder=""):
        """Messages of a person that hold a text; `folder` is ".Junk" and the like."""
        found = (self.root / "mail" / name / "Maildir" / folder / "new").glob("*")
        return [raw for raw in map(Path.read_bytes, found) if tag.encode() in raw]


def _part(section, part, changes):
    """A snippet of the page without its first line, which is a comment only where Exim wants it."""
    text = snippet(PAGE, section, f"exim4.conf: {part}")
    return changed(text, changes).partition("\n")[2]
