"""From lessons to events: what was held before, which step to take, what to rehearse.

Runs inside one write transaction, on a whole batch of lessons: first it plans (labels, sequence
numbers, rehearsals: nothing that depends on scores), then gathers every row that the batch will
touch at once, then goes lesson by lesson over that sheet. So a batch leaves the same events and
the same bytes as its lessons one by one. Must not know messages, clocks or files.

Failure: a lesson that the rules forbid gives a receipt with its error, and the others go on. An
error from the sheet or the store leaves the transaction, and with it everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from spamnb.core.features.extract import Key, Words, distinct, own_id
from spamnb.core.model.correction import EXPECTED, FeatureHolders, insisted, margins, missing
from spamnb.core.model.costs import Costs, roles_of
from spamnb.core.model.decision import decide
from spamnb.core.model.events import (
    NO_LABEL,
    Event,
    EventKind,
    Ids,
    Recipe,
    RehearsalUpdate,
    Update,
    no_update,
)
from spamnb.core.model.scoring import RowView, doubt, probabilities, scores, softmax, step
from spamnb.core.model.training_rows import MessageRows, TrainingRows, day_of
from spamnb.service.engine.planner import STREAK, PendingJournal, PlannedEvent, Planner
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import BulkLoad, Example, Learn, Lesson, WordSource
from spamnb.service.engine.scoring import judge_examples
from spamnb.service.engine.step_budget import StepBudgets
from spamnb.service.training.packing import MergedWords
from spamnb.store.contract import ReadView, WriteView


class Learner:
    """Teaches one model."""

    def __init__(self, recipe: Recipe, costs: Costs) -> None:
        self.recipe = recipe
        self.costs = costs
        self._planner = Planner(recipe)
        self._roles = roles_of(recipe.labels)
        self._margins = margins(costs)
        self._key = Key(recipe.key)
        self._budgets = StepBudgets(recipe)
        self._recent: tuple[int, list[int]] = (-1, [])
        self.next_recent = self._recent

    def run(
        self, view: WriteView, requests: Sequence[Lesson], *, scored: bool = True
    ) -> list[Receipt]:
        """All lessons in order; `scored` asks for the probabilities before and after."""
        learning_batch = LearningBatch(self, view)
        receipts = learning_batch.take(requests, scored=scored)
        learning_batch.close()
        return receipts

    def committed(self) -> None:
        """What the last run did is in the store: its labels need not be looked for again."""
        self._recent = self.next_recent

    def newest(self, view: ReadView, last_seq: int) -> list[int]:
        """Labels of the newest events, oldest first; to look for them takes 0.2 ms."""
        known, labels = self._recent
        if known == last_seq:
            return labels
        return [label for _, label in view.last_events(STREAK)][::-1]

    def plan(self, request: Lesson, journal: PendingJournal) -> PlannedEvent | Receipt:
        """What a lesson will change, or why nothing."""
        return self._planner.plan(request, journal)

    def apply_plan(
        self,
        plan: PlannedEvent,
        training_rows: TrainingRows,
        journal: PendingJournal,
        *,
        scored: bool,
    ) -> Receipt:
        """Make a plan's event, and change the sheet by it."""
        lines = plan.lines = training_rows.lines(plan.rows, plan.sizes)
        scored = scored and bool(plan.example.digest)
        times = plan.example.times
        before = self._probability(training_rows, lines, times) if scored else None
        event = _MAKERS[plan.kind](self, plan, training_rows, journal)
        if scored:
            lines = training_rows.lines(plan.rows, plan.sizes)
        after = self._probability(training_rows, lines, times) if scored else None
        journal.made[plan.seq] = event
        return Receipt(
            changed=True,
            event=plan.seq,
            digest=event.digest.hex(),
            message_id=event.message_id,
            before=self._planner.name(plan.before),
            after=self._planner.name(plan.after),
            probability_before=before,
            probability_after=after,
        )

    def make_taught(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """A learn or a move."""
        request, lines = plan.request, plan.lines
        assert isinstance(request, Learn)
        assert lines is not None
        if plan.before == plan.after:
            return self._reinforced(plan, training_rows, journal)
        times = plan.example.times
        back = self._take_back(plan, training_rows, journal)
        if plan.before != NO_LABEL:
            # As if it had not been known: the old label goes first, so the step sees the model
            # without this message, as a forget and a learn would.
            training_rows.count(lines, plan.before, NO_LABEL, times=times)
        update = self._step(plan, lines, training_rows, journal)
        training_rows.move(lines, NO_LABEL, plan.after, times=times, day=day_of(request.time_us))
        training_rows.put(lines)
        update = self._rehearse(plan, training_rows, update)
        if request.source.immediate:
            # Last of all, for what is rehearsed may pull this message back.
            update = self._insist(plan, training_rows, update)
        delta = update if back is None else back.plus(update)
        return self._event(plan, delta, update)

    def _reinforced(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """What is still missing towards the label that the message has."""
        previous = journal.event(plan.previous)
        assert previous is not None, "a live event that is not folded is in the journal"
        update = self._insist(plan, training_rows, self._nothing())
        return self._event(plan, update, previous.net_update.plus(update))

    def _take_back(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Update | None:
        """The negated standing of the event before, already applied to the sheet."""
        if plan.before == NO_LABEL:
            return None
        previous = journal.event(plan.previous)
        assert previous is not None, "a live event that is not folded is in the journal"
        back = previous.net_update.negated()
        assert plan.lines is not None
        # The echoes first: they may share rows with this message.
        training_rows.rehearsal(back)
        training_rows.lean(back)
        plan.lines.cells = training_rows.lines(plan.rows, plan.sizes).cells
        training_rows.update(plan.lines, back.steps)
        return back

    def _step(
        self,
        plan: PlannedEvent,
        lines: MessageRows,
        training_rows: TrainingRows,
        journal: PendingJournal,
    ) -> Update:
        recipe = self.recipe
        if recipe.kind != "corrected":
            return self._nothing()
        seen = training_rows.opinion(recipe, lines)
        left = self._budgets.left(plan, training_rows.totals.messages, journal)
        weight = plan.request.source.weight * left * doubt(seen, plan.after)
        update = step(recipe, seen, lines.sizes, plan.after, weight)
        training_rows.update(lines, update.steps)
        training_rows.lean(update)
        return update

    def _insist(self, plan: PlannedEvent, training_rows: TrainingRows, update: Update) -> Update:
        """Add what is missing for a person's label on features that are hardly any other's."""
        recipe, lines = self.recipe, training_rows.lines(plan.rows, plan.sizes)
        z, label = training_rows.opinion(recipe, lines).z, plan.after
        if recipe.kind != "corrected" or self.matches_label(z, label):
            return update
        nats = missing(z, label, self._margins[self._roles[label]])
        held = lines.cells[: len(recipe.labels)].sum(axis=0)
        message = FeatureHolders(plan.example.ids, held, own_id(self._key, plan.example.digest))
        rehearsals = insisted(recipe, message, label, nats)
        more = self._nothing()._replace(rehearsals=rehearsals)
        training_rows.rehearsal(more)
        return update.plus(more)

    def needs_more(self, view: ReadView, example: Example, label: int) -> bool:
        """Whether a message has the label, but is judged otherwise all the same."""
        live = view.live(example.digest)
        if live is None or live.label != label:
            return False
        verdict = judge_examples(self.recipe, self.costs, view, [example])[0]
        return not self.matches_label(list(verdict.z), label)

    def matches_label(self, z: list[float], label: int) -> bool:
        """Whether verdict and decision are what a person who gave this label would expect."""
        if max(z) != z[label]:
            return False
        return decide(softmax(z), self.costs, self._roles) in EXPECTED[self._roles[label]]

    def _rehearse(self, plan: PlannedEvent, training_rows: TrainingRows, update: Update) -> Update:
        for label, ids in plan.rehearsed:
            lines = training_rows.find(ids)
            seen = training_rows.opinion(self.recipe, lines)
            rehearsal = step(self.recipe, seen, lines.sizes, label, doubt(seen, label))
            training_rows.update(lines, rehearsal.steps)
            training_rows.put(lines)
            training_rows.lean(rehearsal)
            update = Update(
                update.steps,
                update.bias + rehearsal.bias,
                update.temperatures + rehearsal.temperatures,
                (*update.rehearsals, RehearsalUpdate(ids, rehearsal.steps)),
            )
        return update

    def make_forget(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """The old step goes, then the counts."""
        back = self._take_back(plan, training_rows, journal)
        assert back is not None
        assert plan.lines is not None
        training_rows.move(plan.lines, plan.before, NO_LABEL, times=plan.example.times)
        training_rows.put(plan.lines)
        return self._event(plan, back, self._nothing())

    def make_undo(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """The opposite of an event."""
        undone = journal.event(plan.undoes)
        assert undone is not None, "what is undone is in the journal"
        older = journal.event(undone.previous) if undone.previous else None
        net_update = older.net_update if older else self._nothing()
        event = self._event(plan, undone.delta.negated(), net_update)
        bulk = undone.bulk.negated() if undone.bulk else None
        event = event._replace(undoes=undone.seq, bulk=bulk)
        training_rows.apply(event)
        return event

    def make_load(
        self, plan: PlannedEvent, training_rows: TrainingRows, _: PendingJournal
    ) -> Event:
        """Counts from elsewhere, or counts that go."""
        request = plan.request
        assert isinstance(request, BulkLoad)
        event = self._event(plan, self._nothing(), self._nothing())._replace(bulk=request.bulk)
        training_rows.apply(event)
        return event

    def _event(self, plan: PlannedEvent, delta: Update, net_update: Update) -> Event:
        example, request = plan.example, plan.request
        return Event(
            seq=plan.seq,
            kind=plan.kind,
            time_us=request.time_us,
            who=request.source.who,
            channel=request.source.channel,
            digest=example.digest,
            message_id=example.message_id,
            before=plan.before,
            after=plan.after,
            previous=plan.previous,
            ids=example.ids,
            delta=delta,
            net_update=net_update,
            times=example.times if self.recipe.occurrences else None,
            immediate=request.source.immediate,
            weight=request.source.weight,
        )

    def _nothing(self) -> Update:
        return no_update(self.recipe.groups, len(self.recipe.labels))

    def _probability(
        self, training_rows: TrainingRows, lines: MessageRows, times: NDArray[np.uint32] | None
    ) -> float:
        """Of spam, or of the last label."""
        labels = self.recipe.labels
        at = labels.index("spam") if "spam" in labels else len(labels) - 1
        if self.recipe.kind == "corrected":
            return training_rows.opinion(self.recipe, lines).P[at]
        records = training_rows.records_of(lines)
        rows = np.arange(len(lines.rows))
        view = RowView(rows, np.array([0, len(rows)]), np.array(lines.sizes), times)
        return float(probabilities(scores(self.recipe, training_rows.totals, records, view))[0, at])


_MAKERS: dict[EventKind, Callable[..., Event]] = {
    EventKind.LEARN: Learner.make_taught,
    EventKind.MOVE: Learner.make_taught,
    EventKind.FORGET: Learner.make_forget,
    EventKind.UNDO: Learner.make_undo,
    EventKind.IMPORT: Learner.make_load,
    EventKind.EXPIRE: Learner.make_load,
}


class LearningBatch:
    """Lessons of one transaction, as they come: their rows stay on one sheet until it is closed.

    To gather and put back the rows of every thousand messages took a sixth of bulk training.
    """

    def __init__(self, learner: Learner, view: WriteView) -> None:
        self._learner = learner
        self._view = view
        self._totals = view.totals()
        self._stored = self._totals.last_seq
        self._labels = learner.newest(view, self._totals.last_seq)
        self._sheet: TrainingRows | None = None
        self._texts: list[Words] = []
        """of all features that were new"""

    def take(self, requests: Sequence[Lesson], *, scored: bool) -> list[Receipt]:
        """Learn these; what they change is in the store when the sitting is closed."""
        learner, view = self._learner, self._view
        journal = PendingJournal(view, self._labels, self._totals.last_seq, stored=self._stored)
        plans: list[PlannedEvent | Receipt] = [
            learner.plan(request, journal) for request in requests
        ]
        work = [plan for plan in plans if isinstance(plan, PlannedEvent)]
        receipts: dict[int, Receipt] = {}
        if work:
            training_rows = self._admit(work)
            for plan in work:
                receipts[plan.seq] = learner.apply_plan(plan, training_rows, journal, scored=scored)
            view.append(*[journal.made[plan.seq] for plan in work])
            self._texts += self._words(work, training_rows.unknown_ids())
        self._totals.last_seq, self._labels = journal.last_seq, journal.labels
        return [plan if isinstance(plan, Receipt) else receipts[plan.seq] for plan in plans]

    def close(self) -> None:
        """Put what has changed."""
        view, training_rows = self._view, self._sheet
        if training_rows is not None:
            view.scatter(training_rows.ids, training_rows.to_records())
            training_rows.totals.last_seq = self._totals.last_seq
            view.put_totals(training_rows.totals)
            # What was learnt and forgotten within the transaction is not there to be named.
            words = MergedWords(self._texts).words(training_rows.new_ids())
            if len(words.ids):
                view.put_words(words)
        self._learner.next_recent = (self._totals.last_seq, self._labels)

    def _admit(self, work: list[PlannedEvent]) -> TrainingRows:
        """The sheet with every row that these plans will touch; they get their rows on it."""
        chunks, spots = _pieces(work)
        for plan in work:
            chunks += self._borrowed(plan)
        ids, places = distinct(chunks)
        rows = None
        if self._sheet is None:
            self._sheet = TrainingRows(self._totals, ids, self._view.gather(ids))
        else:
            rows = self._sheet.add_rows(ids, self._view.gather)
        G = self._learner.recipe.groups
        for plan, spot in zip(work, spots, strict=True):
            shared_ids = plan.example.shared_ids
            if shared_ids is None:
                own = np.concatenate(places[spot : spot + G])
            else:
                own = places[spot].take(shared_ids.rows)
            plan.rows = own if rows is None else rows.take(own)
            plan.sizes = tuple(len(part) for part in plan.example.ids)
        return self._sheet

    def _borrowed(self, plan: PlannedEvent) -> list[Ids]:
        """Ids of other messages that the plan will touch."""
        view = self._view
        chunks = [part for _, ids in plan.rehearsed for part in ids]
        if isinstance(plan.request, BulkLoad):
            chunks.append(plan.request.bulk.ids)
        previous = view.event(plan.previous) if plan.previous else None
        updates = [previous.net_update, previous.delta] if previous else []
        undone = view.event(plan.undoes) if plan.undoes else None
        if undone:
            updates.append(undone.delta)
            if undone.bulk:
                chunks.append(undone.bulk.ids)
        return chunks + [
            part for update in updates for rehearsal in update.rehearsals for part in rehearsal.ids
        ]

    def _words(self, work: list[PlannedEvent], new: Ids) -> list[Words]:
        """The texts of new features: found while the next lessons are still being read."""
        parts: list[Words] = []
        for word_source in _sources(work) if self._learner.recipe.vocabulary else ():
            parts.append(word_source.words(new))
            if len(parts[-1].ids) == len(new):
                break
            new = new[~np.isin(new, parts[-1].ids, assume_unique=True)]
        return parts


def _pieces(work: list[PlannedEvent]) -> tuple[list[Ids], list[int]]:
    """The ids of some plans, those of messages that were read together once; where each one's are.

    To sort what 256 messages hold took twice as long as what their four portions hold.
    """
    chunks: list[Ids] = []
    spots: list[int] = []
    shared: dict[int, int] = {}
    for plan in work:
        shared_ids, spot = plan.example.shared_ids, len(chunks)
        if shared_ids is None:
            chunks += plan.example.ids
        else:
            spot = shared.setdefault(id(shared_ids.ids), spot)
            if spot == len(chunks):
                chunks.append(shared_ids.ids)
        spots.append(spot)
    return chunks, spots


def _sources(work: list[PlannedEvent]) -> Iterable[WordSource]:
    """Where the texts of some plans are."""
    found: dict[int, WordSource] = {}
    for plan in work:
        word_source = (
            plan.request.words if isinstance(plan.request, BulkLoad) else plan.example.words
        )
        if word_source is not None:
            found[id(word_source)] = word_source
    return found.values()
