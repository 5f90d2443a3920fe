"""Who writes to the site: counts of the history by the author's domain."""

import pytest
from support.history import NOON_2026, entry

from spamnb.operations.listings import seen_senders
from spamnb.records.verdicts import History
from spamnb.settings.values import HistoryLimits

DAY_S = 86_400
PASS = "spf=pass shop.example, dkim=none, dmarc=pass shop.example"
NOTES = (
    {"header_from": "Shop <news@mail.shop.example>", "auth": PASS},
    {"header_from": "Shop <news@shop.example>", "auth": "spf=fail shop.example, dkim=none"},
    {"from": "x@bank.co.uk", "auth": "dkim=pass evil.co.uk"},
    {"header_from": "ann@site.example", "observed": "scan.own_clients"},
    {"from": ""},
)


@pytest.fixture
def history(tmp_path):
    """Ten days of verdicts, each day one of each kind."""
    found = History.open(tmp_path, HistoryLimits())
    for day in range(10):
        for at, notes in enumerate(NOTES):
            number = day * DAY_S + at + 1
            decision = "junk" if at == 1 else "deliver"
            found.add([entry(number, size=3, notes=notes, decision=decision)])
    yield found
    found.close()


def test_domains_are_counted_over_days(history):
    """Own mail and mail without an author is left out; a neighbour's pass is none."""
    shop, bank = seen_senders(history, 0, 10)
    assert (shop["domain"], shop["messages"], shop["filed"]) == ("shop.example", 20, 10)
    assert (shop["checked"], shop["authentic"]) == (20, 10)
    assert (bank["messages"], bank["checked"], bank["authentic"]) == (10, 10, 0)
    assert shop["first"][:10] < shop["last"][:10]


def test_the_time_and_the_number_are_limits(history):
    """Verdicts since a time; the domains with most messages."""
    since_us = NOON_2026 + 7 * DAY_S * 1_000_000
    (shop,) = seen_senders(history, since_us, 1)
    assert shop["messages"] == 6
