"""The hostile clients of the storm, each from addresses of its own on the loopback network.

Run as a program: `storm_attackers.py FRONT DELIVERY SPOOL`; it attacks until it is killed. Each
attack is a function that runs in separate threads and never raises: the daemon may refuse a
connection, and the attacker then connects again. The daemon distinguishes clients by their address,
so every attack binds a source address that no honest client has.
"""

import base64
import contextlib
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

DOMAIN = "example.org"
FLOOD_UID = 65534
LARGE = (66_000, 250_000)
PAUSE_S = 0.2


class RefusedError(Exception):
    """The server refused the session; the argument is the code of its reply."""


class Client:
    """One SMTP connection from a source address."""

    def __init__(self, port, source):
        self.socket = socket.create_connection(("127.0.0.1", port), 30, (source, 0))
        self.socket.settimeout(60)
        self.file = self.socket.makefile("rb")
        try:
            self.expect_2xx(self.reply())
            self.expect_2xx(self.ask(b"EHLO attacker.example"))
        except BaseException:
            self.close()
            raise

    def reply(self):
        """The code of the next reply; ConnectionError at the end of the connection."""
        while True:
            line = self.file.readline(4096)
            if not line:
                raise ConnectionError("closed")
            if line[3:4] != b"-":
                return int(line[:3])

    def expect_2xx(self, code):
        if code // 100 != 2:
            raise RefusedError(code)

    def ask(self, line):
        self.socket.sendall(line + b"\r\n")
        return self.reply()

    def begin(self, recipient, sender="attacker@attacker.example"):
        """Send everything up to DATA; whether the server accepts it."""
        return (
            self.ask(b"MAIL FROM:<%b>" % sender.encode()) == 250
            and self.ask(b"RCPT TO:<%b>" % recipient.encode()) == 250
            and self.ask(b"DATA") == 354
        )

    def close(self):
        with contextlib.suppress(OSError):
            self.file.close()
            self.socket.close()


def random_words(rng, size):
    """Lines of random words."""
    lines = []
    while size > 0:
        line = b" ".join(b"%x" % rng.getrandbits(32) for _ in range(8)) + b"\r\n"
        lines.append(line)
        size -= len(line)
    return b"".join(lines)


def burst(front, number, rng):
    """Large messages, as many at a time as there are threads."""
    client = Client(front, f"127.3.0.{1 + number % 200}")
    try:
        if client.begin(f"victim@{DOMAIN}"):
            raw = b"Subject: burst\r\n\r\n" + random_words(rng, rng.randint(*LARGE))
            client.socket.sendall(raw + b".\r\n")
            client.reply()
    finally:
        client.close()


def hold(front, _number, rng):
    """Sessions of one address that say harmless commands and never send a message."""
    client = Client(front, "127.4.0.1")
    try:
        while True:
            line = rng.choice([b"NOOP", b"RSET", b"MAIL FROM:<a@attacker.example>"])
            if client.ask(line) >= 400 and line != b"MAIL FROM:<a@attacker.example>":
                return
            time.sleep(1)
    finally:
        client.close()


def dribble(front, number, rng):
    """A megabyte in one burst, then two bytes now and then."""
    client = Client(front, f"127.5.{number % 20}.{1 + rng.randrange(200)}")
    try:
        if client.begin(f"victim@{DOMAIN}"):
            client.socket.sendall(b"Subject: dribble\r\n\r\n" + random_words(rng, 1_000_000))
            while True:
                time.sleep(10)
                client.socket.sendall(b"x\n")
    finally:
        client.close()


def evade(front, number, rng):
    """Spam in structures that use up the limits of the reader."""
    payload = b"Content-Type: text/html\r\n\r\n<b>cheap pills casino bonus</b>\r\n"
    empty = b"--b\r\nContent-Type: text/plain\r\n\r\n\r\n" * 250
    deep = b"".join(
        b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n" % (n, n + 1)
        for n in range(60)
    )
    bodies = [
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + empty + b"--b\r\n" + payload,
        b"Content-Type: multipart/mixed; boundary=b0\r\n\r\n" + deep + b"--b60\r\n" + payload,
        b"Content-Type: text/plain\r\n\r\n" + random_words(rng, 300_000),
    ]
    client = Client(front, f"127.6.0.{1 + number % 200}")
    try:
        if client.begin(f"victim@{DOMAIN}"):
            client.socket.sendall(rng.choice(bodies) + b"\r\n.\r\n")
            client.reply()
    finally:
        client.close()


def report(delivery, number, rng):
    """Reports of strangers to spam@, with mail that was never delivered here."""
    client = Client(delivery, f"127.7.0.{1 + number % 200}")
    try:
        user = f"p{rng.getrandbits(32):x}@attacker.example"
        if client.begin(f"spam@{DOMAIN}", user):
            inner = b"From: x@y.example\r\nSubject: never seen\r\n\r\n" + random_words(rng, 500)
            encoded = base64.encodebytes(inner).replace(b"\n", b"\r\n")
            head = b"Subject: report\r\nContent-Type: message/rfc822\r\n"
            head += b"Content-Transfer-Encoding: base64\r\n\r\n"
            client.socket.sendall(head + encoded + b".\r\n")
            client.reply()
    finally:
        client.close()


def flood(spool, number, rng):
    """Hidden files and folders in the spool, by a user without rights."""
    name = spool / f".junk-{os.getpid()}-{number}-{rng.getrandbits(48):x}"
    if number % 20:
        name.write_bytes(b"")
    else:
        folder = name.with_suffix(".spam")
        folder.mkdir()
        (folder / "inside").write_bytes(b"x")


def forever(attack, target, number):
    """Attack, and connect again after a refusal."""
    rng = random.Random(f"{attack.__name__}{number}")
    turn = number
    while True:
        with contextlib.suppress(OSError, ValueError, RefusedError):
            attack(target, turn, rng)
        turn += 100
        time.sleep(PAUSE_S)


def run(front, delivery, spool):
    """All attacks in parallel; those on the spool come from a process of another user."""
    os.nice(19)
    if os.geteuid() == 0 and os.fork() == 0:
        os.setgid(FLOOD_UID)
        os.setuid(FLOOD_UID)
        attacks = [(flood, spool, 2)]
    else:
        attacks = [
            (burst, front, 100), (hold, front, 100), (dribble, front, 300),
            (evade, front, 4), (report, delivery, 4),
        ]  # fmt: skip
    for attack, target, threads in attacks:
        for number in range(threads):
            threading.Thread(target=forever, args=(attack, target, number), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
