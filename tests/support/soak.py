"""The soak: mixed load, faults and kills for a while, and an account of every message.

`Soak(folder).run(seconds)` starts the daemon as a program, a next hop that is restarted twice, 50
connections of mixed and hostile mail, corrections, two kills of workers and a reload, and returns
the results. `test_soak.py` checks them.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from spamnb.feedback.values import Feedback
from spamnb.operations.protocol import ControlClient
from support.postfix import children, free_ports
from support.soak_client import MAY_BE_REFUSED, Sender
from support.waiting import LIMIT_S, until

WHO = "root" if os.geteuid() == 0 else ""
PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"
CONNECTIONS = 50
SEED = 20_261_121
NEAR_S = 2.0
TOML = """
[listener.front]
address = "127.0.0.1:{front}"
upstream = "127.0.0.1:{sink}"
scan_limit_bytes = {scan_limit}

[serve]
workers = 2
watchdog_s = 20.0

[log]
format = "json"
file = "{log}"
"""


@dataclass
class Books:
    """Messages sent and arrived, and the events of the run."""

    sent: int = 0
    lost: list = field(default_factory=list)
    changed: list = field(default_factory=list)
    unmarked: list = field(default_factory=list)
    refused: list = field(default_factory=list)
    given_up: int = 0
    twice: dict = field(default_factory=dict)
    """sender -> how often, for all that arrived more than once"""
    logged: set = field(default_factory=set)
    """senders of which the log says that the next hop was lost, or the client before the reply"""
    in_killed: set = field(default_factory=set)
    """senders that lost the connection after the final dot while a worker was killed"""
    corrections: int = 0
    correction_faults: list = field(default_factory=list)
    memory: list = field(default_factory=list)
    """(seconds, bytes of all processes)"""
    status: dict = field(default_factory=dict)
    events: list = field(default_factory=list)


def memory_of(pids):
    """Private bytes of these processes."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    total += int(line.split()[1]) * 1024
    return total


class Soak:
    """One soak in a folder."""

    def __init__(self, folder, connections=CONNECTIONS):
        self.folder = Path(folder)
        self.connections = connections
        self.front, self.sink_port = free_ports(2)
        self.config = self.folder / "spamnb.toml"
        self.log = self.folder / "log"
        self.home = self.folder / "home"
        self.taken = self.folder / "taken"
        self.books = Books()
        self.ended = threading.Event()
        self.code = None

    def spamnb(self, *arguments):
        program = [sys.executable, "-m", "spamnb"]
        return [*program, "--home", self.home, "--config", self.config, *arguments]

    def write_settings(self, scan_limit):
        text = TOML.format(
            front=self.front, sink=self.sink_port, log=self.log, scan_limit=scan_limit
        )
        self.config.write_text(text)

    def start_sink(self):
        program = Path(__file__).with_name("soak_sink.py")
        self.sink = subprocess.Popen([sys.executable, program, str(self.sink_port), self.taken])

    def status(self):
        with ControlClient(self.home / "control.sock", 10) as caller:
            return caller.ask("status").header["status"]

    def begin(self):
        self.write_settings(1 << 20)
        command = self.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.start_sink()
        with (self.folder / "err").open("w") as errors:
            self.daemon = subprocess.Popen(
                self.spamnb("serve"), stderr=errors, env=os.environ | {"SPAMNB_SERVE_USER": WHO}
            )
        until(self.answers, "the daemon")

    def answers(self):
        assert self.daemon.poll() is None, (self.folder / "err").read_text()
        with suppress(Exception):
            return self.status()["model"]
        return None

    # -- what happens meanwhile -----------------------------------------------------------------

    def correct(self):
        """Correct messages until the end."""
        files = [*sorted((SAMPLE / "ham").iterdir()), *sorted((SAMPLE / "spam").iterdir())]
        number = 0
        while not self.ended.wait(0.2):
            path = files[number % len(files)]
            label = ("ham", "spam")[(number // len(files) + (path.parent.name == "spam")) % 2]
            number += 1
            try:
                with ControlClient(self.home / "control.sock", 30) as caller:
                    answer = caller.teach(Feedback(label, path.read_bytes(), trust="admin"))
                assert answer.state in ("learnt", "unchanged"), answer
                self.books.corrections += 1
            except Exception as error:  # noqa: BLE001 - shown at the end, whatever it was
                self.books.correction_faults.append(repr(error))

    def weigh(self):
        """Measure the memory of all processes once a second."""
        began = time.monotonic()
        while not self.ended.wait(1.0):
            pids = [self.daemon.pid, *children(self.daemon.pid)]
            self.books.memory.append((time.monotonic() - began, memory_of(pids)))

    def kill_worker(self, number):
        workers = [p for p in self.status()["processes"] if p["role"] == "worker" and p["pid"]]
        pid = workers[number % len(workers)]["pid"]
        os.kill(pid, signal.SIGKILL)
        self.books.events.append(f"killed worker {pid}")

    def restart_sink(self, _):
        self.sink.kill()
        self.sink.wait()
        time.sleep(0.5)  # an outage, not a race: mail must wait for the next hop
        self.start_sink()
        self.books.events.append("restarted the next hop")

    def reload(self, _):
        self.write_settings(1 << 19)
        self.daemon.send_signal(signal.SIGHUP)
        self.books.events.append("reloaded")

    def run(self, seconds):
        """Run everything; return the account."""
        self.begin()
        sender = Sender(self.front, SEED, self.connections)
        threads = [threading.Thread(target=self.correct), threading.Thread(target=self.weigh)]
        for thread in threads:
            thread.start()
        plan = [self.kill_worker, self.restart_sink, self.reload, self.kill_worker]
        plan.append(self.restart_sink)
        try:
            began = time.monotonic()
            for number, happen in enumerate(plan):
                due = began + seconds * (number + 1.5) / (len(plan) + 2)
                time.sleep(max(0.0, due - time.monotonic()))
                happen(number)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            until(lambda: self.books.corrections, "a correction")
            outcome = sender.finish()
            self.books.status = self.status()
        finally:
            sender.stopped.set()
            self.ended.set()
            for thread in threads:
                thread.join()
            self.end()
        return self.balance(outcome)

    def end(self):
        self.daemon.send_signal(signal.SIGTERM)
        self.code = self.daemon.wait(LIMIT_S)
        self.sink.kill()
        self.sink.wait()

    # -- the books ------------------------------------------------------------------------------

    def balance(self, outcome):
        books, arrived = self.books, {}
        counted: Counter[str] = Counter()
        for line in self.taken.read_text().splitlines():
            name, _, digest, verdict = line.split()
            arrived[name] = (digest, verdict != "-")
            counted[name] += 1
        books.sent = len(outcome.done)
        books.given_up = len(outcome.given_up)
        books.twice = {name: n for name, n in counted.items() if n > 1}
        deaths = self.read_log(books)
        for request in outcome.done:
            if any(abs(at - death) < NEAR_S for at in request.broken for death in deaths):
                books.in_killed.add(request.name)
            if request.code // 100 == 5:
                if request.kind not in MAY_BE_REFUSED:
                    books.refused.append((request.kind, request.code))
            elif request.name not in arrived:
                books.lost.append(request.name)
            else:
                digest, marked = arrived[request.name]
                if request.kind == "mail" and digest != request.digest:
                    books.changed.append(request.name)
                if not marked:
                    books.unmarked.append((request.kind, request.name))
        return books

    def read_log(self, books):
        """Read from the log: names for which a duplicate is to be expected, and deaths."""
        deaths = []
        for line in self.log.read_text().splitlines():
            record = json.loads(line)
            if record["event"] == "process died":
                deaths.append(datetime.fromisoformat(record["time"]).timestamp())
                continue
            if (
                "Connection to the mail server lost" in record.get("reply", "")
                or record.get("action") == "client-lost"
            ):
                books.logged.add(record.get("from", ""))
        return deaths
