"""The model's state as values: totals, feature counts, and the events that change them.

The model is a sum over its journal: state = base + sum of events. Everything here is an integer, so
sums commute, and adding an event and subtracting it again leaves every number as it was.

Units: corrections `w` and steps are 2^-20 nats, bias and temperatures 2^-40. Ids are sorted and
distinct within a group. `K` labels, `G` groups.

Ids are sorted in their 16-bit parts, equally fast on every processor. `np.argsort` of 64-bit
numbers uses the widest vectors of the processor, and on some processors these are slow: 30,000 ids
took 1.6 ms on one. numpy sorts 16-bit numbers by counting, and it merges nearly sorted ones in one
pass: together 0.6 ms, and 6.5 us for the 700 ids of a message instead of 20. Equal ids keep their
order.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import RefusedError

Ids = NDArray[np.uint64]
Ints = NDArray[np.int64]
Blocks = NDArray[np.uint8]
"""[m] for each feature of a message the block of its text in which it occurs first, from 1; 0 for a
feature outside of the text"""

STEP_ONE = 1 << 20
"""One nat of correction, in the store's unit."""
BIAS_ONE = 1 << 40
"""One nat of bias, or a temperature of one, in the store's unit."""
NO_LABEL = -1
DIGEST_BYTES = 16
_ID_BYTES = 8
_OWNED = b"u"
UNVERIFIED = 1 << 63
"""The bit in the id of an owner whose identity nothing proves, such as a spamtrap."""


class EventKind(IntEnum):
    """The kind of an event. The numbers are on disk: never reuse one."""

    LEARN = 1
    MOVE = 2
    FORGET = 3
    UNDO = 4
    IMPORT = 5
    EXPIRE = 6
    ERASED = 7
    """An event of an erased person; only its number and time are kept."""
    SCORES = 8
    """Counts of the scores of the site's mail; they set its junk threshold."""


class RehearsalUpdate(NamedTuple):
    """A step on an earlier message, taken while learning another one (rehearsal)."""

    ids: tuple[Ids, ...]
    steps: Ints
    """int64[G, K]"""


class Update(NamedTuple):
    """How one event changed the corrections: one step for all features of a group, per label."""

    steps: Ints
    """int64[G, K], units of 2^-20"""
    bias: Ints
    """int64[G, K], units of 2^-40"""
    temperatures: Ints
    """int64[G], units of 2^-40"""
    rehearsals: tuple[RehearsalUpdate, ...] = ()
    personal: Ints | None = None
    """int64[G, K - 1], units of 2^-20: a step on the corrections of the event's person alone, of
    every label but the first"""

    def negated(self) -> Update:
        """The update that reverses this one."""
        rehearsals = tuple(RehearsalUpdate(e.ids, -e.steps) for e in self.rehearsals)
        personal = None if self.personal is None else -self.personal
        return Update(-self.steps, -self.bias, -self.temperatures, rehearsals, personal)

    def plus(self, other: Update) -> Update:
        """The sum of two updates of the same message."""
        return Update(
            self.steps + other.steps,
            self.bias + other.bias,
            self.temperatures + other.temperatures,
            self.rehearsals + other.rehearsals,
            _sum(self.personal, other.personal),
        )


def _sum(a: Ints | None, b: Ints | None) -> Ints | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def no_update(groups: int, labels: int) -> Update:
    """An update that changes nothing."""
    steps, bias = np.zeros((2, groups, labels), np.int64)
    return Update(steps, bias, np.zeros(groups, np.int64))


class Records(NamedTuple):
    """The stored numbers of some features, row by row; the rows of unknown features are zero."""

    n: NDArray[np.uint32]
    """[F, K] messages of each label that contain the feature"""
    w: NDArray[np.int32]
    """[F, K] corrections, 2^-20"""
    day: NDArray[np.uint16]
    """[F] last-learnt day, days since 2000-01-01"""


class BulkChange(NamedTuple):
    """Signed changes of many features: an import, an expiry, and the undoing of these.

    In an event of a person it changes the corrections of this person alone: `ids` are places, and
    `w` has their changes.
    """

    ids: Ids
    n: Ints
    """int64[F, K]"""
    w: Ints
    """int64[F, K]"""
    messages: Ints
    """int64[K], change of N"""
    bias: Ints
    """int64[G, K]"""
    temperatures: Ints
    """int64[G]"""
    days: NDArray[np.uint16]

    def negated(self) -> BulkChange:
        """The changes that reverse these."""
        sums = -self.messages, -self.bias, -self.temperatures
        return BulkChange(self.ids, -self.n, -self.w, *sums, self.days)


class Event(NamedTuple):
    """One change of the model, with everything needed to apply it.

    `delta` is what this event adds; `net_update` is what the message contributes once it is applied
    (for a first learn both are the same value, for a forget `net_update` changes nothing).
    `previous` is the seq of the last event of the same message, 0 if there is none. `times` is set
    only in models that count occurrences, `blocks` only in corrected ones.
    """

    seq: int
    kind: EventKind
    time_us: int
    user: str
    channel: str
    digest: bytes
    message_id: str
    before: int
    after: int
    previous: int
    ids: tuple[Ids, ...]
    delta: Update
    net_update: Update
    times: NDArray[np.uint32] | None = None
    bulk: BulkChange | None = None
    undoes: int = 0
    """the seq of the event that an UNDO reverses"""
    immediate: bool = False
    """a person's explicit correction, which takes effect immediately; only relearning reads this"""
    weight: float = 1.0
    """the factor of the step"""
    person: int = 0
    """the id of the person that the personal steps belong to; 0 if there are none"""
    owner: int = 0
    """the id of the user that the label belongs to; 0 for an administrator, and with a person"""
    credit: int = 0
    """how far the earlier labels of the owner were confirmed, when the event was made"""
    blocks: Blocks | None = None
    """None for a text of a single block"""
    left_out: bytes = b""
    """the blocks whose features are not counted: good text around a spam"""

    @property
    def counted_ids(self) -> tuple[Ids, ...]:
        """The features that the label counts and corrects."""
        return counted(self.ids, self.blocks, self.left_out)

    @property
    def label_key(self) -> bytes:
        """The key of the label that the event set; empty for an event without a message."""
        return label_key(self.digest, self.person, self.owner)


def counted(ids: tuple[Ids, ...], blocks: Blocks | None, left_out: bytes) -> tuple[Ids, ...]:
    """The features of a message that are in none of the blocks that are left out."""
    if not left_out or blocks is None:
        return ids
    ends = list(itertools.accumulate(map(len, ids)))
    is_counted = ~np.isin(blocks, np.frombuffer(left_out, np.uint8))
    return tuple(map(np.compress, np.split(is_counted, ends[:-1]), ids))


def label_key(digest: bytes, person: int, owner: int = 0) -> bytes:
    """The key of a label: the digest of the message, and the person or the user that gave it.

    Two users may give one message different labels; each of them takes back only their own label.
    """
    if not digest or not (person or owner):
        return digest
    if person:
        return digest + person.to_bytes(_ID_BYTES)
    return digest + _OWNED + owner.to_bytes(_ID_BYTES)


def person_of_key(key: bytes) -> int:
    """The person in the key of a label; 0 if the label is not a person's."""
    return int.from_bytes(key[DIGEST_BYTES:]) if len(key) == DIGEST_BYTES + _ID_BYTES else 0


def owner_of_key(key: bytes) -> int | None:
    """The owner in the key of a label, 0 for an administrator; None if the label is a person's."""
    if len(key) == DIGEST_BYTES + _ID_BYTES:
        return None
    return int.from_bytes(key[DIGEST_BYTES + len(_OWNED) :])


def erased(event: Event) -> Event:
    """The event with its number and time alone; it changes nothing."""
    groups, labels = event.delta.steps.shape
    nothing = no_update(groups, labels)
    none = tuple(np.zeros(0, np.uint64) for _ in range(groups))
    return Event(
        event.seq, EventKind.ERASED, event.time_us, "", "", b"", "", NO_LABEL, NO_LABEL, 0, none,
        nothing, nothing,
    )  # fmt: skip


@dataclass(slots=True)
class Totals:
    """Sums over the whole model; the store keeps one such record beside the features."""

    messages: Ints
    """N[k]"""
    tokens: Ints
    """T[k] = sum of n[f, k]"""
    bias: Ints
    """b[g, k], 2^-40"""
    temperatures: Ints
    """what has been added to each group's temperature, 2^-40"""
    known: int = 0
    """V: features with sum_k n > 0"""
    last_seq: int = 0
    histogram: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """H[k, c], Bernoulli models only, else empty"""

    def copy(self) -> Totals:
        """A deep copy, so that a transaction can be abandoned."""
        return Totals(
            self.messages.copy(),
            self.tokens.copy(),
            self.bias.copy(),
            self.temperatures.copy(),
            self.known,
            self.last_seq,
            self.histogram.copy(),
        )


def no_totals(groups: int, labels: int) -> Totals:
    """The totals of an empty model."""
    return Totals(
        np.zeros(labels, np.int64),
        np.zeros(labels, np.int64),
        np.zeros((groups, labels), np.int64),
        np.zeros(groups, np.int64),
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """The constants of a model, fixed when it is made: kind, labels, key, numbers."""

    kind: str = "corrected"
    """corrected | multinomial | bernoulli"""
    labels: tuple[str, ...] = ("ham", "spam")
    key: bytes = bytes(32)
    """secret of the hashed features; never leaves the store"""
    vocabulary: bool = True
    occurrences: bool = False
    documents: bool = False
    """whether the model classifies plain text documents instead of mail"""
    groups: int = 2
    alpha: float = 0.01
    kappa: float = 1.0
    r: float = 0.3
    eta: float = 6.0
    rate_bias: float = 0.01
    rate_temper: float = 0.1
    extra: dict[str, float] = field(default_factory=dict)
    """constants added by later versions; opening a model with unknown ones fails"""

    def __post_init__(self) -> None:
        if self.occurrences and self.kind != "multinomial":
            raise RefusedError("only multinomial models count occurrences")


U64 = NDArray[np.uint64]

_FEW = 256
"""Below this, one sort is faster than two."""


def constant(number: int) -> U64:
    """A number for operations with ids: an array takes half of the time of a numpy scalar."""
    return np.array(number, np.uint64)


_TOP = constant(48)
"""Ids are hashes: sorted by their upper 16 bits they are nearly sorted."""


def order_of(ids: U64) -> NDArray[np.intp]:
    """The indexes that sort the ids; equal ids keep their order."""
    if len(ids) < _FEW:
        return merged_order(ids)
    order = (ids >> _TOP).astype(np.uint16).argsort(kind="stable")
    return order.take(merged_order(ids.take(order)))


def merged_order(ids: U64) -> NDArray[np.intp]:
    """The same for ids that consist of long sorted runs, such as joined sorted sets."""
    return ids.argsort(kind="stable")


def changes(line: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it."""
    new = np.empty(len(line), np.bool_)
    new[:1] = True
    np.not_equal(line[1:], line[:-1], out=new[1:])
    return new


def locate(line: U64, ids: U64) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """For each id its position in the sorted array, and whether it is there."""
    at = line.searchsorted(ids)
    if len(line) == 0:
        return at, np.zeros(len(ids), np.bool_)
    return at, line.take(at, mode="clip") == ids
