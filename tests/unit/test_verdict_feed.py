"""The verdict feed: what a worker wrote is read once, whole, in order, or counted as missed."""

import os
import threading
from math import isnan

import pytest

from spamnb.daemon.shared import RECORDS, FeedReader, FeedWriter, create_feed
from spamnb.telemetry import silent

MESSAGE = {
    "event": "message",
    "size": 1234,
    "code": 250,
    "action": "relay",
    "verdict": "spam",
    "probability": 0.75,
    "decision": "junk",
    "mail_action": "redirect",
    "reason": "",
    "signature": "s" + "a" * 26,
    "scan_ms": 1.5,
    "upstream_id": "4ABC",
}


@pytest.fixture
def feed():
    fd = create_feed(2)
    yield fd
    os.close(fd)


def test_a_record_has_the_facts_of_the_log_line(feed):
    """The log still gets every record; the feed gets messages, with the listener's name."""
    reader, logged = FeedReader(feed), []
    write = FeedWriter(feed, 1).log_of("mx", logged.append)
    write({"event": "turned-away"})
    write(MESSAGE)
    ((found,), missed) = reader.read()
    wanted = {name: value for name, value in MESSAGE.items() if name != "event"}
    assert found.pop("time") > 1.7e9
    assert (found, missed) == (wanted | {"listener": "mx"}, 0)
    assert len(logged) == 2
    assert reader.read() == ([], 0)


@pytest.mark.parametrize(
    "facts",
    [
        {"event": "message"},
        {"event": "message", "verdict": "unscanned", "reason": "bypass"},
        MESSAGE | {"size": 1 << 40, "upstream_id": "x" * 500, "reason": "\udc80" * 90},
        MESSAGE | {"reason": "\xfc" * 40, "upstream_id": "\u20ac" * 30},
    ],
)
def test_every_record_fits(feed, facts):
    """A missing, long or odd text stops no message."""
    reader = FeedReader(feed)
    FeedWriter(feed, 0).log_of("l" * 90, silent)(facts)
    ((found,), missed) = reader.read()
    assert missed == 0
    assert len(found["upstream_id"]) <= 40
    if "probability" not in facts:
        assert found["probability"] is None
    else:
        assert not isnan(found["probability"])


def test_a_slow_reader_is_told_what_it_missed(feed):
    """The newest records are returned, and the number of the others; to a later one on request."""
    reader, write = FeedReader(feed), FeedWriter(feed, 0).log_of("mx", silent)
    other = FeedWriter(feed, 1).log_of("lmtp", silent)
    for number in range(RECORDS + 10):
        write(MESSAGE | {"size": number})
    other(MESSAGE)
    found, missed = reader.read()
    assert missed == 10
    assert [one["size"] for one in found] == [*range(10, RECORDS + 10), 1234]
    # The next process of the worker goes on with the ring.
    FeedWriter(feed, 0).log_of("mx", silent)(MESSAGE)
    assert len(reader.read()[0]) == 1
    late = FeedReader(feed)
    assert late.read() == ([], 0)
    assert [one["size"] for one in late.earlier()] == [*range(11, RECORDS + 10), 1234, 1234]


def test_no_torn_record_is_returned(feed):
    """A reader beside a writer that overwrites the ring sees whole records only."""
    reader, write = FeedReader(feed), FeedWriter(feed, 0).log_of("mx", silent)
    count = 3 * RECORDS

    def run():
        for number in range(count):
            write(MESSAGE | {"size": number, "upstream_id": str(number), "scan_ms": float(number)})

    writer = threading.Thread(target=run)
    writer.start()
    seen = missed = 0
    last = -1
    while seen + missed < count:
        found, lost = reader.read()
        for one in found:
            assert one["upstream_id"] == str(one["size"]) == f"{one['scan_ms']:.0f}"
            assert one["size"] > last
            last = one["size"]
        seen, missed = seen + len(found), missed + lost
    writer.join()
