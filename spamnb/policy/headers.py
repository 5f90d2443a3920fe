"""Header fields that the filter adds, and forged copies of them.

`scanned_fields` and its siblings make the fields, `remove_forged` removes copies, `verdict_for`
says what a verdict means for a message, and `marked_message_id` is how the doctor asks for a
verdict of junk. Nothing here fails: an unknown reason is written as a fault. Invariants: the added
lines are ASCII, CRLF, below 78 columns, and contain no text of a message except sanitised clues.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import blake2b
from hmac import compare_digest
from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeVar, get_args

from spamnb.mail.envelope import LocalHosts, is_local_hop
from spamnb.mail.results import claims
from spamnb.mail.site_results import BORDER, PROOF_NAMES, STATEMENT, own_statement, place_line
from spamnb.model.costs import DECISIONS, Costs, Decision, thresholds

if TYPE_CHECKING:
    from spamnb.mail.headers import Block
    from spamnb.model.verdict import Clue

Reason = Literal["bypass", "large", "overrun", "busy", "model", "known_crasher", "fault"]
"""Why a message was not scanned: disabled by the administrator; above the size limit; the scan took
too long; the queue is full; no usable model; an earlier attempt crashed the process that scanned
it; an error in this program."""

REASONS: Final = frozenset(get_args(Reason))
OWN_HEADERS: Final = frozenset((b"x-spam-flag", b"x-spam-status", b"x-spam-score", b"x-spam-level"))
OWN_PREFIX: Final = b"x-spamnb-"
REQUIRED_SCORE: Final = 5.0
"""the score that other software takes as the threshold of junk"""
MAX_STARS: Final = 50
COLUMNS: Final = 77
"""of a line without CRLF; RFC 5322 2.1.1 asks for 78 at most"""
_CLUE_CHARACTERS: Final = 40

_BLANK_LINE = re.compile(rb"\n\r?\n")
_LINE = re.compile(rb"[^\r\n]*+(?:\r\n?|\n|\Z)(?:\.?[ \t][^\r\n]*+(?:\r\n?|\n|\Z))*+")
"""one field with its continuation lines; a bare CR ends a line too, as in Python's own reader"""
_FIELD = re.compile(
    rb"(?!\.[ \t:])\.?[!-9;-~]{1,998}+(?:[ \t]|\n[ \t]|\r\n[ \t]|\n\.[ \t]|\r\n\.[ \t])*+:"
)
"""Every continuation is written out: before Python 3.11.5 (Debian 12 has 3.11.2), a possessive
group that fails after something optional does not backtrack correctly."""
_SUBJECT = re.compile(rb"\.?subject[ \t]*+:", re.IGNORECASE)
_MAILBOX_LINE = re.compile(rb"\.?>?From [^\n]*+\n")
_WIRE_DOT = re.compile(rb"(?<![^\r\n])\.")
_DOT = re.compile(rb"^\.", re.MULTILINE)
_STUFFED = re.compile(rb"^\.(?!\r?$)", re.MULTILINE)
_UNSEEN: Final = bytes(n for n in range(256) if not 0x21 <= n <= 0x7E)
"""what some readers skip or trim in a name: blanks, controls, line ends, 8-bit"""
_LOWER: Final = bytes(range(256)).lower().replace(b"_", b"-")
_UNSAFE = re.compile(r"[^!-~]|[=;,()<>\"\\?]")
"""Characters of a clue in which a reader may see an encoded word, a comment or the end of a
value."""


# --- the message's own header ------------------------------------------------------------------


def header_end(data: bytes | bytearray, start: int = 0) -> int:
    """Where the body begins, after the blank line; -1 if that line has not arrived yet.

    `data` begins with the message. `start` is how far an earlier call has looked.
    """
    if data[:2] == b"\r\n":
        return 2
    if data[:1] == b"\n":
        return 1
    found = _BLANK_LINE.search(data, max(0, start - 2))
    return found.end() if found else -1


def normalized(name: bytes) -> bytes:
    """A header name as the most lenient reader may understand it."""
    return name.translate(_LOWER, _UNSEEN)


def is_own(name: bytes, *, shared: bool = True) -> bool:
    """Whether a field of this name claims to be one of the added ones.

    Fields that prove results are none: a code in them says whether they are forged.
    """
    name = normalized(name)
    return (name.startswith(OWN_PREFIX) and name not in PROOF_NAMES) or (
        shared and name in OWN_HEADERS
    )


def _is_forged(line: bytes, *, shared: bool) -> bool:
    name, colon, _ = line.partition(b":")
    return bool(colon) and is_own(_WIRE_DOT.sub(b"", name), shared=shared)


def may_be_forged(header: bytes) -> bool:
    """Whether a header may have forged copies: 4 us for 3 KB; a check line by line takes 20."""
    return b"x-spam" in normalized(header)


def remove_forged(header: bytes, *, shared: bool = True) -> bytes:
    """The header section without forged copies of the added lines; the rest byte for byte.

    A header section comes in wire form: CRLF (LF is understood), dots stuffed. A receiver removes
    one dot from the start of a line (RFC 5321 4.5.2), so `.X-Spam-Flag: NO` is a forged copy there,
    and `. more` continues the line before.

    Some of the names are shared with other filters (X-Spam-Flag). Where another filter marks the
    mail, and this program does not, `shared=False` leaves fields of these names to the other
    filter.
    """
    if not may_be_forged(header):
        return header
    return b"".join([line for line in _LINE.findall(header) if not _is_forged(line, shared=shared)])


def remove_claims(header: bytes, local: LocalHosts, *, received: bool, sent: bool) -> bytes:
    """The header section without results of authentication under the site's names.

    `received`: an MTA of the site wrote the first Received field; what stands above it stays.
    `sent`: the client is a stranger; fields that prove results are removed, too.
    """
    if not local.authserv_ids or not _may_claim(header):
        return header
    lines = _LINE.findall(header)
    first = _first_hop(lines, local) if received else 0
    return b"".join(
        line
        for number, line in enumerate(lines)
        if number < first or not _is_claim(line, local, sent=sent)
    )


def _may_claim(header: bytes) -> bool:
    plain = normalized(header)
    return b"-results" in plain or b"received-spf" in plain or b"x-spamnb-" in plain


def _is_claim(line: bytes, local: LocalHosts, *, sent: bool) -> bool:
    name, colon, value = line.partition(b":")
    plain = normalized(_WIRE_DOT.sub(b"", name))
    return bool(colon) and (
        claims(plain, value, local.authserv_ids) or (sent and plain in PROOF_NAMES)
    )


def _first_hop(lines: list[bytes], local: LocalHosts) -> int:
    """The number of the first Received field if a host of the site wrote it, else 0."""
    for number, line in enumerate(lines):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"received":
            return number if is_local_hop(value, local) else 0
    return 0


def add_fields(header: bytes, fields: Fields, tag: bytes = b"") -> bytes:
    """The fields, then the message's header section, from which forged copies are removed.

    `tag` goes before the subject's text; a message without a subject gets one.
    """
    if not fields and not tag:
        return header
    block, first = as_block(fields), _mailbox_end(header)
    joint = b"" if _starts_with_field(header, first) else b"\r\n"
    before, rest = header[:first], header[first:]
    if tag:
        rest, found = (rest, False) if joint else _tag_subjects(rest, tag)
        block += b"" if found else b"Subject: " + tag.rstrip() + b"\r\n"
    return before + block + joint + rest


def add_to_message(raw: bytes, fields: Fields, tag: bytes = b"") -> bytes:
    """A whole message with the fields, dots not stuffed, as the next hop gets it."""
    end = header_end(raw)
    header = raw if end < 0 else raw[:end]
    if not (fields or tag or may_be_forged(header)):
        return raw
    wire = add_fields(remove_forged(_DOT.sub(b"..", header)), fields, tag)
    return _STUFFED.sub(b"", wire) + raw[len(header) :]


def _mailbox_end(header: bytes) -> int:
    """The end of the mbox lines at the start."""
    at = 0
    while found := _MAILBOX_LINE.match(header, at):
        at = found.end()
    return at


def _starts_with_field(header: bytes, at: int) -> bool:
    """Whether the first line is a field or the blank line, which ends the line before it."""
    return header.startswith((b"\r\n", b"\n"), at) or _FIELD.match(header, at) is not None


def _tag_subjects(header: bytes, tag: bytes) -> tuple[bytes, bool]:
    """Tag each subject; also returns whether there was one."""
    lines, found = _LINE.findall(header), False
    for index, line in enumerate(lines):
        if _FIELD.match(line) is None:
            break  # the header ends here for this program and for Postfix: see `headers.split`
        name = _SUBJECT.match(line)
        if name is not None:
            text = line[name.end() :]
            lines[index] = line[: name.end()] + b" " + tag.rstrip() + b" " + text.lstrip(b" \t")
            found = True
    return b"".join(lines), found


# --- the added fields --------------------------------------------------------------------------

Fields = tuple[tuple[str, str], ...]
"""(name, value) in order, with LF before each folded line: a milter adds them as they are"""


class ScanVerdict(NamedTuple):
    """A message's verdict as the mail path needs it: plain values, fit for JSON."""

    label: str
    probability: float
    log_odds: float
    """of spam against all else; -inf where no label is spam"""
    decision: Decision
    signature: str = ""
    reason: str = ""
    """why the decision is not the model's, or is milder: a few words in lower case with hyphens"""
    clues: tuple[Clue, ...] = ()
    personal: Mapping[str, ScanVerdict] = {}
    """by recipient, for those with corrections of their own"""

    def of(self, recipient: str) -> ScanVerdict:
        """The verdict for one recipient."""
        return self.personal.get(recipient, self)


class Decided(Protocol):
    """A verdict, as far as recipients may agree on it."""

    @property
    def decision(self) -> Decision:
        """The decision."""

    @property
    def log_odds(self) -> float:
        """The higher, the more it is spam."""


AnyVerdict = TypeVar("AnyVerdict", bound=Decided)


def verdict_for(
    shared: AnyVerdict, personal: Mapping[str, AnyVerdict], recipients: Collection[str]
) -> AnyVerdict:
    """The one verdict that a message with these recipients shows.

    A single recipient gets their own verdict. Several get the shared one, unless all of them have
    the same decision and it differs from the shared one: headers must not tell one recipient what
    another one wants.
    """
    found = [personal.get(recipient, shared) for recipient in recipients] if personal else []
    if len(found) == 1:
        return found[0]
    decisions = {one.decision for one in found}
    if len(decisions) != 1 or shared.decision in decisions:
        return shared
    return min(found, key=lambda one: one.log_odds)


def decision_threshold(costs: Costs, least: Decision) -> float:
    """The log-odds above which the decision is `least` or harsher; inf if it never is."""
    harsh = DECISIONS[DECISIONS.index(least) :]
    found = [edge.log_odds for edge in thresholds(costs) if edge.decision in harsh]
    return found[0] if found else float("inf")


def junk_threshold(costs: Costs) -> float:
    """The log-odds above which a message is junk, or worse; inf if no message ever is."""
    return decision_threshold(costs, "junk")


def score_of(verdict: ScanVerdict, junk_log_odds: float) -> float:
    """The score, always on the side of the decision, also where a list or a rule decided.

    `junk_log_odds` is the `junk_threshold`.
    """
    flagged = verdict.decision in ("junk", "reject")
    if verdict.log_odds == -inf and not flagged:
        return 0.0  # no label of the model is spam, so there is no score
    score = _rounded(max(-999.0, REQUIRED_SCORE + verdict.log_odds - junk_log_odds))
    return max(score, REQUIRED_SCORE) if flagged else min(score, REQUIRED_SCORE - 0.1)


def reject_score_of(reject_log_odds: float, junk_log_odds: float) -> float:
    """The score above which a message is rejected; 999 if no message ever is."""
    if reject_log_odds == inf:
        return 999.0
    return _rounded(REQUIRED_SCORE + reject_log_odds - junk_log_odds)


def _rounded(score: float) -> float:
    """Return one decimal place, at most 999; 0.0 for -0.0, which would be printed with its sign."""
    return round(min(999.0, score), 1) + 0.0


def scanned_fields(
    verdict: ScanVerdict, junk_log_odds: float, *, redirect: str = "", version: str = ""
) -> Fields:
    """All fields for a message that was scanned."""
    score = score_of(verdict, junk_log_odds)
    yes = verdict.decision in ("junk", "reject")
    status = (
        f"{'Yes' if yes else 'No'}, score={score:.1f}, required={REQUIRED_SCORE:.1f}, "
        f"tests=SPAMNB_{verdict.decision.upper()}, version={version or '0'}"
    )
    summary = f"{verdict.decision}; label={verdict.label}; p={verdict.probability:.4f}"
    if verdict.reason:
        summary += f"; reason={verdict.reason}"
    fields = [
        ("X-Spam-Flag", "YES" if yes else "NO"),
        _folded("X-Spam-Status", status),
        ("X-Spam-Score", f"{score:.1f}"),
        ("X-Spam-Level", "*" * min(MAX_STARS, int(score))),
        _folded("X-Spamnb-Verdict", summary),
    ]
    if redirect:
        fields.append(_folded("X-Spamnb-Redirect", redirect))
    if verdict.clues:
        fields.append(_folded("X-Spamnb-Clues", ", ".join(map(_clue_text, verdict.clues))))
    return (*fields, *signature_fields(verdict.signature))


def unscanned_fields(reason: str) -> Fields:
    """The field for a message that was passed without a scan."""
    known = reason if reason in REASONS else "fault"
    return (("X-Spamnb-Verdict", f"unscanned; reason={known}"),)


def released_fields(signature: str) -> Fields:
    """The fields for a released message: later filters must not file it as junk."""
    return (
        ("X-Spam-Flag", "NO"),
        ("X-Spam-Status", "No, tests=SPAMNB_RELEASED"),
        ("X-Spamnb-Verdict", "released"),
        *signature_fields(signature),
    )


def signature_fields(signature: str) -> Fields:
    """The one field for a message in observe mode; none without a signature."""
    return (("X-Spamnb-Signature", signature),) if signature else ()


def statement_fields(statement: str) -> Fields:
    """The field that lists the proven results of authentication; none without a list."""
    return (_folded(STATEMENT, statement),) if statement else ()


def border_fields(mark: str) -> Fields:
    """The field of a milter that comes before all others; none without a mark."""
    return ((BORDER, mark),) if mark else ()


def placed(raw: bytes, header_bytes: int, queue: str) -> tuple[bytes, int]:
    """A message for the parser, and the size of its header, where no MTA's Received is on top.

    A message that does not begin with a field has no field that could be believed.
    """
    first = _mailbox_end(raw[:header_bytes])
    if _FIELD.match(raw, first) is None:
        return raw, header_bytes
    line = place_line(queue.encode("ascii", "replace"))
    return raw[:first] + line + raw[first:], header_bytes + len(line)


class OwnResults(NamedTuple):
    """A message with the results that this program found, and the fields that it gets for them."""

    raw: bytes
    header_bytes: int
    fields: Fields


def with_results(
    raw: bytes, header_bytes: int, parts: tuple[Block, bytes], local: LocalHosts, results: str
) -> OwnResults:
    """Put results under the site's name above a message, and what proves them to the parser.

    `parts` are its header block and body. A message that does not begin with a field has no field
    that could be believed.
    """
    first = _mailbox_end(raw[:header_bytes])
    if not local.key or _FIELD.match(raw, first) is None:
        return OwnResults(raw, header_bytes, ())
    value = f"{local.authserv_ids[0]}; {results}"
    proof = own_statement(*parts, value, local)
    fields = (_folded("Authentication-Results", value), _folded(STATEMENT, proof))
    lines = as_block(fields)
    return OwnResults(raw[:first] + lines + raw[first:], header_bytes + len(lines), fields)


def as_block(fields: Fields) -> bytes:
    """The fields as header lines.

    Invariants. The added lines are ASCII, CRLF, below 78 columns, and contain no text of a message
    except sanitised clues. Whatever the message, its first line cannot continue the last added one:
    if it is no header line, a blank line ends the block, as Postfix does with such messages
    (smtpd.c, data_cmd). An mbox line stays first, because it belongs to no message, and
    `message.read` and Postfix both look for it only there. `message.read` gives
    `add_to_message(raw, ())` and the message with the fields the same digest, unless the subject is
    tagged. `raw` itself has this digest, too, unless a forged copy follows a line that is no field.
    """
    text = "".join([f"{name}: {value}\n" for name, value in fields])
    return text.replace(" \n", "\n").replace("\n", "\r\n").encode("ascii", "replace")


def _clue_text(clue: Clue) -> str:
    """A clue without characters that a header parser interprets; its text comes from the sender."""
    text = _UNSAFE.sub("_", clue.token)[:_CLUE_CHARACTERS]
    return f"{clue.location.replace(' ', '-')}:{text} {clue.nats:+.2f}"


def _folded(name: str, value: str) -> tuple[str, str]:
    """A field, folded at the blanks of its value (RFC 5322 2.2.3)."""
    folded, width = "", len(name) + 1
    for word in value.split():
        if width + 1 + len(word) > COLUMNS:
            folded, width = folded + "\n", 0
        folded += f" {word}"
        width += 1 + len(word)
    return name, folded.removeprefix(" ")


_NUMBER_DIGITS: Final = 24
_CODE_BYTES: Final = 16
_TEST_FIELD = re.compile(
    rb"(?im)^message-id[ \t]*:[ \t]*(?:\r?\n[ \t]+)?<doctor\.([0-9a-f]{%d})\.([0-9a-f]{%d})@"
    rb"spamnb\.invalid>" % (_NUMBER_DIGITS, 2 * _CODE_BYTES)
)


def marked_message_id(key: bytes, number: str) -> str:
    """The Message-ID of a test message that is marked as junk; `number` has 24 hex digits.

        <doctor.NUMBER.CODE@spamnb.invalid>

    The code is made by a key of the model, so only a program that can read the model writes it. A
    user who received such a message can send its Message-ID again: only the user's own message is
    then marked as junk. The code is a part of the Message-ID because relays remove header fields
    that are named like those of this program, and leave the Message-ID as it is.
    """
    return f"<doctor.{number}.{_code(key, number.encode())}@spamnb.invalid>"


def asks_for_junk(header: bytes, key: bytes) -> bool:
    """Whether a message is the doctor's, and has to be marked as junk."""
    if not key or b"@spamnb.invalid" not in header:
        return False
    found = _TEST_FIELD.search(header)
    return found is not None and compare_digest(found[2].decode(), _code(key, found[1]))


def _code(key: bytes, number: bytes) -> str:
    return blake2b(number, key=key, digest_size=_CODE_BYTES).hexdigest()
