"""A daemon, `spamnb doctor` as a program, and its report."""

import json
import os
import sys

from spamnb.engine.filter import Filter
from support.cli import undated
from support.postfix import PROJECT, Daemon
from support.waiting import until

SAMPLE = PROJECT / "corpora" / "sample"
CHECKS = [
    "daemon",
    "next hops",
    "model",
    "mailbox",
    "delivery",
    "arrival",
    "headers",
    "hosts",
    "results",
    "filing",
    "marked mail",
    "verdict",
    "move",
    "learning",
    "score",
    "move back",
    "learning again",
    "cleaning up",
]


class DoctorResult:
    """The report of `spamnb doctor`."""

    def __init__(self, code, out, err):
        assert out, err
        self.code, self.err = code, err
        self.whole = json.loads(out.splitlines()[-1])
        self.checks = {check["check"]: check for check in self.whole["checks"]}

    def names(self, state):
        return [name for name, check in self.checks.items() if check["state"] == state]

    def is_broken(self, name, what, todo):
        """Assert that this check alone is broken, with these texts."""
        assert self.names("broken") == [name], self.whole
        assert what in self.checks[name]["what"]
        assert todo in self.checks[name]["todo"]
        assert self.code == 1
        assert self.whole["ok"] is False


class Site:
    """A daemon with a model of the sample, and `spamnb doctor` for it."""

    def __init__(self, folder, toml):
        self.folder = folder
        self.daemon = Daemon(folder, toml, user="root" if os.geteuid() == 0 else "")
        self.daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")

    def command(self, *more):
        where = ["--home", self.daemon.home, "--config", self.daemon.config]
        return list(map(str, [sys.executable, "-m", "spamnb", *where, "doctor", "--json", *more]))

    def doctor(self, *more):
        return DoctorResult(*self.daemon.command("doctor", "--json", *more))

    def learnt(self):
        """All sums of the model, which the doctor must not change."""
        with Filter.open(self.daemon.home, readonly=True) as model, model.store.read() as view:
            sums = view.totals()
        kept = (sums.messages, sums.tokens, sums.bias, sums.temperatures)
        return [*(numbers.tolist() for numbers in kept), sums.known]

    def export(self):
        """The exported model."""
        path = self.folder / "export"
        self.daemon.spamnb("export", path)
        return undated(path.read_text())

    def bypass(self, way):
        """Turn the bypass on or off, and wait until the daemon has seen it."""
        self.daemon.spamnb("bypass", way)
        wanted = f'"bypass": {str(way == "on").lower()}'
        until(lambda: wanted in self.daemon.spamnb("status", "--json"), what=f"bypass {way}")

    def events(self, ident):
        lines = self.daemon.spamnb("journal", "--json", "--limit", "20").splitlines()
        mine = [json.loads(line) for line in lines if ident in line]
        return [(event["before"], event["after"], event["user"]) for event in reversed(mine)]
