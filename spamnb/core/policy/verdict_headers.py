"""The header lines that this program adds to a message; forged copies of them are removed.

    header_end(data, start) -> int              just after the blank line, or -1
    remove_forged(header) -> bytes              without forged copies, else byte for byte
    replace_headers(header, block, tag)         the block, then the header without forged copies
    add_to_message(raw, block, tag)             the same for a whole message without stuffed dots
    as_delivered(raw) -> bytes                  a message as the next hop gets it, without the block
    format_headers(verdict), unscanned_block(reason), signature_block(signature) -> bytes

A header section comes in wire form: CRLF (LF is understood), dots stuffed. A receiver removes one
dot from the start of a line (RFC 5321 4.5.2), so `.X-Spam-Flag: NO` is a forged copy there, and
`. more` continues the line before.

Invariants. The added lines are ASCII, CRLF, below 78 columns, and contain no text of a message
except sanitised clues. Whatever the message, its first line cannot continue the last added one: if
it is no header line, a blank line ends the block, as Postfix does with such messages (smtpd.c,
data_cmd). An mbox line stays first, because it belongs to no message, and `message.read` and
Postfix both look for it only there. `message.read` gives `as_delivered(raw)` and the message with
the block one digest, unless the subject is tagged; and `raw` itself, unless a forged copy follows a
line that is no field.

Nothing here fails: an unknown reason is written as a fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Literal, get_args

from spamnb.core.model.costs import DECISIONS, Costs, Decision, thresholds

if TYPE_CHECKING:  # the quarantine commands run without numpy, which would double their time
    from spamnb.core.model.verdict import Clue

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
"""Every continuation is written out: before Python 3.11.5, and Debian 12 has 3.11.2, a possessive
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
"""in a clue: with these a reader may see an encoded word, a comment or the end of a value"""


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


def _normalized(name: bytes) -> bytes:
    """A header name as the most lenient reader may understand it."""
    return name.translate(_LOWER, _UNSEEN)


def _is_own(line: bytes) -> bool:
    name, colon, _ = line.partition(b":")
    name = _normalized(_WIRE_DOT.sub(b"", name))
    return bool(colon) and (name in OWN_HEADERS or name.startswith(OWN_PREFIX))


def remove_forged(header: bytes) -> bytes:
    """The header section without forged copies of the added lines; the rest byte for byte."""
    if b"x-spam" not in _normalized(header):  # 4 us for 3 KB; line by line it takes 20
        return header
    return b"".join([line for line in _LINE.findall(header) if not _is_own(line)])


def replace_headers(header: bytes, block: bytes, tag: bytes = b"") -> bytes:
    """The block, then the message's header section without forged copies of the added lines.

    `tag` goes before the subject's text; without a subject there will be one.
    """
    rest = remove_forged(header)
    if not block and not tag:
        return rest
    first = _mailbox_end(rest)
    joint = b"" if _starts_with_field(rest, first) else b"\r\n"
    before, rest = rest[:first], rest[first:]
    if tag:
        rest, found = (rest, False) if joint else _tag_subjects(rest, tag)
        block += b"" if found else b"Subject: " + tag.rstrip() + b"\r\n"
    return before + block + joint + rest


def add_to_message(raw: bytes, block: bytes, tag: bytes = b"") -> bytes:
    """A whole message with the block, dots not stuffed, as the next hop gets it."""
    end = header_end(raw)
    header = raw if end < 0 else raw[:end]
    wire = replace_headers(_DOT.sub(b"..", header), block, tag)
    return _STUFFED.sub(b"", wire) + raw[len(header) :]


def as_delivered(raw: bytes) -> bytes:
    """A whole message without forged copies: the delivered message without the block."""
    end = header_end(raw)
    return (
        add_to_message(raw, b"") if b"x-spam" in _normalized(raw if end < 0 else raw[:end]) else raw
    )


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


# --- the added lines ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerdictHeaders:
    """What the added header lines say about one message."""

    label: str
    probability: float
    log_odds: float
    decision: Decision
    junk_log_odds: float
    """the log-odds of the junk threshold: see `junk_threshold`"""
    signature: str = ""
    reason: str = ""
    """the rule that decided instead of the model: a few words in lower case with hyphens"""
    redirect: str = ""
    clues: tuple[Clue, ...] = ()
    version: str = ""


def junk_threshold(costs: Costs) -> float:
    """The log-odds from which a message is junk, or worse; inf if no message ever is."""
    harsh = DECISIONS[DECISIONS.index("junk") :]
    found = [edge.log_odds for edge in thresholds(costs) if edge.decision in harsh]
    return found[0] if found else float("inf")


def score_of(verdict: VerdictHeaders) -> float:
    """The score, always on the side of the decision, also where a list or a rule decided."""
    flagged = verdict.decision in ("junk", "reject")
    if verdict.log_odds == -inf and not flagged:
        return 0.0  # no label of the model is spam, so there is no score
    score = round(
        min(999.0, max(-999.0, REQUIRED_SCORE + verdict.log_odds - verdict.junk_log_odds)), 1
    )
    return max(score, REQUIRED_SCORE) if flagged else min(score, REQUIRED_SCORE - 0.1)


def format_headers(verdict: VerdictHeaders) -> bytes:
    """All added lines for a message that was scanned."""
    score = score_of(verdict)
    yes = verdict.decision in ("junk", "reject")
    status = (
        f"{'Yes' if yes else 'No'}, score={score:.1f}, required={REQUIRED_SCORE:.1f}, "
        f"tests=SPAMNB_{verdict.decision.upper()}, version={verdict.version or '0'}"
    )
    summary = f"{verdict.decision}; label={verdict.label}; p={verdict.probability:.4f}"
    if verdict.reason:
        summary += f"; reason={verdict.reason}"
    lines = [
        f"X-Spam-Flag: {'YES' if yes else 'NO'}",
        _fold("X-Spam-Status", status),
        f"X-Spam-Score: {score:.1f}",
        f"X-Spam-Level: {'*' * min(MAX_STARS, int(score))}".rstrip(),
        _fold("X-Spamnb-Verdict", summary),
    ]
    if verdict.redirect:
        lines.append(_fold("X-Spamnb-Redirect", verdict.redirect))
    if verdict.clues:
        lines.append(_fold("X-Spamnb-Clues", ", ".join(map(_clue_text, verdict.clues))))
    if verdict.signature:
        lines.append(f"X-Spamnb-Signature: {verdict.signature}")
    return _encode(lines)


def unscanned_block(reason: str) -> bytes:
    """The line for a message that was passed without a scan."""
    known = reason if reason in REASONS else "fault"
    return _encode([f"X-Spamnb-Verdict: unscanned; reason={known}"])


def released_block(signature: str) -> bytes:
    """The lines for a released message: later filters must not file it as junk."""
    lines = ["X-Spam-Flag: NO", "X-Spam-Status: No, tests=SPAMNB_RELEASED"]
    lines.append("X-Spamnb-Verdict: released")
    return _encode(lines) + signature_block(signature)


def signature_block(signature: str) -> bytes:
    """The one line for a message in observe mode; empty without a signature."""
    return _encode([f"X-Spamnb-Signature: {signature}"]) if signature else b""


def _encode(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, ""]).encode("ascii", "replace")


def _clue_text(clue: Clue) -> str:
    """A clue without characters that a header parser interprets; its text comes from the sender."""
    text = _UNSAFE.sub("_", clue.token)[:_CLUE_CHARACTERS]
    return f"{clue.place}:{text} {clue.nats:+.2f}"


def _fold(name: str, value: str) -> str:
    """Fold a field at its blanks (RFC 5322 2.2.3)."""
    lines, line = [], f"{name}:"
    for word in value.split():
        if len(line) + 1 + len(word) > COLUMNS:
            lines.append(line)
            line = ""
        line += f" {word}"
    return "\r\n".join([*lines, line])
