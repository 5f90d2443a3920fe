"""A real Postfix and a real Dovecot on loopback, in a folder of their own, around a filter.

The machine's own mail system is not read or changed, no port is fixed, and no mail can leave the
machine: mail for other domains is dropped. The snippets of the documentation connect both servers
to the filter.
"""

import contextlib
import grp
import itertools
import os
import pwd
import random
import shutil
import signal
import smtplib
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support import dovecot_versions
from support.cli import forked
from support.waiting import LIMIT_S, until

PROJECT = Path(__file__).resolve().parents[2]
PROGRAMS = ("postfix", "postconf")
PEOPLE = ("alice", "bob")
DOMAIN = "example.org"
STRANGER = "203.0.113.9"

MAIN_CF = """
compatibility_level = 3.6
queue_directory = {root}/queue
data_directory = {root}/data
mail_owner = postfix
setgid_group = postdrop
daemon_directory = {daemons}
command_directory = /usr/sbin
maillog_file = {root}/maillog
maillog_file_prefixes = {root}
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = mx.example.org
mydestination =
mynetworks = 192.0.2.0/24
alias_maps =
alias_database =
local_recipient_maps =
disable_dns_lookups = yes
smtp_host_lookup = native
smtp_dns_support_level = disabled
default_transport = discard:
relay_transport = discard:
notify_classes =
minimal_backoff_time = 1s
maximal_backoff_time = 2s
queue_run_delay = 1s
virtual_mailbox_domains = example.org
virtual_mailbox_maps = inline:{{ alice@example.org=x, bob@example.org=x, nobody@example.org=x,
    spam@example.org=x, ham@example.org=x }}
virtual_transport = lmtp:inet:127.0.0.1:{lmtp}
smtpd_relay_restrictions = permit_sasl_authenticated, reject_unauth_destination
smtpd_peername_lookup = no
local_header_rewrite_clients =
smtpd_client_connection_count_limit = 0
smtpd_authorized_xclient_hosts = 127.0.0.1
message_size_limit = 30000000
mailbox_size_limit = 0
smtpd_sasl_type = dovecot
smtpd_sasl_path = {root}/dovecot/auth
"""

MASTER_CF = """
127.0.0.1:{submission} inet n - n - - smtpd
    -o syslog_name=postfix/submission
    -o smtpd_sasl_auth_enable=yes
    -o smtpd_relay_restrictions=permit_sasl_authenticated,reject
pickup     unix  n - n 60 1 pickup
cleanup    unix  n - n - 0 cleanup
qmgr       unix  n - n 300 1 qmgr
tlsmgr     unix  - - n 1000? 1 tlsmgr
rewrite    unix  - - n - - trivial-rewrite
bounce     unix  - - n - 0 bounce
defer      unix  - - n - 0 bounce
trace      unix  - - n - 0 bounce
verify     unix  - - n - 1 verify
flush      unix  n - n 1000? 0 flush
proxymap   unix  - - n - - proxymap
smtp       unix  - - n - - smtp
showq      unix  n - n - - showq
error      unix  - - n - - error
retry      unix  - - n - - error
discard    unix  - - n - - discard
lmtp       unix  - - n - - lmtp
anvil      unix  - - n - 1 anvil
scache     unix  - - n - 1 scache
postlog    unix-dgram n - n - 1 postlogd
"""


def why_not():
    """Return why Postfix cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "Postfix and Dovecot need root to start"
    missing = [name for name in PROGRAMS if shutil.which(name) is None] + dovecot_versions.missing()
    return f"not installed: {', '.join(missing)}" if missing else ""


needs_rig = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


WORKERS = 16


def _candidates():
    """Every port that this worker may use, in random order, over and over."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    least = int(given.read_text().split()[0]) if given.exists() else 32_768
    ports = range(10_000 + worker, max(least, 30_000), WORKERS)
    return itertools.cycle(random.SystemRandom().sample(ports, len(ports)))


CANDIDATES = _candidates()


def free_ports(count):
    """Ports on which no server listens now, and that no other test gets.

    They are outside the kernel's range for outgoing connections: before the servers have started, a
    connection of another test could take a port of that range. A port that was given out is not
    given out again before all others were: until its server has started, nothing shows that it is
    taken. Tests that run beside this one in another worker of pytest-xdist get other ports.
    """
    found = []
    for port in itertools.islice(CANDIDATES, 1000):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports")


def _run(*command):
    # Into a file: a background process would keep a pipe open forever.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, stdout=output, stderr=output, check=False)
        output.seek(0)
        assert done.returncode == 0, output.read().decode()


def children(pid):
    """Processes below one, by /proc."""
    found: list[int] = []
    look = [pid]
    while look:
        one = look.pop()
        with contextlib.suppress(OSError):
            kids = Path(f"/proc/{one}/task/{one}/children").read_text().split()
            found += map(int, kids)
            look += map(int, kids)
    return found


class Daemon:
    """`spamnb serve` as a program, and commands on the same home and settings."""

    def __init__(self, folder, toml, user="root"):
        self.home = folder / "home"
        self.config = folder / "spamnb.toml"
        self.log = folder / "spamnb.log"
        self.config.write_text(toml)
        self.environment = os.environ | {"SPAMNB_SERVE_USER": user, "PYTHONPATH": str(PROJECT)}
        self.process = None

    def command(self, *arguments):
        """Run a command on the same home; return its exit code and output."""
        user = self.environment["SPAMNB_SERVE_USER"]
        return forked(self.home, "--config", self.config, *arguments, SPAMNB_SERVE_USER=user)

    def spamnb(self, *arguments):
        """Run a command that succeeds on the same home; return its output."""
        done = self.command(*arguments)
        assert done.code == 0, done.err
        return done.out

    def start(self):
        """Begin, and wait until all of it is ready."""
        began = self.begin()
        until(lambda: " ready " in self._output_since(began), "the daemon's being ready")

    def begin(self):
        """Start; return the position in the log."""
        command = [sys.executable, "-m", "spamnb", "--home", self.home, "--config", self.config]
        with self.log.open("a") as log:
            began = log.tell()
            self.process = subprocess.Popen(
                [*command, "serve"], stderr=log, stdout=log, env=self.environment
            )
        return began

    def _output_since(self, start):
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_bytes()[start:].decode()

    def stop(self):
        """End it, and wait."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(LIMIT_S) == 0, self.log.read_text()

    @contextlib.contextmanager
    def damaged(self):
        """Run the daemon with an unreadable model; afterwards with the previous one."""
        data = self.home / "data.mdb"
        whole = data.read_bytes()
        self.stop()
        try:
            data.write_bytes(b"\xff" * len(whole))
            self.start()
            yield
        finally:
            self.stop()
            data.write_bytes(whole)
            self.start()

    def kill(self):
        """Kill all its processes, as the kernel does when memory runs out."""
        for pid in (self.process.pid, *children(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)


@contextlib.contextmanager
def started(server):
    """Run a mail server with its daemon; their logs are shown if the test fails."""
    try:
        server.daemon.start()
        server.start()
        yield
    finally:
        with contextlib.suppress(OSError):
            print(server.log()[-8000:], server.daemon.log.read_text()[-8000:], sep="\n")
        server.daemon.stop()
        server.stop()


class Rig:
    """Postfix and Dovecot, ready to be started."""

    def __init__(self):
        # Not pytest's folder: it is closed to other users, and its path is too long for sockets.
        self.root = Path(tempfile.mkdtemp(prefix="spamnb-rig-"))
        self.root.chmod(0o755)
        names = ("mx", "back", "filter", "submission", "lmtp", "imap", "post")
        self.port = dict(zip(names, free_ports(len(names)), strict=True))
        self.master, self.main, self.dovecot = "", "", ""
        self.files = {}
        self.daemon: Any = None
        """the daemon of this server; the test makes it when the ports are known"""

    def start(self):
        """Write everything and start both."""
        root = self.root
        for sub in ("postfix", "data", "queue", "mail", "dovecot/run", "dovecot/sieve"):
            (root / sub).mkdir(parents=True)
        shutil.chown(root / "data", "postfix", "postfix")
        shutil.chown(root / "mail", "mail", "mail")
        mail = pwd.getpwnam("mail").pw_uid, grp.getgrnam("mail").gr_gid
        daemons = subprocess.run(
            ["postconf", "-dh", "daemon_directory"], capture_output=True, text=True, check=True
        ).stdout.strip()
        values = self.port | {"root": root, "uid": mail[0], "gid": mail[1], "daemons": daemons}
        (root / "postfix/main.cf").write_text(MAIN_CF.format(**values) + self.main)
        (root / "postfix/master.cf").write_text(self.master + MASTER_CF.format(**values))
        (root / "dovecot/dovecot.conf").write_text(
            dovecot_versions.settings(**values) + self.dovecot
        )
        users = "".join(f"{name}:{{PLAIN}}pw-{name}::::::\n" for name in PEOPLE)
        (root / "dovecot/users").write_text(users)
        for path, text in self.files.items():
            self._file(root / path, text)
        conf = root / "dovecot/dovecot.conf"
        for path in (root / "dovecot/sieve").glob("*.sieve"):
            _run(*dovecot_versions.command("sievec", "-c", conf, path))
        self.start_dovecot()
        self.postfix("start")
        for name in ("submission", "lmtp", "imap"):
            until(lambda name=name: self.answers(name), what=f"{name} listening")

    def postfix(self, command):
        """Run a command of Postfix."""
        _run("postfix", "-c", self.root / "postfix", command)

    def start_dovecot(self):
        """Start it, and wait for its pid file, which it writes after the command has ended."""
        _run(*dovecot_versions.command("dovecot", "-c", self.root / "dovecot/dovecot.conf"))
        until(self.dovecot_pid, what="Dovecot's number")

    def dovecot_pid(self):
        """The number of its first process; None if it is not there yet."""
        path = self.root / "dovecot/run/master.pid"
        text = path.read_text() if path.exists() else ""
        return int(text) if text else None

    def _file(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def answers(self, name):
        """Whether a server listens at the port of that name."""
        try:
            socket.create_connection(("127.0.0.1", self.port[name]), 1).close()
        except OSError:
            return False
        return True

    def stop(self):
        """End both, and wait until they are gone."""
        for path in ("queue/pid/master.pid", "dovecot/run/master.pid"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                pid = int((self.root / path).read_text())
                os.kill(pid, signal.SIGTERM)
                until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), what="the end")

        shutil.rmtree(self.root)

    def log(self):
        """Postfix's log so far."""
        return (self.root / "maillog").read_text(errors="replace")

    def send(self, raw, to, sender="stranger@example.net", greeting=None, **options):
        """Send as a machine of the internet; Postfix takes its address from XCLIENT."""
        with smtplib.SMTP("127.0.0.1", self.port["mx"], timeout=LIMIT_S) as client:
            client.ehlo()
            assert client.docmd("XCLIENT", f"ADDR={STRANGER} NAME=[UNAVAILABLE]")[0] == 220
            if greeting is not None:
                client.ehlo(greeting)
            return client.sendmail(sender, to, raw, **options)

    def submit(self, raw, to, login):
        """Send as a logged-in user."""
        with smtplib.SMTP("127.0.0.1", self.port["submission"], timeout=LIMIT_S) as client:
            client.login(login, f"pw-{login}")
            return client.sendmail(f"{login}@{DOMAIN}", to, raw)

    def sendmail(self, raw, to, sender):
        """Send as a program of this machine does, without a login."""
        command = ["sendmail", "-C", self.root / "postfix", "-f", sender, to]
        subprocess.run(command, input=raw.replace(b"\r\n", b"\n"), check=True)

    def delivered(self, name, tag, folder=""):
        """Messages of a person that hold a text; `folder` is ".Junk" and the like."""
        place = self.root / "mail" / name / "Maildir" / folder
        found = [*place.glob("new/*"), *place.glob("cur/*")]
        return [raw for raw in map(Path.read_bytes, found) if tag.encode() in raw]
