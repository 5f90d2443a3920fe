"""What a person's corrections teach. Pure; must not know models.

`PersonalCorrections` has the corrections of one person, `personal_prediction` adds them to the
scores of the shared model, `personal_step` splits a label into a shared and a personal step, and
`PersonalRows` holds them while events are applied. Units: 2^-20 nats; every number is rounded once.
Fails with RefusedError for values out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import RefusedError
from spamnb.model.correction import decision_margins, matches_label, missing_nats
from spamnb.model.costs import Costs, roles_of
from spamnb.model.events import STEP_ONE, Event, Ids, Ints, Recipe, Totals, Update
from spamnb.model.scoring import (
    SHARE,
    Passage,
    Prediction,
    calibrated,
    cell_shares,
    correction_weights,
    joint_lead,
    raised,
    spam_log_odds,
    step,
    sums_by_group,
)
from spamnb.model.smoothing import Floats

PLACE_BITS = 14
"""With 10 bits, one verdict in eight more is wrong (docs/decisions/0045)."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - PLACE_BITS)
_MOST = (1 << 31) - 1

Places = NDArray[np.uint16]


def person_id(name: str, key: bytes) -> int:
    """The id of a person in the model with this key; never 0, which names no person."""
    return int.from_bytes(blake2b(name.encode(), key=key, digest_size=8).digest()) or 1


def places_of(person: np.uint64 | Ids, ids: Ids) -> Places:
    """The place of each feature in the person's corrections; of each person for a column."""
    return (((ids ^ person) * _FACTOR) >> _SHIFT).astype(np.uint16)


class PersonalCorrections(NamedTuple):
    """The corrections of one person.

    A person's correction of feature f is v[s(p, f)], at one of 16,384 places:

        s(p, f) = ((f xor p) * FACTOR mod 2^64) >> 50,   p: the person's 64-bit id

    The places of two persons are unrelated. Features that meet in one place share its value, and a
    change is added once for each of them. Values are integers, so subtracting the same changes
    restores every value, whatever was added in between.

    A correction is 0 in sum over the labels, so the value of the first label is not stored: it is
    the negative sum of the others. For ham and spam, one number remains.
    """

    values: NDArray[np.int32]
    """[K - 1, places] of every label but the first"""

    def at(self, places: Places) -> Ints:
        """[K, m] the correction of each label at these places."""
        others = self.values.take(places, axis=1).astype(np.int64)
        return np.concatenate((-others.sum(axis=0, keepdims=True), others))

    def plus(self, places: Places, changes: Ints) -> PersonalCorrections:
        """The corrections after changes [K - 1, m] at these places, which may repeat."""
        sums = self.values.astype(np.int64)
        for line, change in zip(sums, changes, strict=True):
            np.add.at(line, places, change)
        if np.abs(sums).max() > _MOST:
            raise RefusedError("a person's correction would leave 2048 nats")
        return PersonalCorrections(sums.astype(np.int32))


class FilledPlaces(NamedTuple):
    """The same as a store has them: the places that are not zero alone.

    The arrays of a store are views, which end with its snapshot.
    """

    places: Places
    """rising"""
    values: NDArray[np.int32]
    """[K - 1, count]"""

    def spread(self) -> PersonalCorrections:
        """All places."""
        values = np.zeros((len(self.values), 1 << PLACE_BITS), np.int32)
        values[:, self.places] = self.values
        return PersonalCorrections(values)


def filled_places(personal: PersonalCorrections) -> FilledPlaces:
    """The places of a person that are not zero."""
    places = np.flatnonzero(personal.values.any(axis=0))
    return FilledPlaces(places.astype(np.uint16), personal.values[:, places])


class CorrectionReader:
    """Reads the corrections of persons at a few places; it keeps the memory between calls."""

    def __init__(self, labels: int) -> None:
        self._values = no_corrections(labels).values

    def at(self, filled: FilledPlaces, places: Places) -> NDArray[np.int32]:
        """[K - 1, m] of every label but the first; a third of the time that `spread` takes."""
        at = filled.places.astype(np.intp)
        for line, values in zip(self._values, filled.values, strict=True):
            line[at] = values
        found = self._values.take(places, axis=1)
        for line in self._values:
            line[at] = 0
        return found


def no_corrections(labels: int) -> PersonalCorrections:
    """The corrections of a person who has taught nothing."""
    return PersonalCorrections(np.zeros((labels - 1, 1 << PLACE_BITS), np.int32))


class PersonalMessage(NamedTuple):
    """A message's result in the shared model, and the corrections of one person."""

    shared: Prediction
    mature: float
    """`maturity` of the shared model"""
    sizes: tuple[int, ...]
    """how many features each group has"""
    places: Places
    personal: PersonalCorrections

    def with_step(self, steps: Ints, sign: int = 1) -> PersonalMessage:
        """The message after a step [G, K - 1] on the person's corrections of its features."""
        changes = sign * steps.T.repeat(self.sizes, axis=1)
        return self._replace(personal=self.personal.plus(self.places, changes))

    def predict(self) -> Prediction:
        """The model's result for the person."""
        corrections = self.personal.values.take(self.places, axis=1).astype(np.float64)
        sums = sums_by_group(corrections, self.sizes)
        return personal_prediction(self.shared, self.mature, sums)


def personal_prediction(
    shared: Prediction, mature: float, sums: Sequence[Sequence[float]]
) -> Prediction:
    """The model's result with the sums [G][K - 1] of a person's corrections.

    A person's corrections are added to the experts' scores:

        z_gk(p) = z_gk + sum_{f in g} v[s(p, f), k] / sqrt(s_g),   j_k(p) = SHARE sum_g z_gk(p)

    Everything else is shared: evidence, biases, temperatures, and the calibration of j(p). So a
    person without corrections gets the scores of the shared model, bit for bit. Unlike shared
    corrections, personal ones are not weighed by how many messages contain the feature: the
    difference is within the noise (docs/decisions/0045).
    """
    experts = []
    for expert, moved, span in zip(shared.experts, sums, shared.spans, strict=True):
        root, changes = span**0.5 * STEP_ONE, (-sum(moved), *moved)
        experts.append([z + w / root for z, w in zip(expert, changes, strict=True)])
    joint = [SHARE * sum(line) for line in zip(*experts, strict=True)]
    passage = _passage_for(shared, joint)
    judged = raised(joint, passage.lead, shared.roles)
    return shared._replace(
        z=calibrated(judged, mature), joint=joint, experts=experts, judged=judged, passage=passage
    )


def _passage_for(shared: Prediction, joint: Sequence[float]) -> Passage:
    """The strongest passage for a person with these joint scores.

    The person's corrections count for the passage as much as for the whole message, so that they
    take effect at once.
    """
    moved = spam_log_odds(joint, shared.roles) - spam_log_odds(shared.joint, shared.roles)
    return shared.passage._replace(lead=shared.passage.lead + moved)


def personal_scores(
    shared: Prediction, mature: float, corrections: NDArray[np.int32], sizes: Sequence[int]
) -> Floats:
    """[P, K] z for each of P persons, with their corrections [P, K - 1, m] of a message.

    The same as `PersonalMessage.predict`, in a fifth of the time.
    """
    persons, _, m = corrections.shape
    by_group = sums_by_group(corrections.reshape(-1, m).astype(np.float64), sizes)
    joint = np.zeros((persons, len(shared.joint)))
    for expert, sums, span in zip(shared.experts, by_group, shared.spans, strict=True):
        others = np.array(sums).reshape(persons, -1)
        moved = np.concatenate((-others.sum(axis=1, keepdims=True), others), axis=1)
        joint += np.array(expert) + moved / (span**0.5 * STEP_ONE)
    joint *= SHARE
    lines: Sequence[Sequence[float]] = joint.tolist()
    if shared.passage.blocks:
        lines = [raised(line, _passage_for(shared, line).lead, shared.roles) for line in lines]
    return np.array([calibrated(line, mature) for line in lines])


def personal_message(
    person: int,
    ids: tuple[Ids, ...],
    shared: tuple[Prediction, float],
    personal: PersonalCorrections,
) -> PersonalMessage:
    """A message as it is for this person, from its shared result and the shared maturity."""
    sizes = tuple(len(part) for part in ids)
    return PersonalMessage(
        *shared, sizes, places_of(np.uint64(person), np.concatenate(ids)), personal
    )


class PersonalShares(NamedTuple):
    """What makes a message's log-odds for one person: the sum of everything here."""

    shared: Floats
    """[m] by feature: evidence and corrections of the shared model"""
    personal: Floats
    """[m] by feature: the person's corrections"""
    bias: float
    raise_: float
    passage: Passage


def personal_shares(
    recipe: Recipe,
    totals: Totals,
    cells: Floats,
    message: PersonalMessage,
    for_against: tuple[int, int],
) -> PersonalShares:
    """Split z[s] - z[h] for one person, from the shared n and w [2K, m] of the message.

    The calibration of the person's score multiplies all shares.
    """
    s, h = for_against
    corrections = message.personal.at(message.places)
    n, w = np.split(cells, 2)
    mine = np.concatenate((n, w + corrections / correction_weights(totals.messages, n)))
    seen = message.predict()
    found, unit = cell_shares(recipe, totals, (mine, message.sizes), seen, for_against)
    personal = unit * (corrections[s] - corrections[h])
    return PersonalShares(
        found.entries - personal, personal, found.bias, found.raise_, found.passage
    )


def personal_step(recipe: Recipe, costs: Costs, message: PersonalMessage, label: int) -> Ints:
    """[G, K - 1] what a label adds to the person's corrections of each group's features.

    After it, the message has the label for this person, and the decision that fits it.

    The shared step does not depend on the person: it is the doubted step of `model.scoring`.
    The personal step follows it: the same formula without doubt, from the errors that are left for
    this person. If the decision still contradicts the label, the missing score is added to all
    features of the message, for this person alone.
    """
    steps = step(recipe, message.predict(), message.sizes, label, 1.0).steps[:, 1:]
    seen, roles = message.with_step(steps).predict(), roles_of(recipe.labels)
    if matches_label(seen.z, label, costs, roles):
        return steps
    margin = joint_lead(decision_margins(costs)[roles[label]], message.mature)
    nats = missing_nats(seen.judged, label, margin)
    return steps + _towards(label, len(roles), message.sizes, nats)


def _towards(label: int, labels: int, sizes: Sequence[int], nats: float) -> Ints:
    """[G, K - 1] steps on all features alike that add at least so many nats to the label's lead.

    The steps add more where features share a place, or where the group is averaged over fewer
    features than it has.
    """
    slope = nats / (SHARE * (sum(size > 0 for size in sizes) or 1))
    towards = np.array([(k == label) - 1 / labels for k in range(1, labels)])
    roots = np.sqrt(np.maximum(sizes, 1))[:, None]
    return np.rint(slope * STEP_ONE * towards / roots).astype(np.int64)


class PersonalRows:
    """The corrections of the persons that some events name; `read` gives those of a store.

    The same as `training_rows` for the shared model: a person's corrections are the sum of the
    personal steps of that person's events, so undoing events in any order restores them.
    """

    def __init__(self, labels: int, read: Callable[[int], FilledPlaces | None]) -> None:
        self._read = read
        self._labels = labels
        self._known: dict[int, PersonalCorrections] = {}

    def of(self, person: int) -> PersonalCorrections:
        """The corrections of a person; zeros if the person has taught nothing."""
        if known := self._known.get(person):
            return known
        stored = self._read(person)
        return stored.spread() if stored else no_corrections(self._labels)

    def put(self, person: int, personal: PersonalCorrections) -> None:
        """Replace the corrections of a person."""
        self._known[person] = personal

    def apply(self, event: Event, *, sign: int = 1) -> None:
        """Add an event, or subtract it (sign -1). Events without a person change nothing."""
        self.update(event.person, event.ids, event.delta, sign)
        if event.person and event.bulk is not None:
            places, changes = event.bulk.ids.astype(np.uint16), event.bulk.w.T[1:]
            self.put(event.person, self.of(event.person).plus(places, sign * changes))

    def update(self, person: int, ids: tuple[Ids, ...], update: Update, sign: int = 1) -> None:
        """Add an update of a message with these features."""
        if update.personal is None or not person:
            return
        places = places_of(np.uint64(person), np.concatenate(ids))
        changes = sign * update.personal.T.repeat([len(part) for part in ids], axis=1)
        self.put(person, self.of(person).plus(places, changes))

    def changed(self) -> Iterator[tuple[int, PersonalCorrections | None]]:
        """Yield the corrections of each person after the events; None if all are zero."""
        for person, personal in self._known.items():
            yield person, personal if personal.values.any() else None
