"""Test support for scanning: messages, and a scanner with access to all its parts."""

import json
from dataclasses import replace
from email.parser import BytesParser
from pathlib import Path
from typing import Any

from spamnb.errors import StoreMissingError
from spamnb.mail.envelope import Client, Envelope
from spamnb.model.costs import Costs
from spamnb.policy.actions import ActionMap, ActionPolicy
from spamnb.policy.headers import add_to_message, header_end
from spamnb.scan.access_lists import AccessLists
from spamnb.scan.judge import (
    ModelSession,
    SessionConfig,
    scan_to_json,
)
from spamnb.scan.scanner import Scanner, ScannerDeps, ScanPolicy
from spamnb.scan.values import ScanRequest, ScanResult
from spamnb.telemetry import Meters, silent

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
TAUGHT = 150
ENVELOPE = Envelope(
    sender="ann@a.example",
    recipients=("bob@b.example", "carl@c.example"),
    client=Client(address="192.0.2.7", ident="4ABC"),
    mail_line=b"MAIL FROM:<ann@a.example>",
    rcpt_lines=(b"RCPT TO:<bob@b.example>", b"RCPT TO:<carl@c.example>"),
)
COSTS = Costs(reject=(200.0, 0.0))
"""rejects sooner than the default: few messages of the sample have a verdict sure enough"""
HARSH = ScanPolicy(ActionPolicy(ActionMap("headers", "tag", "quarantine", "reject")))


def raws(side, start=0, stop=None):
    return [
        path.read_bytes().replace(b"\n", b"\r\n")
        for path in sorted((SAMPLE / side).iterdir())[start:stop]
    ]


def as_delivered(raw):
    """A message as the next hop gets it, without the added headers."""
    return add_to_message(raw, ())


def request_of(raw, envelope, **more):
    """What the relay asks about a message."""
    raw = as_delivered(raw)
    end = header_end(raw)
    return ScanRequest(raw, len(raw) if end < 0 else end, envelope, **more)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Helper:
    """Scans on request, as a scan process does: through JSON."""

    def __init__(self, model_session):
        self.model_session, self.jobs = model_session, []

    def submit(self, raw, notes, done, recipients=()):
        self.jobs.append((raw, notes, done, recipients))

    def work(self):
        raw, notes, done, recipients = self.jobs.pop(0)
        done(json.loads(json.dumps(scan_to_json(self.model_session, raw, notes, recipients))))


class NoQuarantine:
    """A quarantine that stores nothing."""

    def keep(self, *_):
        raise StoreMissingError("no quarantine was set up")

    def delete(self, _):
        raise AssertionError("it has no message")


class ScanHere(Helper):
    """Scans immediately."""

    def submit(self, raw, notes, done, recipients=()):
        super().submit(raw, notes, done, recipients)
        self.work()


def scanner_deps(model_session, **around):
    """What a scanner works with in one thread: everything is done immediately."""
    usual: dict[str, Any] = {
        "rules": AccessLists(),
        "quarantine": NoQuarantine(),
        "offload": ScanHere(model_session),
        "traps": None,
        "bypassed": lambda: False,
        "live": lambda: False,
        "call_soon": lambda run: run(),
        "run_in_thread": lambda work, then: then(work()),
        "meters": Meters(),
        "log": silent,
    }
    return ScannerDeps(**usual | around)


class ScanRig:
    """A scanner with access to all that it works with."""

    def __init__(self, home, policy=None, *, plan=None, crash_register=None, **around):
        self.records: list[dict[str, object]] = []
        self.clock = Clock()
        self.meters = Meters()
        plan = replace(plan or SessionConfig(home), home=home, costs=COSTS)
        self.model_session = ModelSession(
            plan, crash_register=crash_register, log=self.records.append, clock=self.clock
        )
        around |= {"meters": self.meters, "log": self.records.append}
        self.around = scanner_deps(self.model_session, **around)
        self.scanner = Scanner(self.model_session, policy or ScanPolicy(), self.around)

    def scan(self, raw, envelope=ENVELOPE, **request):
        """The one result of a message."""
        found: list[ScanResult] = []
        self.scanner.scan(request_of(raw, envelope, **request), found.append)
        (outcome,) = found
        return outcome

    def close(self):
        self.model_session.close()


def fields(block):
    return dict(BytesParser().parsebytes(block + b"\r\n").items())
