"""The report of a trial: its numbers are those of a slow count, and its bounds hold.

The stream is made up: for each message both verdicts and the label are known.
"""

import json
import random
from fractions import Fraction
from math import comb

import pytest

from spamnb.lab.side_by_side import (
    PairedVerdict,
    TrialContext,
    count_ways,
    estimate,
    exact_interval,
    exact_p,
    report_of,
    strata_of,
)

CELLS = {
    # (decision here, verdict there): messages without a label, labelled ham, labelled spam
    ("deliver", "ham"): (400, 20, 3),
    ("deliver", "unsure"): (11, 2, 1),
    ("deliver", "spam"): (50, 7, 2),
    ("unsure", "ham"): (30, 1, 4),
    ("unsure", "unsure"): (5, 0, 0),
    ("unsure", "spam"): (9, 0, 1),
    ("junk", "ham"): (23, 1, 12),
    ("junk", "unsure"): (1, 0, 0),
    ("junk", "spam"): (200, 1, 30),
    ("reject", "ham"): (2, 0, 1),
    ("reject", "spam"): (77, 0, 0),
}
FILED = ("junk", "reject")


def stream():
    """Make the messages of CELLS; each has tests, domains and times that follow from its number."""
    made = []
    for (decision, other), counts in CELLS.items():
        for truth, count in zip((None, "ham", "spam"), counts, strict=True):
            for _ in range(count):
                number = len(made)
                made.append(
                    PairedVerdict(
                        ident=f"{number * 7919:016x}",
                        name=f"cur/{number}",
                        decision=decision,
                        probability=(number % 10) / 10,
                        other=other,
                        truth=truth,
                        tests=("RBL", "URI")[: number % 3],
                        domains=("a.example", "b.example")[: number % 2 + 1],
                        own_ms=float(number % 5),
                    )
                )
    return made


def slow_count(pairs):
    """Count without anything of the report: loops over the stream and the table."""
    cell = {"deliver": "ham", "unsure": "unsure", "junk": "spam", "reject": "spam"}
    agreement = {a: dict.fromkeys(("ham", "unsure", "spam"), 0) for a in ("ham", "unsure", "spam")}
    for (decision, other), counts in CELLS.items():
        agreement[cell[decision]][other] += sum(counts)
    labelled = {"ham_lost": [0, 0, 0], "spam_missed": [0, 0, 0], "alone": [0, 0]}
    for (decision, other), (_, ham, spam) in CELLS.items():
        here, there = decision in FILED, other == "spam"
        labelled["ham_lost"][0] += ham * here
        labelled["ham_lost"][1] += ham * there
        labelled["ham_lost"][2] += ham
        labelled["spam_missed"][0] += spam * (not here)
        labelled["spam_missed"][1] += spam * (not there)
        labelled["spam_missed"][2] += spam
        if here and not there:
            labelled["alone"][0] += spam
            labelled["alone"][1] += ham
        if there and not here:
            labelled["alone"][0] += ham
            labelled["alone"][1] += spam
    tests, domains = {}, {}
    for pair in pairs:
        here, there = pair.decision in FILED, pair.other == "spam"
        for name in pair.tests if there and not here else ():
            row = tests.setdefault(name, [0, 0])
            row[0] += 1
            row[1] += pair.truth == "spam"
        for name in pair.domains:
            row = domains.setdefault(name, [0, 0, 0])
            row[0] += 1
            row[1] += here and not there
            row[2] += there and not here
    return agreement, labelled, tests, domains


def test_the_numbers_are_those_of_a_slow_count():
    """Every count of the report equals the count of a loop over the stream."""
    pairs = stream()
    agreement, labelled, tests, domains = slow_count(pairs)
    found = report_of(pairs, TrialContext(unmarked=4, other_means={"greylisted": 3})).as_dict()
    assert found["messages"] == sum(map(sum, CELLS.values()))
    assert found["unmarked"] == 4
    assert found["agreement"] == agreement
    assert found["moved"] == sum(
        sum(counts) for (d, o), counts in CELLS.items() if (d in FILED) != (o == "spam")
    )
    assert found["decisions"]["reject"] == 80
    for name in ("ham_lost", "spam_missed"):
        own, other, of = labelled[name]
        assert (found["labelled"][name]["own"]["wrong"], found["labelled"][name]["own"]["of"]) == (
            own, of,
        )  # fmt: skip
        assert found["labelled"][name]["other"]["wrong"] == other
    alone = (found["labelled"]["only_own_right"], found["labelled"]["only_other_right"])
    assert alone == tuple(labelled["alone"])
    filed = [p for p in pairs if p.decision in FILED and p.other != "spam"]
    assert found["newly_filed"]["messages"] == len(filed) == 40
    assert found["newly_filed"]["known_ham"] == 1
    expected = sum(1 - pair.probability for pair in filed)
    assert found["newly_filed"]["expected_ham"] == pytest.approx(expected, abs=1e-3)
    rows = {row["test"]: [row["messages"], row["known_spam"]] for row in found["other_tests"]}
    assert rows == tests
    rows = {row["domain"]: [*row.values()][1:] for row in found["domains"]}
    assert rows == domains
    assert found["milliseconds"] == {"own": 2.0, "other": None}
    assert found["other_means"] == {"greylisted": 3}


def test_the_report_does_not_depend_on_the_order():
    """The same messages in another order, some of them twice, give the same bytes."""
    pairs = stream()
    first = json.dumps(report_of(pairs).as_dict())
    mixed = [*pairs, *pairs[::7]]
    random.Random(5).shuffle(mixed)
    assert json.dumps(report_of(mixed).as_dict()) == first


def test_the_sample_is_of_unlabelled_messages_that_would_move():
    """Each stratum has its part; the weights of the drawn messages add up to all of them."""
    pairs = stream()
    strata = report_of(pairs, TrialContext(sample=40)).strata
    assert {(one.own, one.other): one.size for one in strata} == {
        ("ham", "spam"): 50, ("unsure", "spam"): 9, ("spam", "ham"): 25, ("spam", "unsure"): 1,
    }  # fmt: skip
    assert sum(len(one.drawn) for one in strata) == 40
    for one in strata:
        assert one.weight * len(one.drawn) == pytest.approx(one.size)
        assert len(one.drawn) >= min(4, one.size)
        assert all(pair.truth is None and pair.moves for pair in one.drawn)
    assert sum(len(one.drawn) for one in strata_of(pairs, 1000)) == 85


def test_answers_on_the_sample_bound_the_whole():
    """In 200 worlds with known labels, the true number lies in the 95 % bounds in at least 190."""
    pairs = [pair for pair in stream() if pair.truth is None]
    moved = [pair for pair in pairs if pair.moves]
    inside = 0
    for world in range(200):
        draw = random.Random(world)
        share = draw.random()
        truth = {pair.ident: "spam" if draw.random() < share else "ham" for pair in moved}
        right = sum((truth[p.ident] == "spam") == (p.decision in FILED) for p in moved)
        strata = strata_of(pairs, 40, seed=world)
        drawn = {pair.ident for one in strata for pair in one.drawn}
        found = estimate(strata, {ident: truth[ident] for ident in drawn})
        assert found.answered == 40
        assert 0 <= found.low <= found.own_right <= found.high <= len(moved)
        inside += found.low - 1e-9 <= right <= found.high + 1e-9
        whole = estimate(strata_of(pairs, 1000), truth)
        assert whole.low == pytest.approx(right)
        assert whole.high == pytest.approx(right)
    assert inside >= 190
    nothing = estimate(strata_of(pairs, 40), {})
    assert (nothing.answered, nothing.low, nothing.high) == (0, 0.0, 85.0)


@pytest.mark.parametrize(("count", "of"), [(0, 1), (0, 30), (1, 30), (7, 30), (30, 30), (3, 7)])
def test_intervals_are_those_of_exact_sums(count, of):
    """At each end of the interval the tail of the binomial distribution is 2.5 %."""

    def tail(share, ks):
        p = Fraction(share)
        return float(sum(comb(of, k) * p**k * (1 - p) ** (of - k) for k in ks))

    low, high = exact_interval(count, of)
    if count:
        assert tail(low, range(count, of + 1)) == pytest.approx(0.025, abs=1e-6)
    if count < of:
        assert tail(high, range(count + 1)) == pytest.approx(0.025, abs=1e-6)
    assert 0 <= low <= count / of <= high <= 1


def test_the_exact_p_is_that_of_all_outcomes():
    """The two-sided p is the share of outcomes of fair coins that are at least as uneven."""
    for first in range(7):
        for second in range(7):
            n = first + second
            uneven = abs(first - second)
            found = sum(abs(n - 2 * way.bit_count()) >= uneven for way in range(2**n))
            assert exact_p(first, second) == pytest.approx(found / 2**n if n else 1.0)


def test_the_log_tells_what_never_came_to_a_filter():
    """Lines of Postfix, Exim and amavis are counted by what happened; others are not."""
    start = "Nov 23 10:00:00 mx postfix/smtpd[1]: "
    lines = [
        start + "NOQUEUE: reject: RCPT from a[192.0.2.1]: 450 4.2.0 <b@c>: Recipient address"
        " rejected: Greylisted, see http://x; from=<a@b>",
        start + "NOQUEUE: reject: RCPT from a[192.0.2.1]: 554 5.7.1 Service unavailable; Client"
        " host [192.0.2.1] blocked using zen.spamhaus.org; from=<a@b>",
        start + "NOQUEUE: reject: RCPT from a[192.0.2.1]: 550 5.1.1 <b@c>: User unknown",
        (
            "Nov 23 10:00:00 mx postfix/cleanup[1]: 4F1: milter-reject: END-OF-MESSAGE from"
            " a[192.0.2.1]: 5.7.1 Spam message rejected; from=<a@b>"
        ),
        (
            "Nov 23 10:00:00 mx postfix/cleanup[1]: 4F1: milter-reject: END-OF-MESSAGE from"
            " a[192.0.2.1]: 4.7.1 Try again later; from=<a@b>"
        ),
        "2026-11-23 10:00:00 H=a [192.0.2.1] F=<a@b> rejected RCPT <c@d>: no such user",
        "2026-11-23 10:00:00 1abc-0 H=a [192.0.2.1] F=<a@b> rejected after DATA: spam",
        "Nov 23 10:00:00 mx amavis[7]: (7-1) Blocked SPAM {Discarded}, [192.0.2.1]",
        start + "connect from a[192.0.2.1]",
        "subject: NOQUEUE",
    ]
    assert count_ways(lines) == {
        "blocked by amavis": 1, "greylisted": 1, "list of addresses": 1, "put off by a milter": 1,
        "rejected after DATA": 1, "rejected before DATA": 2, "rejected by a milter": 1,
    }  # fmt: skip
