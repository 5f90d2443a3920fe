"""From features to verdicts: rows from a snapshot, scores from the model, clues on demand.

A verdict keeps the rows that it came from, so its clues can be asked for later, when the store has
moved on, and still add up to the score that was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamnb.core.decision import Costs
from spamnb.core.event import Recipe, Records, Totals
from spamnb.core.features import distinct
from spamnb.core.model import Floats, View, scores, shares
from spamnb.core.tokens import Place
from spamnb.core.verdict import Clue, Clues, Verdict, judged, sides
from spamnb.service.lessons import Example
from spamnb.service.reading import Portion
from spamnb.store.contract import ReadView

WordOf = Callable[[int], tuple[Place, bytes]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """What some verdicts have in common."""

    recipe: Recipe
    totals: Totals
    records: Records
    view: View
    word: WordOf

    def explain(self, index: int, for_against: tuple[int, int]) -> Clues:
        """The clues of one message, strongest first."""
        start, stop = int(self.view.offsets[index]), int(self.view.offsets[index + 1])
        rows = self.view.rows[start:stop]
        times = None if self.view.times is None else self.view.times[start:stop]
        records = _taken(self.records, rows)
        G = self.recipe.groups
        sizes = self.view.sizes[index * G : (index + 1) * G]
        alone = View(np.arange(len(rows)), np.array([0, len(rows)]), sizes, times)
        nats, bias = shares(self.recipe, self.totals, records, alone, for_against)
        clues = []
        for entry in np.argsort(-np.abs(nats), kind="stable").tolist():
            place, text = self.word(int(rows[entry]))
            token = text.decode("utf-8", "replace")
            clues.append(Clue(place.name.lower(), token, float(nats[entry])))
        return Clues(tuple(clues), bias)


def judge_portions(
    recipe: Recipe, costs: Costs, snapshot: ReadView, portions: Sequence[Portion]
) -> list[Verdict]:
    """Our word on messages, portion after portion.

    Rows are gathered for all portions at once: 64 messages touch nearly every shelf of a small
    store, so that gathering for each portion cost 58 us a message, and for eight together 12.
    """
    ids, places = distinct([portion.features.ids for portion in portions])
    held, totals = snapshot.gather(ids), snapshot.totals()
    verdicts: list[Verdict] = []
    alone = len(portions) == 1
    for portion, at in zip(portions, places, strict=True):
        features = portion.features
        times = features.times if recipe.occurrences else None
        view = View(features.rows, features.offsets, features.sizes, times)
        records = held if alone else _taken(held, at)
        rows = _Rows(recipe, totals, records, view, features.word)
        names = [(message.digest, message.message_id) for message in portion.messages]
        verdicts += _verdicts(rows, costs, names)
    return verdicts


def _taken(records: Records, rows: NDArray[np.integer[Any]]) -> Records:
    """Some rows; `take` needs a tenth of the time of an index."""
    return Records(records.n.take(rows, 0), records.w.take(rows, 0), records.day.take(rows))


def judge_examples(
    recipe: Recipe, costs: Costs, snapshot: ReadView, examples: Sequence[Example]
) -> list[Verdict]:
    """Our word on messages of which only the ids are left; texts come from the vocabulary."""
    flat = [part for example in examples for part in example.ids]
    ids, places = distinct(flat)
    rows_of = np.concatenate(places) if places else np.zeros(0, np.int64)
    sizes = [sum(len(part) for part in example.ids) for example in examples]
    times = [example.times for example in examples if example.times is not None]
    view = View(
        rows_of.astype(np.int64),
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        np.array([len(part) for part in flat], np.int64),
        np.concatenate(times) if times and recipe.occurrences else None,
    )
    texts = snapshot.words(ids)

    def word(row: int) -> tuple[Place, bytes]:
        found = texts[row]
        return (Place(found.place), found.text) if found else (Place.MARK, b"%016x" % int(ids[row]))

    rows = _Rows(recipe, snapshot.totals(), snapshot.gather(ids), view, word)
    return _verdicts(rows, costs, [(example.digest, example.message_id) for example in examples])


def _verdicts(rows: _Rows, costs: Costs, names: list[tuple[bytes, str]]) -> list[Verdict]:
    labels = rows.recipe.labels
    z = scores(rows.recipe, rows.totals, rows.records, rows.view)
    P, decisions = judged(labels, z, costs)
    share = _known_share(rows.records, rows.view)
    evidence = (share * rows.totals.messages.min()).tolist()
    spam = labels.index("spam") if "spam" in labels else None
    winners = P.argmax(axis=1).tolist()
    found = []
    for index, (digest, message_id) in enumerate(names):
        for_against = sides(labels, z[index])
        s, h = for_against
        found.append(
            Verdict(
                label=labels[winners[index]],
                probability=float(P[index, winners[index] if spam is None else spam]),
                log_odds=float(z[index, s] - z[index, h]),
                decision=decisions[index],
                evidence=evidence[index],
                labels=labels,
                z=tuple(z[index].tolist()),
                digest=digest,
                message_id=message_id,
                _explain=_Explanation(rows, index, for_against),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _Explanation:
    """Clues that nobody asked for yet."""

    rows: _Rows
    index: int
    for_against: tuple[int, int]

    def __call__(self) -> Clues:
        return self.rows.explain(self.index, self.for_against)


def _known_share(records: Records, view: View) -> Floats:
    """Which part of each message's features is known."""
    seen = reduce(np.bitwise_or, records.n.T) != 0
    known = np.zeros(len(view.rows) + 1, np.int64)
    seen.take(view.rows).cumsum(out=known[1:])
    start, stop = view.offsets[:-1], view.offsets[1:]
    return np.asarray((known.take(stop) - known.take(start)) / np.maximum(stop - start, 1))
