"""Clients that ask a filter about messages as Postfix, spamc and rspamc do, for benchmarks."""

import random
import re
import socket
import struct
from itertools import cycle, islice
from pathlib import Path

import labelled_mail

from spamnb.milter.packets import Packet, PacketReader, packet_of

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
MIME_BYTES = 30_000
LETTERS = str.maketrans("0123456789", "ghijklmnop")
OFFER = struct.pack("!III", 6, 0x1FF, 0x1FFFFF)
STEPS = {b"C": 0x1000, b"H": 0x2000, b"M": 0x4000, b"R": 0x8000, b"T": 0x10000, b"L": 0x80,
         b"N": 0x40000, b"B": 0x80000}  # fmt: skip
"""command -> the bit with which it gets no reply"""
UNSENT = {b"T": 0x200, b"N": 0x40}
"""command -> the bit with which it is not sent"""


def messages_of_5_kb(count):
    """Make different messages of about 5 KB of plain text from the sample."""
    found = [path.read_bytes() for label in ("ham", "spam") for path in (SAMPLE / label).iterdir()]
    parts = [raw.replace(b"\r\n", b"\n").partition(b"\n\n") for raw in sorted(found)]
    coded = re.compile(rb"multipart/|text/html|base64|quoted-printable", re.IGNORECASE)
    plain = [part for part in parts if part[2].isascii() and not coded.search(part[0])]
    made = []
    for number in range(count):
        at = number * 7
        words = b"\n".join(plain[(at + more) % len(plain)][2] for more in range(20))
        text = plain[at % len(plain)][0] + b"\nX-Number: %d\n\n" % number + words
        made.append(text[:5120].rpartition(b"\n")[0].replace(b"\n", b"\r\n") + b"\r\n")
    return made


def message_of_new_words(size, seed, sender):
    """Return a message of random words; each is a new feature, which is the most work."""
    head = f"From: {sender}\r\nTo: bob@example.org\r\nSubject: cheap pills {seed}\r\n\r\n"
    letters = random.Random(seed).randbytes(size // 2).hex().translate(LETTERS)
    lines = [
        " ".join(letters[at : at + 8] for at in range(start, start + 64, 8))
        for start in range(0, len(letters), 64)
    ]
    return (head + "\r\n".join(lines) + "\r\n").encode()


def mime_messages(count):
    """Take different messages with parts or HTML from the corpus, up to 30 KB each."""
    found = []
    for raw, _ in labelled_mail.messages():
        head, _, body = raw.partition(b"\n\n")
        if len(raw) <= MIME_BYTES and re.search(rb"multipart/|text/html", head, re.IGNORECASE):
            found.append((head, body))
    return [
        b"\n".join((head, b"X-Number: %d\n" % number, body)).replace(b"\n", b"\r\n")
        for number, (head, body) in enumerate(islice(cycle(found), count))
    ]


class Mta:
    """Asks a milter as Postfix does."""

    def __init__(self, port):
        self.socket, self.reader, self.steps = (
            socket.create_connection(("127.0.0.1", port)),
            PacketReader(),
            0,
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.packets, self.reader = [], PacketReader()
        self.socket.sendall(packet_of(b"O", OFFER))
        self.steps = struct.unpack_from("!III", self.next()[1])[2]

    def next(self) -> Packet:
        while not self.packets:
            data = self.socket.recv(65_536)
            if not data:
                raise SystemExit("the milter has closed the connection")
            self.packets += self.reader.feed(data)
        return self.packets.pop(0)

    def tell(self, commands):
        """Send commands; wait for a reply where there is one."""
        waiting = bytearray()
        for command, data in commands:
            if self.steps & UNSENT.get(command, 0):
                continue
            waiting += packet_of(command, data)
            if command in STEPS and not self.steps & STEPS[command]:
                self.socket.sendall(waiting)
                waiting.clear()
                self.next()
        self.socket.sendall(waiting)

    def ask(self, message):
        """Have a message judged; its final reply."""
        head, _, body = message.partition(b"\r\n\r\n")
        fields = re.split(rb"\r\n(?![ \t])", head)
        values = [field.replace(b"\r\n", b"\n").replace(b":", b"\0", 1) for field in fields]
        commands = [(b"D", b"Cj\0mx.example.org\0"), (b"C", b"x.example\x004\x12\x34203.0.113.9\0")]
        commands += [(b"H", b"x.example\0"), (b"M", b"<ann@x.example>\0SIZE=5120\0")]
        commands += [(b"D", b"Ri\x004Zqk1\0"), (b"R", b"<bob@example.org>\0"), (b"T", b"")]
        commands += [(b"L", value + b"\0") for value in values]
        chunks = [body[at : at + 65_535] for at in range(0, len(body), 65_535)]
        self.tell([*commands, (b"N", b""), *((b"B", one) for one in chunks), (b"E", b"")])
        while (found := self.next()[0]) not in b"cdyatr":
            pass
        return found

    def close(self):
        self.tell([(b"Q", b"")])
        self.socket.close()


def by_milter(port, messages, *, kept):
    """Have messages judged, each on its own connection or all on one."""
    mta = None
    for message in messages:
        mta = mta or Mta(port)
        mta.ask(message)
        if kept:
            mta.tell([(b"A", b""), (b"K", b"")])
        else:
            mta.close()
            mta = None
    if mta is not None:
        mta.close()


def by_bytes(port, messages, head, expected):
    """Have messages judged by a protocol with one request a connection."""
    for message in messages:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head % len(message) + message)
            if head.startswith(b"CHECK"):
                client.shutdown(socket.SHUT_WR)  # as spamc does; spamd waits for it
            reply = b"".join(iter(lambda c=client: c.recv(65_536), b""))
        assert expected in reply, reply[:200]
