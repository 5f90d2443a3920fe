"""Our header lines: written before a message, and forged copies of them taken out of it.

    header_end(data, start) -> int      just after the blank line that ends the section, or -1
    cleaned(header) -> bytes            without forged copies of our lines, else byte for byte
    stamped(header, block, tag)         our block, then the cleaned header, its subject tagged
    written(raw, block, tag)            the same for a whole message without stuffed dots
    as_delivered(raw) -> bytes          such a message as the next hop gets it, but for our block
    block_of(said), unscanned_block(reason), signature_block(signature) -> bytes

A header section comes in wire form: CRLF (LF is understood), dots stuffed. A receiver takes one dot
away from the start of a line (RFC 5321 4.5.2), so `.X-Spam-Flag: NO` is a forged copy there, and
`. more` goes on with the line before.

Invariants. Our lines are ASCII, CRLF, below 78 columns, and no text of a message is in them but
sanitised clues. Whatever the message, its first line cannot go on with our last one: if it is no
header line, a blank line ends the block, as Postfix does with such messages (smtpd.c, data_cmd).
An mbox line stays first, for it belongs to no message, and our own reader and Postfix both look for
it only there. `message.read` gives `as_delivered(raw)` and the stamped message one digest, unless
the subject is tagged; and `raw` itself, unless a forged copy stands behind a line that is no field.

Nothing here fails: a reason that is not in the table is told as a fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Literal, get_args

from spamnb.core.model.costs import DECISIONS, Costs, Decision, thresholds

if TYPE_CHECKING:  # the quarantine's commands load no numpy: half of the time that they take
    from spamnb.core.model.verdict import Clue

Reason = Literal["bypass", "large", "overrun", "busy", "model", "known_crasher", "fault"]
"""Why a message was not judged: switched off by hand; above the limit; the scan took too long; too
much waits already; no usable model; an earlier attempt ended the process that scanned it; a fault
of ours."""

REASONS: Final = frozenset(get_args(Reason))
OURS: Final = frozenset((b"x-spam-flag", b"x-spam-status", b"x-spam-score", b"x-spam-level"))
PREFIX: Final = b"x-spamnb-"
REQUIRED: Final = 5.0
"""the score that people know as the line to junk"""
MOST_STARS: Final = 50
COLUMNS: Final = 77
"""of a line without CRLF; RFC 5322 2.1.1 asks for 78 at most"""
_CLUE_CHARACTERS: Final = 40

_BLANK_LINE = re.compile(rb"\n\r?\n")
_LINE = re.compile(rb"[^\r\n]*+(?:\r\n?|\n|\Z)(?:\.?[ \t][^\r\n]*+(?:\r\n?|\n|\Z))*+")
"""one field with its continuation lines; a bare CR ends a line too, as in Python's own reader"""
_FIELD = re.compile(
    rb"(?!\.[ \t:])\.?[!-9;-~]{1,998}+(?:[ \t]|\n[ \t]|\r\n[ \t]|\n\.[ \t]|\r\n\.[ \t])*+:"
)
"""Every way to go on is written out: before Python 3.11.5, and Debian 12 has 3.11.2, a possessive
group that fails behind something optional forgets to go back."""
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
    """Where the body begins, after the blank line; -1 if that line has not come yet.

    `data` begins with the message. `start` is how far an earlier call has looked.
    """
    if data[:2] == b"\r\n":
        return 2
    if data[:1] == b"\n":
        return 1
    found = _BLANK_LINE.search(data, max(0, start - 2))
    return found.end() if found else -1


def _plain(name: bytes) -> bytes:
    """A name as the most lenient reader may understand it."""
    return name.translate(_LOWER, _UNSEEN)


def _is_ours(line: bytes) -> bool:
    name, colon, _ = line.partition(b":")
    name = _plain(_WIRE_DOT.sub(b"", name))
    return bool(colon) and (name in OURS or name.startswith(PREFIX))


def cleaned(header: bytes) -> bytes:
    """The header section without forged copies of our lines; the rest byte for byte."""
    if b"x-spam" not in _plain(header):  # 4 us for 3 KB; line by line it takes 20
        return header
    return b"".join([line for line in _LINE.findall(header) if not _is_ours(line)])


def stamped(header: bytes, block: bytes, tag: bytes = b"") -> bytes:
    """Our block, then the message's header section without forged copies of our lines.

    `tag` goes before the subject's text; without a subject there will be one.
    """
    rest = cleaned(header)
    if not block and not tag:
        return rest
    first = _mailbox_end(rest)
    joint = b"" if _starts_well(rest, first) else b"\r\n"
    before, rest = rest[:first], rest[first:]
    if tag:
        rest, found = (rest, False) if joint else _tagged(rest, tag)
        block += b"" if found else b"Subject: " + tag.rstrip() + b"\r\n"
    return before + block + joint + rest


def written(raw: bytes, block: bytes, tag: bytes = b"") -> bytes:
    """A whole message, dots not stuffed, as the next hop gets it."""
    end = header_end(raw)
    header = raw if end < 0 else raw[:end]
    wire = stamped(_DOT.sub(b"..", header), block, tag)
    return _STUFFED.sub(b"", wire) + raw[len(header) :]


def as_delivered(raw: bytes) -> bytes:
    """A whole message without forged copies: as it is when our block is taken out again."""
    end = header_end(raw)
    return written(raw, b"") if b"x-spam" in _plain(raw if end < 0 else raw[:end]) else raw


def _mailbox_end(header: bytes) -> int:
    """Where the mbox lines at the head end."""
    at = 0
    while found := _MAILBOX_LINE.match(header, at):
        at = found.end()
    return at


def _starts_well(header: bytes, at: int) -> bool:
    """Whether the first line is a field or the blank line, so that it ends what stands before."""
    return header.startswith((b"\r\n", b"\n"), at) or _FIELD.match(header, at) is not None


def _tagged(header: bytes, tag: bytes) -> tuple[bytes, bool]:
    """Tag each subject, and say whether there was one."""
    lines, found = _LINE.findall(header), False
    for index, line in enumerate(lines):
        if _FIELD.match(line) is None:
            break  # the header ends here for us and for Postfix: see `headers.split`
        name = _SUBJECT.match(line)
        if name is not None:
            text = line[name.end() :]
            lines[index] = line[: name.end()] + b" " + tag.rstrip() + b" " + text.lstrip(b" \t")
            found = True
    return b"".join(lines), found


# --- our own lines -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerdictHeaders:
    """What our header lines say of one message."""

    label: str
    probability: float
    log_odds: float
    decision: Decision
    junk_log_odds: float
    """where junk begins: see `junk_threshold`"""
    signature: str = ""
    reason: str = ""
    """what decided instead of the model: a few words of lower case and hyphens"""
    redirect: str = ""
    clues: tuple[Clue, ...] = ()
    version: str = ""


def junk_threshold(costs: Costs) -> float:
    """The log-odds from which a message is junk, or worse; inf if nothing ever is."""
    harsh = DECISIONS[DECISIONS.index("junk") :]
    found = [edge.log_odds for edge in thresholds(costs) if edge.decision in harsh]
    return found[0] if found else float("inf")


def score_of(said: VerdictHeaders) -> float:
    """The score, always on the side of the decision, also where a list or a rule decided."""
    flagged = said.decision in ("junk", "reject")
    if said.log_odds == -inf and not flagged:
        return 0.0  # no label of the model is spam, so nothing is said of it
    score = round(min(999.0, max(-999.0, REQUIRED + said.log_odds - said.junk_log_odds)), 1)
    return max(score, REQUIRED) if flagged else min(score, REQUIRED - 0.1)


def format_headers(said: VerdictHeaders) -> bytes:
    """All our lines for a message that was judged."""
    score = score_of(said)
    yes = said.decision in ("junk", "reject")
    status = (
        f"{'Yes' if yes else 'No'}, score={score:.1f}, required={REQUIRED:.1f}, "
        f"tests=SPAMNB_{said.decision.upper()}, version={said.version or '0'}"
    )
    verdict = f"{said.decision}; label={said.label}; p={said.probability:.4f}"
    lines = [
        f"X-Spam-Flag: {'YES' if yes else 'NO'}",
        _folded("X-Spam-Status", status),
        f"X-Spam-Score: {score:.1f}",
        f"X-Spam-Level: {'*' * min(MOST_STARS, int(score))}".rstrip(),
        _folded("X-Spamnb-Verdict", verdict + (f"; reason={said.reason}" if said.reason else "")),
    ]
    if said.redirect:
        lines.append(_folded("X-Spamnb-Redirect", said.redirect))
    if said.clues:
        lines.append(_folded("X-Spamnb-Clues", ", ".join(map(_shown, said.clues))))
    if said.signature:
        lines.append(f"X-Spamnb-Signature: {said.signature}")
    return _encoded(lines)


def unscanned_block(reason: str) -> bytes:
    """The line of a message that was passed without being judged."""
    known = reason if reason in REASONS else "fault"
    return _encoded([f"X-Spamnb-Verdict: unscanned; reason={known}"])


def released_block(signature: str) -> bytes:
    """The lines of a message that a person let go on: nobody behind us files it as junk."""
    lines = ["X-Spam-Flag: NO", "X-Spam-Status: No, tests=SPAMNB_RELEASED"]
    lines.append("X-Spamnb-Verdict: released")
    return _encoded(lines) + signature_block(signature)


def signature_block(signature: str) -> bytes:
    """The one line of a message that is only observed; nothing without a signature."""
    return _encoded([f"X-Spamnb-Signature: {signature}"]) if signature else b""


def _encoded(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, ""]).encode("ascii", "replace")


def _shown(clue: Clue) -> str:
    """A clue without anything that a header's reader would obey; its text is a stranger's."""
    text = _UNSAFE.sub("_", clue.token)[:_CLUE_CHARACTERS]
    return f"{clue.place}:{text} {clue.nats:+.2f}"


def _folded(name: str, value: str) -> str:
    """A field folded at its blanks (RFC 5322 2.2.3)."""
    lines, line = [], f"{name}:"
    for word in value.split():
        if len(line) + 1 + len(word) > COLUMNS:
            lines.append(line)
            line = ""
        line += f" {word}"
    return "\r\n".join([*lines, line])
