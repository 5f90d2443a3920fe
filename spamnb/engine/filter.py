"""`Filter`: score messages, learn from them, correct, forget and undo.

One `Filter` serves one model folder and may be shared by threads; other processes may open the
same folder. Scoring reads a snapshot and keeps nothing open. Every training method returns after
its change is on disk. Must not know sockets, terminals or settings.

In a fleet a correction may have to wait for the log. Until it is learnt, that very message has a
pin (`Pins`): its label and decision are those that the user expects; only similar messages wait.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from spamnb.engine.learner import Committer, Learner, ReplayableBatches
from spamnb.engine.lookup import each_owner, find_digest, find_example, in_force, joined, own_label
from spamnb.engine.planner import PendingJournal
from spamnb.engine.prior import shipped_load
from spamnb.engine.receipt import Receipt
from spamnb.engine.scoring import (
    FeatureBatch,
    MessageReader,
    example_of,
    personal_verdicts,
    personal_without,
    score_batches,
    score_examples,
    score_without,
    with_costs,
)
from spamnb.engine.site_scores import threshold_of
from spamnb.engine.values import Example, Forget, Learn, Source, TrainingRequest, Undo
from spamnb.errors import LabelError, UserError
from spamnb.mail.envelope import LocalHosts
from spamnb.model.correction import decision_margins, matches_label, missing_nats
from spamnb.model.costs import KINDS, Costs, OwnCosts, roles_of
from spamnb.model.events import NO_LABEL, UNVERIFIED, Recipe, label_key
from spamnb.model.features import GROUPS
from spamnb.model.persons import person_id
from spamnb.model.scoring import softmax, spam_log_odds
from spamnb.model.verdict import (
    SHIPPED,
    SIGNATURE_BYTES,
    Clue,
    Verdict,
    decide,
    sides,
    signature_text,
)
from spamnb.policy.actions import PersonNames
from spamnb.records.verdicts import History, HistoryEntry
from spamnb.settings.values import TeachingRules
from spamnb.store.model_store import open_store
from spamnb.store.table_views import ReadView, Store
from spamnb.telemetry import now_us

ONE_IN = 1000
"""The default target of lost ham: at most one in so many."""
BATCHES_PER_SNAPSHOT = 8
"""Batches of messages that are scored on one snapshot."""

OWNER = Source(user="owner", channel="api")
"""The default source of a training: the owner of the model folder."""


def new_recipe(
    kind: str = "corrected",
    labels: Sequence[str] = ("ham", "spam"),
    *,
    vocabulary: bool = True,
    documents: bool = False,
) -> Recipe:
    """Return a recipe with a new random key and the default constants of the model kind.

    `vocabulary` stores the text of each feature, so that verdicts can be explained. `documents`
    makes a model for plain text documents instead of mail. Raises LabelError for an unknown kind,
    or for labels that are fewer than two, equal or empty.
    """
    if kind not in KINDS:
        raise LabelError(f"there is no model kind {kind!r}", hint=f"use one of {', '.join(KINDS)}")
    names = tuple(labels)
    if len(names) < 2 or len(set(names)) != len(names) or not all(names):
        raise LabelError(
            f"a model cannot have the labels {', '.join(map(repr, names)) or '(none)'}",
            hint="give two or more labels, all different and none empty",
        )
    return Recipe(
        kind=kind,
        labels=names,
        key=secrets.token_bytes(32),
        vocabulary=vocabulary,
        documents=documents,
        groups=GROUPS,
        alpha=0.01 if kind == "corrected" else 1.0,
    )


class Filter:
    """A spam filter model in a folder: scores messages and learns from them.

    Open one with `Filter.open`, and close it or use it as a context manager. All methods may be
    called from several threads. `labels` holds the model's labels, `recipe` its parameters.
    """

    def __init__(  # noqa: PLR0913 - keyword options with defaults
        self,
        store: Store,
        *,
        history: History | None = None,
        local: LocalHosts | None = None,
        costs: Costs | None = None,
        one_in: int = ONE_IN,
        committer: Callable[[Store, Learner], Committer] = Committer,
    ) -> None:
        self.store = store
        self.history = history
        self.recipe = store.recipe
        self.labels = store.recipe.labels
        self.costs = costs or Costs()
        self.one_in = one_in
        """at most one in so many ham is to be filed; 0: the shipped threshold of junk"""
        self.reader = MessageReader(store.recipe.key, local, documents=store.recipe.documents)
        self.committer = committer(store, Learner(store.recipe, self.costs))
        self.pins: Pins | None = None
        self.host_mark = b""
        """first bytes of all signatures; in a fleet they name the host"""
        self._threshold = (-1, SHIPPED)
        """the last change of the store, and the threshold since"""

    @classmethod
    def open(  # noqa: PLR0913 - public interface: keyword options with defaults
        cls,
        path: str | Path,
        *,
        create: bool = False,
        recipe: Recipe | None = None,
        readonly: bool = False,
        history: bool = True,
        local: LocalHosts | None = None,
        costs: Costs | None = None,
        map_size: int = 1 << 40,
        limit_bytes: int = 0,
        prior: bool = False,
        one_in: int = ONE_IN,
    ) -> Self:
        """Open the model in the folder `path`.

        create: make a new model if the folder has none, with `recipe` or the default recipe. An
            existing model keeps its own recipe.
        readonly: do not write to the folder; training methods raise StoreAccessError.
        history: keep a record of each remembered verdict, so that a later correction can name the
            message by its signature, digest or Message-ID.
        local: the hosts and domains of this site. Headers that its own delivery adds are ignored,
            and only its own Authentication-Results are used.
        costs: the costs of mistakes, which set the thresholds of the decisions.
        map_size: address space reserved for the store, in bytes; it takes no disk space.
        limit_bytes: maximum size of the store; 0 derives a limit from the free disk space.
        one_in: at most one in so many ham is to be filed as junk: the scores of the site's own mail
            set the threshold of junk. 0: only the costs set it.
        prior: give a model without events the weights of common words and forms that ship with
            spamnb, as one event that `undo` reverts. Only a model of mail with the labels ham and
            spam takes them.

        Raises StoreMissingError if there is no model and `create` is false, and other StoreErrors
        if the model cannot be opened.
        """
        recipe = (recipe or new_recipe()) if create else None
        store = open_store(
            path, create=recipe, readonly=readonly, map_size=map_size, limit_bytes=limit_bytes
        )
        try:
            opened = History.open(Path(path) / "history") if history and not readonly else None
        except BaseException:
            store.close()
            raise
        model = cls(store, history=opened, local=local, costs=costs, one_in=one_in)
        if prior:
            model._add_prior()
        return model

    def _add_prior(self) -> None:
        """Add the shipped prior to a model without events, which a killed creation leaves, too."""
        with self.store.read() as view:
            is_empty = view.totals().last_seq == 0 and view.position() is None
        added = shipped_load(self.recipe) if is_empty else None
        if added is not None:
            self.teach([added])

    def close(self) -> None:
        """Close the model's files. A second call does nothing."""
        if self.history is not None:
            self.history.close()
        if self.pins is not None:
            self.pins.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- scoring --------------------------------------------------------------------------------

    def score(
        self,
        raw: bytes,
        *,
        remember: bool = True,
        person: int = 0,
        own_costs: OwnCosts | None = None,
    ) -> Verdict:
        """Return the verdict on one raw message, for the person with the id `person` if given.

        `own_costs` replace the costs of the model in the decision.

        With `remember`, the verdict is added to the history and has a `signature`, by which a
        later `correct` or `explain` finds the message without its text. It has no effect if the
        model was opened without a history. Raises UserError if `raw` is not bytes.
        """
        feature_batches = [self.reader.feature_batch([_message(raw)])]
        verdicts = self.score_batches(feature_batches)
        if person:
            given = verdicts[0], feature_batches[0].example(0)
            mine = self.personal_verdicts(given, [person], explained=True)
            verdicts = [mine.get(person, verdicts[0])]
        verdicts = [with_costs(verdicts[0], own_costs)]
        return (self.remember(feature_batches, verdicts) if remember else verdicts)[0]

    def score_many(self, raws: Iterable[bytes], *, remember: bool = False) -> Iterator[Verdict]:
        """Yield the verdicts on many raw messages, in their order.

        Messages are scored in batches, about three times as fast as by calling `score` for each.
        `remember` works as in `score`.
        """
        feature_batches = self.reader.feature_batches(map(_message, _several(raws)))
        while several := list(islice(feature_batches, BATCHES_PER_SNAPSHOT)):
            verdicts = self.score_batches(several)
            yield from self.remember(several, verdicts) if remember else verdicts

    def score_batches(self, feature_batches: Sequence[FeatureBatch]) -> list[Verdict]:
        """Return the verdicts on messages that are already parsed, all from one snapshot."""
        with self.store.read() as view:
            threshold = self.threshold(view)
            verdicts = score_batches(self.recipe, self.costs, view, feature_batches, threshold)
        return with_pins(verdicts, self.pins, self.costs, self.store)

    def threshold(self, view: ReadView) -> float:
        """Return the junk threshold of the site in nats, before the scores are stretched.

        `view` is a snapshot of the store. To read the counts takes 90 us, a tenth of the time to
        score a message.
        """
        change = view.last_change()
        known, threshold = self._threshold
        if change != known:
            threshold = threshold_of(view, self.recipe, self.one_in)
            self._threshold = change, threshold
        return threshold

    def person(self, name: str) -> int:
        """Return the id of a person in this model; 0 for an empty name."""
        return person_id(name, self.recipe.key) if name else 0

    def owner(self, name: str, *, verified: bool = True) -> int:
        """Return the id of the owner of a user's labels in this model; 0 for an empty name.

        The id differs from that of the same name if nothing proves who gave the label.
        """
        if not name:
            return 0
        id_ = person_id(f"owner {name}", self.recipe.key)
        return id_ & ~UNVERIFIED or 1 if verified else id_ | UNVERIFIED

    def personal_verdicts(
        self, given: tuple[Verdict, Example], persons: Iterable[int], *, explained: bool = False
    ) -> dict[int, Verdict]:
        """Return the verdict for each of these persons that has corrections.

        `given` is the message with its shared verdict; all other persons get the shared verdict.
        """
        several = list(persons)
        with self.store.read() as view:
            found = personal_verdicts(
                self.recipe, self.costs, view, given, several, explained=explained
            )
        return found | pinned_verdicts(given[0], found, several, self.pins, self.costs)

    def explain(
        self, ref: bytes | str, *, person: int = 0, own_costs: OwnCosts | None = None
    ) -> Verdict:
        """Return the current verdict on a message; its `clues()` name the strongest features.

        `ref` is the raw message (bytes), or the signature, digest or Message-ID (str) of a message
        in the history or the journal; the text of its features then comes from the vocabulary.
        `person` is the id of the person that the verdict is for, as `person()` returns it;
        `own_costs` replace the costs of the model.
        Nothing is added to the history. Raises RefError if no single message matches.
        """
        if not isinstance(ref, str):
            return self.score(ref, remember=False, person=person, own_costs=own_costs)
        example = find_example(self.store, self.history, ref)
        with self.store.read() as view:
            threshold = self.threshold(view)
            verdicts = score_examples(
                self.recipe, self.costs, view, [example], explained=True, threshold=threshold
            )
        (verdict,) = with_pins(verdicts, self.pins, self.costs, self.store)
        mine = self.personal_verdicts(
            (verdict, example), [person] if person else [], explained=True
        )
        return with_costs(mine.get(person, verdict), own_costs)

    def without(
        self, ref: bytes | str, count: int, *, person: int = 0, own_costs: OwnCosts | None = None
    ) -> list[tuple[Clue, Verdict]]:
        """Return the strongest clues of a message, and the verdict on it without each one.

        The parameters are as in `explain`; of a raw message, only ids are used.
        """
        example, recipe, costs = self.lookup(ref), self.recipe, self.costs
        with self.store.read() as view:
            threshold = self.threshold(view)
            model = recipe, costs, threshold
            found = personal_without(model, view, example, person, count) if person else None
            if found is None:
                found = score_without(recipe, costs, view, example, count, threshold)
        return [(clue, with_costs(verdict, own_costs)) for clue, verdict in found]

    def remember(
        self,
        feature_batches: Sequence[FeatureBatch],
        verdicts: list[Verdict],
        notes: Sequence[dict[str, str]] = (),
    ) -> list[Verdict]:
        """Add verdicts to the history, all or none, and return them with their signatures.

        `notes` holds facts to store with each verdict, such as the recipient. If the model was
        opened without a history, the verdicts are returned unchanged.
        """
        if self.history is None:
            return verdicts
        signed, entries = [], []
        places = [
            (feature_batch.features, index)
            for feature_batch in feature_batches
            for index in range(len(feature_batch.messages))
        ]
        now, each_note = now_us(), notes or [{}] * len(verdicts)
        for verdict, (features, index), note in zip(verdicts, places, each_note, strict=True):
            unguessable = SIGNATURE_BYTES - len(self.host_mark)
            signature = self.host_mark + secrets.token_bytes(unguessable)
            signed.append(verdict.signed(signature_text(signature)))
            entries.append(
                HistoryEntry(
                    time_us=now,
                    signature=signature,
                    digest=verdict.digest,
                    message_id=verdict.message_id,
                    label=verdict.label,
                    probability=verdict.probability,
                    log_odds=verdict.spam_log_odds if "spam" in self.labels else verdict.log_odds,
                    decision=verdict.decision,
                    ids=features.by_group(index),
                    times=features.times_of(index) if self.recipe.occurrences else None,
                    blocks=features.blocks_of(index) if self.recipe.kind == "corrected" else None,
                    notes=note | _threshold_note(verdict),
                )
            )
        self.history.add(entries)
        return signed

    # -- training -------------------------------------------------------------------------------

    def learn(self, raw: bytes, label: str, *, source: Source = OWNER) -> Receipt:
        """Train the model with one message and its label.

        A label that contradicts the model strongly has less effect than one that agrees with it,
        because training sets contain mistakes; use `correct` for a label that a person gave.
        Training again with the same label changes nothing. A new label replaces the old one.
        Returns when the change is on disk. Raises LabelError for an unknown label, UserError for
        an empty message, RefusedError if the checkpoint contains the message under another label.
        """
        index = self.label(label)
        return self.run(Learn(self.example(_content(raw)), index, source, now_us()))

    def correct(self, ref: bytes | str | Example, label: str, *, source: Source = OWNER) -> Receipt:
        """Set the label that a person gave a message; afterwards the model agrees with it.

        `ref` is the raw message (bytes), or the signature, digest or Message-ID (str) of a message
        in the history or the journal. A model of the kind "corrected" is changed until label and
        decision of the message match. Returns when the change is on disk. Raises LabelError for an
        unknown label, RefError if no single message matches, RefusedError as `learn`.
        """
        index = self.label(label)
        if isinstance(ref, str):
            found = find_example(self.store, self.history, ref)
        else:
            found = ref if isinstance(ref, Example) else self.example(_content(ref))
        return self.run(Learn(found, index, source._replace(immediate=True), now_us(), again=True))

    def forget(self, ref: bytes | str, *, source: Source = OWNER) -> Receipt:
        """Remove the training of a message from the model.

        If nothing else was learnt meanwhile, every number of the model returns to its old value.
        `ref` is as in `correct`. Raises RefError for a message that was never learnt, RefusedError
        for one that is part of the checkpoint.
        """
        digest = self.digest(ref)
        with self.store.read() as view:
            sources = [source] if source.owner else each_owner(view, digest, source)
        receipts = self.teach([Forget(digest, one, now_us()) for one in sources])
        for receipt in receipts:
            if receipt.error is not None:
                raise receipt.error
        return joined(receipts)

    def undo(self, receipt: Receipt | int, *, source: Source = OWNER) -> Receipt:
        """Undo one training event, given its receipt or its number in the journal.

        A receipt with `changed` false undoes nothing, because the event that set the label belongs
        to another training. Raises RefError if the journal has no such event, RefusedError if a
        later event on the same message must be undone first.
        """
        if isinstance(receipt, int):
            return self.run(Undo(receipt, source, now_us()))
        if not receipt.changed:
            return receipt._replace(error=None, reason="the receipt changed nothing")
        return self.run(Undo(receipt.event, source, now_us()))

    def teach(self, requests: Sequence[TrainingRequest], *, scored: bool = False) -> list[Receipt]:
        """Run several training requests in one transaction and return a receipt for each.

        A refused request does not raise: its receipt holds the `error`, and the others are carried
        out. With `scored`, receipts hold the probabilities before and after.
        """
        return self.committer.run(requests, scored=scored)

    def teach_stream(self, requests: ReplayableBatches) -> list[Receipt]:
        """Run training requests as an iterator yields them, in one transaction, as `teach` does.

        Bulk training uses it to learn while other processes still parse messages.
        """
        return self.committer.run_stream(requests)

    def run(self, request: TrainingRequest) -> Receipt:
        """Run one training request; raise its error if it is refused."""
        receipt = self.committer.run([request])[0]
        if receipt.error is not None:
            raise receipt.error
        return receipt

    # -- lookup ---------------------------------------------------------------------------------

    def digest(self, ref: bytes | str) -> bytes:
        """Return the digest of a raw message, or of the one that a reference names."""
        if not isinstance(ref, str):
            return self.example(ref).digest
        return find_digest(self.store, self.history, ref)

    def trained_label(self, raw: bytes, source: Source | None = None) -> str | None:
        """Return the label in force for a message, or the one that a source has given it."""
        digest = self.example(raw).digest
        with self.store.read() as view:
            found = own_label(view, digest, source) if source else in_force(view, digest).label
        return None if found == NO_LABEL else self.labels[found]

    def source_of(
        self, user: str, rules: TeachingRules, persons: PersonNames | None = None
    ) -> Source:
        """Return the source of the labels of a user whose identity is proven."""
        person = self.person(persons.of(user)) if persons else 0
        return Source(user, person=person, owner=self.owner(rules.owner(user)))

    def lookup(self, ref: bytes | str) -> Example:
        """Return the ids of a raw message, or of the one that a reference names."""
        if not isinstance(ref, str):
            return self.example(ref)
        return find_example(self.store, self.history, ref)

    def example(self, raw: bytes) -> Example:
        """Return the digest, Message-ID and feature ids of a raw message under this model's key."""
        feature_batch = self.reader.feature_batch([_message(raw)])
        return example_of(
            feature_batch.messages[0],
            feature_batch.features,
            0,
            self.recipe,
        )

    def label(self, name: str) -> int:
        """Return the index of a label; raise LabelError if the model does not have it."""
        if name not in self.labels:
            raise LabelError(
                f"this model has no label {name!r}", hint=f"its labels: {', '.join(self.labels)}"
            )
        return self.labels.index(name)


def _threshold_note(verdict: Verdict) -> dict[str, str]:
    """Return the note by which `plain` restores the score before it was stretched."""
    return {} if verdict.threshold == SHIPPED else {"threshold": f"{verdict.threshold:.2f}"}


def _message(raw: object) -> bytes:
    if isinstance(raw, bytes):
        return raw
    raise UserError(
        f"a message is bytes, not {type(raw).__name__}", hint="read the file in the mode 'rb'"
    )


def _several(raws: object) -> Iterable[object]:
    if isinstance(raws, Iterable) and not isinstance(raws, (bytes, str)):
        return raws
    raise UserError("one message is given, not several", hint="give a list of messages")


def _content(raw: object) -> bytes:
    message = _message(raw)
    if not message.strip():
        raise UserError("the message is empty", hint="nothing can be learnt from it")
    return message


class Pins(Protocol):
    """The labels that wait, by label key."""

    def pinned(self, keys: Sequence[bytes]) -> Mapping[bytes, int]:
        """Return the label of each of these label keys that has a pin."""

    def owners(self, digests: Sequence[bytes]) -> Mapping[bytes, Mapping[int, int]]:
        """Return the labels of each of these messages that has pins, by owner."""

    def close(self) -> None:
        """Close the files."""


def with_pins(
    verdicts: list[Verdict], pins: Pins | None, costs: Costs, store: Store
) -> list[Verdict]:
    """Return these verdicts; that on a message with a pin in force is as the pin says."""
    given = pins.owners([verdict.digest for verdict in verdicts]) if pins is not None else {}
    if not given:
        return verdicts
    with store.read() as view:
        pending = PendingJournal(view, [], view.totals().last_seq)
        said = {
            digest: label
            for digest, labels in given.items()
            if (label := pending.in_force(digest, labels).label) in labels.values()
        }
    return [
        _as_said(verdict, said[verdict.digest], costs) if verdict.digest in said else verdict
        for verdict in verdicts
    ]


def pinned_verdicts(
    shared: Verdict,
    personal: Mapping[int, Verdict],
    persons: Sequence[int],
    pins: Pins | None,
    costs: Costs,
) -> dict[int, Verdict]:
    """Return the verdict for each of these persons that has a pin of their own on the message."""
    if pins is None:
        return {}
    keys = {label_key(shared.digest, person): person for person in persons}
    return {
        keys[key]: _as_said(personal.get(keys[key], shared), label, costs)
        for key, label in pins.pinned(list(keys)).items()
    }


def _as_said(verdict: Verdict, label: int, costs: Costs) -> Verdict:
    """Return the verdict that the user who gave this label expects."""
    labels, z, roles = verdict.labels, list(verdict.z), roles_of(verdict.labels)
    if not matches_label(z, label, costs, roles):
        z[label] += max(missing_nats(z, label, decision_margins(costs)[roles[label]]), 0.0)
    P, (s, h) = softmax(z), sides(labels, z)
    return replace(
        verdict,
        label=labels[label],
        probability=P[labels.index("spam") if "spam" in labels else label],
        log_odds=z[s] - z[h],
        decision=decide(spam_log_odds(z, roles), costs),
        z=tuple(z),
        reason="",
    )
