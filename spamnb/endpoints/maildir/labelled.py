"""The labels that users gave their mail by folders or by keywords. Pure, except keyword files.

Folders: Junk is spam. Archives and folders that the user created are ham, and so is an answered
message in any folder except Junk. The rest of the inbox, deleted and own mail give no label.
Keywords: `$Junk` and `Junk` are spam, `$NotJunk`, `NotJunk` and `NonJunk` ham; the file
`dovecot-keywords` of a Maildir tells which letter of a file name is which keyword.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from spamnb.endpoints.maildir.folder_roles import Folders, role_of
from spamnb.service.training.sources import MessageSpan

INBOXES = ("", "inbox", "maildir", "mail", "mbox")
"""names of the folder in which new mail arrives, in lower case"""
KEYWORDS = {
    **dict.fromkeys(("$junk", "junk"), "spam"),
    **dict.fromkeys(("$notjunk", "notjunk", "nonjunk"), "ham"),
}
_FLAGS = re.compile(r":2,([A-Za-z]*)$")
_KEYWORDS_BYTES = 65_536
_FOLDERS = Folders()


def label_by_folder(span: MessageSpan, root: str) -> str | None:
    """Return the label that the folder of a message implies; None if it implies none."""
    flags = _flags(span)
    if "T" in flags:
        return None
    folder = _folder(span, root)
    role = role_of(folder, _FOLDERS)
    if role != "ham":
        return "spam" if role == "spam" else None
    is_inbox = folder.lower() in INBOXES
    return "ham" if not is_inbox or "R" in flags else None


def label_by_keyword(span: MessageSpan, _root: str) -> str | None:
    """Return the label of a message's keywords; None if it has none or both."""
    path = Path(span.path)
    names = _keywords(path.parent.parent)
    letters = [names.get(flag) for flag in _flags(span)]
    found = {KEYWORDS[name] for name in letters if name in KEYWORDS}
    return found.pop() if len(found) == 1 else None


def _flags(span: MessageSpan) -> str:
    found = _FLAGS.search(span.path)
    return found[1] if found else ""


def _folder(span: MessageSpan, root: str) -> str:
    """Return the name of a message's folder below the root, as Maildir writes it."""
    path = Path(span.path)
    if path.parent.name in ("cur", "new"):
        folder = path.parent.parent
    else:
        folder = path if span.number else path.parent  # an mbox is a folder
    if folder == Path(root):
        return ""
    return folder.name.removeprefix(".")


@lru_cache(maxsize=256)
def _keywords(folder: Path) -> dict[str, str]:
    """Return the keyword of each letter, in lower case, by the file that Dovecot writes."""
    try:
        with (folder / "dovecot-keywords").open("rb") as file:
            text = file.read(_KEYWORDS_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    rows = (line.split(" ", 1) for line in text.splitlines())
    return {
        chr(ord("a") + int(row[0])): row[1].lower()
        for row in rows
        if len(row) == 2 and row[0].isdecimal() and int(row[0]) < 26
    }
