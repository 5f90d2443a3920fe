"""Three hosts of a fleet as processes, a real server, and faults; afterwards all are compared."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.values import Forget, Learn, MergedWords, Source
from spamnb.errors import PeerError, RefusedError, StoreError
from spamnb.fleet.administration import begin, leave, raise_level, rejoin, reseed
from spamnb.fleet.entries import VERSION
from spamnb.fleet.membership import make_key, open_member
from spamnb.fleet.outbox import OutboxReader
from spamnb.fleet.pulse import put_snapshot
from spamnb.model.events import NO_LABEL, EventKind
from spamnb.operations.protocol import ControlClient
from spamnb.settings.values import FleetParams
from spamnb.store.maintenance import backup, restore
from spamnb.store.model_store import open_store
from spamnb.store.table_views import Replay
from support import fleet_host
from support.fleet import everything
from support.fleet_link import FleetLinks
from support.stores import picture
from support.waiting import LIMIT_S, until

HOSTS = 3
OLD, NEW = VERSION, VERSION + 1
"""the newest version of an entry that a host reads before its upgrade, and after it"""
CLOCK_S = 7200
MUCH = 300
"""corrections in an outbox: a host that is left behind would get thousands a minute"""
_SUPPORT = Path(fleet_host.__file__).parent.parent


class Host:
    """One host, and a thread that teaches it until it is told to stop."""

    def __init__(self, folder, number, url):
        self.number, self.url = number, url
        self.folder = Path(folder) / f"host{number}"
        self.home = self.folder / "home"
        self.folder.mkdir()
        self.process = None
        self.level, self.ahead_s = OLD, 0
        self.taught = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._teach)
        self.error = None

    def start(self):
        program = [sys.executable, "-m", fleet_host.__name__]
        arguments = [self.home, self.folder, self.url, f"host{self.number}"]
        arguments += [self.level, self.ahead_s]
        where = os.environ | {"PYTHONPATH": f"{_SUPPORT}:{_SUPPORT.parent}"}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*program, *map(str, arguments)], stderr=log, env=where)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def answers(self):
        """Whether the process is ready; earlier, SIGTERM would kill it."""
        try:
            return bool(self._ask("ping", b""))
        except (PeerError, OSError, StoreError):
            return False

    def _ask(self, op, body, **fields):
        with ControlClient(self.folder / "c.sock", LIMIT_S) as client:
            return client.ask(op, body, **fields).header

    def _teach(self):
        """Teach one correction after the other; repeat each until it is acknowledged."""
        chance = random.Random(self.number)
        try:
            while not self.stop.is_set():
                if chance.random() < 0.15:
                    self._teach_shared(chance)
                else:
                    self._teach_own(chance.choice((1, 1, 1, 2, 20)))
                if self.waiting() > MUCH:
                    self.stop.wait(1)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.error = error

    def waiting(self):
        """Count the corrections in the outbox."""
        with closing(OutboxReader(self.home)) as outbox:
            return outbox.waiting()

    def _teach_own(self, count):
        """Teach messages that no other host has."""
        numbers = range(self.taught, self.taught + count)
        raws = [letter(f"{self.number}.{number}", number % 3) for number in numbers]
        labels = ["spam" if number % 3 else "ham" for number in numbers]
        sizes = [len(raw) for raw in raws]
        self._again(lambda: self._ask("batch", b"".join(raws), sizes=sizes, labels=labels))
        self.taught += count

    def _teach_shared(self, chance):
        """Correct or forget one of a few messages for which the hosts give different labels."""
        number, label = chance.randrange(6), chance.choice(["ham", "spam", ""])
        raw = letter(f"shared{number}", number % 2)
        fields = {"label": label} if label else {}
        self._again(lambda: self._ask("teach" if label else "forget", raw, **fields))

    def _again(self, ask):
        """Ask until the host answers; a host that is down or cut off does not answer."""
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                return ask()
            except (PeerError, OSError):
                pass
            except StoreError as error:
                if not error.transient:
                    raise
            assert time.monotonic() < end, "a correction was never acknowledged"
            time.sleep(0.02)


class Storm:
    """A fleet in a folder."""

    def __init__(self, folder, server, seed):
        self.chance = random.Random(seed)
        self.folder, self.server = Path(folder), server
        self.links = FleetLinks(self.folder / "links", server.path, HOSTS)
        urls = map(server.url_of, self.links.paths)
        self.hosts = [Host(folder, number, url) for number, url in enumerate(urls)]
        self.counts: Counter[str] = Counter()

    def begin(self):
        """Make a small model and its fleet, give it to all hosts, and start them."""
        first, copy = self.hosts[0], self.folder / "backup"
        with Filter.open(first.home, create=True, recipe=new_recipe(), history=False) as model:
            model.learn(letter("h1", 0), "ham")
            model.learn(letter("s1", 1), "spam")
        make_key(first.home / "fleet.key")
        params = FleetParams(url=first.url, host="host0", append_s=LIMIT_S)
        member = open_member(params, first.home)
        with closing(open_store(first.home)) as store, closing(member.log):
            begin(store, member)
        backup(first.home, copy)
        for host in self.hosts[1:]:
            restore(copy, host.home)
            shutil.copy(first.home / "fleet.key", host.home)
        for host in self.hosts:
            host.start()
            host.thread.start()

    def rage(self, seconds):
        """Cause one fault after the other, after all hosts have learnt something."""
        until(lambda: all(host.taught for host in self.hosts), "the hosts to be taught")
        end = time.monotonic() + seconds
        faults = [self._kill_host, self._kill_server, self._cut, self._mute, self._pause_host]
        faults += [self._shorten, self._wipe, self._rejoin_left_behind, self._slow, self._lose]
        faults += [self._fill_disk, self._set_clock, self._upgrade]
        while time.monotonic() < end:
            self.chance.choice(faults)()
            time.sleep(self.chance.uniform(0.1, 1))

    def _kill_host(self):
        self._restart(self.chance.choice(self.hosts))
        self.counts["hosts killed"] += 1

    def _restart(self, host):
        host.kill()
        host.start()

    def _set_clock(self):
        """Set the clock of one host wrong by two hours, or correct the wrong clock.

        Only one clock may be wrong, because a host with a wrong clock does not follow the log, and
        a log that lost entries continues only after hosts have reported what they hold.
        """
        wrong = [host for host in self.hosts if host.ahead_s]
        host = wrong[0] if wrong else self.chance.choice(self.hosts)
        host.ahead_s = 0 if wrong else self.chance.choice((-CLOCK_S, CLOCK_S))
        self._restart(host)
        self.counts["clocks set"] += 1

    def _upgrade(self):
        """Upgrade a host; after the last one, all hosts begin to write newer entries."""
        old = [host for host in self.hosts if host.level == OLD]
        if not old:
            return
        host = self.chance.choice(old)
        host.level = NEW
        self._restart(host)
        self.counts["hosts upgraded"] += 1
        if len(old) == 1:
            until(self._level_is_raised, "the level to be raised")

    def _level_is_raised(self):
        """Whether all hosts have told the others of their upgrade."""
        with closing((member := self._member(self.hosts[0])).log):
            try:
                return raise_level(member) == NEW
            except (RefusedError, StoreError):
                return False

    def _fill_disk(self):
        """Prevent the files of a host from growing for a while."""
        host = self.chance.choice(self.hosts)
        room = (host.home / "data.mdb").stat().st_size
        limits = resource.prlimit(host.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(host.process.pid, resource.RLIMIT_FSIZE, (room, limits[1]))
        time.sleep(self.chance.uniform(0.1, 3))
        resource.prlimit(host.process.pid, resource.RLIMIT_FSIZE, limits)
        self.counts["disks filled"] += 1

    def _kill_server(self):
        self.server.kill_all()
        time.sleep(self.chance.uniform(0, 0.5))
        self.server.start()
        self.counts["servers killed"] += 1

    def _shorten(self):
        """Let the server lose its newest entries."""
        self.server.lose_some(self.chance)
        self.counts["files put back or shortened"] += 1

    def _wipe(self):
        """Let the server lose everything, and make the log anew as the manual says."""
        self.server.lose_all()
        best = max(self.hosts, key=self._seq)
        until(lambda: self._reseeded(best), "the log to be made anew")
        self.counts["servers wiped"] += 1

    def _member(self, host, **params):
        found = FleetParams(url=self.server.url_of(self.server.path), append_s=LIMIT_S, **params)
        member = open_member(replace(found, host=f"host{host.number}"), host.home)
        return member._replace(level=host.level)

    def _reseeded(self, host):
        member = self._member(host)
        with (
            closing(open_store(host.home, readonly=True)) as store,
            closing(member.log),
            contextlib.suppress(RefusedError),
        ):
            reseed(store, member)
            return True
        return False

    def _cut(self):
        self._disturb("cut", self.chance.uniform(0.05, 1))

    def _mute(self):
        self._disturb("mute", self.chance.uniform(0.05, 2))

    def _slow(self):
        self._disturb("slow", self.chance.uniform(1, 5))

    def _lose(self):
        self._disturb("lossy", self.chance.uniform(1, 5))

    def _disturb(self, mode, seconds):
        number = self.chance.randrange(HOSTS)
        self.links.set(number, mode)
        time.sleep(seconds)
        self.links.set(number, "cut")  # a connection that lost an answer is of no use
        self.links.set(number, "open")
        self.counts[mode] += 1

    def _pause_host(self):
        """Pause a host for longer than the limits of its answers and its write lease."""
        process = self.chance.choice(self.hosts).process
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.1, 6))
        process.send_signal(signal.SIGCONT)
        self.counts["hosts paused"] += 1

    def settle(self):
        """End all corrections with all hosts up; stop the hosts when they have folded the log."""
        for host in self.hosts:
            if host.ahead_s:
                host.ahead_s = 0
                self._restart(host)
        self._rejoin_left_behind()  # until then, such a host acknowledges no correction
        taught = [host.taught for host in self.hosts]
        until(lambda: self._teach_more_than(taught), "corrections")
        for host in self.hosts:
            host.stop.set()
        for host in self.hosts:
            host.thread.join(LIMIT_S)
            assert host.error is None, host.error
            assert not host.thread.is_alive()
        self._rejoin_left_behind()
        self._empty_outboxes()
        with closing(self.server.log(durable="trust", name="spamnb")) as log:
            head = log.head()
            for host in self.hosts:
                until(lambda host=host: self._seq(host) == head.seq, f"host{host.number}")
        for host in self.hosts:
            until(host.answers, f"host{host.number} after its restart")
            host.process.terminate()
            assert host.process.wait(LIMIT_S) == 0
        return head

    def _teach_more_than(self, taught):
        """Whether each host has acknowledged a correction since then."""
        for host in self.hosts:
            assert host.error is None, host.error
        return all(map(int.__lt__, taught, (host.taught for host in self.hosts)))

    def _empty_outboxes(self):
        """Wait while the outboxes shrink: after a long storm they hold thousands of corrections."""
        while left := sum(map(Host.waiting, self.hosts)):
            until(lambda left=left: sum(map(Host.waiting, self.hosts)) < left, "the outboxes")

    def _rejoin_left_behind(self):
        """Join again on each host that was left behind, as an administrator does."""
        until(self._settled, "the log to be settled")
        for host in self.hosts:
            if not self._fits(host):
                until(host.answers, f"host{host.number} after its restart")
                host.process.terminate()
                # 1: a correction waited for a log that does not fit the host; the correction is
                # repeated.
                assert host.process.wait(LIMIT_S) in (0, 1)
                other = next(one for one in self.hosts if self._fits(one))
                with closing((member := self._member(other)).log):
                    put_snapshot(other.home, member, 0)
                with closing((member := self._member(host)).log):
                    rejoin(host.home, open_store(host.home, readonly=True), member)
                host.start()
                self.counts["hosts joined again"] += 1

    def _settled(self):
        with closing(self.server.log(name="spamnb")) as log:
            return log.head().settled

    def _fits(self, host):
        """Whether a host, which may lag, follows the history of the log."""
        with closing(open_store(host.home, readonly=True)) as store, store.read() as view:
            position = view.position()
        with closing(self.server.log(name="spamnb")) as log:
            chains = {entry.last: entry.chain for entry in log.entries(position.seq - 1)}
            head = log.head()
        return chains.get(position.seq, head.chain) == position.chain

    def _seq(self, host):
        with closing(open_store(host.home, readonly=True)) as store, store.read() as view:
            return view.position().seq

    def compare(self, head):
        """Compare all hosts, and count what each message was taught."""
        stores = [open_store(host.home, readonly=True) for host in self.hosts]
        found = [everything(store) for store in stores]
        assert all(one == found[0] for one in found)
        with stores[0].read() as view:
            assert view.position()[:3] == (head.epoch, head.seq, head.chain)
            events = list(view.events())
            shared = picture(view)
        for store in stores:
            store.close()
        assert taught_alone(self.folder, events) == shared
        learnt = Counter(
            event.digest
            for event in events
            if event.kind is EventKind.LEARN and event.before == NO_LABEL
            if "shared" not in event.message_id and event.seq > 2
        )
        assert set(learnt.values()) == {1}
        assert len(learnt) == sum(host.taught for host in self.hosts)
        return self.counts | {"events": len(events)}

    def close(self):
        for host in self.hosts:
            host.stop.set()
            if host.process is not None:
                host.kill()
        self.links.close()


def taught_alone(folder, events):
    """Return the model of a single host that is taught the same in the same order."""
    restore(folder / "backup", folder / "alone")
    with closing(open_store(folder / "alone")) as store:
        leave(store)
    with Filter.open(folder / "alone", history=False) as model:
        for event in events[2:]:
            _teach_again(model, event)
        with model.store.read() as view:
            return picture(view)


def _teach_again(model, event):
    """Compute an event.

    A repeated label makes a further step, which depends on the corrections that were learnt in the
    same transaction. No event has this information, so such a step is applied and not computed.
    """
    name = event.message_id.strip("<>").partition("@")[0]
    is_shared = name.startswith("shared")
    kind = int(name[6:]) % 2 if is_shared else int(name.partition(".")[2]) % 3
    source = Source(event.user, event.channel, immediate=event.immediate)
    if event.before == event.after:
        with model.store.write() as view:
            replaying = Replay(view, [event])
            replaying.apply(event)
            replaying.write(MergedWords([]).words)
    elif event.after == NO_LABEL:
        model.run(Forget(event.digest, source, event.time_us))
    else:
        example = model.example(letter(name, kind))
        model.run(Learn(example, event.after, source, event.time_us, again=is_shared))


def letter(name, kind):
    """A message that shares words with the others of its kind."""
    text = ("the minutes of our meeting", "cheap pills and a bonus", "a casino offer for you")[kind]
    head = f"From: ann@a.example\nSubject: {text}\nMessage-ID: <{name}@a.example>\n"
    return f"{head}\n{text} {name}\n".encode()


def weather(folder, server_in, seed, seconds):
    """Run a storm on a server, and compare the hosts afterwards."""
    print(f"seed {seed}, {seconds} s")
    server = server_in(folder)
    try:
        storm = Storm(folder, server.start(), seed)
        try:
            storm.begin()
            storm.rage(seconds)
            counts = storm.compare(storm.settle())
        finally:
            storm.close()
    finally:
        server.close()
    print(dict(counts))
