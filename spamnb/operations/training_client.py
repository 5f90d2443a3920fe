"""Train through the daemon: mail is read here, in the trainer's order, and learnt by the daemon.

While a daemon serves a model, only the daemon writes it. Messages are sent unchanged, some hundred
in a request, and each request is one transaction. If interrupted, all answered requests stay
learnt; a second run recognises them and continues. Must not know terminals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spamnb.engine.bulk import Progress, Summary, interleaved, mixed, refuse_twins
from spamnb.engine.mailboxes import MailSource, MessageSpan, SourceMessage, read_unit, spans
from spamnb.operations.protocol import LONG_S, ControlClient

MESSAGES = 500
"""With 1,000, a correction on another host of a fleet waits at most 1.5 s, with 500 at most 0.7 s;
the training takes the same time with both."""
BODY_BYTES = 8 << 20
"""of one request; a larger message is sent alone"""

_Message = tuple[str, bytes]


@dataclass(slots=True)
class _Sent:
    total: int
    done: int = 0
    given: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("learnt", "moved", "duplicates", "refused", "waiting"), 0
        )
    )
    unreadable: list[str] = field(default_factory=list)

    def now(self) -> Progress:
        """The progress so far."""
        return Progress(self.done, self.total, unreadable=len(self.unreadable), **self.counts)


def send(
    control: Path,
    sources: Sequence[tuple[str, MailSource]],
    source: Mapping[str, str],
    *,
    documents: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Have the daemon at this socket learn all messages of (label, path) sources.

    `source`: the fields that say who trains, and for which person.
    `documents`: the model also takes texts that are not mail.
    """
    began, cpu = time.monotonic(), time.process_time()
    refuse_twins(sources)
    found = [mixed(spans(source, documents=documents)) for _, source in sources]
    sent = _Sent(sum(map(len, found)))
    labels = [label for label, _ in sources]
    with ControlClient(control, LONG_S) as caller:
        for batch in _batches(_read(found, labels, sent, documents=documents)):
            sizes, given = [len(raw) for _, raw in batch], [label for label, _ in batch]
            body = b"".join(raw for _, raw in batch)
            answer = caller.ask("batch", body, sizes=sizes, labels=given, **source).header
            for name in sent.counts:
                sent.counts[name] += int(answer.get(name, 0))
            sent.done += len(batch)
            if progress:
                progress(sent.now())
    return Summary(
        messages=sent.total,
        **sent.counts,
        unreadable=len(sent.unreadable),
        unreadable_paths=tuple(sent.unreadable),
        labels=sent.given,
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - cpu,
    )


def _read(
    found: list[list[MessageSpan]], labels: list[str], sent: _Sent, *, documents: bool
) -> Iterator[_Message]:
    """All messages in their order; unreadable messages are recorded."""
    parts = [iter(part) for part in found]
    for source in interleaved([len(part) for part in found]).tolist():
        label = labels[source]
        sent.given[label] = sent.given.get(label, 0) + 1
        item = read_unit(next(parts[source]), documents=documents)
        if isinstance(item, SourceMessage):
            yield label, item.raw
        else:
            sent.unreadable.append(f"{item.name}: {item.reason}")
            sent.done += 1


def _batches(messages: Iterator[_Message]) -> Iterator[list[_Message]]:
    batch: list[_Message] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == MESSAGES or size + len(message[1]) > BODY_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message[1])
    if batch:
        yield batch
