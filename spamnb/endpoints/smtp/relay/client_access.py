"""Client identity, connection admission and trust, for one session.

All trust decisions use one address: the socket's peer address or, on a listener that expects a
PROXY header, the address in that header. Pure; never fails.
"""

from __future__ import annotations

from spamnb.endpoints.net import proxy_protocol
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.params import ListenerParams
from spamnb.endpoints.smtp.relay.ports import ListenerContext


class ClientAccess:
    """The access state of one client."""

    __slots__ = ("address", "admitted", "is_counted", "is_proxied", "peer", "trusted")

    def __init__(self, peer: str) -> None:
        self.peer = self.address = peer
        """`peer` is the socket's address; `address` is the one that trust is decided by"""
        self.is_proxied = False
        """whether a PROXY header must come first"""
        self.admitted = self.is_counted = self.trusted = False

    def on_connect(self, params: ListenerParams, context: ListenerContext) -> bytes:
        """The first reply: the greeting, a refusal, or nothing while a PROXY header is due."""
        if not params.proxies:
            return self._admit(params, context)
        if params.proxies.contains(self.peer):
            self.is_proxied = True
            return b""
        return self._refused(context, replies.CLIENT_DENIED)

    def read_proxy(
        self, data: bytes, params: ListenerParams, context: ListenerContext
    ) -> tuple[int, bytes]:
        """Read the PROXY header: (bytes used, reply). Both are empty if more bytes are needed."""
        try:
            header = proxy_protocol.parse(data)
        except ValueError:
            self.is_proxied = False
            return 0, self._refused(context, replies.NO_PROXY)
        if header is None:
            return 0, b""
        self.is_proxied, self.address = False, header.address
        return header.used, self._admit(params, context)

    def update_trust(self, params: ListenerParams) -> None:
        """Set `trusted` by the given parameters."""
        self.trusted = params.peers.contains(self.address)

    def _admit(self, params: ListenerParams, context: ListenerContext) -> bytes:
        self.update_trust(params)
        if context.closing:
            return replies.CLOSING
        if not (self.trusted or params.recipient_domains):
            return self._refused(context, replies.CLIENT_DENIED)
        if reply := context.refusal_for(self.address, trusted=self.trusted):
            return self._refused(context, reply)
        self.admitted, self.is_counted = True, not self.trusted
        return replies.greeting(params.hostname, params.speaks)

    def _refused(self, context: ListenerContext, reply: bytes) -> bytes:
        context.log_refused(self.peer, self.address, reply)
        return reply
