"""Limits on the connections of clients to a listener, and of the listener to the next hop.

Trusted clients are bounded by the limit of all connections only. Must not know sockets or sessions.
"""

from __future__ import annotations

from spamnb.core.mail.envelope import network_of
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.admission import OpenConnections
from spamnb.endpoints.net.connection_counts import ConnectionCounts
from spamnb.endpoints.net.networks import wide_network_of
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.client_state import ClientState
from spamnb.endpoints.smtp.relay.params import ListenerParams


def _client_key(address: str) -> str:
    return f"client {network_of(address)}"


class ConnectionLimits:
    """The open connections of one listener; those of untrusted clients also by client."""

    def __init__(self, params: ListenerParams, counts: ConnectionCounts) -> None:
        self.params = params
        self.counts = counts
        """over all processes"""
        self.open = 0
        """connections of clients, admitted or not"""
        self.starved = 0
        """clients without a connection from their network that the next hop's limit refused"""
        self._untrusted = OpenConnections()
        """of untrusted clients, by wide network"""

    def refusal_for(self, address: str, *, trusted: bool) -> bytes:
        """The reply that refuses a client for lack of room; empty if the client is counted.

        A network of untrusted clients may use at most as many connections as are still free, as in
        `claim_upstream`.
        """
        limits = self.params.limits
        if self.open > limits.connections:
            return replies.CROWDED
        if trusted:
            return b""
        most, network = limits.untrusted_part(limits.connections), wide_network_of(address)
        if full := self._untrusted.full(network, most, most - self._untrusted.total):
            return replies.CROWDED if full == "all" else replies.CROWDED_CLIENT
        if self.counts.add(_client_key(address)) > limits.connections_an_address:
            self.counts.add(_client_key(address), -1)
            return replies.CROWDED_CLIENT
        self._untrusted.enter(network)
        return b""

    def leave(self, address: str) -> None:
        """Stop counting a connection; `address` is that of a counted untrusted client, or empty."""
        self.open -= 1
        if address:
            self._untrusted.leave(wide_network_of(address))
            self.counts.add(_client_key(address), -1)

    def claim_upstream(
        self, client: ClientState, upstream: Address
    ) -> tuple[tuple[str, ...], bytes]:
        """Count a connection to the next hop: the keys to release, and the reply if it is refused.

        Trusted clients are not counted. A network may use at most as many connections as are still
        free: a single network gets half, two networks get a third each, and the first client of a
        new network always gets one.
        """
        if client.trusted:
            return (), b""
        keys = (f"upstream {upstream}", f"upstream {upstream} {wide_network_of(client.address)}")
        total, theirs = [self.counts.add(key) for key in keys]
        free = self.params.limits.untrusted_part(self.params.limits.upstream_connections) - total
        if free >= 0 and theirs <= free + 1:
            return keys, b""
        self.starved += theirs == 1
        self.release_upstream(keys)
        return (), replies.CROWDED if theirs == 1 else replies.CROWDED_CLIENT

    def release_upstream(self, keys: tuple[str, ...]) -> None:
        """Stop counting a connection to the next hop."""
        for key in keys:
            self.counts.add(key, -1)

    def is_short(self, *, trusted: bool) -> bool:
        """Whether most of the connections for trusted or untrusted clients are used."""
        limits = self.params.limits
        untrusted = limits.untrusted_part(limits.connections)
        busy = self.open > limits.busy_share * limits.connections
        if trusted:
            return busy and self.open - self._untrusted.total > limits.connections - untrusted
        upstream = limits.untrusted_part(limits.upstream_connections)
        return (
            busy
            or self._untrusted.total > limits.busy_share * untrusted
            or self.counts.of(f"upstream {self.params.upstream}") > limits.busy_share * upstream
        )
