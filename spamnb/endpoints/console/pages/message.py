"""The page of a message: what was decided, why, what has changed since, and how to correct it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.pages.page import PageRequest, PageView, ask, owned
from spamnb.endpoints.console.pages.senders import sender_view
from spamnb.endpoints.console.site import ConsoleSite

_TRIED: Final = 12
"""clues for which the page says what the verdict would be without that clue"""
_SHOWN: Final = 20
_INFLUENCES: Final = 10
_HALF: Final = 60
"""units of the drawing to the left and to the right of the middle of a bar"""


class ClueRow(NamedTuple):
    """One clue, its bar, and the verdict without the clue if it was computed."""

    location: str
    token: str
    nats: float
    start: float
    """where its bar begins, from 0 to 2 * `_HALF`"""
    length: float
    without: Mapping[str, Any] | None
    prior: bool


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show one message."""
    signature = request.values["signature"]
    caller, found = owned(site, request.visitor, signature)
    person = found["person"] or ""
    explained = ask(site, caller, "explain", ref=signature, without=_TRIED, person=person)
    outcomes = [
        one for one in site.events.recent("verdict") if one["signature"] == signature
    ]  # fmt: skip
    with site.reading() as model:
        labels = model.labels
    return PageView(
        "message",
        {
            "found": found,
            "labels": labels,
            "outcome": outcomes[-1] if outcomes else None,
            "clues": clue_rows(explained["clues"][:_SHOWN], explained["without"]),
            "half": _HALF,
            "more": max(len(explained["clues"]) - _SHOWN, 0),
            "rest": sum(clue["nats"] for clue in explained["clues"][_SHOWN:]),
            "bias": explained["bias"],
            "deciding": deciding(explained["without"], found["now"]["decision"]),
            "evidence": explained["evidence"],
            "novelty": explained.get("novelty"),
            "sender": sender_view(site, request, caller, found["notes"]),
            "sees_all": request.visitor.role != "user",
        },
    )


def clue_rows(
    clues: Sequence[Mapping[str, Any]], without: Sequence[Mapping[str, Any]]
) -> list[ClueRow]:
    """Return clues with their bars, whose lengths are relative to the strongest."""
    strongest = max((abs(clue["nats"]) for clue in clues), default=0.0) or 1.0
    rows = []
    for index, clue in enumerate(clues):
        length = _HALF * abs(clue["nats"]) / strongest
        start = _HALF if clue["nats"] > 0 else _HALF - length
        other = without[index] if index < len(without) else None
        place, token, nats, prior = clue["location"], clue["token"], clue["nats"], clue["prior"]
        rows.append(ClueRow(place, token, nats, start, length, other, prior))
    return rows


def deciding(without: Sequence[Mapping[str, Any]], decision: str) -> Mapping[str, Any] | None:
    """Return the strongest clue without which the decision would be different."""
    return next((one for one in without if one["decision"] != decision), None)


def show_influence(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the trainings that moved the score of a message most."""
    signature = request.values["signature"]
    (caller,) = request.visitor.callers()
    found = ask(site, caller, "verdict", signature=signature)
    influence = ask(site, caller, "influence", signature=signature, limit=_INFLUENCES)
    return PageView("influence", {"found": found, "influence": influence})
