"""Costs found by evaluation: stored in the home; cost settings take precedence."""

import os
from dataclasses import replace

import numpy as np
import pytest

from spamnb.cli.evaluate_streams import write_found
from spamnb.errors import RefError, RefusedError, SettingsError
from spamnb.lab.statistics import costs_for, ham_loss_bound
from spamnb.maintenance.home_files import (
    FILE,
    MOST_BEFORE,
    CostChoice,
    CostRules,
    choose,
    read_costs,
    read_stored,
    remove_costs,
    stored_facts,
    take_back,
    thresholds_of,
)
from spamnb.model.costs import Costs, thresholds
from spamnb.settings import load, restored
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
    path = write_found(tmp_path, outcome, costs)
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
    write_found(tmp_path, *found())
    promise = "ham_loss.one_in = 20\n"
    assert settings(tmp_path, promise + "costs.unsure = [0.4, 0.6]").costs == Costs()
    set_so = settings(tmp_path, promise, SPAMNB_COSTS_JUNK="50, 0.05")
    assert set_so.costs == replace(Costs(), junk=(50.0, 0.05))


def test_another_promise_takes_another_evaluation(tmp_path):
    """Costs found for one in 20 are not used for one in 1,000."""
    write_found(tmp_path, *found(20))
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
    (tmp_path / FILE).symlink_to(write_found(tmp_path / "there", outcome, costs))
    assert read_costs(tmp_path, 20) is None
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    assert read_costs(tmp_path, 20) is None


RULES = CostRules(one_in=20)


def chosen(home, junk, expect, at, by="ann"):
    return choose(home, RULES, CostChoice(junk, expect, by, at))


def test_a_choice_is_in_force_and_is_taken_back(tmp_path):
    """Each choice says who made it and when; taken back, the file is as it was before it."""
    write_found(tmp_path, *found())
    evaluated = read_stored(tmp_path)
    before = thresholds_of(evaluated.costs)["junk"]
    first = chosen(tmp_path, 0.9, before, "one", by='ann \x7f\n"x" \U0001f600')
    assert first.before == evaluated.costs
    assert thresholds_of(first.after)["junk"] == pytest.approx(0.9)
    there = settings(tmp_path, "ham_loss.one_in = 20")
    assert there.costs == first.after
    assert there.positions["costs.junk"] == str(tmp_path / FILE)
    assert (read_stored(tmp_path).by, read_stored(tmp_path).at) == (
        'ann <U+007F><U+000A>"x" \U0001f600', "one",
    )  # fmt: skip
    second = chosen(tmp_path, 0.99, 0.9, "two")
    assert stored_facts(tmp_path, RULES)["before"] == thresholds_of(first.after)
    assert take_back(tmp_path, RULES, "two") == (second.after, first.after)
    assert take_back(tmp_path, RULES, "one") == (first.after, evaluated.costs)
    assert read_stored(tmp_path) == evaluated
    remove_costs(tmp_path)
    chosen(tmp_path, 0.9, thresholds_of(Costs())["junk"], "three")
    assert take_back(tmp_path, RULES, "three").after == Costs()
    assert not (tmp_path / FILE).exists()


def test_what_was_found_for_another_target_is_not_brought_back_into_force(tmp_path):
    """The costs of the settings are what a choice replaces, and what comes back after it."""
    write_found(tmp_path, *found(50))
    assert chosen(tmp_path, 0.9, thresholds_of(Costs())["junk"], "one").before == Costs()
    assert stored_facts(tmp_path, RULES)["before"] == thresholds_of(Costs())
    assert take_back(tmp_path, RULES, "one").after == Costs()
    assert read_stored(tmp_path).one_in == 50


def test_a_choice_for_other_costs_than_shown_is_refused(tmp_path):
    """Also one that the settings would ignore, and a second press of the button that takes back."""
    now = thresholds_of(Costs())["junk"]
    with pytest.raises(RefusedError, match="have changed"):
        chosen(tmp_path, 0.9, 0.5, "one")
    with pytest.raises(RefusedError, match=r"set at x\.toml, line 3"):
        choose(tmp_path, CostRules("x.toml, line 3"), CostChoice(0.9, now, "ann", "one"))
    assert not (tmp_path / FILE).exists()
    chosen(tmp_path, 0.9, now, "one")
    with pytest.raises(RefusedError, match=r"set at x\.toml, line 3"):
        take_back(tmp_path, CostRules("x.toml, line 3"), "one")
    take_back(tmp_path, RULES, "one")
    with pytest.raises(RefError, match="no costs of one are stored"):
        take_back(tmp_path, RULES, "one")


def test_the_newest_choices_are_kept(tmp_path):
    """The file stays readable, however often the threshold is changed."""
    line = thresholds_of(Costs())["junk"]
    for number in range(MOST_BEFORE + 3):
        done = chosen(tmp_path, 0.8 + number / 100, line, f"time {number}", by="é" * 200)
        line = thresholds_of(done.after)["junk"]
    stored = read_stored(tmp_path)
    assert [one.at for one in stored.before] == [
        f"time {number}" for number in range(MOST_BEFORE + 1, 1, -1)
    ]
