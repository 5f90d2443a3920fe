"""The calibration of a score: the probability that a lead of a label stands for."""

from itertools import pairwise

import numpy as np
import pytest

from spamnb.model.events import no_totals
from spamnb.model.scoring import FEW, LOW, MORE, SURE, calibrated, joint_lead, maturity

LEADS = np.linspace(0, 40, 4_001).tolist()
MATURITIES = [0.0, 0.3, 1.0]


def lead_of(joint, mature):
    second, first = sorted(calibrated(joint, mature))[-2:]
    return first - second


@pytest.mark.parametrize("mature", MATURITIES)
def test_a_larger_lead_stays_larger(mature):
    """The calibration is continuous and rises, so it changes no order of messages."""
    leads = [lead_of([-1.0, lead - 1.0], mature) for lead in LEADS]
    assert all(0 < after - before < 0.03 for before, after in pairwise(leads))


@pytest.mark.parametrize("mature", MATURITIES)
def test_the_sides_are_treated_alike(mature):
    """Exchanged scores give exchanged results: the calibration prefers no label."""
    for lead in LEADS[::50]:
        assert calibrated([0.0, lead], mature) == calibrated([lead, 0.0], mature)[::-1]


@pytest.mark.parametrize("mature", MATURITIES)
def test_the_lead_can_be_traced_back(mature):
    """`joint_lead` is the inverse: a correction adds as much as the verdict needs."""
    for lead in LEADS:
        assert joint_lead(lead_of([0.0, lead], mature), mature) == pytest.approx(lead, abs=1e-12)


def test_an_error_far_out_does_not_become_a_certainty():
    """A lead grows by MORE nats at most, and a doubtful one never."""
    assert lead_of([0.0, SURE], 1.0) == pytest.approx(LOW * SURE)
    assert lead_of([0.0, 40.0], 1.0) == pytest.approx(LOW * 40 + MORE)


def test_a_young_model_stays_careful():
    """The label with the fewest messages decides how much is added: nothing without any."""
    totals = no_totals(2, 2)
    assert maturity(totals) == 0
    totals.messages[:] = 10 * FEW, FEW // 2
    assert maturity(totals) == 0.5
    totals.messages[:] = 10 * FEW
    assert maturity(totals) == 1


@pytest.mark.parametrize("corrections", [5, 20])
def test_a_persons_corrections_move_the_calibration_by_little(corrections):
    """It depends on the number of messages alone: 20 corrections move no lead by more than .35."""
    most = MORE * corrections / FEW
    for messages in range(0, 2 * FEW, 5):
        before, after = min(1, messages / FEW), min(1, (messages + corrections) / FEW)
        for lead in np.linspace(0, 30, 121).tolist():
            moved = calibrated([0.0, lead], after)[1] - calibrated([0.0, lead], before)[1]
            assert 0 <= moved <= most + 1e-9


def test_three_labels_keep_their_proportions():
    """All scores of a message are multiplied by one factor, so clues can share it."""
    joint = [0.5, 6.0, -3.0]
    factors = [z / j for z, j in zip(calibrated(joint, 1.0), joint, strict=True)]
    assert factors == pytest.approx([factors[0]] * 3)
    assert factors[0] > LOW
