"""The holder: one service at a time; renewal and closing disturb no request."""

import itertools
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.waiting import LIMIT_S

from spamnb.daemon import learner as place
from spamnb.daemon.learner import LearnerConfig, ModelHolder
from spamnb.engine.filter import Filter, new_recipe
from spamnb.errors import BugError, StoreBusyError, StoreDamagedError, StoreMissingError
from spamnb.feedback.values import Feedback
from spamnb.settings.values import TeachingRules
from spamnb.store.maintenance import compact, environments
from spamnb.telemetry import Meters

SAID = Feedback("spam", b"Subject: x\n\nx\n", user="root", trust="admin")


@pytest.fixture
def learning(tmp_path):
    Filter.open(tmp_path / "m", create=True, recipe=new_recipe()).close()
    return LearnerConfig(tmp_path / "m")


@pytest.fixture
def holder(learning):
    holder = ModelHolder(learning, Meters())
    holder.open()
    yield holder
    holder.close()


def is_open(learning):
    return any(str(learning.home) == where for where in environments._objects)


def test_new_settings_are_in_force_for_the_next_request(holder, learning):
    """Requests of the old service finish there; the last one closes the service and the store."""
    with holder.service() as old:
        holder.apply_settings(replace(learning, teaching=TeachingRules(limit_bytes=3)))
        with holder.service() as new:
            assert new is not old
            assert new.teach(SAID).state == "refused"
        assert old.teach(SAID).state == "learnt"
    with pytest.raises(BugError):
        old.model.score(SAID.raw)
    with holder.service() as service:
        assert service is new
    holder.close()
    assert not is_open(learning)


def test_a_caller_waits_while_settings_change(holder, learning, monkeypatch):
    """A reload refuses no request: requests wait until the model is open with the new settings."""
    opened, opening, go_on = holder._opened, threading.Event(), threading.Event()

    def slowly():
        opening.set()
        assert go_on.wait(LIMIT_S)
        return opened()

    def teach():
        with holder.service() as service:
            return service.teach(SAID).state

    monkeypatch.setattr(holder, "_opened", slowly)
    with ThreadPoolExecutor(2) as pool:
        reloaded = pool.submit(holder.apply_settings, learning)
        assert opening.wait(LIMIT_S)
        taught = pool.submit(teach)
        with pytest.raises(TimeoutError):
            taught.result(0.1)
        go_on.set()
        assert taught.result(30) == "learnt"
        reloaded.result(30)


def test_a_request_after_the_end_gets_a_temporary_error(holder, learning):
    """At a close a running request finishes; the next one is refused."""
    with holder.service() as service:
        holder.close()
        assert service.teach(SAID).state == "learnt"
    with pytest.raises(StoreBusyError), holder.service():
        pass
    assert not is_open(learning)
    compact(learning.home)


def test_a_model_that_proves_damaged_is_let_go_and_looked_for(holder, monkeypatch):
    """The request fails with the fault, the next ones as well, until it opens again."""
    with pytest.raises(StoreDamagedError), holder.service():
        raise StoreDamagedError("a page is none")
    assert holder.fault == "a page is none"
    with pytest.raises(StoreDamagedError), holder.service():
        pass
    holder.retry_open()
    assert holder.fault, "it waits a little before it tries again"
    monkeypatch.setattr(place, "time", SimpleNamespace(monotonic=lambda: 1e12))
    holder.retry_open()
    assert not holder.fault
    with holder.service() as service:
        assert service.teach(SAID).state == "learnt"


def test_a_model_that_is_missing_is_tried_less_and_less(tmp_path, monkeypatch):
    """The pause doubles up to a minute, the log reports it once, and each caller gets an error."""
    now = [1000.0]
    monkeypatch.setattr(place, "time", SimpleNamespace(monotonic=lambda: now[0]))
    logged, tried = [], []
    holder = ModelHolder(LearnerConfig(tmp_path / "none", log=logged.append), Meters())
    monkeypatch.setattr(holder, "open", lambda run=holder.open: (tried.append(now[0]), run()))
    for _ in range(300):
        holder.retry_open()
        now[0] += 1.0
    pauses = [b - a for a, b in itertools.pairwise(tried)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert set(pauses[6:]) == {60}
    assert len(logged) == 1
    with pytest.raises(StoreMissingError) as first, holder.service():
        pass
    with pytest.raises(StoreMissingError) as second, holder.service():
        pass
    assert first.value is not second.value


def test_the_review_list_needs_no_model(holder, learning):
    """The review queue can be read while the model cannot be opened."""
    with holder.service() as service:
        name = service.teach(replace(SAID, trust="user", user="alice")).review
    holder.close()
    shutil.rmtree(learning.home / "history")
    assert [entry.name for entry in holder.review_queue.entries()] == [name]
