"""What the doctor is given: a mailbox, a way to hand in mail, the daemon's facts, the records.

Values and protocols alone; must not know what is done with them. Failure: UserError for an address
that is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

from spamnb.errors import UserError
from spamnb.service.diagnostics.records import ModelRecords

Side = Literal["inbox", "junk"]

SIDES: Final[tuple[Side, ...]] = ("inbox", "junk")
LABEL: Final[Mapping[Side, str]] = {"inbox": "ham", "junk": "spam"}
"""what lying there says"""
OTHER: Final[Mapping[Side, Side]] = {"inbox": "junk", "junk": "inbox"}


class FoundMessage(NamedTuple):
    """The message, where it lies."""

    side: Side
    raw: bytes


class Mailbox(Protocol):
    """A person's mailbox."""

    @property
    def who(self) -> str:
        """Whose it is."""

    @property
    def about(self) -> str:
        """What it is, in a few words."""

    @property
    def channels(self) -> frozenset[str]:
        """Ways by which what is done here may be told."""

    @property
    def advice(self) -> str:
        """What to look at if nobody tells of moves."""

    def find(self, ident: str) -> FoundMessage | None:
        """The message with this Message-ID, in the inbox or in Junk."""

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move it; by which way."""

    def purge(self, ident: str) -> int:
        """Take it out of every folder; from how many."""

    def close(self) -> None:
        """Let go."""


@dataclass(frozen=True, slots=True)
class DoctorPorts:
    """What the doctor works with; what is None was not given."""

    status: Callable[[], dict[str, Any] | None]
    """the daemon's facts; None if there is no daemon"""
    open_ledger: Callable[[], ModelRecords]
    open_mailbox: Callable[[], Mailbox] | None = None
    carry: Callable[[bytes, str], str] | None = None
    """hands a message to the mail system, for a recipient; what that said"""
    rcpt: str = ""
    wait_s: float = 60.0
    """for each thing that others have to do"""


def checked_recipient(text: str) -> str:
    """An address that may stand in a command; UserError else."""
    local, at, domain = text.rpartition("@")
    good = text.isascii() and text.isprintable() and not set(text) & set(' <>",;:')
    if not (good and at and local and domain):
        raise UserError(f"{text!r} is no address", hint="user@example.org")
    return text
