"""Mixed load, faults and kills for a while: every message is accounted for."""

import pytest
from support.soak import Soak

MEMORY_FLAT = 0.10


def check(books, seconds):
    """Check that no message is lost, changed or wrongly refused, and explain duplicates."""
    print(f"{books.sent} messages in {seconds} s, {books.corrections} corrections; {books.events}")
    print(f"twice: {len(books.twice)}, known from the log: {len(books.logged)}")
    assert books.lost == []
    assert books.given_up == 0
    assert books.changed == []
    assert books.unmarked == []
    assert books.refused == []
    assert books.correction_faults == []
    assert books.corrections
    assert books.sent
    # A message arrives twice if its connection broke between the next hop's 250 and the relay's:
    # the log names the message, or the death of the process that could not log it.
    unexplained = set(books.twice) - books.logged - books.in_killed
    assert not unexplained, unexplained


def flat(memory):
    """How much more memory they took in the last third than in the second; the first warms up."""
    third = len(memory) // 3
    middle, last = memory[third : 2 * third], memory[2 * third :]
    return max(b for _, b in last) / max(b for _, b in middle) - 1


def test_five_seconds(tmp_path):
    """Mixed and hostile mail, corrections, kills, a reload, a next hop that goes away."""
    soak = Soak(tmp_path)
    check(soak.run(5), 5)
    assert soak.code == 0


@pytest.mark.full
def test_ten_minutes(tmp_path):
    """The same for ten minutes; the memory of the daemon does not grow."""
    soak = Soak(tmp_path)
    books = soak.run(600)
    check(books, 600)
    assert books.corrections > 600
    assert books.sent > 5 * 600
    growth = flat(books.memory)
    print(f"memory grew by {100 * growth:.1f} %")
    assert growth <= MEMORY_FLAT
