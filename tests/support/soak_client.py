"""A client for the soak that acts like a mail server: it tries again until mail is accepted.

Plain sockets in threads: each thread takes the next letter, sends it over a connection (sometimes
the previous one, sometimes a new one), and finishes it only after a 250 or a 5xx. Hostile letters
misbehave on purpose; the expected result is given for each.
"""

import contextlib
import random
import socket
import threading
import time
from dataclasses import dataclass, field

from support.soak_sink import body_digest

LINE = b"Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor.\r\n"
SIZES = ((0.55, 1_000, 8_000), (0.35, 8_000, 80_000), (0.095, 80_000, 900_000))
"""share, least, most; the rest is large: up to 20 MB"""
LARGE = (1_000_000, 20_000_000)
PATIENCE_S = 60.0


@dataclass
class Letter:
    """One message on its way."""

    name: str
    wire: bytes
    """dots stuffed, without the end; let go when it is through"""
    digest: str
    kind: str = "mail"
    tries: int = 0
    not_before: float = 0.0
    broken: list = field(default_factory=list)
    """when its connection broke after the final dot"""
    code: int = 0


@dataclass
class Outcome:
    """The results of all messages."""

    done: list = field(default_factory=list)
    given_up: list = field(default_factory=list)


def body(rng, size):
    """Text of about that size, other each time, some lines with dots."""
    lines = []
    while size > 0:
        line = b"%016x %b" % (rng.getrandbits(64), LINE)
        lines.append(b"..dotted " + line if rng.random() < 0.01 else line)
        size -= len(line)
        if len(lines) > 200:
            block = b"".join(lines)
            return block * max(1, size // len(block)) + block
    return b"".join(lines)


def size_of(rng):
    """A size as mail has it."""
    at = rng.random()
    for share, least, most in SIZES:
        if at < share:
            return rng.randint(least, most)
        at -= share
    return rng.randint(*LARGE)


def message(rng, name):
    """A plain message."""
    head = b"From: <%b>\r\nTo: <bob@example.org>\r\nSubject: soak %b\r\nMessage-ID: <%b>\r\n\r\n"
    sender = name.encode()
    return head % (sender, sender, sender) + body(rng, size_of(rng))


HOSTILE = {
    "bare-newlines": lambda raw: raw.replace(b"\r\n", b"\n", 40) + b"\r\n",
    "smuggled-end": lambda raw: raw + b"\n.\nMAIL FROM:<evil@example.net>\r\n",
    "nul": lambda raw: raw + b"\0\0\r\n",
    "no-header": lambda raw: b"\r\n" + raw.partition(b"\r\n\r\n")[2],
    "begins-with-space": lambda raw: b" folded\r\n" + raw,
    "forged": lambda raw: b"X-Spam-Flag: NO\r\nX-Spamnb-Verdict: ham; p=0\r\n" + raw,
    "mime-bomb": lambda raw: (
        b"MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n"
        + raw
        + b"--b\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n" * 2_000
    ),
    "long-line": lambda raw: raw + b"x" * 200_000 + b"\r\n",
    "huge-header": lambda raw: b"X-Long: " + b"y" * 600_000 + b"\r\n" + raw,
}
"""name -> what it makes of a message; the last may be refused, all others must arrive"""
MAY_BE_REFUSED = {"huge-header"}
RUDE = ("endless-line", "leaves-in-data", "says-nothing", "garbage")
"""sessions that never send a message"""


def requests(seed, hostile=0.05):
    """An endless series of messages."""
    rng = random.Random(seed)
    number = 0
    while True:
        number += 1
        name = f"s{seed}-{number}@soak.example"
        raw, kind = message(rng, name), "mail"
        if rng.random() < hostile:
            kind = rng.choice([*HOSTILE, *RUDE])
            raw = HOSTILE[kind](raw) if kind in HOSTILE else raw
        yield Letter(name, raw, body_digest(raw), kind)


class GoneError(Exception):
    """The connection has ended."""


class Connection:
    """One SMTP connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.settimeout(120)
        self.pending = b""
        try:
            self.expect(2, self.reply())
            self.expect(2, self.ask(b"EHLO soak.example"))
        except BaseException:
            self.socket.close()
            raise

    def reply(self):
        """The code of the next reply."""
        while True:
            line, end, rest = self.pending.partition(b"\n")
            if not end:
                more = self.socket.recv(65536)
                if not more:
                    raise GoneError("closed")
                self.pending += more
                continue
            self.pending = rest
            if line[3:4] != b"-":
                return int(line[:3])

    def ask(self, line):
        self.socket.sendall(line + b"\r\n")
        return self.reply()

    def expect(self, kind, code):
        if code // 100 != kind:
            raise GoneError(f"{code}")

    def send(self, request):
        """Send it; the code of the last reply."""
        for line in (b"MAIL FROM:<%b>" % request.name.encode(), b"RCPT TO:<bob@example.org>"):
            code = self.ask(line)
            if code // 100 != 2:
                return code
        code = self.ask(b"DATA")
        if code != 354:
            return code
        self.socket.sendall(request.wire + b".\r\n")
        try:
            return self.reply()
        except (OSError, GoneError):
            request.broken.append(time.time())
            raise

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.close()


def be_rude(port, kind, stop):
    """Waste a connection; the relay may close it at any time."""
    with contextlib.suppress(OSError, GoneError, ValueError):
        connection = Connection(port)
        try:
            if kind == "endless-line":
                connection.socket.sendall(b"MAIL FROM:<" + b"a" * 3_000_000)
                connection.reply()
            elif kind == "leaves-in-data":
                connection.ask(b"MAIL FROM:<rude@soak.example>")
                connection.ask(b"RCPT TO:<bob@example.org>")
                connection.ask(b"DATA")
                connection.socket.sendall(b"Subject: half a mess")
            elif kind == "garbage":
                connection.socket.sendall(bytes(range(256)) * 40 + b"\r\n")
                connection.reply()
            else:
                stop.wait(2)
        finally:
            connection.close()


class Sender:
    """Threads that send messages until stopped, then finish the current ones."""

    def __init__(self, port, seed, threads):
        self.port = port
        self.requests = requests(seed)
        self.outcome = Outcome()
        self.waiting = []
        self.turn = threading.Lock()
        self.stopped = threading.Event()
        self.rng = random.Random(seed)
        self.threads = [threading.Thread(target=self.work) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def next(self):
        """Return the message to send now: one that is due again, or a new one; None at the end."""
        with self.turn:
            now = time.monotonic()
            for request in self.waiting:
                if request.not_before <= now:
                    self.waiting.remove(request)
                    return request
            if not self.stopped.is_set():
                return next(self.requests)
        return None

    def work(self):
        connection = None
        while True:
            request = self.next()
            if request is None:
                if not self.waiting:
                    break
                if not self.stopped.wait(0.05):
                    time.sleep(0.05)
                continue
            if request.kind in RUDE:
                be_rude(self.port, request.kind, self.stopped)
                continue
            connection = self.attempt(connection, request)
        if connection:
            connection.close()

    def attempt(self, connection, request):
        """Send a message once, over this connection or a new one; return a usable connection."""
        request.tries += 1
        try:
            if connection is None or self.rng.random() < 0.3:
                if connection:
                    connection.close()
                connection = Connection(self.port)
            request.code = connection.send(request)
        except (OSError, GoneError, ValueError):
            if connection:
                connection.close()
            self.later(request)
            return None
        if request.code // 100 in {2, 5}:
            request.wire = b""
            self.outcome.done.append(request)
            return connection if request.code // 100 == 2 else connection.close()
        self.later(request)
        connection.close()
        return None

    def later(self, request):
        """Try again in a while; after a minute of trying the soak has failed."""
        request.not_before = time.monotonic() + min(0.1 * request.tries, 1.0)
        with self.turn:
            if request.tries * 0.5 > PATIENCE_S:
                self.outcome.given_up.append(request)
            else:
                self.waiting.append(request)

    def finish(self):
        """Start no new message; wait until the current ones are done."""
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        return self.outcome
