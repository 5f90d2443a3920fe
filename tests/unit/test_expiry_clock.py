"""The time by which things expire: what a clock may do without deleting anything."""

import json
import time
from contextlib import closing

import pytest
from support.history import entry

from spamnb.engine.filter import OWNER, Filter
from spamnb.engine.values import Learn
from spamnb.feedback.review import ReviewItem, ReviewQueue
from spamnb.feedback.spool import Spool, leave
from spamnb.mail.envelope import Envelope
from spamnb.maintenance import home_files as place
from spamnb.maintenance.expiry import DAY_US, ExpiryRules, fold, newest_us
from spamnb.maintenance.home_files import (
    AHEAD_US,
    MINUTE_US,
    OFF_US,
    SLACK_US,
    ClockMark,
    ClockReading,
    advanced,
    expiry_mark,
    first,
    warning,
)
from spamnb.operations.home import ModelConfig
from spamnb.operations.table import LocalClient
from spamnb.records.verdicts import History
from spamnb.scan.quarantine import Quarantine
from spamnb.settings.values import HistoryLimits, QuarantineLimits, ReviewLimits
from spamnb.store.journal import surely_older
from spamnb.telemetry import silent

T0 = 20_000 * DAY_US
HOUR_US = 60 * MINUTE_US


class Machine:
    """A machine with a clock that may be wrong, and the recorded state in a home."""

    def __init__(self):
        self.clock, self.up, self.boot = T0, HOUR_US, 1
        self.mark = first(self.now())

    def now(self):
        return ClockReading(self.clock, f"boot {self.boot}", self.up)

    def look(self):
        new = advanced(self.mark, self.now())
        if place._record_is_due(self.mark, new):
            self.mark = new
        return new

    def runs(self, span_us, step_us=7 * MINUTE_US, *, rate=1.0):
        """Let time pass, with a look now and then."""
        for _ in range(span_us // step_us):
            self.up += step_us
            self.clock += int(step_us * rate)
            self.look()
        return self.look()

    def starts_again(self, off_us=0):
        """Begin another boot: the clock went on, the uptime did not."""
        self.clock, self.up, self.boot = self.clock + off_us, MINUTE_US, self.boot + 1
        return self.look()


@pytest.fixture
def machine():
    return Machine()


@pytest.mark.parametrize("rate", [0.99, 1.0, 1.01])
def test_a_clock_that_goes_well_is_confirmed(machine, rate):
    """A clock with a small rate error is confirmed, also over reboots."""
    for _ in range(6):
        assert machine.runs(5 * DAY_US, HOUR_US // 2, rate=rate).ahead_us <= 2 * SLACK_US
        assert machine.starts_again(6 * HOUR_US).expires_us == machine.clock


@pytest.mark.parametrize("step_us", [SLACK_US * 2, DAY_US, 40 * DAY_US, 9_000 * DAY_US])
def test_nothing_expires_by_one_jump(machine, step_us):
    """After a jump, expiry uses the time that has passed, and the warning names the difference."""
    machine.clock += step_us
    mark = machine.look()
    assert mark.expires_us == T0
    assert "nothing expires" in warning(mark)
    machine.runs(HOUR_US)
    assert machine.look().expires_us <= T0 + HOUR_US + SLACK_US
    machine.clock -= step_us
    assert machine.runs(HOUR_US).ahead_us == 0


def test_many_small_jumps_are_one_large(machine):
    """The slack is granted once an hour, not at each reading."""
    for _ in range(400):
        machine.clock += 4 * MINUTE_US
        machine.up += 10_000
        machine.clock += 10_000
        machine.look()
    assert machine.look().expires_us <= T0 + SLACK_US + DAY_US // 24


def test_a_clock_that_runs_away_is_no_time(machine):
    """A clock of double rate is not confirmed."""
    assert machine.runs(15 * DAY_US, MINUTE_US * 20, rate=2.0).expires_us < T0 + 17 * DAY_US


@pytest.mark.parametrize("off_us", [40 * DAY_US, OFF_US + HOUR_US])
def test_a_machine_that_was_off_goes_on_expiring(machine, off_us):
    """After the machine was off, expiry uses the uptime until steady uptime confirms the clock."""
    start = machine.starts_again(off_us)
    assert start.expires_us < T0 + HOUR_US
    assert abs(machine.runs(10 * DAY_US).expires_us - start.expires_us - 10 * DAY_US) < HOUR_US
    mark = machine.starts_again(HOUR_US)
    assert mark.ahead_us > off_us - DAY_US
    assert machine.runs(19 * DAY_US).ahead_us > off_us - DAY_US
    assert machine.runs(2 * DAY_US).ahead_us == 0
    assert machine.look().expires_us == machine.clock


@pytest.mark.parametrize("behind_us", [2 * DAY_US, 40 * DAY_US, 9_000 * DAY_US])
@pytest.mark.parametrize("looks", [True, False])
def test_what_was_kept_under_a_clock_that_was_behind_has_its_days(machine, behind_us, looks):
    """Data stored under a clock that is behind does not expire when the clock is set right."""
    machine.clock -= behind_us
    if looks:
        machine.runs(7 * DAY_US, HOUR_US)
    stamp = machine.clock + machine.look().behind_us
    machine.clock += behind_us
    for _ in range(29):
        assert machine.runs(DAY_US, HOUR_US).expires_us < stamp + 30 * DAY_US
    assert machine.runs(10 * DAY_US, HOUR_US).expires_us > stamp + 30 * DAY_US


def test_a_machine_that_is_off_at_weekends_is_in_line(machine):
    """A weekend off gives no warning."""
    for _ in range(10):
        machine.runs(5 * DAY_US, HOUR_US)
        assert machine.starts_again(2 * DAY_US + 12 * HOUR_US).ahead_us == 0


def test_a_clock_that_jumps_again_waits_anew(machine):
    """Only a steady clock is confirmed."""
    machine.clock += 40 * DAY_US
    for _ in range(5):
        machine.runs(AHEAD_US - 2 * HOUR_US, HOUR_US)
        machine.clock += DAY_US
        assert machine.look().ahead_us > 39 * DAY_US


def test_a_clock_that_is_set_back_expires_nothing_when_it_returns(machine):
    """A machine without a real-time clock starts in 1970 until NTP sets the clock."""
    for _ in range(5):
        now = machine.clock
        machine.clock = 0
        assert machine.starts_again().expires_us == 0
        machine.up += MINUTE_US
        machine.clock = now + 2 * MINUTE_US
        assert machine.look().ahead_us == 0
        machine.runs(DAY_US)


def test_a_clock_that_was_ahead_at_the_first_start_is_forgotten(machine):
    """Ten minutes after it was set right, the clock may not jump to the wrong time again."""
    machine.clock += 40 * DAY_US
    machine.mark = first(machine.now())
    machine.clock -= 40 * DAY_US
    machine.runs(HOUR_US // 2)
    machine.clock += 40 * DAY_US
    assert machine.look().ahead_us > 39 * DAY_US


def test_without_a_record_the_newest_entry_is_what_is_known():
    """The newest entry's time has passed; a time in the future is ignored."""
    now = ClockReading(T0, "x", 1)
    assert first(now, T0 - 40 * DAY_US).expires_us == T0 - 40 * DAY_US
    assert first(now, T0 - DAY_US).expires_us == T0
    assert first(now, T0 + DAY_US).expires_us == first(now).expires_us == T0


# --- in a home ------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Set the clock of this process by days."""
    real = place.now_us

    def ahead(days):
        for module in (place, "spamnb.scan.quarantine"):
            target = module if isinstance(module, str) else module.__name__
            monkeypatch.setattr(f"{target}.now_us", lambda: real() + days * DAY_US)

    return ahead


def kept(home, count=40):
    quarantine = Quarantine(home / "quarantine", QuarantineLimits(keep_days=30))
    return [quarantine.keep(b"x", Envelope(), {}) for _ in range(count)]


def tidied(home, log=silent):
    """Return what the cleanup of another process finds."""
    quarantine = Quarantine(home / "quarantine", QuarantineLimits(keep_days=30), log=log)
    quarantine._tidy_at = 0.0
    quarantine.keep(b"x", Envelope(), {})
    return [entry.id for entry in quarantine.messages()]


@pytest.mark.parametrize("record", [True, False], ids=["with a record", "without one"])
def test_a_clock_that_is_ahead_empties_no_quarantine(tmp_path, clock, record):
    """A jump deletes no accepted message, at a start or later; the log reports it once."""
    ids = kept(tmp_path)
    if record:
        expiry_mark(tmp_path)
    clock(40)
    logged = []
    for _ in range(3):
        assert set(ids) <= set(tidied(tmp_path, logged.append))
    assert [record["level"] for record in logged] == ["warning"]
    assert "40.0 days ahead" in logged[0]["text"]


def test_a_trusted_clock_expires_and_each_message_is_reported(tmp_path, clock):
    """Each expired message has a log line with its name, age and reason."""
    ids = kept(tmp_path, 3)
    expiry_mark(tmp_path)
    clock(40)
    expiry_mark(tmp_path, trust=True)
    logged = []
    assert not set(ids) & set(tidied(tmp_path, logged.append))
    assert [record["id"] for record in logged] == ids
    assert {(record["age_days"], record["reason"]) for record in logged} == {
        (40.0, "older than 30 days")
    }


def test_a_jump_sweeps_no_message_that_is_being_written(tmp_path, clock):
    """Files that are still being written are not removed."""
    kept(tmp_path, 1)
    expiry_mark(tmp_path)
    body = tmp_path / "quarantine" / "20260101T000000000000-01234567.eml"
    body.write_bytes(b"x")
    clock(40)
    tidied(tmp_path)
    assert body.exists()


def test_a_start_expires_nothing(tmp_path):
    """Storing the first message starts no cleanup."""
    old = kept(tmp_path, 1)[0]
    for ending in ("json", "eml"):
        path = tmp_path / "quarantine" / f"{old}.{ending}"
        path.rename(path.with_name(f"2020{old[4:]}.{ending}"))
    expiry_mark(tmp_path, trust=True)
    kept(tmp_path, 1)
    assert len(list((tmp_path / "quarantine").glob("2020*"))) == 2


def test_a_message_that_comes_before_the_network_tells_the_time_is_not_old(tmp_path, clock):
    """A machine without a real-time clock deletes nothing in its first minutes."""
    kept(tmp_path, 1)
    expiry_mark(tmp_path)
    clock(-(place.now_us() // DAY_US))
    early = kept(tmp_path, 3)
    clock(0)
    assert set(early) <= set(tidied(tmp_path))
    assert min(early) > "2020"


def test_queued_labels_expire_by_the_same_time(tmp_path, clock):
    """The review queue uses the same time, and each expired entry has a log line."""
    logged = []
    review_queue = ReviewQueue(tmp_path / "review", ReviewLimits(keep_days=30), logged.append)

    def add(number):
        user = f"{number}@a.example"
        return review_queue.add(
            ReviewItem("spam", user, "arf", "stranger", "", place.now_us()), b"x"
        )

    old = add(1)
    clock(40)
    add(2)
    assert review_queue.count() == 2
    expiry_mark(tmp_path, trust=True)
    add(3)
    assert [record["age_days"] for record in logged if record.get("name") == old] == [40.0]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"time_us": "x"}', "null"])
def test_a_record_that_cannot_be_read_is_none(tmp_path, clock, text):
    """A damaged record is replaced; the newest entry is the confirmed time."""
    kept(tmp_path, 1)
    (tmp_path / "clock").write_text(text)
    clock(40)
    assert expiry_mark(tmp_path).ahead_us > 39 * DAY_US
    assert ClockMark(**json.loads((tmp_path / "clock").read_text())).ahead_us > 39 * DAY_US


def test_a_home_that_takes_no_record_expires_by_the_old_one(tmp_path, clock, monkeypatch):
    """A full disk expires nothing."""
    expiry_mark(tmp_path)
    clock(40)
    (tmp_path / "closed").mkdir()

    def refuse(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place, "durable_write", refuse)
    for _ in range(2):
        assert expiry_mark(tmp_path).ahead_us > 39 * DAY_US


# --- the journal and the history ------------------------------------------------------------------


def test_one_event_of_a_clock_that_was_set_back_makes_no_others_old():
    """Times before a recent one are not old; times in the future are ignored."""
    assert surely_older([1, 2, 3], 3, 9) == 2
    assert surely_older([5, 6, 0, 7], 3, 9) == 0
    assert surely_older([1, 6, 0, 7], 3, 9) == 1
    assert surely_older([99, 1, 2, 5], 3, 9) == 3
    assert surely_older([1, 99], 3, 9) == 1
    assert surely_older([], 3, 9) == 0


def test_a_moment_in_1970_folds_no_journal(tmp_path):
    """Events before a recent one can still be undone."""
    with Filter.open(tmp_path / "m", create=True) as model:
        times = [T0 + number * DAY_US for number in range(5)]
        for number, at in enumerate([*times, 0, times[-1]]):
            raw = f"Subject: {number}\n\nword{number}\n".encode()
            model.teach([Learn(model.example(raw), number % 2, OWNER, at)])
        assert newest_us(model.store) == times[-1]
        assert fold(model.store, T0 - DAY_US, times[-1]) == 0
        assert fold(model.store, times[2], times[-1]) == 2
        assert fold(model.store, times[-1] + 1, times[-1] + 2) == 5


def test_a_jump_keeps_journal_features_and_history(tmp_path, clock):
    """The expiry of all three uses the confirmed time, and its reply has the warning."""
    limits = {"history": HistoryLimits(keep_days=30), "expiry": ExpiryRules(30, 30, 1)}
    config, now = ModelConfig(tmp_path / "m", **limits), place.now_us()
    with Filter.open(config.home, create=True) as model:
        for number in range(3):
            raw = f"Subject: {number}\n\nword{number}\n".encode()
            model.teach([Learn(model.example(raw), number % 2, OWNER, now)])
    with closing(History.open(config.home / "history")) as history:
        history.add([entry(number, time_us=now) for number in range(2)])

    def expired(**how):
        with LocalClient(config, "root", silent) as client:
            reply = client.ask("expire", **how).header
        return list(reply["expired"].values()), "40.0 days ahead" in reply["warning"]

    assert expired() == ([0, 0, 0], False)
    clock(40)
    for _ in range(2):
        assert expired() == ([0, 0, 0], True)
    folded, dropped, forgotten = expired(trust_clock=True)[0]
    assert (folded, dropped > 0, forgotten) == (3, True, 2)


@pytest.mark.parametrize("days", [40, -40])
def test_a_jump_deletes_no_feedback_in_the_spool(tmp_path, monkeypatch, days):
    """Files of the spool have no age: they wait until they are learnt."""
    spool = Spool(tmp_path / "spool", private=True)
    spool.make()
    leave(spool.folder, "spam", b"Subject: x\n\nx\n", {})
    ahead, real = days * DAY_US * 1000, time.time_ns
    monkeypatch.setattr("spamnb.feedback.spool.time.time_ns", lambda: real() + ahead)
    assert Spool(spool.folder, private=True).drain(["ham"], pytest.fail) == 0
    told = []
    assert spool.drain(["spam"], told.append) == 1
    assert [one.raw for one in told] == [b"Subject: x\n\nx\n"]
