"""Reports that wait for review, what a report contains, and the lists of senders.

`ReviewQueue` keeps feedback for the decision of an administrator, `read_report` finds the messages
in a mail to a feedback address, and `SenderLists` changes the lists of senders. Must not know the
model. Failure: LimitError when the queue is full, RefError for an unknown name, UserError for what
is refused, StoreError if the disk fails. An unreadable file is skipped.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from spamnb.engine.filter import Filter
from spamnb.errors import LimitError, RefError, RefusedError, UserError
from spamnb.feedback.rights import OwnershipCheck
from spamnb.feedback.values import Answer, ListTarget, SenderChange
from spamnb.mail import headers, limits, mime
from spamnb.mail import mime as attachments
from spamnb.mail.charset import Text
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.headers import shown_field, shown_value
from spamnb.mail.message import bare_id, read
from spamnb.maintenance.home_files import DAY_US, expiry_mark
from spamnb.policy.actions import PersonNames, named_person
from spamnb.policy.headers import header_end
from spamnb.policy.rulings import WORDS, Ruling, Word
from spamnb.policy.senders import (
    ListOwner,
    SenderList,
    evidence_of,
    owner_domain,
    ruling_of,
    sender_of,
)
from spamnb.records.verdicts import HistoryEntry
from spamnb.settings.values import ReviewLimits, TeachingRules
from spamnb.store.files import durable_write, make_folder, refused, sync_folder
from spamnb.store.table_views import WriteView
from spamnb.telemetry import Log, iso, now_us, silent

VERSION = 1
_NAME = re.compile(r"[0-9a-f]{13}-[0-9a-fs][0-9a-f]{23}")
"""time, sender, label and message; "s" marks a stranger, identified by network"""
_PERSON_DIGITS = 8
_PERSON = slice(14, 14 + _PERSON_DIGITS)
_LABEL_AND_MESSAGE = slice(14 + _PERSON_DIGITS, None)
_STRANGER = "s"
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """One entry."""

    label: str
    user: str
    channel: str
    trust: str
    reason: str
    time_us: int
    refs: tuple[str, ...] = ()
    client: str = ""
    """the network that it came from, if known"""
    digest: str = ""
    message_id: str = ""
    verdict: dict[str, object] = field(default_factory=dict)
    """the model's verdict: label, probability"""
    raw_bytes: int = 0
    subject: str = ""
    """of the message, if it was given"""
    name: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class ReviewQueue:
    """The queue; its folder is created when first needed.

    Feedback is queued when its sender cannot be verified, or when it contradicts a high-confidence
    verdict on an untrusted channel. Each entry is one file: a line of JSON (sender, label, message,
    reason), then the message, if it was given. It is written to a temporary file, synced, renamed,
    and the folder synced, so that a confirmed entry survives a power cut. Number, bytes and age are
    bounded: strangers may fill half of the queue, and one network of them an eighth of that half. A
    full queue accepts no new entry: otherwise a flood would push out legitimate ones.
    """

    def __init__(self, folder: Path, limits: ReviewLimits | None = None, log: Log = silent) -> None:
        self.folder = folder
        self.limits = limits or ReviewLimits()
        self._lock = threading.Lock()
        self._log = log

    def add(self, entry: ReviewItem, raw: bytes) -> str:
        """Queue a feedback; returns its name, or that of an equal entry already in the queue."""
        key = _key(entry, raw)
        mark = expiry_mark(self.folder.parent, log=self._log)
        subject = shown_field(raw[: max(header_end(raw[:_HEAD_BYTES]), 0)], b"subject")
        entry = replace(entry, time_us=entry.time_us + mark.behind_us, subject=subject)
        with self._lock:
            self._expire(min(entry.time_us, mark.expires_us))
            names = self.names()
            name = f"{entry.time_us:013x}-{key}"
            for other in names:
                if other[_LABEL_AND_MESSAGE] == name[_LABEL_AND_MESSAGE]:
                    return other
            self._check_room(names, name, len(raw))
            self._write(name, entry, raw)
            return name

    def _check_room(self, names: list[str], name: str, size: int) -> None:
        """Refuse an entry beyond the limit of the queue, of all strangers, or of one sender."""
        share, strangers = self.limits.share, self.limits.strangers
        self._check_share(names, size, 1, "the review queue is full")
        if name[_PERSON].startswith(_STRANGER):
            share *= strangers
            theirs = [other for other in names if other[_PERSON].startswith(_STRANGER)]
            self._check_share(
                theirs, size, strangers, "the review queue has too many entries of strangers"
            )
        own = [other for other in names if other[_PERSON] == name[_PERSON]]
        self._check_share(own, size, share, "the review queue has too many entries of one person")

    def _check_share(self, names: list[str], size: int, share: int, problem: str) -> None:
        size_bytes = sum(self._size(name) for name in names)
        most, limit = max(self.limits.max_messages // share, 1), self.limits.limit_bytes // share
        if len(names) >= most or size_bytes + size > limit:
            raise LimitError(
                f"{problem} ({len(names)} entries, {size_bytes} bytes)",
                hint="see `spamnb review list`",
            )

    def _write(self, name: str, entry: ReviewItem, raw: bytes) -> None:
        head = entry.as_dict() | {"version": VERSION, "raw_bytes": len(raw)}
        del head["name"]
        try:
            make_folder(self.folder)
            durable_write(self.folder / name, json.dumps(head).encode(), b"\n", raw)
        except OSError as error:
            raise refused(error, self.folder) from error

    def entries(self) -> Iterator[ReviewItem]:
        """All entries, oldest first."""
        for name in self.names():
            with suppress(RefError):
                yield self.get(name)[0]

    def count(self) -> int:
        """The number of entries."""
        return len(self.names())

    def get(self, name: str) -> tuple[ReviewItem, bytes]:
        """One entry and its message."""
        if not _NAME.fullmatch(name):
            raise _unknown(name)
        try:
            with (self.folder / name).open("rb") as file:
                head, raw = file.readline(_HEAD_BYTES), file.read()
            return _decoded(name, json.loads(head)), raw
        except FileNotFoundError as error:
            raise _unknown(name) from error
        except (ValueError, KeyError, TypeError) as error:
            raise RefError(f"the entry {name} cannot be read: {error}") from error
        except OSError as error:
            raise refused(error, self.folder / name) from error

    def drop(self, name: str) -> None:
        """Remove a decided entry."""
        if not _NAME.fullmatch(name):
            raise _unknown(name)
        try:
            (self.folder / name).unlink()
            sync_folder(self.folder)
        except FileNotFoundError as error:
            raise _unknown(name) from error
        except OSError as error:
            raise refused(error, self.folder / name) from error

    def names(self) -> list[str]:
        """The names of all entries, oldest first."""
        try:
            return sorted(filter(_NAME.fullmatch, os.listdir(self.folder)))  # noqa: PTH208 - names
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(error, self.folder) from error

    def _size(self, name: str) -> int:
        try:
            return (self.folder / name).stat().st_size
        except OSError:
            return 0

    def _expire(self, now: int) -> None:
        days = self.limits.keep_days
        for name in self.names():
            age_us = now - int(name[:13], 16)
            if age_us <= days * DAY_US:
                return
            (self.folder / name).unlink(missing_ok=True)
            age = round(age_us / DAY_US, 1)
            self._log({"event": "deleted from review", "name": name, "age_days": age})


def _key(entry: ReviewItem, raw: bytes) -> str:
    """Return the key of an entry: equal for the same sender, label and message; sender first.

    A stranger that uses a user's name counts as another sender.
    """
    user = entry.user.casefold().encode("utf-8", "replace")
    what = raw or entry.digest.encode() or " ".join(entry.refs).encode("utf-8", "replace")
    prefix = f"{entry.label}\0{entry.trust}\0".encode("utf-8", "replace") + user + b"\0"
    source = entry.client.encode() or user
    person = blake2b(source, digest_size=_PERSON_DIGITS // 2).hexdigest()
    if entry.trust == "stranger":
        person = _STRANGER + person[1:]
    return person + blake2b(prefix + what, digest_size=8).hexdigest()


def _decoded(name: str, head: dict[str, Any]) -> ReviewItem:
    if head.pop("version") != VERSION:
        raise ValueError("it was written by another version")
    head["refs"] = tuple(head["refs"])
    return ReviewItem(**head, name=name)


def _unknown(name: str) -> RefError:
    return RefError(
        f"there is no entry {name!r} in the review queue", hint="see `spamnb review list`"
    )


How = Literal["attached", "arf", "resent", "quoted", "nothing"]

MAX_MESSAGES = 100
"""messages taken from one report"""
MAX_REFS = 8
"""references tried for one message"""

ARF_LABELS = {"abuse": "spam", "fraud": "spam", "virus": "spam", "not-spam": "ham"}
"""RFC 5965 7.3, RFC 6430; opt-out and others say nothing about the message"""

_LINES = re.IGNORECASE | re.MULTILINE
_SIGNATURE = re.compile(
    rb"^[>|* \t]{0,40}X-Spamnb-Signature[*]?:[* \t]*(?:\n[>| \t]{1,40})?(s[a-z2-7]{26})\b",
    _LINES,
)
_MESSAGE_ID = re.compile(
    rb"^[>|* \t]{0,40}Message-ID[*]?:[* \t]*(?:\n[>| \t]{1,40})?<([!-;=?-~]{3,255})>",
    _LINES,
)
_ID = re.compile(rb"<([!-;=?-~]{3,255})>")
_FEEDBACK_TYPE = re.compile(rb"^Feedback-Type:[ \t]*([a-z-]{1,40})[ \t]*$", _LINES)
_FIELD = re.compile(rb"[^\n]*+(?:\n[ \t][^\n]*+)*+\n?")
_RESENT = re.compile(rb"^Resent-(?:From|Sender|To|Date|Message-ID)[ \t]*:", _LINES)
_FORWARDS = (b"x-forwarded-message-id", b"in-reply-to", b"references")
"""fields that name the forwarded message; Thunderbird writes the first"""
_BY_MACHINES = (b"bulk", b"list", b"junk")


@dataclass(frozen=True, slots=True)
class ReportedMessage:
    """One reported message."""

    raw: bytes = b""
    """the message, if its bytes are included"""
    refs: tuple[str, ...] = ()
    """its references otherwise, the most reliable first"""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class FeedbackReport:
    """The content of a message to a feedback address."""

    how: How
    label: str
    """empty if the report is about something else"""
    items: tuple[ReportedMessage, ...] = ()
    left_out: int = 0
    """messages beyond `MAX_MESSAGES`"""
    automatic: bool = False
    """sent by a program, so it gets no answer (RFC 3834)"""
    message_id: str = ""
    subject: str = ""


def read_report(raw: bytes, label: str) -> FeedbackReport:
    """Parse a report; `label` is that of its address.

    Mail programs report in five ways, which preserve the message to different degrees:

        attached    message/rfc822 parts or files *.eml, one or several: the exact bytes
        arf         an abuse report (RFC 5965): its type is the label; the message, or its header
        resent      redirected ("bounced"): the message below its Resent-* block (RFC 5322 3.6.6)
        quoted      a plain forward: found by the signature or the message id quoted in it
        nothing     none of these

    Pure. Must not know trust: it uses the content and not the sender. The product's headers on the
    outside belong to the report and not to the reported message, so no reference is taken from
    them. Never raises; the work is bounded (`mail.mime`, `mail.limits`).
    """
    buffer = raw.replace(b"\r\n", b"\n")
    block, body = headers.split(buffer, (0, len(buffer)), mime.NO_HOSTS, set())
    how, label, items = _parse(buffer, body, block, label)
    kept = [item for item in items if item.raw.strip() or item.refs]
    return FeedbackReport(
        how=how,
        label=label,
        items=tuple(kept[:MAX_MESSAGES]),
        left_out=max(0, len(kept) - MAX_MESSAGES),
        automatic=_automatic(block),
        message_id=bare_id(_plain(block.special.get(b"message-id", b""))),
        subject=_one_line(block.special.get(b"subject", b"")),
    )


def _parse(
    buffer: bytes, body: int, block: headers.Block, label: str
) -> tuple[How, str, list[ReportedMessage]]:
    original = _resent(buffer[:body])
    if original >= 0:
        return "resent", label, [_item(buffer[original:])]
    opened = attachments.open_message(buffer)
    if opened.kind == "multipart/report" and opened.report_type == "feedback-report":
        return _arf(opened.attached)
    items = [_item(one.raw) for one in opened.attached if one.carrier == "message"]
    if items:
        return "attached", label, items
    refs = _quoted(buffer, block)
    return ("quoted", label, [ReportedMessage(refs=refs)]) if refs else ("nothing", label, [])


def _arf(parts: list[attachments.AttachedMessage]) -> tuple[How, str, list[ReportedMessage]]:
    kinds = [_FEEDBACK_TYPE.search(one.raw) for one in parts if one.carrier == "report"]
    kind = kinds[0][1].decode("ascii").lower() if kinds and kinds[0] else ""
    whole = [_item(one.raw) for one in parts if one.carrier == "message"]
    names = [_named(one.raw) for one in parts if one.carrier == "headers"]
    return "arf", ARF_LABELS.get(kind, ""), whole or names


def _item(raw: bytes) -> ReportedMessage:
    # Bytes need no reference: a message id may be another message's too, and a signature line in
    # the header is checked by `rights`, which can compare the two messages.
    return ReportedMessage(raw, (), _named(raw).subject)


def _named(raw: bytes) -> ReportedMessage:
    """The references of a message, from its header alone."""
    head = _lines(raw)
    block, body = headers.split(head, (0, len(head)), mime.NO_HOSTS, set())
    signatures = _SIGNATURE.findall(head[:body])
    ids = _ID.findall(block.special.get(b"message-id", b"")[: limits.VALUE_BYTES])
    return ReportedMessage(
        refs=_refs(signatures, ids), subject=_one_line(block.special.get(b"subject", b""))
    )


def _lines(raw: bytes) -> bytes:
    """The header of a message, with LF line ends; its body is not copied."""
    blank = min(at for at in (raw.find(b"\r\n\r\n"), raw.find(b"\n\n"), len(raw)) if at >= 0)
    return raw[: blank + 4].replace(b"\r\n", b"\n")


def _refs(signatures: list[bytes], ids: list[bytes]) -> tuple[str, ...]:
    names = [one.decode("ascii").lower() for one in signatures]
    names += [one.decode("ascii") for one in ids]
    return tuple(dict.fromkeys(names))[:MAX_REFS]


def _resent(head: bytes) -> int:
    """Where the original begins, below the fields that the redirection added; -1 if there is none.

    Resent-* fields form a block above the redirected header, and the transport's fields are above
    them, so the original begins after the first such block.
    """
    if _RESENT.search(head) is None:
        return -1
    seen = False
    for found in _FIELD.finditer(head):
        if not found[0]:
            break
        resent = found[0][:7].lower() == b"resent-"
        if seen and not resent:
            return found.start()
        seen = seen or resent
    return -1


def _quoted(buffer: bytes, block: headers.Block) -> tuple[str, ...]:
    """The references in a plain forward: the signature, or the message's id."""
    signatures: list[bytes] = []
    ids: list[bytes] = []
    for part in read(buffer).parts:
        text = _bytes(part.text).replace(b"\r\n", b"\n")
        signatures += _SIGNATURE.findall(text)[:MAX_REFS]
        ids += _MESSAGE_ID.findall(text)[:MAX_REFS]
    for wanted in _FORWARDS:
        values = [value[-limits.VALUE_BYTES :] for name, value in block.fields if name == wanted]
        # The last reference is the message itself.
        ids += [found for value in values[:1] for found in _ID.findall(value)[-1:]]
    return _refs(signatures, ids)


def _bytes(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")


def _automatic(block: headers.Block) -> bool:
    """Whether a program sent it; such mail is never answered."""
    for name, value in block.fields:
        low = value[:80].lower()
        if name == b"auto-submitted" and not low.startswith(b"no"):
            return True
        if name == b"precedence" and low.strip() in _BY_MACHINES:
            return True
        if name in {b"list-id", b"x-autoreply", b"x-auto-response-suppress"}:
            return True
    return False


def _plain(value: bytes) -> str:
    return value[: limits.MESSAGE_ID_BYTES].decode("latin-1")


def _one_line(value: bytes) -> str:
    """A subject as text on one line, cut."""
    return shown_value(value[:500])[:100]


@dataclass(frozen=True, slots=True)
class SenderLists:
    """The lists of one model.

        admin       the list of any person or domain, and that of the site
        user        the own list, if persons are enabled; the name is that of the person
        stranger    none

    The sender is an address, a domain, or the author of a message. A change is on disk when
    `change` returns, and is undone by its opposite: the answer names the earlier word. Setting the
    same word again changes nothing. Failure: UserError for what is refused; a StoreError is raised.
    """

    model: Filter
    names: PersonNames | None
    rules: TeachingRules

    def owner(self, target: ListTarget) -> ListOwner:
        """Return the owner of the list that is meant; UserError without the right to it."""
        if target.trust == "stranger":
            raise RefusedError("a report of an unknown sender changes no list of senders")
        if target.trust == "admin":
            return self._named(target)
        if target.person or target.domain:
            raise RefusedError("a user may change only that user's list of senders")
        return self._person(target.user)

    def _named(self, target: ListTarget) -> ListOwner:
        if target.person and target.domain:
            raise UserError("give a person or a domain, and not both")
        if target.person:
            return self._person(target.person)
        if not target.domain:
            return ListOwner("site")
        domain = owner_domain(target.domain)
        if self.rules.served and domain not in self.rules.served:
            served = ", ".join(sorted(self.rules.served))
            raise UserError(f"{domain} has no mailboxes here", hint=f"these have: {served}")
        return ListOwner("domain", domain, self.model.person(domain))

    def _person(self, text: str) -> ListOwner:
        name = named_person(self.names, text)
        if not name.isprintable() or len(name) > 320:
            raise UserError(f"{name[:80]!a} is not the name of a person")
        return ListOwner("person", name, self.model.person(name))

    def change(self, asked: SenderChange) -> Answer:
        """Set or remove the word of a sender."""
        owner, sender = self.owner(asked.target), self._sender(asked)
        now = now_us()

        def run(view: WriteView) -> Word | None:
            old = view.senders(owner.key) or SenderList(owner.kind, owner.name)
            before = old.word_of(sender)
            if before != asked.word:
                view.put_senders(owner.key, old.put(sender, asked.word, now))
            return before

        before = self.model.store.transact(run)
        facts: dict[str, object] = {"sender": sender, "word": asked.word, "before": before}
        facts |= {"list": owner.kind, "owner": owner.name}
        if before == asked.word:
            return Answer("unchanged", reason=_said(sender, before), facts=facts)
        return Answer("listed", reason=_said(sender, asked.word), facts=facts)

    def _sender(self, asked: SenderChange) -> str:
        if sum(map(bool, (asked.sender, asked.raw, asked.refs))) != 1:
            raise UserError(
                "give exactly one of these: a sender, a message, or references to a message"
            )
        if asked.sender:
            return sender_of(asked.sender)
        author = (
            evidence_of(asked.raw, LocalHosts()).author if asked.raw else self._author_of(asked)
        )
        if not author:
            raise UserError(
                "the message does not name exactly one sender",
                hint="give the address of the sender",
            )
        return sender_of(author)

    def _author_of(self, asked: SenderChange) -> str:
        """The author of the message that a reference names; for a user, one delivered to them."""
        check = OwnershipCheck(self.model, self.rules)
        for ref in asked.refs:
            admin = asked.target.trust == "admin"
            entry = check.entry_of(ref) if admin else check.owned(asked.target.user, ref)
            if entry is not None:
                return author_in(entry)
        raise RefError("no message has this reference", hint="give the address of the sender")

    def ruling_on(self, raw: bytes, person: str, domain: str) -> Ruling | None:
        """Return what the lists decide about a message to a person, or to all without a name.

        `domain` is that of the person's address. The envelope is that of the delivered message.
        """
        lists = self._lists(person, domain)
        return ruling_of(lists, evidence_of(raw, self.model.reader.local)) if lists else None

    def naming(self, entry: HistoryEntry, person: str, domain: str) -> list[Ruling]:
        """Return what each list says of the sender of a message in the history.

        The results are in the order in which the lists are asked. A list that wants a sender
        decides only if the sender is authentic, which the history does not know.
        """
        senders = [entry.notes[name] for name in ("author", "from") if entry.notes.get(name)]
        rulings = []
        for one in self._lists(person, domain):
            named = dict(filter(None, map(one.naming, senders)))
            first = sorted(named.items(), key=lambda pair: WORDS.index(pair[1]))[:1]
            rulings += [Ruling(word, f"by-{one.kind}", sender) for sender, word in first]
        return rulings

    def _lists(self, person: str, domain: str) -> list[SenderList]:
        owners = [ListOwner("site")]
        if domain:
            owners.insert(0, ListOwner("domain", domain, self.model.person(domain)))
        if person:
            owners.insert(0, self._person(person))
        with self.model.store.read() as view:
            return [one for owner in owners if (one := view.senders(owner.key))]

    def shown(self, target: ListTarget) -> Iterator[dict[str, Any]]:
        """Yield the entries of a list as values of JSON; of all lists if an admin names none."""
        all_lists = target.trust == "admin" and not (target.person or target.domain)
        owner = None if all_lists else self.owner(target)
        with self.model.store.read() as view:
            lists = dict(view.sender_lists()) if owner is None else {}
            if owner is not None and (mine := view.senders(owner.key)):
                lists = {owner.key: mine}
        for one in lists.values():
            for entry in one:
                yield {"list": one.kind, "owner": one.name, "sender": entry.sender} | {
                    "word": entry.word,
                    "time": iso(entry.time_us),
                }


def author_in(entry: HistoryEntry) -> str:
    """Return the author of a message of the history, or its envelope's sender; empty if unknown."""
    return entry.notes.get("author") or entry.notes.get("from", "")


def _said(sender: str, word: Word | None) -> str:
    return f"{sender} is {word}" if word else f"{sender} is not listed"
