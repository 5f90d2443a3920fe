"""A daemon with a console in tests, and a client for its API on TCP and unix sockets."""

import http.client
import json
import os
import socket
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from spamnb.engine.filter import Filter
from support.cli import spamnb
from support.daemon import NO_DELIVERY, serve, settings_in
from support.waiting import LIMIT_S, until

API = "/api/v1"
KEEP_ALL = """
[quarantine]
[actions]
deliver = "quarantine"
unsure = "quarantine"
junk = "quarantine"
reject = "quarantine"
[feedback]
unproven = "review"
"""
"""all mail waits in quarantine, and unproven reports in the review"""
SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"


class Reply(NamedTuple):
    """A reply, its body decoded if it is JSON."""

    status: int
    body: Any
    headers: dict

    @property
    def title(self):
        return self.body["title"]


class UnixConnection(http.client.HTTPConnection):
    """A connection to a unix socket, if need be as another user."""

    def __init__(self, path, uid):
        super().__init__("localhost", timeout=LIMIT_S)
        self._path, self._uid = path, uid

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        own = os.geteuid()
        if self._uid is not None:
            os.seteuid(self._uid)
        try:
            self.sock.connect(self._path)
        finally:
            os.seteuid(own)


class Api:
    """A client of one address, with a token or without.

    Each request comes from another address of the loopback network unless `source` is given,
    because rates are limited by address. A request beyond the rate of the token is sent again, when
    the reply says, unless `again` is false.
    """

    _sources = count(1)

    def __init__(self, address, token="", uid=None, source="", *, again=True, **headers):
        self.address, self.headers, self.uid, self.source = address, headers, uid, source
        self.again = again
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def connection(self):
        if self.address.startswith("unix:"):
            return UnixConnection(self.address[5:], self.uid)
        host, _, port = self.address.rpartition(":")
        number = next(self._sources)
        source = self.source or f"127.1.{number // 250 % 250}.{number % 250 + 1}"
        return http.client.HTTPConnection(
            host, int(port), timeout=LIMIT_S, source_address=(source, 0)
        )

    def ask(self, method, path, body=None, **query):
        """Send one request; a dict is sent as JSON, bytes are sent as a message."""
        headers = {name.replace("_", "-"): text for name, text in self.headers.items()}
        if isinstance(body, dict):
            body, kind = json.dumps(body).encode(), "application/json"
        else:
            kind = "message/rfc822"
        if body is not None:
            headers.setdefault("Content-Type", kind)
        target = path if path.startswith("/api") else API + path
        target += f"?{urlencode(query)}" if query else ""
        end = time.monotonic() + LIMIT_S
        reply = self._sent(method, target, body, headers)
        while reply.status == 429 and self.again and time.monotonic() < end:
            time.sleep(float(reply.headers["retry-after"]))
            reply = self._sent(method, target, body, headers)
        return reply

    def _sent(self, method, target, body, headers):
        connection = self.connection()
        try:
            connection.request(method, target, body, headers)
            return read(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **query):
        return self.ask("GET", path, **query)

    def post(self, path, body=None, **query):
        return self.ask("POST", path, body, **query)

    def found(self, count, **query):
        """Wait until so many verdicts are found."""

        def come():
            reply = self.get("/verdicts", **query)
            assert reply.status == 200, reply
            rows = reply.body.get("verdicts", ())
            return rows if len(rows) >= count else None

        return until(come, f"{count} verdicts")


def read(response):
    raw = response.read()
    is_json = "json" in response.getheader("Content-Type", "")
    return Reply(
        response.status, json.loads(raw) if is_json and raw else raw, dict(response.getheaders())
    )


def token(home, name, *scopes, user=""):
    """Create a token; its text."""
    named = ["--for", user] if user else []
    made = spamnb(home, "token", "create", "--name", name, "--scope", ",".join(scopes), *named)
    assert made.code == 0, made
    return made.out.strip()


def trained_home(folder):
    """Make a home in a folder, trained with some messages of the sample."""
    with Filter.open(folder / "home", create=True, history=False) as model:
        for label in ("ham", "spam"):
            for path in sorted((SAMPLE / label).iterdir())[:20]:
                model.learn(path.read_bytes(), label)


@contextmanager
def console(folder, address="127.0.0.1:0", url="", **settings):
    """Run a daemon with a console on the home in a folder; yields it and its address."""
    more = f'[console]\naddress = "{address}"\nurl = "{url}"\n' + settings.pop("more", "")
    settings = {**NO_DELIVERY, **settings, "more": more}
    with serve(folder, config=settings_in(folder, **settings)).ready() as daemon:
        yield daemon, daemon.address("console")
