"""Make a home with weeks of made-up mail, for pictures and measurements of the console.

    write_home(folder, 2_000)

The mail of a day is judged by the model as it is on that day; then users correct some of the
verdicts. The daemon's own code writes all rows, with times in the past. Messages come from
templates; some of them mix ham and spam, so that the model is not sure about them.
"""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts")]

from mailcraft import Dice

from spamnb.engine.filter import Filter
from spamnb.engine.scoring import score_examples
from spamnb.engine.values import Example, Learn, Source
from spamnb.model.verdict import SIGNATURE_BYTES, Verdict
from spamnb.records.console import SeriesStore
from spamnb.records.verdicts import History, HistoryEntry
from spamnb.scan.judge import known_note
from spamnb.settings.values import HistoryLimits
from spamnb.telemetry import Meters, growing

DAY_US = 86_400_000_000
HOUR_US = DAY_US // 24
DOMAIN = "fourwinds.example"
PEOPLE = ("anna", "ben", "carla", "david", "elif", "farid", "grace", "henrik")
CARELESS = "henrik"
"""the user that gave wrong labels yesterday"""
TRAINED = 60
"""messages of each label that are taught before the first day"""
MOST_CORRECTIONS = 6
"""in an hour"""
HOURS = (1, 1, 1, 1, 1, 2, 4, 7, 10, 12, 11, 10, 8, 9, 10, 9, 8, 7, 5, 4, 3, 3, 2, 1)
"""how the mail of a day is spread"""
WORDS = ("cedar", "harbour", "lantern", "meadow", "orchard", "pebble", "quarry", "ribbon", "saddle",
         "thimble", "velvet", "willow", "anchor", "bramble", "candle", "dapple")  # fmt: skip
HAM = (
    ("Minutes of the {word} meeting", "We agreed on the budget. Please read the attached minutes."),
    ("Re: draft of the {word} report", "I have changed chapter two. What do you think of it?"),
    ("Lunch on Thursday?", "There is a new place near the station. Shall we go at noon?"),
    ("Timetable for week {n}", "Two classes move to the other building. The rooms are below."),
    ("Build {n} of {word} failed", "The test of the parser failed on the second runner."),
    ("Your order {n} was sent", "The parcel leaves our store today and arrives on Friday."),
    ("Invoice {n} for {month}", "The sum is due within thirty days. Thank you for your order."),
    ("[{word}-users] question on version {n}", "Since the upgrade the index is slow. Any idea?"),
    ("Photos of the trip", "Here are the pictures of the lake. Mother liked the boat most."),
    ("Notes for the {word} talk", "The slides are in the shared folder. I speak ten minutes."),
)
SPAM = (
    ("You have won {n} euro", "Claim your prize today. Send your bank details to our agent now."),
    ("Cheap {word} pills, no prescription", "Order now and save 80 %. Discreet delivery."),
    ("Your mailbox is almost full", "Verify your password within 24 hours or lose all messages."),
    ("Re: your payment {n}", "Open the document and enable the content to see the invoice."),
    ("Make {n} a week from home", "No experience needed. Limited places. Click here to begin."),
    ("Hot singles near {word}", "They wait for you tonight. Register for free, no card needed."),
    ("Rank first with {word} SEO", "We found errors on your site. Reply for a free audit."),
    ("Investment: {n} % a month", "Guaranteed profit with our coins. Act now, offer ends today."),
    ("Urgent: transfer of {n} dollars", "I am the widow of a minister. I trust you with this."),
    ("Luxury {word} watches", "Replica watches at a fraction of the price. Buy now."),
)
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August")
HOSTILE = (
    "<script>alert(1)</script>\"' onmouseover=x {{ 7*7 }} ${7*7}",
    "W" * 160,
    "\u05e9\u05dc\u05d5\u05dd \u202eexe.piz\u202c \u05d4\u05d7\u05e9\u05d1\u05d5\u05df",
    "\u611f\u8c22\u60a8\u7684\u6765\u4fe1\uff0c\u8bf7\u67e5\u6536\u53d1\u7968",
    "",
)
"""subjects that a page must show without harm"""


class PoolMessage(NamedTuple):
    """A message that is in the home many times."""

    subject: str
    sender: str
    size: int
    spam: bool
    example: Example


class MadeMail(NamedTuple):
    """How mail is made up."""

    pool: int = 600
    """different messages of each label; each is judged many times, with other recipients"""
    words: int = 4
    """meaningless words at the end of each message"""
    hostile: bool = False
    """some subjects are those of `HOSTILE`"""
    seed: int = 1


MADE = MadeMail()


def raw_message(
    dice: Dice, words: int, *, spam: bool, doubtful: bool = False
) -> tuple[str, str, bytes]:
    """Make up a message; return its subject, its sender and its text."""

    def filled(text: str) -> str:
        return text.format(
            word=dice.pick(WORDS), n=dice.number(12, 98) * 10, month=dice.pick(MONTHS)
        )

    own, other = (SPAM, HAM) if spam else (HAM, SPAM)
    subject = filled(dice.pick(own)[0])
    mixed = [other if doubtful and dice.chance(0.5) else own for _ in range(dice.number(2, 5))]
    name = f"{dice.pick(WORDS)}-{dice.pick(WORDS)}" if spam else dice.pick(WORDS)
    host, link = f"{name}.example", f"https://{name}.example/{dice.hex(6)}"
    sender = f"{dice.pick(WORDS if spam else PEOPLE)}@{host}"
    lines = [
        f"From: {sender}",
        f"To: {dice.pick(PEOPLE)}@{DOMAIN}",
        f"Subject: {subject}",
        f"Message-ID: <{dice.hex(12)}@{host}>",
        "",
        *(filled(dice.pick(one)[1]) for one in mixed),
        " ".join(f"{dice.pick(WORDS)}{dice.hex(2)}" for _ in range(words)),
        *([link] * spam),
    ]
    return subject, sender, "\r\n".join(lines).encode()


def write_home(home: Path, messages: int, *, days: int = 28, mail: MadeMail = MADE) -> None:
    """Make a home with so many verdicts up to now."""
    with Filter.open(home, create=True, history=False) as model:
        history = History.open(home / "history", HistoryLimits(limit_bytes=1 << 32))
        series = SeriesStore(home / "console" / "series")
        try:
            _Writer(model, history, series, mail).write(messages, days)
        finally:
            series.close()
            history.close()


class _Writer:
    def __init__(
        self, model: Filter, history: History, series: SeriesStore, mail: MadeMail
    ) -> None:
        self._model, self._history, self._series = model, history, series
        self._dice, self._mail = Dice("console", mail.seed), mail
        self._meters = Meters()
        self._pool = [self._pooled(number) for number in range(2 * mail.pool)]
        self._is_spam: dict[bytes, bool] = {}
        """by digest: the truth about each message"""

    def _pooled(self, number: int) -> PoolMessage:
        spam = bool(number % 2)
        doubtful = number >= 2 * TRAINED and self._dice.chance(0.2)
        subject, sender, raw = raw_message(
            self._dice, self._mail.words, spam=spam, doubtful=doubtful
        )
        if self._mail.hostile and number % 16 < 2:
            subject = HOSTILE[number // 16 % len(HOSTILE)]
        return PoolMessage(subject, sender, len(raw), spam, self._model.example(raw))

    def write(self, messages: int, days: int) -> None:
        """Write all days; the last one ends now."""
        begin = time.time_ns() // 1000 - days * DAY_US
        taught = self._pool[: 2 * TRAINED]
        self._teach([
            Learn(one.example, int(one.spam), Source("owner", "cli"), begin) for one in taught
        ])  # fmt: skip
        for day in range(days):
            count = messages * (day + 1) // days - messages * day // days
            self._write_day(begin + day * DAY_US, count, yesterday=day == days - 2)

    def _write_day(self, begin: int, count: int, *, yesterday: bool) -> None:
        model, pool = self._model, self._pool
        with model.store.read() as view:
            verdicts = score_examples(
                model.recipe, model.costs, view, [one.example for one in pool]
            )
        shares = [HOURS[(begin // HOUR_US + hour) % 24] / sum(HOURS) for hour in range(24)]
        for hour, share in enumerate(shares):
            start = begin + hour * HOUR_US
            size = round(count * share)
            entries = [self._entry(start + HOUR_US * at // size, verdicts) for at in range(size)]
            self._history.add(entries)
            self._count(entries)
            self._teach(self._corrections(entries, yesterday=yesterday))
            self._series.add((start + HOUR_US - 1) // 1_000_000, "made", growing(self._meters))

    def _count(self, entries: list[HistoryEntry]) -> None:
        meters, dice = self._meters, self._dice
        for entry in entries:
            meters.count("scanned")
            meters.count("messages")
            meters.count(f"decision_{entry.decision}")
            meters.observe("scan_seconds", 0.004 * 3 ** (3 * dice.roll()))
            meters.observe("upstream_seconds", 0.02 * 4 ** (3 * dice.roll()))
        meters.count("deferred", dice.chance(0.1))
        for reason in ("large", "busy"):
            failed = dice.chance(0.02)
            meters.count("unscanned", failed)
            meters.count(f"unscanned_{reason}", failed)

    def _entry(self, at: int, verdicts: list[Verdict]) -> HistoryEntry:
        number = 2 * self._dice.number(0, len(self._pool) // 2 - 1) + self._dice.chance(0.6)
        made, verdict = self._pool[number], verdicts[number]
        person = self._dice.pick(PEOPLE)
        notes = {
            "to": f"{person}@{DOMAIN}", "client": f"192.0.2.{number % 250 + 1}",
            "from": made.sender, "subject": made.subject, "size": str(made.size),
            "listener": "mx",
        }  # fmt: skip
        notes |= known_note(verdict)
        digest = secrets.token_bytes(len(made.example.digest))
        self._is_spam[digest] = made.spam
        return HistoryEntry(
            time_us=at, signature=secrets.token_bytes(SIGNATURE_BYTES),
            digest=digest, message_id=f"<{secrets.token_hex(6)}@made.example>",
            label=verdict.label, probability=verdict.probability, log_odds=verdict.log_odds,
            decision=verdict.decision, ids=made.example.ids,
            notes={name: text for name, text in notes.items() if text},
        )  # fmt: skip

    def _corrections(self, entries: list[HistoryEntry], *, yesterday: bool) -> list[Learn]:
        """Corrections of the messages of an hour: often of mistakes, seldom of other messages."""
        found = []
        for entry in entries:
            spam = self._is_spam[entry.digest]
            person = entry.notes["to"].partition("@")[0]
            wrong = yesterday and person == CARELESS and self._dice.chance(0.5)
            mistake = spam != (entry.decision in ("junk", "reject"))
            if wrong or self._dice.chance(0.3 if mistake else 0.004):
                channel = self._dice.pick(("folder", "folder", "report", "api"))
                source = Source(f"{person}@{DOMAIN}", channel, immediate=True)
                example = Example(entry.digest, entry.message_id, entry.ids)
                found.append(
                    Learn(example, int(spam != wrong), source, entry.time_us + 20 * 60_000_000)
                )
        return found[:MOST_CORRECTIONS]

    def _teach(self, requests: list[Learn]) -> None:
        for receipt, request in zip(self._model.teach(requests), requests, strict=True):
            assert receipt.error is None, receipt.error
            label = "learned_spam" if request.label else "learned_ham"
            self._meters.count(label, receipt.changed)
            self._meters.observe("learn_seconds", 0.003 * 3 ** (3 * self._dice.roll()))
