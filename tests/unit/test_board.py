"""The board: numbers that outlive the process which counted them."""

import os
import signal
import subprocess
import sys

import pytest

from spamnb.daemon.processes.shared_state import HANDS, RING, Board, Hand, State
from spamnb.errors import BugError

ROLES = ["supervisor", "learner", "worker", "worker"]


@pytest.fixture
def board():
    made = Board.create(ROLES)
    yield made
    made.close()


def elsewhere(board, *lines):
    """Run lines in another process that has the board, which then kills itself."""
    code = f"""
import os, signal
from spamnb.daemon.processes.shared_state import Board, State
board = Board({board.fd})
{chr(10).join(lines)}
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], pass_fds=[board.fd], check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_process_counted_is_seen(board):
    """A number counted is a number seen, also if whoever counted it was killed right after."""
    meters = "meters = board.meters(2)"
    elsewhere(board, meters, "meters.count('messages', 3)", "meters.observe('scan_seconds', 0.5)")
    board.meters(3).count("messages")
    assert board.total().value("messages") == 4
    assert board.meters(2).value("messages") == 3


def test_rows_do_not_touch_each_other(board):
    """Each process has its row: filling one leaves the others, and all else, as it was."""
    for slot in range(board.slots):
        row = board.row(slot)
        for index in range(len(row)):
            row[index] = (1 << 64) - 1
        others = [board.row(other).tolist() for other in range(slot + 1, board.slots)]
        assert not any(map(any, others))
        row[:] = memoryview(bytes(len(row) * 8)).cast("Q")
    assert [board.role(slot) for slot in range(board.slots)] == ROLES
    assert all(seat.state is State.EMPTY for seat in board.seats())


def test_a_seat_tells_who_sits_there_and_since_when(board):
    """State, process and sign of life of each slot are readable by all who have the board."""
    board.begin(2)
    board.set_pid(2, 4711)
    seat = board.seat(2)
    assert (seat.role, seat.state, seat.pid, seat.starts) == ("worker", State.STARTING, 4711, 1)
    elsewhere(board, "board.set_state(2, State.READY)", "board.beat(2)", "board.set_open(2, 7)")
    seat = board.seat(2)
    assert (seat.state, seat.open_sessions) == (State.READY, 7)
    assert seat.beat_age_s < 10
    board.begin(2)
    assert board.seat(2).starts == 2
    assert board.seat(2).open_sessions == 0


def test_a_sign_of_life_grows_old(board):
    """Who gives no sign of life any more can be told from who does."""
    board.begin(2)
    board.begin(3)
    while board.seat(3).beat_age_s < 0.01:
        board.beat(2)
    assert board.seat(2).beat_age_s < board.seat(3).beat_age_s


def test_what_a_dead_process_had_in_hand_is_poisonous(board):
    """The message that killed a worker is known to all workers afterwards, and no other is."""
    elsewhere(board, "board.hold(2, b'a' * 16)", "board.hold(2, b'b' * 32)")
    assert not board.is_poisonous(b"a" * 16)
    assert board.poison_in_hand(2) == [b"a" * 16, b"b" * 16]
    assert board.is_poisonous(b"a" * 16)
    assert Hand(board, 3).is_poisonous(b"b" * 32)
    assert not board.is_poisonous(b"c" * 16)
    assert board.in_hand(2) == []


def test_what_was_released_is_not_poisonous(board):
    """A process that dies later, of something else, blames no message."""
    hand = Hand(board, 2)
    hand.hold(b"a" * 16)
    hand.release()
    assert board.poison_in_hand(2) == []
    assert not hand.is_poisonous(b"a" * 16)


def test_hands_and_rings_are_bounded(board):
    """More than fits forgets the oldest and never writes outside of its slot."""
    for number in range(HANDS + 5):
        board.hold(2, bytes([number]) * 16)
    assert len(board.in_hand(2)) == HANDS
    for number in range(1, RING + 3):
        board.poison(3, bytes([100 + number]) * 16)
    assert not board.is_poisonous(bytes([101]) * 16)
    assert board.is_poisonous(bytes([100 + RING + 2]) * 16)
    assert not any(board.row(2).tolist() + board.row(3).tolist())


def test_a_short_digest_is_not_the_empty_place(board):
    """What is shorter than a digest is told apart from a place that nobody has written."""
    board.hold(2, b"")
    assert board.in_hand(2) == [b"\1" * 16]


def test_the_bypass_is_one_switch_for_all(board):
    """Bypass turned in one process is seen in all others."""
    assert not board.bypass
    elsewhere(board, "board.bypass = True")
    assert board.bypass
    board.bypass = False
    assert not board.bypass


def test_a_board_of_another_version_is_refused():
    """A child of another version must not write into rows it misunderstands."""
    fd = os.memfd_create("old")
    os.ftruncate(fd, 1 << 16)
    with pytest.raises(BugError):
        Board(fd)
    os.close(fd)
