"""The outbox of a host: corrections and questions that wait for the fleet, and pins.

    corrections u64 number -> u8 flags | body (`entries`) of one event that changes nothing
    pins        label key  -> u64 number of the correction | i16 label
    questions   u64 number -> JSON: a correction of a verdict in the history of another host
    meta        "last"     -> u64 number of the last correction or question

The event of a correction says what is to be learnt; the words are the texts of the message's
features. The mark of the body is that of the transaction in which the correction was tried, or is
to be recorded. A pin is the label that the newest waiting correction gives a message: until the
correction is learnt, the pin decides the verdict on the message. Numbers grow, and are big-endian
as keys.

The outbox is an LMDB environment of its own in the home, because the model is the same on all
hosts, and the outbox is not. The learner writes it; workers read the pins. Failure: StoreErrors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from spamnb.errors import LogAwayError, StoreError
from spamnb.fleet.entries import decode_body, encode_body
from spamnb.model.events import NO_LABEL, Event, EventKind, owner_of_key
from spamnb.model.features import Words
from spamnb.settings.values import OUTBOX_BYTES
from spamnb.store.codec import Buffer
from spamnb.store.files import make_folder
from spamnb.store.model_store import (
    Environment,
    EnvironmentConfig,
    LmdbTable,
    holds_data,
    release,
    share,
)

FOLDER = "outbox"
"""in the home"""
_AGAIN, _UNDONE = 1, 2
_NUMBER = struct.Struct(">Q")
_PIN = struct.Struct(">Qh")
_LAST = b"last"
_TABLES = ("corrections", "questions", "pins", "meta")

Tables = dict[str, LmdbTable]
Result = TypeVar("Result")


class WaitingCorrection(NamedTuple):
    """A correction that is applied when the log answers again."""

    event: Event
    """the event that the correction will become; its seq is the number of the correction"""
    words: Words
    mark: bytes
    again: bool = False
    """whether to take further steps if the message has this label already"""
    undone: bool = False
    """whether it was undone while it waited"""

    @property
    def number(self) -> int:
        """Return the place of the correction in the outbox."""
        return self.event.seq

    def encode(self) -> bytes:
        """Return the correction as bytes, without its number."""
        flags = self.again * _AGAIN | self.undone * _UNDONE
        return bytes((flags,)) + encode_body([self.event], self.words, self.mark)

    @classmethod
    def decode(cls, number: int, data: Buffer) -> Self:
        """Return the correction of these bytes."""
        whole = bytes(data)
        body, flags = decode_body(number, whole[1:]), whole[0]
        again, undone = bool(flags & _AGAIN), bool(flags & _UNDONE)
        return cls(body.events[0], body.words, body.mark, again, undone)


class WaitingQuestion(NamedTuple):
    """A correction of a verdict in the history of another host."""

    number: int
    time_us: int
    hosts: tuple[str, ...]
    """the hosts that did not answer; an empty name: any host"""
    feedback: dict[str, Any]


class OutboxState(NamedTuple):
    """How much waits in the outbox."""

    waiting: int
    """corrections and questions"""
    bytes: int
    oldest_us: int
    """when the oldest of them was given; 0 if none waits"""


class Outbox:
    """The outbox of a home; threads may share it."""

    def __init__(self, home: Path, limit_bytes: int = OUTBOX_BYTES) -> None:
        folder = home / FOLDER
        make_folder(folder)
        self._environment = share(EnvironmentConfig(folder, _TABLES), create=True)
        self._limit_bytes = limit_bytes

    def close(self) -> None:
        """Close the files."""
        release(self._environment)

    def put(self, corrections: Sequence[WaitingCorrection]) -> list[WaitingCorrection]:
        """Store corrections durably; return them with their numbers."""
        self._refuse_beyond(sum(len(correction.encode()) for correction in corrections))

        def run(tables: Tables) -> list[WaitingCorrection]:
            numbered = [
                correction._replace(event=correction.event._replace(seq=number))
                for number, correction in enumerate(
                    corrections, _next_numbers(tables, len(corrections))
                )
            ]
            for correction in numbered:
                tables["corrections"].put(_NUMBER.pack(correction.number), correction.encode())
                _pin(tables, correction)
            return numbered

        return self._environment.transact(run)

    def _refuse_beyond(self, size: int) -> None:
        if self._environment.live_pages() * self._environment.page_bytes + size > self._limit_bytes:
            raise LogAwayError(
                f"{self._limit_bytes} bytes of corrections wait for the fleet",
                hint="try again when its log is back, or raise fleet.outbox_bytes",
            )

    # -- questions ------------------------------------------------------------------------------

    def put_question(self, question: WaitingQuestion) -> int:
        """Store a question durably; return its number: a new one, if it has none yet."""
        data = json.dumps(question[1:]).encode()
        if not question.number:
            self._refuse_beyond(len(data))

        def run(tables: Tables) -> int:
            number = question.number or _next_numbers(tables, 1)
            tables["questions"].put(_NUMBER.pack(number), data)
            return number

        return self._environment.transact(run)

    def questions(self) -> list[WaitingQuestion]:
        """Return all questions, oldest first."""
        with self._environment.read() as tables:
            return [_question(key, value) for key, value in tables["questions"].scan()]

    def question(self, number: int) -> WaitingQuestion | None:
        """Return a question; None if it does not wait any more."""
        with self._environment.read() as tables:
            value = tables["questions"].get(key := _NUMBER.pack(number))
            return None if value is None else _question(key, value)

    def remove_question(self, number: int) -> None:
        """Remove a question."""
        self._environment.transact(lambda tables: tables["questions"].delete(_NUMBER.pack(number)))

    # -- corrections -------------------------------------------------------------------------------

    def first(self, count: int) -> list[WaitingCorrection]:
        """Return the oldest corrections; those with one mark are not separated."""
        found: list[WaitingCorrection] = []
        with self._environment.read() as tables:
            for key, value in tables["corrections"].scan():
                correction = WaitingCorrection.decode(_number(key), value)
                if len(found) >= count and correction.mark != found[-1].mark:
                    break
                found.append(correction)
        return found

    def correction(self, number: int) -> WaitingCorrection | None:
        """Return a correction; None if it does not wait any more."""
        with self._environment.read() as tables:
            value = tables["corrections"].get(_NUMBER.pack(number))
            return None if value is None else WaitingCorrection.decode(number, value)

    def remove(self, corrections: Iterable[WaitingCorrection]) -> None:
        """Remove corrections, and the pins that no newer correction has replaced."""

        def run(tables: Tables) -> None:
            for correction in corrections:
                tables["corrections"].delete(_NUMBER.pack(correction.number))
                _unpin(tables, correction)

        self._environment.transact(run)

    def take_back(self, number: int) -> WaitingCorrection | None:
        """Undo a correction while it waits; None if it does not."""

        def run(tables: Tables) -> WaitingCorrection | None:
            key = _NUMBER.pack(number)
            value = tables["corrections"].get(key)
            correction = None if value is None else WaitingCorrection.decode(number, value)
            if correction is None or correction.undone:
                return None
            tables["corrections"].put(key, correction._replace(undone=True).encode())
            _unpin(tables, correction)
            for older, value in tables["corrections"].scan():
                found = WaitingCorrection.decode(_number(older), value)
                if found.event.label_key == correction.event.label_key and not found.undone:
                    _pin(tables, found)
            return correction

        return self._environment.transact(run)

    def pinned(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Return the label that each of these label keys was given, for those that have a pin."""
        with self._environment.read() as tables:
            return _pinned(tables, keys)

    def owners(self, digests: Sequence[bytes]) -> dict[bytes, dict[int, int]]:
        """Return the label that each owner gave each of these messages, for those with a pin."""
        with self._environment.read() as tables:
            return _owners(tables, digests)

    def state(self) -> OutboxState:
        """Return how much waits."""
        with self._environment.read() as tables:
            count, times = _count(tables), []
            for key, value in tables["corrections"].scan():
                times.append(WaitingCorrection.decode(_number(key), value).event.time_us)
                break
            for key, value in tables["questions"].scan():
                times.append(_question(key, value).time_us)
                break
        size = self._environment.live_pages() * self._environment.page_bytes
        return OutboxState(count, size if count else 0, min(times, default=0))


class OutboxReader:
    """Reads the outbox of a home, also before there is one."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._environment: Environment | None = None

    def pinned(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Return the label that each of these label keys was given, for those that have a pin."""
        return self._read(lambda tables: _pinned(tables, keys), {})

    def owners(self, digests: Sequence[bytes]) -> dict[bytes, dict[int, int]]:
        """Return the label that each owner gave each of these messages, for those with a pin."""
        return self._read(lambda tables: _owners(tables, digests), {})

    def waiting(self) -> int:
        """Return how many corrections and questions wait."""
        return self._read(_count, 0)

    def _read(self, run: Callable[[Tables], Result], without: Result) -> Result:
        # A fault of the outbox stops no mail, which is then judged by the model alone.
        with suppress(StoreError):
            if self._environment is None and holds_data(self._folder):
                config = EnvironmentConfig(self._folder, _TABLES, readonly=True)
                self._environment = share(config, create=False)
            if self._environment is not None:
                with self._environment.read() as tables:
                    return run(tables)
        return without

    def close(self) -> None:
        """Close the files."""
        environment, self._environment = self._environment, None
        if environment is not None:
            release(environment)


def _count(tables: Tables) -> int:
    return sum(tables[name].stat()["entries"] for name in ("corrections", "questions"))


def _next_numbers(tables: Tables, count: int) -> int:
    """Take so many numbers; return the first."""
    newest = _number(tables["meta"].get(_LAST) or bytes(_NUMBER.size))
    tables["meta"].put(_LAST, _NUMBER.pack(newest + count))
    return newest + 1


def _question(key: Buffer, value: Buffer) -> WaitingQuestion:
    time_us, hosts, feedback = json.loads(bytes(value))
    return WaitingQuestion(_number(key), time_us, tuple(hosts), feedback)


def _pinned(tables: Tables, keys: Sequence[bytes]) -> dict[bytes, int]:
    found = zip(keys, map(tables["pins"].get, keys), strict=True)
    return {key: _PIN.unpack(value)[1] for key, value in found if value is not None}


def _owners(tables: Tables, digests: Sequence[bytes]) -> dict[bytes, dict[int, int]]:
    """Return the pinned labels of each message, in the order in which their owners gave them."""
    found: dict[bytes, dict[int, int]] = {}
    for digest in digests:
        given: list[tuple[int, int, int]] = []
        for key, value in tables["pins"].scan(digest):
            if key[: len(digest)] != digest:
                break
            if (owner := owner_of_key(key)) is not None:
                number, label = _PIN.unpack(value)
                given.append((number, owner, label))
        if given:
            found[digest] = {owner: label for _, owner, label in sorted(given)}
    return found


def _pin(tables: Tables, correction: WaitingCorrection) -> None:
    """Let a correction decide the verdict on its message; after a forget the model decides."""
    event = correction.event
    if event.after != NO_LABEL:
        tables["pins"].put(event.label_key, _PIN.pack(correction.number, event.after))
    elif event.kind is EventKind.FORGET:
        tables["pins"].delete(event.label_key)


def _unpin(tables: Tables, correction: WaitingCorrection) -> None:
    """Remove the pin of a correction; a newer one of the same message stays."""
    key = correction.event.label_key
    value = tables["pins"].get(key) if key else None
    if value is not None and _PIN.unpack(value)[0] == correction.number:
        tables["pins"].delete(key)


def _number(key: Buffer) -> int:
    number: int = _NUMBER.unpack(key)[0]
    return number
