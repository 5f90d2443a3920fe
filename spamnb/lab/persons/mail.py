"""Read the mail that worlds are made of, and files that list deliveries to persons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from spamnb.errors import CorpusError
from spamnb.lab.persons.world import Delivery, World
from spamnb.lab.persons.worlds import Mail
from spamnb.lab.trial import LABELS, Labelled, Options, Samples, read_samples
from spamnb.service.training.sources import MessageSpan

_HEAD_BYTES = 65_536
_SENDERS = (
    re.compile(rb"\nlist-id:[^\n]*<([^>\n]+)>"),
    re.compile(rb"\n(?:list-id|mailing-list):([^\n;]+)"),
    re.compile(rb"\nfrom:([^\n]+)"),
)


def sender_of(raw: bytes) -> str:
    """Return the mailing list of a message, else its author; empty if it names neither."""
    head = raw[:_HEAD_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    head = b"\n" + head.replace(b"\n ", b" ").replace(b"\n\t", b" ").lower()
    found = next(filter(None, (pattern.search(head) for pattern in _SENDERS)), None)
    return b" ".join(found[1].split()).decode("latin-1") if found else ""


def read_mail(messages: Iterable[Labelled], options: Options) -> tuple[Samples, Mail]:
    """Extract the features and the sender of each message; the texts are not kept."""
    senders: list[str] = []

    def noted() -> Iterator[Labelled]:
        for raw, label in messages:
            senders.append(sender_of(raw))
            yield raw, label

    samples = read_samples(noted(), options)
    return samples, Mail(samples.truth.tolist(), senders)


def listed_deliveries(file: Path) -> tuple[list[tuple[MessageSpan, str]], World]:
    """Return the messages that a file lists, and the world of its deliveries.

    A line has a path relative to the file, a person, and what this person wants the message to be,
    `ham` or `spam`. Lines with the same path follow each other.
    """
    messages: dict[str, tuple[int, str]] = {}
    persons: dict[str, int] = {}
    deliveries = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        words = line.rsplit(maxsplit=2)
        if len(words) != 3 or words[2] not in LABELS:
            raise CorpusError(
                f"line {number} of {file} is {line[:60]!r}",
                hint="each line must be `PATH PERSON ham` or `PATH PERSON spam`",
            )
        path, person, label = words
        place, _ = messages.setdefault(path, (len(messages), label))
        recipient = persons.setdefault(person, len(persons))
        deliveries.append(Delivery(recipient, place, LABELS.index(label), "delivered"))
    if not deliveries:
        raise CorpusError(f"{file} lists no deliveries", hint="write one on each line")
    spans = [
        (MessageSpan(str(file.parent / path), shown=path), label)
        for path, (_, label) in messages.items()
    ]
    return spans, World(file.name, len(persons), tuple(deliveries))
