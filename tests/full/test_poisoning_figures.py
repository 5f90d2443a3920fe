"""The promised bound on one person's harm, measured on the public corpus if it is there."""

import pytest
from poisoning import site, spend

pytestmark = pytest.mark.full
MOST = 3.0


@pytest.mark.parametrize("label", ["spam", "ham"])
def test_the_twenty_worst_words_cost_at_most_three_points(shared_corpora, label):
    """Ham not delivered, or spam delivered, of others' mail, in a model of 4,546 messages."""
    made = site(shared_corpora / "spamassassin")
    before = made.harm()
    after = spend(made, label, 20)[-1]
    print(label, before, after)
    assert after.ham_not_delivered <= before.ham_not_delivered + MOST
    assert after.spam_delivered <= before.spam_delivered + MOST
    assert after.ham_filed <= 1
