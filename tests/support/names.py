"""A name server on loopback, by UDP and TCP, with the faults that name servers have.

with name_server({("example.org", "TXT"): ["v=spf1 -all"]}) as server:
    server.address    127.0.0.1:PORT
    server.asked      the questions so far, (name, type)
"""

import socket
import socketserver
import struct
import threading
from contextlib import contextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

SERVFAIL, SILENT, CUT, WRONG_ID, NOISE = "servfail", "silent", "cut", "wrong id", "noise"
"""In place of values: what the server does instead of answering. CUT is followed by values, which
only TCP gives."""


class NameServer:
    """Answers from a zone, which a test may change."""

    def __init__(self, zone):
        self.zone, self.asked, self.seconds = dict(zone), [], 60
        self.gone = False
        self._udp = socketserver.ThreadingUDPServer(("127.0.0.1", 0), self._handler(tcp=False))
        self._udp.daemon_threads = True
        self._udp.max_packet_size = 65_535
        port = self._udp.server_address[1]
        try:
            address = ("127.0.0.1", port)
            self._tcp = socketserver.ThreadingTCPServer(address, self._handler(tcp=True))
        except OSError:  # another program has the port for TCP
            self._udp.server_close()
            raise
        self._tcp.daemon_threads = True
        self.address = f"127.0.0.1:{port}"

    def _handler(self, *, tcp):
        server = self

        class Udp(socketserver.BaseRequestHandler):
            def handle(self):
                data, peer = self.request
                reply = server.answer(data, tcp=False)
                if reply is not None:
                    peer.sendto(reply, self.client_address)

        class Tcp(socketserver.StreamRequestHandler):
            def handle(self):
                (size,) = struct.unpack("!H", self.rfile.read(2))
                reply = server.answer(self.rfile.read(size), tcp=True)
                if reply is not None:
                    self.wfile.write(struct.pack("!H", len(reply)) + reply)

        return Tcp if tcp else Udp

    def answer(self, data, *, tcp):
        """The bytes of an answer; None for silence."""
        asked = dns.message.from_wire(data)
        (question,) = asked.question
        key = question.name.to_text(omit_final_dot=True).lower(), question.rdtype.name
        self.asked.append(key)
        values = self.zone.get(key, ())
        fault = next((one for one in values if one in (SERVFAIL, SILENT, CUT, WRONG_ID, NOISE)), "")
        if self.gone or fault == SILENT:
            return None
        if fault == NOISE:
            return b"\xff" * 40
        reply = dns.message.make_response(asked, recursion_available=True)
        if fault == SERVFAIL:
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif fault == CUT and not tcp:
            reply.flags |= dns.flags.TC
        elif texts := [one for one in values if one != fault]:
            reply.answer.append(_rrset(question, self.seconds, texts))
        elif not any(name == key[0] or name.endswith(f".{key[0]}") for name, _ in self.zone):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        if fault == WRONG_ID:
            reply.id ^= 1
        return reply.to_wire(max_size=65_535)

    def __enter__(self):
        for server in (self._udp, self._tcp):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in (self._udp, self._tcp):
            server.shutdown()
            server.server_close()


def _rrset(question, seconds, texts):
    if question.rdtype == dns.rdatatype.TXT:
        texts = [" ".join(f'"{_escaped(part)}"' for part in _parts(one)) for one in texts]
    return dns.rrset.from_text_list(question.name, seconds, "IN", question.rdtype, texts)


def _parts(text):
    return [text[at : at + 255] for at in range(0, len(text), 255)] or [""]


def _escaped(text):
    return text.replace("\\", "\\\\").replace('"', '\\"')


@contextmanager
def name_server(zone):
    """Serve a zone."""
    with _bound(zone) as server:
        yield server


def _bound(zone):
    """A server whose port is free for UDP and TCP."""
    for _ in range(50):
        try:
            return NameServer(zone)
        except OSError:
            continue
    raise AssertionError("no port is free for UDP and TCP")


def unused_address():
    """The address of a name server that is not there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"
