"""A message in quarantine: its record, its sidecar, and what a release sends. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from spamnb.errors import StoreDamagedError, UserError
from spamnb.service.engine.clock import iso

VERSION: Final = 1
UsersRelease = Literal["all", "junk", "no"]
"""What users may release to themselves: all, what was not to be rejected, or nothing."""
_SETS: Final = ("done", "dropped", "sending")


@dataclass(frozen=True, slots=True)
class QuarantinedMessage:
    """A message in quarantine. Envelope lines are decoded as latin-1, which preserves all bytes."""

    id: str
    time_us: int
    size_bytes: int
    sender: str
    recipients: tuple[str, ...]
    mail_line: str
    rcpt_lines: tuple[str, ...]
    xforward_lines: tuple[str, ...] = ()
    upstream: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    done: frozenset[int] = frozenset()
    """indexes of recipients that the next hop accepted"""
    dropped: frozenset[int] = frozenset()
    """indexes of recipients for whom the message is deleted"""
    sending: frozenset[int] = frozenset()
    """indexes of recipients to whom a release was begun and has not ended: they may have it"""
    replies: dict[str, str] = field(default_factory=dict)
    """index of a recipient -> the next hop's reply that did not accept it"""

    @property
    def state(self) -> str:
        """`releasing` if some recipients may have it, else `kept`."""
        return "releasing" if self.sending else "kept"

    @property
    def open(self) -> tuple[int, ...]:
        """Indexes of recipients that wait for it."""
        gone = self.done | self.dropped
        return tuple(at for at in range(len(self.rcpt_lines)) if at not in gone)

    @property
    def names(self) -> tuple[str, ...]:
        """The recipients' addresses, by index; the whole line of one without an address."""
        names = self.recipients + self.rcpt_lines[len(self.recipients) :]
        return names[: len(self.rcpt_lines)]

    def numbers_of(self, addresses: Iterable[str], among: Collection[int]) -> frozenset[int]:
        """Those of some indexes whose recipients have these addresses.

        Failure: UserError for an address that none of them has.
        """
        wanted = frozenset(addresses)
        found = frozenset(at for at in among if self.names[at] in wanted)
        unknown = sorted(wanted - {self.names[at] for at in found})
        if unknown:
            raise UserError(f"{unknown[0]!r} is not a recipient of this message")
        return found

    def ended(self, to: Iterable[int], replies: Mapping[int, ReleaseReply]) -> QuarantinedMessage:
        """The record after a release to some recipients ended with these replies of the next hop.

        Without the final reply a recipient may have the message.
        """
        took = {at for at, reply in replies.items() if 200 <= reply.code < 300}
        maybe = {at for at, reply in replies.items() if reply.code == 0}
        new = {str(at): str(reply) for at, reply in replies.items() if at not in took}
        old = {at: text for at, text in self.replies.items() if int(at) not in took}
        return replace(
            self,
            done=self.done | took,
            sending=self.sending.difference(to) | maybe,
            replies=old | new,
        )

    def may_release(self, allowed: UsersRelease) -> bool:
        """Whether users may release it to themselves."""
        return allowed == "all" or (allowed == "junk" and self.facts.get("decision") != "reject")

    def results(self) -> list[tuple[str, str]]:
        """Each recipient, and what became of the message for them."""
        fixed = dict.fromkeys(self.dropped, "deleted") | dict.fromkeys(self.done, "delivered")
        return [
            (name, fixed.get(at) or self.replies.get(str(at), "kept"))
            for at, name in enumerate(self.names)
        ]

    def as_dict(self, own: Collection[int] | None = None) -> dict[str, Any]:
        """The message's entry as values that JSON can represent; of some recipients, or of all."""
        shown = range(len(self.names)) if own is None else own
        sending = not self.sending.isdisjoint(shown)
        return {
            "id": self.id,
            "time": iso(self.time_us),
            "bytes": self.size_bytes,
            "sender": self.sender,
            "recipients": [name for at, name in enumerate(self.recipients) if at in shown],
            "waiting": [name for at, name in enumerate(self.recipients)
                        if at in shown and at in self.open],
            "upstream": self.upstream,
            "state": "releasing" if sending else "kept",
            "replies": {at: text for at, text in self.replies.items() if int(at) in shown},
            "facts": self.facts,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReleasedMessage:
    """A message to send, with its original envelope lines."""

    raw: bytes
    mail_line: bytes
    rcpt_lines: tuple[bytes, ...]
    xforward_lines: tuple[bytes, ...] = ()
    upstream: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseReply:
    """The next hop's reply for one recipient; code 0: no reply after the final dot."""

    code: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip() if self.code else "no reply"


Send = Callable[[ReleasedMessage], Sequence[ReleaseReply]]
"""A reply for each recipient, in order. PeerError: certainly not delivered."""


def encoded(entry: QuarantinedMessage) -> bytes:
    """The sidecar as JSON, which escapes non-ASCII, so any byte of an envelope is preserved."""
    found = {"version": VERSION, **asdict(entry), "state": entry.state}
    sets = {name: sorted(found.pop(name)) for name in _SETS}
    # Empty sets are left out: earlier versions can read only a record without the newer ones.
    found |= {name: numbers for name, numbers in sets.items() if numbers or name == "done"}
    return json.dumps(found, default=str, indent=1).encode() + b"\n"


def decoded(text: bytes, identity: str) -> QuarantinedMessage:
    """The record in a sidecar."""
    try:
        found: dict[str, Any] = json.loads(text)
        if found.pop("version") != VERSION:
            raise StoreDamagedError(f"the message {identity} was kept by another version")
        releasing = found.pop("state", "") == "releasing"
        for name in ("recipients", "rcpt_lines", "xforward_lines"):
            found[name] = tuple(found[name])
        found |= {name: frozenset(found.get(name, ())) for name in _SETS}
        entry = QuarantinedMessage(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreDamagedError(f"the sidecar of {identity} cannot be read") from error
    if releasing and not entry.sending:  # earlier versions did not say to whom the release is
        return replace(entry, sending=frozenset(entry.open))
    return entry
