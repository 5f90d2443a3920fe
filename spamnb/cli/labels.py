"""`train --labels`: find the labels of mail that other programs or users gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from spamnb.cli.printing import say
from spamnb.errors import CorpusError, UserError

if TYPE_CHECKING:
    from spamnb.engine.mailboxes import MessageSpan

    LabelOf = Callable[[MessageSpan, str], str | None]


def labelled_sources(
    how: str, folders: tuple[str, ...], *, ask: bool
) -> list[tuple[str, list[MessageSpan]]]:
    """Return the messages of each label; with `ask`, after the user has agreed to their numbers."""
    from spamnb.engine.mailboxes import units

    label_of = label_finder(how)
    found: dict[str, list[MessageSpan]] = {"ham": [], "spam": []}
    silent = 0
    for root in folders:
        for span in units(root):
            label = label_of(span, root)
            silent += label is None
            if label is not None:
                found[label].append(span)
    ham, spam = (len(spans) for spans in found.values())
    say(f"{ham} ham and {spam} spam found, {silent} messages without a label")
    if not ham + spam:
        raise CorpusError("no message has a label", hint="check --labels and the folders")
    if ask:
        click.confirm("Train with these?", abort=True)
    return [(label, spans) for label, spans in found.items() if spans]


def label_finder(how: str) -> LabelOf:
    """Return what finds the label of a message, by the value of `--labels`."""
    from spamnb.maildir import label_by_folder, label_by_keyword

    if how.startswith("sa:"):
        return _by_seen_list(how.removeprefix("sa:"))
    known = {"folders": label_by_folder, "flags": label_by_keyword}
    if how not in known:
        raise UserError(f"--labels {how} is unknown", hint="give sa:FILE, folders or flags")
    return known[how]


def _by_seen_list(path: str) -> LabelOf:
    from spamnb.engine.mailboxes import SourceMessage, read_unit
    from spamnb.engine.seen_list import read_seen, seen_as

    seen = read_seen(path)

    def label_of(span: MessageSpan, _: str) -> str | None:
        read = read_unit(span)
        return seen_as(read.raw, seen) if isinstance(read, SourceMessage) else None

    return label_of
