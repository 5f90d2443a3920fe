"""The promised bounds on the harm of one user and of many, if the public corpus is there."""

import pytest
from poisoning import site, spend

pytestmark = pytest.mark.full
MOST = 3.0
MOST_OF_FIVE = 5.0


@pytest.mark.parametrize("label", ["spam", "ham"])
def test_the_twenty_worst_corrections_cost_at_most_three_points(shared_corpora, label):
    """Ham not delivered, or spam delivered, of others' mail, in a model of 4,546 messages."""
    made = site(shared_corpora / "spamassassin")
    before = made.harm()
    after = spend(made, label, 20)[-1]
    print(label, before, after)
    assert after.ham_not_delivered <= before.ham_not_delivered + MOST
    assert after.spam_delivered <= before.spam_delivered + MOST
    assert after.ham_filed <= 1


@pytest.mark.parametrize("label", ["spam", "ham"])
def test_five_accounts_cost_at_most_five_points(shared_corpora, label):
    """The worst moment of twenty corrections by each of five accounts that work together."""
    made = site(shared_corpora / "spamassassin")
    before = made.harm()
    after = spend(made, label, 100, people=5)
    worst = max(after, key=lambda harm: harm.of(label)[0])
    print(label, before, worst, after[-1])
    assert worst.of(label)[0] <= before.of(label)[0] + MOST_OF_FIVE


@pytest.mark.parametrize(("label", "most"), [("spam", 2.0), ("ham", 4.0)])
def test_a_user_with_five_labels_a_day_costs_little(shared_corpora, label, most):
    """A hundred labels within twenty days; the worst moment counts."""
    made = site(shared_corpora / "spamassassin")
    made.per_day = 5
    before = made.harm().of(label)[0]
    worst = max(harm.of(label)[0] for harm in spend(made, label, 100, tries=15))
    print(label, before, worst)
    assert worst <= before + most


@pytest.mark.parametrize(("label", "most"), [("spam", 4.0), ("ham", 8.0)])
def test_twenty_accounts_with_one_label_each_cost_little(shared_corpora, label, most):
    """Accounts that work together, on one day."""
    made = site(shared_corpora / "spamassassin")
    before = made.harm().of(label)[0]
    worst = max(harm.of(label)[0] for harm in spend(made, label, 20, tries=15, people=20))
    print(label, before, worst)
    assert worst <= before + most
