"""Score many files on all cores, in the order of the files.

Each worker process opens the model, so only verdicts are sent back. A small number of files is
scored in this process. Must not know terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.costs import Costs
from spamnb.core.model.verdict import Clue, Verdict
from spamnb.core.policy.rulings import Ruling
from spamnb.core.policy.sender_evidence import evidence_of
from spamnb.core.policy.senders import ListOwner, SenderList, ruling_of
from spamnb.service.engine.extraction import BATCH_MESSAGES
from spamnb.service.engine.filter import BATCHES_PER_SNAPSHOT, ONE_IN, Filter
from spamnb.service.training.sources import (
    MessageSpan,
    SourceMessage,
    Unreadable,
    items,
    read_unit,
    units,
)
from spamnb.service.training.worker_pool import Pool, cores
from spamnb.store.fleet.outbox import OutboxReader

_FEW = 4 * BATCH_MESSAGES
_TASK = BATCHES_PER_SNAPSHOT * BATCH_MESSAGES


class Scored(NamedTuple):
    """The verdict on one message, or the error that prevented it."""

    path: str
    verdict: Verdict | None
    clues: list[Clue]
    error: str = ""
    ruling: Ruling | None = None
    """what a list of senders decides instead, if it was asked"""


def verdict_as_dict(path: str, verdict: Verdict, clues: Sequence[Clue]) -> dict[str, Any]:
    """Return a verdict as values that JSON can represent."""
    facts = {
        "path": path,
        "id": verdict.digest.hex(),
        "label": verdict.label,
        "probability": verdict.probability,
        "log_odds": verdict.log_odds,
        "decision": verdict.decision,
        "evidence": verdict.evidence,
        "clues": [clue._asdict() for clue in clues],
    }
    own = verdict.own_costs
    costs = {"of": own.of, **asdict(own.costs)} if own else None
    optional = {"reason": verdict.reason, "signature": verdict.signature, "costs": costs}
    if verdict.novelty.nats:
        optional["novelty"] = verdict.novelty._asdict() | {"threshold": verdict.threshold}
    return facts | {name: value for name, value in optional.items() if value}


class Scoring(NamedTuple):
    """Options of bulk scoring: worker processes, clues per message, local hosts, costs, target."""

    jobs: int = 0
    clues: int = 0
    local: LocalHosts | None = None
    costs: Costs | None = None
    one_in: int = ONE_IN
    is_fleet: bool = False
    """messages with corrections that wait are judged as those say"""
    senders: SenderList | None = None
    """the list of senders for all recipients; `score_paths` reads it"""


@dataclass(frozen=True, slots=True)
class _Scorer:
    """Called in a worker, it opens the model there and returns the worker's function."""

    home: Path
    options: Scoring

    def __call__(self) -> Callable[[list[MessageSpan]], list[Scored]]:
        model = _open(self.home, self.options)
        return lambda spans: _score(model, self.options, spans)


def _open(home: Path, options: Scoring) -> Filter:
    model = Filter.open(
        home,
        readonly=True,
        history=False,
        local=options.local,
        costs=options.costs,
        one_in=options.one_in,
    )
    model.pins = OutboxReader(home) if options.is_fleet else None
    return model


def _site_list(model: Filter) -> SenderList | None:
    with model.store.read() as view:
        return view.senders(ListOwner("site").key)


def score_paths(
    home: Path, paths: Sequence[str], options: Scoring | None = None
) -> Iterator[Scored]:
    """Yield a verdict for every message under these paths, in their order."""
    options = options or Scoring()
    with _open(home, options) as model:  # raises its errors before any worker starts
        options = options._replace(senders=_site_list(model))
        documents = model.recipe.documents
    found = [unit for path in paths for unit in units(path, documents=documents)]
    tasks = (found[start : start + _TASK] for start in range(0, len(found), _TASK))
    if len(found) <= _FEW or options.jobs == 1:
        with _open(home, options) as model:
            for spans in tasks:
                yield from _score(model, options, spans)
        return
    with Pool(_Scorer(home, options), options.jobs or cores()) as pool:
        for scored in pool.map(tasks):
            yield from scored


def score_each(
    model: Filter,
    paths: Sequence[str],
    clues: int,
    score: Callable[[bytes], Verdict],
    rule: Callable[[bytes], Ruling | None],
) -> Iterator[Scored]:
    """Yield a verdict for every message under these paths, as `score` and `rule` give it."""
    documents = model.recipe.documents
    for item in (item for path in paths for item in items(path, documents=documents)):
        if isinstance(item, Unreadable):
            yield Scored(item.name, None, [], item.reason)
        else:
            verdict = score(item.raw)
            shown = verdict.clues(clues) if clues else []
            yield Scored(item.name, verdict, shown, ruling=rule(item.raw))


def _score(model: Filter, options: Scoring, spans: list[MessageSpan]) -> list[Scored]:
    documents = model.recipe.documents
    read = [read_unit(unit, documents=documents) for unit in spans]
    raws = [item.raw for item in read if isinstance(item, SourceMessage)]
    verdicts = model.score_many(raws)
    found = []
    for item in read:
        if isinstance(item, Unreadable):
            found.append(Scored(item.name, None, [], item.reason))
            continue
        verdict = next(verdicts)
        shown = verdict.clues(options.clues) if options.clues else []
        # Without its explanation a verdict is small and can be pickled.
        small = replace(verdict, _explain=None)
        ruling = _ruling(options, item.raw, model.reader.local)
        found.append(Scored(item.name, small, shown, ruling=ruling))
    return found


def _ruling(options: Scoring, raw: bytes, local: LocalHosts) -> Ruling | None:
    if options.senders is None:
        return None
    return ruling_of([options.senders], evidence_of(raw, local))
