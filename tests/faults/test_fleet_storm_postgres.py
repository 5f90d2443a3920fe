"""A fleet keeps one model through half an hour of storm; each server has its own file."""

import pytest
from support.fleet_storm import weather
from support.postgres_server import PostgresServer, needs_postgres

SECONDS = 1800


@pytest.mark.full
@needs_postgres
def test_half_an_hour_of_storm_leaves_all_hosts_equal(place):
    """After faults every host has the same model, with each acknowledged correction once."""
    weather(place, lambda _: PostgresServer(), 6, SECONDS)
