"""Which users' labels have changed the verdicts on the mail of others, and how many.

The newest messages of the history are scored twice: with the whole model, and without the labels
that one user has given in the last thirty days. Messages to the user, and those that the user has
labelled, do not count. Only the users whose labels moved the shared corrections most are compared,
and all users without credit together, because many accounts with one label each move little alone.
Without a history, the trained messages of others take its place. Reads only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from spamnb.core.mail.domains import same_name
from spamnb.core.model.costs import Costs, roles_of
from spamnb.core.model.decision import spam_log_odds
from spamnb.core.model.events import NO_LABEL, Event, EventKind, Ids, Records, Totals
from spamnb.core.model.scoring import RowView, scores
from spamnb.core.model.site_threshold import decide_stretched, stretch_factor
from spamnb.core.model.training_rows import TrainingRows
from spamnb.service.engine import credit
from spamnb.service.engine.filter import Filter
from spamnb.store.contract import ReadView

SAMPLE = 500
"""newest messages that are compared"""
LEAST = 5
"""An alarm needs so many changed verdicts: in any sample some messages are near a threshold."""
SHARE = 0.01
"""and this share of the sample; the worst accounts that a search found changed .7 to 3.6 %"""
EVENTS = 2_000
"""newest events that are searched for labels of users"""
COMPARED = 5
"""users that are compared alone"""
WINDOW_US = 30 * 86_400_000_000


class _Sampled(NamedTuple):
    digest: bytes
    recipients: tuple[str, ...]
    ids: tuple[Ids, ...]


_Labels = dict[str, list[Event]]
_known: WeakKeyDictionary[Filter, tuple[int, list[dict[str, Any]]]] = WeakKeyDictionary()
"""what was found after the last event of a model: the status is asked often, labels are rare"""


def influential(model: Filter, now_us: int) -> list[dict[str, Any]]:
    """Return the users whose labels changed many verdicts, with the numbers, the most first."""
    with model.store.read() as view:
        last = view.totals().last_seq
        known = _known.get(model)
        if known is None or known[0] != last:
            known = _known[model] = last, _found(model, view, last, now_us)
    return known[1]


def _found(model: Filter, view: ReadView, last: int, now_us: int) -> list[dict[str, Any]]:
    labels = _labels_of_users(view, last, now_us)
    if model.recipe.kind != "corrected" or not labels:
        return []
    sample = list(islice(_sampled(model, view, last), SAMPLE))
    if not sample:
        return []
    comparison = _VerdictsWithout(
        model, view, sample, [one for own in labels.values() for one in own]
    )
    ranked = sorted(labels, key=lambda user: (-_moved(labels[user]), user))
    found = [comparison.without({user: labels[user]}) for user in ranked[:COMPARED]]
    found = [one for one in found if one["changed"] >= max(LEAST, SHARE * one["compared"])]
    if found:
        return sorted(found, key=lambda one: -int(one["changed"]))
    new = {user: own for user, own in labels.items() if not credit.is_believed(own[0].credit)}
    together = comparison.without(new)
    return [together] if together["changed"] >= max(LEAST, SHARE * together["compared"]) else []


def _labels_of_users(view: ReadView, last: int, now_us: int) -> _Labels:
    """Return the labels in force of all users but administrators, the newest first."""
    found: _Labels = defaultdict(list)
    for seq in range(last, max(last - EVENTS, 0), -1):
        event = view.event(seq)
        if event is None:
            break
        if not (event.owner or event.person) or event.time_us < now_us - WINDOW_US:
            continue
        live = view.live(event.label_key) if event.after != NO_LABEL and event.user else None
        if live is not None and live.seq == seq and event.kind != EventKind.UNDO:
            found[event.user].append(event)
    return found


def _sampled(model: Filter, view: ReadView, last: int) -> Iterable[_Sampled]:
    if model.history is not None and model.history.count():
        for entry in model.history.newest():
            yield _Sampled(entry.digest, tuple(entry.notes.get("to", "").split()), entry.ids)
        return
    for seq in range(last, max(last - EVENTS, 0), -1):
        event = view.event(seq)
        if event is None:
            break
        if event.digest and event.kind == EventKind.LEARN and not event.owner:
            yield _Sampled(event.digest, (), event.ids)


def _moved(events: Sequence[Event]) -> int:
    """How far these labels moved the shared corrections."""
    return sum(int(np.abs(event.net_update.bias).sum()) for event in events)


class _VerdictsWithout:
    """The verdicts on some messages, with all labels and without those of some users."""

    def __init__(
        self, model: Filter, view: ReadView, sample: Sequence[_Sampled], events: Sequence[Event]
    ) -> None:
        self._model, self._sample = model, sample
        self._totals: Totals = view.totals()
        self._threshold = model.threshold(view)
        flat = np.concatenate([part for one in sample for part in one.ids])
        changed = [part for event in events for part in event.ids]
        changed += [
            part
            for event in events
            for rehearsal in event.net_update.rehearsals
            for part in rehearsal.ids
        ]
        self._ids = np.unique(np.concatenate([flat, *changed]))
        self._records: Records = view.gather(self._ids)
        ends = np.cumsum([0, *(sum(map(len, one.ids)) for one in sample)])
        sizes = np.array([len(part) for one in sample for part in one.ids])
        self._view = RowView(np.searchsorted(self._ids, flat), ends, sizes)
        self._decided = self._decisions(self._totals, self._records)

    def without(self, labels: _Labels) -> dict[str, Any]:
        """Return how many verdicts on messages of others the labels of these users changed."""
        rows = TrainingRows(self._totals, self._ids, self._records)
        events = [event for own in labels.values() for event in own]
        for event in events:
            rows.take_out(event)
        decided = self._decisions(rows.totals, rows.to_records())
        own = {event.digest for event in events}
        others = np.array([
            one.digest not in own
            and not any(same_name(user, to) for user in labels for to in one.recipients)
            for one in self._sample
        ])  # fmt: skip
        return {
            "users": sorted(labels),
            "labels": len(events),
            "changed": int(((decided != self._decided) & others).sum()),
            "compared": int(others.sum()),
        }

    def _decisions(self, totals: Totals, records: Records) -> NDArray[np.str_]:
        recipe, costs = self._model.recipe, self._model.costs
        roles = roles_of(recipe.labels)
        z = scores(recipe, totals, records, self._view).tolist()
        return np.array([self._decision(spam_log_odds(one, roles), costs) for one in z])

    def _decision(self, odds: float, costs: Costs) -> str:
        stretched = odds * stretch_factor(odds, self._threshold)
        return decide_stretched(stretched, self._threshold, costs)
