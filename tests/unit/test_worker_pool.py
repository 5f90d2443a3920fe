"""The pool: work on forked processes, results in order, and an end whatever happens."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import LIMIT_S

from spamnb.engine.bulk import Pool, cores
from spamnb.errors import BugError, RefusedError

PROJECT = Path(__file__).resolve().parents[2]
TESTS = PROJECT / "tests"


def doubling():
    return lambda number: number * 2


def uneven():
    def run(number):
        # The even ones take longer, so that results come back out of order.
        deadline = time.monotonic() + (0.002 if number % 2 == 0 else 0)
        while time.monotonic() < deadline:
            pass
        return number, os.getpid()

    return run


def gone(pid):
    """Return whether a process has ended and was waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_results_come_in_the_order_of_their_tasks(jobs):
    """Results are in the order of their tasks, for any duration and worker."""
    with Pool(uneven, jobs) as pool:
        found = list(pool.map(iter(range(200))))
    assert [number for number, _ in found] == list(range(200))
    assert len({pid for _, pid in found}) == jobs
    assert os.getpid() not in {pid for _, pid in found}


def test_fewer_tasks_than_workers_and_none_at_all():
    """`map` without tasks ends immediately."""
    with Pool(doubling, 4) as pool:
        assert list(pool.map([])) == []
        assert list(pool.map([3])) == [6]
        assert list(pool.map([1, 2])) == [2, 4]


def test_there_are_never_more_workers_than_the_cores_can_feed():
    """The number of workers is limited, because each uses its own memory."""
    most = 8 * cores()
    with Pool(uneven, 100_000) as pool:
        assert len(multiprocessing.active_children()) == most
        found = list(pool.map(iter(range(3 * most))))
    assert [number for number, _ in found] == list(range(3 * most))
    assert len({pid for _, pid in found}) == most


def test_the_workers_end_with_the_block():
    """No process remains after the block, not even as a zombie."""
    with Pool(lambda: lambda _: os.getpid(), 3) as pool:
        pids = list(pool.map(range(3)))
    assert all(gone(pid) for pid in pids)


def test_the_workers_end_when_the_block_is_left_by_an_error():
    """Leaving the block with pending tasks and unread results ends the workers."""
    pids = []

    def leave(pool):
        for found in pool.map(range(1000)):
            pids.append(found[1])
            if len(pids) == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Pool(uneven, 2) as pool:
        leave(pool)
    assert all(gone(pid) for pid in pids)


def waiting_for_ever():
    lasting, _ = os.pipe()
    return lambda number: (os.getpid(), os.getpid() if number < 2 else os.read(lasting, 1))


def test_no_task_under_way_is_waited_for_after_an_error():
    """A busy worker is killed if the block raises."""
    code = (
        "from test_worker_pool import Pool, waiting_for_ever\n"
        "try:\n"
        "    with Pool(waiting_for_ever, 2) as pool:\n"
        "        for _ in pool.map(range(100)):\n"
        "            raise KeyboardInterrupt\n"
        "except KeyboardInterrupt:\n"
        "    print('left')\n"
    )
    # In a child process: if it blocks, this test fails and does not hang.
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True,
        timeout=LIMIT_S, check=False, env=os.environ | {"PYTHONPATH": f"{PROJECT}:{TESTS}"},
    )  # fmt: skip
    assert child.stdout == b"left\n", child.stderr.decode()


def refusing():
    def run(number):
        if number == 3:
            raise RefusedError("not this one", hint="another")
        return number

    return run


def test_an_error_in_a_worker_is_raised_here():
    """An exception of a task is raised in its place; earlier results are yielded."""
    found = []
    with Pool(refusing, 2) as pool, pytest.raises(RefusedError, match="not this one"):
        found += pool.map(range(6))
    assert found in ([], [0, 1, 2])


def dying():
    def run(number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return run


def test_a_worker_that_dies_is_reported_as_a_bug():
    """A killed worker raises an error instead of an endless wait."""
    with Pool(dying, 2) as pool, pytest.raises(BugError, match="worker"):
        list(pool.map(range(500)))


def failing_start():
    raise OSError("no model here")


def test_a_start_that_fails_is_raised_here():
    """An exception at the start of a worker is raised in the parent."""
    with Pool(failing_start, 2) as pool, pytest.raises(OSError, match="no model here"):
        list(pool.map(range(5)))


def large():
    return lambda data: data + data


def test_large_tasks_and_large_results_cannot_block_each_other():
    """Megabytes in both directions do not block parent and worker."""
    tasks = [bytes([number]) * 400_000 for number in range(20)]
    code = (
        "from spamnb.engine.bulk import Pool\n"
        "tasks = [bytes([n]) * 400_000 for n in range(20)]\n"
        "with Pool(lambda: lambda data: data + data, 2) as pool:\n"
        "    print(all(two == one + one for one, two in zip(tasks, pool.map(tasks))))\n"
    )
    # In a child process: if they block, this test fails and does not hang.
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, timeout=LIMIT_S, check=False
    )
    assert child.stdout.strip() == b"True", child.stderr.decode()
    assert len(tasks) == 20


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_orphaned_workers_end(tmp_path, how):
    """Workers end if the parent is killed."""
    code = (
        "import os, time\n"
        "from spamnb.engine.bulk import Pool\n"
        "pool = Pool(lambda: lambda _: os.getpid(), 2)\n"
        "print(*pool.map(range(2)), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        os.kill(parent.pid, how)
        parent.wait(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while not all(map(dead, pids)):
        assert time.monotonic() < deadline, f"{pids} live on"
        time.sleep(0.01)


def dead(pid):
    """Return whether a process has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
