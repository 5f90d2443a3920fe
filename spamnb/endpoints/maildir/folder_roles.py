"""The meaning of a Maildir folder, by its name, and the label that it implies. Pure.

A message in Junk was labelled spam by the user that moved it there, elsewhere ham. Folders for
deleted or own mail imply nothing. The X-Spam-Flag header tells whether delivery or the user chose
the folder: only a folder that contradicts the header, or an earlier label, is a user's correction.
So nothing is learnt from spamnb's own verdicts, and no earlier folder needs to be remembered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Role = Literal["ham", "spam", "silent"]


@dataclass(frozen=True, slots=True)
class Folders:
    """Names of folders, without the leading dot; their sub-folders have the same role."""

    junk: tuple[str, ...] = ("Junk", "Spam", "INBOX.Junk", "INBOX.Spam")
    silent: tuple[str, ...] = (
        "Trash", "Deleted Messages", "Deleted Items", "Sent", "Sent Messages", "Sent Items",
        "Drafts", "Templates", "Outbox",
    )  # fmt: skip
    """deleted mail, or the user's own"""


def role_of(folder: str, folders: Folders) -> Role:
    """The role of a folder; "" is the inbox."""
    name = folder.removeprefix(".").casefold()

    def below(names: tuple[str, ...]) -> bool:
        known = [known.casefold() for known in names]
        return any(name == one or name.startswith((f"{one}.", f"{one}/")) for one in known)

    return "spam" if below(folders.junk) else "silent" if below(folders.silent) else "ham"


_HEADER = re.compile(rb"(.*?)(?:\r?\n\r?\n|\Z)", re.DOTALL)
_FLAG = re.compile(rb"^x-spam-flag[ \t]*:[ \t]*(yes|no)\b", re.IGNORECASE | re.MULTILINE)


def delivered_as(raw: bytes) -> Role:
    """The label that delivery chose, by the header; silent without this header."""
    header = _HEADER.match(raw)
    found = _FLAG.search(header[1]) if header else None
    if found is None:
        return "silent"
    return "spam" if found[1].lower() == b"yes" else "ham"


def label_from_folder(folder: Role, delivered: Role, taught: str | None) -> str | None:
    """The label that a user gave by moving a message here; None if there is none.

    If any user has taught the message, the folder is compared with its label, else with its header.
    Without the header only Junk implies a label.
    """
    if folder == "silent":
        return None
    if taught is not None:
        return folder if taught in ("ham", "spam") and taught != folder else None
    if delivered == "silent":
        return folder if folder == "spam" else None
    return folder if folder != delivered else None
