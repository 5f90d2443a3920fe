"""A client of the pages that sends what browsers would not."""

import http.client
import ssl
from itertools import count
from typing import Any
from urllib.parse import urlencode

from spamnb.console.page import Visitor
from support.browser import PASSWORD
from support.daemon import send
from support.waiting import LIMIT_S

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SOURCES = count(1)


class Answer:
    """A reply of the pages."""

    def __init__(self, reply):
        self.status, self.headers = reply.status, dict(reply.getheaders())
        self.text = reply.read().decode()

    @property
    def cookie(self):
        return self.headers.get("set-cookie", "").partition(";")[0]


class Rig:
    """A daemon with pages, and a client that sends what browsers would not."""

    def __init__(self, folder, daemon, url, tls=None):
        self.folder, self.daemon = folder, daemon
        self.home, self.host = folder / "home", url.partition("//")[2]
        self.tls = tls and ssl.create_default_context(cafile=tls)

    def ask(self, method, path, form=None, *, source="", **headers):
        """Send one request, each from another address unless `source` is given."""
        number = next(SOURCES)
        source = source or f"127.2.{number // 250}.{number % 250 + 1}"
        host, _, port = self.host.rpartition(":")
        more: dict[str, Any] = {"timeout": LIMIT_S, "source_address": (source, 0)}
        if self.tls:
            more["context"] = self.tls
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = kind(host, int(port), **more)
        headers = {name.replace("_", "-"): text for name, text in headers.items()}
        body = None if form is None else urlencode(form, doseq=True)
        connection.request(method, path, body, headers | (FORM if form is not None else {}))
        reply = Answer(connection.getresponse())
        connection.close()
        return reply

    def get(self, path, cookie="", **headers):
        return self.ask("GET", path, **headers, **({"Cookie": cookie} if cookie else {}))

    def post(self, path, form, cookie="", **headers):
        headers = {"Sec_Fetch_Site": "same-origin"} | headers
        headers = {name: value for name, value in headers.items() if value is not None}
        return self.ask("POST", path, form, Cookie=cookie, **headers)

    def log_in(self, login, password=PASSWORD, **more):
        return self.post("/login", {"login": login, "password": password}, **more)

    @staticmethod
    def token(path, cookie):
        """The token that forms for a path have in a session."""
        return Visitor("", "user", (), cookie.partition("=")[2]).form_token(path)

    def deliver(self, to):
        known = len(self.daemon.logged("message"))
        send(self.daemon.port(), f"text {known}", f"subject {known}", to)
        return self.daemon.wait_for("message", known + 1)["signature"]
