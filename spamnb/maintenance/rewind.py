"""Rewind a model, relearn its journal, and undo many events.

`rewind` restores the model of an earlier time; `relearn` repeats the journal's trainings in order,
without some of them or with other constants, and computes each step again. Both write a new model
and replace the old one, which other processes may read meanwhile; the old file is kept. `undoable`
selects events that can be undone in the running model.

Trainings in the checkpoint have no events any more and stay. Relearning omits undone events and
their undos; a training that has no effect without the dropped ones (such as forgetting a message
that is no longer learnt) leaves no event. Duplicates have no event, so a duplicate of a dropped
training does not replace it. Must not know terminals or settings.

Failure: RefusedError for a time before the checkpoint; else what the store and the learner raise.
The model is unchanged then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

from spamnb.engine.event_filter import EventFilter, Takes, in_force, left_out, require_events_of
from spamnb.engine.learner import Learner
from spamnb.engine.planner import PendingJournal, PlannedEvent, Planner
from spamnb.engine.receipt import Receipt
from spamnb.engine.values import (
    BulkLoad,
    Forget,
    Learn,
    Source,
    TrainingRequest,
    Undo,
    stored_example,
)
from spamnb.errors import RefusedError, UserError
from spamnb.model.costs import Costs
from spamnb.model.events import NO_LABEL, Event, EventKind, Ids, Recipe
from spamnb.model.features import Words
from spamnb.store.maintenance import Change, Rebuilt, rebuild, replay, texts_of
from spamnb.store.table_views import ReadView, Store, WriteView

TAUGHT_AT_ONCE = 1024
"""trainings in one transaction; more are not faster, and need more memory"""
CONSTANTS = ("alpha", "kappa", "r", "eta", "rate_bias", "rate_temper")
"""What a relearning may change; the other values of a recipe define its features and labels."""

Thing = TypeVar("Thing")
CostsOf = Callable[[str], Costs | None]
"""(user) -> the costs of this person's mail; None for those of the model"""


# --- rewind --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RewindPoint:
    """Where a rewind cuts the journal."""

    stop: int
    """the first event to remove"""
    stays_us: int
    """time of the last event that stays; 0 if none does"""
    by: dict[str, int]
    """number of removed events of each person"""

    @property
    def events(self) -> int:
        """Return the number of events to remove."""
        return sum(self.by.values())


def cut_at(view: ReadView, time_us: int) -> RewindPoint:
    """Return what a rewind removes: all events after the last one that is not later than a time."""
    by: Counter[str] = Counter()
    checkpoint = view.base_totals().last_seq
    for event in view.events(newest_first=True):
        if event.time_us <= time_us:
            return RewindPoint(event.seq + 1, event.time_us, dict(by))
        by[event.user] += 1
    if checkpoint:
        before = "and the given time is before its end" if by else "and there are no later ones"
        raise RefusedError(
            f"events up to {checkpoint} are in the checkpoint, {before}",
            hint="choose the time of an event that `spamnb journal --limit 0` lists",
        )
    return RewindPoint(1, 0, dict(by))


def rewind(home: Path, time_us: int) -> Rebuilt[RewindPoint]:
    """Restore the model as it was at a time; later events are removed."""
    return rebuild(home, rewinding(time_us))


def rewinding(time_us: int) -> Change[RewindPoint]:
    """Return the change to the model as it was at a time."""

    def run(view: ReadView, new: Store) -> RewindPoint:
        cut = cut_at(view, time_us)
        replay(view.events(stop=cut.stop), view, new)
        return cut

    return Change(run)


# --- relearn -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relearnt:
    """Result of a relearning, in numbers of events."""

    taught: int
    """trainings that changed the model: the events of the new journal"""
    dropped: int
    undone: int
    """omitted because they were undone, and their undos"""
    idle: int
    """trainings that have no effect without the dropped ones"""
    folded: int
    """events of the checkpoint, which stay unchanged"""

    def as_dict(self) -> dict[str, int]:
        """Return the result as values that JSON can represent."""
        return asdict(self)


def relearn(
    home: Path,
    drops: Takes,
    costs: Costs,
    constants: Mapping[str, float] | None = None,
    costs_of: CostsOf = lambda _: None,
) -> Rebuilt[Relearnt]:
    """Repeat the journal's trainings except the dropped ones; compute every step again."""
    return rebuild(home, relearning(drops, costs, constants or {}, costs_of))


def relearning(
    drops: Takes, costs: Costs, constants: Mapping[str, float], costs_of: CostsOf
) -> Change[Relearnt]:
    """Return the change to the model without some trainings, or with other constants."""

    def run(old: ReadView, new: Store) -> Relearnt:
        folded = old.base_totals().last_seq
        if constants and folded:
            raise RefusedError(
                f"{folded} events are in the checkpoint and were learnt with the old constants",
                hint="train a new model to use other constants",
            )
        return _relearn(new, Learner(new.recipe, costs), drops, _Requests(old, costs_of))

    return Change(run, lambda recipe: changed_recipe(recipe, constants))


def changed_recipe(recipe: Recipe, constants: Mapping[str, float]) -> Recipe:
    """Return the recipe with other constants; UserError for an invalid name or value."""
    for name, value in constants.items():
        if name not in CONSTANTS:
            raise UserError(
                f"there is no constant {name!r}", hint=f"use one of {', '.join(CONSTANTS)}"
            )
        if not 0 <= value < 1000 or (name == "alpha" and value == 0):
            raise UserError(
                f"the constant {name} cannot be {value}",
                hint="use a number from 0 to below 1000; alpha must be above 0",
            )
    changes: dict[str, Any] = {name: float(value) for name, value in constants.items()}
    return replace(recipe, **changes)


def _relearn(new: Store, learner: Learner, drops: Takes, requests: _Requests) -> Relearnt:
    old = requests.view
    out = left_out(old, drops)
    tally: Counter[str] = Counter()

    def kept() -> Iterator[Event]:
        for event in old.events():
            if event.seq not in out:
                yield event
            else:
                tally["dropped" if drops(event) else "undone"] += 1

    for batch in _batches(kept(), TAUGHT_AT_ONCE):
        receipts = new.transact(partial(_teach, learner=learner, batch=batch, requests=requests))
        done = sum(receipt.changed for receipt in receipts)
        tally["taught"] += done
        tally["idle"] += len(batch) - done
    return Relearnt(
        taught=tally["taught"],
        dropped=tally["dropped"],
        undone=tally["undone"],
        idle=tally["idle"],
        folded=old.base_totals().last_seq,
    )


def _teach(
    view: WriteView, learner: Learner, batch: list[Event], requests: _Requests
) -> list[Receipt]:
    """Repeat trainings in order, in one transaction.

    Each correction of a person runs alone: the scores of the model decide whether it needs further
    steps.
    """
    receipts = []
    for may_repeat, events in groupby(batch, _may_repeat):
        each = [requests.of(event) for event in events]
        for some in [[request] for request in each] if may_repeat else [each]:
            receipts += learner.run(view, some, scored=False)
            learner.committed()
    return receipts


def _may_repeat(event: Event) -> bool:
    """Return whether the message may have this label already and still be classified otherwise."""
    return event.after != NO_LABEL and (event.immediate or event.before == event.after)


@dataclass(frozen=True, slots=True)
class _Requests:
    """Makes the training requests of events; the old model is the word source of the new one."""

    view: ReadView
    costs_of: CostsOf

    def words(self, ids: Ids) -> Words:
        """Return the known texts among these ids."""
        return texts_of(self.view, ids)

    def of(self, event: Event) -> TrainingRequest:
        """Return the training request of an event."""
        source, time_us = self._source(event), event.time_us
        if event.bulk is not None:
            expire, scores = (event.kind == one for one in (EventKind.EXPIRE, EventKind.SCORES))
            return BulkLoad(event.bulk, expire, source, time_us, self, scores=scores)
        if event.after == NO_LABEL:
            return Forget(event.digest, source, time_us)
        return Learn(
            stored_example(event, self), event.after, source, time_us, again=source.immediate
        )

    def _source(self, event: Event) -> Source:
        costs = self.costs_of(event.user) if event.person else None
        again = _may_repeat(event)
        return Source(
            event.user, event.channel, event.weight, again, event.person, event.owner, costs
        )


def _batches(things: Iterable[Thing], size: int) -> Iterator[list[Thing]]:
    rest = iter(things)
    while batch := list(islice(rest, size)):
        yield batch


# --- undo many events ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """What undoing selected events would do."""

    events: list[int]
    """events that can be undone, newest first"""
    superseded: list[int]
    """events that a later label of another person has replaced: they have no effect any more"""


def undoable(view: ReadView, recipe: Recipe, takes: EventFilter) -> UndoPlan:
    """Return which of the selected events can be undone; changes nothing.

    UserError for a user or channel without an event.
    """
    require_events_of(view, takes)
    planner = Planner(recipe)
    pending = PendingJournal(view, [], view.totals().last_seq)
    found = UndoPlan([], [])
    for seq in in_force(view, takes):
        plan = planner.plan(Undo(seq, Source(), 0), pending)
        (found.events if isinstance(plan, PlannedEvent) else found.superseded).append(seq)
    return found
