"""Single entry point for user feedback.

`FeedbackService` resolves which message is meant, checks that the sender may label it (`rights`),
applies quotas and weights, then learns the label or queues it for review (`review`). Changes are on
disk when a method returns.

Only labels of users, and of spamtraps, come here, never the product's own verdicts. A duplicate
changes nothing and is a success; a contradicting label replaces the old one.

Must not know sockets, terminals or settings. Failure: a user's mistake is an `Answer` ("refused",
with the reason); a StoreError is raised, since waiting or an administrator may cure it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from spamnb.engine.filter import Filter
from spamnb.engine.lookup import each_owner, joined
from spamnb.engine.receipt import Receipt
from spamnb.engine.scoring import example_of, score_examples
from spamnb.engine.values import Example, Forget, Learn, Source
from spamnb.errors import BugError, RefError, RefusedError, UserError
from spamnb.feedback.review import ReviewItem, ReviewQueue, SenderLists
from spamnb.feedback.rights import (
    CHANNEL_POLICIES,
    DAY_US,
    STRANGER,
    ChannelPolicy,
    DailyQuota,
    Key,
    OwnershipCheck,
    ResolvedMessage,
    keys_of,
    policy_for,
)
from spamnb.feedback.values import Answer, Feedback, SenderChange, State, Trust
from spamnb.mail.envelope import same_name
from spamnb.model.events import Event, label_key
from spamnb.model.verdict import Verdict
from spamnb.policy.actions import PersonNames, RecipientCosts, named_person
from spamnb.settings.values import TeachingRules
from spamnb.store.codec import charged_bytes
from spamnb.telemetry import Meters, now_us

_MAX_COUNTED_EVENTS = 5000
"""Events of today that are counted at the start, so that a restart does not reset the quotas."""
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f]{0,320}")
"""a sender's name: it is stored in the journal and shown on terminals"""


class OneHost:
    """Resolves feedback with the verdicts of this host; `fleet.elsewhere` asks other hosts, too."""

    def __init__(self, model: Filter, rules: TeachingRules) -> None:
        self.ownership = OwnershipCheck(model, rules)

    def resolve(self, feedback: Feedback) -> ResolvedMessage:
        """Find the message, and check that the sender may label it."""
        return self.ownership.resolve(feedback)

    def put(self, feedback: Feedback, resolved: ResolvedMessage) -> Answer:
        """Let a correction wait for the hosts that did not answer."""
        raise BugError(f"{feedback.user}: one host asks no other ({resolved.reason})")

    def answered(self) -> Iterator[tuple[int, Feedback, ResolvedMessage]]:
        """Yield the corrections that need not wait any longer, each with its time."""
        return iter(())

    def take_back(
        self, number: int, feedback: Feedback, is_own: Callable[[Event], bool]
    ) -> Receipt | None:
        """Undo a correction that waits, of this sender, or any for an admin; None without one."""
        del number, feedback, is_own
        return None

    def on_fold(self, count: Callable[[Sequence[Event]], None]) -> None:
        """Call a function with the changes of other hosts."""
        del count


class FeedbackService:
    """The entry point for all channels."""

    def __init__(  # noqa: PLR0913 - model, queue and rules; keyword options with defaults
        self,
        model: Filter,
        review_queue: ReviewQueue,
        rules: TeachingRules | None = None,
        meters: Meters | None = None,
        *,
        persons: PersonNames | None = None,
        recipient_costs: RecipientCosts | None = None,
        hosts: OneHost | None = None,
    ) -> None:
        self.model = model
        self.review_queue = review_queue
        self.rules = rules or TeachingRules()
        self._persons = persons
        self._recipient_costs = recipient_costs or RecipientCosts()
        self._meters = meters or Meters()
        self._hosts = hosts or OneHost(model, self.rules)
        self._counting = threading.Lock()
        self._quota = DailyQuota(self.rules)
        self._counted_today = False
        self._hosts.on_fold(self._count_folded)

    @property
    def documents(self) -> bool:
        """Whether this model classifies plain text instead of mail."""
        return self.model.recipe.documents

    # -- operations -----------------------------------------------------------------------------

    def teach(self, feedback: Feedback) -> Answer:
        """Learn a label for one message, or forget it."""
        return self._with_metrics(lambda: self._teach(feedback))

    def undo(self, event: int, feedback: Feedback) -> Answer:
        """Undo an event; `feedback` names the sender."""
        return self._with_metrics(lambda: self._undo(event, feedback))

    def take_back(self, number: int, feedback: Feedback) -> Answer:
        """Undo a correction that waits for the log of the fleet."""
        return self._with_metrics(lambda: self._take_back(number, feedback))

    def accept(self, name: str) -> Answer:
        """Learn a queued feedback, as an admin."""
        return self._with_metrics(lambda: self._accept(name))

    def refuse(self, name: str) -> Answer:
        """Delete a queued feedback without learning it."""
        try:
            self.review_queue.drop(name)
        except UserError as error:
            return _refused(error)
        return Answer("unchanged", reason="refused in review", review=name)

    def ask_again(self) -> list[Answer]:
        """Try the corrections that wait for the answers of other hosts; return what is settled."""
        return [
            self._with_metrics(partial(self._settle, *question))
            for question in self._hosts.answered()
        ]

    def _settle(self, asked_us: int, feedback: Feedback, resolved: ResolvedMessage) -> Answer:
        policy = self._admit(feedback)
        if resolved.proven and resolved.example is not None:
            source = self._source(feedback, policy)
            digest = resolved.example.digest
            with self.model.store.read() as view:
                # A later label of an administrator is as decisive as one of the user.
                for key in (label_key(digest, source.person, source.owner), digest):
                    live = view.live(key)
                    event = view.event(live.seq) if live else None
                    if event is not None and event.time_us > asked_us:
                        raise RefusedError(
                            "the message was labelled again while this correction waited"
                        )
        return self._apply(feedback, policy, resolved)

    @property
    def sender_lists(self) -> SenderLists:
        """The lists of senders, for reading."""
        return SenderLists(self.model, self._persons, self.rules)

    def list_sender(self, asked: SenderChange) -> Answer:
        """Change a list of senders; it counts as a change of the user. UserError if refused."""
        sender = Feedback("", user=asked.target.user, trust=asked.target.trust)
        keys = keys_of(sender, self.rules, proven=True)
        if keys:
            self._count_today()
        return self._within_quota(keys, partial(self.sender_lists.change, asked))

    def batch(
        self, labelled: Sequence[tuple[str, bytes]], source: Source, person: str = ""
    ) -> list[Receipt]:
        """Learn sorted mail, (label, message) pairs, as `train` does, in one transaction."""
        if person:
            source = self.source_for(person, source)
        began, now = time.perf_counter(), now_us()
        labels = [self.model.label(label) for label, _ in labelled]
        examples = self._examples([raw for _, raw in labelled])
        requests = [Learn(e, k, source, now) for e, k in zip(examples, labels, strict=True)]
        receipts = self.model.teach(requests)
        with self._counting:
            for receipt in receipts:
                self._count(_answer(receipt))
            self._meters.observe("learn_seconds", time.perf_counter() - began)
        return receipts

    def source_for(self, person: str, source: Source) -> Source:
        """Return the source of a label that an admin gives for a person."""
        name = named_person(self._persons, person)
        return self._of_person(source._replace(user=name, immediate=True), person)

    def _examples(self, raws: Sequence[bytes]) -> list[Example]:
        recipe = self.model.recipe
        return [
            example_of(message, feature_batch.features, index, recipe)
            for feature_batch in self.model.reader.feature_batches(raws)
            for index, message in enumerate(feature_batch.messages)
        ]

    # -- one message ----------------------------------------------------------------------------

    def _teach(self, feedback: Feedback) -> Answer:
        policy = self._admit(feedback)
        if feedback.trust != "admin":
            self._count_today()
        proven = feedback.trust != "stranger" or self._hosts.ownership.may_prove(feedback)
        try:
            keys = keys_of(feedback, self.rules, proven=proven)
            # Before any message is read.
            self._quota.check(keys, now_us())
            resolved = self._hosts.resolve(feedback)
            if resolved.proven != proven:
                proven, keys = resolved.proven, keys_of(feedback, self.rules, proven=not proven)
            return self._within_quota(keys, lambda: self._apply(feedback, policy, resolved))
        except UserError as error:
            return _refused(error, proven=proven)

    def _within_quota(self, keys: list[Key], run: Callable[[], Answer]) -> Answer:
        """Run a change that counts under these keys; one that changes nothing is not counted."""
        self._quota.take(keys, now_us())
        state = "refused"
        try:
            answer = run()
            state = answer.state
        finally:
            if state not in ("learnt", "listed", "waiting", "review"):
                self._quota.give_back(keys)
        if state == "learnt" and answer.receipt:
            self._quota.charge(keys, answer.receipt.stored_bytes)
        return answer

    def _admit(self, feedback: Feedback) -> ChannelPolicy:
        """Refuse feedback that is invalid for any message; returns its channel's policy."""
        if feedback.label:
            self.model.label(feedback.label)
        if len(feedback.raw) > self.rules.limit_bytes:
            raise RefusedError(
                f"the message has {len(feedback.raw)} bytes, the limit is {self.rules.limit_bytes}"
            )
        if not (feedback.raw or feedback.refs):
            raise UserError("no message is given")
        if not _NAME.fullmatch(feedback.user) or not (feedback.user or feedback.trust == "admin"):
            raise RefusedError("the feedback names no valid sender")
        return policy_for(feedback)

    def _apply(
        self, feedback: Feedback, policy: ChannelPolicy, resolved: ResolvedMessage
    ) -> Answer:
        if resolved.silent:
            return self._hosts.put(feedback, resolved)
        if not resolved.proven:
            return self._unproven(feedback, resolved)
        assert resolved.example is not None, "a proven message was found"
        return self._learn(resolved.example, feedback, policy)

    def _learn(self, example: Example, feedback: Feedback, policy: ChannelPolicy) -> Answer:
        label = feedback.label
        if label and policy.careful:
            verdict = self._verdict(example)
            if verdict.probabilities[label] < 1 - self.rules.sure:
                reason = "it contradicts a high-confidence verdict"
                return self._queue_for_review(feedback, example, reason, verdict)
        source = self._source(feedback, policy)
        requests: list[Learn | Forget]
        if label:
            source = source._replace(immediate=policy.immediate)
            index, now = self.model.label(label), now_us()
            pause_us = round(policy.pause_s * 1e6)
            requests = [Learn(example, index, source, now, policy.immediate, pause_us)]
        else:
            requests = [Forget(example.digest, one, now_us()) for one in self._all(source, example)]
        receipts = self.model.teach(requests, scored=True)
        for receipt in receipts:
            if receipt.error is not None:
                raise receipt.error
        return _answer(joined(receipts))

    def _all(self, source: Source, example: Example) -> list[Source]:
        """Return the sources of the labels to forget: an administrator takes back all users'."""
        if source.person or source.owner:
            return [source]
        with self.model.store.read() as view:
            return each_owner(view, example.digest, source)

    def _source(self, feedback: Feedback, policy: ChannelPolicy) -> Source:
        """Return the source of a label; a user's label is that person's, if persons are enabled."""
        owner = self._owner(feedback, policy)
        source = Source(feedback.user, feedback.channel, policy.weight, owner=owner)
        if feedback.person:
            return self.source_for(feedback.person, source)
        corrected = self.model.recipe.kind == "corrected"
        is_own = feedback.trust == "user" and policy.immediate and corrected
        return self._of_person(source, feedback.user) if is_own else source

    def _of_person(self, source: Source, user: str) -> Source:
        """Return the source of a label by the person with this address or login, if any."""
        if not self._persons or not (name := self._persons.of(user)):
            return source
        costs = self._recipient_costs.of_label(user, self._persons)
        return source._replace(person=self.model.person(name), costs=costs)

    def _owner(self, feedback: Feedback, policy: ChannelPolicy) -> int:
        """Return the id of the user that a label belongs to; 0 for an administrator's.

        A label of reduced weight belongs to an owner apart, even under the name of a user: nothing
        proves who gave it.
        """
        proven = policy.weight >= 1 and feedback.trust != "stranger"
        if feedback.trust == "admin" and proven:
            return 0
        name = self.rules.owner(feedback.user) or feedback.channel
        return self.model.owner(name, verified=proven)

    def _verdict(self, example: Example) -> Verdict:
        with self.model.store.read() as view:
            return score_examples(self.model.recipe, self.model.costs, view, [example])[0]

    def _unproven(self, feedback: Feedback, resolved: ResolvedMessage) -> Answer:
        """Queue or refuse feedback on a message that is not known to be the sender's."""
        a_user = feedback.trust == "user"
        if resolved.example is None or (a_user and self.rules.unproven == "refuse"):
            raise RefError(
                resolved.reason, hint="give the message with its X-Spamnb-Signature line"
            )
        verdict = self._verdict(resolved.example)
        return self._queue_for_review(feedback, resolved.example, resolved.reason, verdict)

    def _queue_for_review(
        self, feedback: Feedback, example: Example, reason: str, verdict: Verdict
    ) -> Answer:
        entry = ReviewItem(
            label=feedback.label,
            user=feedback.user,
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

    # -- undo and review ------------------------------------------------------------------------

    def _undo(self, event: int, feedback: Feedback) -> Answer:
        policy_for(feedback)
        if feedback.trust != "admin":
            with self.model.store.read() as view:
                found = view.event(event)
            if found is None or not self._is_own(found, feedback):
                raise RefusedError(
                    f"event {event} is not an event of {feedback.user or 'this user'}",
                    hint="only its user or an admin may undo it",
                )
            self._count_today()
        source = Source(feedback.user, feedback.channel)
        keys = keys_of(feedback, self.rules, proven=True)
        return self._within_quota(keys, lambda: _answer(self.model.undo(event, source=source)))

    def _take_back(self, number: int, feedback: Feedback) -> Answer:
        policy_for(feedback)
        is_own = partial(self._is_own, feedback=feedback)
        if receipt := self._hosts.take_back(number, feedback, is_own):
            return _answer(receipt)
        raise RefError(
            f"no correction of {feedback.user or 'this user'} waits under the number {number}",
            hint="if it is learnt by now, undo its event: see `spamnb journal`",
        )

    def _is_own(self, event: Event, feedback: Feedback) -> bool:
        """Whether a user gave the label of an event, under this name or as the same person."""
        if not feedback.user:
            return False
        name = self._persons.of(feedback.user) if self._persons else ""
        same_person = event.person != 0 and event.person == self.model.person(name)
        owner = self.model.owner(self.rules.owner(feedback.user))
        same_owner = event.owner != 0 and event.owner == owner
        return same_person or same_owner or same_name(event.user, feedback.user)

    def _accept(self, name: str) -> Answer:
        """Learn a queued feedback under its sender's name, so that it can be undone by sender.

        A stranger's feedback is then learnt with a full step, but not repeated until the verdict
        agrees.
        """
        entry, raw = self.review_queue.get(name)
        trust = _trust_of(entry)
        person = entry.user if trust == "user" and self._persons else ""
        feedback = Feedback(
            entry.label, raw, entry.refs, entry.user, entry.channel, trust, person=person
        )
        example = self.model.lookup(raw or entry.digest)
        policy = ChannelPolicy(immediate=entry.trust != "stranger")
        answer = self._learn(example, feedback, policy)
        self.review_queue.drop(name)
        return replace(answer, review=name)

    # -- metrics and quotas ---------------------------------------------------------------------

    def _with_metrics(self, run: Callable[[], Answer]) -> Answer:
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
            self._meters.count("learned_limited", receipt.limited)

    def _count_today(self) -> None:
        """Count today's earlier changes, so that a restart does not reset the quotas."""
        with self._counting:
            counted, self._counted_today = self._counted_today, True
        if counted:
            return
        now = now_us()
        with self.model.store.read() as view:
            for count, event in enumerate(view.events(newest_first=True)):
                if event.time_us // DAY_US != now // DAY_US or count == _MAX_COUNTED_EVENTS:
                    break
                self._count_event(event, now)
        for entry in self.review_queue.entries():
            if entry.time_us // DAY_US == now // DAY_US and entry.trust != "admin":
                sender = Feedback("", user=entry.user, trust=_trust_of(entry), client=entry.client)
                self._quota.note(keys_of(sender, self.rules, proven=False), now)

    def _count_folded(self, events: Sequence[Event]) -> None:
        """Count today's changes of other hosts, so that a quota holds for the whole fleet."""
        now = now_us()
        with self._counting:
            events = events if self._counted_today else ()
        for event in events:
            if event.time_us // DAY_US == now // DAY_US:
                self._count_event(event, now)

    def _count_event(self, event: Event, now: int) -> None:
        size = charged_bytes(event)
        for trust in _possible_trust(event):
            sender = Feedback("", user=event.user, trust=trust)
            self._quota.note(keys_of(sender, self.rules, proven=True), now, size)


def _answer(receipt: Receipt) -> Answer:
    if receipt.error is not None:
        return Answer("refused", receipt, str(receipt.error))
    state: State = "waiting" if receipt.waiting else "learnt" if receipt.changed else "unchanged"
    return Answer(state, receipt, receipt.reason)


def _trust_of(entry: ReviewItem) -> Trust:
    """Return the trust of the sender of a queued feedback."""
    found: Trust = "user" if entry.trust == "user" else "stranger"
    return "admin" if entry.trust == "admin" else found


def _possible_trust(event: Event) -> tuple[Trust, ...]:
    """Possible trust of an event's sender: a stranger's feedback has a smaller weight."""
    full = CHANNEL_POLICIES[event.channel].weight if event.channel in CHANNEL_POLICIES else 1.0
    if event.weight < full:
        return ("stranger",)
    return ("user",) if full > STRANGER.weight else ("user", "stranger")


def _refused(error: UserError, *, proven: bool = False) -> Answer:
    facts: dict[str, object] = {"hint": error.hint, "error_type": type(error).__name__}
    return Answer("refused", reason=str(error), facts=facts | {"proven": proven})
