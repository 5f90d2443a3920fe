"""The keeper: one desk at a time, renewed and closed without anybody noticing."""

import itertools
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spamnb.daemon.roles import model_holder as place
from spamnb.daemon.roles.model_holder import LearnerConfig, ModelHolder
from spamnb.errors import BugError, StoreBusyError, StoreDamagedError, StoreMissingError
from spamnb.service.engine.filter import Filter, new_recipe
from spamnb.service.feedback.types import Feedback
from spamnb.service.limits import TeachingRules
from spamnb.service.telemetry.metrics import Meters
from spamnb.store.maintenance import compact, environments

SAID = Feedback("spam", b"Subject: x\n\nx\n", who="root", trust="admin")


@pytest.fixture
def learning(tmp_path):
    Filter.open(tmp_path / "m", create=True, recipe=new_recipe()).close()
    return LearnerConfig(tmp_path / "m")


@pytest.fixture
def keeper(learning):
    keeper = ModelHolder(learning, Meters())
    keeper.open()
    yield keeper
    keeper.close()


def is_open(learning):
    return any(str(learning.home) == where for where in environments._objects)


def test_new_settings_are_in_force_for_the_next_request(keeper, learning):
    """Who is at the old desk finishes there; then it is closed, and the store with the last."""
    with keeper.desk() as old:
        keeper.apply_settings(replace(learning, teaching=TeachingRules(limit_bytes=3)))
        with keeper.desk() as new:
            assert new is not old
            assert new.teach(SAID).state == "refused"
        assert old.teach(SAID).state == "learnt"
    with pytest.raises(BugError):
        old.model.score(SAID.raw)
    with keeper.desk() as desk:
        assert desk is new
    keeper.close()
    assert not is_open(learning)


def test_who_comes_while_settings_change_waits_for_them(keeper, learning, monkeypatch):
    """A reload refuses nobody: the model is let go, and taken up by the new settings."""
    opened, opening, go_on = keeper._opened, threading.Event(), threading.Event()

    def slowly():
        opening.set()
        assert go_on.wait(30)
        return opened()

    def teach():
        with keeper.desk() as desk:
            return desk.teach(SAID).state

    monkeypatch.setattr(keeper, "_opened", slowly)
    with ThreadPoolExecutor(2) as pool:
        reloaded = pool.submit(keeper.apply_settings, learning)
        assert opening.wait(30)
        taught = pool.submit(teach)
        with pytest.raises(TimeoutError):
            taught.result(0.1)
        go_on.set()
        assert taught.result(30) == "learnt"
        reloaded.result(30)


def test_whoever_comes_after_the_end_is_told_to_come_again(keeper, learning):
    """Closed while a request is in hand: it ends well, the next one is refused."""
    with keeper.desk() as desk:
        keeper.close()
        assert desk.teach(SAID).state == "learnt"
    with pytest.raises(StoreBusyError), keeper.desk():
        pass
    assert not is_open(learning)
    compact(learning.home)


def test_a_model_that_proves_damaged_is_let_go_and_looked_for(keeper, monkeypatch):
    """The request fails with the fault, the next ones as well, until it opens again."""
    with pytest.raises(StoreDamagedError), keeper.desk():
        raise StoreDamagedError("a page is none")
    assert keeper.fault == "a page is none"
    with pytest.raises(StoreDamagedError), keeper.desk():
        pass
    keeper.retry_open()
    assert keeper.fault, "it waits a little before it tries again"
    monkeypatch.setattr(place, "time", SimpleNamespace(monotonic=lambda: 1e12))
    keeper.retry_open()
    assert not keeper.fault
    with keeper.desk() as desk:
        assert desk.teach(SAID).state == "learnt"


def test_a_model_that_is_missing_is_tried_less_and_less(tmp_path, monkeypatch, caplog):
    """The pause doubles up to a minute, the log tells it once, and each caller gets an error."""
    now = [1000.0]
    monkeypatch.setattr(place, "time", SimpleNamespace(monotonic=lambda: now[0]))
    keeper, tried = ModelHolder(LearnerConfig(tmp_path / "none"), Meters()), []
    monkeypatch.setattr(keeper, "open", lambda run=keeper.open: (tried.append(now[0]), run()))
    for _ in range(300):
        keeper.retry_open()
        now[0] += 1.0
    pauses = [b - a for a, b in itertools.pairwise(tried)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert set(pauses[6:]) == {60}
    assert len(caplog.records) == 1
    with pytest.raises(StoreMissingError) as first, keeper.desk():
        pass
    with pytest.raises(StoreMissingError) as second, keeper.desk():
        pass
    assert first.value is not second.value


def test_the_review_list_needs_no_model(keeper, learning):
    """What waits can be seen while the model is gone."""
    with keeper.desk() as desk:
        name = desk.teach(replace(SAID, trust="user", who="alice")).review
    keeper.close()
    shutil.rmtree(learning.home / "history")
    assert [entry.name for entry in keeper.review_queue.entries()] == [name]
