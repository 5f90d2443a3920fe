"""A real Valkey or Redis server, started by a test on a socket of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spamnb.fleet.valkey import ValkeyLog
from spamnb.settings.values import FleetParams
from support.waiting import LIMIT_S

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
needs_valkey = pytest.mark.skipif(PROGRAM is None, reason="no valkey-server, no redis-server")


def _option(name, value):
    """An option as arguments: each word of a user or of addresses is a separate argument."""
    return [f"--{name}", *(value.split() if name in {"user", "bind", "replicaof"} else [value])]


class ValkeyServer:
    """A server that keeps every entry on its disk; `kill` and `start` as often as needed."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.path = self.folder / "s"
        self.process = None

    def start(self, **settings):
        plain = {
            "port": 0,
            "unixsocket": self.path,
            "dir": self.folder,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            # A server that is killed while it rewrites its files, as it does when they are large,
            # does not always start again: "the truncated file is not the last file".
            "auto-aof-rewrite-percentage": 0,
            "daemonize": "no",
        } | settings
        options = [word for name, value in plain.items() for word in _option(name, str(value))]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([PROGRAM, *options], stdout=log, stderr=log)
        self._wait()
        return self

    def _wait(self):
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(self.path))
                    client.sendall(b"PING\r\n")
                    if client.recv(64).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.01)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.path.unlink(missing_ok=True)

    kill_all = kill

    @staticmethod
    def url_of(path):
        """The url of a server with this socket."""
        return f"unix://{path}"

    def lose_some(self, chance):
        """Restart the server without the end of its file: it loses its newest entries."""
        self.kill()
        (file,) = (self.folder / "appendonlydir").glob("*.incr.aof")
        size = file.stat().st_size
        os.truncate(file, max(size - chance.randrange(1, 20_000), size // 2))
        self.start()

    def lose_all(self):
        """Restart the server without its files."""
        self.kill()
        shutil.rmtree(self.folder / "appendonlydir")
        self.start()

    def close(self):
        self.kill()

    def log(self, password="", **params):
        found = FleetParams(url=f"unix://{self.path}", append_s=LIMIT_S)
        return ValkeyLog(replace(found, **params), password)
