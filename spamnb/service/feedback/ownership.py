"""Claims: which message somebody speaks of, and whether they may.

An admin may speak of every message. A user may speak of messages that were delivered to them, which
the notes of the history say. A stranger must show the signature of a message delivered to the
person they say they are, whose domain is served here: 128 bits that nobody guesses. A message id, a
digest or the message itself prove nothing for a stranger, for whoever sent it knows them all.

A message handed in is looked for by its digest first, then by the signature line in its header: a
list may have added a footer since. That line is believed only if the two share most of what they
hold, or whoever copies the line onto another message would choose what is learnt.

Reads only. Failure: RefError for references that name nothing, or too much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spamnb.core.mail.message import bare_id
from spamnb.core.model.events import Ids
from spamnb.errors import RefError
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.lookup import find_example, signature_bytes
from spamnb.service.engine.requests import Example
from spamnb.service.feedback.trust import delivered_to, is_local_stranger
from spamnb.service.feedback.types import Feedback, Trust
from spamnb.service.limits import TeachingRules
from spamnb.store.history.entry import HistoryEntry

_SIGNATURE_LINE = re.compile(
    rb"(?im)^X-Spamnb-Signature[ \t]{0,80}:[ \t]{0,80}(s[a-z2-7]{26})[ \t]{0,80}\r?$"
)
_SIGNATURE = re.compile(r"s[a-z2-7]{26}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_MOST_SIGNATURES = 8
_MOST_REFS = 16
_ALIKE = 0.5
"""What a message must share with the one that its signature names, of the larger one's features."""


@dataclass(frozen=True, slots=True)
class ResolvedMessage:
    """Which message is meant, and whether the speaker may speak of it."""

    example: Example | None
    proven: bool
    reason: str = ""
    """why not"""


class OwnershipCheck:
    """Looks at the history of one model."""

    def __init__(self, model: Filter, rules: TeachingRules) -> None:
        self.model = model
        self.rules = rules

    def look(self, feedback: Feedback) -> ResolvedMessage:
        """Find the message, and judge the claim by the speaker's trust."""
        return _LOOKS[feedback.trust](self, feedback)

    def of_admin(self, feedback: Feedback) -> ResolvedMessage:
        """Every message; the first reference that is known counts."""
        unknown: RefError | None = None
        for ref in feedback.refs[:_MOST_REFS]:
            try:
                with self.model.store.read() as view:
                    return ResolvedMessage(find_example(view, self.model.history, ref), proven=True)
            except RefError as error:
                unknown = unknown or error
        if not feedback.raw:
            assert unknown is not None, "a feedback has a message or references"
            raise unknown
        given = self.model.example(feedback.raw)
        signed = None if self._entries(digest=given.digest) else self._signed(feedback.raw, given)
        return ResolvedMessage(_example(signed) if signed else given, proven=True)

    def of_user(self, feedback: Feedback) -> ResolvedMessage:
        """Messages that were delivered to them."""
        for ref in feedback.refs[:_MOST_REFS]:
            if entry := self._own(feedback.who, ref):
                return ResolvedMessage(_example(entry), proven=True)
        if not feedback.raw:
            who = feedback.who
            return ResolvedMessage(
                None, proven=False, reason=f"no message of {who} is known by this name"
            )
        given = self.model.example(feedback.raw)
        if any(self._is_own(feedback.who, e) for e in self._entries(digest=given.digest)):
            return ResolvedMessage(given, proven=True)
        entry = self._signed(feedback.raw, given, feedback.who) or self._attached(feedback)
        if entry:
            return ResolvedMessage(_example(entry), proven=True)
        learn = self.rules.unproven == "learn" or (
            feedback.vouched and self.rules.unproven != "refuse"
        )
        return ResolvedMessage(
            given, learn, f"it is not known to have been delivered to {feedback.who}"
        )

    def of_stranger(self, feedback: Feedback) -> ResolvedMessage:
        """Messages whose signature they show, if delivered to who they say they are."""
        local = is_local_stranger(feedback, self.rules)
        if local and (named := self._shown(feedback)):
            return ResolvedMessage(_example(named), proven=True)
        given = self.model.example(feedback.raw) if feedback.raw else None
        if local and given is not None:
            entry = self._signed(feedback.raw, given, feedback.who) or self._attached(feedback)
            if entry:
                return ResolvedMessage(_example(entry), proven=True)
        reason = "nothing proves that the message was delivered to who says so"
        return ResolvedMessage(given or self._known(feedback.refs), proven=False, reason=reason)

    def may_prove(self, feedback: Feedback) -> bool:
        """Whether a stranger shows a signature of a message of theirs; reads no message."""
        if not is_local_stranger(feedback, self.rules):
            return False
        signed = self._by_signatures(feedback.raw)
        return bool(self._shown(feedback)) or any(self._is_own(feedback.who, e) for e in signed)

    def _shown(self, feedback: Feedback) -> HistoryEntry | None:
        """The message of theirs that a stranger names by its signature."""
        shown = [ref for ref in feedback.refs[:_MOST_REFS] if _SIGNATURE.fullmatch(ref)]
        return next((entry for ref in shown if (entry := self._own(feedback.who, ref))), None)

    def _known(self, refs: Sequence[str]) -> Example | None:
        for ref in refs[:_MOST_REFS]:
            try:
                with self.model.store.read() as view:
                    return find_example(view, self.model.history, ref)
            except RefError:
                continue
        return None

    def _own(self, who: str, ref: str) -> HistoryEntry | None:
        """The one message of a person's that a reference names."""
        mine = [entry for entry in self._named(ref) if self._is_own(who, entry)]
        if len({entry.digest for entry in mine}) > 1:
            listed = ", ".join(dict.fromkeys(entry.digest.hex() for entry in mine))
            raise RefError(f"several messages have the id {ref!r}", hint=f"name one: {listed}")
        return mine[0] if mine else None

    def _named(self, ref: str) -> list[HistoryEntry]:
        ref = ref.strip()
        found: list[HistoryEntry] = []
        if _SIGNATURE.fullmatch(ref):
            found = self._entries(signature=signature_bytes(ref))
        elif _DIGEST.fullmatch(ref):
            found = self._entries(digest=bytes.fromhex(ref))
        return found or self._entries(message_id=bare_id(ref))

    def _entries(
        self, *, signature: bytes = b"", message_id: str = "", digest: bytes = b""
    ) -> list[HistoryEntry]:
        history = self.model.history
        if history is None:
            return []
        return history.find(signature=signature, message_id=message_id, digest=digest)

    def _is_own(self, who: str, entry: HistoryEntry) -> bool:
        return delivered_to(entry, who, self.rules)

    def _signed(self, raw: bytes, given: Example, who: str = "") -> HistoryEntry | None:
        """The message that the signature in the header names, if it is the same in the main."""
        for entry in self._by_signatures(_parted(raw)[0]):
            if (not who or self._is_own(who, entry)) and _alike(entry.ids, given.ids):
                return entry
        return None

    def _attached(self, feedback: Feedback) -> HistoryEntry | None:
        """A message inside, of which the signature line came along; not if ours has one itself.

        Through our front door every message gets a line of its own, so whoever writes another's
        into a body gains nothing: the message in hand is the one that is meant.
        """
        head, body = _parted(feedback.raw)
        if _SIGNATURE_LINE.search(head):
            return None
        return next((e for e in self._by_signatures(body) if self._is_own(feedback.who, e)), None)

    def _by_signatures(self, data: bytes) -> Iterator[HistoryEntry]:
        for count, found in enumerate(_SIGNATURE_LINE.finditer(data)):
            if count == _MOST_SIGNATURES:
                return
            yield from self._entries(signature=signature_bytes(found[1].decode().lower()))


_LOOKS: dict[Trust, Callable[[OwnershipCheck, Feedback], ResolvedMessage]] = {
    "admin": OwnershipCheck.of_admin,
    "user": OwnershipCheck.of_user,
    "stranger": OwnershipCheck.of_stranger,
}


def _parted(raw: bytes) -> tuple[bytes, bytes]:
    """The header section, and the rest."""
    end = _END_OF_HEAD.search(raw)
    return (raw[: end.start()], raw[end.end() :]) if end else (raw, b"")


def _example(entry: HistoryEntry) -> Example:
    return Example(entry.digest, entry.message_id, entry.ids, entry.times)


def _alike(one: Sequence[Ids], other: Sequence[Ids]) -> bool:
    """Whether two messages share most of what they hold."""
    a, b = np.unique(np.concatenate(one)), np.unique(np.concatenate(other))
    return len(np.intersect1d(a, b)) >= _ALIKE * max(len(a), len(b), 1)
