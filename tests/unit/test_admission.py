"""Open connections: all of them, and those of each client."""

from spamnb.net.server import OpenConnections


def test_both_limits_hold_and_places_become_free():
    """Each client has a limit, and all together have one; a closed connection frees a slot."""
    connections = OpenConnections()
    for _ in range(2):
        assert connections.full("a", 3, 2) == ""
        connections.enter("a")
    assert connections.full("a", 3, 2) == "client"
    connections.enter("b")
    assert connections.full("c", 3, 2) == "all"
    connections.leave("a")
    assert connections.full("a", 3, 2) == ""
    assert connections.total == 2


def test_clients_without_connections_take_no_memory():
    """The counts have no entry for a client that left, or was never admitted."""
    connections = OpenConnections()
    assert connections.full("a", 3, 2) == ""
    connections.enter("b")
    connections.leave("b")
    assert not connections._by_client
