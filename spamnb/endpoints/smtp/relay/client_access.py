"""Who is at the other end of a session, and whether they may be there.

Invariant: all trust is judged by one address: the socket's, or on a listener for proxies the one
that the PROXY header names. Pure; never fails.
"""

from __future__ import annotations

from spamnb.endpoints.net import proxy_protocol
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.params import ListenerParams
from spamnb.endpoints.smtp.relay.ports import ListenerContext


class ClientAccess:
    """One client."""

    __slots__ = ("address", "is_counted", "is_in", "is_proxied", "peer", "trusted")

    def __init__(self, peer: str) -> None:
        self.peer = self.address = peer
        """the socket's address, and the one that trust is judged by"""
        self.is_proxied = False
        """whether a PROXY header must come first"""
        self.is_in = self.is_counted = self.trusted = False

    def arrive(self, door: ListenerParams, place: ListenerContext) -> bytes:
        """What to say at once: our greeting, a refusal, or nothing before a PROXY header."""
        if not door.proxies:
            return self._admitted(door, place)
        if door.proxies.contains(self.peer):
            self.is_proxied = True
            return b""
        return self._refused(place, replies.NOT_YOU)

    def read_proxy(
        self, data: bytes, door: ListenerParams, place: ListenerContext
    ) -> tuple[int, bytes]:
        """Read the PROXY header: (bytes used, what to say); nothing of both if more must come."""
        try:
            told = proxy_protocol.parse(data)
        except ValueError:
            self.is_proxied = False
            return 0, self._refused(place, replies.NO_PROXY)
        if told is None:
            return 0, b""
        self.is_proxied, self.address = False, told.address
        return told.used, self._admitted(door, place)

    def judge(self, door: ListenerParams) -> None:
        """Whether it is trusted, by these settings."""
        self.trusted = door.peers.contains(self.address)

    def _admitted(self, door: ListenerParams, place: ListenerContext) -> bytes:
        self.judge(door)
        if place.closing:
            return replies.CLOSING
        if not (self.trusted or door.recipient_domains):
            return self._refused(place, replies.NOT_YOU)
        if reply := place.turn_away(self.address, trusted=self.trusted):
            return self._refused(place, reply)
        self.is_in, self.is_counted = True, not self.trusted
        return replies.greeting(door.hostname, door.speaks)

    def _refused(self, place: ListenerContext, reply: bytes) -> bytes:
        place.tell_refused(self.peer, self.address, reply)
        return reply
