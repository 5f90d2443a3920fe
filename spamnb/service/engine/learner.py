"""Turn training requests into journal events and apply them to the model.

Runs inside one write transaction on a whole batch of requests. It first plans all of them (labels,
sequence numbers, rehearsals: nothing that depends on scores), then reads every row that the batch
will change in one call, then applies request after request to those rows. A batch therefore leaves
the same events and the same bytes as its requests one by one. Must not know messages, clocks or
files.

Failure: a refused request gives a receipt with its error, and the others are carried out. An error
of the rows or the store aborts the transaction, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from spamnb.core.features.extract import Key, Words, digest_id, distinct
from spamnb.core.model.correction import (
    FeatureHolders,
    correction_updates,
    decision_margins,
    matches_label,
    missing_nats,
)
from spamnb.core.model.costs import Costs, roles_of
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
from spamnb.core.model.scoring import (
    RowView,
    correction_weights,
    doubt,
    joint_lead,
    maturity,
    probabilities,
    scores,
    softmax,
    step,
)
from spamnb.core.model.training_rows import MessageRows, TrainingRows, day_of
from spamnb.core.persons.rows import PersonalRows
from spamnb.service.engine import credit
from spamnb.service.engine.persons import (
    message_for_person,
    scores_for_person,
    with_personal_step,
)
from spamnb.service.engine.planner import (
    STREAK,
    EarlierLabel,
    PendingJournal,
    PlannedEvent,
    Planner,
)
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import BulkLoad, Learn, TrainingRequest
from spamnb.service.engine.scoring import score_examples
from spamnb.service.engine.step_budget import LIMITED, StepBudgets, person_of, sets_users_label
from spamnb.service.engine.words import MergedWords, WordSource
from spamnb.store.contract import ReadView, WriteView
from spamnb.store.rows.codec import encode_event

FEATURE_BYTES = 60
"""Size of a new feature beside its text: a row of 41 bytes and 19 in the vocabulary, as measured
with 200,000 random words."""


class Learner:
    """Carries out the training requests of one model."""

    def __init__(self, recipe: Recipe, costs: Costs) -> None:
        self.recipe = recipe
        self.costs = costs
        self.planner = Planner(recipe, self._is_doubted)
        self._roles = roles_of(recipe.labels)
        self._margins = decision_margins(costs)
        self._key = Key(recipe.key)
        self._budgets = StepBudgets(recipe)
        self._recent: tuple[int, list[int]] = (-1, [])
        self._next_recent, self._next_corrections = self._recent, list[Event]()

    def run(
        self, view: WriteView, requests: Sequence[TrainingRequest], *, scored: bool = True
    ) -> list[Receipt]:
        """Run all requests in order; `scored` adds the probabilities before and after."""
        learning_batch = LearningBatch(self, view)
        receipts = learning_batch.take(requests, scored=scored)
        learning_batch.close()
        return receipts

    def finished(self, last_seq: int, labels: list[int], corrections: list[Event]) -> None:
        """Keep the results of a transaction; `committed` follows when they are in the store."""
        self._next_recent, self._next_corrections = (last_seq, labels), corrections

    def committed(self) -> None:
        """Note that the last run is in the store, so that its events need not be read again."""
        self._recent = self._next_recent
        self._budgets.note(self._next_corrections)

    def newest(self, view: ReadView, last_seq: int) -> list[int]:
        """Return the labels of the newest events, oldest first; reading them takes 0.2 ms."""
        known, labels = self._recent
        if known == last_seq:
            return labels
        return [label for _, label in view.last_events(STREAK)][::-1]

    def plan(self, request: TrainingRequest, journal: PendingJournal) -> PlannedEvent | Receipt:
        """Plan a request, and choose an earlier label of its user to check."""
        plan = self.planner.plan(request, journal)
        if isinstance(plan, PlannedEvent) and self.recipe.kind == "corrected":
            plan.checked = self._budgets.check(plan, journal)
        return plan

    def apply_plan(
        self,
        plan: PlannedEvent,
        training_rows: TrainingRows,
        journal: PendingJournal,
        *,
        scored: bool,
    ) -> Receipt:
        """Make the event of a plan and apply it to the rows."""
        message_rows = plan.message_rows = training_rows.message_rows(plan.rows, plan.sizes)
        scored = scored and bool(plan.example.digest)
        before = self._probability(training_rows, plan, message_rows) if scored else None
        size = self._new_bytes(plan) if scored else 0
        event = _MAKERS[plan.kind](self, plan, training_rows, journal)
        if scored:
            message_rows = training_rows.message_rows(plan.rows, plan.sizes)
        after = self._probability(training_rows, plan, message_rows) if scored else None
        journal.made[plan.seq] = event
        receipt = Receipt(
            changed=True,
            event=plan.seq,
            digest=event.digest.hex(),
            message_id=event.message_id,
            before=self.planner.name(plan.before),
            after=self.planner.name(plan.after),
            probability_before=before,
            probability_after=after,
            limited=plan.left < LIMITED,
            stored_bytes=size + len(encode_event(event)) if scored else 0,
        )
        return self.planner.with_reason(receipt, plan.in_force)

    def _new_bytes(self, plan: PlannedEvent) -> int:
        """Return the size that the new features of a message and their texts will take."""
        assert plan.message_rows is not None
        is_new = plan.message_rows.cells[: len(self.recipe.labels)].sum(axis=0) == 0
        new = np.sort(np.concatenate(plan.example.ids)[is_new])
        words = plan.example.words if self.recipe.vocabulary else None
        texts = int(words.words(new).sizes.sum()) if words else 0
        return FEATURE_BYTES * len(new) + texts

    def make_learn(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """Make a LEARN or MOVE event."""
        request, message_rows = plan.request, plan.message_rows
        assert isinstance(request, Learn)
        plan.credit = self._credit(plan, training_rows, journal)
        assert message_rows is not None
        if plan.before == plan.after:
            return self._reinforced(plan, training_rows, journal)
        times = plan.example.times
        back = self._take_back(plan, training_rows, journal)
        if plan.before != NO_LABEL:
            # The old label is removed first, so that the step is computed on the model without
            # this message, as a forget and a learn would.
            training_rows.count(message_rows, plan.before, NO_LABEL, times=times)
        update = self._step(plan, message_rows, training_rows, journal)
        training_rows.move(
            message_rows, NO_LABEL, plan.after, times=times, day=day_of(request.time_us)
        )
        training_rows.put(message_rows)
        update = self._rehearse(plan, training_rows, update)
        contradicted = plan.in_force is not None and plan.in_force.contradicted
        if plan.person or request.source.immediate or contradicted:
            # Last, because rehearsals may change the score of this message again.
            update = self._enforce_label(plan, training_rows, update)
        delta = update if back is None else back.plus(update)
        return self._event(plan, delta, update)

    def _credit(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> int:
        """Return the credit of the user of a plan, after the check of an earlier label."""
        if not sets_users_label(plan) or self.recipe.kind != "corrected":
            return 0
        agrees = None
        if plan.checked:
            earlier = plan.checked.event or journal.event(plan.checked.seq)
            assert earlier is not None, "a live event that is not folded is in the journal"
            agrees = self._is_confirmed(earlier, plan.checked, training_rows, journal)
        return credit.moved(self._budgets.credit_before(plan, journal), agrees=agrees)

    def _is_confirmed(
        self,
        earlier: Event,
        checked: EarlierLabel,
        training_rows: TrainingRows,
        journal: PendingJournal,
    ) -> bool | None:
        """Return whether others, or else the model without the label, say the same."""
        if checked.administrators != NO_LABEL:
            return checked.administrators == earlier.after
        events = [(label, journal.event(seq)) for label, seq in checked.others]
        believed = [label for label, event in events if event and credit.is_believed(event.credit)]
        if events:
            # The model says of this message what most users say, also those without credit.
            return credit.agreement(earlier.after, believed)
        seen = training_rows.predict_without(self.recipe, earlier)
        return credit.model_agreement(seen, earlier.after)

    def _reinforced(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """Make an event with the steps still missing for the label that the message has."""
        previous = journal.event(plan.previous)
        assert previous is not None, "a live event that is not folded is in the journal"
        update = self._enforce_label(plan, training_rows, self._no_update())
        return self._event(plan, update, previous.net_update.plus(update))

    def _take_back(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Update | None:
        """Subtract the previous event's net update from the rows; return its negation."""
        if plan.before == NO_LABEL:
            return None
        previous = journal.event(plan.previous)
        assert previous is not None, "a live event that is not folded is in the journal"
        back = previous.net_update.negated()
        assert plan.message_rows is not None
        # The rehearsals first: they may share rows with this message.
        training_rows.apply_rehearsals(back)
        training_rows.add_to_totals(back)
        if training_rows.persons is not None:
            training_rows.persons.update(plan.person, plan.example.ids, back)
        plan.message_rows.cells = training_rows.message_rows(plan.rows, plan.sizes).cells
        training_rows.update(plan.message_rows, back.steps)
        return back

    def _step(
        self,
        plan: PlannedEvent,
        message_rows: MessageRows,
        training_rows: TrainingRows,
        journal: PendingJournal,
    ) -> Update:
        recipe = self.recipe
        if recipe.kind != "corrected":
            return self._no_update()
        seen = training_rows.predict(recipe, message_rows)
        plan.left = self._budgets.left(plan, training_rows.totals.messages, journal)
        weight = plan.request.source.weight * plan.left * doubt(seen, plan.after)
        update = step(recipe, seen, message_rows.sizes, plan.after, weight)
        training_rows.update(message_rows, update.steps)
        training_rows.add_to_totals(update)
        return update

    def _enforce_label(
        self, plan: PlannedEvent, training_rows: TrainingRows, update: Update
    ) -> Update:
        """Add what the label in force still lacks, on features that few other messages contain.

        A label of a person with corrections of their own changes these instead.
        """
        if plan.person:
            costs = plan.request.source.costs or self.costs
            return with_personal_step(self.recipe, costs, plan, training_rows, update)
        recipe, message_rows = self.recipe, training_rows.message_rows(plan.rows, plan.sizes)
        label = plan.after if plan.in_force is None else plan.in_force.label
        seen = training_rows.predict(recipe, message_rows)
        if recipe.kind != "corrected" or matches_label(seen.z, label, self.costs, self._roles):
            return update
        margin = joint_lead(self._margins[self._roles[label]], maturity(training_rows.totals))
        nats = missing_nats(seen.joint, label, margin)
        counts = message_rows.cells[: len(recipe.labels)]
        message = FeatureHolders(
            plan.example.ids,
            counts.sum(axis=0),
            correction_weights(training_rows.totals.messages, counts),
            digest_id(self._key, plan.example.digest),
        )
        rehearsals = correction_updates(recipe, message, label, nats)
        more = self._no_update()._replace(rehearsals=rehearsals)
        training_rows.apply_rehearsals(more)
        return update.plus(more)

    def _is_doubted(self, view: ReadView, request: Learn) -> bool:
        """Return whether the stored model classifies a message otherwise than this label says."""
        example, source = request.example, request.source
        if source.person:
            z = scores_for_person(self.recipe, view, example.ids, source.person)
        else:
            z = list(score_examples(self.recipe, self.costs, view, [example])[0].z)
        return not matches_label(z, request.label, source.costs or self.costs, self._roles)

    def _rehearse(self, plan: PlannedEvent, training_rows: TrainingRows, update: Update) -> Update:
        for label, ids in plan.rehearsed:
            message_rows = training_rows.find(ids)
            seen = training_rows.predict(self.recipe, message_rows)
            rehearsal = step(self.recipe, seen, message_rows.sizes, label, doubt(seen, label))
            training_rows.update(message_rows, rehearsal.steps)
            training_rows.put(message_rows)
            training_rows.add_to_totals(rehearsal)
            update = update._replace(
                bias=update.bias + rehearsal.bias,
                temperatures=update.temperatures + rehearsal.temperatures,
                rehearsals=(*update.rehearsals, RehearsalUpdate(ids, rehearsal.steps)),
            )
        return update

    def make_forget(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """Make a FORGET event: subtract the old step, then the counts."""
        back = self._take_back(plan, training_rows, journal)
        assert back is not None
        assert plan.message_rows is not None
        training_rows.move(plan.message_rows, plan.before, NO_LABEL, times=plan.example.times)
        training_rows.put(plan.message_rows)
        return self._event(plan, back, self._no_update())

    def make_undo(
        self, plan: PlannedEvent, training_rows: TrainingRows, journal: PendingJournal
    ) -> Event:
        """Make an UNDO event, the negation of another event."""
        undone = journal.event(plan.undoes)
        assert undone is not None, "what is undone is in the journal"
        older = journal.event(undone.previous) if undone.previous else None
        net_update = older.net_update if older else self._no_update()
        event = self._event(plan, undone.delta.negated(), net_update)
        bulk = undone.bulk.negated() if undone.bulk else None
        event = event._replace(undoes=undone.seq, bulk=bulk)
        training_rows.apply(event)
        return event

    def make_load(
        self, plan: PlannedEvent, training_rows: TrainingRows, _: PendingJournal
    ) -> Event:
        """Make an IMPORT, EXPIRE or SCORES event."""
        request = plan.request
        assert isinstance(request, BulkLoad)
        event = self._event(plan, self._no_update(), self._no_update())._replace(bulk=request.bulk)
        training_rows.apply(event)
        return event

    def _event(self, plan: PlannedEvent, delta: Update, net_update: Update) -> Event:
        example, request = plan.example, plan.request
        return Event(
            seq=plan.seq,
            kind=plan.kind,
            time_us=request.time_us,
            user=request.source.user,
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
            person=plan.person,
            owner=plan.owner,
            credit=plan.credit,
        )

    def _no_update(self) -> Update:
        return no_update(self.recipe.groups, len(self.recipe.labels))

    def _probability(
        self, training_rows: TrainingRows, plan: PlannedEvent, message_rows: MessageRows
    ) -> float:
        """Return the probability of spam, or of the last label, for the person of a plan."""
        labels = self.recipe.labels
        at = labels.index("spam") if "spam" in labels else len(labels) - 1
        if plan.person:
            message = message_for_person(self.recipe, plan, training_rows)
            return softmax(message.predict().z)[at]
        if self.recipe.kind == "corrected":
            return softmax(training_rows.predict(self.recipe, message_rows).z)[at]
        records = training_rows.records_of(message_rows)
        rows = np.arange(len(message_rows.rows))
        view = RowView(
            rows, np.array([0, len(rows)]), np.array(message_rows.sizes), plan.example.times
        )
        return float(probabilities(scores(self.recipe, training_rows.totals, records, view))[0, at])


_MAKERS: dict[EventKind, Callable[..., Event]] = {
    EventKind.LEARN: Learner.make_learn,
    EventKind.MOVE: Learner.make_learn,
    EventKind.FORGET: Learner.make_forget,
    EventKind.UNDO: Learner.make_undo,
    EventKind.IMPORT: Learner.make_load,
    EventKind.EXPIRE: Learner.make_load,
    EventKind.SCORES: Learner.make_load,
}


class LearningBatch:
    """Requests of one transaction; their rows stay in memory until `close` writes them back.

    Reading and writing the rows for every thousand messages took a sixth of bulk training.
    """

    def __init__(self, learner: Learner, view: WriteView) -> None:
        self._learner = learner
        self._view = view
        self._totals = view.totals()
        self._stored = self._totals.last_seq
        self._labels = learner.newest(view, self._totals.last_seq)
        self._rows: TrainingRows | None = None
        self._texts: list[Words] = []
        """the texts of all new features"""
        self._corrections: list[Event] = []
        """events that used a budget"""

    def take(self, requests: Sequence[TrainingRequest], *, scored: bool) -> list[Receipt]:
        """Run these requests; their changes are in the store after `close`."""
        learner, view = self._learner, self._view
        journal = PendingJournal(view, self._labels, self._totals.last_seq, stored=self._stored)
        plans = [learner.plan(request, journal) for request in requests]
        work = [plan for plan in plans if isinstance(plan, PlannedEvent)]
        receipts: dict[int, Receipt] = {}
        if work:
            training_rows = self._add_rows(work)
            for plan in work:
                receipts[plan.seq] = learner.apply_plan(plan, training_rows, journal, scored=scored)
            events = [journal.made[plan.seq] for plan in work]
            view.append(*events)
            self._corrections += [event for event in events if person_of(event) is not None]
            self._texts += self._words(work, training_rows.unknown_ids())
        self._totals.last_seq, self._labels = journal.last_seq, journal.labels
        return [plan if isinstance(plan, Receipt) else receipts[plan.seq] for plan in plans]

    def close(self) -> None:
        """Write the changed rows, totals and words to the store."""
        view, training_rows = self._view, self._rows
        if training_rows is not None:
            view.scatter(training_rows.ids, training_rows.to_records())
            training_rows.totals.last_seq = self._totals.last_seq
            view.put_totals(training_rows.totals)
            assert training_rows.persons is not None
            for person, personal in training_rows.persons.changed():
                view.put_personal(person, personal)
            if self._texts:
                # A feature learnt and forgotten within the transaction is not in the store.
                words = MergedWords(self._texts).words(training_rows.new_ids())
                if len(words.ids):
                    view.put_words(words)
        self._learner.finished(self._totals.last_seq, self._labels, self._corrections)

    def _add_rows(self, work: list[PlannedEvent]) -> TrainingRows:
        """Return rows for every id that these plans will change; set each plan's indexes."""
        chunks, spots = _distinct_parts(work)
        for plan in work:
            chunks += self._other_ids(plan)
        ids, places = distinct(chunks)
        rows = None
        if self._rows is None:
            persons = PersonalRows(len(self._learner.recipe.labels), self._view.personal)
            self._rows = TrainingRows(self._totals, ids, self._view.gather(ids), persons)
        else:
            rows = self._rows.add_rows(ids, self._view.gather)
        G = self._learner.recipe.groups
        for plan, spot in zip(work, spots, strict=True):
            shared_ids = plan.example.shared_ids
            if shared_ids is None:
                own = np.concatenate(places[spot : spot + G])
            else:
                own = places[spot].take(shared_ids.rows)
            plan.rows = own if rows is None else rows.take(own)
            plan.sizes = tuple(len(part) for part in plan.example.ids)
        return self._rows

    def _other_ids(self, plan: PlannedEvent) -> list[Ids]:
        """Return the ids that the plan will change beside those of its message."""
        view = self._view
        chunks = [part for _, ids in plan.rehearsed for part in ids]
        if isinstance(plan.request, BulkLoad) and not plan.person:
            chunks.append(plan.request.bulk.ids)
        previous = view.event(plan.previous) if plan.previous else None
        updates = [previous.net_update, previous.delta] if previous else []
        checked = plan.checked.event if plan.checked else None
        if checked:
            chunks += checked.ids
            updates.append(checked.net_update)
        undone = view.event(plan.undoes) if plan.undoes else None
        if undone:
            updates.append(undone.delta)
            if undone.bulk and not undone.person:
                chunks.append(undone.bulk.ids)
        return chunks + [
            part for update in updates for rehearsal in update.rehearsals for part in rehearsal.ids
        ]

    def _words(self, work: list[PlannedEvent], new: Ids) -> list[Words]:
        """Return the texts of new features, while later messages are still being parsed."""
        parts: list[Words] = []
        for word_source in _sources(work) if self._learner.recipe.vocabulary else ():
            parts.append(word_source.words(new))
            if len(parts[-1].ids) == len(new):
                break
            new = new[~np.isin(new, parts[-1].ids, assume_unique=True)]
        return parts


def _distinct_parts(work: list[PlannedEvent]) -> tuple[list[Ids], list[int]]:
    """Return the ids of these plans and where each plan's begin; a batch's ids are listed once.

    Sorting the ids of 256 messages took twice as long as sorting those of their four batches.
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
    """Return the distinct word sources of these plans."""
    found: dict[int, WordSource] = {}
    for plan in work:
        word_source = (
            plan.request.words if isinstance(plan.request, BulkLoad) else plan.example.words
        )
        if word_source is not None:
            found[id(word_source)] = word_source
    return found.values()
