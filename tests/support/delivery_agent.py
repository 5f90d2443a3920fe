"""A delivery agent on a real socket, in a thread, for tests."""

import asyncio
import re
import shutil
import smtplib
import socket
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from spamnb.engine.receipt import Receipt
from spamnb.feedback.values import Answer, SenderChange
from spamnb.operations.logins import Cost, Login, hashed, write_logins
from spamnb.settings.values import DeliveryParams
from spamnb.smtp.delivery_session import Server
from spamnb.smtp.delivery_values import AgentDeps, Listener
from spamnb.telemetry import Meters
from support.waiting import LIMIT_S

CHEAP = Cost(ln=4, r=8, p=1)
MESSAGE = b"From: a@b.example\r\nSubject: hello\r\nMessage-ID: <1@b.example>\r\n\r\nHello?\r\n"


@dataclass
class Rig:
    """A running delivery agent, as a test sees it."""

    port: int
    logs: list = field(default_factory=list)
    taught: list = field(default_factory=list)
    meters: Meters = field(default_factory=Meters)
    trouble: Exception | None = None
    """raised by `teach`"""
    answer: Answer | None = None

    def teach(self, feedback):
        if self.trouble is not None:
            raise self.trouble
        self.taught.append(feedback)
        if self.answer is not None:
            return self.answer
        if isinstance(feedback, SenderChange):
            facts: dict[str, object] = {"sender": "a@b.example", "word": feedback.word}
            return Answer("listed", reason=f"a@b.example is {feedback.word}", facts=facts)
        receipt = Receipt(
            changed=True, event=len(self.taught), digest="00" * 16, message_id="1@b.example",
            before=None, after=feedback.label, probability_before=0.25, probability_after=0.999,
        )  # fmt: skip
        return Answer("learnt", receipt)

    def smtp(self, **more):
        return smtplib.SMTP("127.0.0.1", self.port, timeout=LIMIT_S, **more)

    def raw(self, source="127.0.0.1"):
        return Raw(socket.create_connection(("127.0.0.1", self.port), LIMIT_S, (source, 0)))


class Raw:
    """A client that sends exact bytes."""

    def __init__(self, sock):
        self.sock = sock
        self.file = sock.makefile("rb")
        self.greeting = self.reply()

    def reply(self):
        lines = []
        while True:
            line = self.file.readline()
            lines.append(line)
            if not re.match(rb"\d{3}-", line):
                return b"".join(lines)

    def ask(self, *commands):
        """Send commands one after the other; returns the last reply."""
        reply = b""
        for command in commands:
            self.sock.sendall(command + b"\r\n")
            reply = self.reply()
        return reply

    def send(self, data):
        self.sock.sendall(data)

    def close(self):
        self.file.close()
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@contextmanager
def running_agent(protocol="smtp", sock=None, copies=None, **settings):
    """Run a delivery agent, on a port that the kernel chooses if no socket is given."""
    sock = sock or socket.create_server(("127.0.0.1", 0))
    rig = Rig(sock.getsockname()[1])
    ready, loops, errors = threading.Event(), [], []

    def taught(feedback):
        return rig.teach(feedback)  # looked up now: a test may replace it

    async def life():
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        deps = AgentDeps(taught, rig.meters, rig.logs.append, copies)
        server = Server(DeliveryParams(**settings), deps)
        await server.listen([Listener(sock, protocol)])
        ready.set()
        await stop.wait()
        await server.drain()

    def live():
        try:
            asyncio.run(life())
        except Exception as error:  # noqa: BLE001 - shown in the test's own thread
            errors.append(error)
            ready.set()

    thread = threading.Thread(target=live)
    thread.start()
    assert ready.wait(LIMIT_S)
    try:
        if not errors:
            yield rig
    finally:
        loop, stop = loops[0]
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        sock.close()
    if errors:
        raise errors[0]
    assert not thread.is_alive()


def logins(path, **people):
    """Write a password file: name -> (password, *addresses)."""
    found = {}
    for name, (password, *addresses) in people.items():
        login = name.replace("_at_", "@").replace("_", ".")
        found[login] = Login(login, hashed(password, CHEAP), tuple(addresses) or (login,))
    write_logins(path, found)
    return str(path)


def certificate(folder):
    """Make a self-signed certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key),
         "-out", str(cert)],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    return str(cert), str(key)


def files(folder):
    """All messages that a mail reader would see below a folder."""
    return sorted(path for path in folder.rglob("*") if path.parent.name in {"new", "cur"})


def start_child(rig, *commands):
    client = rig.raw()
    client.ask(b"EHLO me.example", b"MAIL FROM:<a@b.example>", *commands)
    return client


def sent(client, wire):
    """Send a message in wire form, with its end."""
    client.send(wire)
    return client.reply()
