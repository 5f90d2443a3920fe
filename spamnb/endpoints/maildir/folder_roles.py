"""What it means that a message lies in a folder of a Maildir: by the folder's name. Pure.

A message that lies in Junk is called spam by whoever put it there, elsewhere ham. Folders of thrown
away or own mail say nothing. Whether somebody put it there, or we did, is told by our own header:
only a place that contradicts it, or what was taught, is a person's word. So nothing is ever learnt
from our own verdicts, and nothing needs to be remembered of where a message lay before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Role = Literal["ham", "spam", "silent"]


@dataclass(frozen=True, slots=True)
class Folders:
    """Names of folders, without the leading dot; those below them mean the same."""

    junk: tuple[str, ...] = ("Junk", "Spam", "INBOX.Junk", "INBOX.Spam")
    silent: tuple[str, ...] = (
        "Trash", "Deleted Messages", "Deleted Items", "Sent", "Sent Messages", "Sent Items",
        "Drafts", "Templates", "Outbox",
    )  # fmt: skip
    """thrown away, or written here"""


def role_of(folder: str, folders: Folders) -> Role:
    """What lying in this folder says; "" is the inbox."""
    name = folder.removeprefix(".").casefold()

    def below(names: tuple[str, ...]) -> bool:
        known = [known.casefold() for known in names]
        return any(name == one or name.startswith((f"{one}.", f"{one}/")) for one in known)

    return "spam" if below(folders.junk) else "silent" if below(folders.silent) else "ham"


_HEADER = re.compile(rb"(.*?)(?:\r?\n\r?\n|\Z)", re.DOTALL)
_FLAG = re.compile(rb"^x-spam-flag[ \t]*:[ \t]*(yes|no)\b", re.IGNORECASE | re.MULTILINE)


def delivered_as(raw: bytes) -> Role:
    """What our header says of a message; silent if it has none."""
    header = _HEADER.match(raw)
    found = _FLAG.search(header[1]) if header else None
    if found is None:
        return "silent"
    return "spam" if found[1].lower() == b"yes" else "ham"


def word_of(place: Role, delivered: Role, taught: str | None) -> str | None:
    """The label that a person gave by filing a message so; None if they said nothing.

    What was taught of it (by whomever) is what its place is held against; a message that nobody
    taught was filed by its header: without one, by nobody, unless it lies in Junk.
    """
    if place == "silent":
        return None
    if taught is not None:
        return place if taught in ("ham", "spam") and taught != place else None
    if delivered == "silent":
        return place if place == "spam" else None
    return place if place != delivered else None
