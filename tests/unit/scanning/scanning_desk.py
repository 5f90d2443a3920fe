"""What the tests of scanning work with: letters, and a scanner with all its parts in reach."""

from dataclasses import replace
from email.parser import BytesParser
from pathlib import Path

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.core.model.costs import Costs
from spamnb.core.policy.actions import Handlings, Treatment
from spamnb.service.scanning.model_session import (
    Bench,
    BenchPlan,
)
from spamnb.service.scanning.scanner import Around, LetterScanner, ScanPolicy
from spamnb.service.scanning.types import Letter
from spamnb.service.telemetry.metrics import Meters

SAMPLE = Path(__file__).resolve().parents[3] / "corpora" / "sample"
TAUGHT = 150
ENVELOPE = Envelope(
    sender="ann@a.example",
    recipients=("bob@b.example", "carl@c.example"),
    client=Client(address="192.0.2.7", ident="4ABC"),
    mail_line=b"MAIL FROM:<ann@a.example>",
    rcpt_lines=(b"RCPT TO:<bob@b.example>", b"RCPT TO:<carl@c.example>"),
)
COSTS = Costs(reject=(200.0, 0.0))
"""refuses sooner than as shipped: the sample has few messages that are sure enough for that"""
HARSH = ScanPolicy(Treatment(Handlings("headers", "tag", "quarantine", "reject")))


def raws(side, start=0, stop=None):
    return [
        path.read_bytes().replace(b"\n", b"\r\n")
        for path in sorted((SAMPLE / side).iterdir())[start:stop]
    ]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Desk:
    """A scanner with all that it works with in reach."""

    def __init__(self, home, policy=None, *, plan=None, hand=None, **around):
        self.records = []
        self.clock = Clock()
        self.meters = Meters()
        plan = replace(plan or BenchPlan(home), home=home, costs=COSTS)
        self.bench = Bench(plan, hand=hand, log=self.records.append, clock=self.clock)
        self.around = Around(meters=self.meters, log=self.records.append, **around)
        self.scanner = LetterScanner(self.bench, policy or ScanPolicy(), self.around)

    def scan(self, raw, envelope=ENVELOPE, **letter):
        """The one outcome of a letter."""
        found = []
        self.scanner.scan(Letter(raw, envelope, **letter), found.append)
        (outcome,) = found
        return outcome

    def close(self):
        self.bench.close()


def fields(block):
    return dict(BytesParser().parsebytes(block + b"\r\n").items())
