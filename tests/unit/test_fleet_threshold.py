"""The hosts of a fleet have one threshold, whichever of them judged the mail."""

import pytest
from support.fleet import everything, joined
from support.fleet_storm import letter
from support.history import entry
from support.memory_store import MemoryStore

from spamnb.engine.filter import new_recipe
from spamnb.engine.score_watch import ScoreWatch, store_trained_scores
from spamnb.fleet.entries import SCORES_VERSION
from spamnb.fleet.log import MemoryLog
from spamnb.model.verdict import BINS, SETTLED_US, SHIPPED
from spamnb.records.verdicts import History
from spamnb.telemetry import now_us

NOW = now_us()
RECIPE = new_recipe()


@pytest.fixture
def log():
    """A log with a snapshot, so that no host makes one."""
    made = MemoryLog()
    made.put_snapshot([b""])
    return made


def taught(model):
    for number in range(12):
        model.learn(letter(f"{number}", number % 2), "spam" if number % 2 else "ham")


def hosts(log, tmp_path, level=SCORES_VERSION):
    """Two hosts of a fleet with 300 and 100 delivered messages of ham that were not moved."""
    made = []
    for name, count, score in (("one", 300, -2.0), ("two", 100, 2.0)):
        model = joined(MemoryStore(RECIPE), log, name, level=level)
        model.history = History.open(tmp_path / name)
        model.history.add(
            entry(
                number,
                size=3,
                digest=name.encode().ljust(16, b"-")[:14] + number.to_bytes(2),
                time_us=NOW - 2 * SETTLED_US + number,
                decision="deliver",
                log_odds=score + number % 10 / 10,
            )
            for number in range(count)
        )
        made.append(model)
    return made


def followed(models):
    for model in models:
        model.store.follow()


def thresholds(models):
    found = []
    for model in models:
        with model.store.read() as view:
            found.append(model.threshold(view))
    return found


def test_all_hosts_derive_one_threshold_from_all_verdicts(tmp_path, log):
    """The counts of both hosts sum up, in whatever order they come, and again after changes."""
    one, two = models = hosts(log, tmp_path)
    log.put_level(SCORES_VERSION)
    taught(one)
    followed(models)
    assert ScoreWatch().look(one, NOW) is not None
    followed(models)
    first = thresholds(models)
    assert first[0] == first[1] < SHIPPED
    assert ScoreWatch().look(two, NOW) is not None
    followed(models)
    both = thresholds(models)
    assert both[0] == both[1] > first[0]
    assert everything(one.store) == everything(two.store)
    for model in models:
        assert ScoreWatch().look(model, NOW) is None
        model.history.close()


def test_a_training_on_one_host_sets_the_threshold_of_all(tmp_path, log):
    """The scores of sorted mail that one host trained count on every host."""
    one, two = models = hosts(log, tmp_path)
    log.put_level(SCORES_VERSION)
    taught(one)
    followed(models)
    ham = tuple(10 * (step < 8) for step in range(BINS))
    assert store_trained_scores(one, ham, (0,) * BINS, "root", NOW)
    followed(models)
    first, second = thresholds(models)
    assert first == second < SHIPPED
    assert everything(one.store) == everything(two.store)
    for model in models:
        model.history.close()


def test_a_fleet_with_older_hosts_counts_nothing(tmp_path, log):
    """A host that cannot read the counts must not get them."""
    one, two = hosts(log, tmp_path, level=1)
    taught(one)
    assert ScoreWatch().look(one, NOW) is None
    assert not store_trained_scores(one, (20,) + (0,) * (BINS - 1), (0,) * BINS, "root", NOW)
    for model in (one, two):
        model.history.close()
