"""A log that was restarted, rolled back or lost: what one host still has is not lost."""

import numpy as np
import pytest
from support.fleet import everything
from support.fleet_storm import letter
from support.outbox_host import OutboxHost
from support.stores import ids_of

from spamnb.engine.filter import new_recipe
from spamnb.engine.values import Learn, Source
from spamnb.errors import FleetError, LogAwayError, RefusedError
from spamnb.fleet.administration import rejoin, reseed, skip, standing
from spamnb.fleet.entries import Place
from spamnb.fleet.log import START, Draft, MemoryLog, Outcome
from spamnb.fleet.pulse import Pulse, hosts_of, put_snapshot
from spamnb.fleet.store import FleetStore
from spamnb.model.persons import no_corrections
from spamnb.store import maintenance as audit
from spamnb.store.codec import no_records
from spamnb.store.model_store import open_store
from spamnb.store.rows import key_of
from spamnb.store.values import FleetPosition

RECIPE = new_recipe()


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def fleet(tmp_path, log):
    """Two hosts; each has taught something that the other one has."""
    hosts = [OutboxHost(tmp_path / name, log, RECIPE, name) for name in ("a", "b")]
    for number, host in enumerate(hosts * 3):
        host.model.correct(letter(f"x{number}", number % 2), ("ham", "spam")[number % 2])
    equal(hosts)
    yield hosts
    for host in hosts:
        host.model.close()


def equal(hosts):
    """Whether all hosts are equal when they have followed the log."""
    for host in hosts * 3:
        try:
            host.heal()
        except LogAwayError:
            continue
    found = [everything(host.model.store) for host in hosts]
    return all(one == found[0] for one in found)


def events(host):
    with host.model.store.read() as view:
        return [(event.seq, event.message_id.partition("@")[0]) for event in view.events()]


def beat(hosts):
    for host in hosts:
        Pulse(host.home, host.model.store).beat()


def rejoined(host):
    """Join again, as the command does without a daemon."""
    host.model.close()
    store = FleetStore(open_store(host.home), host.model.store.member)
    try:
        return rejoin(host.home, store, store.member)
    finally:
        store.close()


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_a_log_gets_back_what_a_restart_has_lost(fleet, log, lost):
    """A host gives lost entries back before any host appends something else."""
    beat(fleet)
    before, entries = events(fleet[0]), list(log.entries(0))
    log.restart(lost)
    waiting = fleet[1].model.correct(letter("late", 1), "spam")
    assert (waiting.changed, waiting.waiting) == (False, 1)
    assert equal(fleet)
    assert list(log.entries(0))[: len(entries)] == entries
    assert events(fleet[0])[: len(before)] == before
    assert [name for _, name in events(fleet[0])[len(before) :]] == ["late"]


def test_a_host_that_comes_late_gives_back_what_nobody_else_has(fleet, log):
    """A host that was away during a restart still gives back entries, if nothing came after."""
    first, second = fleet
    first.model.correct(letter("own", 1), "spam")
    head = log.head()
    log.restart(1)
    assert log.settle("b", log.head().seq, 0)
    first.model.correct(letter("next", 1), "spam")
    assert log.head().seq == head.seq + 1
    assert equal(fleet)
    assert [name for _, name in events(second)[-2:]] == ["own", "next"]


def test_a_host_that_was_left_behind_says_its_corrections_again(fleet, log):
    """The log went on without a host: it adopts the new history and repeats its corrections."""
    first, second = fleet
    raw = letter("own", 0)
    first.model.correct(raw, "spam")
    first.model.forget(letter("x0", 0))
    log.restart(2)
    log.settle("b", log.head().seq, 0)
    second.model.correct(letter("other", 1), "spam")
    with pytest.raises(FleetError, match="continued without"):
        first.model.store.follow()
    assert first.model.correct(letter("z", 1), "ham").waiting
    with pytest.raises(FleetError, match="no snapshot"):
        rejoined(first)
    put_snapshot(second.home, second.model.store.member, 0)
    assert rejoined(first) == (2, 0)
    assert rejoined(first) == (0, 0)
    first.model = first.opened()
    assert first.model.score(raw, remember=False).label == "spam"
    assert first.waiting == 3
    assert equal(fleet)
    names = [name for _, name in events(first)]
    assert names[6:] == ["other", "z", "own", "x0"]
    assert first.waiting == 0


def test_a_host_below_the_first_entry_joins_again(fleet, log):
    """A host that lacks dropped events of the log takes the copy, and keeps its corrections."""
    first, second = fleet
    second.log.away = True
    second.model.correct(letter("waits", 1), "spam")
    for number in range(3):
        first.model.correct(letter(f"y{number}", 1), "spam")
    put_snapshot(first.home, first.model.store.member, 9)
    del log._entries[:7]
    second.log.away = False
    assert "dropped" in standing(second.model.store, log).fault
    with pytest.raises(FleetError, match="continues with event"):
        second.model.store.follow()
    assert rejoined(second) == (0, 0)
    second.model = second.opened()
    assert equal(fleet)
    assert [name for _, name in events(second)[6:]] == ["y0", "y1", "y2", "waits"]


def test_numbers_of_two_histories_are_not_compared(fleet, log):
    """A host of another history may have fewer events and the model that has to stay."""
    first, _ = fleet
    member = first.model.store.member
    beat(fleet)
    (other,) = [one for one in log.beats() if one.host == "b"]
    assert {one.lag_events for one in hosts_of(member)} == {0}
    for seq in (1, 1000):
        log.beat(other._replace(seq=seq, epoch="another"))
        log.clear()
        with pytest.raises(RefusedError, match=f"b follows another history.* event {seq}"):
            reseed(first.model.store, member)
        assert reseed(first.model.store, member, force=True).seq == 6
        assert {one.host: one.lag_events for one in hosts_of(member)} == {"a": 0, "b": None}


def test_a_lost_log_is_made_anew_with_what_a_host_has_kept(fleet, log):
    """After a loss of everything the hosts go on, also one that lacks some events."""
    first, second = fleet
    beat(fleet)
    second.log.away = True
    first.model.correct(letter("y", 1), "spam")
    second.model.correct(letter("z", 1), "spam")
    before = list(log.entries(0))
    beat([first])
    log.clear()
    with pytest.raises(FleetError, match="has no log"):
        first.model.store.follow()
    assert first.model.correct(letter("w", 1), "spam").waiting
    second.log.away = False
    with pytest.raises(RefusedError, match="a has event 7"):
        reseed(second.model.store, second.model.store.member)
    made = reseed(first.model.store, first.model.store.member)
    assert (made.seq, made.first, made.silent) == (7, 1, ())
    assert list(log.entries(0))[-len(before) :] == before
    with pytest.raises(RefusedError, match="is there"):
        reseed(first.model.store, first.model.store.member)
    assert equal(fleet)
    assert {name for _, name in events(second)[6:]} == {"y", "z", "w"}


def test_a_host_with_other_sums_stops(fleet, log):
    """A host whose sums differ from those of most others neither folds nor teaches any more."""
    second = fleet[1]
    with second.model.store.write() as view:
        totals = view.totals()
        totals.tokens[0] += 1
        view.put_totals(totals)
    pulses = [Pulse(host.home, host.model.store) for host in fleet]
    for pulse in pulses:
        pulse.beat()
    with pytest.raises(FleetError, match="sums"):
        second.model.store.follow()
    assert second.model.correct(letter("z", 1), "ham").waiting
    assert second.model.score(letter("z", 1), remember=False).label == "ham"


def _beaten(hosts):
    """Beats of all hosts, as each daemon sends them; return who may still follow the log."""
    pulses = [Pulse(host.home, host.model.store) for host in hosts]
    for pulse in pulses * 2:
        pulse._due = 0
        pulse.beat()
    return [_follows(host) for host in hosts]


def _follows(host):
    try:
        host.model.store.follow()
    except FleetError:
        return False
    return True


def _one_number_more(host):
    """Change one count of one feature, as a wrong fold would."""
    with host.model.store.write() as view:
        ids = next(view.features())[0][3:4]
        records = view.gather(ids)
        records.n[0, 1] += 1
        view.scatter(ids, records)


def _one_text_less(host):
    with host.model.store.write() as view:
        word = next(view.all_words())
        ids = np.array([word.id], np.uint64)
        records = view.gather(ids)
        view.scatter(ids, no_records(1, 2))
        view.scatter(ids, records)


def _one_person_more(host):
    with host.model.store.write() as view:
        view.put_personal(7, no_corrections(2).plus(np.array([5], np.uint16), np.array([[1]])))


def _third(folder, log):
    host = OutboxHost(folder / "c", log, RECIPE, "c")
    with host.model.store.write() as view:
        view.put_position(FleetPosition("epoch", 0, START, {}))
    return host


def test_hosts_at_unequal_events_go_on_beside_one_that_differs(fleet, tmp_path, log):
    """That one is found when the log rests, if not before."""
    hosts = [*fleet, _third(tmp_path, log)]
    assert equal(hosts)
    assert _beaten(hosts) == [True, True, True]
    pulses = [Pulse(host.home, host.model.store) for host in hosts]
    _one_number_more(fleet[1])
    for number in range(4):
        for host, pulse in zip(hosts, pulses, strict=True):
            host.model.correct(letter(f"q{number}{pulses.index(pulse)}", 1), "ham")
            pulse._due = 0
            pulse.beat()
        assert len({beat.seq for beat in log.beats()}) > 1
    assert (_follows(hosts[0]), _follows(hosts[2])) == (True, True)
    _follows(hosts[1])
    assert _beaten(hosts) == [True, False, True]
    hosts[2].model.close()


@pytest.mark.parametrize("change", [_one_number_more, _one_text_less, _one_person_more])
def test_a_host_that_differs_in_one_number_or_text_is_found_and_mended(
    fleet, tmp_path, log, change
):
    """Of three hosts with the same events, the one that differs stops with the next beat."""
    third = _third(tmp_path, log)
    hosts = [*fleet, third]
    assert equal(hosts)
    assert _beaten(hosts) == [True, True, True]
    change(fleet[1])
    assert _beaten(hosts) == [True, False, True]
    waits, raw = fleet[1].model.correct(letter("z", 1), "spam"), letter("z", 1)
    assert (waits.changed, waits.waiting) == (False, 1)
    assert fleet[1].model.score(raw, remember=False).label == "spam"
    put_snapshot(fleet[0].home, fleet[0].model.store.member, 6)
    rejoined(fleet[1])
    fleet[1].model = fleet[1].opened()
    assert everything(fleet[1].model.store) == everything(third.model.store)
    assert _beaten(hosts) == [True, True, True]
    assert equal(hosts)
    third.model.close()


def test_hosts_drop_persons_when_they_like(fleet):
    """A host drops persons by its own journal, and fits the others still."""
    for host in fleet:
        _one_person_more(host)
    fleet[0].model.store.transact(lambda view: view.drop_persons({7}))
    assert _beaten(fleet) == [True, True]
    assert sums_fault(fleet[0]) == []


def sums_fault(host):
    with host.model.store.read() as view:
        return audit.check_sums(view)


def test_a_row_that_the_disk_has_changed_is_found(fleet):
    """A host compares its rows with their sum; `spamnb check` tells of it, too."""
    first = fleet[0]
    with first.model.store.write() as view:
        ids = ids_of(*range(1, 3000))
        records = no_records(len(ids), 2)
        records.n[:] = 1
        view.scatter(ids, records)
    assert sums_fault(first) == []
    with open_store(first.home).environment.write() as tables:
        value = bytearray(tables["features"].get(key_of(0)))
        value[8 + 8 * 2000 + 8 + 4096 + 4400] ^= 1
        tables["features"].put(key_of(0), bytes(value))
    first.model.close()
    first.model = first.opened()
    assert len(sums_fault(first)) == 1
    Pulse(first.home, first.model.store).beat()
    with pytest.raises(FleetError, match="disk"):
        first.model.store.follow()


def test_a_second_host_of_a_name_does_not_teach(fleet, tmp_path, log):
    """A copy of a host under the same name is refused, and its corrections wait."""
    beat(fleet)
    twin = OutboxHost(tmp_path / "twin", log, RECIPE, "a")
    pulse = Pulse(twin.home, twin.model.store)
    with pytest.raises(FleetError, match="name a"):
        pulse.beat()
    assert twin.model.correct(letter("z", 1), "ham").waiting
    twin.model.close()


def test_a_host_copies_the_model_once_a_day(fleet, log):
    """One of the hosts puts a snapshot on the server when there is none."""
    beat(fleet)
    assert list(log.snapshot())
    assert not log.lease("snapshot", "c", 1)


def test_an_entry_that_cannot_be_applied_stops_the_host_until_it_is_skipped(fleet, log):
    """The host names the entry and goes on scoring; with a permit all hosts pass over it."""
    first, second = fleet
    member, seq = first.model.store.member, log.head().seq
    place = Place("epoch", "bad", seq + 1, seq + 2, 2)
    body = member.sealer.seal(b"\xff of a later version", place)
    assert log.append(Draft("epoch", "bad", seq, seq + 2, 0, 2, body)) is Outcome.APPENDED
    log.append(Draft("epoch", "bad", seq + 2, seq + 3, 2, 3, b"not sealed"))
    for host in fleet:
        with pytest.raises(FleetError, match=rf"host bad.* event {seq + 2}\b"):
            host.model.store.follow()
        assert host.model.correct(letter("y", 1), "spam").waiting
        assert host.model.score(letter("y", 1), remember=False).label == "spam"
    with pytest.raises(RefusedError):
        skip(second.model.store, member, seq + 3)
    log.skip(seq + 2, member.sealer.seal(b"1", place))
    with pytest.raises(FleetError, match="key"):
        first.model.store.follow()
    for last in (seq + 2, seq + 3):
        skip(first.model.store, member, last)
        if last == seq + 2:
            with pytest.raises(FleetError, match=rf" event {seq + 3}\b"):
                first.model.store.follow()
    assert equal(fleet)
    assert [name for _, name in events(first)[6:]] == ["", "", "", "y"]


def test_events_are_not_much_older_than_those_before_them(fleet):
    """A correction of a host with a slow clock is dated a minute before the last event at most."""
    first, second = fleet
    newest = first.model.correct(letter("y", 1), "spam").event
    example, source = second.model.example(letter("z", 1)), Source("u", "api")
    second.model.teach([Learn(example, 1, source, 1_000_000)])
    with second.model.store.read() as view:
        last, before = view.event(newest + 1), view.event(newest)
    assert last.time_us == before.time_us - 60_000_000
