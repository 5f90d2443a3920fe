"""The prior that ships with the package: made of a model, and added to a new one.

`SHIPPED` is the prior that new models begin with; `scripts/make-prior` makes it. Must not know
terminals. Failure: RefusedError for a model that has or takes no prior, UserError for a text that
is no prior; nothing is changed then.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from io import StringIO, TextIOBase
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamnb.engine.event_filter import EventFilter, in_force
from spamnb.engine.values import BulkLoad, MergedWords, Source
from spamnb.errors import RefusedError, UserError
from spamnb.model.events import STEP_ONE, BulkChange, Ints, Recipe, no_totals
from spamnb.model.features import LINE_BYTES, MIN_BYTES, Key, ids_of
from spamnb.model.tokens import Field, TokenLocation
from spamnb.model.training_rows import day_of
from spamnb.store.table_views import ReadView, Store
from spamnb.store.values import Word, packed
from spamnb.telemetry import now_us

MALFORMED = ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
"""exceptions that parsing an invalid line raises"""


def json_line(value: dict[str, Any]) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, separators=(",", ":")) + "\n"


def integers(
    values: Any, shape: tuple[int, ...], least: int = -(1 << 53), most: int = 1 << 53
) -> NDArray[np.int64]:
    """Return values of a parsed line as an array; ValueError for a wrong shape, type or range."""
    # Zeros of the announced shape could take all memory.
    found = np.array(values) if len(values) else np.zeros((0, *shape[1:]), np.int64)
    if found.dtype.kind not in "iu" or found.shape != shape:
        raise ValueError(f"expected integers of the shape {shape}")
    if found.size and not least <= int(found.min()) <= int(found.max()) <= most:
        raise ValueError(f"a number is not between {least} and {most}")
    return found.astype(np.int64)


FORMAT = "spamnb prior"
VERSION = 1
CHANNEL = "prior"
LEAST = 10
"""A prior has the features of at least this many messages of one label; a model that has learnt
fewer messages of a label gives no prior ..."""
SHARE = 600
"""... or of one message in so many, if that is more."""
FEATURES = 100_000
"""Most features of a prior. 6,000 messages give 14,000."""
CORRECTION = 4 * STEP_ONE
"""The largest correction in a prior; that of 6,000 messages is 2 nats."""
LINE = 2048
"""Most characters of a line: six for each byte of a text, and the numbers."""

SHIPPED = Path(__file__).with_name("prior.jsonl.gz")
_SHIPPER = Source(user="spamnb")
"""the user of the event that adds the shipped prior"""

TEXTS = (TokenLocation.BODY, TokenLocation.SUBJECT, TokenLocation.HIDDEN, TokenLocation.CONTENT)
TRAVELS: dict[TokenLocation, frozenset[bytes]] = {
    **dict.fromkeys(
        (
            *TEXTS,
            *(TokenLocation.PART, TokenLocation.MARKUP, TokenLocation.MARK),
            *(TokenLocation.AGREEMENT, TokenLocation.SENDER, TokenLocation.STYLE),
        ),
        frozenset({b""}),
    ),
    TokenLocation.HEADER: frozenset(
        {
            *(b"date", b"importance", b"precedence", b"priority", b"user-agent", b"x-mailer"),
            *(b"x-mimeole", b"x-msmail-priority", b"x-priority"),
        }
    ),
    TokenLocation.HEADER_ORDER: frozenset({b"", b"main", b"all"}),
    TokenLocation.ID_SHAPE: frozenset({b"", b"pattern", b"local part"}),
    TokenLocation.FROM_SHAPE: frozenset({b"", b"case", b"header", b"local part"}),
    TokenLocation.LINK_SHAPE: frozenset({b"", b"host", b"path"}),
}
"""Locations, and the names in them, that mean the same on another server and for other users."""
_PEOPLE = (TokenLocation.FROM, TokenLocation.REPLY, TokenLocation.TO)
_JOINTS = re.compile(rb"[^a-z\x80-\xff]+")
_LOCATIONS = {location.name.lower(): location for location in TRAVELS}


# --- make ----------------------------------------------------------------------------------------


def make_prior(store: Store, *, ids: frozenset[int] | None = None) -> Iterator[str]:
    """Yield the prior of a model as lines of JSON, from one snapshot; of `ids` only, if given.

    An export holds ids, which another key cannot read. A prior holds texts instead of ids, and only
    those of locations that mean the same on every server (`TRAVELS`): no address, host or link, and
    no word of the name or address of a sender or recipient. It is JSON lines; the first is the
    header:

        {"format": "spamnb prior", "version": 1, "labels": ["ham", "spam"],
         "features": how many lines follow}

    Then one line for each feature:

        {"location": "subject", "token": "cheap", "w": [corrections of each label, 2^-20 nats]}

    and `name` for locations that have several kinds of lines. It has the corrections of the model,
    but none of its counts: with counts, a new model ranked other mail 11 to 25 % worse (decision
    0058). So a prior counts as no message. Adding it is one event of the channel `CHANNEL`, so
    `undo` reverts it, and lists of events show it.
    """
    _check_kind(store.recipe)
    if not store.recipe.vocabulary:
        raise RefusedError("the model has no vocabulary, so it has no prior")
    with store.read() as view:
        messages = view.totals().messages
        if messages.min() < LEAST:
            raise RefusedError(
                "the model has too few messages for a prior",
                hint="train more messages of each label",
            )
        least = max(LEAST, int(messages.sum()) // SHARE)
        texts = _features(Key(store.recipe.key), view, least, ids)
        lines = list(islice(texts, FEATURES))
    yield json_line(
        {
            "format": FORMAT,
            "version": VERSION,
            "labels": list(store.recipe.labels),
            "features": len(lines),
        }
    )
    yield from lines


def _names(view: ReadView) -> set[bytes]:
    """Return the words that occur in the names and addresses of senders and recipients."""
    named = (word.text.lower() for word in view.all_words() if word.location in _PEOPLE)
    parts = (part for text in named for part in _JOINTS.split(text))
    return {part for part in parts if len(part) >= MIN_BYTES}


def _features(key: Key, view: ReadView, least: int, chosen: frozenset[int] | None) -> Iterator[str]:
    names = _names(view)
    for ids, records in view.features():
        rows = (records.n.max(axis=1) >= least).nonzero()[0]
        if chosen is not None:
            rows = rows[[id_ in chosen for id_ in ids[rows].tolist()]]
        w = records.w[rows].clip(-CORRECTION, CORRECTION)
        words = _tokens(key, view.words(ids[rows]))
        for token, corrections in zip(words, w.tolist(), strict=True):
            if token is not None and any(corrections) and not _is_named(token, names):
                yield _line(token, corrections)


def _is_named(token: Field, names: set[bytes]) -> bool:
    location, _, text = token
    return location in TEXTS and not names.isdisjoint(_JOINTS.split(text.lower()))


def _tokens(key: Key, words: list[Word | None]) -> list[Field | None]:
    """Return the token of each word that may be in a prior.

    The vocabulary joins name and text. So both readings are hashed, and the one that has the
    word's id is right; a word that was cut has none.
    """
    readings = [token for word in words if word is not None for token in _readings(word)]
    found = dict(zip(ids_of(key, readings).tolist(), readings, strict=True))
    return [None if word is None else found.get(word.id) for word in words]


def _readings(word: Word) -> Iterator[Field]:
    location = TokenLocation(word.location)
    name, _, rest = word.text.partition(b":")
    for token in ((location, b"", word.text), (location, name, rest)):
        if _travels(token):
            yield token


def _travels(token: Field) -> bool:
    location, name, text = token
    if name not in TRAVELS.get(location, ()) or not 0 < len(text) <= LINE_BYTES:
        return False
    if location in TEXTS and b"." in text:
        return False  # host names, which plain text contains as words
    # In lines of FROM_SHAPE it is the sign between two runs of `a`.
    return b"@" not in text or location is TokenLocation.FROM_SHAPE


def _line(token: Field, w: list[int]) -> str:
    location, name, text = token
    named = {"name": name.decode()} if name else {}
    shown = text.decode("utf-8", "surrogateescape")
    return json_line({"location": location.name.lower(), **named, "token": shown, "w": w})


# --- add -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prior:
    """A parsed prior."""

    labels: tuple[str, ...]
    tokens: list[Field]
    w: Ints

    @property
    def features(self) -> int:
        """How many features it has."""
        return len(self.tokens)


def is_prior(lines: TextIOBase) -> bool:
    """Return whether a text begins as a prior does; the text is read from its start again."""
    start = lines.readline(LINE)
    lines.seek(0)
    return start.startswith(json_line({"format": FORMAT}).rstrip("}\n"))


def read_prior(lines: TextIOBase) -> Prior:
    """Parse a prior; UserError if it is invalid, incomplete or beyond the limits."""
    bounded = iter(lambda: lines.readline(LINE), "")
    try:
        header = json.loads(next(bounded, ""))
        if header["version"] != VERSION:
            raise _invalid(f"its version is {header['version']}, this program reads {VERSION}")
        rows = [json.loads(line) for line in islice(bounded, FEATURES + 1)]
        return _parsed(header, rows)
    except MALFORMED as error:
        raise _invalid(str(error)) from error


def _parsed(header: dict[str, Any], rows: list[dict[str, Any]]) -> Prior:
    labels, shape = tuple(header["labels"]), (len(rows), len(header["labels"]))
    if len(rows) != header["features"] or len(rows) > FEATURES:
        raise ValueError(f"{len(rows)} features instead of {header['features']}")
    if set(map(type, labels)) != {str}:
        raise ValueError("its labels are not texts")
    w = integers([row["w"] for row in rows], shape, -CORRECTION, CORRECTION)
    tokens = [_token(row) for row in rows]
    if len(set(tokens)) < len(tokens):
        raise ValueError("a feature occurs twice")
    return Prior(labels, tokens, w)


def _token(row: dict[str, Any]) -> Field:
    text = row["token"].encode("utf-8", "surrogateescape")
    token = _LOCATIONS[row["location"]], row.get("name", "").encode(), text
    if not _travels(token):
        raise ValueError(f"{row['token']!r} of {row['location']} cannot be in a prior")
    return token


def prior_load(recipe: Recipe, prior: Prior, source: Source, digest: bytes = b"") -> BulkLoad:
    """Return the request that adds a prior to a model, as one event that `undo` reverts."""
    _check_kind(recipe)
    if prior.labels != recipe.labels:
        raise UserError(f"the prior's labels are {prior.labels}, this model's are {recipe.labels}")
    ids = ids_of(Key(recipe.key), prior.tokens)
    order = ids.argsort()
    nothing = no_totals(recipe.groups, len(recipe.labels))
    now = now_us()
    bulk = BulkChange(
        ids=ids[order],
        n=np.zeros_like(prior.w),
        w=prior.w[order],
        messages=nothing.messages,
        bias=nothing.bias,
        temperatures=nothing.temperatures,
        days=np.full(len(ids), day_of(now), np.uint16),
    )
    words = MergedWords([packed(map(_word, ids.tolist(), prior.tokens))])
    return BulkLoad(bulk, False, source._replace(channel=CHANNEL), now, words, digest)


def shipped_load(recipe: Recipe) -> BulkLoad | None:
    """Return the request that adds the shipped prior; None for a model that it does not fit.

    It has a digest, so two processes that create one model together add it once.
    """
    if not _takes_priors(recipe):
        return None
    prior, digest = shipped_prior()
    return prior_load(recipe, prior, _SHIPPER, digest) if prior.labels == recipe.labels else None


@cache
def shipped_prior() -> tuple[Prior, bytes]:
    """Return the prior that ships with the program, and its digest."""
    text = gzip.decompress(SHIPPED.read_bytes())
    return read_prior(StringIO(text.decode())), blake2b(text, digest_size=16).digest()


def _word(id_: int, token: Field) -> Word:
    location, name, text = token
    return Word(id_, location, name + b":" + text if name else text)


def _takes_priors(recipe: Recipe) -> bool:
    return recipe.kind == "corrected" and not recipe.documents


def _check_kind(recipe: Recipe) -> None:
    if not _takes_priors(recipe):
        raise RefusedError("only mail models of the kind corrected have a prior")


def _invalid(why: str) -> UserError:
    return UserError(
        f"not a valid, complete prior: {why[:200]}", hint="make one with `spamnb export --prior`"
    )


def features_of_priors(view: ReadView) -> int:
    """Return how many features the priors in force have."""
    events = map(view.event, in_force(view, EventFilter(channel=(CHANNEL,))))
    return sum(len(event.bulk.ids) for event in events if event and event.bulk)
