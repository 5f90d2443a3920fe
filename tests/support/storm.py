"""The storm: all attacks of `storm_attackers` at once, beside honest clients and users.

`Storm(folder).run(seconds, kills)` starts the daemon as a program, attacks it for so many seconds,
then kills one of its processes after another while honest mail and honest training go on, and
returns `Results`. `test_storm.py` checks them.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spamnb.engine.filter import Filter
from spamnb.errors import SpamnbError, UserError
from spamnb.feedback.values import Feedback
from spamnb.operations.protocol import ControlClient
from support.postfix import children, free_ports
from support.soak_sink import body_digest
from support.storm_attackers import Client, RefusedError, random_words
from support.waiting import LIMIT_S, until

PROJECT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SAMPLE = PROJECT / "corpora" / "sample"
USER = "root" if os.geteuid() == 0 else ""
TAUGHT = 100
"""Messages of each label that the model learns before the storm. All mail of the storm, honest and
hostile, is made of them."""
OTHERS = 1000
"""Other generated messages of each label. They measure the harm to the mail of other users: 100 of
each had between 0 and 5 % of their spam delivered by models that were equally good."""
PATIENCE_S = 600.0
"""how long a client tries: a process that dies soon after its start is replaced after up to 10 s"""
TOML = """
[listener.mx]
address = "127.0.0.1:{front}"
upstream = "127.0.0.1:{sink}"
peers = ["127.0.0.1/32"]
recipient_domains = ["example.org"]

[delivery]
address = "127.0.0.1:{delivery}"
domains = ["example.org"]

[serve]
workers = 2

[log]
format = "json"
file = "{log}"
"""


@dataclass(eq=False)
class Message:
    """An honest message on its way."""

    name: str
    raw: bytes
    label: str
    kind: str
    recipient: str = "alice@example.org"
    tries: int = 0
    code: int = 0
    took_s: float = 0.0


@dataclass
class Results:
    """What became of honest mail and honest training."""

    delivered: Counter = field(default_factory=Counter)
    """kind -> messages with a 250"""
    lost: list = field(default_factory=list)
    changed: list = field(default_factory=list)
    refused: list = field(default_factory=list)
    given_up: list = field(default_factory=list)
    deferrals: Counter = field(default_factory=Counter)
    """(kind, code) -> tries; code 0 is a connection without a reply"""
    unscanned: Counter = field(default_factory=Counter)
    """(kind, reason) -> honest messages"""
    latency: dict = field(default_factory=dict)
    """kind -> sorted seconds of the try that was taken, during the attacks alone"""
    labels: int = 0
    label_faults: list = field(default_factory=list)
    hostile: Counter = field(default_factory=Counter)
    """hostile user -> corrections that were learnt"""
    kills: Counter = field(default_factory=Counter)
    harm: dict = field(default_factory=dict)
    """"before" and "after" -> (share of ham not delivered, share of spam delivered)"""
    counters: dict = field(default_factory=dict)
    code: int | None = None

    def quantile(self, kind, share):
        """Return a quantile of the latency of a kind, in seconds."""
        took = self.latency[kind]
        return took[min(int(share * len(took)), len(took) - 1)]


def sample(label, start, stop):
    """Messages of the sample, with CRLF and dots stuffed."""
    paths = sorted((SAMPLE / label).iterdir())[start:stop]
    raws = [path.read_bytes().replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n" for path in paths]
    return [raw.replace(b"\n.", b"\n..").replace(b"\n", b"\r\n") for raw in raws]


def as_taught(wire):
    """A message as its recipient has it."""
    return wire.replace(b"\r\n..", b"\r\n.")


class Storm:
    """One storm in a folder."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.front, self.delivery, self.sink_port = free_ports(3)
        self.home, self.log = self.folder / "home", self.folder / "log"
        self.config, self.taken = self.folder / "spamnb.toml", self.folder / "taken"
        self.config.write_text(
            TOML.format(front=self.front, delivery=self.delivery, sink=self.sink_port, log=self.log)
        )
        self.results = Results()
        self.attacked, self.ended = threading.Event(), threading.Event()
        self.done, self.labelled = [], {}
        """`labelled`: (digest of the body, label) of each acknowledged label -> its message"""
        self.numbers = itertools.count()
        self.programs = []

    # -- programs -------------------------------------------------------------------------------

    def spamnb(self, *arguments):
        program = [sys.executable, "-m", "spamnb"]
        return [*program, "--home", self.home, "--config", self.config, *arguments]

    def begin(self):
        with Filter.open(self.home, create=True, history=False) as model:
            for raws in zip(sample("ham", 0, TAUGHT), sample("spam", 0, TAUGHT), strict=True):
                for raw, label in zip(raws, ("ham", "spam"), strict=True):
                    model.learn(as_taught(raw), label)
        count = str(OTHERS)
        maker = [
            sys.executable,
            *map(str, (PROJECT / "scripts/make-sample", self.folder / "others")),
        ]
        subprocess.run([*maker, "--ham", count, "--spam", count, "--seed", "77"], check=True)
        sink = [sys.executable, str(HERE / "soak_sink.py"), str(self.sink_port), str(self.taken)]
        self.programs.append(subprocess.Popen(sink))
        with (self.folder / "err").open("w") as err:
            self.daemon = subprocess.Popen(
                self.spamnb("serve"), stderr=err, env=os.environ | {"SPAMNB_SERVE_USER": USER}
            )
        until(self.answers, "the daemon")

    def answers(self):
        assert self.daemon.poll() is None, (self.folder / "err").read_text()
        with (
            suppress(SpamnbError, OSError),
            ControlClient(self.home / "control.sock", 10) as caller,
        ):
            return caller.ask("status").header["status"]["model"]
        return None

    def attack(self):
        command = [sys.executable, HERE / "storm_attackers.py", self.front, self.delivery]
        command = [*map(str, command), str(self.home / "spool")]
        return subprocess.Popen(command, start_new_session=True)

    def harm(self):
        """Share of other users' ham that is not delivered, and of their spam that is."""
        with Filter.open(self.home, readonly=True, history=False) as model:
            decisions = {
                label: [verdict.decision for verdict in model.score_many(self.others(label))]
                for label in ("ham", "spam")
            }
        kept = {label: found.count("deliver") / len(found) for label, found in decisions.items()}
        return 1 - kept["ham"], kept["spam"]

    def others(self, label):
        paths = sorted((self.folder / "others" / label).iterdir())
        return (path.read_bytes().replace(b"\n", b"\r\n") for path in paths)

    # -- honest mail ----------------------------------------------------------------------------

    def message(self, kind, rng):
        """The next message of a kind: one of the sample's, with a name and a line of its own."""
        number, label = next(self.numbers), rng.choice(("ham", "spam"))
        name = f"m{number}@honest.example"
        raw = rng.choice(self.texts[label])
        head = f"X-Number: {number}\r\nMessage-ID: <{name}>\r\n".encode()
        body = b"\r\nnumber %d\r\n" % number
        if kind == "large":
            body += random_words(rng, rng.randint(66_000, 150_000))
        return Message(name, head + raw + body, label, kind)

    def send(self, kind, source, pause_s, seed):
        """Send messages of a kind one after the other until the end; try each until a 250."""
        rng = random.Random(seed)
        while not self.ended.is_set():
            message = self.message(kind, rng)
            began = time.monotonic()
            while not self.attempt(message, source(rng)):
                if time.monotonic() - began > PATIENCE_S:
                    self.results.given_up.append((kind, message.name))
                    break
                time.sleep(0.2)
            self.done.append(message)
            self.ended.wait(pause_s)

    def attempt(self, message, source):
        """Try once; whether no further try is needed."""
        message.tries += 1
        began = time.monotonic()
        code = 0
        try:
            client = Client(self.front, source)
            try:
                code = 450
                if client.begin(message.recipient, message.name):
                    code = 0
                    client.socket.sendall(message.raw + b".\r\n")
                    code = client.reply()
            finally:
                client.close()
        except RefusedError as refused:
            (code,) = refused.args
        except (OSError, ValueError):
            pass
        if code // 100 in (2, 5):
            message.code, message.took_s = code, time.monotonic() - began
            if not self.attacked.is_set() and code == 250:
                self.results.latency.setdefault(message.kind, []).append(message.took_s)
            return True
        if not self.attacked.is_set():
            self.results.deferrals[message.kind, code] += 1
        return False

    # -- honest training ------------------------------------------------------------------------

    def teach(self):
        """The user alice labels her own messages; each label is sent twice, as by a retry."""
        taught = 0
        while not self.ended.wait(0.2):
            while taught < len(self.done):
                message = self.done[taught]
                taught += 1
                if message.kind == "trusted" and message.code == 250 and taught % 3 == 0:
                    self.label(message)

    def label(self, message):
        feedback = Feedback(
            message.label, as_taught(message.raw), (), message.recipient, "imap", "user"
        )
        answers = 0
        while answers < 2 and not self.ended.is_set():
            try:
                with ControlClient(self.home / "control.sock", 30) as caller:
                    answer = caller.teach(feedback)
            except UserError as error:
                self.results.label_faults.append(repr(error))
                return
            except (SpamnbError, OSError):
                time.sleep(0.2)
                continue
            if answer.state not in ("learnt", "unchanged"):
                self.results.label_faults.append(f"{answer.state}: {answer.reason}")
                return
            answers += 1
            self.labelled[message.name] = message

    # -- a hostile user -------------------------------------------------------------------------

    def mislabel(self, user, size, label_of):
        """A user gives wrong labels to their own mail."""
        rng = random.Random(user)
        while not self.attacked.wait(1.0):
            message = self.message("hostile", rng)
            message.recipient = f"{user}@example.org"
            if size:
                message.raw += random_words(rng, size)
            if not self.attempt(message, "127.8.0.1"):
                continue
            label = label_of[message.label]
            raw = as_taught(message.raw)
            feedback = Feedback(label, raw, (), message.recipient, "imap", "user")
            with (
                suppress(SpamnbError, OSError),
                ControlClient(self.home / "control.sock", 30) as caller,
            ):
                if caller.teach(feedback).state == "learnt":
                    self.results.hostile[user] += 1

    # -- kills ----------------------------------------------------------------------------------

    def kill(self, rng):
        """Kill one process of the daemon, not its supervisor, at a random moment."""
        time.sleep(rng.uniform(0.0, 1.0))
        below = children(self.daemon.pid)
        pid = rng.choice(below) if below else 0
        with suppress(OSError):
            role = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            os.kill(pid, signal.SIGKILL)
            self.results.kills[next((w.decode() for w in role if w in ROLES), "other")] += 1

    # -- the whole ------------------------------------------------------------------------------

    def run(self, seconds, kills):
        """The attacks, then the kills; the results."""
        self.texts = {label: sample(label, 0, TAUGHT) for label in ("ham", "spam")}
        self.begin()
        wrong = {"ham": "spam", "spam": "ham"}
        spam = {"ham": "spam", "spam": "spam"}
        jobs: list[tuple[Any, ...]]
        jobs = [(self.send, "trusted", lambda _: "127.0.0.1", 0.1, n) for n in range(3)]
        jobs += [(self.send, "small", any_source, 0.1, 10 + n) for n in range(3)]
        jobs += [(self.send, "large", any_source, 1.0, 20), (self.teach,)]
        jobs += [
            (self.mislabel, "mallory", 0, wrong),
            (self.mislabel, "eve", 260_000, spam),
        ]
        threads = [threading.Thread(target=job[0], args=job[1:]) for job in jobs]
        attackers = self.attack()
        try:
            for thread in threads:
                thread.start()
            time.sleep(seconds)
            until(lambda: self.labelled, "a label")
            self.results.counters = self.counters()
            self.attacked.set()
            stop(attackers)
            rng = random.Random(kills)
            while self.results.kills.total() < kills:
                self.kill(rng)
        finally:
            self.attacked.set()
            self.ended.set()
            stop(attackers)
            for thread in threads:
                thread.join()
            self.end()
        return self.balance()

    def counters(self):
        with (
            suppress(SpamnbError, OSError),
            ControlClient(self.home / "control.sock", 30) as caller,
        ):
            return caller.ask("status").header["status"]
        return {}

    def end(self):
        self.daemon.send_signal(signal.SIGTERM)
        self.results.code = self.daemon.wait(LIMIT_S)
        for program in self.programs:
            program.kill()
            program.wait()

    def balance(self):
        results, arrived = self.results, {}
        for line in self.taken.read_text().splitlines():
            name, _, digest, verdict = line.split()
            arrived[name] = (digest, verdict)
        for message in self.done:
            if message.code // 100 == 5:
                results.refused.append((message.kind, message.code))
            elif message.code == 250 and message.name not in arrived:
                results.lost.append(message.name)
            elif message.code == 250:
                results.delivered[message.kind] += 1
                digest, verdict = arrived[message.name]
                if digest != body_digest(message.raw):
                    results.changed.append(message.name)
                if verdict.startswith("unscanned"):
                    results.unscanned[message.kind, verdict] += 1
        for took in results.latency.values():
            took.sort()
        self.check_labels()
        results.harm["with"] = self.harm()
        hostile = [
            word for user in results.hostile for word in ("--without", f"{user}@example.org")
        ]
        subprocess.run(self.spamnb("relearn", "--yes", *hostile), check=True)
        results.harm["without"] = self.harm()
        return results

    def check_labels(self):
        """Check that each acknowledged label is in the journal once."""
        results = self.results
        with Filter.open(self.home, readonly=True, history=False) as model:
            with model.store.read() as view:
                # A second label may take further steps, but the counts move once.
                events = Counter(e.digest for e in view.events() if e.before != e.after)
            for message in self.labelled.values():
                digest = model.example(as_taught(message.raw)).digest
                results.labels += 1
                if events[digest] != 1:
                    results.label_faults.append(f"{message.name}: {events[digest]} events")


def stop(program):
    """Kill a program and its children."""
    with suppress(OSError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


ROLES = (b"worker", b"learner", b"delivery", b"scan")


def any_source(rng):
    """An honest client's address, another one each time."""
    return f"127.1.{rng.randrange(250)}.{1 + rng.randrange(250)}"
