"""The delivery agent: delivers or learns each message, and only then replies 250.

Delivery: before the 250 every Maildir has the message, with file and folder synced. In SMTP one
reply stands for all recipients, so all or none of them get the message; in LMTP each recipient has
a separate reply. With persons each recipient gets a copy with the recipient's own verdict, in the
folder of that verdict. Reports: parsed and submitted as feedback, which is on disk or queued for
review before the reply. If the learner is not reachable, the reply is 451.

Trusted reports come from logged-in users, and from clients in `trusted` networks (or LOCAL clients,
if that is set) that a peer names by XFORWARD. The user is the address of the login, or the sender
of the envelope. A loopback address alone, From or MAIL FROM prove nothing: such a report comes from
a stranger, and counts only with the signature of a message that was delivered to that address.

Blocking work runs in threads. Failure: a reply of the table; an internal fault is counted and
logged with an incident id, and the reply is 451.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from spamnb.core.mail.envelope import Client, network_of
from spamnb.core.mail.message import without_mbox
from spamnb.core.mail.printable import visible
from spamnb.core.policy.rulings import WORDS
from spamnb.endpoints.net.admission import OpenConnections
from spamnb.endpoints.net.networks import NetworkSet
from spamnb.endpoints.smtp.delivery import maildir_writer, receipts, replies, trace_headers
from spamnb.endpoints.smtp.delivery.params import DeliveryParams
from spamnb.endpoints.smtp.delivery.ports import AgentDeps
from spamnb.endpoints.smtp.delivery.recipients import RecipientMailbox, Recipients
from spamnb.endpoints.smtp.delivery.types import IncomingMessage, LoggedIn
from spamnb.errors import PeerError, StoreError, UserError, incident_id
from spamnb.service.admin.logins import LoginGuard, Passwords
from spamnb.service.feedback.report_parser import FeedbackReport, ReportedMessage, read_report
from spamnb.service.feedback.types import Answer, Feedback, ListTarget, SenderChange, Trust

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
    """One delivery agent, for all its listeners."""

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
            return replies.NO_SUCH
        if self._guard.begin(name, peer, time.monotonic()) > 0:
            return replies.SLOW_DOWN
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._checking, self._passwords.check, name, password)
        if found is None:
            self.deps.meters.count("logins_refused")
            self.deps.log({"event": "login refused", "peer": peer, "login": _shown(name)})
            return replies.WRONG_LOGIN
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
        return [Copy(box, raw, trace_headers.is_junk(raw)) for box, raw in raws]

    async def _deliver(
        self, mail: IncomingMessage, copies: list[Copy], facts: dict[str, object]
    ) -> str:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, partial(self._to_maildirs, mail, copies))
        except OSError as error:
            self.fault(error, mail.peer)
            return replies.NOT_STORED
        folders = {facts.get("folder", "")} | {"junk" if one.junk else "inbox" for one in copies}
        facts["folder"] = "both" if len(folders - {""}) > 1 else max(map(str, folders))
        self.deps.meters.count("delivered", len(copies))
        self.deps.meters.count("delivered_junk", sum(one.junk for one in copies))
        return replies.DELIVERED

    def _to_maildirs(self, mail: IncomingMessage, copies: list[Copy]) -> None:
        """Write one message for some recipients: all of them get it, or none."""
        written: list[maildir_writer.Pending] = []
        try:
            for box, raw, junk in copies:
                assert box.folder is not None, "feedback addresses have no folder"
                folder = box.folder / maildir_writer.JUNK if junk else box.folder
                head = trace_headers.head(mail, box.address, self.config)
                written.append(maildir_writer.prepare(folder, (head, without_mbox(raw))))
        except BaseException:
            maildir_writer.drop(written)
            raise
        maildir_writer.settle(written)
        for folder in {pending.folder for pending in written} - self._swept:
            self._swept.add(folder)
            with suppress(OSError):  # the message is delivered
                maildir_writer.sweep(folder)

    # -- reports --------------------------------------------------------------------------------

    async def _limit_reports(self, mail: IncomingMessage, facts: dict[str, object]) -> str:
        """Process a report, or reply 451 while too many are queued."""
        if self._reports >= _MAX_QUEUED_REPORTS:
            return replies.NO_TEACHER
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
            return replies.NO_TEACHER
        facts["result"] = receipts.summary(done)
        self.deps.meters.count("reports")
        if not done:
            self.deps.meters.count("feedback_refused")
        if mail.login and self.config.receipts and mail.sender and not report.automatic:
            facts["receipt"] = await self._answer(mail, report, done)
        if mail.login and facts.get("receipt") == receipts.DELIVERED:
            return f"250 2.0.0 {receipts.summary(done)}"
        reply = receipts.reply(report, done, authentic=report_sender.trust == "user")
        send_summary = mail.login and reply.startswith("250")
        return f"250 2.0.0 {receipts.summary(done)}" if send_summary else reply

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
        receipt_headers = receipts.ReceiptHeaders(
            hostname, to, formatdate(localtime=True), f"<{secrets.token_hex(12)}@{hostname}>"
        )
        raw = receipts.compose(receipt_headers, report, done)
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
            maildir_writer.deliver(box.folder, (head, raw))
            return receipts.DELIVERED
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
