"""What passed unscanned lately: the window, the bound, the sentence."""

import pytest

from spamnb.operations.unscanned import (
    MIN_UNSCANNED,
    WINDOW_S,
    RecentUnscanned,
    facts_of,
    sentence,
    too_many,
)
from spamnb.telemetry import Meters


def counted(**numbers):
    meters = Meters()
    for name, number in numbers.items():
        meters.count(name, number)
    return meters


def found_for(**numbers):
    lately = RecentUnscanned()
    lately.seen(0.0, Meters())
    return lately.seen(1.0, counted(**numbers))


def test_only_the_last_minutes_count():
    """What is older than the window is forgotten; what happened within it is not."""
    lately, meters = RecentUnscanned(), counted(scanned=50)
    lately.seen(0.0, meters)
    meters.count("unscanned_busy", 7)
    for second in range(0, int(WINDOW_S) - 60, 5):
        assert facts_of(lately.seen(float(second), meters))["unscanned"] == {"busy": 7}
    for second in range(int(WINDOW_S) - 60, int(WINDOW_S) * 2, 5):
        found = lately.seen(float(second), meters)
    assert facts_of(found) == {"minutes": 10, "scanned": 0, "deferred": 0, "unscanned": {}}
    assert len(lately._samples) < 30


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"scanned": 100, "unscanned_busy": MIN_UNSCANNED - 1}, False),
        ({"scanned": 100, "unscanned_busy": MIN_UNSCANNED}, True),
        ({"scanned": 100, "unscanned_busy": MIN_UNSCANNED - 1, "unscanned_large": 1}, True),
        ({"scanned": 1000, "unscanned_busy": MIN_UNSCANNED}, False),
        ({"scanned": 100, "unscanned_bypass": 50}, False),
        ({"unscanned_model": MIN_UNSCANNED}, True),
        ({"scanned": 100, "unscanned_deferred": 50}, False),
    ],
)
def test_a_share_and_a_number_make_an_alarm(numbers, expected):
    """The alarm needs five messages and one percent; bypassed messages do not count."""
    assert too_many(found_for(**numbers), 1.0) is expected


def test_an_administrator_reads_the_reasons():
    """One sentence with the numbers."""
    numbers = {"unscanned_busy": 8, "unscanned_known_crasher": 2, "unscanned_deferred": 3}
    assert sentence(facts_of(found_for(scanned=90, **numbers))) == (
        "10 of 100 messages of the last 10 minutes passed unscanned: busy 8, known_crasher 2; "
        "3 were deferred instead"
    )
