"""Shared state: numbers that outlive the process that counted them."""

import os
import signal
import subprocess
import sys

import pytest

from spamnb.daemon.shared import RING, InFlightGuard, ProcessState, SharedState
from spamnb.errors import BugError
from spamnb.scan.values import BATCH_MESSAGES

ROLES = ["supervisor", "learner", "worker", "worker"]


@pytest.fixture
def shared():
    made = SharedState.create(ROLES)
    yield made
    made.close()


def elsewhere(shared, *lines):
    """Run lines in another process that has the shared state; it then kills itself."""
    code = f"""
import os, signal
from spamnb.daemon.shared import SharedState, ProcessState
shared = SharedState({shared.fd})
{chr(10).join(lines)}
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], pass_fds=[shared.fd], check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_process_counted_is_seen(shared):
    """A counted number is visible to others, also if the counting process is then killed."""
    meters = "meters = shared.meters(2)"
    elsewhere(shared, meters, "meters.count('messages', 3)", "meters.observe('scan_seconds', 0.5)")
    shared.meters(3).count("messages")
    assert shared.total().value("messages") == 4
    assert shared.meters(2).value("messages") == 3


def test_rows_do_not_touch_each_other(shared):
    """Each process has its row: filling one leaves the others, and all else, as it was."""
    for slot in range(shared.slots):
        row = shared.row(slot)
        for index in range(len(row)):
            row[index] = (1 << 64) - 1
        others = [shared.row(other).tolist() for other in range(slot + 1, shared.slots)]
        assert not any(map(any, others))
        row[:] = memoryview(bytes(len(row) * 8)).cast("Q")
    assert [shared.role(slot) for slot in range(shared.slots)] == ROLES
    assert all(status.state is ProcessState.EMPTY for status in shared.statuses())


def test_a_slot_shows_its_process(shared):
    """Every process with the shared state reads state, pid and heartbeat of each slot."""
    shared.begin(2)
    shared.set_pid(2, 4711)
    status = shared.status(2)
    assert (status.role, status.state, status.pid, status.starts) == (
        "worker",
        ProcessState.STARTING,
        4711,
        1,
    )
    elsewhere(
        shared, "shared.set_state(2, ProcessState.READY)", "shared.beat(2)", "shared.set_open(2, 7)"
    )
    status = shared.status(2)
    assert (status.state, status.open_sessions) == (ProcessState.READY, 7)
    assert status.beat_age_s < 10
    shared.begin(2)
    assert shared.status(2).starts == 2
    assert shared.status(2).open_sessions == 0


def test_a_sign_of_life_grows_old(shared):
    """The age of the last heartbeat shows that a process hangs."""
    shared.begin(2)
    shared.begin(3)
    while shared.status(3).beat_age_s < 0.01:
        shared.beat(2)
    assert shared.status(2).beat_age_s < shared.status(3).beat_age_s


def test_a_message_that_a_dead_process_was_scanning_is_a_known_crasher(shared):
    """The message that killed a worker is known to all workers afterwards, and no other is."""
    elsewhere(shared, "shared.mark(2, b'a' * 16)", "shared.mark(2, b'b' * 32)")
    assert not shared.is_known_crasher(b"a" * 16)
    assert shared.mark_crashers(2) == [b"a" * 16, b"b" * 16]
    assert shared.is_known_crasher(b"a" * 16)
    assert InFlightGuard(shared, 3).is_known_crasher(b"b" * 32)
    assert not shared.is_known_crasher(b"c" * 16)
    assert shared.in_flight(2) == []


def test_what_was_released_is_no_known_crasher(shared):
    """A crash after the scan makes no message a known crasher."""
    register = InFlightGuard(shared, 2)
    register.mark(b"a" * 16)
    register.release()
    assert shared.mark_crashers(2) == []
    assert not register.is_known_crasher(b"a" * 16)


def test_hands_and_rings_are_bounded(shared):
    """More than fits forgets the oldest and never writes outside of its slot."""
    for number in range(BATCH_MESSAGES + 5):
        shared.mark(2, bytes([number]) * 16)
    assert len(shared.in_flight(2)) == BATCH_MESSAGES
    for number in range(1, RING + 3):
        shared.add_known_crasher(3, bytes([100 + number]) * 16)
    assert not shared.is_known_crasher(bytes([101]) * 16)
    assert shared.is_known_crasher(bytes([100 + RING + 2]) * 16)
    assert not any(shared.row(2).tolist() + shared.row(3).tolist())


def test_a_short_digest_is_not_the_empty_place(shared):
    """A value shorter than a digest differs from an unwritten place."""
    shared.mark(2, b"")
    assert shared.in_flight(2) == [b"\1" * 16]


@pytest.mark.parametrize(("switch", "other"), [("bypass", "live"), ("live", "bypass")])
def test_a_switch_is_one_for_all(shared, switch, other):
    """A switch that one process turns is seen in all others; the other switch stays."""
    assert not shared.is_on(switch)
    elsewhere(shared, f"shared.turn({switch!r}, on=True)")
    assert shared.is_on(switch)
    assert not shared.is_on(other)
    shared.turn(switch, on=False)
    assert not shared.is_on(switch)


def test_a_shared_of_another_version_is_refused():
    """A child of another version must not write into rows it misunderstands."""
    fd = os.memfd_create("old")
    os.ftruncate(fd, 1 << 16)
    with pytest.raises(BugError):
        SharedState(fd)
    os.close(fd)
