"""Who may teach what: the table of channels, the rules, whose message it is, and how often.

A person's word is worth what the way vouches for that it came by. Users speak of messages that were
delivered to them; what a stranger says must carry the signature that such a message has. Values
and small checks alone: must not know the model, files or sockets.
Failure: RefusedError for a channel that is not theirs, a message too large, a day too busy.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from spamnb.errors import RefusedError
from spamnb.service.feedback import Feedback, Trust
from spamnb.service.limits import TeachingRules
from spamnb.store.history_entry import HistoryEntry

DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Way:
    """What a channel's word is worth."""

    weight: float = 1.0
    """scales the step of the corrections"""
    insist: bool = True
    """a person saw this very message and said so: it is judged as they said from then on"""
    careful: bool = False
    """a label that contradicts a very sure verdict waits for review"""
    admins_only: bool = False


WAYS: dict[str, Way] = {
    "cli": Way(),
    "api": Way(),
    "address": Way(),
    "imap": Way(),
    "maildir": Way(),
    # A report comes from a person we do not know, by a provider that nobody here checked.
    "arf": Way(weight=0.5, insist=False, careful=True),
    # Nobody looked at what a trap took, and whoever knows one can send it what they like.
    "trap": Way(weight=0.5, insist=False, careful=True, admins_only=True),
}
STRANGER = Way(weight=0.5, insist=False, careful=True)
"""A stranger with a signature that proves that they have the message, but not who they are."""


def way_of(feedback: Feedback) -> Way:
    """The way that a feedback came by."""
    way = WAYS.get(feedback.channel)
    if way is None:
        known = ", ".join(WAYS)
        raise RefusedError(f"there is no channel {feedback.channel!r}", hint=f"one of {known}")
    if way.admins_only and feedback.trust != "admin":
        raise RefusedError(f"the channel {feedback.channel} is for admins")
    return STRANGER if feedback.trust == "stranger" else way


def delivered_to(entry: HistoryEntry, who: str, domains: tuple[str, ...] = ()) -> bool:
    """Whether a message went to this person: an address, or a login that addresses begin with.

    What follows a plus sign in an address is the person's own business (RFC 5233).
    """
    who = _plain(who)
    own_domains = {domain.lower() for domain in domains}
    for address in entry.notes.get("to", "").split():
        plain = _plain(address)
        local, at, domain = plain.rpartition("@")
        if plain == who or (
            at and local == who and "@" not in who and (not domains or domain in own_domains)
        ):
            return bool(who)
    return False


def _plain(address: str) -> str:
    """Fold case, and leave out a part after a plus sign."""
    local, at, domain = address.strip().strip("<>").casefold().rpartition("@")
    if not at:
        return domain
    return f"{local.partition('+')[0] or local}@{domain.rstrip('.')}"


class Caps:
    """How many changes each person has made today."""

    def __init__(self, rules: TeachingRules) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._day = 0
        self._made: Counter[tuple[str, str]] = Counter()

    def take(self, trust: Trust, who: str, time_us: int) -> None:
        """Count one more; RefusedError if it is one too many."""
        if trust == "admin":
            return
        with self._lock:
            self._turn(time_us)
            for key, most in self._keys(trust, who):
                if self._made[key] >= most:
                    raise RefusedError(
                        f"{most} changes a day are taken from {_NAMES[key[0]]}",
                        hint="an admin may teach the rest, or raise the limit",
                    )
            for key, _ in self._keys(trust, who):
                self._made[key] += 1

    def give_back(self, trust: Trust, who: str) -> None:
        """It changed nothing after all."""
        with self._lock:
            for key, _ in self._keys(trust, who):
                if self._made[key] > 0:
                    self._made[key] -= 1

    def note(self, trust: Trust, who: str, time_us: int) -> None:
        """Count what was made before we started."""
        with self._lock:
            self._turn(time_us)
            for key, _ in self._keys(trust, who):
                self._made[key] += 1

    def _turn(self, time_us: int) -> None:
        if time_us // DAY_US != self._day:
            self._day = time_us // DAY_US
            self._made.clear()

    def _keys(self, trust: Trust, who: str) -> list[tuple[tuple[str, str], int]]:
        if trust == "admin":
            return []
        if trust == "user":
            return [(("user", who.casefold()), self._rules.user_per_day)]
        return [
            (("stranger", who.casefold()), self._rules.stranger_per_day),
            (("strangers", ""), self._rules.strangers_per_day),
        ]


_NAMES = {"user": "one person", "stranger": "one stranger", "strangers": "all strangers together"}
