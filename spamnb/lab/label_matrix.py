"""Train and score one model per label, each against the rest, in one pass over the documents.

All labels share the features and their counts, so documents are read once for any number of labels.
N_k of the N documents have the label k, and so do n_fk of the n_f documents with the feature f.
With E = n_f N_k / N:

    z_k = log (N_k + 1/2) / (N - N_k + 1/2) + tau_k mean_f e_fk + sum_f w_fk / sqrt(m)
    e_fk = log (n_fk + PRIOR) / (E + PRIOR) - log (n_f - n_fk + PRIOR) / (n_f - E + PRIOR)

The prior of each rate is the rate that the feature has if it does not depend on the label: the
smoothing is in proportion to the label. Corrections w move by the error, less where many documents
have the feature (docs/decisions/0036). Must not know protocols or metrics.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.features.extract import Key, distinct, extract
from spamnb.core.features.locations import Field, TokenLocation
from spamnb.core.features.tokens import DOCUMENT_READ
from spamnb.core.model.events import Ids, Ints
from spamnb.core.model.scoring import Floats
from spamnb.lab.trial import Options, read_samples, recipe_of

PRIOR = 0.5
"""Documents with the feature that the prior of each rate counts for."""
RATE = 12.0
COMMON = 5.0
"""A step is RATE sqrt(COMMON / (COMMON + n_f)): with one step for all features, the mean
break-even of generated documents is 0.599 instead of 0.627 (decision 0036)."""
TEMPERATURE = 2.0
TEMPERATURE_RATE = 0.1
_READ_AT_ONCE = 256
_FEWEST_DOCUMENTS = 2
"""A feature of one document says nothing about another one."""
_WORDS = re.compile(rb"[0-9A-Za-z\x80-\xff]+")


class LabelledRows(NamedTuple):
    """The features of documents, as rows of a matrix."""

    rows: list[NDArray[np.int32]]
    features: int


class _Score(NamedTuple):
    """The scores of one document for all labels, and the parts that they consist of."""

    z: Floats
    evidence: Floats


def read_rows(documents: Iterable[bytes], options: Options) -> LabelledRows:
    """Extract the features of all documents; those of plain text include title and word pairs."""
    if options.documents:
        parts = _document_ids(list(documents), Key(recipe_of(options).key))
    else:
        one = options.labels[0]
        parts = [
            item.ids for item in read_samples(((raw, one) for raw in documents), options).items
        ]
    ids, rows = distinct(parts)
    holders = np.bincount(np.concatenate(rows), minlength=len(ids)) if rows else np.zeros(0, int)
    common = holders >= _FEWEST_DOCUMENTS
    number = (common.cumsum() - 1).astype(np.int32)
    return LabelledRows([number[part[common[part]]] for part in rows], int(common.sum()))


def _document_ids(documents: Sequence[bytes], key: Key) -> list[Ids]:
    found: list[Ids] = []
    for start in range(0, len(documents), _READ_AT_ONCE):
        features = extract(key, [_fields(raw) for raw in documents[start : start + _READ_AT_ONCE]])
        found += [np.unique(features.ids[features.of(m)]) for m in range(len(features))]
    return found


def _fields(raw: bytes) -> list[Field]:
    """Words, the words of the first line, and pairs of adjacent words."""
    text = raw[:DOCUMENT_READ]
    words = _WORDS.findall(text.lower())
    pairs = b"\n".join(map(b" ".join, itertools.pairwise(words)))
    title = text.lstrip().partition(b"\n")[0]
    return [
        (TokenLocation.WORD, b"", text),
        (TokenLocation.SUBJECT, b"", title),
        (TokenLocation.GREETING, b"pair", pairs),
    ]


class LabelMatrix:
    """The models of all labels: a row for each feature, a column for each label."""

    def __init__(self, documents: LabelledRows, labels: Ints) -> None:
        self._rows, self._labels = documents.rows, labels.astype(np.float32)
        shape = documents.features, labels.shape[1]
        self._n, self._w = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._holders = np.zeros(documents.features, np.float32)
        self._N, self._learnt = np.zeros(shape[1]), 0
        self._tau = np.full(shape[1], TEMPERATURE)

    def train(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._step(index, self._score(index))
            self._count(index)

    def score(self, indices: Sequence[int]) -> Floats:
        """Return the log-odds of each label [M, L]."""
        return np.array([self._score(i).z for i in indices]).reshape(-1, len(self._N))

    def score_then_train(self, index: int, choose: Callable[[Floats], Sequence[int]]) -> Floats:
        """Score a document, then learn those that `choose` returns."""
        z = self._score(index).z
        self.train(choose(_probabilities(z)))
        return z

    def _count(self, index: int) -> None:
        rows = self._rows[index]
        self._n[rows] += self._labels[index]
        self._holders[rows] += 1
        self._N += self._labels[index]
        self._learnt += 1

    def _score(self, index: int) -> _Score:
        rows, have, count = self._rows[index], self._N, self._learnt
        z = np.log((have + 0.5) / (count - have + 0.5))
        if not len(rows):
            return _Score(z, np.zeros(len(z)))
        n, holders = self._n.take(rows, 0), self._holders.take(rows)[:, None]
        expected = holders * (have / max(count, 1)).astype(np.float32)
        lift = (n + PRIOR) * (holders - expected + PRIOR)
        lift /= (expected + PRIOR) * (holders - n + PRIOR)
        evidence = np.log(lift).mean(axis=0, dtype=np.float64)
        z += self._tau * evidence
        z += self._w.take(rows, 0).sum(axis=0, dtype=np.float64) / len(rows) ** 0.5
        return _Score(z, evidence)

    def _step(self, index: int, score: _Score) -> None:
        """Move temperatures and corrections by the error of each label."""
        rows = self._rows[index]
        error = self._labels[index] - _probabilities(score.z)
        self._tau = np.maximum(self._tau + TEMPERATURE_RATE * error * score.evidence, 0)
        rate = RATE * np.sqrt(COMMON / (COMMON + self._holders.take(rows)))
        step = (error / max(len(rows), 1) ** 0.5).astype(np.float32)
        self._w[rows] += rate[:, None] * step


def _probabilities(z: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(z, -700, 700))))


def label_table(sets: Sequence[Iterable[str]], labels: Sequence[str]) -> Ints:
    """Return which documents [M] have which labels [L], as 0 and 1."""
    return np.array([[label in names for label in labels] for names in sets], np.int64)
