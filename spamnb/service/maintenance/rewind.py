"""Going back, and going another way: rewind, relearning, undoing many trainings at once.

`rewind` brings back the model as it was at a time; `relearn` teaches the journal's lessons again,
in order, without some of them or with other constants, each step computed anew. Both make a copy
and put it in the place of the model, which nobody may have open meanwhile; the old file is kept.
`take_back` undoes, in the running model, what a selection takes.

What went into the checkpoint has no events any more: it stays, whoever taught it. Relearning leaves
out what was undone, and the undo with it; a lesson that comes to nothing without the dropped ones
(forgetting what nobody taught) leaves no event. A duplicate was never noted, so it cannot stand in
for what is dropped. Must not know terminals or settings.

Failure: RefusedError for a time before the checkpoint; else what the store and the learner raise.
The model is as it was then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

from spamnb.core.features.extract import Words
from spamnb.core.model.costs import Costs
from spamnb.core.model.events import NO_LABEL, Event, EventKind, Ids, Recipe
from spamnb.errors import RefusedError, UserError
from spamnb.service.engine.clock import now_us
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.learner import Learner
from spamnb.service.engine.planner import PendingJournal, PlannedEvent, Planner
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import BulkLoad, Example, Forget, Learn, Lesson, Source, Undo
from spamnb.service.maintenance.event_filter import Takes, left_out, net_update
from spamnb.store.contract import ReadView, Store, WriteView
from spamnb.store.rebuild import Rebuilt, rebuild, replay, texts_of

TAUGHT_AT_ONCE = 1024
"""Lessons in one transaction: more gain nothing, and hold more rows in memory."""
UNDONE_AT_ONCE = 256
CONSTANTS = ("alpha", "kappa", "r", "eta", "rate_bias", "rate_temper")
"""What a relearning may change; the rest of a recipe says what the features and labels are."""

Thing = TypeVar("Thing")


# --- rewind --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RewindPoint:
    """Where a rewind cuts the journal."""

    stop: int
    """the first event that goes"""
    stays_us: int
    """when the last event that stays was taught; 0 if none does"""
    by: dict[str, int]
    """how many go, by who taught them"""

    @property
    def events(self) -> int:
        """How many go."""
        return sum(self.by.values())


def cut_at(view: ReadView, time_us: int) -> RewindPoint:
    """What a rewind to a time drops: all that follows the last event which is not later."""
    by: Counter[str] = Counter()
    checkpoint = view.base_totals().last_seq
    for event in view.events(newest_first=True):
        if event.time_us <= time_us:
            return RewindPoint(event.seq + 1, event.time_us, dict(by))
        by[event.who] += 1
    if checkpoint:
        before = "and the time lies before its end" if by else "all there are"
        raise RefusedError(
            f"events up to {checkpoint} are in the checkpoint, {before}",
            hint="see `spamnb journal --limit 0` for what can be gone back to",
        )
    return RewindPoint(1, 0, dict(by))


def rewind(home: Path, time_us: int) -> Rebuilt[RewindPoint]:
    """Bring back the model as it was at a time; later events are gone from it."""

    def run(view: ReadView, new: Store) -> RewindPoint:
        cut = cut_at(view, time_us)
        replay(view.events(stop=cut.stop), view, new)
        return cut

    return rebuild(home, run)


# --- relearn -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relearnt:
    """What became of the journal."""

    taught: int
    """lessons that changed something, as events of the new journal"""
    dropped: int
    undone: int
    """left out, since they were undone: and the undos"""
    idle: int
    """lessons that come to nothing without the dropped ones"""
    folded: int
    """events of the checkpoint, which stay as they are"""

    def as_dict(self) -> dict[str, int]:
        """For programs."""
        return asdict(self)


def relearn(
    home: Path, drops: Takes, costs: Costs, constants: Mapping[str, float] | None = None
) -> Rebuilt[Relearnt]:
    """Teach the journal's lessons again, but for the dropped ones; every step is computed anew."""
    changed = dict(constants or {})

    def run(old: ReadView, new: Store) -> Relearnt:
        folded = old.base_totals().last_seq
        if changed and folded:
            raise RefusedError(
                f"{folded} events are in the checkpoint, and were learnt with the old constants",
                hint="train a new model",
            )
        return _relearn(old, new, drops, costs)

    return rebuild(home, run, lambda recipe: changed_recipe(recipe, changed))


def changed_recipe(recipe: Recipe, constants: Mapping[str, float]) -> Recipe:
    """The recipe with other constants."""
    for name, value in constants.items():
        if name not in CONSTANTS:
            raise UserError(f"{name} is no constant", hint=f"one of {', '.join(CONSTANTS)}")
        if not 0 <= value < 1000 or (name == "alpha" and value == 0):
            raise UserError(f"{name} {value} makes no model")
    changes: dict[str, Any] = {name: float(value) for name, value in constants.items()}
    return replace(recipe, **changes)


def _relearn(old: ReadView, new: Store, drops: Takes, costs: Costs) -> Relearnt:
    learner = Learner(new.recipe, costs)
    out = left_out(old, drops)
    tally: Counter[str] = Counter()

    def kept() -> Iterator[Event]:
        for event in old.events():
            if event.seq not in out:
                yield event
            else:
                tally["dropped" if drops(event) else "undone"] += 1

    for batch in _batches(kept(), TAUGHT_AT_ONCE):
        receipts = new.transact(partial(_teach, learner=learner, batch=batch, old=old))
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


def _teach(view: WriteView, learner: Learner, batch: list[Event], old: ReadView) -> list[Receipt]:
    """Lessons in order, in one transaction; before a person's word we look what it is about."""
    texts = _Texts(old)
    receipts = []
    for insisted, events in groupby(batch, _insisted):
        requests = [_lesson(event, texts) for event in events]
        for some in [[request] for request in requests] if insisted else [requests]:
            asked = [_repeated(view, learner, request) for request in some] if insisted else some
            receipts += learner.run(view, asked, scored=False)
            learner.committed()
    return receipts


def _insisted(event: Event) -> bool:
    """Whether an event may be of a message that has the label, but is judged otherwise."""
    return event.after != NO_LABEL and (event.immediate or event.before == event.after)


def _repeated(view: ReadView, learner: Learner, request: Lesson) -> Lesson:
    assert isinstance(request, Learn)
    return request._replace(again=learner.needs_more(view, request.example, request.label))


@dataclass(frozen=True, slots=True)
class _Texts:
    """The old model's texts, for the features that the new one learns."""

    view: ReadView

    def words(self, ids: Ids) -> Words:
        """The texts of those of these ids that it has."""
        return texts_of(self.view, ids)


def _lesson(event: Event, texts: _Texts) -> Lesson:
    """What was asked for, as the event tells it."""
    source = Source(event.who, event.channel, event.weight, _insisted(event))
    if event.bulk is not None:
        return BulkLoad(event.bulk, event.kind == EventKind.EXPIRE, source, event.time_us, texts)
    if event.after == NO_LABEL:
        return Forget(event.digest, source, event.time_us)
    example = Example(event.digest, event.message_id, event.ids, event.times, texts)
    return Learn(example, event.after, source, event.time_us)


def _batches(things: Iterable[Thing], size: int) -> Iterator[list[Thing]]:
    rest = iter(things)
    while batch := list(islice(rest, size)):
        yield batch


# --- undoing many --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """What undoing a selection would do."""

    events: list[int]
    """those that can be undone, newest first"""
    superseded: list[int]
    """those that somebody else's later word has replaced: nothing of them stands"""


def undoable(view: ReadView, recipe: Recipe, takes: Takes) -> UndoPlan:
    """Try out which of the selected events can be undone; changes nothing."""
    planner = Planner(recipe)
    pending = PendingJournal(view, [], view.totals().last_seq)
    found = UndoPlan([], [])
    for seq in net_update(view, takes):
        plan = planner.plan(Undo(seq, Source(), 0), pending)
        (found.events if isinstance(plan, PlannedEvent) else found.superseded).append(seq)
    return found


def take_back(model: Filter, events: Sequence[int], source: Source) -> list[Receipt]:
    """Undo events, in this order; stopped on the way, what was done stays done."""
    receipts: list[Receipt] = []
    for some in _batches(events, UNDONE_AT_ONCE):
        receipts += model.teach([Undo(event, source, now_us()) for event in some])
    return receipts
