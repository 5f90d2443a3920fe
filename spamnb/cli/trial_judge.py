"""Ask for the labels of drawn messages, on which both filters differ."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spamnb.cli.correct import show
from spamnb.cli.daemon_client import checked, teacher
from spamnb.cli.keys import QUIT, typed_keys
from spamnb.cli.printing import safe, say, say_json, table
from spamnb.cli.session import CliSession
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.lab.side_by_side.answers import AnswerFile
    from spamnb.lab.side_by_side.records import PairedVerdict, Truth
    from spamnb.lab.side_by_side.sampling import Stratum
    from spamnb.service.engine.receipt import Receipt
    from spamnb.service.training.sources import MessageSpan

_KEYS = "[h]am, [s]pam, [n]ext, [u]ndo, [q]uit? "
_TRUTHS: dict[str, Truth] = {"h": "ham", "s": "spam"}
_LINES = 12
"""of the text of a message"""
_WIDTH = 100

Look = Callable[["PairedVerdict"], Iterable[tuple[str, str]]]
"""returns names and values by which a user recognises a message"""


def drawn_strata(
    pairs: Sequence[PairedVerdict], answers: AnswerFile, sample: int
) -> tuple[Stratum, ...]:
    """Return the sample that the report draws."""
    from spamnb.lab.side_by_side.report import TrialContext, report_of

    return report_of(pairs, TrialContext(answers=answers.answers, sample=sample)).strata


def look_into(spans: dict[str, MessageSpan]) -> Look:
    """Return a function that reads a message by its name: some fields, and how its text begins."""
    from spamnb.core.mail.message import read
    from spamnb.service.training.sources import SourceMessage, read_unit

    def look(one: PairedVerdict) -> list[tuple[str, str]]:
        found = read_unit(spans[one.name])
        if not isinstance(found, SourceMessage):
            return [("message", f"{one.name} cannot be read")]
        message = read(found.raw)
        rows = [
            (name.decode(), _text(value))
            for name, value in message.headers
            if name in (b"date", b"from", b"to", b"subject")
        ]
        texts = [_text(part.text) for part in message.parts]
        lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
        return [*rows, *(("", line) for line in lines[:_LINES])]

    return look


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def list_drawn(strata: Sequence[Stratum], answers: AnswerFile) -> None:
    known = answers.answers
    for stratum in strata:
        for one in stratum.drawn:
            say_json({
                "id": one.ident, "name": one.name, "weight": round(stratum.weight, 3),
                "own": stratum.own, "other": stratum.other, "answer": known.get(one.ident),
                **dict(one.facts),
            })  # fmt: skip


def require_terminal(*, as_json: bool) -> None:
    """Raise UserError without a terminal, where no user can be asked for labels."""
    if as_json:
        raise UserError("--judge prints no JSON", hint="judge first, then run it with --json alone")
    if not sys.stdin.isatty():
        raise UserError(
            "labels can only be asked for on a terminal", hint="list the messages with --json"
        )


def ask_all(
    strata: Sequence[Stratum], answers: AnswerFile, look: Look, taught: CliSession | None = None
) -> None:
    """Ask for the label of each drawn message that has none, in the order of their ids."""
    drawn = sorted((one for row in strata for one in row.drawn), key=lambda one: one.ident)
    known = answers.answers
    waiting = [one for one in drawn if one.ident not in known]
    at = 0
    given: list[tuple[int, Receipt | None]] = []
    with typed_keys() as next_key:
        while at < len(waiting):
            one = waiting[at]
            say(f"{at + 1} of {len(waiting)}: {safe(one.name)}")
            table([(f"  {name}", safe(value)[:_WIDTH]) for name, value in look(one)])
            key = next_key(_KEYS)
            if key == QUIT:
                break
            if key == "u":
                at = _take_back(answers, given, taught, at)
                continue
            if key in _TRUTHS:
                # The label is learnt first: if that fails, the user is asked again.
                receipt = _teach(taught, one, _TRUTHS[key])
                answers.add(_TRUTHS[key], one.ident)
                given.append((at, receipt))
            at += 1
    answered = sum(one.ident in answers.answers for one in drawn)
    say(f"{answered} of {len(drawn)} drawn messages have a label, in {safe(str(answers.path))}")


def _teach(session: CliSession | None, one: PairedVerdict, label: Truth) -> Receipt | None:
    """Train with the label if the user wants it; return the receipt."""
    if session is None:
        return None
    with teacher(session) as (target, me):
        answer = checked(target.teach(replace(me, label=label, refs=(one.ident,))))
    show(one.name, answer, as_json=False)
    return answer.receipt


def _take_back(
    answers: AnswerFile,
    given: list[tuple[int, Receipt | None]],
    session: CliSession | None,
    at: int,
) -> int:
    """Remove the last answer of this session, and undo its event; return the message's place."""
    if not given:
        say("there is no label of this session to undo")
        return at
    at, receipt = given.pop()
    answers.remove_last()
    if session is not None and receipt is not None and (receipt.event or receipt.waiting):
        with teacher(session) as (target, me):
            number = receipt.waiting or receipt.event
            checked(target.undo(number, me, waiting=bool(receipt.waiting)))
    return at
