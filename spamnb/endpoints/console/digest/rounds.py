"""Rounds of digests: once a day each recipient of new messages in quarantine gets one.

    home/console/digest.json    the last round: its day, the messages that it covers, who has one

Digests go to addresses of this site alone: those of logins, and those in the domains that have
mailboxes here. A digest that was sent is recorded before the next one is, so a restart repeats at
most one. If the server cannot be reached, the round goes on later in the day, and what a day misses
is in the next day's. Nothing is sent when nothing has come. Failure: StoreError, PeerError if the
server cannot be reached or refuses all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.utils import make_msgid
from pathlib import Path
from typing import Final, NamedTuple

from spamnb.core.mail.domains import address_of, domain_of
from spamnb.endpoints.console.digest.mail import DigestEntry, DigestHead, digest_mail
from spamnb.endpoints.console.digest.plan import ADDRESS, DigestPlan
from spamnb.endpoints.console.digest.signed_links import SignedLink
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.smtp_client import deliver
from spamnb.errors import RefError, StoreDamagedError
from spamnb.service.scanning.quarantined import QuarantinedMessage, ReleasedMessage
from spamnb.service.telemetry.log import Log
from spamnb.store.files import durable_write, make_folder, refused

MOST_DIGESTS: Final = 2_000
"""of one round; a sender that guesses addresses of this site makes one for each"""
_DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class DigestRound:
    """The last round."""

    day: str = ""
    since: str = ""
    """the ID of the newest message of the round before"""
    until: str = ""
    """the ID of the newest message that it covers"""
    done: tuple[str, ...] = ()
    finished: bool = False


class DigestSending(NamedTuple):
    """What digests are made of."""

    site: ConsoleSite
    plan: DigestPlan
    url: str
    """of the console"""
    logins: Collection[str]
    """the addresses of all logins"""


class Digests:
    """Sends the digests of one home."""

    def __init__(self, home: Path, log: Log) -> None:
        self._path = home / "console" / "digest.json"
        self._log = log
        self._stopped = False

    def stop(self) -> None:
        """Send no more; the round goes on after a restart."""
        self._stopped = True

    def send_due(self, sending: DigestSending, now_s: float) -> int:
        """Send the digests of today that are due; return how many were sent."""
        at = time.localtime(now_s)
        day = time.strftime("%Y-%m-%d", at)
        known = self._read()
        if not 0 <= sending.plan.minute <= at.tm_hour * 60 + at.tm_min:
            return 0
        if known.day == day and known.finished:
            return 0
        current = known if known.day == day else self._begun(sending.site, known, day)
        oldest_us = 0 if current.since else int(now_s * 1_000_000) - _DAY_US
        waiting = _waiting(sending, current, oldest_us)
        sent = 0
        if len(waiting) > MOST_DIGESTS:
            self._log(
                {"event": "digest", "level": "warning", "left_out": len(waiting) - MOST_DIGESTS}
            )
        for user in sorted(waiting)[:MOST_DIGESTS]:
            if self._stopped:
                return sent
            if user not in current.done and not sending.site.opt_outs.holds(user):
                sent += self._send(sending, user, waiting[user], now_s)
                current = replace(current, done=(*current.done, user))
                self._write(current)
        self._write(replace(current, done=(), finished=True))
        return sent

    def _begun(self, site: ConsoleSite, last: DigestRound, day: str) -> DigestRound:
        """A new round; an unfinished one of another day is part of it."""
        since = last.until if last.finished else last.since
        begun = DigestRound(day, since, max([since, *site.quarantine.ids()[-1:]]))
        self._write(begun)
        return begun

    def _send(
        self, sending: DigestSending, user: str, messages: list[QuarantinedMessage], now_s: float
    ) -> bool:
        """Send one digest; whether the server took it for this recipient.

        Failure: PeerError if it cannot be sent at all.
        """
        plan = sending.plan
        entries = [_entry(sending, user, one, now_s) for one in messages]
        head = DigestHead(
            plan.sender, user, datetime.fromtimestamp(now_s, UTC),
            make_msgid(domain=plan.sender.rpartition("@")[2]),
            _off_url(sending, user, now_s),
        )  # fmt: skip
        raw = digest_mail(head, entries, text(f"digest.foot.{plan.links}"))
        parcel = ReleasedMessage(
            raw, f"MAIL FROM:<{plan.sender}>".encode(), (f"RCPT TO:<{user}>".encode(),)
        )
        (reply,) = deliver(Address.parse(plan.smtp), parcel)
        self._log({"event": "digest", "to": user, "messages": len(entries), "reply": str(reply)})
        return reply.code // 100 == 2

    # -- the record -----------------------------------------------------------------------------

    def _read(self) -> DigestRound:
        try:
            found = json.loads(self._path.read_bytes())
            return DigestRound(**found | {"done": tuple(found["done"])})
        except FileNotFoundError:
            return DigestRound()
        except OSError as error:
            raise refused(error, self._path) from error
        except (ValueError, TypeError, KeyError) as error:
            raise StoreDamagedError(f"{self._path} is no record of digests",
                                    hint="delete it") from error  # fmt: skip

    def _write(self, state: DigestRound) -> None:
        make_folder(self._path.parent)
        try:
            durable_write(self._path, json.dumps(asdict(state)).encode())
        except OSError as error:
            raise refused(error, self._path) from error


def _waiting(
    sending: DigestSending, current: DigestRound, oldest_us: int
) -> Mapping[str, list[QuarantinedMessage]]:
    """The messages that a round covers, by recipient of this site."""
    rules = sending.site.config.teaching
    logins = frozenset(map(address_of, sending.logins))
    found: dict[str, list[QuarantinedMessage]] = {}
    for entry in _covered(sending.site, current, oldest_us):
        users = {address_of(entry.names[at], rules.delimiter) for at in entry.open}
        for user in users:
            is_here = user in logins or domain_of(user) in rules.served
            if is_here and ADDRESS.fullmatch(user) is not None:
                found.setdefault(user, []).append(entry)
    return found


def _covered(
    site: ConsoleSite, current: DigestRound, oldest_us: int
) -> Iterator[QuarantinedMessage]:
    for name in site.quarantine.ids():
        if current.since < name <= current.until:
            try:
                entry = site.quarantine.get(name)
            except (RefError, StoreDamagedError):
                continue
            if entry.time_us >= oldest_us:
                yield entry


def _off_url(sending: DigestSending, user: str, now_s: float) -> str:
    link = sending.site.links.make(SignedLink("", user), now_s)
    return f"{sending.url.rstrip('/')}/digest/{link}"


def _entry(
    sending: DigestSending, user: str, message: QuarantinedMessage, now_s: float
) -> DigestEntry:
    site = sending.site
    probability = message.facts.get("probability")
    link = f"/quarantine/{message.id}"
    if sending.plan.links == "act":
        link = "/d/" + site.links.make(SignedLink(message.id, user), now_s)
    return DigestEntry(
        message.sender,
        site.quarantine.subject(message.id),
        datetime.fromtimestamp(message.time_us / 1_000_000, UTC),
        probability if isinstance(probability, float) else None,
        sending.url.rstrip("/") + link,
    )
