"""What a client gets that has sent too many requests: a reply, before its request is read."""

import asyncio
import socket

import pytest

from spamnb.console.page import Visitors
from spamnb.console.pages_http import ConsoleUsers
from spamnb.console.server import ConsoleApp, ConsoleServer
from spamnb.console.site import BURST, ApiConnection, Callers, ConsoleAccess
from spamnb.operations.logins import TokenFile
from spamnb.records.console import SessionStore

BODY = b"Subject: x\r\n\r\n" + b"hello " * 10_000


@pytest.fixture
def callers(tmp_path):
    """With a clock that stands, so no request is given back."""
    return Callers(TokenFile(tmp_path), lambda: 0.0)


@pytest.fixture
def app(tmp_path, callers):
    """The application without a home: the paths of these tests need none."""
    sessions = SessionStore(tmp_path)
    users = ConsoleUsers(callers, Visitors(sessions))
    yield ConsoleApp(None, users, access=ConsoleAccess(), version="1", log=lambda _: None)
    sessions.close()


async def replies(app, *requests):
    """Serve, and send each request on a connection of its own; the replies as bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = ConsoleServer(app.asgi, refusal=app.refusal)
    serving = asyncio.create_task(server.serve_on([listener]))
    found = []
    for request in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        found.append(await reader.read())
        writer.close()
    server.should_exit = True
    await serving
    return found


def head(path, method="GET", more=""):
    fields = f"Host: localhost\r\nConnection: close\r\n{more}"
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode()


@pytest.mark.parametrize(
    ("request_bytes", "words"),
    [
        (head("/api/v1/me"), b'"title": "too many requests"'),
        (head("/login"), b"Too many requests."),
        (
            head("/api/v1/score", "POST", f"Content-Length: {len(BODY)}\r\n") + BODY,
            b'"title": "too many requests"',
        ),
    ],
    ids=["program", "browser", "body"],
)
def test_a_request_too_many_is_refused_before_it_is_read(app, callers, request_bytes, words):
    """The reply has the form and the headers of all errors, also while a body is being sent."""
    for _ in range(int(BURST)):
        callers.identify(ApiConnection("127.0.0.1", -1, {}))
    (reply,) = asyncio.run(replies(app, request_bytes))
    fields, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = fields.lower().split(b"\r\n")
    named = dict(line.split(b": ", 1) for line in lines)
    assert first.startswith(b"http/1.1 429 ")
    assert named[b"connection"] == b"close"
    assert int(named[b"retry-after"]) > 0
    assert int(named[b"content-length"]) == len(body)
    assert b"default-src 'none'" in named[b"content-security-policy"]
    assert words in body


def test_other_clients_are_served_meanwhile(app, callers):
    """A client with requests left, and one behind a web server whose own address has none."""
    assert asyncio.run(replies(app, head("/api/v1/me")))[0].startswith(b"HTTP/1.1 200")
    for _ in range(int(BURST) - 1):
        callers.identify(ApiConnection("127.0.0.1", -1, {}))
    passed_on = head("/api/v1/me", more="X-Forwarded-For: 192.0.2.1\r\n")
    refused, served = asyncio.run(replies(app, head("/api/v1/me"), passed_on))
    assert refused.startswith(b"HTTP/1.1 429")
    assert served.startswith(b"HTTP/1.1 200")
