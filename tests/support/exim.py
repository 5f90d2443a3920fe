"""A real Exim on loopback that uses the daemon by a recipe in docs, with its own folder.

Exim need not be installed, because Debian installs either Exim or Postfix: $EXIM may name a program
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
ASKED, CONDITION = "spamc.md", "Exim"
USUAL = "/run/spamnb/scan.sock"
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
acl_smtp_data = acl_check_data
{main}
begin acl
acl_check_rcpt:
  defer condition = ${{if and{{{{eq{{$received_port}}{{{back}}}}}{{exists{{{root}/closed}}}}}}}}
{acl}
  accept domains = +local_domains
  deny message = relay not permitted
acl_check_data:
{data}
  accept
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


PARTS = ("main", "acl", "data", "routers", "junk_router", "transports", "junk_transport", "retry")


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


def why_not_scanning():
    """Return why Exim cannot ask a scanner; empty if it can."""
    if reason := why_not():
        return reason
    about = subprocess.run([PROGRAM, "-bV"], capture_output=True, text=True, check=False).stdout
    return "" if "Content_Scanning" in about else "this Exim has no content scanning"


needs_exim = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
needs_scanning_exim = pytest.mark.skipif(bool(why_not_scanning()), reason=why_not_scanning() or "-")


class Exim:
    """Exim that sends all mail to the daemon and takes it back, ready to start."""

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
        self.configure(self.parts())
        self.exim("-bd", "-q1s")
        until((self.root / "exim.pid").exists, what="Exim's number")

    def configure(self, parts):
        """Write the configuration."""
        settings = {
            "root": self.root,
            "back": self.port["back"],
            "program": PROGRAM,
            "user": USER,
            "people": " : ".join(PEOPLE),
        }
        empty = dict.fromkeys(PARTS, "")
        (self.root / "exim.conf").write_text(CONF.format(**(settings | empty | parts)))

    def exim(self, *arguments):
        """Run the program on its configuration."""
        command = [PROGRAM, "-C", self.root / "exim.conf", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def parts(self):
        """The snippets of the recipe."""
        mx, back, front = self.port["mx"], self.port["back"], self.port["filter"]
        return_port = {"10026": back}
        interfaces = {"= 25": f"= {mx}", "0.0.0.0 ; ::0": "127.0.0.1", **return_port}
        local_user = f"local_parts = {' : '.join(PEOPLE)}\n  user = {USER}"
        home = f"{self.root}/mail/$local_part_data"
        return {
            "main": _part(PAGE, WAY, "main", interfaces),
            "acl": _part(PAGE, WAY, "acl", return_port),
            "routers": _part(PAGE, WAY, "routers", return_port),
            "transports": _part(PAGE, WAY, "transports", {"10025": front}),
            "retry": _part(PAGE, WAY, "retry", {"1m": "1s"}),
            "junk_router": _part(PAGE, JUNK, "routers", {"check_local_user": local_user}),
            "junk_transport": _part(PAGE, JUNK, "transports", {"$home": home}),
        }

    def reload(self):
        """Let it read its configuration again."""
        # It listens before it writes that it has started.
        until(lambda: "daemon started" in self.log(), what="the start")
        before = self.log().count("daemon started")
        os.kill(int((self.root / "exim.pid").read_text()), signal.SIGHUP)
        until(lambda: self.log().count("daemon started") > before, what="the new configuration")

    def stop(self):
        """End it, and wait until it is gone."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int((self.root / "exim.pid").read_text())
            os.kill(pid, signal.SIGTERM)
            until(lambda: not Path(f"/proc/{pid}").exists(), what="the end")
        shutil.rmtree(self.root, ignore_errors=True)

    def refuse(self):
        """Make the port for returning mail refuse connections."""
        (self.root / "closed").touch()

    def take_again(self):
        """Accept again, and retry all waiting mail: Exim would wait 15 minutes for a retry."""
        (self.root / "closed").unlink()
        self.exim("-qff")

    def log(self):
        """What Exim wrote so far; it makes the file with its first line."""
        path = self.root / "log/mainlog"
        return path.read_text(errors="replace") if path.exists() else ""

    def send(self, raw, to, sender="stranger@example.net", **options):
        """Send from outside, with the line ends of SMTP."""
        raw = raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        with smtplib.SMTP("127.0.0.1", self.port["mx"], timeout=LIMIT_S) as client:
            return client.sendmail(sender, to, raw, **options)

    def delivered(self, name, tag, folder=""):
        """Messages of a person that hold a text; `folder` is ".Junk" and the like."""
        found = (self.root / "mail" / name / "Maildir" / folder / "new").glob("*")
        return [raw for raw in map(Path.read_bytes, found) if tag.encode() in raw]


class AskingExim(Exim):
    """Exim that asks the daemon by its `spam` condition."""

    def __init__(self, protocol):
        """`protocol`: "protocol of spamd" or "protocol of rspamd"."""
        super().__init__()
        self.protocol = protocol
        self.socket = str(self.root / "scan.sock") if protocol.endswith("rspamd") else ""
        """at which it asks; empty: at the port"""

    def settings(self):
        """The daemon's part of the recipe."""
        text = snippet(ASKED, "The listener", "spamnb.toml")
        tcp, table, local = text.partition("[listener.local]")
        if self.socket:
            return table + changed(local, {USUAL: self.socket})
        return changed(tcp, {":783": f":{self.port['filter']}"})

    def parts(self):
        """The snippets of the recipe."""
        usual = USUAL if self.protocol.endswith("rspamd") else "127.0.0.1 783"
        address = {usual: self.socket or f"127.0.0.1 {self.port['filter']}"}
        asked = _part(ASKED, CONDITION, f"main section, {self.protocol}", address)
        plain = self.without_filter()
        acl = _part(ASKED, CONDITION, f"acl for DATA, {self.protocol}")
        shown = "       logwrite = action $spam_action.\n"
        return {"main": plain["main"] + asked, "data": acl + shown}

    def without_filter(self):
        """What remains on the way back."""
        return {"main": f"daemon_smtp_ports = {self.port['mx']}\nlocal_interfaces = 127.0.0.1\n"}


def _part(page, section, part, changes=None):
    """A snippet without its first line, which is a comment only where Exim wants it."""
    text = snippet(page, section, f"exim4.conf: {part}")
    return (changed(text, changes) if changes else text).partition("\n")[2]
