"""Two runs over the same messages: paired by message, with an interval."""

import json

import numpy as np
import pytest

from spamnb.errors import UserError
from spamnb.lab.evaluate import compare
from spamnb.lab.statistics import auc


def scored(path, odds, truth, ids=None):
    rows = [
        {"id": name, "spam": bool(spam), "log_odds": float(z),
         "probability": float(1 / (1 + np.exp(-z)))}
        for name, z, spam in zip(ids or map(str, range(len(odds))), odds, truth, strict=True)
    ]  # fmt: skip
    path.write_text(json.dumps({"messages": rows}))
    return path


@pytest.fixture
def runs(tmp_path):
    dice = np.random.default_rng(1)
    truth = np.arange(600) % 2 == 1
    good = np.where(truth, 2.0, -2.0) + dice.normal(0, 1.5, 600)
    bad = good + dice.normal(0, 2, 600)
    return scored(tmp_path / "a", good, truth), scored(tmp_path / "b", bad, truth), good, bad, truth


def test_the_better_run_is_named(runs):
    """Differences are A minus B, and their interval contains them."""
    a, b, good, _, truth = runs
    found = compare(a, b)
    assert found.messages == 600
    area = found.differences[0]
    assert area.a == pytest.approx(100 * (1 - auc(truth, good)))
    assert area.difference == pytest.approx(area.a - area.b)
    for one in found.differences:
        assert one.low <= one.difference <= one.high
        assert one.better == "A"
    assert {one.better for one in compare(b, a).differences} == {"B"}
    assert json.loads(json.dumps(found.as_dict()))["differences"][0]["better"] == "A"


def test_a_run_against_itself_differs_in_nothing(runs):
    """A run compared with itself shows no difference."""
    a = runs[0]
    assert {(one.difference, one.better) for one in compare(a, a).differences} == {(0.0, "neither")}


def test_messages_pair_in_any_order_and_copies_in_their_order(tmp_path):
    """Messages are paired by digest; messages of only one run are left out and counted."""
    a = scored(tmp_path / "a", [1, 2, 3, -1], [1, 1, 1, 0], ["x", "y", "y", "z"])
    b = scored(tmp_path / "b", [-1, 2, 9, 3, 1], [0, 1, 1, 1, 1], ["z", "y", "only", "y", "x"])
    found = compare(a, b)
    assert (found.messages, found.only_a, found.only_b) == (4, 0, 1)
    assert all(one.difference == 0 for one in found.differences)


def test_files_that_cannot_be_compared_are_refused(tmp_path, runs):
    """Files without scores, without common messages or with other labels are refused."""
    (tmp_path / "plain").write_text("{}")
    with pytest.raises(UserError, match="no scores"):
        compare(runs[0], tmp_path / "plain")
    with pytest.raises(UserError, match="cannot be read"):
        compare(runs[0], tmp_path / "missing")
    other = scored(tmp_path / "other", [1.0, -1], [1, 0], ["p", "q"])
    with pytest.raises(UserError, match="0 messages in common"):
        compare(runs[0], other)
    turned = scored(tmp_path / "turned", [1.0, -1], [0, 1], ["p", "q"])
    with pytest.raises(UserError, match="do not agree"):
        compare(other, turned)
