"""The worker's side of scan processes: deadlines, crashes and shares, with stand-ins."""

import asyncio
import os
import resource
import subprocess
import sys
from dataclasses import replace

import pytest
from support.daemon import TESTS, is_alive
from support.scan_stand_ins import DIGEST
from support.waiting import until

from spamnb.daemon.shared import SharedState
from spamnb.daemon.supervisor import StartParams
from spamnb.daemon.worker import FAILURES, ScanPool, ScanProcessDeps, starved_s
from spamnb.settings import Settings
from spamnb.settings.values import Timeouts

SCAN_S = 20.0
WAIT_S = 30.0


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request):
    """Run coroutines on either loop."""
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as made:
        yield made.run


@pytest.fixture
def shared():
    made = SharedState.create(["supervisor", "worker", "scan", "scan"])
    yield made
    made.close()


class Side:
    """A worker's side, and its log records."""

    def __init__(
        self, shared, scan_s=SCAN_S, wait_s=WAIT_S, *, entry="stand_in", home="/", slots=1
    ):
        self.logged, self.order = [], []
        start = StartParams("worker", "", 1, shared.fd, str(home), os.getpid())
        start = replace(start, scan_slots=list(range(2, 2 + slots)))
        links = ScanProcessDeps(start, shared, self.logged.append, asyncio.get_running_loop())
        times = Timeouts(scan_s=scan_s, scan_wait_s=wait_s, final_s=1000.0)
        settings = Settings(timeouts=times)
        self.pool = ScanPool(settings, links, f"support.scan_stand_ins:{entry}")

    async def ask(self, raw, client="192.0.2.1"):
        answer = asyncio.get_running_loop().create_future()
        self.pool.submit(raw, {"client": client}, answer.set_result)
        found = await asyncio.wait_for(answer, 300)
        self.order.append(client)
        return found

    async def end(self):
        await self.pool.close()


@pytest.fixture(autouse=True)
def way_to_the_stand_in(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent)]))


def test_one_helper_judges_all(runner, shared):
    """One scan process starts when it is first needed, and scans one message after the other."""

    async def run():
        side = Side(shared)
        answers = await asyncio.gather(*(side.ask(b"x" * 900_000) for _ in range(5)))
        await side.end()
        return {answer["pid"] for answer in answers}, side.logged

    pids, logged = runner(run())
    assert len(pids) == 1
    assert logged == []
    assert not is_alive(pids.pop())


def test_at_the_deadline_it_is_killed_and_the_message_is_a_known_crasher(runner, shared):
    """A scan beyond the deadline is killed; the next scan process takes the messages behind it."""

    async def run():
        side = Side(shared, scan_s=3.0)
        first = await side.ask(b"good")
        hung = await side.ask(b"hang")
        last = await side.ask(b"good")
        await side.end()
        return first, hung, last, side.logged

    first, hung, last, logged = runner(run())
    assert hung == {"reason": "overrun"}
    assert last["pid"] != first["pid"]
    assert not is_alive(first["pid"])
    assert shared.is_known_crasher(DIGEST)
    assert [record["known_crashers"] for record in logged] == [[DIGEST.hex()]]


def test_a_message_that_kills_two_helpers_is_a_known_crasher(runner, shared):
    """A message that was being scanned at two crashes is a known crasher; crashes are counted."""

    async def run():
        side = Side(shared)
        died = await side.ask(b"die ")
        last = await side.ask(b"good")
        await side.end()
        return died, last, side.logged

    died, last, logged = runner(run())
    assert died == {"reason": "known_crasher"}
    assert "pid" in last
    assert logged[0]["signal"] == "SIGSEGV"
    assert shared.is_known_crasher(DIGEST)
    assert [record["known_crashers"] for record in logged] == [[], [DIGEST.hex()]]
    assert shared.meters(1).value("restarts") == 2


def test_a_helper_that_was_killed_leaves_no_known_crasher(runner, shared, tmp_path):
    """After a crash the next scan process scans the message, and those that wait."""

    async def run():
        side = Side(shared)
        found = await asyncio.gather(*map(side.ask, [b"once " + bytes(tmp_path / "1"), b"good"]))
        await side.end()
        return found, side.logged

    found, logged = runner(run())
    assert all("pid" in answer for answer in found)
    assert [record["known_crashers"] for record in logged] == [[]]
    assert not shared.is_known_crasher(DIGEST)


def test_a_message_that_was_not_begun_is_neither_a_known_crasher_nor_passed(runner, shared):
    """Scan processes that end before they begin the message delay it; then it is busy."""

    async def run():
        side = Side(shared, wait_s=1.0)
        found = await side.ask(b"lost")
        await side.end()
        return found

    assert runner(run()) == {"reason": "busy"}
    assert not shared.is_known_crasher(DIGEST)


def test_the_time_in_the_queue_is_no_time_of_the_message(runner, shared):
    """Messages wait far longer than a scan may take: each is scanned, none is a known crasher."""

    async def run():
        side = Side(shared, scan_s=1.0)
        found = await asyncio.gather(*(side.ask(b"nap 0.3") for _ in range(10)))
        await side.end()
        return found, side.logged

    found, logged = runner(run())
    assert len({answer["pid"] for answer in found}) == 1
    assert logged == []
    assert not shared.is_known_crasher(DIGEST)


def test_the_start_of_a_helper_is_no_time_of_the_message(runner, shared, tmp_path):
    """A scan process that starts slower than a scan may take scans the waiting message."""
    (tmp_path / "slow").touch()

    async def run():
        side = Side(shared, scan_s=1.0, home=tmp_path)
        found = await side.ask(b"good")
        await side.end()
        return found, side.logged

    found, logged = runner(run())
    assert "pid" in found
    assert logged == []


def test_the_wait_for_a_core_is_no_time_of_the_message(shared):
    """On a busy machine a scan takes long; the wait for a core does not count.

    The kernel counts a wait only when it ends, so that one long wait can look like a slow scan:
    one of ten scans must succeed. If the wait counted, none would: each lasts two limits.
    """
    if not starved_s(os.getpid()):
        pytest.skip("the kernel does not tell how long a process waits for a core")
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]

    async def run():
        side = Side(shared, scan_s=1.0, wait_s=300.0)
        for _ in range(10):
            await side.ask(b"good")
            found = await side.ask(b"spin%d" % core)
            if "pid" in found:
                break
        await side.end()
        return found

    try:
        found = asyncio.run(run())
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert "pid" in found


def test_what_waited_too_long_is_busy(runner, shared):
    """A message that no scan process could begin in time is answered, and is no known crasher."""

    async def run():
        side = Side(shared, wait_s=1.0)
        while "pid" not in await side.ask(b"good"):
            pass  # on a slow machine the start of the process takes longer than a message may wait
        hung = asyncio.create_task(side.ask(b"hang"))
        await asyncio.sleep(0)
        late = await side.ask(b"good")
        known = shared.is_known_crasher(DIGEST)
        await side.end()
        hung.cancel()
        return late, known

    assert runner(run()) == ({"reason": "busy"}, False)


def test_what_is_taken_back_waits_no_longer(runner, shared):
    """The message of a session that ended is neither scanned nor answered."""

    async def run():
        side = Side(shared)
        answers = []
        first = asyncio.create_task(side.ask(b"nap 0.5"))
        await asyncio.sleep(0)
        side.pool.submit(b"hang", {}, answers.append)()
        await first
        last = await side.ask(b"good")
        await side.end()
        return answers, last

    answers, last = runner(run())
    assert answers == []
    assert "pid" in last


def test_a_burst_of_one_client_does_not_starve_another(runner, shared):
    """A client's only message is taken after one more of the client that sent twenty before."""

    async def run():
        side = Side(shared)
        burst = [side.ask(b"nap 0.01", "192.0.2.66") for _ in range(20)]
        await asyncio.gather(*burst, side.ask(b"nap 0.01", "192.0.2.7"))
        await side.end()
        return side.order

    assert runner(run()).index("192.0.2.7") <= 2


def test_as_many_helpers_as_slots_work_at_a_time(runner, shared):
    """Two scan processes scan two messages; there is no slot for a third one."""

    async def run():
        side = Side(shared, slots=2)
        found = await asyncio.gather(*(side.ask(b"nap 0.5") for _ in range(6)))
        await side.end()
        return {answer["pid"] for answer in found}

    assert len(runner(run())) == 2


def test_helpers_that_cannot_start_are_a_fault(runner, shared):
    """If no scan process becomes ready, the fallback is that of faults, not of a full queue."""

    async def run():
        side = Side(shared, wait_s=2.0, entry="broken")
        while len(side.logged) < FAILURES:
            await side.ask(b"good")
        found = await side.ask(b"good")
        await side.end()
        return found, side.logged

    found, logged = runner(run())
    assert found == {"reason": "fault"}
    assert {record["event"] for record in logged} == {"scan process died"}


def test_an_unreadable_answer_is_a_fault_of_its_message_alone(runner, shared):
    """An answer that cannot be read is a fault of that message alone."""

    async def run():
        side = Side(shared)
        found = await side.ask(b"babb"), await side.ask(b"good")
        await side.end()
        return found

    nonsense, good = runner(run())
    assert nonsense == {"reason": "fault"}
    assert "pid" in good


def test_a_helper_that_cannot_be_started_is_tried_again(runner, shared):
    """Without free descriptors messages wait; they are scanned when some are free again."""

    async def main():
        side = Side(shared)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        first = os.dup(0)
        os.close(first)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first, hard))
        try:
            asked = asyncio.create_task(side.ask(b"fine"))
            while not side.logged:  # noqa: ASYNC110 - the log is a list
                await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (await asked)["pid"]
        await side.end()
        assert side.logged[0]["event"] == "scan process cannot be started"

    runner(main())


def test_new_settings_give_a_new_helper(runner, shared):
    """A scan process with old settings finishes its message and is stopped."""

    async def run():
        side = Side(shared)
        first = await side.ask(b"good")
        side.pool.apply_settings(Settings())
        second = await side.ask(b"good")
        await side.end()
        return first["pid"], second["pid"], side.logged

    first, second, logged = runner(run())
    assert first != second
    assert not is_alive(first)
    assert logged == []


def test_new_settings_are_in_force_for_what_waits(runner, shared, tmp_path):
    """With a queue that is never empty, scan processes with old settings are replaced, too."""

    async def run():
        side = Side(shared)
        gate = b"gate" + bytes(tmp_path / "gate")
        asked = [asyncio.create_task(side.ask(raw)) for raw in (gate, b"good", b"good")]
        while not (tmp_path / "gate").exists():  # noqa: ASYNC110 - made by the helper
            await asyncio.sleep(0.01)
        side.pool.apply_settings(Settings())
        (tmp_path / "gate").unlink()
        found = [(await one)["pid"] for one in asked]
        starting = asyncio.create_task(side.ask(b"good"))
        side.pool.apply_settings(Settings())
        await starting
        await side.end()
        return found, side.logged

    found, logged = runner(run())
    assert found[0] != found[1] == found[2]
    assert logged == []


def test_it_ends_with_its_worker(shared):
    """A worker that is killed leaves no scan process behind."""
    code = f"""
import asyncio, os, signal, sys
sys.path[:0] = {[str(TESTS / "faults"), str(TESTS)]!r}
from spamnb.daemon.shared import SharedState
from test_daemon_scan_process import Side
async def run():
    side = Side(SharedState({shared.fd}))
    print((await side.ask(b"good"))["pid"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        pass_fds=[shared.fd],
        capture_output=True,
        text=True,
        check=False,
    )
    pid = int(done.stdout)
    until(lambda: not is_alive(pid), "its end")
