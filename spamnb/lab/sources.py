"""Collections to evaluate on: where their messages lie, and the order they are met in.

Sorted mail in two places, or a collection laid out as those of TREC's spam track (a file `index`
whose lines are `spam ../data/inmail.1`). Messages are read when it is their turn, so that a large
collection is never in memory. Must not know models. Failure: CorpusError.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from typing import TypeVar

from spamnb.errors import CorpusError
from spamnb.service.training.sources import MessageSpan, SourceMessage, read_unit, units

What = TypeVar("What")
Named = tuple[str, tuple[What, str]]
"""name for the order, then the thing and its label"""

_LINE = re.compile(r"(spam|ham)\s+(\S.*)", re.IGNORECASE)
_HEAD_BYTES = 65_536


def index_of(path: str) -> Path | None:
    """The index of a collection in TREC's layout, or None where there is none."""
    place = Path(path)
    candidates = (place,) if place.is_file() else (place / "full" / "index", place / "index")
    for candidate in candidates:
        if candidate.is_file():
            with candidate.open(encoding="utf-8", errors="replace") as lines:
                if _LINE.match(lines.readline()):
                    return candidate
    return None


def indexed(index: Path) -> list[Named[MessageSpan]]:
    """The messages that an index names, in its order."""
    found: list[Named[MessageSpan]] = []
    text = index.read_text("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        named = _LINE.fullmatch(line.strip())
        if named is None:
            raise CorpusError(
                f"line {number} of {index} is {line.strip()[:60]!r}",
                hint="each line must be `spam PATH` or `ham PATH`",
            )
        path = index.parent / named[2]
        found.append((f"{number:09}", (MessageSpan(str(path), shown=named[2]), named[1].lower())))
    return found


def sorted_mail(path: str, label: str) -> list[Named[MessageSpan]]:
    """The messages under a path, all with one label."""
    return [(Path(unit.name).name, (unit, label)) for unit in units(path)]


def shuffled(named: Iterable[Named[What]], seed: int) -> list[tuple[What, str]]:
    """By file name over both classes (ties by label), then shuffled: no path, no disk order."""
    rows = sorted(named, key=lambda row: (row[0], row[1][1]))
    random.Random(seed).shuffle(rows)  # noqa: S311 - an order that can be had again, no secret
    return [thing for _, thing in rows]


def as_given(named: Iterable[Named[What]], _seed: int = 0) -> list[tuple[What, str]]:
    """In the order in which they were found: that of the index, which is that of arrival."""
    return [thing for _, thing in named]


def by_time(named: Iterable[Named[bytes]]) -> list[tuple[bytes, str]]:
    """By the time of arrival, or else the Date; those without either stand by name at the start."""
    return _by_time(named, lambda raw: raw)


def units_by_time(named: Iterable[Named[MessageSpan]]) -> list[tuple[MessageSpan, str]]:
    """The same for messages that lie in files; the head of each is read."""

    def head(unit: MessageSpan) -> bytes:
        head = unit.start + _HEAD_BYTES
        read = read_unit(unit._replace(stop=min(unit.stop or head, head)))
        return read.raw if isinstance(read, SourceMessage) else b""

    return _by_time(named, head)


def _by_time(named: Iterable[Named[What]], head: Callable[[What], bytes]) -> list[tuple[What, str]]:
    keyed = [(arrival(head(thing[0])), name, thing[1], thing) for name, thing in named]
    return [row[3] for row in sorted(keyed, key=lambda row: row[:3])]


def read_each(
    found: Iterable[tuple[MessageSpan, str]],
    warn: Callable[[str], None],
    *,
    documents: bool = False,
) -> Iterator[tuple[bytes, str]]:
    """The messages, each when it is asked for; what can't be read is told and left out."""
    for unit, label in found:
        read = read_unit(unit, documents=documents)
        if isinstance(read, SourceMessage):
            yield read.raw, label
        else:
            warn(f"skipped {read.name}: {read.reason}")


def arrival(raw: bytes) -> float:
    """Seconds since 1970 by the newest Received, else by Date; 0 if neither can be read."""
    head = raw[:_HEAD_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    fields = head.replace(b"\n ", b" ").replace(b"\n\t", b" ").split(b"\n")
    for name in (b"received:", b"date:"):
        for line in fields:
            if line[: len(name)].lower() == name:
                said = line[len(name) :].rpartition(b";")[2].decode("ascii", "replace")
                parsed = parsedate_tz(said)
                if parsed and 1970 <= parsed[0] < 10_000:
                    try:
                        return float(mktime_tz(parsed))
                    except (ValueError, OverflowError):
                        continue
    return 0.0
