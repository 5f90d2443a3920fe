"""The ham loss bound: exact values, coverage, and too little evidence."""

import re
from dataclasses import replace

import numpy as np
import pytest

from spamnb.lab.report import settings_for
from spamnb.lab.statistics import costs_for, ham_loss_bound
from spamnb.model.costs import Costs, thresholds
from spamnb.model.scoring import ham_needed, most_lost
from spamnb.model.verdict import decide_many


def test_the_bound_is_clopper_and_pearsons():
    """None of n lost: 1 - 0.05^(1/n), three of n about; known values for one and two of 100."""
    assert most_lost(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert most_lost(1, 100) == pytest.approx(0.0466, abs=1e-4)
    assert most_lost(2, 100) == pytest.approx(0.0616, abs=1e-4)
    assert most_lost(7, 7) == 1.0


def test_one_in_n_takes_three_n_ham():
    """The rule of three: one in 1,000 needs 2,995 ham with none lost."""
    assert ham_needed(1000) == 2995
    assert most_lost(0, 2995) <= 1 / 1000 < most_lost(0, 2994)


def test_too_little_ham_is_not_enough_evidence():
    """With too few ham there is no threshold."""
    odds = np.linspace(-9, 9, 400)
    found = ham_loss_bound(odds > 0, odds, 1000)
    assert found.log_odds is None
    assert (found.ham, found.ham_needed) == (200, 2995)
    assert found.at_worst_percent == pytest.approx(100 * most_lost(0, 200))
    assert costs_for(Costs(), found) == Costs()


@pytest.mark.parametrize("one_in", [20, 100])
def test_the_bound_holds(one_in):
    """In at least 95 of 100 draws the true share of ham above the threshold is within the bound."""
    dice = np.random.default_rng(one_in)
    kept = 0
    for _ in range(400):
        ham = dice.normal(0, 1, 800)
        odds = np.concatenate((ham, dice.normal(4, 1, 200)))
        found = ham_loss_bound(np.arange(1000) >= 800, odds, one_in)
        # The true share of a normal ham above the threshold.
        from math import erfc, sqrt

        kept += erfc(found.log_odds / sqrt(2)) / 2 <= 1 / one_in
    assert kept >= 0.93 * 400
    assert kept < 400


def test_the_costs_put_junk_at_the_threshold():
    """`costs_for` gives costs with the guaranteed junk threshold."""
    dice = np.random.default_rng(5)
    truth = np.arange(5000) >= 4000
    odds = np.where(truth, dice.normal(6, 3, 5000), dice.normal(-6, 3, 5000))
    found = ham_loss_bound(truth, odds, 1000)
    made = costs_for(Costs(), found)
    starts = {at.decision: at.log_odds for at in thresholds(made)}
    assert starts["junk"] == pytest.approx(found.log_odds)
    assert starts["reject"] > starts["junk"]
    assert (made.deliver, made.unsure) == (Costs().deliver, Costs().unsure)


def test_calibrated_scores_expect_what_comes():
    """With calibrated probabilities the expected share of ham lost equals the observed one."""
    dice = np.random.default_rng(6)
    odds = dice.normal(0, 3, 100_000)
    truth = dice.random(100_000) < 1 / (1 + np.exp(-odds))
    found = ham_loss_bound(truth, odds, 50)
    seen = 100 * found.ham_above / found.ham
    assert found.expected_percent == pytest.approx(seen, rel=0.1)
    assert seen <= found.at_worst_percent <= 2


def test_the_printed_costs_file_no_more_ham_than_the_bound_counts():
    """A ham on the threshold is not filed, by these costs or as the report prints them."""
    for seed in range(200):
        dice = np.random.default_rng(seed)
        odds = np.concatenate((dice.normal(-1, 2, 700), dice.normal(6, 2, 300)))
        found = ham_loss_bound(np.arange(1000) >= 700, odds, 100)
        pairs = re.findall(r"costs\.(\w+) = \[(.+?), (.+?)\]", settings_for(found, Costs()))
        printed = replace(Costs(), **{name: (float(ham), float(spam)) for name, ham, spam in pairs})
        for costs in (printed, costs_for(Costs(), found)):
            assert (decide_many(odds[:700], costs) >= 2).sum() == found.ham_above, seed
