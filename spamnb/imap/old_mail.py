"""Copies the sorted mail of a mailbox into files, so that `train` reads it.

The folder and the flags of a message are its label, as for mail that is sorted from now on: the
junk folder is spam; answered mail of the inbox, and read mail of the folders that the user created,
is ham; deleted mail is nothing. Mail that the user sent tells whom the user writes to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Final, Literal, NamedTuple

from spamnb.errors import PeerError
from spamnb.imap.client import ImapClient, ListedFolder, watched

Kind = Literal["ham", "spam", "sent"]
KINDS: Final[tuple[Kind, ...]] = ("ham", "spam", "sent")
_DAY_S: Final = 86_400
_AT_ONCE: Final = 20
_MOST_BYTES: Final = 1 << 20
"""longer messages are left out: a part of one would be another message"""
_SENT_NAMES: Final = ("sent", "sent messages", "sent items")


class OldMail(NamedTuple):
    """Which mail is copied."""

    days: int = 365
    most: int = 2_000
    """of each folder, the newest"""


def copy_mail(
    client: ImapClient, wanted: OldMail, folder: Path, name: str, show: Callable[[int], None]
) -> dict[Kind, int]:
    """Copy into the folders `ham`, `spam` and `sent`; return how many messages of each.

    File names begin with `name`. `show` is called with the number of messages so far.
    """
    counts: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    for kind, wire, flag in _folders(client):
        client.select(wire, readonly=True)
        since = "-".join(formatdate(time.time() - wanted.days * _DAY_S).split()[1:4])
        uids = client.uids_by_flag(f"UNDELETED SINCE {since} {flag}")[-wanted.most :]
        for start in range(0, len(uids), _AT_ONCE):
            found = client.fetch(uids[start : start + _AT_ONCE], "", _MOST_BYTES)
            for raw in (one for one in found.values() if len(one) < _MOST_BYTES):
                counts[kind] += 1
                (folder / kind / f"{name}-{counts[kind]:06}.eml").write_bytes(raw)
            show(sum(counts.values()))
    return counts


def _folders(client: ImapClient) -> Iterator[tuple[Kind, str, str]]:
    """The folders with their kinds, and the flag that a message needs."""
    listed = client.folders()
    roles = watched(listed, "INBOX", "")
    if roles is None:
        raise PeerError("the mailbox has no junk folder", hint="create one, named Junk")
    yield "spam", roles.junk, "ALL"
    yield "ham", roles.inbox, "ANSWERED"
    for wire in roles.others:
        yield "ham", wire, "SEEN"
    for one in listed:
        if one.is_selectable and _is_sent(one):
            yield "sent", one.wire, "ALL"


def _is_sent(folder: ListedFolder) -> bool:
    return r"\sent" in folder.flags or folder.last in _SENT_NAMES
