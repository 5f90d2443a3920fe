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
from spamnb.core.model.correction import EXPECTED, Holders, insisted, margins, missing
from spamnb.core.model.costs import Costs, roles_of
from spamnb.core.model.decision import decide
from spamnb.core.model.events import (
    NO_LABEL,
    Echo,
    Event,
    Ids,
    Kind,
    Push,
    Recipe,
    no_push,
)
from spamnb.core.model.scoring import View, doubt, probabilities, scores, softmax, step
from spamnb.core.model.training_rows import Lines, Sheet, day_of
from spamnb.service.engine.planner import STREAK, Outlook, Plan, Planner
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Example, Lesson, Load, Teach, WordSource
from spamnb.service.engine.scoring import judge_examples
from spamnb.service.engine.step_budget import StepBudgets
from spamnb.service.training.packing import Glossary
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
        self, view: WriteView, lessons: Sequence[Lesson], *, scored: bool = True
    ) -> list[Receipt]:
        """All lessons in order; `scored` asks for the probabilities before and after."""
        sitting = Sitting(self, view)
        receipts = sitting.take(lessons, scored=scored)
        sitting.close()
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

    def plan(self, lesson: Lesson, journal: Outlook) -> Plan | Receipt:
        """What a lesson will change, or why nothing."""
        return self._planner.plan(lesson, journal)

    def carry_out(self, plan: Plan, sheet: Sheet, journal: Outlook, *, scored: bool) -> Receipt:
        """Make a plan's event, and change the sheet by it."""
        lines = plan.lines = sheet.lines(plan.rows, plan.sizes)
        scored = scored and bool(plan.example.digest)
        times = plan.example.times
        before = self._probability(sheet, lines, times) if scored else None
        event = _MAKERS[plan.kind](self, plan, sheet, journal)
        if scored:
            lines = sheet.lines(plan.rows, plan.sizes)
        after = self._probability(sheet, lines, times) if scored else None
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

    def make_taught(self, plan: Plan, sheet: Sheet, journal: Outlook) -> Event:
        """A learn or a move."""
        lesson, lines = plan.lesson, plan.lines
        assert isinstance(lesson, Teach)
        assert lines is not None
        if plan.before == plan.after:
            return self._reinforced(plan, sheet, journal)
        times = plan.example.times
        back = self._take_back(plan, sheet, journal)
        if plan.before != NO_LABEL:
            # As if it had not been known: the old label goes first, so the step sees the model
            # without this message, as a forget and a learn would.
            sheet.count(lines, plan.before, NO_LABEL, times=times)
        push = self._step(plan, lines, sheet, journal)
        sheet.move(lines, NO_LABEL, plan.after, times=times, day=day_of(lesson.time_us))
        sheet.put(lines)
        push = self._rehearse(plan, sheet, push)
        if lesson.origin.insist:
            # Last of all, for what is rehearsed may pull this message back.
            push = self._insist(plan, sheet, push)
        delta = push if back is None else back.plus(push)
        return self._event(plan, delta, push)

    def _reinforced(self, plan: Plan, sheet: Sheet, journal: Outlook) -> Event:
        """What is still missing towards the label that the message has."""
        previous = journal.event(plan.previous)
        assert previous is not None, "a live event that is not folded is in the journal"
        push = self._insist(plan, sheet, self._nothing())
        return self._event(plan, push, previous.standing.plus(push))

    def _take_back(self, plan: Plan, sheet: Sheet, journal: Outlook) -> Push | None:
        """The negated standing of the event before, already applied to the sheet."""
        if plan.before == NO_LABEL:
            return None
        previous = journal.event(plan.previous)
        assert previous is not None, "a live event that is not folded is in the journal"
        back = previous.standing.negated()
        assert plan.lines is not None
        # The echoes first: they may share rows with this message.
        sheet.echo(back)
        sheet.lean(back)
        plan.lines.cells = sheet.lines(plan.rows, plan.sizes).cells
        sheet.push(plan.lines, back.steps)
        return back

    def _step(self, plan: Plan, lines: Lines, sheet: Sheet, journal: Outlook) -> Push:
        recipe = self.recipe
        if recipe.kind != "corrected":
            return self._nothing()
        seen = sheet.opinion(recipe, lines)
        left = self._budgets.left(plan, sheet.totals.messages, journal)
        weight = plan.lesson.origin.weight * left * doubt(seen, plan.after)
        push = step(recipe, seen, lines.sizes, plan.after, weight)
        sheet.push(lines, push.steps)
        sheet.lean(push)
        return push

    def _insist(self, plan: Plan, sheet: Sheet, push: Push) -> Push:
        """Add what is missing for a person's label on features that are hardly any other's."""
        recipe, lines = self.recipe, sheet.lines(plan.rows, plan.sizes)
        z, label = sheet.opinion(recipe, lines).z, plan.after
        if recipe.kind != "corrected" or self.agrees(z, label):
            return push
        nats = missing(z, label, self._margins[self._roles[label]])
        held = lines.cells[: len(recipe.labels)].sum(axis=0)
        message = Holders(plan.example.ids, held, own_id(self._key, plan.example.digest))
        echoes = insisted(recipe, message, label, nats)
        more = self._nothing()._replace(echoes=echoes)
        sheet.echo(more)
        return push.plus(more)

    def needs_more(self, view: ReadView, example: Example, label: int) -> bool:
        """Whether a message has the label, but is judged otherwise all the same."""
        live = view.live(example.digest)
        if live is None or live.label != label:
            return False
        verdict = judge_examples(self.recipe, self.costs, view, [example])[0]
        return not self.agrees(list(verdict.z), label)

    def agrees(self, z: list[float], label: int) -> bool:
        """Whether verdict and decision are what a person who gave this label would expect."""
        if max(z) != z[label]:
            return False
        return decide(softmax(z), self.costs, self._roles) in EXPECTED[self._roles[label]]

    def _rehearse(self, plan: Plan, sheet: Sheet, push: Push) -> Push:
        for label, ids in plan.rehearsed:
            lines = sheet.find(ids)
            seen = sheet.opinion(self.recipe, lines)
            echo = step(self.recipe, seen, lines.sizes, label, doubt(seen, label))
            sheet.push(lines, echo.steps)
            sheet.put(lines)
            sheet.lean(echo)
            push = Push(
                push.steps,
                push.bias + echo.bias,
                push.tempers + echo.tempers,
                (*push.echoes, Echo(ids, echo.steps)),
            )
        return push

    def make_forget(self, plan: Plan, sheet: Sheet, journal: Outlook) -> Event:
        """The old step goes, then the counts."""
        back = self._take_back(plan, sheet, journal)
        assert back is not None
        assert plan.lines is not None
        sheet.move(plan.lines, plan.before, NO_LABEL, times=plan.example.times)
        sheet.put(plan.lines)
        return self._event(plan, back, self._nothing())

    def make_undo(self, plan: Plan, sheet: Sheet, journal: Outlook) -> Event:
        """The opposite of an event."""
        undone = journal.event(plan.undoes)
        assert undone is not None, "what is undone is in the journal"
        older = journal.event(undone.previous) if undone.previous else None
        standing = older.standing if older else self._nothing()
        event = self._event(plan, undone.delta.negated(), standing)
        bulk = undone.bulk.negated() if undone.bulk else None
        event = event._replace(undoes=undone.seq, bulk=bulk)
        sheet.apply(event)
        return event

    def make_load(self, plan: Plan, sheet: Sheet, _: Outlook) -> Event:
        """Counts from elsewhere, or counts that go."""
        lesson = plan.lesson
        assert isinstance(lesson, Load)
        event = self._event(plan, self._nothing(), self._nothing())._replace(bulk=lesson.bulk)
        sheet.apply(event)
        return event

    def _event(self, plan: Plan, delta: Push, standing: Push) -> Event:
        example, lesson = plan.example, plan.lesson
        return Event(
            seq=plan.seq,
            kind=plan.kind,
            time_us=lesson.time_us,
            who=lesson.origin.who,
            channel=lesson.origin.channel,
            digest=example.digest,
            message_id=example.message_id,
            before=plan.before,
            after=plan.after,
            previous=plan.previous,
            ids=example.ids,
            delta=delta,
            standing=standing,
            times=example.times if self.recipe.occurrences else None,
            insist=lesson.origin.insist,
            weight=lesson.origin.weight,
        )

    def _nothing(self) -> Push:
        return no_push(self.recipe.groups, len(self.recipe.labels))

    def _probability(self, sheet: Sheet, lines: Lines, times: NDArray[np.uint32] | None) -> float:
        """Of spam, or of the last label."""
        labels = self.recipe.labels
        at = labels.index("spam") if "spam" in labels else len(labels) - 1
        if self.recipe.kind == "corrected":
            return sheet.opinion(self.recipe, lines).P[at]
        records = sheet.records_of(lines)
        rows = np.arange(len(lines.rows))
        view = View(rows, np.array([0, len(rows)]), np.array(lines.sizes), times)
        return float(probabilities(scores(self.recipe, sheet.totals, records, view))[0, at])


_MAKERS: dict[Kind, Callable[..., Event]] = {
    Kind.LEARN: Learner.make_taught,
    Kind.MOVE: Learner.make_taught,
    Kind.FORGET: Learner.make_forget,
    Kind.UNDO: Learner.make_undo,
    Kind.IMPORT: Learner.make_load,
    Kind.EXPIRE: Learner.make_load,
}


class Sitting:
    """Lessons of one transaction, as they come: their rows stay on one sheet until it is closed.

    To gather and put back the rows of every thousand messages took a sixth of bulk training.
    """

    def __init__(self, learner: Learner, view: WriteView) -> None:
        self._learner = learner
        self._view = view
        self._totals = view.totals()
        self._stored = self._totals.last_seq
        self._labels = learner.newest(view, self._totals.last_seq)
        self._sheet: Sheet | None = None
        self._texts: list[Words] = []
        """of all features that were new"""

    def take(self, lessons: Sequence[Lesson], *, scored: bool) -> list[Receipt]:
        """Learn these; what they change is in the store when the sitting is closed."""
        learner, view = self._learner, self._view
        journal = Outlook(view, self._labels, self._totals.last_seq, stored=self._stored)
        plans: list[Plan | Receipt] = [learner.plan(lesson, journal) for lesson in lessons]
        work = [plan for plan in plans if isinstance(plan, Plan)]
        receipts: dict[int, Receipt] = {}
        if work:
            sheet = self._admit(work)
            for plan in work:
                receipts[plan.seq] = learner.carry_out(plan, sheet, journal, scored=scored)
            view.append(*[journal.made[plan.seq] for plan in work])
            self._texts += self._words(work, sheet.strangers())
        self._totals.last_seq, self._labels = journal.last_seq, journal.labels
        return [plan if isinstance(plan, Receipt) else receipts[plan.seq] for plan in plans]

    def close(self) -> None:
        """Put what has changed."""
        view, sheet = self._view, self._sheet
        if sheet is not None:
            view.scatter(sheet.ids, sheet.settled())
            sheet.totals.last_seq = self._totals.last_seq
            view.put_totals(sheet.totals)
            # What was learnt and forgotten within the transaction is not there to be named.
            words = Glossary(self._texts).words(sheet.born())
            if len(words.ids):
                view.put_words(words)
        self._learner.next_recent = (self._totals.last_seq, self._labels)

    def _admit(self, work: list[Plan]) -> Sheet:
        """The sheet with every row that these plans will touch; they get their rows on it."""
        pieces, spots = _pieces(work)
        for plan in work:
            pieces += self._borrowed(plan)
        ids, places = distinct(pieces)
        rows = None
        if self._sheet is None:
            self._sheet = Sheet(self._totals, ids, self._view.gather(ids))
        else:
            rows = self._sheet.admit(ids, self._view.gather)
        G = self._learner.recipe.groups
        for plan, spot in zip(work, spots, strict=True):
            among = plan.example.among
            if among is None:
                own = np.concatenate(places[spot : spot + G])
            else:
                own = places[spot].take(among.rows)
            plan.rows = own if rows is None else rows.take(own)
            plan.sizes = tuple(len(part) for part in plan.example.ids)
        return self._sheet

    def _borrowed(self, plan: Plan) -> list[Ids]:
        """Ids of other messages that the plan will touch."""
        view = self._view
        pieces = [part for _, ids in plan.rehearsed for part in ids]
        if isinstance(plan.lesson, Load):
            pieces.append(plan.lesson.bulk.ids)
        previous = view.event(plan.previous) if plan.previous else None
        pushes = [previous.standing, previous.delta] if previous else []
        undone = view.event(plan.undoes) if plan.undoes else None
        if undone:
            pushes.append(undone.delta)
            if undone.bulk:
                pieces.append(undone.bulk.ids)
        return pieces + [part for push in pushes for echo in push.echoes for part in echo.ids]

    def _words(self, work: list[Plan], new: Ids) -> list[Words]:
        """The texts of new features: found while the next lessons are still being read."""
        parts: list[Words] = []
        for source in _sources(work) if self._learner.recipe.vocabulary else ():
            parts.append(source.words(new))
            if len(parts[-1].ids) == len(new):
                break
            new = new[~np.isin(new, parts[-1].ids, assume_unique=True)]
        return parts


def _pieces(work: list[Plan]) -> tuple[list[Ids], list[int]]:
    """The ids of some plans, those of messages that were read together once; where each one's are.

    To sort what 256 messages hold took twice as long as what their four portions hold.
    """
    pieces: list[Ids] = []
    spots: list[int] = []
    shared: dict[int, int] = {}
    for plan in work:
        among, spot = plan.example.among, len(pieces)
        if among is None:
            pieces += plan.example.ids
        else:
            spot = shared.setdefault(id(among.ids), spot)
            if spot == len(pieces):
                pieces.append(among.ids)
        spots.append(spot)
    return pieces, spots


def _sources(work: list[Plan]) -> Iterable[WordSource]:
    """Where the texts of some plans are."""
    found: dict[int, WordSource] = {}
    for plan in work:
        source = plan.lesson.words if isinstance(plan.lesson, Load) else plan.example.words
        if source is not None:
            found[id(source)] = source
    return found.values()
