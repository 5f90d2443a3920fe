"""The header block: where it ends, which fields belong to a message, and their decoded values.

Holds the table of fields that are not part of a message: verdicts of filters and scanners (of this
one too, so that no sender can forge them and the model does not learn them), flags of mailboxes,
and what delivery adds after the scan. It must not know MIME structure, features or the model.

Invariants: a block is unfolded before anything else, so folding never changes a digest. Nothing
raises; broken fields are kept as they are and marked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from spamnb.mail import limits
from spamnb.mail.charset import Text, header_text, written_text
from spamnb.mail.envelope import LocalHosts, is_local_hop
from spamnb.mail.limits import visible
from spamnb.mail.results import Result

Fields = list[tuple[bytes, bytes]]

KEEP, SPECIAL, DROP, RECEIVED, RESULTS, PROOF, JUNK = range(7)
"""The class of a field, in this order: kept; kept and needed by name; dropped; dropped if a local
host wrote it; set apart: results of authentication, and what proves them (see `site_results`); not
a field."""

VERDICT_PARTS: Final = (
    # words that only filters, scanners and gateways put in a field's name
    *(b"spam", b"virus", b"scan", b"junk", b"phish", b"malware", b"bogosity", b"antiabuse"),
    *(b"amavis", b"barracuda", b"bitdefender", b"brightmail", b"clamav", b"cloudmark", b"dspam"),
    *(b"greylist", b"ironport", b"kaspersky", b"policyd", b"popfile", b"postfilter"),
    *(b"proofpoint", b"purgate", b"pyzor", b"razor", b"rspamd", b"sophos", b"symantec"),
    *(b"asg-", b"fortimail", b"mimecast", b"messagelabs", b"drweb", b"mailcleaner", b"vade"),
)
VERDICT_STARTS: Final = (
    *(b"x-rc", b"x-cm", b"x-vr", b"x-sbb", b"x-dcc-", b"x-crm114", b"x-assp", b"x-ham"),
    *(b"x-mox-reason", b"x-tm-as-", b"x-kas-", b"x-klms-", b"x-kse-", b"x-eset", b"x-sbrs"),
    *(b"x-ms-exchange-organization-scl", b"x-ms-exchange-organization-pcl", b"x-forefront"),
    *(b"x-text-classification", b"x-gmx-", b"x-pmx", b"x-amp-", b"x-mdav", b"x-eopattribut"),
    *(b"xstatus", b"xlevel", b"xflag", b"xscore", b"xchecker", b"x-ovh-", b"x-hmailserver-"),
)
MAILBOX_STARTS: Final = (
    # flags that a mailbox or a mail program writes into the message
    *(b"x-status", b"x-uid", b"x-keywords", b"x-pmflags", b"x-mozilla-", b"x-evolution"),
    *(b"x-imap", b"x-account-key", b"x-folder", b"x-gnus-", b"x-gm-", b"x-claws", b"x-sylpheed"),
)
DELIVERY_STARTS: Final = (
    *(b"x-envelope-", b"x-original-to", b"x-rcpt-to", b"x-delivered-to", b"x-apparently-to"),
    *(b"x-sieve", b"x-mailbox-line"),
)
EXACT: Final = frozenset(
    (
        *(b"status", b"content-length", b"x-kmail", b"return-path", b"x-return-path"),
        *(b"delivered-to", b"delivery-date", b"envelope-to"),
    )
)
TRACES: Final = {
    b"received": RECEIVED,
    b"authentication-results": RESULTS,
    b"arc-authentication-results": DROP,
    b"received-spf": RESULTS,
    b"x-received-spf": RESULTS,
    b"x-spamnb-results": PROOF,
    b"x-spamnb-border": PROOF,
    b"x-spamnb-place": PROOF,
}
SPECIAL_NAMES: Final = frozenset(
    (
        *(b"content-type", b"content-transfer-encoding", b"content-disposition", b"message-id"),
        *(b"from", b"to", b"subject", b"date", b"sender", b"reply-to"),
    )
)
LISTED_NAMES: Final = (b"subject", b"from")
"""The fields that a list of messages shows."""
VISIBLE_NAMES: Final = (
    *(*LISTED_NAMES, b"to", b"cc", b"reply-to", b"sender", b"date", b"message-id"),
    *(b"content-type", b"content-transfer-encoding", b"content-disposition"),
)
STARTS: Final = VERDICT_STARTS + MAILBOX_STARTS + DELIVERY_STARTS

NAME = re.compile(rb"[!-9;-~]++[ \t]*+")

_FOLDED = re.compile(rb"[^\n]*(?:\n[ \t][^\n]*)*")
"""a value, with its continuation lines"""
NAMED_FIELDS: Final = {
    name: re.compile(rb"\n" + name + rb"[ \t]*+:") for name in sorted(SPECIAL_NAMES)
}

_classes: dict[bytes, tuple[bytes, int]] = {}


class Trace(NamedTuple):
    """A results field: it counts only if the site's own server wrote it."""

    line: int
    """its number in the unfolded block"""
    field: int
    """its place among the fields of the block"""
    name: bytes
    value: bytes


class ReceivedField(NamedTuple):
    """A Received field at the top."""

    line: int
    is_local: bool
    """whether it names a host of the site as its writer"""
    value: bytes


class Proof(NamedTuple):
    """A field by which results may be proven."""

    line: int
    lines: int
    """the number of kept lines above it"""
    value: bytes


@dataclass(slots=True)
class Block:
    """A header block without the fields that are not part of the message."""

    lines: list[bytes] = field(default_factory=list)
    """unfolded lines, without blanks before the colon, which some MTAs remove"""
    fields: Fields = field(default_factory=list)
    """(lower-case name, value without outer blanks), in order"""
    special: dict[bytes, bytes] = field(default_factory=dict)
    """first values of the fields that are needed by name"""
    other: dict[bytes, bytes] = field(default_factory=dict)
    """what other programs may read instead: the last value of a field that occurs twice, or fields
    after a line that is no field"""
    other_body: int = -1
    """start of the body for programs that skip such a line; -1: all programs see the same start"""
    traces: list[Trace] = field(default_factory=list)
    """results fields under any name, in order; they are in neither lines nor fields"""
    hops: list[ReceivedField] = field(default_factory=list)
    """the first two Received fields"""
    borders: list[Proof] = field(default_factory=list)
    statements: list[Proof] = field(default_factory=list)
    place: Proof | None = None
    """the first X-Spamnb-Place"""
    proven: list[Trace] = field(default_factory=list)
    """results fields that the site wrote, once they are proven"""
    results: list[Result] = field(default_factory=list)
    """what they say"""

    def canonical(self) -> bytes:
        """The unfolded lines and the blank line."""
        return b"\n".join([*self.lines, b"\n"])


def _classify(name: bytes) -> tuple[bytes, int]:
    if len(name) > limits.LINE_BYTES or NAME.fullmatch(name) is None:
        return b"", JUNK
    low = name.rstrip(b" \t").lower()
    if low in TRACES:
        return low, TRACES[low]
    if low in EXACT or low.startswith(STARTS) or any(part in low for part in VERDICT_PARTS):
        return low, DROP
    return low[: limits.NAME_BYTES], SPECIAL if low in SPECIAL_NAMES else KEEP


def _classify_cached(name: bytes) -> tuple[bytes, int]:
    """Classify a field by its name, and cache the class: a look-up is 40 ns, a check 4 us."""
    field_class = _classify(name)
    if len(name) <= limits.NAME_BYTES:
        if len(_classes) >= limits.NAMES_KNOWN:
            _classes.clear()
        _classes[name] = field_class
    return field_class


def _set_apart(block: Block, line: int, low: bytes, value: bytes) -> None:
    """Note a field that proves results."""
    proof = Proof(line, len(block.lines), value.strip())
    if low == b"x-spamnb-border":
        block.borders.append(proof)
    elif low == b"x-spamnb-results":
        block.statements.append(proof)
    elif block.place is None:
        block.place = proof


def unfold(head: bytes) -> bytes:
    """Give the block one line a field (RFC 5322 2.2.3)."""
    return head.replace(b"\n\t", b"\t").replace(b"\n ", b" ")


def parse_block(head: bytes, local: LocalHosts, marks: set[str]) -> Block | None:
    """Keep the fields of a block that belong to the message; None if a line in it is no field."""
    block = Block()
    keep_line, keep_field = block.lines.append, block.fields.append
    known, special = _classes.get, block.special
    plain = frozenset((KEEP,)) if local.hosts else frozenset((KEEP, RECEIVED))
    lines = unfold(head).split(b"\n", limits.HEADER_LINES)
    rest = lines.pop() if len(lines) > limits.HEADER_LINES else b""
    for number, line in enumerate(lines):
        name, colon, value = line.partition(b":")
        low, field_class = known(name) or _classify_cached(name)
        if not colon:
            return None
        if field_class not in plain:
            if field_class == JUNK:
                return None
            if field_class == SPECIAL:
                if low in special:
                    marks.add("header:double-" + low.decode("ascii"))
                    block.other[low] = value.strip()
                else:
                    special[low] = value.strip()
            elif field_class == RECEIVED:
                is_local = is_local_hop(value, local)
                if len(block.hops) < 2:
                    block.hops.append(ReceivedField(number, is_local, value))
                if is_local:
                    continue
            else:
                if field_class == RESULTS and len(low) == len(name):
                    at = len(block.fields)
                    block.traces.append(Trace(number, at, low, value.strip()))
                elif field_class == PROOF:
                    _set_apart(block, number, low, value)
                continue
        keep_line(line if len(low) == len(name) else name.rstrip(b" \t") + b":" + value)
        keep_field((low, value.strip()))
    if rest:
        marks.add("header:many")
        keep_line(rest)
        _add_named(block, rest)
    return block


def named_in(lines: bytes) -> Fields:
    """The first and the last field of each needed name, from unfolded lines."""
    low = b"\n" + lines.lower()
    found = []
    for name, pattern in NAMED_FIELDS.items():
        first = pattern.search(low)
        if first is not None:
            last = max(low.rfind(b"\n" + name + b":"), first.start())
            found += [(at, name) for at in {first.start(), last}]
    return [(name, _value_at(lines, at)) for at, name in sorted(found)]


def _value_at(lines: bytes, at: int) -> bytes:
    end = lines.find(b"\n", at)
    return lines[at : end if end >= 0 else len(lines)].partition(b":")[2].strip()


def _add_named(block: Block, rest: bytes) -> None:
    """Add the needed fields from the lines beyond the limit."""
    for name, value in named_in(rest):
        block.fields.append((name, value))
        if block.special.setdefault(name, value) != value:
            block.other[name] = value


def shown_field(head: bytes, name: bytes) -> str:
    """A field of a header block with any line ends, safe to show on one line; empty without.

    A long one is cut in its middle: a long name in From does not hide the address.
    """
    found = NAMED_FIELDS[name].search(b"\n" + head.lower())
    if found is None:
        return ""
    folded = _FOLDED.match(head, found.end() - 1)
    assert folded is not None, "the pattern matches nothing, too"
    value = unfold(folded[0].replace(b"\r\n", b"\n")).strip()
    half = limits.SHOWN_BYTES // 2
    return shown_value(value if len(value) <= 2 * half else value[:half] + value[-half:])


def shown_value(value: bytes) -> str:
    """The value of a field, decoded, as it was written, and safe to show on one line."""
    written = written_text(value[: limits.VALUE_BYTES], set())
    text = written.decode("ascii") if isinstance(written, bytes) else written
    return visible(" ".join(text.split()))


def first_non_field(head: bytes) -> int:
    """Find the first line that is neither a field nor a continuation line."""
    at = 0
    for line in head.split(b"\n", limits.HEADER_LINES):
        name, colon, _ = line.partition(b":")
        if not (line[:1] in (b" ", b"\t") and at) and (not colon or _classify(name)[1] == JUNK):
            break
        at += len(line) + 1
    return at


def split(
    buffer: bytes, span: tuple[int, int], local: LocalHosts, marks: set[str]
) -> tuple[Block, int]:
    """The header block of the LF message at `span`, and the start of its body.

    A line that is no field ends the block, as in Postfix and in the standard library; if it were
    skipped, as in many programs, the sender could choose what is header and what is body.
    """
    start, end = span
    if start >= end or buffer.startswith(b"\n", start):
        return Block(), min(start + 1, end)
    blank = buffer.find(b"\n\n", start, end)
    head = buffer[start:blank] if blank >= 0 else buffer[start:end].rstrip(b"\r\n")
    block = parse_block(head, local, marks) if head else Block()
    if block is not None:
        return block, blank + 2 if blank >= 0 else end
    at = first_non_field(head)
    marks.add("header:none" if at == 0 else "header:junk")
    block = (parse_block(head[: at - 1], local, set()) if at else None) or Block()
    if blank >= 0:
        block.other = content_fields(unfold(head[at:]))
        block.other_body = blank + 2
    return block, start + at


def content_fields(lines: bytes) -> dict[bytes, bytes]:
    """The unfolded fields that determine how a body is read; the last of each name."""
    return {name: value for name, value in named_in(lines) if name.startswith(b"content-")}


def has_long_visible(block: Block) -> bool:
    """Whether a field that a list of messages shows is longer than the part that is read."""
    most, first = limits.SHOWN_BYTES, block.special.get
    if len(first(b"subject", b"")) > most or len(first(b"from", b"")) > most:
        return True
    if not block.other:
        return False
    return any(len(block.other.get(name, b"")) > most for name in LISTED_NAMES)


def visible_first(fields: Fields) -> Fields:
    """As many fields as the limit allows, in order; visible fields take precedence."""
    if len(fields) <= limits.FIELDS:
        return fields
    most = limits.SHOWN_FIELDS
    shown: set[int] = set()
    for name in VISIBLE_NAMES:
        at = [number for number, (low, _) in enumerate(fields) if low == name]
        shown.update(at[:most], at[-most:])
    others = (number for number in range(len(fields)) if number not in shown)
    taken = sorted((*shown, *islice(others, limits.FIELDS - len(shown))))
    return [fields[number] for number in taken]


def features(block: Block, marks: set[str]) -> list[tuple[bytes, Text]]:
    """Give the fields of a block, decoded, within the limits."""
    fields = visible_first(block.fields)
    if len(fields) < len(block.fields):
        marks.add("header:huge")
    left = limits.HEADER_BYTES
    sizes = [len(name) + min(len(value), limits.VALUE_BYTES) for name, value in fields]
    if sum(sizes) > left:
        marks.add("header:huge")
        fields = _within(fields, sizes, left)
    if any(len(value) > limits.VALUE_BYTES for _, value in fields):
        marks.add("header:long")
    return [(name, header_text(value[: limits.VALUE_BYTES], marks)) for name, value in fields]


def _within(fields: Fields, sizes: list[int], left: int) -> Fields:
    """The fields that fit, in order; visible fields take precedence."""
    taken = []
    for number in sorted(range(len(fields)), key=lambda n: fields[n][0] not in VISIBLE_NAMES):
        left -= sizes[number]
        if left < 0:
            break
        taken.append(number)
    return [fields[number] for number in sorted(taken)]
