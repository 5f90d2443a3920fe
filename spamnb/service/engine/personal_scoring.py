"""Verdicts for single persons, beside the shared verdict on a message.

A person without corrections gets the shared verdict itself. The rows of the message are read once,
whatever the number of its persons. `with_costs` decides again for a recipient with own costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from spamnb.core.features.clue_texts import location_shown, text_shown
from spamnb.core.model.costs import Costs, Decision, OwnCosts, roles_of
from spamnb.core.model.decision import at_least, decide
from spamnb.core.model.events import Recipe, Totals
from spamnb.core.model.scoring import Floats, maturity, predict, softmax
from spamnb.core.model.verdict import Clue, Clues, Verdict, sides
from spamnb.core.persons.corrections import places_of
from spamnb.core.persons.learning import PersonalMessage, personal_shares
from spamnb.service.engine.requests import Example
from spamnb.service.engine.scoring import WordOf, looked_up
from spamnb.store.contract import ReadView


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
    # One after the other: a thousand at once would take 64 MB, and most of the time.
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
    verdicts = {}
    for person, personal in chain([first], found):
        places = places_of(np.uint64(person), every)
        message = PersonalMessage(*shared, sizes, places, personal)
        parts = word and _Parts(recipe, totals, cells, message, word, rows)
        verdicts[person] = _verdict(recipe, costs, verdict, message, parts)
    return verdicts


def with_costs(verdict: Verdict, own: OwnCosts | None) -> Verdict:
    """Return the verdict with the decision by these costs; the verdict itself for None."""
    if own is None:
        return verdict
    P = softmax(list(verdict.z))
    decision = _decision(P, own.costs, verdict.labels, verdict.reason)
    return replace(verdict, decision=decision, own_costs=own)


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

    def __call__(self, count: int | None) -> Clues:
        shares = personal_shares(
            self.recipe, self.totals, self.cells, self.message, self.for_against
        )
        nats = shares.shared + shares.personal
        order = np.argsort(-np.abs(nats), kind="stable")[:count].tolist()
        return Clues(
            tuple(Clue(*self._shown(entry), float(nats[entry])) for entry in order),
            shares.bias,
            len(nats),
        )

    def _shown(self, entry: int) -> tuple[str, str]:
        location, text = self.word(int(self.rows[entry]))
        return location_shown(location), text_shown(location, text)


def _verdict(
    recipe: Recipe, costs: Costs, shared: Verdict, message: PersonalMessage, parts: _Parts | None
) -> Verdict:
    labels, z = recipe.labels, message.predict().z
    P = softmax(z)
    winner = P.index(max(P))
    spam = labels.index("spam") if "spam" in labels else winner
    for_against = s, h = sides(labels, z)
    return replace(
        shared,
        label=labels[winner],
        probability=P[spam],
        log_odds=z[s] - z[h],
        decision=_decision(P, costs, labels, shared.reason),
        z=tuple(z),
        _explain=parts and replace(parts, for_against=for_against),
    )


def _decision(P: list[float], costs: Costs, labels: tuple[str, ...], reason: str) -> Decision:
    decision = decide(P, costs, roles_of(labels))
    return at_least(decision, "unsure") if reason else decision
