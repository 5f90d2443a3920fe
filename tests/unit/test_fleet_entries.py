"""Entries of a fleet's log: bodies as bytes, their seals, and what a host refuses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleet import KEY, everything, joined
from support.memory_store import MemoryStore
from support.outbox_host import OutboxHost
from support.stores import RECIPE, SPAM, event_for, mail

from spamnb.engine.filter import Filter
from spamnb.engine.values import Source
from spamnb.errors import (
    FleetError,
    LimitError,
    RefusedError,
    StoreAccessError,
    StoreDamagedError,
    StoreVersionError,
)
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.rights import keys_of
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Feedback
from spamnb.fleet import store as fleet_store
from spamnb.fleet.elsewhere import AllHosts
from spamnb.fleet.entries import SEALERS, Place, decode_body, encode_body
from spamnb.fleet.log import Draft, MemoryLog, Outcome
from spamnb.model.features import Words
from spamnb.settings.values import TeachingRules
from spamnb.store.codec import encode_event
from spamnb.store.values import FleetPosition, Recorded
from spamnb.telemetry import now_us

PLACE = Place("e", "host1", 7, 9, 3)
each_seal = pytest.mark.parametrize("kind", SEALERS)


def events(count):
    store = MemoryStore(RECIPE)
    with store.read() as view:
        return [event_for(view, mail(number, 1, 2, number), SPAM) for number in range(count)]


def words(*texts):
    ids = np.arange(len(texts), dtype=np.uint64) * np.uint64(1 << 60)
    sizes = np.array([len(text) for text in texts], np.uint8)
    return Words(ids, np.ones(len(texts), np.uint8), sizes, b"".join(texts))


def letter(number):
    return f"From: ann@a.example\nSubject: offer {number}\n\ncheap pills {number}\n".encode()


def test_a_body_holds_events_and_words():
    """A body is read as it was written, its events numbered from the first one on."""
    written = events(3)
    body = decode_body(20, encode_body(written, words(b"one", b"", b"three")))
    assert [event.seq for event in body.events] == [20, 21, 22]
    copies = [event._replace() for event in body.events]
    assert [*map(encode_event, copies)] == [*map(encode_event, written)]
    assert [part.tolist() for part in body.words[:3]] == [
        part.tolist() for part in words(b"one", b"", b"three")[:3]
    ]
    assert body.words.texts == b"onethree"


def test_an_event_of_a_body_is_stored_with_its_bytes():
    """It is not encoded again; a changed copy is."""
    (written,) = events(1)
    body = decode_body(20, encode_body([written], words()))
    (event,) = body.events
    assert encode_event(event) is encode_event(event)
    assert encode_event(event) == encode_event(written)
    assert encode_event(event._replace(user="bob")) == encode_event(written._replace(user="bob"))


@given(st.data())
def test_a_damaged_body_is_refused(data):
    """A body that is cut short, or has other bytes behind it, raises a StoreError."""
    whole = encode_body(events(1), words(b"one"))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for bad in (cut, whole + b"x"):
        with pytest.raises((StoreDamagedError, StoreVersionError)):
            decode_body(1, bad)


@each_seal
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_changed_entry_does_not_open(kind, at, bit):
    """One changed bit of a sealed body is noticed."""
    sealer = SEALERS[kind](KEY)
    sealed = bytearray(sealer.seal(b"body", PLACE))
    assert sealer.open(bytes(sealed), PLACE) == b"body"
    sealed[at % len(sealed)] ^= 1 << bit
    with pytest.raises(FleetError):
        sealer.open(bytes(sealed), PLACE)


@each_seal
@pytest.mark.parametrize("field", Place._fields)
def test_a_moved_entry_does_not_open(kind, field):
    """A seal is bound to the epoch, the host and the events of its entry."""
    sealer = SEALERS[kind](KEY)
    sealed = sealer.seal(b"body", PLACE)
    old = getattr(PLACE, field)
    moved = PLACE._replace(**{field: "x" if isinstance(old, str) else old + 1})
    with pytest.raises(FleetError):
        sealer.open(sealed, moved)


@each_seal
def test_another_key_does_not_open(kind):
    """Who has only the engine, or another fleet's key, can neither read nor write entries."""
    sealed = SEALERS[kind](KEY).seal(b"body", PLACE)
    for other in SEALERS:
        with pytest.raises(FleetError):
            SEALERS[other](bytes(32)).open(sealed, PLACE)


def test_the_chacha_seal_hides_the_body():
    """The keeper of the log cannot read what a chacha20 seal covers."""
    assert b"casino" not in SEALERS["chacha20"](KEY).seal(b"casino" * 9, PLACE)


def test_a_position_is_read_as_it_was_written():
    """A stored position has all of its parts; other bytes are damage."""
    position = FleetPosition("epoch", 12, "chain", {"a": Recorded(7, "c1")}).after(
        14, "b", Recorded(2, "c2", "07")
    )
    assert FleetPosition.decode(position.encode()) == position
    for bad in (b"", b"[]", b'{"epoch": "e"}', position.encode()[:-1]):
        with pytest.raises(StoreDamagedError):
            FleetPosition.decode(bad)


def test_a_host_of_a_fleet_learns_through_the_log_only():
    """A store with a position takes no event that the log lacks, and stays unchanged."""
    store = MemoryStore(RECIPE)
    model = joined(store, MemoryLog(), "a")
    model.learn(letter(1), "spam")
    before = everything(store)
    with pytest.raises(StoreAccessError, match="fleet"):
        Filter(store).learn(letter(2), "spam")
    assert everything(store) == before


def test_a_model_without_a_position_is_not_taught_through_a_log():
    """A host that has neither begun the fleet nor restored a backup of it is refused."""
    log, store = MemoryLog(), MemoryStore(RECIPE)
    joined(MemoryStore(RECIPE), log, "a")
    model = joined(store, log, "b")
    with store.write() as view:
        view.put_position(None)
    with pytest.raises(FleetError, match="follows no log"):
        model.learn(letter(1), "spam")


def test_an_entry_that_is_too_large_is_refused(monkeypatch):
    """An entry above the limit is not appended, and says how many bytes it has."""
    monkeypatch.setattr(fleet_store, "MOST_BYTES", 100)
    log = MemoryLog()
    model = joined(MemoryStore(RECIPE), log, "a")
    with pytest.raises(RefusedError, match="bytes"):
        model.learn(letter(1), "spam")
    assert log.head().seq == 0


def test_a_host_that_lags_behind_the_log_says_so():
    """A host that lacks entries which the log has dropped stops."""
    log = MemoryLog(keep_events=2)
    late, model = (joined(MemoryStore(RECIPE), log, host) for host in "ab")
    for number in range(4):
        model.learn(letter(number), "spam")
    with pytest.raises(FleetError, match="continues with event 3"):
        late.store.follow()


def test_a_log_that_lost_entries_is_noticed():
    """A host that is ahead of the log, or has another history, neither folds nor learns."""
    log, store = MemoryLog(), MemoryStore(RECIPE)
    model = joined(store, log, "a")
    model.learn(letter(1), "spam")
    lost = MemoryLog()
    lost.make(log.head()._replace(seq=0, chain="0" * 40))
    for head in (lost.head(), lost.head()._replace(seq=1), lost.head()._replace(epoch="new")):
        lost._head = head
        split = Filter(type(model.store)(store, model.store.member._replace(log=lost)))
        with pytest.raises(FleetError):
            split.learn(letter(2), "spam")
        with pytest.raises(FleetError):
            split.store.follow()


def test_nothing_is_unchanged_by_what_a_host_does_not_know_yet():
    """A label that a host has already is learnt if another host has changed it meanwhile."""
    log, raw = MemoryLog(), letter(1)
    first, second = (joined(MemoryStore(RECIPE), log, host) for host in "ab")
    assert first.correct(raw, "spam").changed
    assert not second.correct(raw, "spam").changed
    assert first.correct(raw, "ham").changed
    assert second.correct(raw, "spam").changed


def test_a_log_that_was_made_anew_further_on_is_noticed():
    """A host that lacks events which the log never had does not try to append for ever."""
    log, late = MemoryLog(), MemoryStore(RECIPE)
    model, behind = joined(MemoryStore(RECIPE), log, "a"), joined(late, log, "b")
    model.learn(letter(1), "spam")
    log._entries.clear()
    for act in (behind.store.follow, lambda: behind.learn(letter(2), "spam")):
        with pytest.raises(FleetError, match="lacks"):
            act()


class _LossyLog(MemoryLog):
    """Loses the answer to an append, before or after the entry is in the log."""

    def __init__(self):
        super().__init__()
        self.loses = ""

    def append(self, draft):
        loses, self.loses = self.loses, ""
        outcome = super().append(draft) if loses != "before" else Outcome.STALE
        if loses:
            raise fleet_store.LogAwayError("lost")
        return outcome


def test_a_lost_answer_is_looked_up_in_the_log():
    """An append whose answer is lost gives its receipt if the log has it, else an error."""
    log, store = _LossyLog(), MemoryStore(RECIPE)
    model = joined(store, log, "a")
    log.loses = "after"
    receipt = model.learn(letter(1), "spam")
    assert (receipt.changed, receipt.event, log.head().seq) == (True, 1, 1)
    log.loses = "before"
    with pytest.raises(fleet_store.LogAwayError):
        model.learn(letter(2), "spam")
    assert log.head().seq == 1
    assert model.learn(letter(2), "spam").event == 2
    assert everything(store)[1] == store._state["sums"]["position"].encode()


def test_a_store_that_fails_after_the_append_gives_the_receipt():
    """A transaction that must be repeated after its append is folded from the log instead."""
    log, store = MemoryLog(), MemoryStore(RECIPE)
    model = joined(store, log, "a")
    transact = store.transact

    def twice(run):
        with store.write() as view:
            run(view)
            store.transact = transact
            view.over = {name: {} for name in view.over}
            return run(view)

    store.transact = twice
    assert model.learn(letter(1), "spam").event == 1
    assert log.head().seq == 1
    assert everything(store)[0]["totals"][2] == 1


def test_a_daily_quota_holds_for_all_hosts(tmp_path):
    """A user's changes on other hosts count against the user's quota on this one."""
    log, rules = MemoryLog(), TeachingRules(user_per_day=1)
    here = OutboxHost(tmp_path / "home", log, RECIPE, "a").model
    there = joined(MemoryStore(RECIPE), log, "b")
    service = FeedbackService(here, ReviewQueue(tmp_path), rules, hosts=AllHosts(here, rules))
    asked = Feedback("spam", letter(1), user="ann", channel="imap", trust="user")
    assert service.teach(asked).state == "review"
    assert service.teach(replace(asked, raw=letter(2), trust="admin")).state == "learnt"
    there.correct(letter(3), "spam", source=Source("ann", "imap"))
    (key,) = keys_of(asked, rules, proven=True)
    service._quota.check([key], now_us())
    here.store.follow()
    with pytest.raises(LimitError):
        service._quota.check([key], now_us())


def test_the_log_refuses_what_it_has():
    """Numbers of a host that the log has already are refused, whatever the base is."""
    log = MemoryLog()
    joined(MemoryStore(RECIPE), log, "a")
    epoch = log.head().epoch
    first = Draft(epoch, "a", 0, 1, 0, 1, b"body")
    assert log.append(first) is Outcome.APPENDED
    assert log.append(first) is Outcome.RECORDED
    assert log.append(first._replace(base=1, last=2)) is Outcome.RECORDED
