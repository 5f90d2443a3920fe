"""Deliver messages into Maildirs, and take reports.

`DeliveryAgent` delivers or learns each message, and only then replies 250. `prepare` and `settle`
write into Maildirs, `compose` makes receipts, and `trace_head` the header lines above a delivered
message. Blocking work runs in threads. Failure: a reply of the table; an internal fault is counted
and logged with an incident id, and the reply is 451.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import secrets
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from spamnb.engine.receipt import Receipt
from spamnb.errors import LimitError, PeerError, StoreError, UserError, incident_id
from spamnb.feedback.review import FeedbackReport, ReportedMessage, read_report
from spamnb.feedback.values import Answer, Feedback, ListTarget, SenderChange, Trust
from spamnb.mail.envelope import Client, network_of
from spamnb.mail.limits import visible
from spamnb.mail.message import without_mbox
from spamnb.net.address import NetworkSet
from spamnb.net.server import OpenConnections
from spamnb.operations.logins import LoginGuard, Passwords
from spamnb.policy.rulings import WORDS
from spamnb.settings.values import DeliveryParams
from spamnb.smtp import delivery_replies
from spamnb.smtp.delivery_values import (
    AgentDeps,
    IncomingMessage,
    LoggedIn,
    RecipientMailbox,
    Recipients,
)
from spamnb.store import files

JUNK = ".Junk"
"""Maildir++: a sub-folder's name begins with a dot"""
PARTS = ("tmp", "new", "cur")
STALE_S = 36 * 3600
"""Age at which a file in `tmp` is an abandoned delivery (maildir's own specification)."""

_HOST = socket.gethostname().replace("/", "\\057").replace(":", "\\072") or "localhost"
_numbers = count()
_NAME = re.compile(r"\d+\.M\d+P\d+Q\d+R[0-9a-f]{8}\..+,S=\d+")
"""the names that `unique_name` returns"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that is written and synced, but not yet visible."""

    folder: Path
    name: str

    @property
    def goal(self) -> Path:
        """The path at which it will be visible."""
        return self.folder / "new" / self.name


def unique_name(size: int) -> str:
    """A file name unique over all hosts; it contains the size, so that Dovecot need not read it."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    number, luck = next(_numbers), secrets.token_hex(4)
    return f"{seconds}.M{rest // 1000}P{os.getpid()}Q{number}R{luck}.{_HOST},S={size}"


def prepare(folder: Path, pieces: Sequence[bytes]) -> Pending:
    """Write a message into `tmp` and sync it.

    The owner of a Maildir may be hostile, so all access goes through descriptors of folders that
    were opened without following that user's links (`store.files`). Folders are created when first
    needed (0700; files 0600).

    Failure: OSError; then no part of the message is left.
    """
    make(folder)
    pending = Pending(folder, unique_name(sum(map(len, pieces))))
    try:
        with files.opened(folder / "tmp") as tmp:
            _write(tmp, pending.name, pieces)
    except BaseException:
        drop([pending])
        raise
    return pending


def settle(several: Iterable[Pending]) -> None:
    """Make prepared messages visible, all or none.

    A message is written to `tmp`, synced and renamed into `new`; then the folder is synced. So when
    `settle` returns, the message survives a power cut. A process that is killed earlier leaves
    nothing that a mail reader shows. A message with several recipients is first written for all of
    them and then settled together: if one Maildir fails, no Maildir has the message.
    """
    seen: list[Pending] = []
    several = list(several)
    try:
        for pending in several:
            name = pending.name
            with (
                files.opened(pending.folder / "tmp") as tmp,
                files.opened(pending.folder / "new") as new,
            ):
                os.rename(name, name, src_dir_fd=tmp, dst_dir_fd=new)
                seen.append(pending)
                os.fsync(new)
    except BaseException:
        for pending in seen:
            _remove(pending, "new")
        drop(several)
        raise


def drop(several: Iterable[Pending]) -> None:
    """Remove prepared messages."""
    for pending in several:
        _remove(pending, "tmp")


def _remove(pending: Pending, part: str) -> None:
    with suppress(OSError), files.opened(pending.folder / part) as folder:
        os.unlink(pending.name, dir_fd=folder)


def deliver(folder: Path, pieces: Sequence[bytes]) -> Path:
    """Deliver one message; when this returns, it is on disk."""
    pending = prepare(folder, pieces)
    settle([pending])
    return pending.goal


def make(folder: Path) -> None:
    """Create the missing folders of a Maildir, and those above a sub-folder."""
    inner = folder.name.startswith(".")
    if inner:
        make(folder.parent)
    with files.opened(folder, make=True) as handle:
        made = [files.make(handle, part) for part in PARTS if not _is_there(handle, part)]
        if inner and any(made):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            os.close(os.open("maildirfolder", flags, 0o600, dir_fd=handle))
            os.fsync(handle)


def _is_there(folder: int, part: str) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def sweep(folder: Path) -> int:
    """Delete this program's abandoned deliveries from `tmp`; return their number."""
    oldest = time.time() - STALE_S
    with files.opened(folder / "tmp") as tmp, os.scandir(tmp) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
        return sum(_swept(tmp, name, oldest) for name in names)


def _swept(tmp: int, name: str, oldest: float) -> bool:
    with suppress(OSError):
        about = os.stat(name, dir_fd=tmp, follow_symlinks=False)
        own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
        if own and about.st_mtime < oldest:
            os.unlink(name, dir_fd=tmp)
            return True
    return False


def _write(folder: int, name: str, pieces: Sequence[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


DELIVERED: Final = "delivered"
"""the result of writing a receipt into a Maildir"""
_LISTED: Final = 50
_LF: Final = SMTP.clone(linesep="\n")
_NOTHING: Final = """\
Nothing was learnt: your message contains no other message.

Forward the message as an attachment (most programs have "Forward as
attachment"), redirect it, or forward it with all its headers. The forwarded
text alone does not identify the message.
"""
_STATES: Final = {
    "learnt": "learnt",
    "listed": "listed",
    "unchanged": "no change",
    "waiting": "waits to be learnt",
    "review": "waits for review",
    "refused": "not learnt",
}


@dataclass(frozen=True, slots=True)
class ReceiptHeaders:
    """The header fields of a receipt."""

    hostname: str
    to: str
    date: str
    """in the form of a Date field"""
    message_id: str


def compose(
    receipt_headers: ReceiptHeaders,
    report: FeedbackReport,
    done: Sequence[tuple[ReportedMessage, Answer]],
) -> bytes:
    """The receipt as a message, with LF line ends.

    Only logged-in users get one, and no automatic sender does (RFC 3834); the receipt itself is
    marked as automatic and has a null sender. Pure: the time and id are given. Of the reported
    messages only the subjects appear.
    """
    mail = EmailMessage(policy=_LF)
    mail["From"] = Address("spamnb", addr_spec=f"postmaster@{receipt_headers.hostname}")
    mail["To"] = receipt_headers.to
    mail["Subject"] = _subject(report, done)
    mail["Date"] = receipt_headers.date
    mail["Message-ID"] = receipt_headers.message_id
    if report.message_id.isascii() and report.message_id.isprintable() and report.message_id:
        mail["In-Reply-To"] = f"<{report.message_id}>"
    mail["Auto-Submitted"] = "auto-replied"
    mail["X-Auto-Response-Suppress"] = "All"
    mail.set_content(_body(report, done), cte="8bit")
    return mail.as_bytes()


def summary(done: Sequence[tuple[ReportedMessage, Answer]]) -> str:
    """The result of a report in one line."""
    states = [answer.state for _, answer in done]
    counts = [f"{states.count(key)} {text}" for key, text in _STATES.items() if key in states]
    return ", ".join(counts) or "nothing was learnt"


def report_reply(
    report: FeedbackReport, done: Sequence[tuple[ReportedMessage, Answer]], *, authentic: bool
) -> str:
    """The SMTP reply to a report that gets no receipt; it thanks only for accepted reports.

    A relay turns a rejection into a bounce, and an unauthenticated sender may be forged, so the
    bounce would go to an uninvolved user. Therefore only an authenticated user, or the recipient of
    the reported message, gets a rejection. It is temporary if a limit is reached: the relay then
    sends the report again, and messages that were already taught do not count twice. Otherwise it
    is permanent. All other senders get the result in a 250.
    """
    answers = [answer for _, answer in done]
    dropped = [answer for answer in answers if answer.state == "refused"]
    if done and not dropped and not report.left_out:
        return delivery_replies.THANKS
    authentic = authentic or any(answer.facts.get("proven") for answer in dropped)
    if authentic and any(
        answer.facts.get("error_type") == LimitError.__name__ for answer in dropped
    ):
        return delivery_replies.TOO_MUCH
    if len(dropped) < len(done):
        return delivery_replies.IN_PART
    return delivery_replies.NOT_LEARNT if authentic else delivery_replies.NOTHING_TAKEN


def _subject(report: FeedbackReport, done: Sequence[tuple[ReportedMessage, Answer]]) -> str:
    as_what = f" as {report.label}" if report.label and done else ""
    return f"Your report{as_what}: {summary(done)}"


def _body(report: FeedbackReport, done: Sequence[tuple[ReportedMessage, Answer]]) -> str:
    if not done:
        return _NOTHING
    lines = [line for item, answer in done[:_LISTED] for line in (*_item_lines(item, answer), "")]
    if len(done) > _LISTED:
        lines.append(f"... and {len(done) - _LISTED} more.")
    if report.left_out:
        lines.append(f"{report.left_out} more messages were not processed; send them again.")
    return "\n".join(lines).rstrip("\n") + "\n"


def _item_lines(item: ReportedMessage, answer: Answer) -> list[str]:
    receipt = answer.receipt
    name = item.subject or (receipt.message_id if receipt else "") or "a message"
    lines = [f"* {name}", f"  {_STATES[answer.state]}{_change(receipt)}"]
    if answer.reason:
        lines.append(f"  {' '.join(answer.reason.split())[:300]}")
    if answer.state == "learnt" and receipt is not None:
        lines.append(f"  To undo it: spamnb undo {receipt.event}")
    if answer.state == "listed":
        lines.append(f"  To undo it: spamnb senders remove {answer.facts.get('sender')}")
    return lines


def _change(receipt: Receipt | None) -> str:
    if receipt is None:
        return ""
    labels = f"{receipt.before or 'not taught'} -> {receipt.after or 'not taught'}"
    text = f": {labels}" if receipt.changed else f": {receipt.after or 'not taught'}"
    if receipt.probability_before is None or receipt.probability_after is None:
        return text
    return f"{text}; spam {receipt.probability_before:.2%} -> {receipt.probability_after:.2%}"


HEADER_BYTES: Final = 262_144
"""the longest header section that the relay lets through"""

_FLAG = re.compile(rb"^X-Spam-Flag[ \t]*:[ \t]*(\w{1,8})", re.IGNORECASE | re.MULTILINE)


def is_junk(raw: bytes) -> bool:
    """Whether the relay marked the message as junk.

    The first X-Spam-Flag line comes from the relay, since the relay removes all others.
    """
    raw = without_mbox(raw[:HEADER_BYTES])
    end = raw.find(b"\n\n") if raw[:1] != b"\n" else 0
    found = _FLAG.search(raw, 0, end if end >= 0 else len(raw))
    return found is not None and found[1].upper() == b"YES"


def trace_head(mail: IncomingMessage, address: str, config: DeliveryParams) -> bytes:
    """The lines above a delivered message (RFC 5321 4.4)."""
    lines = [f"Return-Path: <{mail.sender}>", f"Delivered-To: {address}"]
    if config.received:
        lines.append(_received(mail, config))
    # A message that begins with a blank would continue the last of these lines.
    gap = "\n" if without_mbox(mail.raw)[:1] in {b" ", b"\t"} else ""
    return ("\n".join(lines) + "\n" + gap).encode()


def _received(mail: IncomingMessage, config: DeliveryParams) -> str:
    client = mail.client
    protocol = "LMTP" if mail.protocol == "lmtp" else "ESMTP"
    protocol += ("S" if mail.secure else "") + ("A" if mail.login else "")
    helo = re.sub(r"[^A-Za-z0-9.:\[\]_-]", "?", client.helo)[:255] or "unknown"
    where = re.sub(r"[^A-Za-z0-9.:]", "?", client.address)[:80] or "unknown"
    return (
        f"Received: from {helo} ([{where}])\n\tby {config.hostname} with {protocol};\n"
        f"\t{formatdate(localtime=True)}"
    )


_DISK_THREADS: Final = 8
"""concurrent deliveries; each waits for the disk"""
_REPORT_THREADS: Final = 8
"""concurrent reports, in separate threads: delivery never waits for a slow learner"""
_MAX_QUEUED_REPORTS: Final = 64
"""reports being processed or queued"""
_PASSWORD_THREADS: Final = 2
"""concurrent password checks: 32 MB and a fifth of a second each"""

_JUDGE_S: Final = 30.0
"""limit for the verdicts of single recipients; then all get the message unchanged"""

Done = list[tuple[ReportedMessage, Answer]]


class Copy(NamedTuple):
    """What one recipient gets."""

    box: RecipientMailbox
    raw: bytes
    junk: bool


class ReportSender(NamedTuple):
    """The sender of a report, and its trust."""

    user: str
    trust: Trust


class DeliveryAgent:
    """One delivery agent, for all its listeners.

    Delivery: before the 250 every Maildir has the message, with file and folder synced. In SMTP one
    reply stands for all recipients, so all or none of them get the message; in LMTP each recipient
    has a separate reply. With persons each recipient gets a copy with the recipient's own verdict,
    in the folder of that verdict. Reports: parsed and submitted as feedback, which is on disk or
    queued for review before the reply. If the learner is not reachable, the reply is 451.

    Trusted reports come from logged-in users, and from clients in `trusted` networks (or LOCAL
    clients, if that is set) that a peer names by XFORWARD. The user is the address of the login, or
    the sender of the envelope. A loopback address alone, From or MAIL FROM prove nothing: such a
    report comes from a stranger, and counts only with the signature of a message that was delivered
    to that address.
    """

    def __init__(self, config: DeliveryParams, deps: AgentDeps) -> None:
        self.deps = deps
        self.stopping = False
        self.empty = asyncio.Event()
        """set while no session is open"""
        self.empty.set()
        self._guard = LoginGuard(deps.known)
        self._open = OpenConnections()
        self._strangers = OpenConnections()
        """of clients that are not in `peers`, which share half of the connections and the memory"""
        self._held_bytes = Counter[bool]()
        """bytes of unfinished messages, by whether a stranger sends them"""
        self._swept: set[Path] = set()
        self._disk = ThreadPoolExecutor(_DISK_THREADS, "delivery-disk")
        self._judging = ThreadPoolExecutor(1, "delivery-judge")
        self._teaching = ThreadPoolExecutor(_REPORT_THREADS, "delivery-teach")
        self._reports = 0
        self._checking = ThreadPoolExecutor(_PASSWORD_THREADS, "delivery-login")
        self.apply_settings(config)

    def apply_settings(self, config: DeliveryParams) -> None:
        """Take new settings; SettingsError leaves the old ones in force."""
        recipients = Recipients(config)
        passwords = Passwords(config.passwords) if config.passwords else None
        peers, trusted = NetworkSet(config.peers), NetworkSet(config.trusted)
        self.config, self._recipients, self._passwords = config, recipients, passwords
        self._peers, self._trusted = peers, trusted

    def close(self) -> None:
        """Shut the threads down without waiting for a learner that never answers."""
        self._disk.shutdown(wait=False, cancel_futures=True)
        self._judging.shutdown(wait=False, cancel_futures=True)
        self._teaching.shutdown(wait=False, cancel_futures=True)
        self._checking.shutdown(wait=False, cancel_futures=True)

    # -- connections ----------------------------------------------------------------------------

    def is_peer(self, address: str) -> bool:
        """Whether a client is in `peers`, so that it may name the client of a message."""
        return self._peers.contains(address)

    def admit(self, address: str, *, is_stranger: bool) -> bool:
        """Count a connection; False if it is not accepted."""
        config, customer = self.config, network_of(address)
        full = bool(self._open.full(customer, config.connections, config.connections))
        if is_stranger and not full:
            most, each = config.connections // 2, config.connections_per_address
            full = bool(self._strangers.full(customer, most, each))
        if self.stopping or full:
            self.deps.meters.count("connections_refused")
            return False
        self.empty.clear()
        for connections in self._counts_of(is_stranger=is_stranger):
            connections.enter(customer)
        return True

    def _counts_of(self, *, is_stranger: bool) -> tuple[OpenConnections, ...]:
        return (self._open, self._strangers) if is_stranger else (self._open,)

    def leave(self, address: str, *, is_stranger: bool) -> None:
        """Stop counting a connection."""
        for connections in self._counts_of(is_stranger=is_stranger):
            connections.leave(network_of(address))
        if not self._open.total:
            self.empty.set()

    def hold(self, more: int, *, is_stranger: bool) -> None:
        """Account for memory of an unfinished message."""
        self._held_bytes[is_stranger] += more

    def has_room(self, *, is_stranger: bool) -> bool:
        """Whether there is memory for another message."""
        most = self.config.memory_limit_bytes
        if is_stranger and self._held_bytes[True] > most // 2:
            return False
        return self._held_bytes.total() <= most

    def find(self, address: str) -> RecipientMailbox | str:
        """The mailbox of an address, or the reply that rejects it."""
        return self._recipients.find(address)

    async def log_in(self, name: str, password: bytes, peer: str) -> LoggedIn | str:
        """Check a password.

        Until it is checked, it counts as wrong, so parallel guesses gain nothing.
        """
        if self._passwords is None:
            return delivery_replies.NO_SUCH
        if self._guard.begin(name, peer, time.monotonic()) > 0:
            return delivery_replies.SLOW_DOWN
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._checking, self._passwords.check, name, password)
        if found is None:
            self.deps.meters.count("logins_refused")
            self.deps.log({"event": "login refused", "peer": peer, "login": _shown(name)})
            return delivery_replies.WRONG_LOGIN
        self._guard.right(name, peer)
        await loop.run_in_executor(self._checking, self._guard.remember, name, peer)
        return LoggedIn(found.name, found.addresses)

    def fault(self, error: Exception, peer: str) -> None:
        """Count and log an internal fault."""
        self.deps.meters.count("faults")
        self.deps.log(
            {
                "event": "fault",
                "incident": incident_id(),
                "peer": peer,
                "error": f"{type(error).__name__}: {_shown(str(error))}",
            }
        )

    # -- messages -------------------------------------------------------------------------------

    async def take(self, mail: IncomingMessage) -> list[str]:
        """Deliver or learn; one reply for each recipient."""
        began = time.monotonic()
        facts: dict[str, object] = {}
        if mail.boxes[0].label:
            answers = [await self._limit_reports(mail, facts)]
        else:
            copies = await self._copies_of(mail)
            parts = [[copy] for copy in copies] if mail.protocol == "lmtp" else [copies]
            every = [await self._deliver(mail, part, facts) for part in parts]
            answers = every * (len(copies) // len(every))
        self._count(max(answers))
        self.deps.log(_line(mail, answers) | facts | {"ms": _ms(began)})
        return answers

    def _count(self, answer: str) -> None:
        outcome = {"4": "deferred", "5": "refused"}.get(answer[:1])
        if outcome:
            self.deps.meters.count(outcome)

    async def _copies_of(self, mail: IncomingMessage) -> list[Copy]:
        """The message for each recipient, with the recipient's own verdict if there is one."""
        own: Mapping[str, bytes] = {}
        if self.deps.copies is not None and self.deps.copies.is_needed:
            loop, addresses = asyncio.get_running_loop(), [box.address for box in mail.boxes]
            made = loop.run_in_executor(
                self._judging, self.deps.copies.of, mail.raw, mail.sender, addresses
            )
            try:
                own = await asyncio.wait_for(made, _JUDGE_S)
            except Exception as error:  # noqa: BLE001 - the message is delivered as it came
                self.fault(error, mail.peer)
        raws = [(box, own.get(box.address, mail.raw)) for box in mail.boxes]
        return [Copy(box, raw, is_junk(raw)) for box, raw in raws]

    async def _deliver(
        self, mail: IncomingMessage, copies: list[Copy], facts: dict[str, object]
    ) -> str:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, partial(self._to_maildirs, mail, copies))
        except OSError as error:
            self.fault(error, mail.peer)
            return delivery_replies.NOT_STORED
        folders = {facts.get("folder", "")} | {"junk" if one.junk else "inbox" for one in copies}
        facts["folder"] = "both" if len(folders - {""}) > 1 else max(map(str, folders))
        self.deps.meters.count("delivered", len(copies))
        self.deps.meters.count("delivered_junk", sum(one.junk for one in copies))
        return delivery_replies.DELIVERED

    def _to_maildirs(self, mail: IncomingMessage, copies: list[Copy]) -> None:
        """Write one message for some recipients: all of them get it, or none."""
        written: list[Pending] = []
        try:
            for box, raw, junk in copies:
                assert box.folder is not None, "feedback addresses have no folder"
                folder = box.folder / JUNK if junk else box.folder
                head = trace_head(mail, box.address, self.config)
                written.append(prepare(folder, (head, without_mbox(raw))))
        except BaseException:
            drop(written)
            raise
        settle(written)
        for folder in {pending.folder for pending in written} - self._swept:
            self._swept.add(folder)
            with suppress(OSError):  # the message is delivered
                sweep(folder)

    # -- reports --------------------------------------------------------------------------------

    async def _limit_reports(self, mail: IncomingMessage, facts: dict[str, object]) -> str:
        """Process a report, or reply 451 while too many are queued."""
        if self._reports >= _MAX_QUEUED_REPORTS:
            return delivery_replies.NO_TEACHER
        self._reports += 1
        try:
            return await self._report(mail, facts)
        finally:
            self._reports -= 1

    async def _report(self, mail: IncomingMessage, facts: dict[str, object]) -> str:
        loop = asyncio.get_running_loop()
        report = await loop.run_in_executor(
            self._teaching, read_report, mail.raw, mail.boxes[0].label
        )
        report_sender = self._sender_of(mail)
        facts |= {"how": report.how, "label": report.label, "user": _shown(report_sender.user)}
        facts["trust"] = report_sender.trust
        try:
            done = await self._teach_all(mail, report, report_sender)
        except (StoreError, PeerError, OSError) as error:
            self.fault(error, mail.peer)
            return delivery_replies.NO_TEACHER
        facts["result"] = summary(done)
        self.deps.meters.count("reports")
        if not done:
            self.deps.meters.count("feedback_refused")
        if mail.login and self.config.receipts and mail.sender and not report.automatic:
            facts["receipt"] = await self._answer(mail, report, done)
        if mail.login and facts.get("receipt") == DELIVERED:
            return f"250 2.0.0 {summary(done)}"
        reply = report_reply(report, done, authentic=report_sender.trust == "user")
        send_summary = mail.login and reply.startswith("250")
        return f"250 2.0.0 {summary(done)}" if send_summary else reply

    async def _teach_all(
        self, mail: IncomingMessage, report: FeedbackReport, report_sender: ReportSender
    ) -> Done:
        done: Done = []
        domain = mail.boxes[0].address.rpartition("@")[2]
        # A relay without XFORWARD, and the host itself, stand for many clients.
        named = mail.xforwarded or not self._peers.contains(mail.peer)
        known = named and not _is_loopback(mail.client.address)
        client = network_of(mail.client.address) if known else ""
        word = next((one for one in WORDS if one == report.label), None)
        target = ListTarget(report_sender.user, report_sender.trust)
        for item in report.items if report.label else ():
            feedback = Feedback(
                label=report.label,
                raw=item.raw,
                refs=item.refs,
                user=report_sender.user,
                channel="arf" if report.how == "arf" else "address",
                trust=report_sender.trust,
                domain=domain,
                client=client,
            )
            change = SenderChange(target, word, raw=item.raw, refs=item.refs)
            done.append((item, await self._teach(change if word else feedback)))
        return done

    async def _teach(self, given: Feedback | SenderChange) -> Answer:
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._teaching, self.deps.teach, given)
        try:
            return await asyncio.wait_for(asked, self.config.teach_timeout_s)
        except UserError as error:
            return Answer("refused", reason=str(error))

    def _sender_of(self, mail: IncomingMessage) -> ReportSender:
        """The sender of a report, and how far it is trusted."""
        sender = mail.sender.lower()
        if mail.login:
            own = {address.lower() for address in mail.login.addresses}
            return ReportSender(
                sender if sender in own else mail.login.addresses[0].lower(), "user"
            )
        if sender and self._is_trusted(mail):
            return ReportSender(sender, "user")
        return ReportSender(sender, "stranger")

    def _is_trusted(self, mail: IncomingMessage) -> bool:
        client: Client = mail.client
        if not mail.xforwarded:
            # A relay that names no client proves nothing about the client.
            known = self._trusted.contains(mail.peer) and not self._peers.contains(mail.peer)
            return known and not _is_loopback(mail.peer)
        if self.config.trust_local and client.source.upper() == "LOCAL":
            # Postfix calls mail of its sendmail command LOCAL too, without an address. A webmail
            # that logs in from this machine has one: loopback.
            return _is_address(client.address)
        return self._trusted.contains(client.address) and not _is_loopback(client.address)

    async def _answer(self, mail: IncomingMessage, report: FeedbackReport, done: Done) -> str:
        """Send a receipt; if that fails, what was learnt stays learnt."""
        assert mail.login is not None, "strangers get no receipts"
        own = {address.lower() for address in mail.login.addresses}
        to = mail.sender if mail.sender.lower() in own else mail.login.addresses[0]
        hostname = self.config.hostname
        receipt_headers = ReceiptHeaders(
            hostname, to, formatdate(localtime=True), f"<{secrets.token_hex(12)}@{hostname}>"
        )
        raw = compose(receipt_headers, report, done)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._disk, self._hand_over, to, raw)
        except (OSError, PeerError, StoreError) as error:
            self.fault(error, mail.peer)
            return "failed"

    def _hand_over(self, to: str, raw: bytes) -> str:
        box = self._recipients.find(to)
        if isinstance(box, RecipientMailbox) and box.folder is not None:
            head = f"Return-Path: <>\nDelivered-To: {to}\n".encode()
            deliver(box.folder, (head, raw))
            return DELIVERED
        return "nowhere to send it"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    if not _is_address(address):
        return True
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _line(mail: IncomingMessage, answers: list[str]) -> dict[str, object]:
    client: Client = mail.client
    return {
        "event": "delivery",
        "peer": mail.peer,
        "client": client.address,
        "helo": _shown(client.helo),
        "ident": _shown(client.ident),
        "login": mail.login.name if mail.login else "",
        "from": _shown(mail.sender),
        "to": [_shown(box.address) for box in mail.boxes[:3]],
        "recipients": len(mail.boxes),
        "size": len(mail.raw),
        "replies": list(dict.fromkeys(answer[:9] for answer in answers)),
    }


def _shown(text: str) -> str:
    return visible(text[:300])


def _ms(began: float) -> float:
    return round((time.monotonic() - began) * 1e3, 1)
