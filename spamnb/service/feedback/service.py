"""The desk: where everybody's word on a message arrives, is judged by whose it is, and learnt.

One call for every channel: a feedback goes in, an answer with its receipt comes out, durable by
then. `trust` says who may teach what, `ownership` whose message it is; what is not proven, or
contradicts us too much on a channel that nobody vouches for, waits in `review`.

Only words of people, and of traps that people laid, arrive here: nothing calls it with a score of
our own. A duplicate changes nothing and is a success; a contradiction moves.

Must not know sockets, terminals or settings. Failure: what a person did wrong is an answer
("refused", with the reason); a StoreError is raised, for waiting or an admin may cure it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from spamnb.core.model.events import Event
from spamnb.core.model.verdict import Verdict
from spamnb.errors import RefError, RefusedError, UserError
from spamnb.service.engine.clock import now_us
from spamnb.service.engine.extraction import example_of
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.lookup import find_example
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Example, Forget, Learn, Source
from spamnb.service.engine.scoring import judge_examples
from spamnb.service.feedback.ownership import OwnershipCheck, ResolvedMessage
from spamnb.service.feedback.review_queue import ReviewItem, ReviewQueue
from spamnb.service.feedback.trust import (
    DAY_US,
    STRANGER,
    WAYS,
    ChannelPolicy,
    DailyQuota,
    Key,
    keys_of,
    way_of,
)
from spamnb.service.feedback.types import Answer, Feedback, Trust
from spamnb.service.limits import TeachingRules
from spamnb.service.telemetry.metrics import Meters
from spamnb.store.rows.codec import encode_events

_LOOKED_BACK = 5000
"""Events of today that are counted at the start, so that a restart does not lift the caps."""
FEATURE_BYTES = 60
"""What a feature that is new takes beside its text: a row of 41 bytes and 19 in the vocabulary, as
measured with 200,000 random words."""
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f]{0,320}")
"""who speaks: it is kept in the journal and shown on terminals"""


class FeedbackService:
    """The one way in."""

    def __init__(
        self,
        model: Filter,
        review_queue: ReviewQueue,
        rules: TeachingRules | None = None,
        meters: Meters | None = None,
    ) -> None:
        self.model = model
        self.review_queue = review_queue
        self.rules = rules or TeachingRules()
        self._meters = meters or Meters()
        self._claims = OwnershipCheck(model, self.rules)
        self._counting = threading.Lock()
        self._caps = DailyQuota(self.rules)
        self._counted_today = False

    @property
    def documents(self) -> bool:
        """Whether it is plain text, and no mail, that this model judges."""
        return self.model.recipe.documents

    # -- what can be said -----------------------------------------------------------------------

    def teach(self, feedback: Feedback) -> Answer:
        """One word on one message."""
        return self._counted(lambda: self._teach(feedback))

    def undo(self, event: int, feedback: Feedback) -> Answer:
        """Take back an event; `feedback` says who speaks."""
        return self._counted(lambda: self._undo(event, feedback))

    def accept(self, name: str) -> Answer:
        """An admin agrees with what waits."""
        return self._counted(lambda: self._accept(name))

    def refuse(self, name: str) -> Answer:
        """An admin does not: it goes, and nothing is learnt."""
        try:
            self.review_queue.drop(name)
        except UserError as error:
            return _refused(error)
        return Answer("unchanged", reason="refused in review", review=name)

    def batch(self, said: Sequence[tuple[str, bytes]], source: Source) -> list[Receipt]:
        """Sorted mail, (label, message) by message: learnt as `train` does, in one transaction."""
        began, now = time.perf_counter(), now_us()
        labels = [self.model.label(label) for label, _ in said]
        examples = self._examples([raw for _, raw in said])
        requests = [Learn(e, k, source, now) for e, k in zip(examples, labels, strict=True)]
        receipts = self.model.teach(requests)
        with self._counting:
            for receipt in receipts:
                self._count(_answer(receipt))
            self._meters.observe("learn_seconds", time.perf_counter() - began)
        return receipts

    def _examples(self, raws: Sequence[bytes]) -> list[Example]:
        times = self.model.recipe.occurrences
        return [
            example_of(message, feature_batch.features, index, occurrences=times)
            for feature_batch in self.model.reader.feature_batches(raws)
            for index, message in enumerate(feature_batch.messages)
        ]

    # -- one word -------------------------------------------------------------------------------

    def _teach(self, feedback: Feedback) -> Answer:
        way = self._admit(feedback)
        if feedback.trust != "admin":
            self._count_today()
        proven = feedback.trust != "stranger" or self._claims.may_prove(feedback)
        try:
            # Before any message is read.
            self._caps.check(keys_of(feedback, self.rules, proven=proven), now_us())
            claim = self._claims.look(feedback)
            proven, keys = claim.proven, keys_of(feedback, self.rules, proven=claim.proven)
            return self._capped(keys, lambda: self._carried_out(feedback, way, claim))
        except UserError as error:
            return _refused(error, proven=proven)

    def _capped(self, keys: list[Key], run: Callable[[], Answer]) -> Answer:
        """Do what is counted under these keys; what changes nothing is not counted."""
        self._caps.take(keys, now_us())
        state = "refused"
        try:
            answer = run()
            state = answer.state
        finally:
            if state not in ("learnt", "review"):
                self._caps.give_back(keys)
        if keys and state == "learnt" and answer.receipt:
            self._caps.charge(keys, self._journaled(answer.receipt.event))
        return answer

    def _journaled(self, event: int) -> int:
        """The bytes of an event in the journal."""
        with self.model.store.read() as view:
            held = view.event(event)
        return sum(map(len, encode_events([held]))) if held else 0

    def _new_bytes(self, example: Example) -> int:
        """The bytes that the message's new features and their texts will take."""
        with self.model.store.read() as view:
            new = [part[view.gather(part).n.sum(axis=1) == 0] for part in example.ids]
        word_source = example.words if self.model.recipe.vocabulary else None
        texts = sum(int(word_source.words(part).sizes.sum()) for part in new) if word_source else 0
        return FEATURE_BYTES * sum(map(len, new)) + texts

    def _admit(self, feedback: Feedback) -> ChannelPolicy:
        """Refuse what is wrong whatever the message is."""
        if feedback.label:
            self.model.label(feedback.label)
        if len(feedback.raw) > self.rules.limit_bytes:
            raise RefusedError(
                f"the message has {len(feedback.raw)} bytes, {self.rules.limit_bytes} are taken"
            )
        if not (feedback.raw or feedback.refs):
            raise UserError("no message is given")
        if not _NAME.fullmatch(feedback.who) or not (feedback.who or feedback.trust == "admin"):
            raise RefusedError("nobody says whose word this is")
        return way_of(feedback)

    def _carried_out(
        self, feedback: Feedback, way: ChannelPolicy, claim: ResolvedMessage
    ) -> Answer:
        if not claim.proven:
            return self._unproven(feedback, claim)
        assert claim.example is not None, "what is proven was found"
        keys = keys_of(feedback, self.rules, proven=True)
        size = self._new_bytes(claim.example) if keys else 0
        answer = self._learn(claim.example, feedback, way)
        if answer.state == "learnt":
            self._caps.charge(keys, size)
        return answer

    def _learn(self, example: Example, feedback: Feedback, way: ChannelPolicy) -> Answer:
        source = Source(feedback.who, feedback.channel, way.weight)
        if not feedback.label:
            return self._one(Forget(example.digest, source, now_us()))
        if way.careful:
            verdict = self._verdict(example)
            if verdict.probabilities[feedback.label] < 1 - self.rules.sure:
                return self._wait(feedback, example, "it contradicts a very sure verdict", verdict)
        if way.immediate:
            return _answer(self.model.correct(example, feedback.label, source=source))
        return self._one(Learn(example, self.model.label(feedback.label), source, now_us()))

    def _one(self, request: Learn | Forget) -> Answer:
        receipt = self.model.teach([request], scored=True)[0]
        if receipt.error is not None:
            raise receipt.error
        return _answer(receipt)

    def _verdict(self, example: Example) -> Verdict:
        with self.model.store.read() as view:
            return judge_examples(self.model.recipe, self.model.costs, view, [example])[0]

    def _unproven(self, feedback: Feedback, claim: ResolvedMessage) -> Answer:
        """Not known to be theirs: to be looked at, or not to be heard."""
        a_user = feedback.trust == "user"
        if claim.example is None or (a_user and self.rules.unproven == "refuse"):
            raise RefError(claim.reason, hint="give the message with its X-Spamnb-Signature line")
        return self._wait(feedback, claim.example, claim.reason, self._verdict(claim.example))

    def _wait(self, feedback: Feedback, example: Example, reason: str, verdict: Verdict) -> Answer:
        entry = ReviewItem(
            label=feedback.label,
            who=feedback.who,
            channel=feedback.channel,
            trust=feedback.trust,
            reason=reason,
            time_us=now_us(),
            refs=feedback.refs,
            client=feedback.client,
            digest=example.digest.hex(),
            message_id=example.message_id,
            verdict={"label": verdict.label, "probability": verdict.probability},
        )
        return Answer("review", reason=reason, review=self.review_queue.add(entry, feedback.raw))

    # -- taking back, and review ----------------------------------------------------------------

    def _undo(self, event: int, feedback: Feedback) -> Answer:
        way_of(feedback)
        if feedback.trust != "admin":
            with self.model.store.read() as view:
                held = view.event(event)
            if held is None or not feedback.who or held.who.casefold() != feedback.who.casefold():
                raise RefusedError(f"event {event} is none of yours")
            self._count_today()
        source = Source(feedback.who, feedback.channel)
        keys = keys_of(feedback, self.rules, proven=True)
        return self._capped(keys, lambda: _answer(self.model.undo(event, source=source)))

    def _accept(self, name: str) -> Answer:
        """Learn what was looked at, in the name of who said it: their word can still be undone.

        A stranger's word is learnt with a whole step then, and does not insist.
        """
        entry, raw = self.review_queue.get(name)
        said = Feedback(entry.label, raw, entry.refs, entry.who, entry.channel, "admin")
        with self.model.store.read() as view:
            example = None if raw else find_example(view, self.model.history, entry.digest)
        way = ChannelPolicy(immediate=entry.trust != "stranger")
        answer = self._learn(example or self.model.example(raw), said, way)
        self.review_queue.drop(name)
        return replace(answer, review=name)

    # -- keeping count --------------------------------------------------------------------------

    def _counted(self, run: Callable[[], Answer]) -> Answer:
        began = time.perf_counter()
        try:
            answer = run()
        except UserError as error:
            answer = _refused(error)
        with self._counting:
            self._count(answer)
            self._meters.observe("learn_seconds", time.perf_counter() - began)
        return answer

    def _count(self, answer: Answer) -> None:
        receipt = answer.receipt
        if answer.state != "learnt" or receipt is None:
            self._meters.count(f"feedback_{answer.state}")
        elif receipt.after is None:
            self._meters.count("forgotten")
        else:
            known = receipt.after if receipt.after in ("ham", "spam") else "other"
            self._meters.count(f"learned_{known}")

    def _count_today(self) -> None:
        """What people have said today, so that a restart does not give them another day."""
        with self._counting:
            counted, self._counted_today = self._counted_today, True
        if counted:
            return
        now = now_us()
        with self.model.store.read() as view:
            for count, event in enumerate(view.events(newest_first=True)):
                if event.time_us // DAY_US != now // DAY_US or count == _LOOKED_BACK:
                    break
                size = sum(map(len, encode_events([event])))
                for trust in _speakers(event):
                    said = Feedback("", who=event.who, trust=trust)
                    self._caps.note(keys_of(said, self.rules, proven=True), now, size)
        for entry in self.review_queue.entries():
            if entry.time_us // DAY_US == now // DAY_US and entry.trust != "admin":
                trust = "user" if entry.trust == "user" else "stranger"
                said = Feedback("", who=entry.who, trust=trust, client=entry.client)
                self._caps.note(keys_of(said, self.rules, proven=False), now)


def _answer(receipt: Receipt) -> Answer:
    if receipt.error is not None:
        return Answer("refused", receipt, str(receipt.error))
    return Answer("learnt" if receipt.changed else "unchanged", receipt, receipt.reason)


def _speakers(event: Event) -> tuple[Trust, ...]:
    """Who may have said what is in the journal: a stranger's word has a smaller weight."""
    full = WAYS[event.channel].weight if event.channel in WAYS else 1.0
    if event.weight < full:
        return ("stranger",)
    return ("user",) if full > STRANGER.weight else ("user", "stranger")


def _refused(error: UserError, *, proven: bool = False) -> Answer:
    facts: dict[str, object] = {"hint": error.hint, "error_type": type(error).__name__}
    return Answer("refused", reason=str(error), facts=facts | {"proven": proven})
