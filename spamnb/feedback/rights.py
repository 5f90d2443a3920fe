"""Who may teach, which message a feedback means, and how far its channel is trusted.

Reads only. Failure: RefError for references that match no message, or several; RefusedError for a
channel that is not allowed; LimitError when a daily quota is used up.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spamnb.engine.filter import Filter
from spamnb.engine.lookup import Verdicts, entry_example, find_example
from spamnb.engine.values import Example, stored_example
from spamnb.errors import LimitError, RefError, RefusedError
from spamnb.feedback.values import Feedback
from spamnb.mail.envelope import domain_of
from spamnb.mail.message import bare_id
from spamnb.model.events import Ids
from spamnb.model.verdict import SIGNATURE, signature_bytes
from spamnb.records.verdicts import HistoryEntry
from spamnb.settings.values import TeachingRules

_SIGNATURE_LINE = re.compile(
    rb"(?im)^X-Spamnb-Signature[ \t]{0,80}:[ \t]{0,80}(s[a-z2-7]{26})[ \t]{0,80}\r?$"
)
_DIGEST = re.compile(r"[0-9a-f]{32}")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_MAX_SIGNATURES = 8
_MAX_REFS = 16
_MIN_SHARED = 0.65
"""Part of the larger one's features that a message must share with the one its signature names. Two
short messages of one form share half of them, because most of their features are shapes. Of 79,800
pairs of the sample corpus 3 share this part, and 269 share half. With trace fields of the delivery
a message shares 90 % or more with itself; with three lines of a mailing list below it, 98.8 % of
the sample share this part, and all of a public corpus share 85 %."""


@dataclass(frozen=True, slots=True)
class ResolvedMessage:
    """The message that a feedback means, and whether its sender may label it."""

    example: Example | None
    proven: bool
    reason: str = ""
    """why it is not proven"""
    silent: tuple[str, ...] = ()
    """hosts of the fleet that may have given the verdict, and do not answer"""


class OwnershipCheck:
    """Checks feedback against the history of one model, or against other `verdicts`.

    An admin may label any message. A user may label messages that were delivered to them, as the
    history's notes show. A stranger must show the signature (not guessable) of a message delivered
    to the address they claim, in a domain served here. A message id, a digest or the message itself
    prove nothing for a stranger, since the sender of the message knows them all.

    A submitted message is looked up by its digest first, then by the signature line in its header,
    since a mailing list may have added a footer. That line counts only if both messages share most
    of their features: otherwise it could be copied onto another message to choose what is learnt.

    A message with an entry is learnt with the features that were scored: a copy in a mailbox does
    not have the results of the sender's check that its scan had.
    """

    def __init__(
        self, model: Filter, rules: TeachingRules, verdicts: Verdicts | None = None
    ) -> None:
        self.model = model
        self.rules = rules
        self._verdicts = verdicts

    def resolve(self, feedback: Feedback) -> ResolvedMessage:
        """Find the message, and check ownership by the sender's trust."""
        resolvers = {
            "admin": self._for_admin,
            "user": self._for_user,
            "stranger": self._for_stranger,
        }
        return resolvers[feedback.trust](feedback)

    def _for_admin(self, feedback: Feedback) -> ResolvedMessage:
        """Find any message; the first known reference counts."""
        unknown: RefError | None = None
        for ref in feedback.refs[:_MAX_REFS]:
            try:
                return ResolvedMessage(self._lookup(ref), proven=True)
            except RefError as error:
                unknown = unknown or error
        if not feedback.raw:
            assert unknown is not None, "a feedback has a message or references"
            raise unknown
        given = self.model.example(feedback.raw)
        entry = next(iter(self._entries(digest=given.digest)), None)
        entry = entry or self._signed(feedback.raw, given)
        return ResolvedMessage(_as_scored(entry, given) if entry else given, proven=True)

    def _for_user(self, feedback: Feedback) -> ResolvedMessage:
        """Find a message that was delivered to the user."""
        for ref in feedback.refs[:_MAX_REFS]:
            if entry := self.owned(feedback.user, ref):
                return ResolvedMessage(entry_example(entry), proven=True)
        if not feedback.raw:
            user = feedback.user
            return ResolvedMessage(
                None, proven=False, reason=f"no message delivered to {user} has this reference"
            )
        given = self.model.example(feedback.raw)
        named = self._entries(digest=given.digest)
        entry = next((one for one in named if self._is_own(feedback.user, one)), None)
        if entry := entry or self._signed(feedback.raw, given, feedback.user):
            return ResolvedMessage(_as_scored(entry, given), proven=True)
        if entry := self._attached(feedback):
            return ResolvedMessage(entry_example(entry), proven=True)
        learn = self.rules.unproven == "learn" or (
            feedback.vouched and self.rules.unproven != "refuse"
        )
        return ResolvedMessage(
            given, learn, f"it is not known to have been delivered to {feedback.user}"
        )

    def _for_stranger(self, feedback: Feedback) -> ResolvedMessage:
        """Find a message by the shown signature, if it was delivered to the claimed address."""
        local = is_local_stranger(feedback, self.rules)
        if local and (named := self._named_by_signature(feedback)):
            return ResolvedMessage(entry_example(named), proven=True)
        given = self.model.example(feedback.raw) if feedback.raw else None
        if local and given is not None:
            entry = self._signed(feedback.raw, given, feedback.user) or self._attached(feedback)
            if entry:
                return ResolvedMessage(entry_example(entry), proven=True)
        reason = "nothing proves that the message was delivered to the sender of the report"
        return ResolvedMessage(given or self._known(feedback.refs), proven=False, reason=reason)

    def may_prove(self, feedback: Feedback) -> bool:
        """Whether a stranger shows a signature of a message delivered to them; reads no message."""
        if not is_local_stranger(feedback, self.rules):
            return False
        signed = self._by_signatures(feedback.raw)
        return bool(self._named_by_signature(feedback)) or any(
            self._is_own(feedback.user, e) for e in signed
        )

    def _named_by_signature(self, feedback: Feedback) -> HistoryEntry | None:
        """The message delivered to the stranger that a signature in the references names."""
        shown = [ref for ref in feedback.refs[:_MAX_REFS] if SIGNATURE.fullmatch(ref)]
        return next((entry for ref in shown if (entry := self.owned(feedback.user, ref))), None)

    def _known(self, refs: Sequence[str]) -> Example | None:
        for ref in refs[:_MAX_REFS]:
            try:
                return self._lookup(ref)
            except RefError:
                continue
        return None

    def _lookup(self, ref: str) -> Example:
        return find_example(self.model.store, self._verdicts or self.model.history, ref)

    def owned(self, user: str, ref: str) -> HistoryEntry | None:
        """The one message delivered to `user` that a reference names."""
        mine = [entry for entry in self._named(ref) if self._is_own(user, entry)]
        if len({entry.digest for entry in mine}) > 1:
            listed = ", ".join(dict.fromkeys(entry.digest.hex() for entry in mine))
            raise RefError(
                f"several messages have the Message-ID {ref!r}",
                hint=f"give the digest of one of them: {listed}",
            )
        return mine[0] if mine else None

    def entry_of(self, ref: str) -> HistoryEntry | None:
        """A message that a reference names, whatever its recipients."""
        return next(iter(self._named(ref)), None)

    def _named(self, ref: str) -> list[HistoryEntry]:
        ref = ref.strip()
        found: list[HistoryEntry] = []
        if SIGNATURE.fullmatch(ref):
            found = self._entries(signature=signature_bytes(ref))
        elif _DIGEST.fullmatch(ref):
            found = self._entries(digest=bytes.fromhex(ref))
        return found or self._entries(message_id=bare_id(ref))

    def _entries(
        self, *, signature: bytes = b"", message_id: str = "", digest: bytes = b""
    ) -> list[HistoryEntry]:
        verdicts = self._verdicts or self.model.history
        if verdicts is None:
            return []
        return verdicts.find(signature=signature, message_id=message_id, digest=digest)

    def _is_own(self, user: str, entry: HistoryEntry) -> bool:
        return delivered_to(entry, user, self.rules)

    def _signed(self, raw: bytes, given: Example, user: str = "") -> HistoryEntry | None:
        """The message that the signature in the header names, if both are similar."""
        for entry in self._by_signatures(_split_head(raw)[0]):
            if (not user or self._is_own(user, entry)) and _are_similar(entry.ids, given.ids):
                return entry
        return None

    def _attached(self, feedback: Feedback) -> HistoryEntry | None:
        """A message forwarded inside with its signature line; None if the outer message has a line.

        The relay adds a line to the header of every message that passes it. So copying another
        message's line into a body has no effect: the outer message is the one that is meant.
        """
        head, body = _split_head(feedback.raw)
        if _SIGNATURE_LINE.search(head):
            return None
        return next((e for e in self._by_signatures(body) if self._is_own(feedback.user, e)), None)

    def _by_signatures(self, data: bytes) -> Iterator[HistoryEntry]:
        for count, found in enumerate(_SIGNATURE_LINE.finditer(data)):
            if count == _MAX_SIGNATURES:
                return
            yield from self._entries(signature=signature_bytes(found[1].decode().lower()))


def _split_head(raw: bytes) -> tuple[bytes, bytes]:
    end = _END_OF_HEAD.search(raw)
    return (raw[: end.start()], raw[end.end() :]) if end else (raw, b"")


def _as_scored(entry: HistoryEntry, given: Example) -> Example:
    """A message with the features that were scored, unless that was by a model of another key."""
    return stored_example(entry, given.words) if _are_similar(entry.ids, given.ids) else given


def _are_similar(one: Sequence[Ids], other: Sequence[Ids]) -> bool:
    a, b = np.unique(np.concatenate(one)), np.unique(np.concatenate(other))
    return len(np.intersect1d(a, b)) >= _MIN_SHARED * max(len(a), len(b), 1)


def delivered_to(entry: HistoryEntry, user: str, rules: TeachingRules) -> bool:
    """Whether a message was delivered to this user."""
    return bool(own_addresses(entry.notes.get("to", "").split(), user, rules))


def own_notes(notes: Mapping[str, str], user: str, rules: TeachingRules) -> dict[str, str]:
    """Return the notes of a message as one recipient may see them.

    They do not name the other recipients: some of these may have got a blind copy.
    """
    recipients = notes.get("to", "").split()
    mine = own_addresses(recipients, user, rules)
    return {**notes, "to": " ".join(recipients[at] for at in sorted(mine))}


def own_addresses(recipients: Iterable[str], user: str, rules: TeachingRules) -> frozenset[int]:
    """The indexes of those recipients that are this user: an address, or a login as local part.

    A login matches addresses in `domains`; an address matches itself, if its domain is served here:
    outgoing mail has recipients at other sites.
    """
    user = rules.mailbox(user)
    domain = domain_of(user)
    if not user or (domain and rules.served and domain not in rules.served):
        return frozenset()
    domains = frozenset(map(domain_of, (f"@{name}" for name in rules.domains)))
    found = set()
    for at, text in enumerate(recipients):
        address = rules.mailbox(text)
        local, _, where = address.rpartition("@")
        is_login = not domain and local == user and (not domains or where in domains)
        if address == user or is_login:
            found.add(at)
    return frozenset(found)


def is_local_stranger(feedback: Feedback, rules: TeachingRules) -> bool:
    """Whether a sender without a login may be a local user, judged by the domain alone.

    If no domains are configured, the domain of the feedback address counts.
    """
    served = rules.served or frozenset({domain_of(f"@{feedback.domain}")})
    return domain_of(feedback.user) in served - {""}


DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class ChannelPolicy:
    """How far a channel is trusted."""

    weight: float = 1.0
    """scales the step of corrections"""
    immediate: bool = True
    """a user saw this very message: repeat the correction until the verdict agrees"""
    careful: bool = False
    """a label that contradicts a high-confidence verdict is queued for review"""
    admins_only: bool = False
    pause_s: float = 0.0
    """a label that is repeated within this time says nothing new"""


# For one click, mail programs set a keyword and move the message (docs/mail-programs.md).
_MAILBOX = ChannelPolicy(pause_s=60)
CHANNEL_POLICIES: dict[str, ChannelPolicy] = {
    "cli": ChannelPolicy(),
    "api": ChannelPolicy(),
    "address": ChannelPolicy(),
    "imap": _MAILBOX,
    "maildir": _MAILBOX,
    # A report of an unknown user, forwarded by an unverified provider.
    "arf": ChannelPolicy(weight=0.5, immediate=False, careful=True),
    # No user has seen a trap's mail, and a sender that knows a trap can send any message to it.
    "trap": ChannelPolicy(weight=0.5, immediate=False, careful=True, admins_only=True),
}
STRANGER = ChannelPolicy(weight=0.5, immediate=False, careful=True)
"""A stranger: the signature proves access to the message, but no identity."""


def policy_for(feedback: Feedback) -> ChannelPolicy:
    """The policy of a feedback's channel; RefusedError if the sender may not use it."""
    policy = CHANNEL_POLICIES.get(feedback.channel)
    if policy is None:
        known = ", ".join(CHANNEL_POLICIES)
        raise RefusedError(f"unknown channel {feedback.channel!r}", hint=f"use one of {known}")
    if policy.admins_only and feedback.trust != "admin":
        raise RefusedError(f"the channel {feedback.channel} is for admins only")
    return STRANGER if feedback.trust == "stranger" else policy


Key = tuple[str, str]
"""what is counted: a kind of sender, and its name"""

_QUOTA_KINDS: dict[str, tuple[str, str]] = {
    "user": ("user_per_day", "one user"),
    "user unproven": ("user_per_day", "one user, on messages not known to be theirs,"),
    "stranger": ("stranger_per_day", "one stranger"),
    "strangers": ("strangers_per_day", "all strangers together"),
    "unproven": ("stranger_per_day", "one unverified sender"),
    "all unproven": ("strangers_per_day", "all unverified senders together"),
}
"""kind -> the setting that limits it, and its name in messages"""


def keys_of(feedback: Feedback, rules: TeachingRules, *, proven: bool) -> list[Key]:
    """The keys that a feedback is counted under; the last one bounds the stored bytes.

    Unverified senders are counted apart, by network if it is known: their names are free to choose
    and must not use up the quota of verified users.
    """
    if feedback.trust == "admin":
        return []
    user = rules.mailbox(feedback.user)
    if feedback.trust == "user":
        return [("user" if proven else "user unproven", user)]
    if proven:
        return [("stranger", user), ("strangers", "")]
    return [("unproven", feedback.client or user), ("all unproven", "")]


class DailyQuota:
    """Today's changes and stored bytes, by sender."""

    def __init__(self, rules: TeachingRules) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._day = 0
        self._changes: Counter[Key] = Counter()
        self._stored: Counter[Key] = Counter()

    def take(self, keys: list[Key], time_us: int) -> None:
        """Count one change; LimitError if it is one too many, RefusedError if the limit is 0."""
        with self._lock:
            self._start_day(time_us)
            self._check(keys)
            self._changes.update(keys)

    def check(self, keys: list[Key], time_us: int) -> None:
        """LimitError if one more change would be too many."""
        with self._lock:
            self._start_day(time_us)
            self._check(keys)

    def give_back(self, keys: list[Key]) -> None:
        """Undo a count, because nothing was changed."""
        with self._lock:
            self._changes.subtract(key for key in keys if self._changes[key] > 0)

    def charge(self, keys: list[Key], size: int) -> None:
        """Count the bytes that a change has stored."""
        with self._lock:
            for key in keys[-1:]:
                self._stored[key] += size

    def note(self, keys: list[Key], time_us: int, size: int = 0) -> None:
        """Count a change made before the start."""
        with self._lock:
            self._start_day(time_us)
            self._changes.update(keys)
        self.charge(keys, size)

    def _check(self, keys: list[Key]) -> None:
        for key in keys:
            rule, name = _QUOTA_KINDS[key[0]]
            most = getattr(self._rules, rule)
            if not most:
                raise RefusedError(
                    f"no changes are accepted from {name}", hint=f"feedback.{rule} is 0"
                )
            if self._changes[key] >= most:
                raise LimitError(
                    f"at most {most} changes a day are accepted from {name}",
                    hint=f"an admin may teach the rest, or raise feedback.{rule}",
                )
        most = self._rules.user_bytes_per_day
        if any(self._stored[key] >= most for key in keys[-1:]):
            raise LimitError(
                f"at most {most} bytes a day are stored for feedback of "
                f"{_QUOTA_KINDS[keys[-1][0]][1]}",
                hint="an admin may teach the rest, or raise feedback.user_bytes_per_day",
            )

    def _start_day(self, time_us: int) -> None:
        if time_us // DAY_US != self._day:
            self._day = time_us // DAY_US
            self._changes.clear()
            self._stored.clear()
