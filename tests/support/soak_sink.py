"""A next hop for the soak: it records each accepted message before it replies 250.

Run as a program: `soak_sink.py PORT FILE`. One line in FILE for each message: its sender, the size
and the digest of its body, and what X-Spamnb-Verdict says of it (`-` without that field). The
program can be killed at any time; each message with a 250 is in the file.
"""

import asyncio
import hashlib
import os
import re
import socket
import sys

GREETING = b"220 sink ESMTP\r\n"
EXTENSIONS = (b"SIZE 50000000", b"PIPELINING", b"8BITMIME")
CAPABILITIES = b"".join(b"250-%b\r\n" % word for word in (b"sink", *EXTENSIONS)) + b"250 DSN\r\n"
REPLIES = {
    b"EHLO": CAPABILITIES,
    b"HELO": b"250 sink\r\n",
    b"MAIL": b"250 2.1.0 Ok\r\n",
    b"RCPT": b"250 2.1.5 Ok\r\n",
    b"RSET": b"250 2.0.0 Ok\r\n",
    b"NOOP": b"250 2.0.0 Ok\r\n",
    b"DATA": b"354 go on\r\n",
    b"QUIT": b"221 2.0.0 Bye\r\n",
}
END = b"\r\n.\r\n"
VERDICT = re.compile(rb"(?im)^X-Spamnb-Verdict: ([^\r\n]*)")


class Sink(asyncio.Protocol):
    """One connection."""

    def __init__(self, record):
        self.record = record
        self.sender = b""
        self.in_body = False
        self.pending = bytearray()
        self.searched = 0

    def connection_made(self, transport):
        self.transport = transport
        transport.write(GREETING)

    def data_received(self, data):
        self.pending += data
        while self.body_ended() if self.in_body else self.command():
            pass

    def command(self):
        line, end, rest = self.pending.partition(b"\r\n")
        if not end:
            return False
        self.pending = rest
        verb = bytes(line[:4]).upper()
        if verb == b"MAIL":
            self.sender = bytes(line)
        if verb == b"DATA":
            # The first dot may be the end already: the line break before it is DATA's own.
            self.in_body, self.pending, self.searched = True, bytearray(b"\r\n") + rest, 0
        self.transport.write(REPLIES.get(verb, b"500 what?\r\n"))
        if verb == b"QUIT":
            self.transport.close()
            return False
        return True

    def body_ended(self):
        at = self.pending.find(END, self.searched)
        if at < 0:
            self.searched = max(len(self.pending) - len(END), 0)
            return False
        wire, self.pending = bytes(self.pending[2 : at + 2]), self.pending[at + len(END) :]
        self.in_body = False
        self.record(self.sender, wire)
        self.transport.write(b"250 2.0.0 Ok: taken\r\n")
        return True


def body_digest(wire):
    """The digest of the bytes after the header section, in wire form."""
    return hashlib.blake2b(wire.partition(b"\r\n\r\n")[2], digest_size=12).hexdigest()


async def serve(port, path):
    """Take messages until killed."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record(sender, wire):
        name = sender.partition(b"<")[2].partition(b">")[0].decode("latin-1")
        verdict = VERDICT.search(wire.partition(b"\r\n\r\n")[0])
        value = verdict[1].decode("latin-1").replace(" ", "") if verdict else "-"
        os.write(file, f"{name} {len(wire)} {body_digest(wire)} {value}\n".encode())

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = await asyncio.get_running_loop().create_server(lambda: Sink(record), sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
