"""When digests are sent, by which server, and where their links lead. Values only."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from spamnb.errors import SettingsError

DigestLinks = Literal["act", "login"]
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
ADDRESS: Final = re.compile(r"[!#-'*+/-9=?A-Z^-~.-]{1,64}@[A-Za-z0-9.-]{1,253}")
"""addresses that need no quoting in a command or a header field; others get no digest"""


class DigestPlan(NamedTuple):
    """The section `digest` of the settings."""

    at: str = ""
    smtp: str = ""
    sender: str = ""
    links: DigestLinks = "act"

    @property
    def minute(self) -> int:
        """The minute of the day in local time; -1: no digests are sent."""
        hours, _, minutes = self.at.partition(":")
        return int(hours) * 60 + int(minutes) if self.at else -1


def digest_plan(
    at: str = "", smtp: str = "", sender: str = "", links: DigestLinks = "act"
) -> DigestPlan:
    """Return the section. Failure: SettingsError if it is not complete."""
    if at and _TIME.fullmatch(at) is None:
        raise SettingsError(f"{at!r} is not a time of the day", hint="such as 07:00")
    if at and not smtp:
        raise SettingsError("digest.smtp is missing", hint="the server that delivers digests")
    if at and ADDRESS.fullmatch(sender) is None:
        raise SettingsError(f"digest.sender {sender!r} is not an address",
                            hint="such as postmaster@example.org")  # fmt: skip
    return DigestPlan(at, smtp, sender, links)
