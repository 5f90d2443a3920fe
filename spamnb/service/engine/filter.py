"""Filter: score, learn, correct, forget, undo. The sentences that the project exists for.

One `Filter` serves one model folder and may be shared by threads; other processes may open the
same folder. Scoring takes a snapshot and holds nothing afterwards; teaching is durable when it
returns. Must not know sockets, terminals or settings.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from spamnb.core.features.extract import GROUPS
from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.costs import Costs
from spamnb.core.model.events import Recipe
from spamnb.core.model.kinds import KINDS
from spamnb.core.model.verdict import Verdict
from spamnb.errors import LabelError, UserError
from spamnb.service.engine.clock import now_us
from spamnb.service.engine.extraction import FeatureBatch, MessageReader, example_of
from spamnb.service.engine.group_commit import Committer, ReplayableBatches
from spamnb.service.engine.learner import Learner
from spamnb.service.engine.lookup import (
    SIGNATURE_BYTES,
    find_digest,
    find_example,
    signature_text,
)
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Example, Forget, Learn, Lesson, Source, Undo
from spamnb.service.engine.scoring import judge_examples, judge_portions
from spamnb.store.contract import Store
from spamnb.store.history.entry import HistoryEntry
from spamnb.store.history.verdict_history import History
from spamnb.store.lmdb.store import open_store

TOGETHER = 8
"""Portions that are judged on one snapshot."""

MINE = Source(who="owner", channel="api")
"""Who speaks if nobody is named: whoever may open the folder."""


def new_recipe(
    kind: str = "corrected",
    labels: Sequence[str] = ("ham", "spam"),
    *,
    vocabulary: bool = True,
    documents: bool = False,
) -> Recipe:
    """A recipe with a key of its own, and the constants that suit the kind."""
    if kind not in KINDS:
        raise LabelError(f"there is no model kind {kind!r}", hint=f"one of {', '.join(KINDS)}")
    names = tuple(labels)
    if len(names) < 2 or len(set(names)) != len(names) or not all(names):
        raise LabelError("a model needs two labels or more, all different")
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
    """A model that scores and learns."""

    def __init__(
        self,
        store: Store,
        *,
        history: History | None = None,
        local: LocalHosts | None = None,
        costs: Costs | None = None,
    ) -> None:
        self.store = store
        self.history = history
        self.recipe = store.recipe
        self.labels = store.recipe.labels
        self.costs = costs or Costs()
        self.reader = MessageReader(store.recipe.key, local, documents=store.recipe.documents)
        self._committer = Committer(store, Learner(store.recipe, self.costs))

    @classmethod
    def open(  # noqa: PLR0913 - the public door: keyword options with defaults
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
    ) -> Self:
        """Open the model in a folder; `create` makes one if there is none."""
        made = (recipe or new_recipe()) if create else None
        store = open_store(
            path, create=made, readonly=readonly, map_size=map_size, limit_bytes=limit_bytes
        )
        try:
            remembered = History.open(Path(path) / "history") if history and not readonly else None
        except BaseException:
            store.close()
            raise
        return cls(store, history=remembered, local=local, costs=costs)

    def close(self) -> None:
        """Let go of the folder; a second call does nothing."""
        if self.history is not None:
            self.history.close()
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

    def score(self, raw: bytes, *, remember: bool = True) -> Verdict:
        """Our word on one message. Remembered, so that a correction needs no message."""
        feature_batches = [self.reader.feature_batch([_message(raw)])]
        verdicts = self.judge(feature_batches)
        return (self.remember(feature_batches, verdicts) if remember else verdicts)[0]

    def score_many(self, raws: Iterable[bytes], *, remember: bool = False) -> Iterator[Verdict]:
        """Our word on many messages, in order; the fast path."""
        feature_batches = self.reader.feature_batches(map(_message, _several(raws)))
        while several := list(islice(feature_batches, TOGETHER)):
            verdicts = self.judge(several)
            yield from self.remember(several, verdicts) if remember else verdicts

    def judge(self, feature_batches: Sequence[FeatureBatch]) -> list[Verdict]:
        """Our word on messages that were read already, all on one snapshot."""
        with self.store.read() as view:
            return judge_portions(self.recipe, self.costs, view, feature_batches)

    def explain(self, ref: bytes | str) -> Verdict:
        """Our word on a message now; by reference, its words come from the vocabulary."""
        if not isinstance(ref, str):
            return self.score(ref, remember=False)
        with self.store.read() as view:
            example = find_example(view, self.history, ref)
            return judge_examples(self.recipe, self.costs, view, [example])[0]

    def remember(
        self,
        feature_batches: Sequence[FeatureBatch],
        verdicts: list[Verdict],
        notes: Sequence[dict[str, str]] = (),
    ) -> list[Verdict]:
        """Keep verdicts in the history, all or none; the same, with their signatures.

        `notes`: for each verdict, whom the message goes to and the like. Without a history nothing
        is kept and there is no signature.
        """
        if self.history is None:
            return verdicts
        signed, entries = [], []
        examples = (
            example_of(message, feature_batch.features, index, occurrences=self.recipe.occurrences)
            for feature_batch in feature_batches
            for index, message in enumerate(feature_batch.messages)
        )
        noted = notes or [{}] * len(verdicts)
        for verdict, example, note in zip(verdicts, examples, noted, strict=True):
            signature = secrets.token_bytes(SIGNATURE_BYTES)
            signed.append(verdict.signed(signature_text(signature)))
            entries.append(
                HistoryEntry(
                    time_us=now_us(),
                    signature=signature,
                    digest=verdict.digest,
                    message_id=verdict.message_id,
                    label=verdict.label,
                    probability=verdict.probability,
                    log_odds=verdict.log_odds,
                    decision=verdict.decision,
                    ids=example.ids,
                    times=example.times,
                    notes=note,
                )
            )
        self.history.add(entries)
        return signed

    # -- teaching -------------------------------------------------------------------------------

    def learn(self, raw: bytes, label: str, *, source: Source = MINE) -> Receipt:
        """Teach with a message; doubted if it contradicts the model. Durable when it returns."""
        index = self.label(label)
        return self._one(Learn(self.example(_content(raw)), index, source, now_us()))

    def correct(self, ref: bytes | str | Example, label: str, *, source: Source = MINE) -> Receipt:
        """A person's word: afterwards the message is judged as they said."""
        index = self.label(label)
        if isinstance(ref, Example):
            example = ref
        elif not isinstance(ref, str):
            example = self.example(_content(ref))
        else:
            with self.store.read() as view:
                example = find_example(view, self.history, ref)
        with self.store.read() as view:
            again = self._committer.learner.needs_more(view, example, index)
        return self._one(Learn(example, index, source._replace(immediate=True), now_us(), again))

    def forget(self, ref: bytes | str, *, source: Source = MINE) -> Receipt:
        """As if the message had never been taught; every number returns to what it was."""
        if not isinstance(ref, str):
            digest = self.example(ref).digest
        else:
            with self.store.read() as view:
                digest = find_digest(view, self.history, ref)
        return self._one(Forget(digest, source, now_us()))

    def undo(self, receipt: Receipt | int, *, source: Source = MINE) -> Receipt:
        """Take back one training, by its receipt or its event's number.

        A receipt that changed nothing takes nothing back: the label that holds is of another word.
        """
        if isinstance(receipt, int):
            return self._one(Undo(receipt, source, now_us()))
        if not receipt.changed:
            return receipt._replace(error=None, reason="the receipt changed nothing")
        return self._one(Undo(receipt.event, source, now_us()))

    def teach(self, requests: Sequence[Lesson], *, scored: bool = False) -> list[Receipt]:
        """Many lessons in one transaction; what is refused says so in its receipt."""
        return self._committer.run(requests, scored=scored)

    def teach_arriving(self, requests: ReplayableBatches) -> list[Receipt]:
        """The same for lessons that come bit by bit, as from readers of a corpus."""
        return self._committer.run_arriving(requests)

    def _one(self, request: Lesson) -> Receipt:
        receipt = self._committer.run([request])[0]
        if receipt.error is not None:
            raise receipt.error
        return receipt

    # -- looking --------------------------------------------------------------------------------

    def example(self, raw: bytes) -> Example:
        """A message as this model sees it."""
        feature_batch = self.reader.feature_batch([_message(raw)])
        return example_of(
            feature_batch.messages[0],
            feature_batch.features,
            0,
            occurrences=self.recipe.occurrences,
        )

    def label(self, name: str) -> int:
        """The index of a label."""
        if name not in self.labels:
            raise LabelError(
                f"this model has no label {name!r}", hint=f"its labels: {', '.join(self.labels)}"
            )
        return self.labels.index(name)


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
    """A message that can be learnt."""
    message = _message(raw)
    if not message.strip():
        raise UserError("the message is empty", hint="nothing can be learnt from it")
    return message
