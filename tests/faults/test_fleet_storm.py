"""A fleet keeps one model, and every correction once, through kills, cuts and pauses.

Hosts and server are killed with SIGKILL; a failure prints its seed.
"""

import pytest
from support.fleet_storm import weather
from support.postgres_server import PostgresServer, needs_postgres
from support.valkey_server import ValkeyServer, needs_valkey

SECONDS = 30
FULL_SECONDS = 90
SERVERS = [
    pytest.param(ValkeyServer, marks=needs_valkey, id="valkey"),
    pytest.param(lambda _: PostgresServer(), marks=needs_postgres, id="postgres"),
]
each_server = pytest.mark.parametrize("server_in", SERVERS)


@each_server
def test_a_storm_leaves_all_hosts_equal(place, server_in):
    """After faults every host has the same model, with each acknowledged correction once."""
    weather(place, server_in, 1, SECONDS)


@pytest.mark.full
@each_server
@pytest.mark.parametrize("seed", range(2, 5))
def test_longer_storms_leave_all_hosts_equal(place, server_in, seed):
    """The same, with other faults, for longer."""
    weather(place, server_in, seed, FULL_SECONDS)
