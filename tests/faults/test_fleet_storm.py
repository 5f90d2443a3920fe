"""A fleet keeps one model, and every lesson once, through kills, cuts and pauses."""

import pytest
from support.fleet_storm import Storm
from support.valkey_server import needs_valkey

SECONDS = 20
FULL_SECONDS = 90


def weather(folder, seed, seconds):
    storm = Storm(folder, seed)
    try:
        storm.begin()
        storm.rage(seconds)
        counts = storm.compare(storm.settle())
    finally:
        storm.close()
    print(f"seed {seed}, {seconds} s: {dict(counts)}")


@needs_valkey
def test_a_storm_leaves_all_hosts_equal(place):
    """After faults every host has the same model, and each acknowledged lesson is in it once."""
    weather(place, 1, SECONDS)


@needs_valkey
@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 6))
def test_longer_storms_leave_all_hosts_equal(place, seed):
    """The same, with other faults, for longer."""
    weather(place, seed, FULL_SECONDS)
