"""In which manner letters are judged and marked, at whichever door. A value of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spamnb.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """What holds for all letters."""

    tag: str = "[SPAM] "
    """before the subject's text, where a message is handled by a tag"""
    redirect: str = "junk"
    """value of X-Spamnb-Redirect, where a message is handled by a redirect header; the next hop
    decides what it means, such as Postfix's header_checks with REDIRECT"""
    own_clients: tuple[str, ...] = ()
    """networks whose mail is observed: what our own people send must not leave the house with
    our verdict on it"""
    local: Literal["observe", "judge"] = "observe"
    """what becomes of mail that XFORWARD calls LOCAL. Postfix means `local_header_rewrite_clients`
    by it: itself, as shipped, so where other programs of that machine hand in strangers' mail
    (fetchmail), it must be judged"""
    large_bytes: int = 65_536
    """messages above this go to a helper process: 64 KB of the worst mail take 10 ms here"""

    def __post_init__(self) -> None:
        for name, text in (("tag", self.tag), ("redirect", self.redirect)):
            if not (text.isascii() and text.isprintable()):
                raise SettingsError(
                    f"the {name} is {text!r}", hint="give one line of plain ASCII characters"
                )
