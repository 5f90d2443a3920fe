"""Hosts of different versions in one fleet: they write what all of them read."""

import pytest
from support.fleet import everything, joined
from support.fleet_storm import letter
from support.memory_store import MemoryStore

from spamnb.engine.filter import new_recipe
from spamnb.errors import FleetError, RefusedError
from spamnb.fleet.administration import raise_level
from spamnb.fleet.log import DAY_S, MemoryLog
from spamnb.fleet.pulse import Pulse

RECIPE = new_recipe()
OLD, NEW = 1, 2


@pytest.fixture
def log():
    """A log with a snapshot, so that no host makes one."""
    made = MemoryLog()
    made.put_snapshot([b""])
    return made


def hosts(log, tmp_path, *levels):
    """Hosts that have told the others of themselves."""
    found = [joined(MemoryStore(RECIPE), log, f"host{at}", level=n) for at, n in enumerate(levels)]
    for model in found:
        Pulse(tmp_path, model.store).beat()
    return found


def versions(log):
    """The version of each entry of the log: the first byte after the seal and its tag."""
    return [entry.body[1 + 32] for entry in log.entries(0)]


def test_a_new_host_writes_what_an_old_one_reads(log, tmp_path):
    """Until the level is raised all hosts follow each other, whatever they could write."""
    old, new = hosts(log, tmp_path, OLD, NEW)
    for number, model in enumerate((old, new, old, new)):
        model.learn(letter(f"{number}", number % 2), "spam" if number % 2 else "ham")
    assert versions(log) == [OLD] * 4
    for model in (old, new):
        model.store.follow()
    assert everything(old.store) == everything(new.store)


def test_the_level_is_raised_when_all_hosts_read_it(log, tmp_path):
    """It is refused while a host of the last day is old; then entries have the new version."""
    old, new = hosts(log, tmp_path, OLD, NEW)
    with pytest.raises(RefusedError, match="host0"):
        raise_level(new.store.member)
    assert log.head().level == OLD
    made, beat = log._beats["host0"]
    log._beats["host0"] = made - DAY_S - 60, beat
    assert raise_level(new.store.member) == NEW
    assert raise_level(new.store.member) == raise_level(old.store.member) == NEW
    new.learn(letter("s", 1), "spam")
    assert versions(log) == [NEW]


def test_a_host_that_is_too_old_stops_and_goes_on_after_an_upgrade(log, tmp_path):
    """It names what it cannot read, keeps its model, and follows when it is upgraded."""
    old, new = hosts(log, tmp_path, OLD, NEW)
    old.learn(letter("h", 0), "ham")
    log.put_level(NEW)
    new.store.follow()
    new.learn(letter("s", 1), "spam")
    before = everything(old.store)
    with pytest.raises(FleetError, match="version 2") as stopped:
        old.store.follow()
    assert "upgrade" in stopped.value.hint
    assert everything(old.store) == before
    assert old.score(letter("h", 0), remember=False).label == "ham"
    upgraded = joined(old.store._store, log, "host0", level=NEW)
    assert upgraded.store.follow() == 1
    assert everything(upgraded.store) == everything(new.store)
