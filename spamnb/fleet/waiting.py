"""Corrections that wait for the log of a fleet, and questions of a host to the others.

Failure: LogAwayError if the log is away and the outbox is full too, and for bulk changes, which do
not wait; FleetError of `answer_next`. A host that cannot be asked is `silent`.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spamnb.engine.learner import Committer, Learner
from spamnb.engine.lookup import Verdicts
from spamnb.engine.receipt import Receipt
from spamnb.engine.values import (
    BulkLoad,
    Example,
    Forget,
    Learn,
    MergedWords,
    Source,
    TrainingRequest,
    Undo,
    stored_example,
)
from spamnb.errors import FleetError, LogAwayError, RefError, RefusedError, StoreError
from spamnb.fleet.entries import MARK_BYTES, OWNERS, Place
from spamnb.fleet.log import DAY_S, FRESH_S, HOST_BYTES, Asked, Beat, host_mark
from spamnb.fleet.outbox import Outbox, WaitingCorrection
from spamnb.fleet.store import FleetStore, InDoubtError, Member, position_of
from spamnb.model.events import NO_LABEL, Event, EventKind, Recipe, label_key, no_update
from spamnb.model.features import Words
from spamnb.records.verdicts import HistoryEntry, decode_entry, encode_entry
from spamnb.store.codec import ByteCursor, chunk, varint
from spamnb.store.table_views import ReadView, WriteView
from spamnb.telemetry import Log, silent

if TYPE_CHECKING:
    from spamnb.engine.filter import Filter

LEARNT_TOGETHER = 64
"""corrections in one transaction: more need less CPU time each, and keep other hosts waiting"""
OLDER_US = 60_000_000
"""how much older than the last event an event may be"""
_UNCOPIED = "no replica of the server of the fleet's log has it yet"
RETRY_S = 5.0
"""A correction tries the log itself if nothing else has tried for so long."""
_NO_WORDS = Words(np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.uint8), b"")


class FleetCommitter(Committer):
    """`Committer` of a host in a fleet: corrections wait in its outbox while the log is away.

    A correction is learnt at once if the log takes it; otherwise it is stored in the outbox,
    durably, and its receipt says `waiting`. While any correction waits, later ones wait behind it,
    so the log gets them in the order in which they were given. `learn_waiting` learns them when the
    log is back.

    Each correction is learnt once, wherever the process ends. An entry of the log has the mark of
    its last correction, and every host knows the mark of its own last entry (`Recorded`). If
    `Recorded` has the mark of a correction that is still in the outbox, the log has the correction.
    If it is unknown whether the log has a transaction, its corrections get its mark, and are in the
    log together or not at all.
    """

    def __init__(
        self, store: FleetStore, learner: Learner, outbox: Outbox, log: Log = silent
    ) -> None:
        super().__init__(store, learner)
        self.fleet = store
        self.outbox = outbox
        self._log = log
        self._due = 0.0
        """when a correction may try the log again"""

    # -- corrections -------------------------------------------------------------------------------

    def _learnt(self, requests: Sequence[TrainingRequest], *, scored: bool) -> list[Receipt]:
        mark = os.urandom(MARK_BYTES)
        try:
            self._learn_first()
            return self._run(requests, mark, scored=scored)
        except (LogAwayError, FleetError) as error:
            if any(isinstance(request, BulkLoad) for request in requests):
                raise
            with self.fleet.read() as view:
                if view.position() is None:
                    raise
                return self._put(view, requests, mark, error)

    def _run(
        self, requests: Sequence[TrainingRequest], mark: bytes, *, scored: bool
    ) -> list[Receipt]:
        receipts = self.fleet.transact(
            lambda view: self.learner.run(view, self._fit(view, requests), scored=scored), mark
        )
        self.learner.committed()
        if self.fleet.is_copied:
            return receipts
        return [one._replace(reason=_UNCOPIED) if one.changed else one for one in receipts]

    def _fit(self, view: ReadView, requests: Sequence[TrainingRequest]) -> list[TrainingRequest]:
        """Return requests with times that fit, and without owners that other hosts cannot read.

        While hosts of the fleet are older, a user's label is one for all users, as it is there.
        """
        dated = _dated(view, requests)
        if self.fleet.level >= OWNERS:
            return dated
        return [_without_owner(view, request) for request in dated]

    def _learn_first(self) -> None:
        """Learn some of what waits; LogAwayError while anything is left, which comes first."""
        if not self.outbox.first(1):
            return
        if time.monotonic() >= self._due:
            self._learn_some()
            if not self.outbox.first(1):
                return
        raise LogAwayError("earlier corrections wait for the log of the fleet")

    def _put(
        self,
        view: ReadView,
        requests: Sequence[TrainingRequest],
        mark: bytes,
        error: StoreError,
    ) -> list[Receipt]:
        self._due = time.monotonic() + RETRY_S
        if not self.outbox.first(1):
            event = "corrections wait for the fleet's log"
            self._log({"event": event, "level": "warning", "error": str(error), "hint": error.hint})
        recipe, together = self.fleet.recipe, isinstance(error, InDoubtError)
        corrections = self.outbox.put([
            _correction(recipe, request, mark if together else os.urandom(MARK_BYTES))
            for request in requests
        ])  # fmt: skip
        return [_waiting(recipe, view, correction) for correction in corrections]

    def take_back(self, number: int) -> Receipt:
        """Undo a correction while it waits; RefError if it does not."""
        with self.committing:
            correction = self.outbox.take_back(number)
        if correction is None:
            raise RefError(
                f"no correction waits under the number {number}",
                hint="if it is learnt by now, undo its event: see `spamnb journal`",
            )
        with self.fleet.read() as view:
            waiting = _waiting(self.fleet.recipe, view, correction)
        reason = "the waiting correction was undone"
        return waiting._replace(waiting=0, after=waiting.before, reason=reason)

    # -- learning them --------------------------------------------------------------------------

    def learn_waiting(self) -> int:
        """Learn what waits, in order; return how many corrections were learnt or refused."""
        done = 0
        while self.outbox.first(1):
            with self.committing:
                done += self._learn_some()
        if done:
            self._log({"event": "waiting corrections learnt", "corrections": done})
        return done

    def _learn_some(self) -> int:
        """Learn the oldest corrections; other threads may put new ones behind them in between."""
        try:
            corrections, receipts = self._learnt_some(LEARNT_TOGETHER)
        except StoreError:
            self._due = time.monotonic() + RETRY_S
            raise
        self.outbox.remove(corrections)
        self._report(receipts)
        return len(corrections)

    def _learnt_some(self, most: int) -> tuple[list[WaitingCorrection], list[Receipt]]:
        corrections = self.outbox.first(most)
        try:
            return corrections, self._learn(corrections) if corrections else []
        except RefusedError as error:
            # One of them would overflow a number, or all are too large for one entry.
            if len({correction.mark for correction in corrections}) > 1:
                return self._learnt_some(1)
            return corrections, [_refused(correction, error) for correction in corrections]

    def _learn(self, corrections: list[WaitingCorrection]) -> list[Receipt]:
        host = self.fleet.host

        def run(view: WriteView) -> list[Receipt]:
            requests = list(_requests(view, corrections, position_of(view).of(host).mark))
            return self.learner.run(view, self._fit(view, requests), scored=False)

        receipts = self.fleet.transact(run, corrections[-1].mark)
        self.learner.committed()
        return receipts

    def _report(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            if receipt.error is not None:
                error: object = str(receipt.error)
                self._log(
                    {"event": "waiting correction refused", "level": "warning"}
                    | {"digest": receipt.digest, "error": error}
                )


def _dated(view: ReadView, requests: Sequence[TrainingRequest]) -> list[TrainingRequest]:
    """Return requests that are at most a minute older than the last event.

    Hosts differ in their clocks, and corrections wait; expiry and quotas read the journal by time.
    """
    last = view.event(view.totals().last_seq)
    least = last.time_us - OLDER_US if last else 0
    return [
        request if request.time_us >= least else request._replace(time_us=least)
        for request in requests
    ]


def _without_owner(view: ReadView, request: TrainingRequest) -> TrainingRequest:
    source = request.source
    if not isinstance(request, Learn) or not source.owner:
        return request
    if view.live(label_key(request.example.digest, 0, source.owner)) is not None:
        return request
    return request._replace(source=source._replace(owner=0))


def learn_alone(model: Filter, outbox: Outbox) -> int:
    """Learn what waits on a host that has left its fleet; return how many corrections."""
    done = 0
    while corrections := outbox.first(LEARNT_TOGETHER):
        model.teach([_request(correction) for correction in corrections if not correction.undone])
        outbox.remove(corrections)
        done += len(corrections)
    return done


def _requests(
    view: ReadView, corrections: Sequence[WaitingCorrection], mark: str
) -> Iterator[TrainingRequest]:
    """Yield what is to be learnt, given the mark of the host's last entry in the log."""
    marks = [correction.mark.hex() for correction in corrections]
    known = len(marks) - marks[::-1].index(mark) if mark in marks else 0
    for correction in corrections[:known]:
        if correction.undone and (event := _event_of(view, correction)) is not None:
            wanted = correction.event
            yield Undo(event.seq, Source(wanted.user, wanted.channel), wanted.time_us)
    yield from (_request(correction) for correction in corrections[known:] if not correction.undone)


def _event_of(view: ReadView, correction: WaitingCorrection) -> Event | None:
    """Return the event that a correction has become, unless a later one has replaced it."""
    wanted = correction.event
    live = view.live(wanted.label_key) if wanted.digest else None
    event = view.event(live.seq) if live else None
    fields = wanted.user, wanted.channel, wanted.after
    is_it = event is not None and (event.user, event.channel, event.after) == fields
    return event if is_it else None


class _About(NamedTuple):
    """What the event of a correction says of its message."""

    kind: EventKind
    example: Example
    label: int = NO_LABEL
    undoes: int = 0


def _about(recipe: Recipe, request: TrainingRequest) -> _About:
    nothing = tuple(np.zeros(0, np.uint64) for _ in range(recipe.groups))
    if isinstance(request, Learn):
        return _About(EventKind.LEARN, request.example, request.label)
    if isinstance(request, Forget):
        return _About(EventKind.FORGET, Example(request.digest, "", nothing))
    assert isinstance(request, Undo), "bulk changes do not wait"
    return _About(EventKind.UNDO, Example(b"", "", nothing), undoes=request.event)


def _correction(recipe: Recipe, request: TrainingRequest, mark: bytes) -> WaitingCorrection:
    about, source = _about(recipe, request), request.source
    example, update = about.example, no_update(recipe.groups, len(recipe.labels))
    event = Event(
        seq=0,
        kind=about.kind,
        time_us=request.time_us,
        user=source.user,
        channel=source.channel,
        digest=example.digest,
        message_id=example.message_id,
        before=NO_LABEL,
        after=about.label,
        previous=0,
        ids=example.ids,
        delta=update,
        net_update=update,
        times=example.times if recipe.occurrences else None,
        undoes=about.undoes,
        immediate=source.immediate,
        weight=source.weight,
        person=source.person,
        owner=0 if source.person else source.owner,
        blocks=example.blocks,
    )
    words = _NO_WORDS
    if example.words is not None and recipe.vocabulary:
        words = example.words.words(np.unique(np.concatenate(example.ids)))
    return WaitingCorrection(event, words, mark, again=isinstance(request, Learn) and request.again)


def _request(correction: WaitingCorrection) -> TrainingRequest:
    event = correction.event
    source = Source(
        event.user, event.channel, event.weight, event.immediate, event.person, event.owner
    )
    if event.kind is EventKind.LEARN:
        words = MergedWords([correction.words])
        example = stored_example(event, words)
        return Learn(example, event.after, source, event.time_us, again=correction.again)
    if event.kind is EventKind.FORGET:
        return Forget(event.digest, source, event.time_us)
    return Undo(event.undoes, source, event.time_us)


def _waiting(recipe: Recipe, view: ReadView, correction: WaitingCorrection) -> Receipt:
    """Return the receipt of a correction that waits."""
    event = correction.event
    live = view.live(event.label_key) if event.digest else None
    before = live.label if live else NO_LABEL
    return Receipt(
        changed=False,
        event=0,
        digest=event.digest.hex(),
        message_id=event.message_id,
        before=None if before == NO_LABEL else recipe.labels[before],
        after=None if event.after == NO_LABEL else recipe.labels[event.after],
        reason="the log of the fleet is away; the correction is learnt when the log is back",
        waiting=correction.number,
    )


def _refused(correction: WaitingCorrection, error: RefusedError) -> Receipt:
    event = correction.event
    return Receipt(False, 0, event.digest.hex(), event.message_id, None, None, error=error)


ASK_S = 2.0
"""how long one correction waits for the answers of other hosts, in all"""
ANSWER_BYTES = 4 << 20
_VERSION = 1
_KEYS = {1: "signature", 2: "digest", 3: "message_id"}


class OtherHosts:
    """The verdicts of this host and of all others; one object serves one correction.

        question    u8 1 | u8 key: 1 signature, 2 digest, 3 Message-ID | text
        answer      u8 1 | varint count | count * chunk history entry, newest first

    Questions and answers go through the server of the log, sealed: an answer says to whom a message
    was delivered, so that the asking host checks rights as for a verdict of its own. The first
    bytes of a signature say which host has it (`host_mark`); by digest or Message-ID all hosts are
    asked. A host that has failed to answer is not asked again.
    """

    def __init__(self, member: Member, own: Verdicts | None, *, named_only: bool = False) -> None:
        self.silent: set[str] = set()
        """hosts that may have a verdict that was looked for, and did not answer"""
        self._member, self._own = member, own
        self._named_only = named_only
        """ask only the host that a signature names: for strangers, whose questions have no limit"""
        self._end = time.monotonic() + ASK_S
        self._beats: list[Beat] | None = None

    def find(
        self, *, signature: bytes = b"", message_id: str = "", digest: bytes = b""
    ) -> list[HistoryEntry]:
        """Return the entries with one of the three keys, newest first."""
        keys: dict[str, Any] = {
            "signature": signature, "message_id": message_id, "digest": digest
        }  # fmt: skip
        found = self._own.find(**keys) if self._own else []
        if (signature and found) or not any(keys.values()):
            return found
        judges = self._judges(signature)
        self.silent |= {one.host for one in judges if one.age_s > FRESH_S}
        asked = sorted({one.host for one in judges} - self.silent)
        key = next((kind, keys[name]) for kind, name in _KEYS.items() if keys[name])
        entries = [*found, *(self._ask(asked, *key) if asked else ())]
        return sorted(entries, key=lambda entry: -entry.time_us)

    def _judges(self, signature: bytes) -> list[Beat]:
        """Return the hosts that may have the verdict: those of the last day if none is named.

        A signature has the name that its host had then. If that host is silent, it may have another
        name today, so the living hosts are asked, too.
        """
        try:
            if self._beats is None:
                self._beats = self._member.log.beats()
        except (LogAwayError, FleetError):
            self.silent.add("")
            self._beats = []
        others = [one for one in self._beats if one.host != self._member.host]
        mark = signature[:HOST_BYTES]
        named = [one for one in others if mark and host_mark(one.host) == mark]
        if self._named_only or any(one.age_s <= FRESH_S for one in named):
            return named
        return named + [one for one in others if one.age_s <= (FRESH_S if named else DAY_S)]

    def _ask(self, hosts: Sequence[str], kind: int, key: bytes | str) -> list[HistoryEntry]:
        member, ident = self._member, secrets.token_hex(8)
        text = key.encode(errors="surrogatepass") if isinstance(key, str) else key
        body = member.sealer.seal(bytes((_VERSION, kind)) + text, _question_place(ident))
        left_s = max(self._end - time.monotonic(), 0.0)
        found: list[HistoryEntry] = []
        answered: set[str] = set()
        answers: Mapping[str, bytes] = {}
        with suppress(StoreError):  # the log is away
            answers = member.log.ask(hosts, Asked(ident, body), left_s)
        for host, answer in answers.items():
            with suppress(StoreError):  # this answer is not of this fleet, or of a later version
                found += _decoded(member.sealer.open(answer, _answer_place(ident, host)))
                answered.add(host)
        self.silent |= set(hosts) - answered
        return found


def answer_next(member: Member, history: Verdicts | None, wait_s: float) -> bool:
    """Answer the next question to this host; False if none comes."""
    asked = member.log.next_question(member.host, wait_s)
    if asked is None:
        return False
    question = member.sealer.open(asked.body, _question_place(asked.ident))
    if history is None or question[:1] != bytes((_VERSION,)) or question[1] not in _KEYS:
        raise FleetError("a question of another host cannot be answered", hint="upgrade this host")
    name, text = _KEYS[question[1]], question[2:]
    key: Any = text.decode(errors="surrogatepass") if name == "message_id" else text
    found = history.find(**{name: key})
    sealed = member.sealer.seal(_encoded(found), _answer_place(asked.ident, member.host))
    member.log.answer(member.host, Asked(asked.ident, sealed))
    return True


def _encoded(entries: Sequence[HistoryEntry]) -> bytes:
    chunks: list[bytes] = []
    for entry in entries:
        chunks.append(chunk(encode_entry(entry)))
        if len(chunks) > 1 and sum(map(len, chunks)) > ANSWER_BYTES:
            del chunks[-1]
            break
    return bytes((_VERSION,)) + varint(len(chunks)) + b"".join(chunks)


def _decoded(answer: bytes) -> list[HistoryEntry]:
    reader = ByteCursor(answer)
    if reader.byte() != _VERSION:
        raise FleetError("an answer of a later version", hint="upgrade this host")
    return [decode_entry(reader.chunk()) for _ in range(reader.varint())]


def _question_place(ident: str) -> Place:
    """Return the place of a question; the blank keeps it apart from the name of any host."""
    return Place(ident, "a question", 0, 0, 0)


def _answer_place(ident: str, host: str) -> Place:
    return Place(ident, f"an answer of {host}", 0, 0, 0)
