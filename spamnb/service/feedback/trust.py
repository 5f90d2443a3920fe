"""Who may teach what: the table of channels, the rules, whose message it is, and how often.

A person's word is worth what the way vouches for that it came by. Users speak of messages that were
delivered to them; what a stranger says must carry the signature that such a message has. Values
and small checks alone: must not know the model, files or sockets.
Failure: RefusedError for a channel that is not theirs, LimitError for a day too busy.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from spamnb.core.mail.domains import address_of, domain_of
from spamnb.errors import LimitError, RefusedError
from spamnb.service.feedback.types import Feedback
from spamnb.service.limits import TeachingRules
from spamnb.store.history.entry import HistoryEntry

DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class ChannelPolicy:
    """What a channel's word is worth."""

    weight: float = 1.0
    """scales the step of the corrections"""
    immediate: bool = True
    """a person saw this very message and said so: it is judged as they said from then on"""
    careful: bool = False
    """a label that contradicts a very sure verdict waits for review"""
    admins_only: bool = False


WAYS: dict[str, ChannelPolicy] = {
    "cli": ChannelPolicy(),
    "api": ChannelPolicy(),
    "address": ChannelPolicy(),
    "imap": ChannelPolicy(),
    "maildir": ChannelPolicy(),
    # A report comes from a person we do not know, by a provider that nobody here checked.
    "arf": ChannelPolicy(weight=0.5, immediate=False, careful=True),
    # Nobody looked at what a trap took, and whoever knows one can send it what they like.
    "trap": ChannelPolicy(weight=0.5, immediate=False, careful=True, admins_only=True),
}
STRANGER = ChannelPolicy(weight=0.5, immediate=False, careful=True)
"""A stranger with a signature that proves that they have the message, but not who they are."""


def way_of(feedback: Feedback) -> ChannelPolicy:
    """The way that a feedback came by."""
    way = WAYS.get(feedback.channel)
    if way is None:
        known = ", ".join(WAYS)
        raise RefusedError(f"there is no channel {feedback.channel!r}", hint=f"one of {known}")
    if way.admins_only and feedback.trust != "admin":
        raise RefusedError(f"the channel {feedback.channel} is for admins")
    return STRANGER if feedback.trust == "stranger" else way


def delivered_to(entry: HistoryEntry, who: str, rules: TeachingRules) -> bool:
    """Whether a message went to this person: an address, or a login that addresses begin with.

    A login stands for addresses of `domains`, an address for itself, if its domain is served here:
    mail on its way out names recipients of other sites.
    """
    who = address_of(who, rules.delimiter)
    if not who:
        return False
    domain = domain_of(who)
    if domain:
        found = who in _recipients(entry, rules.delimiter)
        return found and (not rules.served or domain in rules.served)
    wanted = frozenset(map(domain_of, (f"@{name}" for name in rules.domains)))
    for address in _recipients(entry, rules.delimiter):
        local, _, domain = address.rpartition("@")
        if address == who or (local == who and (not wanted or domain in wanted)):
            return True
    return False


def _recipients(entry: HistoryEntry, delimiter: str) -> list[str]:
    return [address_of(text, delimiter) for text in entry.notes.get("to", "").split()]


def is_local_stranger(feedback: Feedback, rules: TeachingRules) -> bool:
    """Whether a sender without a login may be one of the site's people: by the domain alone.

    Where no domain is known, it is that of the address which takes the reports.
    """
    served = rules.served or frozenset({domain_of(f"@{feedback.domain}")})
    return domain_of(feedback.who) in served - {""}


Key = tuple[str, str]
"""what is counted: a sort of speaker, and who it is"""

_SORTS: dict[str, tuple[str, str]] = {
    "user": ("user_per_day", "one person"),
    "user unproven": ("user_per_day", "one person, on messages not known to be theirs,"),
    "stranger": ("stranger_per_day", "one stranger"),
    "strangers": ("strangers_per_day", "all strangers together"),
    "unproven": ("stranger_per_day", "one sender without a proof"),
    "all unproven": ("strangers_per_day", "all senders without a proof together"),
}
"""sort -> the rule that bounds it, and how it is named"""


def keys_of(feedback: Feedback, rules: TeachingRules, *, proven: bool) -> list[Key]:
    """What a word is counted under; what bounds the bytes that it stores comes last.

    What is not proven is counted apart, by the network that it came from if that is known: names
    cost nothing, and must not use up what those who prove theirs may say.
    """
    if feedback.trust == "admin":
        return []
    who = address_of(feedback.who, rules.delimiter)
    if feedback.trust == "user":
        return [("user" if proven else "user unproven", who)]
    if proven:
        return [("stranger", who), ("strangers", "")]
    return [("unproven", feedback.client or who), ("all unproven", "")]


class DailyQuota:
    """How many changes each person has made today, and how many bytes they store."""

    def __init__(self, rules: TeachingRules) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._day = 0
        self._made: Counter[Key] = Counter()
        self._stored: Counter[Key] = Counter()

    def take(self, keys: list[Key], time_us: int) -> None:
        """Count one more; LimitError if it is one too many, RefusedError if none is taken."""
        with self._lock:
            self._turn(time_us)
            self._check(keys)
            self._made.update(keys)

    def check(self, keys: list[Key], time_us: int) -> None:
        """LimitError if one more would be too many."""
        with self._lock:
            self._turn(time_us)
            self._check(keys)

    def give_back(self, keys: list[Key]) -> None:
        """It changed nothing after all."""
        with self._lock:
            self._made.subtract(key for key in keys if self._made[key] > 0)

    def charge(self, keys: list[Key], size: int) -> None:
        """Count what a change has stored."""
        with self._lock:
            for key in keys[-1:]:
                self._stored[key] += size

    def note(self, keys: list[Key], time_us: int, size: int = 0) -> None:
        """Count what was made before the start."""
        with self._lock:
            self._turn(time_us)
            self._made.update(keys)
        self.charge(keys, size)

    def _check(self, keys: list[Key]) -> None:
        for key in keys:
            rule, name = _SORTS[key[0]]
            most = getattr(self._rules, rule)
            if not most:
                raise RefusedError(f"no changes are taken from {name}")
            if self._made[key] >= most:
                raise LimitError(
                    f"{most} changes a day are taken from {name}",
                    hint="an admin may teach the rest, or raise the limit",
                )
        most = self._rules.user_bytes_per_day
        if any(self._stored[key] >= most for key in keys[-1:]):
            raise LimitError(
                f"{most} bytes a day are stored of what {_SORTS[keys[-1][0]][1]} teaches",
                hint="an admin may teach the rest, or raise feedback.user_bytes_per_day",
            )

    def _turn(self, time_us: int) -> None:
        if time_us // DAY_US != self._day:
            self._day = time_us // DAY_US
            self._made.clear()
            self._stored.clear()
