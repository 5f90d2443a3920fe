"""Digests by mail: once a day each recipient of new messages in quarantine gets one.

    home/console/digest.json    the last round: its day, the messages that it covers, who has one

The mail has text and HTML without remote content. Only addresses of this site get digests: those of
logins, and those in the domains that have mailboxes here. The process records a digest before it
sends it, and the reply afterwards, so a killed process sends no digest twice. If the reply is not
known, the next day's digest has the messages again. If the server defers a recipient, that digest
is tried again a few times. If the server cannot be reached, the round continues later in the day.
Messages that were in no digest are in the next one, for a week.

    home/console/told.json      the warnings that the administrator has got by mail

`AdminMail` sends the administrator each new warning, in one mail with all others.

Failure: StoreError, PeerError if the server cannot be reached or refuses everything.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid
from html import escape
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from spamnb.console.site import ConsoleSite, SignedLink
from spamnb.console.texts import of, text
from spamnb.errors import PeerError, RefError, StoreDamagedError
from spamnb.mail.envelope import domain_of
from spamnb.mail.limits import visible
from spamnb.net.address import Address
from spamnb.net.clients import deliver
from spamnb.operations.status import notices
from spamnb.scan.values import QuarantinedMessage, ReleasedMessage
from spamnb.settings.values import ADDRESS, DigestPlan
from spamnb.store.files import durable_write, make_folder, refused
from spamnb.telemetry import Log

MOST: Final = 100
"""messages in one digest; it says how many more there are"""
_MOST_CHARS: Final = 160
_POLICY: Final = SMTP.clone(cte_type="7bit", max_line_length=900)
"""An address in a header field must stay on one line."""
_STYLE: Final = (
    "<style>body{font:16px/1.5 sans-serif}td{padding:.4em 1em .4em 0;vertical-align:top}"
    "small{color:#59636b}</style>"
)


class DigestEntry(NamedTuple):
    """One message that waits for the recipient."""

    sender: str
    subject: str
    time: datetime
    probability: float | None
    """of spam; None without a verdict"""
    url: str


class DigestHead(NamedTuple):
    """Who sends a digest to whom, and when."""

    sender: str
    recipient: str
    time: datetime
    message_id: str
    off_url: str
    """where the recipient can turn digests off"""


def digest_mail(head: DigestHead, entries: Sequence[DigestEntry], foot: str) -> bytes:
    """Return the mail: the messages that are most likely to be ham come first."""
    ordered = sorted(entries, key=lambda one: (one.probability or 0.0, one.time))
    shown, more = ordered[:MOST], len(ordered) - MOST
    closing = [text("digest.more", count=more)] if more > 0 else []
    closing += [foot, f"Turn these mails off: {head.off_url}"]
    mail = EmailMessage(policy=_POLICY)
    mail["From"], mail["To"] = head.sender, head.recipient
    mail["Subject"] = _title(len(ordered))
    mail["Date"] = format_datetime(head.time)
    mail["Message-ID"] = head.message_id
    mail["Auto-Submitted"] = "auto-generated"
    mail["List-Unsubscribe"] = f"<{head.off_url}>"
    mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    mail.set_content(_plain(shown, closing))
    mail.add_alternative(_html(shown, closing), subtype="html")
    return mail.as_bytes()


def _title(count: int) -> str:
    return "One message in quarantine" if count == 1 else f"{count} messages in quarantine"


def _plain(entries: Sequence[DigestEntry], closing: Sequence[str]) -> str:
    rows = [f"{_subject(one)}\n  {_people(one)}\n  {_why(one)}\n  {one.url}\n" for one in entries]
    return "\n".join([text("digest.help"), "", *rows, *closing]) + "\n"


def _html(entries: Sequence[DigestEntry], closing: Sequence[str]) -> str:
    rows = "".join(
        f'<tr><td><a href="{escape(one.url)}"><bdi>{escape(_subject(one))}</bdi></a><br>'
        f"<bdi>{escape(_people(one))}</bdi><br><small>{escape(_why(one))}</small></td></tr>"
        for one in entries
    )
    foot = "".join(f"<p><small>{escape(one)}</small></p>" for one in closing)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{_STYLE}</head><body>'
        f"<p>{escape(text('digest.help'))}</p><table>{rows}</table>{foot}</body></html>"
    )


def _subject(entry: DigestEntry) -> str:
    return visible(entry.subject)[:_MOST_CHARS] or text("no_subject")


def _people(entry: DigestEntry) -> str:
    sender = visible(entry.sender)[:_MOST_CHARS] or text("no_sender")
    return text("digest.from", sender=sender, time=f"{entry.time:%Y-%m-%d %H:%M}")


def _why(entry: DigestEntry) -> str:
    if entry.probability is None:
        return "not scanned"
    return text("digest.why", percent=f"{entry.probability:.1%}")


MOST_DIGESTS: Final = 2_000
"""in one round: mail to guessed addresses of this site causes a digest for each address"""
_DAY_S: Final = 86_400
_TAKEN: Final = 2


RETRY_S: Final = 600
"""pause before a deferred digest is tried again; each attempt doubles the pause"""
MOST_TRIES: Final = 6
"""of one digest, within six hours"""
_OWED_DAYS: Final = 7
_TEMPORARY: Final = 4
"""the first digit of a temporary reply"""


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
    own_since: Mapping[str, str] = field(default_factory=dict)
    """user -> ID in place of `since`, for users that got no digest in the round before"""
    trying: str = ""
    """the user whose digest is being sent"""
    late: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """user -> attempts so far, and the time of the next attempt; no attempt after `MOST_TRIES`"""

    def since_of(self, user: str) -> str:
        """Return the ID after which a user's digest begins."""
        return self.own_since.get(user, self.since)

    def is_due(self, user: str, now_s: float) -> bool:
        """Whether a user's digest is to be sent now."""
        tries, next_s = self.late.get(user, (0, 0.0))
        return user not in self.done and tries < MOST_TRIES and next_s <= now_s

    def after(self, user: str, code: int, now_s: float) -> DigestRound:
        """Return the round after the reply to a user's digest; code 0: the reply is not known."""
        tries = self.late.get(user, (0, 0.0))[0] + 1
        others = {one: value for one, value in self.late.items() if one != user}
        if code == 0:
            return replace(self, trying="", late=others | {user: (MOST_TRIES, now_s)})
        if code // 100 == _TEMPORARY:
            next_s = now_s + RETRY_S * (1 << (tries - 1))
            return replace(self, trying="", late=others | {user: (tries, next_s)})
        return replace(self, trying="", done=(*self.done, user), late=others)

    def next_round(self, day: str, newest: str, now_s: float) -> DigestRound:
        """Return the round of another day, which includes what each user missed.

        The very first round covers one day.
        """
        if self.finished:
            since, own = self.until, {user: self.since_of(user) for user in self.late}
        else:
            since = self.since if self.day else _id_at(now_s - _DAY_S)
            own = {**self.own_since, **dict.fromkeys(self.done, self.until)}
        oldest = _id_at(now_s - _OWED_DAYS * _DAY_S)
        own = {user: max(at, oldest) for user, at in own.items()}
        return DigestRound(day, since, max(since, self.until, newest), own_since=own)


def _id_at(at_s: float) -> str:
    """The start of the IDs of messages that arrived in this second."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(at_s))


class DigestSending(NamedTuple):
    """What the process needs to make and send digests."""

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
        self._broken: Counter[str] = Counter()
        """how often the connection broke with a user's digest"""

    def stop(self) -> None:
        """Send no more digests; the round continues after a restart."""
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
        current = known if known.day == day else self._begun(sending.site, known, day, now_s)
        if current.trying:  # the process was killed while it sent this digest
            current = self._noted(current.after(current.trying, 0, now_s))
        return self._send_all(sending, current, now_s)

    def _send_all(self, sending: DigestSending, current: DigestRound, now_s: float) -> int:
        waiting = _waiting(sending, current)
        sent = 0
        if len(waiting) > MOST_DIGESTS:
            self._log(
                {"event": "digest", "level": "warning", "left_out": len(waiting) - MOST_DIGESTS}
            )
        wanted = [one for one in sorted(waiting)[:MOST_DIGESTS] if not self._is_off(sending, one)]
        # A digest that breaks the connection must not stop the digests of other users.
        for user in sorted(wanted, key=lambda one: self._broken[one]):
            if self._stopped:
                return sent
            if current.is_due(user, now_s):
                current = self._noted(replace(current, trying=user))
                try:
                    code = self._send(sending, user, waiting[user], now_s)
                except PeerError:
                    self._broken[user] += 1
                    self._noted(replace(current, trying=""))
                    raise
                current = self._noted(current.after(user, code, now_s))
                sent += code // 100 == _TAKEN
        if not any(current.is_due(user, inf) for user in wanted):
            self._noted(replace(current, done=(), finished=True))
        return sent

    @staticmethod
    def _is_off(sending: DigestSending, user: str) -> bool:
        return sending.site.opt_outs.holds(user)

    def _begun(
        self, site: ConsoleSite, last: DigestRound, day: str, now_s: float
    ) -> DigestRound:  # fmt: skip
        """A new round; it continues an unfinished round of another day."""
        if last.trying:
            last = last.after(last.trying, 0, now_s)
        newest = "".join(site.quarantine.ids()[-1:])
        return self._noted(last.next_round(day, newest, now_s))

    def _send(
        self, sending: DigestSending, user: str, messages: list[QuarantinedMessage], now_s: float
    ) -> int:
        """Send one digest; return the code of the server's reply for this recipient.

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
        return reply.code

    # -- the record -----------------------------------------------------------------------------

    def _read(self) -> DigestRound:
        try:
            found = json.loads(self._path.read_bytes())
            rows = found.get("late", {}).items()
            late = {user: (int(tries), float(next_s)) for user, (tries, next_s) in rows}
            return DigestRound(**found | {"done": tuple(found["done"]), "late": late})
        except FileNotFoundError:
            return DigestRound()
        except OSError as error:
            raise refused(error, self._path) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreDamagedError(f"{self._path} is not a record of digests",
                                    hint="delete it") from error  # fmt: skip

    def _noted(self, state: DigestRound) -> DigestRound:
        """Write a state to disk, and return it."""
        make_folder(self._path.parent)
        try:
            durable_write(self._path, json.dumps(asdict(state)).encode())
        except OSError as error:
            raise refused(error, self._path) from error
        return state


ADMIN_LOOK_S: Final = 600.0
"""between two looks at the warnings"""
ADMIN_PAUSE_S: Final = 6 * 3600.0
"""between two mails to the administrator: a warning that comes and goes must not fill a mailbox"""
_NUMBERS: Final = re.compile(r"\d[\d.,:TZ-]*")


class AdminMail:
    """Sends the new warnings of one home to the administrator; each is sent once while it lasts.

    A killed process may send a mail again, but never leaves one out.
    """

    def __init__(self, home: Path, log: Log) -> None:
        self._path = home / "console" / "told.json"
        self._log = log
        self._next_look_s = 0.0

    def send_due(self, sending: DigestSending, now_s: float) -> bool:
        """Send the warnings that are new, if it is time; return whether a mail was sent."""
        if not sending.plan.admin or now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + ADMIN_LOOK_S
        facts = sending.site.ask("status").header["status"]
        # A warning stays the same one if only its numbers change.
        found = {_NUMBERS.sub("#", one): one for one in notices(facts)}
        told, sent_s = self._read()
        is_new = [one for key, one in found.items() if key not in told]
        if is_new and now_s < sent_s + ADMIN_PAUSE_S:
            return False
        if is_new:
            self._send(sending, is_new, now_s)
        if is_new or found.keys() != set(told):
            self._write(sorted(found), now_s if is_new else sent_s)
        return bool(is_new)

    def _send(self, sending: DigestSending, texts: Sequence[str], now_s: float) -> None:
        plan, mail = sending.plan, EmailMessage(policy=_POLICY)
        mail["From"], mail["To"] = plan.sender, plan.admin
        mail["Subject"] = f"spamnb on {socket.gethostname()}: {of(len(texts), 'notice', 'notices')}"
        mail["Date"] = format_datetime(datetime.fromtimestamp(now_s, UTC))
        mail["Message-ID"] = make_msgid(domain=domain_of(plan.sender))
        mail["Auto-Submitted"] = "auto-generated"
        lines = [f"* {visible(one)}" for one in texts]
        mail.set_content("\n\n".join([*lines, text("notice.foot", url=sending.url)]) + "\n")
        parcel = ReleasedMessage(
            mail.as_bytes(), f"MAIL FROM:<{plan.sender}>".encode(),
            (f"RCPT TO:<{plan.admin}>".encode(),),
        )  # fmt: skip
        (reply,) = deliver(Address.parse(plan.smtp), parcel)
        if reply.code // 100 != _TAKEN:
            raise PeerError(f"{plan.smtp} does not take mail to {plan.admin}: {reply}")
        self._log({"event": "notice", "to": plan.admin, "warnings": len(texts)})

    def _read(self) -> tuple[list[str], float]:
        """The warnings of the last mails that still last, and the time of the last mail."""
        try:
            found = json.loads(self._path.read_bytes())
            return [str(one) for one in found["told"]], float(found["sent_s"])
        except FileNotFoundError:
            return [], 0.0
        except OSError as error:
            raise refused(error, self._path) from error
        except (ValueError, TypeError, KeyError) as error:
            raise StoreDamagedError(f"{self._path} is not a record of notices",
                                    hint="delete it") from error  # fmt: skip

    def _write(self, told: Sequence[str], sent_s: float) -> None:
        make_folder(self._path.parent)
        try:
            durable_write(self._path, json.dumps({"told": told, "sent_s": sent_s}).encode())
        except OSError as error:
            raise refused(error, self._path) from error


def _waiting(
    sending: DigestSending, current: DigestRound
) -> Mapping[str, list[QuarantinedMessage]]:
    """The messages of a round, by recipient; only recipients of this site."""
    rules = sending.site.config.teaching
    logins = frozenset(map(rules.mailbox, sending.logins))
    found: dict[str, list[QuarantinedMessage]] = {}
    for entry in _covered(sending.site, current):
        users = {rules.mailbox(entry.names[at]) for at in entry.open}
        for user in users:
            is_here = user in logins or domain_of(user) in rules.served
            is_new = current.since_of(user) < entry.id
            if is_here and is_new and ADDRESS.fullmatch(user) is not None:
                found.setdefault(user, []).append(entry)
    return found


def _covered(site: ConsoleSite, current: DigestRound) -> Iterator[QuarantinedMessage]:
    since = min([current.since, *current.own_since.values()])
    for name in site.quarantine.ids():
        if since < name <= current.until:
            with suppress(RefError, StoreDamagedError):
                yield site.quarantine.get(name)


def _off_url(sending: DigestSending, user: str, now_s: float) -> str:
    link = sending.site.links.make(SignedLink("", user), now_s)
    return f"{sending.url.rstrip('/')}/digest/{link}"


def _entry(
    sending: DigestSending, user: str, message: QuarantinedMessage, now_s: float
) -> DigestEntry:
    site = sending.site
    probability, shown = message.facts.get("probability"), site.quarantine.shown(message.id)
    link = f"/quarantine/{message.id}"
    if sending.plan.links == "act":
        link = "/d/" + site.links.make(SignedLink(message.id, user), now_s)
    return DigestEntry(
        shown["header_from"] or message.sender,
        shown["subject"],
        datetime.fromtimestamp(message.time_us / 1_000_000, UTC),
        probability if isinstance(probability, float) else None,
        sending.url.rstrip("/") + link,
    )
