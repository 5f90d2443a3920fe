"""Corrections by reference of verdicts that another host of the fleet has given.

A correction that the verdicts of this host do not prove is tried once more with the verdicts of all
hosts. If a host that may have given the verdict does not answer, a correction without the message
waits in the outbox, as a question: it is tried again when such a host lives, and refused after a
day. A correction with the message needs no answer: it is treated as on a host without a fleet.

Reads and writes the outbox. Failure: RefError as `rights`; LogAwayError if the outbox is full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict

from spamnb.engine.filter import Filter
from spamnb.engine.receipt import Receipt
from spamnb.errors import RefError
from spamnb.feedback.rights import DAY_US, OwnershipCheck, ResolvedMessage
from spamnb.feedback.service import OneHost
from spamnb.feedback.values import Answer, Feedback
from spamnb.fleet.log import FRESH_S
from spamnb.fleet.outbox import WaitingQuestion
from spamnb.fleet.store import FleetStore
from spamnb.fleet.waiting import FleetCommitter, OtherHosts
from spamnb.mail.envelope import same_name
from spamnb.model.events import Event
from spamnb.settings.values import TeachingRules
from spamnb.telemetry import now_us

PASS_S = 2.0
"""how long one pass tries the questions: this host sends no beats meanwhile"""


class AllHosts(OneHost):
    """Resolves feedback with the verdicts of all hosts."""

    def __init__(self, model: Filter, rules: TeachingRules) -> None:
        super().__init__(model, rules)
        store, committer = model.store, model.committer
        assert isinstance(store, FleetStore), "the model is written through the log"
        assert isinstance(committer, FleetCommitter), "and its corrections can wait"
        self._store = store
        self._committer = committer
        self._outbox = committer.outbox
        self._tried_last = 0
        """the number of the question that was tried last; the next pass begins after it"""
        self._trying = threading.Lock()
        """held while a question is tried or undone"""

    def resolve(self, feedback: Feedback) -> ResolvedMessage:
        """Find the message, and check that the sender may label it."""
        with suppress(RefError):
            resolved = self.ownership.resolve(feedback)
            if resolved.proven:
                return resolved
        is_stranger = feedback.trust == "stranger"
        model, rules = self.ownership.model, self.ownership.rules
        others = OtherHosts(self._store.member, model.history, named_only=is_stranger)
        try:
            resolved = OwnershipCheck(model, rules, others).resolve(feedback)
        except RefError as error:
            if not others.silent:
                raise
            resolved = ResolvedMessage(None, proven=False, reason=str(error))
        if resolved.proven or feedback.raw or not others.silent:
            return resolved
        names = tuple(sorted(others.silent))
        reason = f"another host may have given the verdict: no answer from {_named(names)}"
        return ResolvedMessage(None, proven=False, reason=reason, silent=names)

    def put(self, feedback: Feedback, resolved: ResolvedMessage) -> Answer:
        """Let a correction wait for the hosts that did not answer."""
        fields = {name: value for name, value in asdict(feedback).items() if name != "raw"}
        question = WaitingQuestion(0, now_us(), resolved.silent, fields)
        number = self._outbox.put_question(question)
        receipt = _receipt(feedback, resolved.reason)._replace(waiting=number)
        return Answer("waiting", receipt, resolved.reason)

    def take_back(
        self, number: int, feedback: Feedback, is_own: Callable[[Event], bool]
    ) -> Receipt | None:
        """Undo a correction or a question of this sender, or any for an admin; None without one."""
        is_admin = feedback.trust == "admin"
        correction = self._outbox.correction(number)
        if correction is not None and (is_admin or is_own(correction.event)):
            return self._committer.take_back(number)
        with self._trying:
            question = self._outbox.question(number)
            asked = _feedback(question) if question else None
            is_askers = asked and feedback.user and same_name(asked.user, feedback.user)
            if asked is None or not (is_admin or is_askers):
                return None
            self._outbox.remove_question(number)
            return _receipt(asked, "the waiting correction was undone")

    def answered(self) -> Iterator[tuple[int, Feedback, ResolvedMessage]]:
        """Yield the questions that need not wait any longer, each with the time of its correction.

        A question is removed after the caller has handled it. After `PASS_S` the questions that are
        left wait for the next pass. LogAwayError while no host can be asked.
        """
        end, last = time.monotonic() + PASS_S, self._tried_last
        questions = sorted(self._outbox.questions(), key=lambda one: one.number <= last)
        beats = self._store.member.log.beats() if questions else []
        answering = {"", *(one.host for one in beats if one.age_s <= FRESH_S)}
        for question in questions:
            is_over = now_us() - question.time_us > DAY_US
            if is_over or answering & set(question.hosts):
                self._tried_last = question.number
                with self._trying:
                    if self._outbox.question(question.number) is not None:
                        resolved = self._tried(question)
                        if not resolved.silent or is_over:
                            yield question.time_us, _feedback(question), _final(resolved)
                            self._outbox.remove_question(question.number)
                        elif resolved.silent != question.hosts:
                            self._outbox.put_question(question._replace(hosts=resolved.silent))
                        # A pass waits only once for a host that lives and does not answer.
                        answering -= set(resolved.silent)
                if time.monotonic() > end:
                    return

    def on_fold(self, count: Callable[[Sequence[Event]], None]) -> None:
        """Call a function with the changes of other hosts."""
        self._store.on_fold = count

    def _tried(self, question: WaitingQuestion) -> ResolvedMessage:
        try:
            return self.resolve(_feedback(question))
        except RefError as error:
            return ResolvedMessage(None, proven=False, reason=str(error))


def _final(resolved: ResolvedMessage) -> ResolvedMessage:
    """Return the result of a question that does not wait any longer."""
    if not resolved.silent:
        return resolved
    reason = f"for a day no answer from {_named(resolved.silent)}, which may know the message"
    return ResolvedMessage(None, proven=False, reason=reason)


def _named(hosts: Iterable[str]) -> str:
    return ", ".join(filter(None, hosts)) or "the log of the fleet"


def _feedback(question: WaitingQuestion) -> Feedback:
    fields = question.feedback
    return Feedback(**fields | {"refs": tuple(fields["refs"])})


def _receipt(feedback: Feedback, reason: str) -> Receipt:
    """Return the receipt of a correction whose message is not known yet."""
    ref, after = next(iter(feedback.refs), ""), feedback.label or None
    return Receipt(False, 0, "", ref, None, after, reason=reason)
