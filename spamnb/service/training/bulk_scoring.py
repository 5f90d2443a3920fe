"""Scoring many files on all cores, in the order of the files.

Each worker opens the model for itself, so nothing but verdicts travels. Fewer files than make that
worth while are scored here. Must not know terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.costs import Costs
from spamnb.core.model.verdict import Clue, Verdict
from spamnb.service.engine.extraction import BATCH_MESSAGES
from spamnb.service.engine.filter import TOGETHER, Filter
from spamnb.service.training.sources import MessageSpan, SourceMessage, Unreadable, read_unit, units

_FEW = 4 * BATCH_MESSAGES
_TASK = TOGETHER * BATCH_MESSAGES


class Scored(NamedTuple):
    """One file's verdict, or why there is none."""

    path: str
    verdict: Verdict | None
    clues: list[Clue]
    error: str = ""


class Scoring(NamedTuple):
    """How to score: readers, clues asked for, who we are, what mistakes cost."""

    jobs: int = 0
    clues: int = 0
    local: LocalHosts | None = None
    costs: Costs | None = None


@dataclass(frozen=True, slots=True)
class _Scorer:
    """What a worker needs; called in the worker, it opens the model there."""

    home: Path
    how: Scoring

    def __call__(self) -> Callable[[list[MessageSpan]], list[Scored]]:
        model = _open(self.home, self.how)
        return lambda feature_batch: _score(model, self.how.clues, feature_batch)


def _open(home: Path, how: Scoring) -> Filter:
    return Filter.open(home, readonly=True, history=False, local=how.local, costs=how.costs)


def score_paths(home: Path, paths: Sequence[str], how: Scoring | None = None) -> Iterator[Scored]:
    """A verdict for every message under these paths, in their order."""
    how = how or Scoring()
    with _open(home, how) as model:  # its errors belong to the caller
        documents = model.recipe.documents
    found = [unit for path in paths for unit in units(path, documents=documents)]
    feature_batches = (found[start : start + _TASK] for start in range(0, len(found), _TASK))
    if len(found) <= _FEW or how.jobs == 1:
        with _open(home, how) as model:
            for feature_batch in feature_batches:
                yield from _score(model, how.clues, feature_batch)
        return
    from spamnb.service.training.worker_pool import Pool, cores  # noqa: PLC0415 - 6 ms that one message needs not

    with Pool(_Scorer(home, how), how.jobs or cores()) as pool:
        for scored in pool.map(feature_batches):
            yield from scored


def _score(model: Filter, clues: int, feature_batch: list[MessageSpan]) -> list[Scored]:
    documents = model.recipe.documents
    read = [read_unit(unit, documents=documents) for unit in feature_batch]
    raws = [item.raw for item in read if isinstance(item, SourceMessage)]
    verdicts = model.score_many(raws)
    found = []
    for item in read:
        if isinstance(item, Unreadable):
            found.append(Scored(item.name, None, [], item.reason))
            continue
        verdict = next(verdicts)
        shown = verdict.clues(clues) if clues else []
        # Without its explanation a verdict is a few numbers, and can travel.
        found.append(Scored(item.name, replace(verdict, _explain=None), shown))
    return found
