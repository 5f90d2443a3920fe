"""Costs found by evaluation: stored in the home; cost settings take precedence."""

import os
from dataclasses import replace

import numpy as np
import pytest

from spamnb.core.model.costs import Costs, thresholds
from spamnb.errors import SettingsError
from spamnb.lab.statistics.loss_bound import costs_for, ham_loss_bound
from spamnb.settings import load, restored
from spamnb.settings.cost_override import FILE, read_costs, remove_costs, write_costs
from spamnb.settings.render import plain

pytestmark = pytest.mark.usefixtures("no_system_file")


def found(one_in=20):
    """The ham loss bound of scored messages, and the costs that meet it."""
    odds = np.random.default_rng(1).normal(0, 3, 400)
    outcome = ham_loss_bound(odds > 1.5, odds, one_in)
    return outcome, costs_for(Costs(), outcome)


def settings(home, text="", **environment):
    path = home / "spamnb.toml"
    path.write_text(text)
    return load(path, environment=environment, flags={"home": str(home)})


def test_what_is_kept_is_in_force(tmp_path):
    """The costs of the file are those of the settings, also where they are handed on."""
    outcome, costs = found()
    assert settings(tmp_path).costs == Costs()
    path = write_costs(tmp_path, outcome, costs)
    assert path.stat().st_mode & 0o777 == 0o600
    there = settings(tmp_path, "ham_loss.one_in = 20")
    assert there.costs == costs != Costs()
    (junk,) = (one for one in thresholds(there.costs) if one.decision == "junk")
    assert junk.log_odds == pytest.approx(outcome.log_odds)
    assert restored(plain(there)).costs == costs
    remove_costs(tmp_path)
    assert settings(tmp_path, "ham_loss.one_in = 20").costs == Costs()


def test_costs_in_the_settings_override_found_costs(tmp_path):
    """A cost set in the file or the environment, even to its default, ends the found costs."""
    write_costs(tmp_path, *found())
    promise = "ham_loss.one_in = 20\n"
    assert settings(tmp_path, promise + "costs.unsure = [0.4, 0.6]").costs == Costs()
    set_so = settings(tmp_path, promise, SPAMNB_COSTS_JUNK="50, 0.05")
    assert set_so.costs == replace(Costs(), junk=(50.0, 0.05))


def test_another_promise_takes_another_evaluation(tmp_path):
    """Costs found for one in 20 are not used for one in 1,000."""
    write_costs(tmp_path, *found(20))
    assert read_costs(tmp_path, 20) is not None
    assert read_costs(tmp_path, 1000) is None
    assert settings(tmp_path).costs == Costs()


@pytest.mark.parametrize(
    "text",
    ["one_in = ", "junk = [1, 2]", "one_in = 20\njunk = 1\nreject = [1000, 0]",
     "one_in = 20\njunk = [100, 0.9]\nreject = [1000, 0]\n",
     "one_in = 20\njunk = [100, 0.05]\nreject = [1000, 0]\nmore = 1", "\xff"],
)  # fmt: skip
def test_a_file_without_a_value_is_reported(tmp_path, text):
    """The error has the file and a hint; no default is used instead."""
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    with pytest.raises(SettingsError, match=FILE) as caught:
        settings(tmp_path, "ham_loss.one_in = 20")
    assert "evaluate --apply" in caught.value.hint


def test_what_is_no_file_is_not_read(tmp_path):
    """Root may read here what another user put there: no link is followed, no pipe waited for."""
    outcome, costs = found()
    (tmp_path / "there").mkdir()
    (tmp_path / FILE).symlink_to(write_costs(tmp_path / "there", outcome, costs))
    assert read_costs(tmp_path, 20) is None
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    assert read_costs(tmp_path, 20) is None
