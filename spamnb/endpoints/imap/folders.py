"""Folders of a mailbox: their names, and what a message there means. Pure.

Names on the wire are in modified UTF-7 (RFC 3501, 5.1.3); settings and logs have plain text.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

_SHIFTED = re.compile(r"&([A-Za-z0-9+,]*)-")
_QUOTABLE = re.compile(rb"[ -~]{1,1000}")
_USUAL_JUNK: Final = ("junk", "spam", "junk e-mail", "junk email", "bulk mail", "spamverdacht")
_SILENT_FLAGS: Final = frozenset(
    (r"\all", r"\flagged", r"\important", r"\trash", r"\sent", r"\drafts", r"\noselect",
     r"\nonexistent")
)  # fmt: skip
"""flags of folders (RFC 6154) with copies of other folders, own mail, deleted mail, or no mail"""
_SILENT_NAMES: Final = frozenset(
    ("trash", "deleted messages", "deleted items", "sent", "sent messages", "sent items", "drafts",
     "templates", "outbox")
)  # fmt: skip
MOST_OTHERS: Final = 50
"""folders that are checked for moved messages, each with one command a minute"""


class ListedFolder(NamedTuple):
    """A folder as the server lists it."""

    wire: str
    """its name in commands"""
    flags: frozenset[str]
    """in lower case"""
    delimiter: str

    @property
    def name(self) -> str:
        """Its name for people."""
        return decoded_name(self.wire)

    @property
    def last(self) -> str:
        """Its name without the folders above it, in lower case."""
        parts = self.name.split(self.delimiter) if self.delimiter else [self.name]
        return parts[-1].lower()

    @property
    def is_selectable(self) -> bool:
        return r"\noselect" not in self.flags

    def is_below(self, names: frozenset[str]) -> bool:
        """Return True if it, or a folder above it, has one of these names."""
        parts = self.name.split(self.delimiter) if self.delimiter else [self.name]
        return any(part.lower() in names for part in parts)


class WatchedFolders(NamedTuple):
    """The folders of a mailbox that are read, by their names in commands."""

    inbox: str
    junk: str
    others: tuple[str, ...]
    """folders of the user: wanted mail"""


def listed_folder(values: Sequence[Any]) -> ListedFolder | None:
    """Return the folder of a LIST response; None if a command cannot name it."""
    match values:
        case [list() as flags, (bytes() | None) as delimiter, bytes() as wire] if (
            _QUOTABLE.fullmatch(wire)
        ):
            names = frozenset(_ascii(one).lower() for one in flags if isinstance(one, bytes))
            return ListedFolder(_ascii(wire), names, _ascii(delimiter or b""))
    return None


def watched(listed: Sequence[ListedFolder], inbox: str, junk: str) -> WatchedFolders | None:
    """Choose the folders by the names in the settings; None if there is no junk folder."""
    usable = [one for one in listed if one.is_selectable]
    found = junk_folder(usable, junk)
    wire = next((one.wire for one in usable if _same(one.name, inbox)), inbox)
    if found is None or found.wire == wire:
        return None
    others = [
        one.wire
        for one in usable
        if one.wire not in (wire, found.wire)
        and not one.wire.startswith(found.wire + (one.delimiter or "\0"))
        and not one.flags & _SILENT_FLAGS
        and not one.is_below(_SILENT_NAMES)
    ]
    return WatchedFolders(wire, found.wire, tuple(others[:MOST_OTHERS]))


def junk_folder(usable: Sequence[ListedFolder], junk: str) -> ListedFolder | None:
    """Return the folder in the settings, else the one marked by the server, else a usual name."""
    if junk:
        return next((one for one in usable if _same(one.name, junk)), None)
    marked = next((one for one in usable if r"\junk" in one.flags), None)
    named = (one for name in _USUAL_JUNK for one in usable if one.last == name)
    return marked or next(named, None)


def _same(name: str, setting: str) -> bool:
    """Compare names; the case of INBOX does not matter (RFC 3501, 5.1)."""
    return name == setting or name.upper() == setting.upper() == "INBOX"


def decoded_name(wire: str) -> str:
    """Return a name from the wire as text; an invalid name stays as it is."""

    def plain(found: re.Match[str]) -> str:
        if not found[1]:
            return "&"
        padded = found[1].replace(",", "/") + "=" * (-len(found[1]) % 4)
        try:
            return b64decode(padded).decode("utf-16-be")
        except ValueError:
            return found[0]

    return _SHIFTED.sub(plain, wire)


def quoted(text: str) -> bytes:
    """Return a text as a quoted string; ValueError if it has characters that cannot be in one."""
    if not text.isascii() or not text.isprintable():
        raise ValueError(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.encode("ascii")


def _ascii(data: bytes) -> str:
    return data.decode("ascii", "backslashreplace")
