"""The scan helper's other side: deadlines, deaths and bounds, with stand-ins as helpers."""

import asyncio
import json
import os
import resource
import signal
import socket
import time
from pathlib import Path

import pytest
from daemon_runs import HERE, is_alive

from spamnb.daemon.board import Board, Hand, State
from spamnb.daemon.scanhelper import MOST_WAITING, Helper, HelperLinks
from spamnb.daemon.start import Start
from spamnb.faces.smtp.door import Times
from spamnb.settings import Settings

DIGEST = b"d" * 16
SCAN_S = 20.0


def stand_in(start, board, orders):
    """Do what each message says."""
    board.set_state(start.slot, State.READY)
    hand = Hand(board, start.slot)
    (fd,) = start.sockets["jobs"]
    with socket.socket(fileno=fd) as jobs, jobs.makefile("rwb") as stream:
        while line := stream.readline():
            word = stream.read(json.loads(line)["bytes"])[:4].decode()
            hand.hold(DIGEST)
            if word == "hang":
                time.sleep(600)
            if word == "die ":
                os.kill(os.getpid(), signal.SIGSEGV)
            hand.release()
            said = b"no JSON" if word == "babb" else json.dumps({"pid": os.getpid()}).encode()
            stream.write(said + b"\n")
            stream.flush()
    return 0


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request):
    """Run coroutines on either loop."""
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as made:
        yield made.run


@pytest.fixture
def board():
    made = Board.create(["supervisor", "worker", "scan"])
    yield made
    made.close()


class Side:
    """A worker's side, and all that it was told."""

    def __init__(self, board, scan_s=SCAN_S):
        self.logged = []
        start = Start("worker", "", 1, board.fd, "/", os.getpid(), scan_slot=2)
        links = HelperLinks(start, board, self.logged.append, asyncio.get_running_loop())
        settings = Settings(timeouts=Times(scan_s=scan_s))
        self.helper = Helper(settings, links, "test_daemon_scanhelper:stand_in")

    async def ask(self, raw):
        answer = asyncio.get_running_loop().create_future()
        self.helper.submit(raw, {"to": "a@b"}, answer.set_result)
        return await asyncio.wait_for(answer, 50)

    async def end(self):
        await self.helper.close()


@pytest.fixture(autouse=True)
def way_to_the_stand_in(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))


def test_one_helper_judges_all(runner, board):
    """It is started once, when it is first needed, and asked one after the other."""

    async def run():
        side = Side(board)
        answers = await asyncio.gather(*(side.ask(b"x" * 900_000) for _ in range(5)))
        await side.end()
        return {answer["pid"] for answer in answers}, side.logged

    pids, logged = runner(run())
    assert len(pids) == 1
    assert logged == []
    assert not is_alive(pids.pop())


def test_at_the_deadline_it_is_killed_and_the_message_is_poisonous(runner, board):
    """What does not end is ended; whoever waits behind it is judged by the next helper."""

    async def run():
        side = Side(board, scan_s=3.0)
        first = await side.ask(b"good")
        hung = await side.ask(b"hang")
        last = await side.ask(b"good")
        await side.end()
        return first, hung, last, side.logged

    first, hung, last, logged = runner(run())
    assert hung == {"reason": "overrun"}
    assert last["pid"] != first["pid"]
    assert not is_alive(first["pid"])
    assert board.is_poisonous(DIGEST)
    assert [record["poisonous"] for record in logged] == [[DIGEST.hex()]]


def test_a_message_that_kills_it_is_poisonous(runner, board):
    """A crash is answered at once, blamed on the message, and counted."""

    async def run():
        side = Side(board)
        died = await side.ask(b"die ")
        last = await side.ask(b"good")
        await side.end()
        return died, last, side.logged

    died, last, logged = runner(run())
    assert died == {"reason": "fault"}
    assert "pid" in last
    assert logged[0]["signal"] == "SIGSEGV"
    assert board.is_poisonous(DIGEST)
    assert board.meters(1).value("restarts") == 1


def test_what_it_says_may_be_nonsense(runner, board):
    """An answer that cannot be read is a fault of that message alone."""

    async def run():
        side = Side(board)
        found = await side.ask(b"babb"), await side.ask(b"good")
        await side.end()
        return found

    nonsense, good = runner(run())
    assert nonsense == {"reason": "fault"}
    assert "pid" in good


def test_too_much_that_waits_is_answered_at_once(runner, board):
    """The queue is bounded in number and bytes: more is passed unscanned, not piled up."""

    async def run():
        side = Side(board)
        answers = []
        for _ in range(MOST_WAITING + 10):
            side.helper.submit(b"hang", {}, answers.append)
        many = len(answers)
        side.helper.submit(bytes(80 << 20), {}, answers.append)
        rejected = list(answers)
        await side.end()
        return many, rejected

    many, answers = runner(run())
    assert many == 10
    assert answers == [{"reason": "busy"}] * 11


def test_a_helper_that_cannot_be_started_is_tried_again(runner, board):
    """Out of descriptors for once: what waited is answered, and the next message is judged."""

    async def main():
        side = Side(board)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        first = os.dup(0)
        os.close(first)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first, hard))
        try:
            assert await side.ask(b"fine") == {"reason": "fault"}
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (await side.ask(b"fine"))["pid"]
        await side.end()
        assert side.logged[0]["event"] == "no scan helper"

    runner(main())


def test_new_settings_give_a_new_helper(runner, board):
    """A helper that knows old settings finishes its message and is let go."""

    async def run():
        side = Side(board)
        first = await side.ask(b"good")
        side.helper.renew(Settings())
        second = await side.ask(b"good")
        await side.end()
        return first["pid"], second["pid"], side.logged

    first, second, logged = runner(run())
    assert first != second
    assert not is_alive(first)
    assert logged == []


def test_it_ends_with_its_worker(board):
    """A worker that is killed leaves no helper behind."""
    code = f"""
import asyncio, os, signal, sys
sys.path[:0] = [{str(HERE)!r}, {str(Path(HERE).parent)!r}]
from spamnb.daemon.board import Board
from test_daemon_scanhelper import Side
async def run():
    side = Side(Board({board.fd}))
    print((await side.ask(b"good"))["pid"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code],
        pass_fds=[board.fd],
        capture_output=True,
        text=True,
        check=False,
    )
    pid = int(done.stdout)
    end = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_alive(pid)
