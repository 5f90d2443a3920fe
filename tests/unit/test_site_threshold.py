"""The junk threshold of a site: what its mail may change, and what no mail can change."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.model.costs import Costs, junk_from, thresholds
from spamnb.model.verdict import (
    FLOOR,
    NO_SCORES,
    RAISE,
    SETTLED_US,
    SHIPPED,
    WINDOW,
    ScoredMessage,
    count_scores,
    decide,
    decide_stretched,
    plain,
    site_threshold,
    stretched,
)

NOW = 1_800_000_000_000_000
OLD = NOW - SETTLED_US
MANY = 1000


def kept(score, **facts):
    return ScoredMessage(OLD, score, False, **facts)


def said(score, role, **facts):
    return ScoredMessage(NOW, score, None, role, **facts)


def threshold(messages, taught=MANY, one_in=1000):
    return site_threshold(count_scores(messages, NOW), taught, one_in)


EASY = [kept(-4 + number % 30 / 10) for number in range(300)]
"""ham that ends at -1.1 nats"""


def test_without_taught_mail_or_scores_the_threshold_is_the_shipped_one():
    """A site that teaches nothing, or whose mail is not counted, is judged as before."""
    assert site_threshold(NO_SCORES, MANY, 1000) == SHIPPED
    assert threshold(EASY, taught=0) == SHIPPED
    assert threshold([kept(-3)] * 4) == SHIPPED
    assert pytest.approx(5.2, abs=0.01) == SHIPPED


def test_a_site_whose_ham_ends_early_files_from_lower_scores():
    """The more messages of each label are taught, the lower; never below the floor."""
    found = [threshold(EASY, taught=taught) for taught in (1, 3, 7, 20, 1000)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 4.5
    assert FLOOR <= found[-1] < 2.4


def test_ham_with_high_scores_raises_the_threshold():
    """Ham near the threshold moves it up, at most to the shipped one."""
    some = [*EASY, *(said(3 + number % 3, "ham") for number in range(40))]
    assert threshold(EASY) < threshold(some) <= SHIPPED
    assert threshold([said(20, "ham")] * 500) == SHIPPED


def test_a_stricter_target_gives_a_higher_threshold():
    """Fewer ham lost means a higher threshold."""
    mail = [kept(-2 + number % 30 / 10) for number in range(300)]
    assert threshold(mail, one_in=100) < threshold(mail, one_in=10_000)


def test_an_unsure_message_without_an_answer_is_unknown():
    """Neither ham nor spam: such messages leave the threshold where it is."""
    silent = [ScoredMessage(OLD, number % 5, None) for number in range(300)]
    assert count_scores(silent, NOW) == NO_SCORES


def test_silence_counts_only_after_its_time():
    """A message that was delivered just now may still be moved."""
    fresh = [one._replace(time_us=OLD + 1) for one in EASY]
    assert count_scores(fresh, NOW) == NO_SCORES
    assert sum(count_scores(EASY, NOW).kept) == len(EASY)


@pytest.mark.parametrize("name", ["sender", "recipient"])
def test_the_mail_of_one_sender_or_to_one_recipient_is_at_most_half(name):
    """Thousands of harmless messages weigh no more than all other mail together."""
    others = [kept(-1 + number % 20 / 10) for number in range(300)]
    flood = [kept(-4, **{name: "flood.example"})] * (WINDOW - len(others))
    counts = count_scores([*flood, *others], NOW)
    assert sum(counts.kept) == 2 * len(others)
    assert threshold(others) - threshold([*flood, *others]) <= 0.7 * 2


@pytest.mark.parametrize("accomplices", [1, 3])
def test_one_user_raises_the_threshold_by_a_quarter_of_a_nat(accomplices):
    """Spam that a user calls ham moves the threshold of the others by RAISE at most."""
    others = [said(1.0 + number % 8 / 10, "ham", user=f"u{number % 4}") for number in range(60)]
    liars = [
        said(6.0, "ham", user=f"liar{number}") for number in range(accomplices) for _ in range(90)
    ]
    honest = threshold([*others, *EASY])
    assert FLOOR < honest < SHIPPED - 1
    assert honest <= threshold([*liars, *others, *EASY]) <= honest + accomplices * RAISE + 0.01


def test_a_site_of_one_user_is_set_by_this_user():
    """Without labels of others the only user is not limited."""
    one = [said(4.0, "ham", user="ann") for _ in range(40)]
    assert threshold([*one, *EASY]) > threshold([*one[:2], *EASY]) + RAISE


@pytest.mark.parametrize("score", [-4.0, -0.01])
def test_delivered_mail_moves_the_threshold_by_its_logarithm(score):
    """Thousands of messages of forged senders pull it down by less than two nats."""
    ham = [said(number % 20 / 8, "ham", user=f"u{number % 4}") for number in range(60)] + EASY
    sent = [kept(score, sender=f"{number}.example") for number in range(WINDOW - len(ham))]
    before, after = threshold(ham), threshold([*sent, *ham])
    assert FLOOR <= after < before < min(after + 2, SHIPPED)


SCORES = st.floats(-50, 50)


@given(SCORES, SCORES, st.floats(FLOOR, SHIPPED))
def test_stretching_keeps_the_order_and_can_be_reversed(one, other, at):
    """The threshold of the site gets the shipped probability; even odds stay even."""
    a, b = (stretched(score, at) for score in sorted((one, other)))
    assert a <= b
    assert plain(stretched(one, at), at) == pytest.approx(one, abs=1e-9)
    assert stretched(at, at) == pytest.approx(SHIPPED)
    assert stretched(-one, at) == -stretched(one, at)


def test_rejecting_needs_the_odds_before_they_were_stretched():
    """The threshold of rejecting does not move."""
    costs, at = Costs(), 3.0
    reject = next(one.log_odds for one in thresholds(costs) if one.decision == "reject")
    assert decide_stretched(stretched(reject - 0.1, at), at, costs) == "junk"
    assert decide_stretched(stretched(reject + 0.1, at), at, costs) == "reject"
    assert decide(stretched(reject - 0.1, at), costs) == "reject"


def test_own_costs_move_alike():
    """Recipients for whom a lost ham costs more keep a higher threshold."""
    careful, at = junk_from(Costs(), 7.0), 3.0
    assert decide_stretched(stretched(4.0, at), at, careful) == "unsure"
    assert decide_stretched(stretched(5.0, at), at, careful) == "junk"
    assert decide_stretched(stretched(3.1, at), at, Costs()) == "junk"


def test_scores_out_of_range_are_counted():
    """Scores have no limits."""
    counts = count_scores([kept(-inf), kept(inf), kept(1e300), kept(-1e300)], NOW)
    assert sum(counts.kept) == 4


def test_scores_of_a_training_count_until_there_are_verdicts():
    """They set the first threshold; a full window of verdicts leaves nothing of them."""
    trained = count_scores([said(4.0 + number % 8 / 10, "ham") for number in range(50)], NOW)
    none = site_threshold(NO_SCORES, MANY, 1000)
    assert none == site_threshold(NO_SCORES, MANY, 1000, trained) == SHIPPED
    easy = count_scores([said(one.score, "ham") for one in EASY], NOW)
    assert site_threshold(NO_SCORES, MANY, 1000, easy) == threshold(EASY)
    some = site_threshold(easy, MANY, 1000, trained)
    full = count_scores([kept(-4 + number % 30 / 10) for number in range(WINDOW)], NOW)
    assert some > threshold(EASY)
    assert site_threshold(full, MANY, 1000, trained) == site_threshold(full, MANY, 1000)
