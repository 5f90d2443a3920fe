"""What-if: the decisions under other costs, against a count message by message."""

from collections import Counter
from math import exp

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spamnb.console.whatif import MailArrays, what_if
from spamnb.engine.filter import Filter
from spamnb.model.costs import DECISIONS, Costs, junk_from, thresholds
from spamnb.model.events import Recipe
from spamnb.model.scoring import ham_needed, most_lost
from spamnb.model.verdict import decide

ROWS = st.lists(st.tuples(st.floats(-40, 40), st.booleans(), st.booleans(), st.booleans()))
FILED = ("junk", "reject")


def mail_of(rows):
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    log_odds, *flags = columns
    return MailArrays(np.array(log_odds, float), *(np.array(one, bool) for one in flags))


def message(text):
    return f"From: a@x.test\nSubject: {text}\n\n{text}\n".encode()


def decision(log_odds, costs):
    return decide(log_odds, costs)


@given(ROWS, st.floats(-3, 12))
@example(rows=[(0.985, False, False, False)], line=0.985)
def test_the_counts_are_those_of_single_decisions(rows, line):
    """Pairs of decisions, known and expected mistakes are each counted over the messages alone."""
    old, new = Costs(), junk_from(Costs(), line)
    found = what_if(mail_of(rows), old, new, 2)
    both = [(decision(row[0], old), decision(row[0], new)) for row in rows]
    counts = Counter(both)
    for i, before in enumerate(DECISIONS):
        for k, after in enumerate(DECISIONS):
            assert found.effect.counts[i, k] == counts[before, after]
    assert list(found.changed) == [at for at, (one, two) in enumerate(both) if one != two]
    to_junk = [
        row for row, (one, two) in zip(rows, both, strict=True) if one not in FILED and two in FILED
    ]
    assert found.effect.newly_junk.messages == len(to_junk)
    assert found.effect.newly_junk.known == sum(row[1] for row in to_junk)
    assert found.effect.newly_junk.known_wrong == sum(row[1] and not row[2] for row in to_junk)
    expected = sum(1 / (1 + exp(row[0])) for row in to_junk)
    assert found.effect.newly_junk.expected_wrong == pytest.approx(expected)
    ham = [(row, two) for row, (_, two) in zip(rows, both, strict=True)
           if row[1] and row[3] and not row[2]]  # fmt: skip
    filed = sum(two in FILED for _, two in ham)
    assert (found.effect.at_most.ham, found.effect.at_most.filed) == (len(ham), filed)
    enough = len(ham) >= ham_needed(2)
    assert found.effect.at_most.share == (most_lost(filed, len(ham)) if enough else None)
    assert sum(part.messages for part in found.reliability) == sum(r[1] and r[3] for r in rows)


@given(ROWS)
def test_the_same_costs_change_nothing(rows):
    """No message moves, and nothing is expected to be wrong."""
    found = what_if(mail_of(rows), Costs(), Costs(), 1000)
    assert found.effect.counts.sum() == found.effect.counts.trace() == len(rows)
    assert (
        len(found.changed)
        == found.effect.newly_junk.messages
        == found.effect.newly_delivered.messages
        == 0
    )
    assert (
        found.effect.newly_junk.expected_wrong == found.effect.newly_delivered.expected_wrong == 0
    )


def test_little_evidence_gives_no_bound():
    """99 % on ham takes as many ham as `ham_needed` says, and one less gives None."""
    for count, enough in ((ham_needed(100) - 1, False), (ham_needed(100), True)):
        mail = mail_of([(-5.0, True, False, True)] * count)
        found = what_if(mail, Costs(), junk_from(Costs(), 3), 100).effect.at_most
        assert (found.share is not None) is enough
        assert found.ham_needed == ham_needed(100)


@pytest.mark.parametrize("line", [1.0, 5.2, 9.0, 20.0])
def test_the_wanted_line_becomes_the_threshold_of_junk(line):
    """The costs that `junk_from` returns have junk above it."""
    found = {one.decision: one.log_odds for one in thresholds(junk_from(Costs(), line))}
    assert found["junk"] == pytest.approx(line)


@pytest.mark.parametrize("labels", [("ham", "spam"), ("ham", "spam", "news")])
def test_the_filter_and_its_history_agree_about_a_score_on_the_threshold(tmp_path, labels):
    """Costs that put the threshold on a message's own score leave it unsure, in both."""
    with Filter.open(tmp_path / "m", create=True, recipe=Recipe(labels=labels)) as model:
        for number in range(30):
            label = labels[number % len(labels)]
            model.learn(message(f"{label} words {number} of {label} {number % 5}"), label)
        mail = [message(f"{labels[n % 2]} words of {labels[-n % 2]} {n % 7}") for n in range(40)]
        verdicts = [model.score(one) for one in mail]
        entries = [*model.history.newest()][::-1]
    found = Counter()
    for raw, verdict, entry in zip(mail, verdicts, entries, strict=True):
        costs = junk_from(Costs(), entry.log_odds)
        with Filter.open(tmp_path / "m", readonly=True, costs=costs) as again:
            decided = again.score(raw, remember=False).decision
        effect = what_if(mail_of([(entry.log_odds, False, False, False)]), Costs(), costs, 2).effect
        assert effect.counts[DECISIONS.index(verdict.decision), DECISIONS.index(decided)] == 1
        assert decided in ("deliver", "unsure")
        found[decided] += 1
    assert found["unsure"]
