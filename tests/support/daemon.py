"""A daemon in tests: a real process with a log of records, which is always stopped."""

import json
import os
import signal
import smtplib
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from contextlib import suppress
from pathlib import Path

from support.waiting import LIMIT_S, until

PROJECT = Path(__file__).resolve().parents[2]
TESTS = Path(__file__).resolve().parents[1]
END_S = 60
"""for a daemon to end after a signal, before it is killed"""


def environment(**more):
    """Return the environment of a daemon, without the settings of this machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPAMNB_", "LISTEN_"))}
    path = os.pathsep.join([str(PROJECT), str(TESTS)])
    own = {"PYTHONPATH": path, "SPAMNB_LOG_FORMAT": "json", "SPAMNB_AUTH_VERIFY": "false"}
    return kept | own | more


class Running:
    """A daemon that runs."""

    def __init__(self, command, **options):
        options.setdefault("env", environment())
        self.process = subprocess.Popen(
            list(map(str, command)), stderr=subprocess.PIPE, start_new_session=True, **options
        )
        self.records, self.plain = [], []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            try:
                self.records.append(json.loads(line))
            except ValueError:
                self.plain.append(line.decode().strip())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(END_S)
        self._reader.join(LIMIT_S)
        self.process.stderr.close()

    # -- the log ----------------------------------------------------------------------------------

    def logged(self, event, **fields):
        """List the records of an event."""
        return [
            record
            for record in list(self.records)
            if record.get("event") == event
            and all(record.get(name) == value for name, value in fields.items())
        ]

    def wait_for(self, event, count=1, **fields):
        """Wait for so many records of an event; return the last one."""

        def come():
            found = self.logged(event, **fields)
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None, (self.process.poll(), self.records, self.plain)
            return None

        try:
            return until(come, (event, fields))
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.records} {self.plain}") from error

    def ready(self):
        """Wait until it serves."""
        try:
            self.wait_for("ready")
        except AssertionError:
            self.__exit__()
            raise
        return self

    def address(self, listener):
        """Where a listener was bound."""
        return self.wait_for("listening", listener=listener)["address"]

    def port(self, listener="mx"):
        """Its port."""
        return int(self.address(listener).rpartition(":")[2])

    # -- processes --------------------------------------------------------------------------------

    def children(self, role, parent=None):
        """List the pids of a role, as the kernel has them."""
        parent = parent or self.process.pid
        listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in listed if f"spamnb.daemon\0{role}\0" in command_of(pid)]

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """End it with SIGTERM; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code


def command_of(pid):
    """Give a process's command line, with NULs; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


DELIVERY = '[delivery]\naddress = "127.0.0.1:0"\n'
"""the built-in delivery agent; a test with a next hop of its own needs no process for it"""
NO_DELIVERY = {"delivery": "", "listener": 'upstream = "127.0.0.1:9"'}
"""settings of a daemon that gets no mail"""


def let_others_enter(folder):
    """Let other users enter a folder of pytest, which closes its folders to other users."""
    for one in (folder, *folder.parents):
        if one == Path(tempfile.gettempdir()):
            return
        one.chmod(0o755)


SETTINGS = """
[serve]
user = "{user}"
workers = {workers}
{serve}
[listener.mx]
address = "{address}"
{listener}
{delivery}
{more}
"""


def settings_in(folder, **values):
    """Write a settings file with ports chosen by the kernel."""
    path = folder / "spamnb.toml"
    defaults = {
        "user": "root" if os.geteuid() == 0 else "",
        "workers": 1,
        "serve": "",
        "address": "127.0.0.1:0",
        "listener": "",
        "delivery": DELIVERY,
        "more": "",
    }
    text = SETTINGS.format(**(defaults | values))
    _refuse_the_default_port(tomllib.loads(text))
    path.write_text(text)
    return path


def _refuse_the_default_port(settings):
    """Refuse the default port of the delivery agent, which a daemon of another test may use."""
    listeners = settings["listener"].values()
    relays = [one for one in listeners if one.get("protocol", "smtp") == "smtp"]
    if any("upstream" not in one for one in relays):
        assert "address" in settings.get("delivery", {}), settings


def serve(folder, *arguments, config=None, **options):
    """Start `spamnb serve` on a home in a folder."""
    config = config or settings_in(folder)
    command = [sys.executable, "-m", "spamnb", "--home", folder / "home", "--config", config]
    return Running([*command, "serve", *arguments], **options)


def serve_slowly(folder, config):
    """Start a daemon with scan processes that are slow; see `daemon_children.slow_helper`."""
    program = [sys.executable, TESTS / "support" / "daemon_children.py", folder / "home", config]
    return Running([*program, "learner=real", "delivery=real", "worker=slow_worker"])


def hanging(folder, known=()):
    """Wait until a scan process hangs in a message; return its pid, which is not in `known`."""

    def found():
        pids = {int(path.name[8:]) for path in (folder / "home").glob("hanging-*")}
        return pids - set(known)

    return until(found, "a scan that hangs").pop()


def unhang(folder, pid):
    """Let the scan end."""
    (folder / "home" / f"hanging-{pid}").unlink()


def send(port, text="hello", subject="a note", to="bob@example.org"):
    """Send a message; its identity."""
    ident = f"<{time.monotonic_ns()}@example.org>"
    message = f"Subject: {subject}\r\nMessage-ID: {ident}\r\n\r\n{text}\r\n"
    with smtplib.SMTP("127.0.0.1", port, timeout=LIMIT_S) as client:
        client.sendmail("alice@example.com", [to] if isinstance(to, str) else to, message)
    return ident


def delivered(folder, ident, user="bob"):
    """Read the delivered messages with that identity, from the built-in Maildir."""
    new = (folder / "home" / "mail" / user).rglob("new/*")
    return [raw for raw in (path.read_bytes() for path in new) if ident.encode() in raw]
