"""Verdicts for single persons, beside the shared verdict on a message.

A person without corrections gets the shared verdict itself. The rows of the message are read once,
whatever the number of its persons. `with_costs` decides again for a recipient with own costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.costs import Costs, Decision, OwnCosts, roles_of
from spamnb.core.model.decision import spam_log_odds
from spamnb.core.model.events import Recipe, Totals
from spamnb.core.model.novelty import reason_of
from spamnb.core.model.scoring import Floats, maturity, predict, softmax
from spamnb.core.model.site_threshold import (
    SHIPPED,
    decide_stretched,
    plain,
    stretch_factor,
)
from spamnb.core.model.verdict import Clue, Clues, Verdict, sides
from spamnb.core.persons.corrections import CorrectionReader, places_of
from spamnb.core.persons.learning import (
    PersonalMessage,
    PersonalShares,
    personal_scores,
    personal_shares,
)
from spamnb.service.engine.requests import Example
from spamnb.service.engine.scoring import (
    PARTLY_READ,
    WordOf,
    clue_of,
    lacking,
    limited,
    looked_up,
    score_examples,
)
from spamnb.store.contract import ReadView

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
    """Return the verdict for each of these persons that has corrections."""
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
    shared = predict(recipe, totals, cells, sizes), maturity(totals)
    word = looked_up(view, ids) if explained else None
    verdicts: dict[int, Verdict] = {}
    every_person, reader = chain([first], found), CorrectionReader(len(recipe.labels))
    while some := list(islice(every_person, AT_ONCE)):
        places = places_of(np.array([[person] for person, _ in some], np.uint64), every)
        lines = [reader.at(filled, own) for (_, filled), own in zip(some, places, strict=True)]
        z = personal_scores(*shared, np.stack(lines), sizes).tolist()
        made = _verdicts(recipe, costs, verdict, z)
        verdicts |= {person: one for (person, _), one in zip(some, made, strict=True)}
        if word is None:
            continue
        for (person, filled), own in zip(some, places, strict=True):
            message = PersonalMessage(*shared, sizes, own, filled.spread())
            parts = _Parts(recipe, totals, cells, message, word, rows)
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
    features = np.concatenate(example.ids)[parts.order()[:count]]
    others = [lacking(example, one) for one in features]
    shared = score_examples(recipe, costs, view, others, threshold=threshold)
    verdicts = map(judged, others, shared)
    return [
        (clue, verdict)
        for clue, verdict in zip(mine.clues(count), verdicts, strict=True)
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
    for_against: tuple[int, int] = (0, 0)
    threshold: float = SHIPPED

    def __call__(self, count: int | None) -> Clues:
        shares = self._shares()
        nats = shares.shared + shares.personal
        order = self.order()[:count].tolist()
        return Clues(
            tuple(self._clue(entry, float(nats[entry])) for entry in order),
            shares.bias,
            len(nats),
        )

    def order(self) -> NDArray[np.intp]:
        """Return the entries of the message, the strongest first."""
        shares = self._shares()
        return np.argsort(-np.abs(shares.shared + shares.personal), kind="stable")

    def _shares(self) -> PersonalShares:
        found = personal_shares(
            self.recipe, self.totals, self.cells, self.message, self.for_against
        )
        whole = float(found.shared.sum() + found.personal.sum()) + found.bias
        factor = stretch_factor(whole, self.threshold)
        return PersonalShares(found.shared * factor, found.personal * factor, found.bias * factor)

    def _clue(self, entry: int, nats: float) -> Clue:
        counts, corrections = np.split(self.cells[:, entry], 2)
        return clue_of(self.word(int(self.rows[entry])), nats, counts, corrections)


def _explained(verdict: Verdict, parts: _Parts) -> Verdict:
    for_against = sides(verdict.labels, list(verdict.z))
    parts = replace(parts, for_against=for_against, threshold=verdict.threshold)
    return replace(verdict, _explain=parts)


def _verdicts(
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
