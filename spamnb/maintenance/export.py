"""Export a model as text and import it, to inspect, move or merge models; its statistics and check.

The format is JSON lines (`export`). An import adds to the model in one event, so one undo reverts
it. Must not know terminals or settings. Failure: UserError for a text that is no export, is
incomplete, or belongs to another model; nothing is changed then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from io import TextIOBase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.prior import MALFORMED, features_of_priors, integers, json_line
from spamnb.engine.receipt import Receipt
from spamnb.engine.values import BulkLoad, MergedWords, Source
from spamnb.errors import RefusedError, UserError
from spamnb.maintenance.persons import persons_of
from spamnb.model.costs import Costs, thresholds
from spamnb.model.events import BulkChange, Ids, Ints, Recipe, Totals
from spamnb.model.features import GROUPS, Key, Words
from spamnb.model.persons import PLACE_BITS
from spamnb.model.tokens import TokenLocation
from spamnb.records.verdicts import History
from spamnb.store import maintenance as audit
from spamnb.store.model_store import DATA_FILE, open_store
from spamnb.store.table_views import ReadView, Store
from spamnb.store.values import Word
from spamnb.telemetry import now_us

_MOST = (1 << 31) - 1
_NAME_CHARS = 320


class ExportedPerson(NamedTuple):
    """The corrections of one person.

    A line after those of the features:

        {"person": "16 hex digits", "name": "ann", "places": [rising], "values": [[of each place] of
         each label but the first]}

    The id of a person and the places are comparable only under the same key. An import adds each
    person in one event, so that undo, expiry and erasing treat it like a label; a person with
    corrections here is left out. Failure: ValueError and others of `MALFORMED` for an invalid line.
    """

    person: int
    name: str
    places: Ids
    values: Ints
    """[K - 1, places]"""

    def bulk(self, groups: int) -> BulkChange:
        """Return the change that adds them: `ids` are places, `w` the values of each label."""
        values = np.concatenate((np.zeros((1, len(self.places)), np.int64), self.values)).T
        none = np.zeros_like(values)
        labels, days = values.shape[1], np.zeros(len(values), np.uint16)
        sums = np.zeros(labels, np.int64), np.zeros((groups, labels), np.int64)
        return BulkChange(self.places, none, values, *sums, np.zeros(groups, np.int64), days)


def person_lines(view: ReadView, labels: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the line of each person with corrections."""
    names = {one.person: one.name for one in persons_of(view, labels)}
    for person, filled in view.persons():
        yield {
            "person": f"{person:016x}",
            "name": names[person],
            "places": filled.places.tolist(),
            "values": filled.values.tolist(),
        }


def read_person(line: dict[str, Any], labels: int) -> ExportedPerson:
    """Parse the line of a person."""
    name, places, values = line["name"], line["places"], line["values"]
    if not isinstance(name, str) or len(name) > _NAME_CHARS or not name.isprintable():
        raise ValueError("its name is not valid")
    found = np.array([places, *values])
    if found.dtype.kind not in "iu" or found.ndim != 2 or len(found) != labels:
        raise ValueError("its places and values are not lists of integers of one length")
    rising = bool((np.diff(found[0]) > 0).all()) and found[0].min(initial=0) >= 0
    if not rising or found[0].max(initial=0) >= 1 << PLACE_BITS or np.abs(found[1:]).max() > _MOST:
        raise ValueError("a place or a value is out of range")
    person = int(line["person"], 16)
    if not 0 < person < 1 << 64:
        raise ValueError("its id is not valid")
    return ExportedPerson(person, name, found[0].astype(np.uint64), found[1:].astype(np.int64))


def person_loads(
    model: Filter, persons: tuple[ExportedPerson, ...], source: Source
) -> list[BulkLoad]:
    """Return the requests that add the persons without corrections in the model."""
    if persons and model.recipe.kind != "corrected":
        raise RefusedError(f"a model of kind {model.recipe.kind} has no corrections of persons")
    with model.store.read() as view:
        new = [one for one in persons if view.personal(one.person) is None]
    now, groups = now_us(), model.recipe.groups
    return [
        BulkLoad(one.bulk(groups), False, source._replace(user=one.name, person=one.person), now)
        for one in new
    ]


FORMAT = "spamnb export"
VERSION = 2
_FLAGS = ("vocabulary", "occurrences", "documents")
_RANGES = {
    "alpha": (1e-9, 1e9),
    "kappa": (0.0, 4.0),
    "r": (0.0, 1e9),
    "eta": (0.0, 1e9),
    "rate_bias": (0.0, 1e9),
    "rate_temper": (0.0, 1e9),
}
"""constants, and the values with which all scores are finite"""
_CONSTANTS = (*_FLAGS, "groups", *_RANGES)
LINE = 1 << 20
"""Most characters of a line: the header of a model with thousands of labels is shorter."""
_LOCATIONS = {location.name.lower(): location for location in TokenLocation}


# --- export --------------------------------------------------------------------------------------


def export(store: Store, *, with_key: bool = False, persons: bool = False) -> Iterator[str]:
    """Yield the model as lines of JSON, from one snapshot.

    The first line is the header:

        {"format": "spamnb export", "version": 2, "kind": "corrected", "labels": ["ham", "spam"],
         "fingerprint": "...", "recipe": {...}, "messages": [N of each label],
         "tokens": [T of each], "bias": [[of each label] of each group],
         "temperatures": [of each group],
         "features": how many lines follow}

    Then one line for each feature, in order of the ids:

        {"id": "16 hex digits", "n": [messages of each label], "w": [corrections of each label],
         "day": last learnt, days since 2000-01-01, "location": "subject", "token": "cheap"}

    On request, `persons` in the header tells how many lines of persons follow (`ExportedPerson`).
    `w` is in units of 2^-20 nats, `bias` and `temperatures` of 2^-40; all numbers are integers, so
    a round trip is exact. `location` and `token` exist if the model has a vocabulary. Ids are
    comparable only under the same key, which `fingerprint` identifies. The key itself (`key`, 64
    hex digits) is written only on request, because with it an attacker can construct words with
    colliding ids.
    """
    recipe = store.recipe
    with store.read() as view:
        count = sum(len(ids) for ids, _ in view.features())
        header = _header(recipe, view.totals(), count, with_key=with_key)
        yield json_line(header | ({"persons": len(view.person_sizes())} if persons else {}))
        words = view.all_words()
        word = next(words, None)
        for feature in _rows(view):
            while word is not None and word.id < feature.id:
                word = next(words, None)
            yield json_line(_feature(feature, word if word and word.id == feature.id else None))
        if persons:
            yield from map(json_line, person_lines(view, recipe.labels))


class _Row(NamedTuple):
    id: int
    n: list[int]
    w: list[int]
    day: int


def _rows(view: ReadView) -> Iterator[_Row]:
    for ids, records in view.features():
        columns = ids.tolist(), records.n.tolist(), records.w.tolist(), records.day.tolist()
        yield from map(_Row, *columns)


def _header(recipe: Recipe, totals: Totals, count: int, *, with_key: bool) -> dict[str, Any]:
    constants = asdict(recipe)
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": recipe.kind,
        "labels": list(recipe.labels),
        "fingerprint": Key(recipe.key).fingerprint().hex(),
        "recipe": {name: constants[name] for name in _CONSTANTS},
    }
    if with_key:
        header["key"] = recipe.key.hex()
    for name in ("messages", "tokens", "bias", "temperatures"):
        header[name] = getattr(totals, name).tolist()
    return header | {"features": count}


def _feature(row: _Row, word: Word | None) -> dict[str, Any]:
    plain: dict[str, Any] = {"id": f"{row.id:016x}", "n": row.n, "w": row.w, "day": row.day}
    if word is not None:
        # A long word may be cut within a character: its bytes become lone surrogates.
        plain["location"] = TokenLocation(word.location).name.lower()
        plain["token"] = word.text.decode("utf-8", "surrogateescape")
    return plain


# --- import --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exported:
    """A parsed export."""

    header: dict[str, Any]
    bulk: BulkChange
    words: Words
    persons: tuple[ExportedPerson, ...] = ()

    @property
    def features(self) -> int:
        """How many features it has."""
        return len(self.bulk.ids)


def lines_of(file: TextIOBase) -> Iterator[str]:
    """Return the lines of a file; one that is too long comes in parts, which are no valid lines."""
    return iter(lambda: file.readline(LINE), "")


def read_export(lines: Iterable[str]) -> Exported:
    """Parse the lines of an export; UserError if they are invalid or incomplete."""
    numbered = enumerate(lines, 1)
    header = _read_header(next(numbered, (1, ""))[1])
    columns, persons, labels = _Columns(), list[ExportedPerson](), len(header["labels"])
    for number, line in numbered:
        try:
            row = json.loads(line)
            if "person" in row:
                persons.append(read_person(row, labels))
            else:
                columns.take(row)
        except MALFORMED as error:
            raise _bad(f"line {number} is not a valid feature or person: {error}") from error
    try:
        bulk = columns.bulk(header)
    except MALFORMED as error:
        raise _bad(f"its numbers are invalid: {error}") from error
    _complete(header, bulk)
    if len(persons) != header.get("persons", 0):
        raise _bad(f"the header announces {header.get('persons', 0)} persons, not {len(persons)}")
    return Exported(header, bulk, columns.words(), tuple(persons))


class _Columns:
    """The features of an export, column by column."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.n: list[list[int]] = []
        self.w: list[list[int]] = []
        self.days: list[int] = []
        self.word_ids: list[int] = []
        self.locations: list[TokenLocation] = []
        self.texts: list[bytes] = []

    def take(self, row: dict[str, Any]) -> None:
        """Add one feature."""
        feature = int(row["id"], 16)
        if self.ids and feature <= self.ids[-1]:
            raise ValueError("its id is not greater than the previous one")
        self.ids.append(feature)
        self.n.append(row["n"])
        self.w.append(row["w"])
        self.days.append(row["day"])
        if "token" in row:
            self.word_ids.append(feature)
            self.locations.append(_LOCATIONS[row["location"]])
            self.texts.append(row["token"].encode("utf-8", "surrogateescape")[:255])

    def words(self) -> Words:
        """Return the texts of the features that have one."""
        return Words(
            np.array(self.word_ids, np.uint64),
            np.array(self.locations, np.uint8),
            np.array([len(text) for text in self.texts], np.uint8),
            b"".join(self.texts),
        )

    def bulk(self, header: dict[str, Any]) -> BulkChange:
        """Return the change that adds all features."""
        labels, groups = len(header["labels"]), header["recipe"]["groups"]
        shape = (len(self.ids), labels)
        n = integers(self.n, shape, 0, (1 << 32) - 1)
        return BulkChange(
            ids=np.array(self.ids, np.uint64),
            n=n,
            w=integers(self.w, shape, -(1 << 31), (1 << 31) - 1),
            messages=integers(header["messages"], (labels,), 0),
            bias=integers(header["bias"], (groups, labels)),
            temperatures=integers(header["temperatures"], (groups,)),
            days=integers(self.days, shape[:1], 0, 65_535).astype(np.uint16),
        )


def _read_header(line: str) -> dict[str, Any]:
    try:
        header = json.loads(line)
        if header["format"] != FORMAT:
            raise _bad(f"the header's format is {header['format']!r}")
        if header["version"] != VERSION:
            raise UserError(
                f"the export has version {header['version']}, this program reads {VERSION}",
                hint="import it with the version of spamnb that wrote it",
            )
        missing = [name for name in _NEEDED if name not in header]
        if missing or header["recipe"].keys() != set(_CONSTANTS):
            raise _bad(f"the header lacks {', '.join(missing) or 'constants'}")
        texts = header["kind"], header["fingerprint"], *header["labels"]
        if not isinstance(header["labels"], list) or set(map(type, texts)) != {str}:
            raise _bad("its kind, labels or fingerprint are not strings")
    except MALFORMED as error:
        raise _bad("the first line is not a header") from error
    return dict(header)


_NEEDED = (
    "kind", "labels", "fingerprint", "recipe", "messages", "tokens", "bias", "temperatures",
    "features",
)  # fmt: skip


def _complete(header: dict[str, Any], bulk: BulkChange) -> None:
    if len(bulk.ids) != header["features"]:
        raise _bad(f"the header announces {header['features']} features, found {len(bulk.ids)}")
    if bulk.n.sum(axis=0).tolist() != header["tokens"]:
        raise _bad("the sums of its counts differ from the header")


def _bad(why: str) -> UserError:
    return UserError(f"not a valid, complete export: {why}", hint="create one with `spamnb export`")


def create(home: Path, recipe: Recipe) -> None:
    """Create an empty model with a recipe."""
    if (home / DATA_FILE).exists():
        raise RefusedError(f"there is already a model in {home}", hint="name another --home")
    open_store(home, create=recipe).close()


def recipe_of(exported: Exported) -> Recipe:
    """Return the recipe of the exported model; UserError if the export has no key."""
    header = exported.header
    if "key" not in header:
        raise UserError(
            "the export has no key, so it can only be imported into the model that it came from",
            hint="export it again with --with-key to make a new model from it",
        )
    try:
        recipe = replace(
            new_recipe(header["kind"], header["labels"]),
            key=bytes.fromhex(header["key"]),
            **_constants(header["recipe"]),
        )
    except (ValueError, TypeError, RefusedError) as error:
        raise _bad(f"its recipe is invalid: {error}") from error
    if Key(recipe.key).fingerprint().hex() != header["fingerprint"]:
        raise _bad("its key does not match its fingerprint")
    return recipe


def _constants(found: dict[str, Any]) -> dict[str, Any]:
    """The constants of a recipe; ValueError for one with which no message could be scored."""
    groups = found["groups"]
    if type(groups) is not int or groups != GROUPS:
        raise ValueError(f"groups is {groups!r:.40}, not {GROUPS}")
    for name in _FLAGS:
        if type(found[name]) is not bool:
            raise ValueError(f"{name} is {found[name]!r:.40}, not true or false")
    for name, (least, most) in _RANGES.items():
        if type(found[name]) not in {int, float} or not least <= found[name] <= most:
            raise ValueError(f"{name} is {found[name]!r:.40}, not between {least:g} and {most:g}")
    return found


def merge(model: Filter, exported: Exported, *, source: Source) -> Receipt:
    """Add an export to a model, as one event that `undo` reverts, and one for each person."""
    _same_model(model.recipe, exported.header)
    loads = person_loads(model, exported.persons, source)
    return load(model, exported.bulk, exported.words, source, more=loads)


def load(  # noqa: PLR0913 - the change and its origin; defaults
    model: Filter,
    bulk: BulkChange,
    words: Words,
    source: Source,
    digest: bytes = b"",
    *,
    more: Sequence[BulkLoad] = (),
) -> Receipt:
    """Add counts and corrections of many features to a model, as one event; return its receipt.

    `more` is added in the same transaction. With a digest, RefusedError while an import with the
    same digest is in force.
    """
    request = BulkLoad(bulk, False, source, now_us(), MergedWords([words]), digest)
    receipts = model.teach([request, *more])
    for receipt in receipts:
        if receipt.error is not None:
            raise receipt.error
    return receipts[0]


def _same_model(recipe: Recipe, header: dict[str, Any]) -> None:
    fingerprint = Key(recipe.key).fingerprint().hex()
    if header["fingerprint"] != fingerprint:
        raise UserError(
            f"the export was made with another key ({header['fingerprint'][:8]}) than this model's "
            f"({fingerprint[:8]}), so its feature ids do not match",
            hint="train on the messages, or make a new model from it: import --as-new",
        )
    for name, here in (("kind", recipe.kind), ("labels", list(recipe.labels))):
        if header[name] != here:
            raise UserError(f"the export's {name} is {header[name]}, this model's is {here}")
    parameters = asdict(recipe)
    for name in ("occurrences", "groups"):
        if header["recipe"][name] != parameters[name]:
            raise UserError(
                f"the export's {name} is {header['recipe'][name]}, "
                f"this model's is {parameters[name]}"
            )


@dataclass(frozen=True, slots=True)
class ModelStats:
    """Contents and sizes of a model."""

    home: str
    kind: str
    labels: tuple[str, ...]
    fingerprint: str
    """of the key: equal for models with exports that can be merged"""
    messages: dict[str, int]
    features: int
    prior: int
    """features of priors that can still be undone; they count as no message"""
    words: int
    events: int
    """in the journal; these can be undone"""
    folded: int
    """events in the checkpoint"""
    store_bytes: int
    store_limit_bytes: int
    bytes_per_feature: float | None
    history: int
    history_days: float
    constants: dict[str, Any]
    thresholds: dict[str, float]
    """probability of spam from which each decision applies"""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


_SHOWN_CONSTANTS = (
    "alpha", "kappa", "r", "eta", "rate_bias", "rate_temper", "groups", "vocabulary",
)  # fmt: skip


def stats(home: Path, store: Store, history: History | None, costs: Costs) -> ModelStats:
    """Return the statistics of a model; reads every word once."""
    recipe = store.recipe
    with store.read() as view:
        totals, base = view.totals(), view.base_totals()
        words = sum(1 for _ in view.all_words())
        prior = features_of_priors(view)
    size = (home / DATA_FILE).stat().st_size
    return ModelStats(
        home=str(home),
        kind=recipe.kind,
        labels=recipe.labels,
        fingerprint=Key(recipe.key).fingerprint().hex(),
        messages=dict(zip(recipe.labels, totals.messages.tolist(), strict=True)),
        features=totals.known,
        prior=prior,
        words=words,
        events=totals.last_seq - base.last_seq,
        folded=base.last_seq,
        store_bytes=size,
        store_limit_bytes=store.limit_bytes,
        bytes_per_feature=round(size / totals.known, 1) if totals.known else None,
        history=history.count() if history else 0,
        history_days=round(history.span_days(), 2) if history else 0.0,
        constants={name: getattr(recipe, name) for name in _SHOWN_CONSTANTS},
        thresholds={t.decision: t.probability for t in thresholds(costs)},
    )


def check(store: Store) -> list[str]:
    """Return the inconsistencies of a store, one sentence each; empty for a consistent store."""
    with store.read() as view:
        return audit.check(view) + audit.check_sums(view)
