"""A real PostgreSQL server, started by a test on a socket of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spamnb.fleet.membership import open_log
from spamnb.settings.values import FleetParams
from support.waiting import LIMIT_S, until

_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
_PATH = os.pathsep.join([os.environ.get("PATH", ""), *map(str, _FOLDERS)])
_NAMES = "initdb", "pg_basebackup", "postgres"
PROGRAMS = {name: shutil.which(name, path=_PATH) for name in _NAMES}
needs_postgres = pytest.mark.skipif(not all(PROGRAMS.values()), reason=f"no {_NAMES}")
OPTIONS = {"listen_addresses": "", "shared_buffers": "4MB", "max_connections": 20}


def _user():
    """The program refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class PostgresServer:
    """A server that keeps every entry on its disk; `kill` and `start` as often as needed."""

    def __init__(self, primary=None):
        """With `primary`: a standby of it, which copies the files of the primary now."""
        self.folder = Path(tempfile.mkdtemp(prefix="p"))
        self.data, self._saved = self.folder / "data", self.folder / "saved"
        self.path = self.folder / ".s.PGSQL.5432"
        self.url = self.url_of(self.path)
        self.process = None
        self._as = _user()
        if self._as:
            os.chown(self.folder, self._as["user"], self._as["group"])
        if primary is None:
            command = [PROGRAMS["initdb"], "-U", "spamnb", "-A", "trust", "-E", "UTF8"]
            command += ["--locale=C", "--no-sync"]
        else:
            command = [PROGRAMS["pg_basebackup"], "-U", "spamnb", "-h", str(primary.folder)]
            command += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        command += ["-D", str(self.data)]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._as)

    def start(self, **settings):
        options = OPTIONS | {"unix_socket_directories": self.folder} | settings
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = [PROGRAMS["postgres"], "-D", str(self.data), *words]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, **self._as
            )
        self._wait()
        return self

    def _wait(self):
        """Wait until the server says that it is ready, in the file of its process."""
        until, file = time.monotonic() + LIMIT_S, self.data / "postmaster.pid"
        while True:
            lines = file.read_text().splitlines() if file.exists() else []
            if lines[:1] == [str(self.process.pid)] and lines[7:] == ["ready   "]:
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.01)

    def encrypt(self, key, certificate):
        """Use this certificate, and accept all clients on the machine."""
        for source, name in ((key, "server.key"), (certificate, "server.crt")):
            shutil.copyfile(source, self.data / name)
            (self.data / name).chmod(0o600)
            if self._as:
                os.chown(self.data / name, self._as["user"], self._as["group"])
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 127.0.0.0/8 trust\n")

    def kill(self):
        """End the server without a checkpoint, as a crash does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
            self.process = None

    def kill_all(self):
        """Kill all processes of the server with SIGKILL."""
        if self.process is None:
            return
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        self.process.kill()
        for child in map(int, listed.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait()
        # A server does not start while a process of the old server uses its memory.
        for child in map(int, listed.split()):
            until(lambda child=child: _is_gone(child), "the end of a process")
        self.process = None

    def lose_some(self, chance):
        """Restart the server with older files, from an earlier call of this function."""
        if self._saved.exists() and chance.random() < 0.7:
            self.put_back()
        else:
            self.save()

    def lose_all(self):
        """Remove all rows, as if the server had been made anew."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT string_agg(tablename, ',') FROM pg_tables WHERE tablename LIKE 'spamnb_%'"
            ).fetchone()[0]
            connection.execute(f"TRUNCATE {found}")

    @staticmethod
    def url_of(path):
        """The url of a server with this socket."""
        return f"postgresql://spamnb@/postgres?host={path.parent}"

    def save(self):
        """Keep the files as they are; the server is restarted."""
        self.kill()
        shutil.rmtree(self._saved, ignore_errors=True)
        self._copy(self.data, self._saved)
        self.start()

    def put_back(self):
        """Restart the server with the files that were kept."""
        self.kill()
        shutil.rmtree(self.data)
        self._copy(self._saved, self.data)
        self.start()

    def _copy(self, old, new):
        subprocess.run(["cp", "-a", old, new], check=True)

    def log(self, password="", **params):
        found = FleetParams(url=self.url, append_s=LIMIT_S, name=secrets.token_hex(8))
        return open_log(replace(found, **params), password)

    def close(self):
        self.kill()
        shutil.rmtree(self.folder)


def _is_gone(process):
    """Whether a process has ended and has released its memory."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
