"""What the doctor needs from its caller: mailbox, mail transport, daemon status, model records.

Values and protocols only. Failure: UserError for an invalid address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from spamnb.core.persons.names import PersonNames
from spamnb.errors import UserError
from spamnb.service.diagnostics.records import ModelRecords

Side = Literal["inbox", "junk"]

SIDES: Final[tuple[Side, ...]] = ("inbox", "junk")
LABEL: Final[Mapping[Side, str]] = {"inbox": "ham", "junk": "spam"}
"""the label of messages in this folder"""
OTHER: Final[Mapping[Side, Side]] = {"inbox": "junk", "junk": "inbox"}


class FoundMessage(NamedTuple):
    """The test message, and the folder it was found in."""

    side: Side
    raw: bytes


class Mailbox(Protocol):
    """A user's mailbox."""

    @property
    def user(self) -> str:
        """Return the user's login or address."""

    @property
    def about(self) -> str:
        """Return a short description of the mailbox."""

    @property
    def channels(self) -> frozenset[str]:
        """Return the feedback channels that report moves in this mailbox."""

    @property
    def advice(self) -> str:
        """Return what to check if moves are not reported."""

    def find(self, ident: str) -> FoundMessage | None:
        """Return the message with this Message-ID in the inbox or in Junk; None if missing."""

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move the message; return the method used."""

    def purge(self, ident: str) -> int:
        """Delete the message from every folder; return from how many."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class DoctorPorts:
    """The doctor's dependencies; None if the user did not give the option."""

    status: Callable[[], dict[str, Any] | None]
    """returns the daemon's status; None if no daemon runs"""
    open_records: Callable[[], ModelRecords]
    open_mailbox: Callable[[], Mailbox] | None = None
    submit: Callable[[bytes, str], str] | None = None
    """submits a message for a recipient to the mail server; returns its reply"""
    rcpt: str = ""
    wait_s: float = 60.0
    """time limit for each step of another program"""
    next_hops: Callable[[], Sequence[tuple[str, str]]] = tuple
    """returns the faults of the servers that the daemon passes mail to, and what to do"""
    names: PersonNames | None = None
    """the rules for names of persons; None if persons are not enabled"""
    logins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """the logins that the settings name, with their addresses if they are known"""


def checked_recipient(text: str) -> str:
    """Return the address if it is valid in an SMTP command; raise UserError otherwise."""
    local, at, domain = text.rpartition("@")
    good = text.isascii() and text.isprintable() and not set(text) & set(' <>",;:')
    if not (good and at and local and domain):
        raise UserError(f"{text!r} is not a mail address", hint="give one like user@example.org")
    return text
