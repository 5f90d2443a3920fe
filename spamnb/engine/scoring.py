"""Score messages, for the site and for persons.

`MessageReader` parses messages and extracts their features in batches, `score_batches` computes
verdicts from features and the rows of a snapshot, and `personal_verdicts` gives those of single
persons.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.engine.site_scores import has_threshold
from spamnb.engine.values import Example, SharedIds
from spamnb.mail import limits
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.limits import PARTLY
from spamnb.mail.message import Message, read, read_document, text_of
from spamnb.model.costs import Costs, Decision, OwnCosts, roles_of
from spamnb.model.events import Blocks, Ids, Recipe, Records, Totals
from spamnb.model.features import Features, Key, distinct, extract, id_of
from spamnb.model.persons import (
    CorrectionReader,
    PersonalMessage,
    PersonalShares,
    personal_scores,
    personal_shares,
    places_of,
)
from spamnb.model.scoring import (
    Passage,
    RowView,
    maturity,
    predict,
    scores,
    shares,
    softmax,
    spam_log_odds,
)
from spamnb.model.smoothing import Floats
from spamnb.model.tokens import (
    TokenLocation,
    digest_field,
    document,
    fields,
    location_shown,
    mark_of,
    text_shown,
)
from spamnb.model.verdict import (
    FEWEST,
    SHIPPED,
    USUAL,
    Clue,
    Clues,
    Novelty,
    Verdict,
    at_least,
    decide_stretched,
    novelty,
    plain,
    reason_of,
    sides,
    stretch_factor,
)
from spamnb.store.table_views import ReadView

PARTLY_READ_FIELD = TokenLocation.MARK, b"", mark_of(PARTLY).encode("ascii")
BATCH_MESSAGES = 64
BATCH_BYTES = 1_048_576


class FeatureBatch(NamedTuple):
    """Parsed messages and their features."""

    messages: list[Message]
    features: Features

    def example(self, index: int) -> Example:
        """The digest, Message-ID and feature ids of one message."""
        message = self.messages[index]
        return Example(
            message.digest,
            message.message_id,
            self.features.by_group(index),
            blocks=self.features.blocks_of(index),
        )


class MessageReader:
    """Parses messages and extracts features under the key of one model.

    Batches stay small enough for the processor's cache: the features of parsed messages take 70 us
    a message in a batch of 64, 110 us in a batch of 256, and 200 us alone.
    """

    def __init__(
        self, secret: bytes, local: LocalHosts | None = None, *, documents: bool = False
    ) -> None:
        self._key = Key(secret)
        self.local = (local or LocalHosts()).keyed(secret)
        """the names of the site, with the key that proves its results"""
        self._documents = documents

    def feature_batch(self, raws: Sequence[bytes]) -> FeatureBatch:
        """Return these messages, parsed as one batch."""
        if self._documents:
            documents = [read_document(raw) for raw in raws]
            texts = [document(text_of(r), d.digest) for r, d in zip(raws, documents, strict=True)]
            return FeatureBatch(documents, extract(self._key, texts))
        messages = [read(raw, self.local) for raw in raws]
        every = [fields(message) for message in messages]
        found = extract(self._key, every)
        large = found.beyond(limits.FEATURES)
        if not large:
            return FeatureBatch(messages, found)
        for message in large:
            every[message].append(PARTLY_READ_FIELD)
        # Kept in any case: corrections need the message's own id, the decision needs the mark.
        owned = [digest_field(message.digest) for message in messages]
        always = extract(self._key, [[*owned, PARTLY_READ_FIELD]]).ids
        return FeatureBatch(messages, extract(self._key, every).bounded(limits.FEATURES, always))

    def feature_batches(self, raws: Iterable[bytes]) -> Iterator[FeatureBatch]:
        """Yield any number of messages, parsed in batches of bounded size."""
        pending: list[bytes] = []
        size = 0
        for raw in raws:
            pending.append(raw)
            size += len(raw)
            if len(pending) == BATCH_MESSAGES or size >= BATCH_BYTES:
                yield self.feature_batch(pending)
                pending, size = [], 0
        if pending:
            yield self.feature_batch(pending)


def example_of(message: Message, features: Features, index: int, recipe: Recipe) -> Example:
    """Return one message of a batch as the model sees it."""
    return Example(
        digest=message.digest,
        message_id=message.message_id,
        ids=features.by_group(index),
        times=features.times_of(index) if recipe.occurrences else None,
        words=features,
        shared_ids=SharedIds(features.ids, features.of(index)),
        blocks=features.blocks_of(index) if recipe.kind == "corrected" else None,
    )


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
        clues = [self.clue(word, found, row, nats) for row, nats in found.features[:count]]
        return Clues(tuple(clues), found.bias, len(found.features), found.passage)

    def clue(self, word: WordOf, found: _Shares, row: int, nats: float) -> Clue:
        """Return the clue of a row, or that of the strongest passage."""
        if row == PASSAGE_ROW:
            return passage_clue([word(one) for one in found.words], nats)
        return clue_of(word(row), nats, self.records.n[row], self.records.w[row])

    def strongest(self, index: int, for_against: tuple[int, int]) -> _Shares:
        """Return the share of each feature of a message, the strongest first."""
        start, stop = int(self.view.offsets[index]), int(self.view.offsets[index + 1])
        rows = self.view.rows[start:stop]
        times = None if self.view.times is None else self.view.times[start:stop]
        records = _selected(self.records, rows)
        G = self.recipe.groups
        sizes = self.view.sizes[index * G : (index + 1) * G]
        blocks = None if self.view.blocks is None else self.view.blocks[start:stop]
        alone = RowView(np.arange(len(rows)), np.array([0, len(rows)]), sizes, times, blocks)
        found = shares(self.recipe, self.totals, records, alone, for_against)
        (new,) = novelties(self.recipe, self.totals, records, alone)
        threshold = self.threshold + new.nats
        whole = float(found.entries.sum()) + found.bias + found.raise_
        factor = stretch_factor(whole, threshold)
        entries, nats = _strongest_first(found.entries * factor, found.raise_ * factor)
        named = [PASSAGE_ROW if entry < 0 else int(rows[entry]) for entry in entries.tolist()]
        words = rows[_words_of(found.passage, blocks, found.entries)] if found.raise_ else ()
        return _Shares(
            list(zip(named, nats.tolist(), strict=True)),
            found.bias * factor,
            found.passage if found.raise_ else None,
            list(words),
        )


class _Shares(NamedTuple):
    """What each feature of a message adds to its log-odds."""

    features: list[tuple[int, float]]
    """row and nats; PASSAGE_ROW for what the strongest passage adds"""
    bias: float
    passage: Passage | None
    """None if it adds nothing"""
    words: list[int]
    """rows of its strongest words"""


PASSAGE_ROW = -1
PASSAGE_WORDS = 8
"""The strongest words of a passage that its clue names."""
_PASSAGE_FEATURES = 3 * PASSAGE_WORDS
"""Its strongest features: the same word in capitals is another one."""


def _strongest_first(nats: Floats, raise_: float) -> tuple[NDArray[np.intp], Floats]:
    """Return the entries of a message and their nats; -1 is its strongest passage."""
    entries = np.arange(len(nats))
    if raise_:
        entries, nats = np.append(entries, -1), np.append(nats, raise_)
    order = np.argsort(-np.abs(nats), kind="stable")
    return entries[order], nats[order]


def _words_of(passage: Passage, blocks: Blocks | None, nats: Floats) -> NDArray[np.intp]:
    """Return the entries of the strongest words of a passage."""
    if blocks is None:
        return np.zeros(0, np.intp)
    inside = (blocks >= passage.first) & (blocks < passage.first + passage.blocks)
    entries = inside.nonzero()[0]
    return entries[np.argsort(-nats[entries], kind="stable")[:_PASSAGE_FEATURES]]


def passage_clue(words: Sequence[tuple[TokenLocation, bytes]], nats: float) -> Clue:
    """Return the clue of the strongest passage of a message: its strongest words, each once."""
    read = [word for word in words if word[0] is TokenLocation.BODY] or words
    texts = {text.casefold(): text for text in (text_shown(*word) for word in read)}
    shown = " ".join(itertools.islice(texts.values(), PASSAGE_WORDS))
    return Clue(location_shown(TokenLocation.PASSAGE), shown, nats)


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

    A verdict keeps the rows that it was computed from. Its clues can therefore be computed later,
    when the store has changed, and still add up to the score.
    """
    totals = snapshot.totals()
    verdicts: list[Verdict] = []
    for feature_batch, records in zip(
        feature_batches, _gathered(snapshot, feature_batches), strict=True
    ):
        features = feature_batch.features
        times = features.times if recipe.occurrences else None
        view = RowView(features.rows, features.offsets, features.sizes, times, features.blocks)
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
    strongest = rows.strongest(0, sides(recipe.labels, verdict.z))
    found = [(row, nats) for row, nats in strongest.features if row != PASSAGE_ROW][:count]
    others = [lacking(example, ids[row]) for row, _ in found]
    verdicts = score_examples(recipe, costs, snapshot, others, threshold=threshold)
    clues = [rows.clue(rows.word, strongest, row, nats) for row, nats in found]
    return list(zip(clues, verdicts, strict=True))


def lacking(example: Example, id_: np.uint64) -> Example:
    """Return a message without one feature."""
    kept = [part != id_ for part in example.ids]
    every = np.concatenate(kept)
    times = None if example.times is None else example.times[every]
    blocks = None if example.blocks is None else example.blocks[every]
    ids = tuple(part[keep] for part, keep in zip(example.ids, kept, strict=True))
    return example._replace(ids=ids, times=times, blocks=blocks)


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
        _blocks(examples, sizes),
    )
    word = looked_up(snapshot, ids) if explained else None
    partly = _partly(recipe, ids, view)
    return _Rows(recipe, snapshot.totals(), snapshot.gather(ids), view, word, partly), ids


def _blocks(examples: Sequence[Example], sizes: Sequence[int]) -> Blocks | None:
    """Return the blocks of some messages; those of a message with a single one are 0."""
    if all(example.blocks is None for example in examples):
        return None
    return np.concatenate([
        np.zeros(size, np.uint8) if example.blocks is None else example.blocks
        for example, size in zip(examples, sizes, strict=True)
    ])  # fmt: skip


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


AT_ONCE = 32
"""persons whose corrections of a message are summed in one call: 32 lines of a long message fit in
a processor's cache"""


def personal_verdicts(  # noqa: PLR0913 - model, message, persons
    recipe: Recipe,
    costs: Costs,
    view: ReadView,
    given: tuple[Verdict, Example],
    persons: Iterable[int],
    *,
    explained: bool = False,
) -> dict[int, Verdict]:
    """Return the verdict for each of these persons that has corrections.

    A person without corrections gets the shared verdict itself. The rows of the message are read
    once, whatever the number of its persons. `with_costs` decides again for a recipient with own
    costs.
    """
    verdict, example = given
    # A few at a time: a thousand at once would take 64 MB, and most of the time.
    each = ((person, view.personal(person)) for person in persons)
    found = ((person, personal) for person, personal in each if personal is not None)
    first = next(found, None) if recipe.kind == "corrected" else None
    if first is None:
        return {}
    every = np.concatenate(example.ids)
    ids, rows = np.unique(every, return_inverse=True)
    records, totals = view.gather(ids), view.totals()
    cells = np.concatenate((records.n.T, records.w.T), dtype=np.float64).take(rows, axis=1)
    sizes = tuple(len(part) for part in example.ids)
    seen = predict(recipe, totals, cells, sizes, example.blocks)
    shared = seen, maturity(totals)
    word = looked_up(view, ids) if explained else None
    verdicts: dict[int, Verdict] = {}
    every_person, reader = chain([first], found), CorrectionReader(len(recipe.labels))
    while some := list(islice(every_person, AT_ONCE)):
        places = places_of(np.array([[person] for person, _ in some], np.uint64), every)
        lines = [reader.at(filled, own) for (_, filled), own in zip(some, places, strict=True)]
        z = personal_scores(*shared, np.stack(lines), sizes).tolist()
        made = _verdicts_of_persons(recipe, costs, verdict, z)
        verdicts |= {person: one for (person, _), one in zip(some, made, strict=True)}
        if word is None:
            continue
        for (person, filled), own in zip(some, places, strict=True):
            message = PersonalMessage(*shared, sizes, own, filled.spread())
            parts = _Parts(recipe, totals, cells, message, word, rows, example.blocks)
            verdicts[person] = _explained(verdicts[person], parts)
    return verdicts


def with_costs(verdict: Verdict, own: OwnCosts | None) -> Verdict:
    """Return the verdict with the decision by these costs; the verdict itself for None."""
    if own is None:
        return verdict
    log_odds, threshold = verdict.spam_log_odds, verdict.threshold
    decision = decide_stretched(log_odds, threshold, own.costs)
    reason = _reason(verdict, decision, plain(log_odds, threshold), own.costs)
    return replace(verdict, decision=limited(decision, reason), reason=reason, own_costs=own)


def personal_without(
    model: tuple[Recipe, Costs, float], view: ReadView, example: Example, person: int, count: int
) -> list[tuple[Clue, Verdict]] | None:
    """Return the strongest clues for a person, and the person's verdict without each one.

    None if the person has no corrections. The model comes with the junk threshold of the site.
    """
    recipe, costs, threshold = model

    def judged(one: Example, shared: Verdict) -> Verdict | None:
        given = shared, one
        return personal_verdicts(recipe, costs, view, given, [person], explained=True).get(person)

    mine = judged(example, score_examples(recipe, costs, view, [example], threshold=threshold)[0])
    if mine is None:
        return None
    parts = mine._explain  # noqa: SLF001 - this module has made it
    assert isinstance(parts, _Parts), "it is explained"
    found = [(entry, nats) for entry, nats in parts.strongest() if entry >= 0][:count]
    ids = np.concatenate(example.ids)
    others = [lacking(example, ids[entry]) for entry, _ in found]
    shared = score_examples(recipe, costs, view, others, threshold=threshold)
    return [
        (parts.clue(entry, nats), verdict)
        for (entry, nats), verdict in zip(found, map(judged, others, shared), strict=True)
        if verdict
    ]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the clues of a verdict are computed from, on request."""

    recipe: Recipe
    totals: Totals
    cells: Floats
    message: PersonalMessage
    word: WordOf
    rows: NDArray[np.intp]
    blocks: Blocks | None
    for_against: tuple[int, int] = (0, 0)
    threshold: float = SHIPPED

    def __call__(self, count: int | None) -> Clues:
        found = self.strongest()
        clues = tuple(self.clue(entry, nats) for entry, nats in found[:count])
        shares = self._shares()
        passage = shares.passage if shares.raise_ else None
        return Clues(clues, shares.bias * self._factor(), len(found), passage)

    def strongest(self) -> list[tuple[int, float]]:
        """Return the entries of the message and their nats; -1 is its strongest passage."""
        found, factor = self._shares(), self._factor()
        entries, nats = _strongest_first(
            (found.shared + found.personal) * factor, found.raise_ * factor
        )
        return list(zip(entries.tolist(), nats.tolist(), strict=True))

    def _shares(self) -> PersonalShares:
        return personal_shares(self.recipe, self.totals, self.cells, self.message, self.for_against)

    def _factor(self) -> float:
        found = self._shares()
        whole = float(found.shared.sum() + found.personal.sum()) + found.bias + found.raise_
        return stretch_factor(whole, self.threshold)

    def clue(self, entry: int, nats: float) -> Clue:
        """Return the clue of an entry, or that of the strongest passage."""
        if entry < 0:
            found = self._shares()
            words = _words_of(found.passage, self.blocks, found.shared + found.personal)
            return passage_clue([self.word(int(self.rows[one])) for one in words], nats)
        counts, corrections = np.split(self.cells[:, entry], 2)
        return clue_of(self.word(int(self.rows[entry])), nats, counts, corrections)


def _explained(verdict: Verdict, parts: _Parts) -> Verdict:
    for_against = sides(verdict.labels, list(verdict.z))
    parts = replace(parts, for_against=for_against, threshold=verdict.threshold)
    return replace(verdict, _explain=parts)


def _verdicts_of_persons(
    recipe: Recipe, costs: Costs, shared: Verdict, every: list[list[float]]
) -> Iterator[Verdict]:
    """Yield the verdict of each of these scores [P][K]."""
    labels, threshold = recipe.labels, shared.threshold
    spam = labels.index("spam") if "spam" in labels else None
    roles = roles_of(labels)
    for z in every:
        log_odds = spam_log_odds(z, roles)
        if threshold != SHIPPED:
            factor = stretch_factor(log_odds, threshold)
            z = [factor * score for score in z]  # noqa: PLW2901 - the scores of the verdict
        shares = softmax(z)
        winner = shares.index(max(shares))
        s, h = sides(labels, z)
        decided = decide_stretched(spam_log_odds(z, roles), threshold, costs)
        reason = _reason(shared, decided, log_odds, costs)
        decision = limited(decided, reason)
        # `replace` takes twice as long.
        yield Verdict(
            labels[winner], shares[winner if spam is None else spam], z[s] - z[h],
            decision, shared.evidence, labels, tuple(z), shared.digest, shared.message_id,
            shared.signature, reason, shared.own_costs, shared.known, threshold,
            shared.novelty, shared.ids,
        )  # fmt: skip


def _reason(shared: Verdict, decision: Decision, log_odds: float, costs: Costs) -> str:
    """Return the reason of a person's verdict, from the log-odds before stretching."""
    if not shared.novelty.nats or shared.reason == PARTLY_READ:
        return shared.reason
    return reason_of(decision, log_odds, shared.threshold - shared.novelty.nats, costs)
