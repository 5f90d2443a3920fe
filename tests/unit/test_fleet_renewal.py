"""A change of the whole model of a fleet that fails: the host and its log fit each other again."""

from contextlib import suppress

import pytest
from support.fleet_storm import letter
from support.outbox_host import Killed, OutboxHost

from spamnb.engine.filter import new_recipe
from spamnb.errors import FleetError, LogAwayError
from spamnb.fleet import administration
from spamnb.fleet.administration import renewing, reseed, standing
from spamnb.fleet.log import MemoryLog
from spamnb.fleet.store import position_of
from spamnb.store.model_store import open_store

RECIPE = new_recipe()


class Home:
    """The home of a stopped host that has taught three messages."""

    def __init__(self, path):
        self.log = MemoryLog()
        host = OutboxHost(path, self.log, RECIPE, "a")
        for number in range(3):
            host.model.correct(letter(f"x{number}", 0), "ham")
        self.path, self.member = path, host.model.store.member
        host.model.close()

    def position(self):
        store = open_store(self.path)
        try:
            with store.read() as view:
                return position_of(view)
        finally:
            store.close()

    def lose_position(self):
        """Change the whole model, as a relearning does: the new one follows no log."""
        store = open_store(self.path)
        with store.write() as view:
            view.put_position(None)
        store.close()

    def fault(self):
        store = open_store(self.path)
        try:
            return standing(store, self.log).fault
        finally:
            store.close()

    def reseed(self, *, force):
        store = open_store(self.path)
        try:
            return reseed(store, self.member, force=force)
        finally:
            store.close()


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "a")


def test_a_change_that_fails_at_once_keeps_the_history(home):
    """The log is open again, as it was."""
    before, head = home.position(), home.log.head()
    with suppress(ZeroDivisionError), renewing(home.path, home.member):
        assert home.log.head().epoch != head.epoch
        raise ZeroDivisionError
    assert (home.position(), home.log.head()) == (before, head)
    assert home.fault() == ""


def test_a_change_that_fails_at_its_end_begins_a_new_history(home):
    """The model is another one already: the log follows it."""
    before = home.log.head()
    with suppress(ZeroDivisionError), renewing(home.path, home.member):
        home.lose_position()
        raise ZeroDivisionError
    assert home.log.head().epoch not in {before.epoch, ""}
    assert home.fault() == ""
    assert list(home.log.snapshot())


def test_a_killed_change_is_ended_by_reseed(home, monkeypatch):
    """The new model follows no log, and the log is closed, until `reseed --force`."""
    home.log.put_level(7)

    def kill(*_):
        raise Killed

    monkeypatch.setattr(administration, "_begin", kill)
    with pytest.raises(Killed), renewing(home.path, home.member):
        home.lose_position()
    with pytest.raises(FleetError, match="follows no log"):
        home.reseed(force=False)
    assert home.reseed(force=True).seq == home.log.head().seq == 3
    assert home.fault() == ""
    assert home.log.head().level == 7


def test_a_change_that_is_killed_without_a_log_is_ended_by_reseed(home, monkeypatch):
    """Killed after the old log is removed, before the new one is made."""

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patched, suppress(Killed), renewing(home.path, home.member):
        patched.setattr(home.log, "make", kill)
        home.lose_position()
    assert home.log.head() is None
    assert "lost" in home.fault()
    home.reseed(force=False)
    assert home.fault() == ""


def test_a_copy_that_fails_is_told(home, monkeypatch):
    """The new history is there without it, and the message says what is left to do."""

    def refuse(*_):
        raise LogAwayError("away")

    monkeypatch.setattr(home.log, "put_snapshot", refuse)
    with (
        pytest.raises(FleetError, match="not on the server: away") as caught,
        renewing(home.path, home.member),
    ):
        home.lose_position()
    assert "spamnb fleet snapshot" in caught.value.hint
    assert home.fault() == ""
