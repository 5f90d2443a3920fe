"""Options of scanning that hold for all endpoints. A value of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spamnb.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """What holds for all messages."""

    tag: str = "[SPAM] "
    """put before the subject's text by the action `tag`"""
    redirect: str = "junk"
    """value of X-Spamnb-Redirect for the action `redirect`; the next hop decides what it means,
    such as Postfix's header_checks with REDIRECT"""
    own_clients: tuple[str, ...] = ()
    """networks whose mail is observed: the site's own outgoing mail must not carry a verdict"""
    local: Literal["observe", "judge"] = "observe"
    """how to treat mail that XFORWARD calls LOCAL. For Postfix that is
    `local_header_rewrite_clients`: by default itself, so if other programs of that machine
    submit external mail (fetchmail), it must be `judge`"""
    large_bytes: int = 65_536
    """messages above this go to a scan process: 64 KB of the slowest mail take 10 ms here"""

    def __post_init__(self) -> None:
        for name, text in (("tag", self.tag), ("redirect", self.redirect)):
            if not (text.isascii() and text.isprintable()):
                raise SettingsError(
                    f"the {name} {text!r} is not printable ASCII",
                    hint="give one line of printable ASCII characters",
                )
