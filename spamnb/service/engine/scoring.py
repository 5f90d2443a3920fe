"""Compute verdicts from features and the rows of a snapshot.

A verdict keeps the rows that it was computed from. Its clues can therefore be computed later, when
the store has changed, and still add up to the score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.features.clue_texts import location_shown, text_shown
from spamnb.core.features.extract import Key, distinct, id_of
from spamnb.core.features.locations import TokenLocation
from spamnb.core.features.tokens import mark_of
from spamnb.core.mail.marks import PARTLY
from spamnb.core.model.costs import Costs, Decision, roles_of
from spamnb.core.model.decision import at_least, spam_log_odds
from spamnb.core.model.events import Ids, Recipe, Records, Totals
from spamnb.core.model.novelty import FEWEST, USUAL, Novelty, novelty, reason_of
from spamnb.core.model.scoring import RowView, scores, shares, softmax
from spamnb.core.model.site_threshold import SHIPPED, decide_stretched, stretch_factor
from spamnb.core.model.verdict import Clue, Clues, Verdict, sides
from spamnb.service.engine.extraction import FeatureBatch
from spamnb.service.engine.requests import Example
from spamnb.service.engine.site_scores import has_threshold
from spamnb.store.contract import ReadView

PARTLY_READ = "partly-read"
WordOf = Callable[[int], tuple[TokenLocation, bytes]]


class _Rows(NamedTuple):
    """The data that the verdicts of one batch share."""

    recipe: Recipe
    totals: Totals
    records: Records
    view: RowView
    word: WordOf | None
    """None if no clues are needed"""
    partly: frozenset[int]
    """indexes of the messages that were parsed only in part"""
    threshold: float = SHIPPED
    """of junk, in nats"""

    def explain(
        self, word: WordOf, index: int, for_against: tuple[int, int], count: int | None
    ) -> Clues:
        """Return the strongest clues of one message; `count` None returns all."""
        found = self.strongest(index, for_against)
        clues = [self.clue(word, row, nats) for row, nats in found.features[:count]]
        return Clues(tuple(clues), found.bias, len(found.features))

    def clue(self, word: WordOf, row: int, nats: float) -> Clue:
        """Return the clue of a row."""
        return clue_of(word(row), nats, self.records.n[row], self.records.w[row])

    def strongest(self, index: int, for_against: tuple[int, int]) -> _Shares:
        """Return the share of each feature of a message, the strongest first."""
        start, stop = int(self.view.offsets[index]), int(self.view.offsets[index + 1])
        rows = self.view.rows[start:stop]
        times = None if self.view.times is None else self.view.times[start:stop]
        records = _selected(self.records, rows)
        G = self.recipe.groups
        sizes = self.view.sizes[index * G : (index + 1) * G]
        alone = RowView(np.arange(len(rows)), np.array([0, len(rows)]), sizes, times)
        nats, bias = shares(self.recipe, self.totals, records, alone, for_against)
        (new,) = novelties(self.recipe, self.totals, records, alone)
        threshold = self.threshold + new.nats
        factor = stretch_factor(float(nats.sum()) + bias, threshold)
        nats, bias = nats * factor, bias * factor
        order = np.argsort(-np.abs(nats), kind="stable")
        return _Shares(list(zip(rows[order].tolist(), nats[order].tolist(), strict=True)), bias)


class _Shares(NamedTuple):
    """What each feature of a message adds to its log-odds."""

    features: list[tuple[int, float]]
    """row and nats"""
    bias: float


def clue_of(
    word: tuple[TokenLocation, bytes],
    nats: float,
    counts: NDArray[Any],
    corrections: NDArray[Any],
) -> Clue:
    """Return the clue of a feature with these numbers of the shared model."""
    prior = not counts.any() and bool(corrections.any())
    return Clue(location_shown(word[0]), text_shown(*word), nats, prior)


def score_batches(
    recipe: Recipe,
    costs: Costs,
    snapshot: ReadView,
    feature_batches: Sequence[FeatureBatch],
    threshold: float = SHIPPED,
) -> list[Verdict]:
    """Return the verdicts on several batches of messages, with the junk threshold of the site.

    Rows are read for all batches in one call, because messages share features: with a million
    features, reading takes 45 us a message for each batch of 64, and 26 us for eight together.
    """
    totals = snapshot.totals()
    verdicts: list[Verdict] = []
    for feature_batch, records in zip(
        feature_batches, _gathered(snapshot, feature_batches), strict=True
    ):
        features = feature_batch.features
        times = features.times if recipe.occurrences else None
        view = RowView(features.rows, features.offsets, features.sizes, times)
        partly = frozenset(i for i, m in enumerate(feature_batch.messages) if PARTLY in m.oddities)
        rows = _Rows(recipe, totals, records, view, features.word, partly, threshold)
        names = [(message.digest, message.message_id) for message in feature_batch.messages]
        verdicts += _verdicts(rows, costs, names)
    return verdicts


@lru_cache(maxsize=8)
def _partly_id(secret: bytes) -> int:
    return id_of(Key(secret), TokenLocation.MARK, mark_of(PARTLY).encode("ascii"))


def _partly(recipe: Recipe, ids: Ids, view: RowView) -> frozenset[int]:
    """Return the messages that were parsed only in part: a feature marks them."""
    wanted = _partly_id(recipe.key)
    row = int(ids.searchsorted(np.uint64(wanted)))
    if row == len(ids) or int(ids[row]) != wanted:
        return frozenset()
    at = (view.rows == row).nonzero()[0]
    return frozenset((view.offsets.searchsorted(at, "right") - 1).tolist())


def _gathered(snapshot: ReadView, feature_batches: Sequence[FeatureBatch]) -> list[Records]:
    """Return the rows of each batch's features."""
    every = [feature_batch.features.ids for feature_batch in feature_batches]
    if len(every) == 1:
        return [snapshot.gather(every[0])]
    ids, places = distinct(every)
    records = snapshot.gather(ids)
    return [_selected(records, rows) for rows in places]


def _selected(records: Records, rows: NDArray[np.integer[Any]]) -> Records:
    """Return the records of these rows; `take` needs a tenth of the time of an index."""
    return Records(records.n.take(rows, 0), records.w.take(rows, 0), records.day.take(rows))


def score_examples(  # noqa: PLR0913 - model, messages, threshold
    recipe: Recipe,
    costs: Costs,
    snapshot: ReadView,
    examples: Sequence[Example],
    *,
    explained: bool = False,
    threshold: float = SHIPPED,
) -> list[Verdict]:
    """Return the verdicts on messages of which only ids are known.

    They have clues only with `explained`, because looking up the texts takes half of the time.
    """
    rows, _ = _rows_of(recipe, snapshot, examples, explained=explained)
    rows = rows._replace(threshold=threshold)
    return _verdicts(rows, costs, [(example.digest, example.message_id) for example in examples])


def score_without(  # noqa: PLR0913, PLR0917 - model, message, threshold
    recipe: Recipe,
    costs: Costs,
    snapshot: ReadView,
    example: Example,
    count: int,
    threshold: float = SHIPPED,
) -> list[tuple[Clue, Verdict]]:
    """Return the strongest clues of a message, and the verdict on it without each one."""
    rows, ids = _rows_of(recipe, snapshot, [example], explained=True)
    rows = rows._replace(threshold=threshold)
    (verdict,) = _verdicts(rows, costs, [(example.digest, example.message_id)])
    assert rows.word is not None, "it is explained"
    found = rows.strongest(0, sides(recipe.labels, verdict.z)).features[:count]
    others = [lacking(example, ids[row]) for row, _ in found]
    verdicts = score_examples(recipe, costs, snapshot, others, threshold=threshold)
    clues = [rows.clue(rows.word, row, nats) for row, nats in found]
    return list(zip(clues, verdicts, strict=True))


def lacking(example: Example, id_: np.uint64) -> Example:
    """Return a message without one feature."""
    kept = [part != id_ for part in example.ids]
    times = None if example.times is None else example.times[np.concatenate(kept)]
    ids = tuple(part[keep] for part, keep in zip(example.ids, kept, strict=True))
    return example._replace(ids=ids, times=times)


def _rows_of(
    recipe: Recipe, snapshot: ReadView, examples: Sequence[Example], *, explained: bool
) -> tuple[_Rows, Ids]:
    """Return what the verdicts on these messages need, and the ids of its rows."""
    flat = [part for example in examples for part in example.ids]
    ids, places = distinct(flat)
    rows_of = np.concatenate(places) if places else np.zeros(0, np.int64)
    sizes = [sum(len(part) for part in example.ids) for example in examples]
    times = [example.times for example in examples if example.times is not None]
    view = RowView(
        rows_of.astype(np.int64),
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        np.array([len(part) for part in flat], np.int64),
        np.concatenate(times) if times and recipe.occurrences else None,
    )
    word = looked_up(snapshot, ids) if explained else None
    partly = _partly(recipe, ids, view)
    return _Rows(recipe, snapshot.totals(), snapshot.gather(ids), view, word, partly), ids


def looked_up(snapshot: ReadView, ids: Ids) -> WordOf:
    """Return the texts of features, by row, as the vocabulary has them."""
    texts = snapshot.words(ids)

    def word(row: int) -> tuple[TokenLocation, bytes]:
        found = texts[row]
        return (
            (TokenLocation(found.location), found.text)
            if found
            else (TokenLocation.MARK, b"%016x" % int(ids[row]))
        )

    return word


def _verdicts(rows: _Rows, costs: Costs, names: list[tuple[bytes, str]]) -> list[Verdict]:
    labels = rows.recipe.labels
    every = scores(rows.recipe, rows.totals, rows.records, rows.view).tolist()
    known = _known_shares(rows.records, rows.view)
    new = novelties(rows.recipe, rows.totals, rows.records, rows.view)
    least = min(rows.totals.messages.tolist())
    roles = roles_of(labels)
    spam = labels.index("spam") if "spam" in labels else None
    found = []
    for index, ((digest, message_id), z) in enumerate(zip(names, every, strict=True)):
        threshold = rows.threshold + new[index].nats
        log_odds = spam_log_odds(z, roles)
        if threshold != SHIPPED:
            factor = stretch_factor(log_odds, threshold)
            z = [factor * score for score in z]  # noqa: PLW2901 - the scores of the verdict
        P = softmax(z)
        decision = decide_stretched(spam_log_odds(z, roles), threshold, costs)
        winner = P.index(max(P))
        for_against = sides(labels, z)
        s, h = for_against
        reason = PARTLY_READ if index in rows.partly else ""
        if new[index].nats:
            reason = reason or reason_of(decision, log_odds, rows.threshold, costs)
        found.append(
            Verdict(
                label=labels[winner],
                probability=P[winner if spam is None else spam],
                log_odds=z[s] - z[h],
                decision=limited(decision, reason),
                evidence=known[index] * least,
                labels=labels,
                z=tuple(z),
                known=known[index],
                threshold=threshold,
                novelty=new[index],
                digest=digest,
                message_id=message_id,
                reason=reason,
                _explain=rows.word and _Explanation(rows, rows.word, index, for_against),
            )
        )
    return found


def limited(decision: Decision, reason: str) -> Decision:
    """Return the decision on a message, at least unsure if it was read only in part."""
    return at_least(decision, "unsure") if reason == PARTLY_READ else decision


@dataclass(frozen=True, slots=True)
class _Explanation:
    """Computes the clues of one verdict on request."""

    rows: _Rows
    word: WordOf
    index: int
    for_against: tuple[int, int]

    def __call__(self, count: int | None) -> Clues:
        return self.rows.explain(self.word, self.index, self.for_against, count)


def _known_shares(records: Records, view: RowView) -> list[float]:
    """Return the fraction of each message's features that the model knows."""
    known = (reduce(np.bitwise_or, records.n.T) != 0).take(view.rows).tobytes()
    spans = pairwise(view.offsets.tolist())
    return [known.count(1, a, b) / max(b - a, 1) for a, b in spans]


def novelties(recipe: Recipe, totals: Totals, records: Records, view: RowView) -> list[Novelty]:
    """Return how new the kind of each message is."""
    ham = recipe.labels.index("ham") if has_threshold(recipe) else None
    taught = 0 if ham is None else int(totals.messages[ham])
    if taught < FEWEST:
        return [USUAL] * (len(view.offsets) - 1)
    of_ham = (records.n[:, ham] != 0).take(view.rows).tobytes()
    # Transport is the last group.
    sizes = view.sizes[recipe.groups - 1 :: recipe.groups].tolist()
    stops = view.offsets[1:].tolist()
    return [
        novelty(of_ham.count(1, stop - size, stop) / size if size else 1.0, taught)
        for size, stop in zip(sizes, stops, strict=True)
    ]
