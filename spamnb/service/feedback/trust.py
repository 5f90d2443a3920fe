"""Permissions for feedback: the channels and the daily quotas.

The channel determines how far feedback is trusted. Values and small checks only: must not know the
model, files or sockets. Failure: RefusedError for a channel that is not allowed,
LimitError when a daily quota is used up.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from spamnb.errors import LimitError, RefusedError
from spamnb.service.feedback.types import Feedback
from spamnb.service.limits import TeachingRules

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


CHANNEL_POLICIES: dict[str, ChannelPolicy] = {
    "cli": ChannelPolicy(),
    "api": ChannelPolicy(),
    "address": ChannelPolicy(),
    "imap": ChannelPolicy(),
    "maildir": ChannelPolicy(),
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
