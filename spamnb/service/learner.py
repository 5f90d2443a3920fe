"""From lessons to events: who was taught what before, which step to take, which message to rehearse.

Runs inside one write transaction, on a whole batch of lessons: first it plans (labels, sequence
numbers, rehearsals: nothing that depends on scores), then gathers every row that the batch will
touch at once, then goes lesson by lesson over that sheet. So a batch leaves the same events and
the same bytes as its lessons one by one. Must not know messages, clocks or files.

Failure: a lesson that the rules forbid gives a receipt with its error, and the others go on. An
error from the sheet or the store leaves the transaction, and with it everything as it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from spamnb.core.decision import DECISIONS, Costs, decide
from spamnb.core.decision import roles_of
from spamnb.core.event import (
    NO_LABEL,
    Echo,
    Event,
    Ids,
    Kind,
    Push,
    Recipe,
    Totals,
    no_push,
)
from spamnb.core.features import Words, distinct
from spamnb.core.model import View, probabilities, scores, step
from spamnb.core.sheet import Lines, Sheet, day_of
from spamnb.errors import RefError, RefusedError, SpamnbError
from spamnb.service.lessons import Example, Forget, Lesson, Load, Teach, Undo, WordSource
from spamnb.service.receipt import Receipt
from spamnb.store.contract import Live, Word, WriteView

STREAK = 20
"""After so many events of one label, each further one rehearses the others. Bulk training is
interleaved and never gets there; one class after the other does (experiment 0003)."""
INSISTENCE = 20
"""Steps that a person's correction may take; two or three are usual."""


@dataclass(slots=True)
class _Plan:
    """One lesson that will change something: everything about its event but the steps."""

    kind: Kind
    seq: int
    example: Example
    before: int
    after: int
    previous: int
    lesson: Lesson
    rehearsed: tuple[tuple[int, tuple[Ids, ...]], ...] = ()
    """(label, ids) of the earlier messages that are rehearsed"""
    undone: Event | None = None
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: tuple[int, ...] = ()
    lines: Lines | None = None


@dataclass(slots=True)
class _Journal:
    """The journal as it will be while the batch goes on: the store's, and our own beside it."""

    view: WriteView
    labels: list[int]
    """labels of the newest events, oldest first"""
    last_seq: int
    live: dict[bytes, Live] = field(default_factory=dict)
    planned: dict[int, _Plan] = field(default_factory=dict)
    made: dict[int, Event] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    ours: dict[int, list[int]] = field(default_factory=dict)
    """sequence numbers of this batch that are live, by label, rising"""

    def standing(self, digest: bytes) -> Live | None:
        """What is held of a message now."""
        return self.live.get(digest) or self.view.live(digest)

    def take(self, plan: _Plan) -> None:
        """Note an event that will be made."""
        self.last_seq = plan.seq
        self.planned[plan.seq] = plan
        if plan.previous:
            self.gone.add(plan.previous)
            if plan.previous in self.ours.get(plan.before, ()):
                self.ours[plan.before].remove(plan.previous)
        self.ours.setdefault(plan.after, []).append(plan.seq)
        if plan.example.digest:
            self.live[plan.example.digest] = Live(plan.after, plan.seq, False)
        if plan.kind in (Kind.LEARN, Kind.MOVE):
            self.labels = [*self.labels[1 - STREAK :], plan.after]

    def event(self, seq: int) -> Event | None:
        """An event of the store, or one made in this batch."""
        return self.made.get(seq) or self.view.event(seq)

    def ids_of(self, seq: int) -> tuple[Ids, ...]:
        """The ids of an event that may not be made yet."""
        plan = self.planned.get(seq)
        if plan:
            return plan.example.ids
        event = self.view.event(seq)
        return event.ids if event else ()

    def find_live(self, label: int, seq: int) -> int:
        """As the store's `live_at`, over both."""
        ours = self.ours.get(label, [])
        found = self.view.live_at(label, seq)
        while found in self.gone and found:
            following = self.view.live_at(label, found + 1)
            found = 0 if following <= found else following
        if found >= seq or not ours:
            return found
        later = bisect_left(ours, seq)
        return ours[later] if later < len(ours) else found or ours[0]

    def root(self, seq: int) -> int:
        """The event whose state holds after `seq`: an undo leads back to what it uncovered."""
        event = self.event(seq)
        while event and event.kind == Kind.UNDO:
            undone = self.event(event.undoes)
            seq = undone.previous if undone else 0
            event = self.event(seq)
        return seq


def _spread(number: int) -> int:
    """Any number to one that looks random: splitmix64."""
    number = (number * 0x9E3779B97F4A7C15 + 0x1234567) & (2**64 - 1)
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    return number ^ (number >> 31)


class Learner:
    """Teaches one model."""

    def __init__(self, recipe: Recipe, costs: Costs) -> None:
        self.recipe = recipe
        self.costs = costs
        self._roles = roles_of(recipe.labels)

    def run(
        self, view: WriteView, lessons: Sequence[Lesson], *, scored: bool = True
    ) -> list[Receipt]:
        """All lessons in order; `scored` asks for the probabilities before and after."""
        totals = view.totals()
        newest = [label for _, label in view.last_events(STREAK)]
        journal = _Journal(view, newest[::-1], totals.last_seq)
        plans: list[_Plan | Receipt] = [self._planned(lesson, journal) for lesson in lessons]
        work = [plan for plan in plans if isinstance(plan, _Plan)]
        if work:
            sheet = self._gather(view, totals, work)
            if self.recipe.vocabulary:
                _keep_words(view, sheet, work)
            receipts = {plan.seq: self._carry_out(plan, sheet, journal, scored) for plan in work}
            sheet.totals.last_seq = journal.last_seq
            view.scatter(sheet.ids, sheet.settled())
            view.put_totals(sheet.totals)
        return [plan if isinstance(plan, Receipt) else receipts[plan.seq] for plan in plans]

    # -- planning -------------------------------------------------------------------------------

    def _planned(self, lesson: Lesson, journal: _Journal) -> _Plan | Receipt:
        try:
            plan = _PLANNERS[type(lesson)](self, lesson, journal)
        except SpamnbError as error:
            return _refused(lesson, error)
        if isinstance(plan, _Plan):
            journal.take(plan)
        return plan

    def _plan_teach(self, lesson: Teach, journal: _Journal) -> _Plan | Receipt:
        example = lesson.example
        live = journal.standing(example.digest)
        before = live.label if live else NO_LABEL
        if live and before == lesson.label:
            return self._unchanged(example, live, "already learnt with this label")
        if live and live.folded and before != NO_LABEL:
            raise RefusedError(
                f"this message was learnt as {self.recipe.labels[before]} before the checkpoint",
                hint="what went into the checkpoint stays; teach newer messages instead",
            )
        kind = Kind.LEARN if before == NO_LABEL else Kind.MOVE
        previous = live.seq if live and not live.folded else 0
        plan = _Plan(kind, journal.last_seq + 1, example, before, lesson.label, previous, lesson)
        plan.rehearsed = self._rehearsals(plan, journal)
        return plan

    def _rehearsals(
        self, plan: _Plan, journal: _Journal
    ) -> tuple[tuple[int, tuple[Ids, ...]], ...]:
        """An earlier message of each other label, when only one was taught for a while."""
        if self.recipe.kind != "corrected" or journal.labels.count(plan.after) < STREAK:
            return ()
        found = []
        for label in range(len(self.recipe.labels)):
            if label != plan.after:
                seq = journal.find_live(label, _spread(plan.seq) % plan.seq + 1)
                if seq and seq != plan.previous:
                    found.append((label, journal.ids_of(seq)))
        return tuple(found)

    def _plan_forget(self, lesson: Forget, journal: _Journal) -> _Plan | Receipt:
        live = journal.standing(lesson.digest)
        if live is None:
            raise RefError(
                f"no message with digest {lesson.digest.hex()} was ever learnt",
                hint="see `spamnb journal` for what was",
            )
        if live.label == NO_LABEL:
            nothing = Example(lesson.digest, "", ())
            return self._unchanged(nothing, live, "already forgotten")
        if live.folded:
            raise RefusedError(
                f"this message was learnt as {self.recipe.labels[live.label]} before the checkpoint",
                hint="what went into the checkpoint stays",
            )
        planned = journal.planned.get(live.seq)
        event = journal.event(live.seq)
        example = planned.example if planned else _example_of(event) if event else None
        assert example is not None, "a live event that is not folded is in the journal"
        seq = journal.last_seq + 1
        return _Plan(Kind.FORGET, seq, example, live.label, NO_LABEL, live.seq, lesson)

    def _plan_undo(self, lesson: Undo, journal: _Journal) -> _Plan | Receipt:
        event = journal.event(lesson.event)
        if event is None:
            raise RefError(
                f"the journal has no event {lesson.event}",
                hint="it is not a receipt of this model, or it went into the checkpoint",
            )
        live = journal.standing(event.digest) if event.digest else None
        if live and journal.root(live.seq) != event.seq:
            newer = journal.event(live.seq)
            if newer and newer.undoes == event.seq:
                return self._unchanged(_example_of(event), live, "already undone")
            raise RefusedError(
                f"event {event.seq} was followed by event {live.seq} on the same message",
                hint=f"undo {live.seq} first",
            )
        seq, example = journal.last_seq + 1, _example_of(event)
        previous = live.seq if live else event.seq
        plan = _Plan(Kind.UNDO, seq, example, event.after, event.before, previous, lesson)
        plan.undone = event
        return plan

    def _plan_load(self, lesson: Load, journal: _Journal) -> _Plan | Receipt:
        nothing = Example(b"", "", tuple(np.zeros(0, np.uint64) for _ in range(self.recipe.groups)))
        kind = Kind.EXPIRE if lesson.expire else Kind.IMPORT
        return _Plan(kind, journal.last_seq + 1, nothing, NO_LABEL, NO_LABEL, 0, lesson)

    # -- carrying out ---------------------------------------------------------------------------

    def _gather(self, view: WriteView, totals: Totals, work: list[_Plan]) -> Sheet:
        """One sheet with every row that the batch will touch; the plans get their rows on it."""
        pieces: list[Ids] = []
        for plan in work:
            pieces += plan.example.ids
        for plan in work:
            pieces += self._borrowed(plan, view)
        ids, places = distinct(pieces)
        sheet = Sheet(self.recipe, totals, ids, view.gather(ids))
        G = self.recipe.groups
        for index, plan in enumerate(work):
            plan.rows = np.concatenate(places[index * G : (index + 1) * G])
            plan.sizes = tuple(len(part) for part in plan.example.ids)
        return sheet

    def _borrowed(self, plan: _Plan, view: WriteView) -> list[Ids]:
        """Ids of other messages that the plan will touch."""
        pieces = [part for _, ids in plan.rehearsed for part in ids]
        if isinstance(plan.lesson, Load):
            pieces.append(plan.lesson.bulk.ids)
        previous = view.event(plan.previous) if plan.previous else None
        pushes = [previous.standing, previous.delta] if previous else []
        if plan.undone:
            pushes += [plan.undone.delta]
            if plan.undone.bulk:
                pieces.append(plan.undone.bulk.ids)
        return pieces + [part for push in pushes for echo in push.echoes for part in echo.ids]

    def _carry_out(self, plan: _Plan, sheet: Sheet, journal: _Journal, scored: bool) -> Receipt:
        lines = plan.lines = sheet.lines(plan.rows, plan.sizes)
        scored = scored and bool(plan.example.digest)
        before = self._probability(sheet, lines) if scored else None
        event = _MAKERS[plan.kind](self, plan, sheet, journal)
        if scored:
            lines = sheet.lines(plan.rows, plan.sizes)
        after = self._probability(sheet, lines) if scored else None
        journal.made[plan.seq] = event
        journal.view.append(event)
        return Receipt(
            changed=True,
            event=plan.seq,
            digest=event.digest.hex(),
            message_id=event.message_id,
            before=self._name(plan.before),
            after=self._name(plan.after),
            probability_before=before,
            probability_after=after,
        )

    def _make_taught(self, plan: _Plan, sheet: Sheet, journal: _Journal) -> Event:
        lesson, lines = plan.lesson, plan.lines
        assert isinstance(lesson, Teach)
        assert lines is not None
        day = day_of(lesson.time_us)
        back = self._take_back(plan, sheet, journal)
        times = plan.example.times
        if plan.before != NO_LABEL:
            # As if it had not been known: the old label goes first, so the step sees the model
            # without this message, as a forget and a learn would.
            sheet.move(lines, plan.before, NO_LABEL, times=times)
        push = self._step(sheet, lines, plan.after, lesson)
        sheet.move(lines, NO_LABEL, plan.after, times=times, day=day)
        if lesson.origin.insist and self.recipe.kind == "corrected":
            push = self._insist(sheet, lines, plan.after, push, lesson)
        sheet.put(lines)
        push = self._rehearse(plan, sheet, push)
        delta = push if back is None else back.plus(push)
        return self._event(plan, delta, push)

    def _take_back(self, plan: _Plan, sheet: Sheet, journal: _Journal) -> Push | None:
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

    def _step(self, sheet: Sheet, lines: Lines, label: int, lesson: Teach) -> Push:
        recipe = self.recipe
        if recipe.kind != "corrected":
            return no_push(recipe.groups, len(recipe.labels))
        origin = lesson.origin
        seen = sheet.opinion(lines)
        push = step(
            recipe, seen, lines.sizes, label, weight=origin.weight, doubt=not origin.insist
        )
        sheet.push(lines, push.steps)
        sheet.lean(push)
        return push

    def _insist(
        self, sheet: Sheet, lines: Lines, label: int, push: Push, lesson: Teach
    ) -> Push:
        for _ in range(INSISTENCE - 1):
            P = sheet.opinion(lines).P
            if self._agrees(P, label):
                break
            push = push.plus(self._step(sheet, lines, label, lesson))
        return push

    def _agrees(self, P: list[float], label: int) -> bool:
        """Whether verdict and decision are what a person who gave this label would expect."""
        if max(P) != P[label]:
            return False
        decision = decide(P, self.costs, self._roles)
        spam = self._roles[label] == "spam"
        return (DECISIONS.index(decision) >= DECISIONS.index("junk")) == spam and (
            spam or decision == "deliver"
        )

    def _rehearse(self, plan: _Plan, sheet: Sheet, push: Push) -> Push:
        for label, ids in plan.rehearsed:
            lines = sheet.find(ids)
            echo = step(
                self.recipe, sheet.opinion(lines), lines.sizes, label, weight=1.0, doubt=True
            )
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

    def _make_forget(self, plan: _Plan, sheet: Sheet, journal: _Journal) -> Event:
        back = self._take_back(plan, sheet, journal)
        assert back is not None
        assert plan.lines is not None
        sheet.move(plan.lines, plan.before, NO_LABEL, times=plan.example.times)
        sheet.put(plan.lines)
        return self._event(plan, back, self._nothing())

    def _make_undo(self, plan: _Plan, sheet: Sheet, journal: _Journal) -> Event:
        undone = plan.undone
        assert undone is not None
        older = journal.event(undone.previous) if undone.previous else None
        standing = older.standing if older else self._nothing()
        event = self._event(plan, undone.delta.negated(), standing)
        bulk = undone.bulk
        if bulk is not None:
            bulk = replace(
                bulk,
                n=-bulk.n,
                w=-bulk.w,
                messages=-bulk.messages,
                bias=-bulk.bias,
                tempers=-bulk.tempers,
            )
        event = replace(event, undoes=undone.seq, bulk=bulk)
        sheet.apply(event)
        return event

    def _make_load(self, plan: _Plan, sheet: Sheet, _: _Journal) -> Event:
        lesson = plan.lesson
        assert isinstance(lesson, Load)
        event = replace(self._event(plan, self._nothing(), self._nothing()), bulk=lesson.bulk)
        sheet.apply(event)
        return event

    def _event(self, plan: _Plan, delta: Push, standing: Push) -> Event:
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
        )

    def _nothing(self) -> Push:
        return no_push(self.recipe.groups, len(self.recipe.labels))

    def _probability(self, sheet: Sheet, lines: Lines) -> float:
        """Of spam, or of the last label."""
        labels = self.recipe.labels
        at = labels.index("spam") if "spam" in labels else len(labels) - 1
        if self.recipe.kind == "corrected":
            return sheet.opinion(lines).P[at]
        records = sheet.records_of(lines)
        rows = np.arange(len(lines.rows))
        group = np.repeat(np.arange(len(lines.sizes), dtype=np.int8), lines.sizes)
        view = View(rows, np.array([0, len(rows)]), group)
        return float(probabilities(scores(self.recipe, sheet.totals, records, view))[0, at])

    def _name(self, label: int) -> str | None:
        return None if label == NO_LABEL else self.recipe.labels[label]

    def _unchanged(self, example: Example, live: Live, reason: str) -> Receipt:
        name = self._name(live.label)
        digest = example.digest.hex()
        return Receipt(
            changed=False,
            event=live.seq,
            digest=digest,
            message_id=example.message_id,
            before=name,
            after=name,
            reason=reason,
        )


_PLANNERS: dict[type, Callable[..., _Plan | Receipt]] = {
    Teach: Learner._plan_teach,
    Forget: Learner._plan_forget,
    Undo: Learner._plan_undo,
    Load: Learner._plan_load,
}
_MAKERS: dict[Kind, Callable[..., Event]] = {
    Kind.LEARN: Learner._make_taught,
    Kind.MOVE: Learner._make_taught,
    Kind.FORGET: Learner._make_forget,
    Kind.UNDO: Learner._make_undo,
    Kind.IMPORT: Learner._make_load,
    Kind.EXPIRE: Learner._make_load,
}


def _example_of(event: Event) -> Example:
    return Example(event.digest, event.message_id, event.ids, event.times)


def _refused(lesson: Lesson, error: SpamnbError) -> Receipt:
    example = lesson.example if isinstance(lesson, Teach) else None
    digest = lesson.digest if isinstance(lesson, Forget) else example.digest if example else b""
    message_id = example.message_id if example else ""
    return Receipt(False, 0, digest.hex(), message_id, None, None, error=error)


def _keep_words(view: WriteView, sheet: Sheet, work: list[_Plan]) -> None:
    """Put the texts of features that were not known before."""
    unknown = sheet.unknown()
    sources: dict[int, WordSource] = {}
    for plan in work:
        source = plan.lesson.words if isinstance(plan.lesson, Load) else plan.example.words
        if source is not None:
            sources[id(source)] = source
    for source in sources.values():
        words = source.words(unknown)
        if len(words.ids):
            view.put_words(_as_list(words))
            unknown = unknown[~np.isin(unknown, words.ids, assume_unique=True)]


def _as_list(words: Words) -> list[Word]:
    start, found = 0, []
    for feature, place, size in zip(
        words.ids.tolist(), words.places.tolist(), words.sizes.tolist(), strict=True
    ):
        found.append(Word(feature, place, words.texts[start : start + size]))
        start += size
    return found
