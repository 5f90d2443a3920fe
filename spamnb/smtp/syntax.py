"""The syntax of SMTP. Pure.

The table of commands and parsers for their arguments, `DataFramer` for the end of DATA,
`LineBuffer` for lines, and the replies to EHLO. Nothing raises: if a part cannot be parsed, its
text is empty, and the forwarded line is unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from spamnb.mail.envelope import Client, Envelope
from spamnb.mail.limits import visible
from spamnb.net.address import MailProtocol
from spamnb.smtp import delivery_replies, relay_replies

Phase = Literal["start", "ready", "mail", "rcpt"]
"""start: before EHLO; ready: after it; mail: after MAIL; rcpt: after RCPT"""
CommandAction = Literal["say", "hello", "mail", "rcpt", "data", "xforward", "reset", "quit"]

_ALWAYS: frozenset[Phase] = frozenset(("start", "ready", "mail", "rcpt"))
_READY: frozenset[Phase] = frozenset(("ready",))
_MAIL: frozenset[Phase] = frozenset(("mail", "rcpt"))
_RCPT: frozenset[Phase] = frozenset(("rcpt",))


class CommandRule(NamedTuple):
    """What the relay does with a command, and in which phases it is allowed."""

    action: CommandAction
    phases: frozenset[Phase] = _ALWAYS
    reply: bytes = b""


VERBS: dict[bytes, CommandRule] = {
    b"EHLO": CommandRule("hello"),
    b"HELO": CommandRule("hello"),
    b"LHLO": CommandRule("hello"),
    b"XFORWARD": CommandRule("xforward", _READY),
    b"MAIL": CommandRule("mail", _READY),
    b"RCPT": CommandRule("rcpt", _MAIL),
    b"DATA": CommandRule("data", _RCPT),
    b"RSET": CommandRule("reset"),
    b"NOOP": CommandRule("say", reply=relay_replies.DONE),
    b"QUIT": CommandRule("quit"),
    b"VRFY": CommandRule("say", reply=relay_replies.VERIFY),
    # Known and rejected: each would change what the bytes after it mean, or the client's identity.
    b"STARTTLS": CommandRule("say", reply=relay_replies.UNKNOWN),
    b"AUTH": CommandRule("say", reply=relay_replies.UNKNOWN),
    b"BDAT": CommandRule("say", reply=relay_replies.UNKNOWN),
    b"XCLIENT": CommandRule("say", reply=relay_replies.UNKNOWN),
}
UNKNOWN = CommandRule("say", reply=relay_replies.UNKNOWN)

_WORD = re.compile(rb"([A-Za-z]{4,16})(?:[ \t]|\Z)")
WHOLE_COMMAND = re.compile(rb"([A-Za-z]{4,16})(?:[ \t][^\r\n\0]*+)?\r\n")
"""one complete line; group 1 is its verb"""
_MAIL_PATH = re.compile(
    rb"(?i)(?:MAIL[ \t]+FROM|RCPT[ \t]+TO)[ \t]*:[ \t]*"
    rb"(?:<((?:[^\">]|\"(?:[^\"\\]|\\.)*\")*)>|([^ \t<>]+))"
)
_USUAL = re.compile(rb"(?i)(?:MAIL FROM|RCPT TO):<(|[!#-;=?A-\[\]-~][!#-;=?-\[\]-~]*)>")
"""a printable address without quotes and source route: a third of the time"""
_ROUTE = re.compile(r"(?:@[^,:]*,?)*:")
_PLAIN = rb"[A-Za-z0-9.#$&'*+/=?^_`{|}~\x80-\xff-]"
# Not allowed: %, ! and a second @, which some servers take for a route to a third domain, and
# backslash quoting, which servers read differently.
_SAFE_RCPT = re.compile(
    rb"(?i)RCPT[ \t]+TO:[ \t]*<(" + _PLAIN + rb'+|"(?:' + _PLAIN + rb'|[ ])*")'
    rb"@([A-Za-z0-9._\x80-\xff-]+)>(?:[ \t]+[A-Za-z0-9-]+(?:=[!-;=?-~\x80-\xff]*)?)*[ \t]*"
)
_POSTMASTER = re.compile(rb"(?i)RCPT[ \t]+TO:[ \t]*<postmaster>[ \t]*")


def verb_of(line: bytes) -> tuple[bytes, CommandRule] | None:
    """The command of a line (without its CRLF) in capitals, and its rule; None if it has none."""
    found = _WORD.match(line)
    if found is None:
        return None
    word = found[1].upper()
    return word, VERBS.get(word, UNKNOWN)


def is_whole(line: bytes) -> bool:
    """Whether every server reads these bytes, with their line end, as one line.

    Only lines that every server reads alike are forwarded: letters, then a blank or the end of the
    line, without CR, LF or NUL inside. The next hop could read any other line as two commands
    (command smuggling). Pure. Parsing never fails: if a part cannot be parsed, its text is empty,
    and the forwarded line is unchanged.
    """
    return (
        line.endswith(b"\r\n")
        and line.count(b"\r") == 1
        and line.count(b"\n") == 1
        and b"\0" not in line
    )


def path_of(line: bytes) -> str:
    """The address in a MAIL or RCPT line, without brackets and source route."""
    if found := _USUAL.match(line):
        return found[1].decode("ascii")
    found = _MAIL_PATH.match(line)
    if found is None:
        return ""
    path = _value(found[1] if found[1] is not None else found[2])
    route = _ROUTE.match(path) if path.startswith("@") else None
    return path[route.end() :] if route else path


def argument_of(line: bytes) -> str:
    """The text after the verb."""
    return _value(line.partition(b" ")[2].strip())[:256]


def _value(raw: bytes) -> str:
    """Visible text that stays one word of an address: a quarantined message is sent on with it."""
    return visible(raw.decode("utf-8", "replace"), word=True)


def declared_bytes(line: bytes) -> int:
    """The SIZE that a MAIL line declares; 0 without one."""
    found = re.search(rb"(?i)[ \t]SIZE=([0-9]{1,18})(?=[ \t]|\Z)", line)
    return int(found[1]) if found else 0


def is_for(line: bytes, domains: frozenset[str]) -> bool:
    """Whether every server reads a RCPT line as a recipient in one of the domains."""
    found = _SAFE_RCPT.fullmatch(line)
    if found is None:
        return _POSTMASTER.fullmatch(line) is not None
    # No IDNA here: it merges names that other servers distinguish, such as with a soft hyphen.
    return found[2].decode("utf-8", "replace").rstrip(".").lower() in domains


def _xtext(value: bytes) -> str:
    decoded = re.sub(rb"\+([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), value)
    return _value(decoded)[:256]


def envelope_of(
    mail: bytes, rcpts: list[bytes], xforwards: list[bytes], client: Client
) -> Envelope:
    """The envelope of these lines (without CRLF) from the connected client."""
    return Envelope(
        sender=path_of(mail),
        recipients=tuple([path_of(line) for line in rcpts]),
        client=client_of(client, xforwards) if xforwards else client,
        mail_line=mail,
        rcpt_lines=tuple(rcpts),
        xforward_lines=tuple(xforwards),
    )


def client_of(known: Client, lines: list[bytes]) -> Client:
    """The client with the attributes of XFORWARD lines in place of the observed ones."""
    attributes: dict[str, str] = {}
    for line in lines:
        for word in line.split()[1:]:
            name, equals, value = word.partition(b"=")
            text = _xtext(value)
            if equals and text not in {"[UNAVAILABLE]", "[TEMPUNAVAIL]"}:
                attributes[name.decode("ascii", "replace").upper()] = text
    address = attributes.get("ADDR", known.address)
    return Client(
        address=address[5:] if address[:5].upper() == "IPV6:" else address,
        name=attributes.get("NAME", known.name),
        helo=attributes.get("HELO", known.helo),
        ident=attributes.get("IDENT", known.ident),
        source=attributes.get("SOURCE", known.source),
    )


MAX_LOCAL_BYTES: Final = 64
MAX_DOMAIN_BYTES: Final = 255
"""RFC 5321 4.5.3.1"""

_ATOMS = r"[^\s<>@\"\\(),:;\[\]\x00-\x20\x7f]+"
_QUOTED = r"\"(?:[^\"\\\x00-\x1f\x7f]|\\[\x20-\x7e])*\""
_DOMAIN = r"\[[\x21-\x5a\x5e-\x7e]{1,80}\]|[^\s<>@\"\\(),:;\[\]\x00-\x20\x7f]+"
_PATH = re.compile(
    rf"[ \t]*<(?:@[^:<>\s\x00-\x20\x7f]{{1,255}}:)?(?:({_ATOMS}|{_QUOTED})(?:@({_DOMAIN}))?)?>"
    r"((?:[ \t]+[!-~]+)*)[ \t]*"
)
"""The source route before the colon is dropped (RFC 5321 4.1.1.3)."""
_PARAM = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([!-<>-~]+))?")
_XFORWARD = re.compile(r"([A-Za-z]{1,20})=([!-~]{0,1000})")
XFORWARD: Final = "NAME ADDR PORT PROTO HELO IDENT SOURCE"


class Path(NamedTuple):
    """An address and its ESMTP parameters."""

    address: str
    """empty for the null sender"""
    params: dict[str, str]
    """names in upper case"""


def read_path(word: str, arg: str | None) -> Path | None:
    """Parse `FROM:<...>` or `TO:<...>`.

    An address is the text between the angle brackets. The email package's parser, which aiosmtpd
    uses, decodes encoded words in it, so that one address becomes another, even with CRLF in it.
    This parser rejects what is not an address of RFC 5321 4.1.2, and every control character. Pure.
    None means: invalid syntax.
    """
    arg = arg or ""
    if arg[: len(word)].upper() != word:
        return None
    found = _PATH.fullmatch(arg[len(word) :])
    if found is None:
        return None
    local, domain = found[1] or "", found[2] or ""
    if (
        len(local.encode("utf-8", "surrogateescape")) > MAX_LOCAL_BYTES
        or len(domain) > MAX_DOMAIN_BYTES
    ):
        return None
    params: dict[str, str] = {}
    for one in found[3].split():
        param = _PARAM.fullmatch(one)
        if param is None or param[1].upper() in params:
            return None
        params[param[1].upper()] = param[2] or ""
    return Path(f"{local}@{domain}" if domain else local, params)


def is_text(address: str) -> bool:
    """Whether an address is valid UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in address)


def read_client(known: Client, arg: str | None) -> Client | None:
    """Add the attributes of one XFORWARD command to a client."""
    words = (arg or "").split()
    if not words or not all(_XFORWARD.fullmatch(word) for word in words):
        return None
    return client_of(known, [f"XFORWARD {arg}".encode("ascii", "replace")])


END = b"\r\n.\r\n"
CR, LF, DOT = (np.array(sign, np.uint8) for sign in b"\r\n.")
"""as arrays: a comparison with a number costs 0.2 us more each time"""
_WINDOW = 65536
"""bytes scanned at once: 100 KB at once take 110 us instead of 26, because of new memory"""

# Postfix, too, takes a run of CR before LF for one line end (smtp_stream.c); if each CR ended a
# line, CR CR LF in a header section would end it. Group 1: a wire line `.` with an invalid line
# end must not become an end of DATA. Group 3: a dot at the start of a line made by normalising.
_BARE = re.compile(
    rb"((?<=\r\n)\.)?(?:(\r\r+\n)|(?:\r++(?!\n)|(?<!\r)\n)(\.?))"
)  # fmt: skip
_PAIR = b"\r\n"


def _line_ends(data: bytes) -> tuple[bool, int]:
    """Whether every CR and LF is part of a CR LF; the index of the first LF before a dot, or -1.

    Byte by byte in numpy: 4 us for 5 KB. Counting CR LF, CR and LF and searching for the end would
    take 10 us.
    """
    seen = np.frombuffer(data, np.uint8)
    clean, dot = not (data.startswith(b"\n") or data.endswith(b"\r")), -1
    for start in range(0, len(data), _WINDOW):
        part = seen[start : start + _WINDOW + 1]  # one more, for a pair across the border
        is_lf = part == LF
        clean = clean and (part[:-1] == CR).tobytes() == is_lf[1:].tobytes()
        if dot < 0 and len(part) > 1:
            at = start + int((is_lf[:-1] & (part[1:] == DOT)).argmax())
            dot = at if data[at : at + 2] == b"\n." else -1
    return clean, dot


def _normalised(found: re.Match[bytes]) -> bytes:
    return (b".." if found[1] else b"") + _PAIR + (b".." if found[3] else b"")


@dataclass(slots=True)
class DataFramer:
    """The framing state of one message's DATA.

    Works on the wire form (dots stuffed) in pieces of any size; the result does not depend on how
    the data is split. Only CR LF . CR LF ends a message. Every other CR or LF (a run of CR before
    an LF, a bare CR, a bare LF) becomes one CR LF; a dot that this puts at the start of a line is
    stuffed. So nothing in the output of `feed` can end DATA at the next hop, whatever it accepts as
    a line end: SMTP smuggling, CVE-2023-51764 and similar. Pure; never fails.
    """

    bare: bool = False
    """whether a bare CR or LF occurred"""
    dotted: bool = False
    """whether a line may begin with a dot; if not, there is nothing to unstuff"""
    rest: bytes = b""
    """the bytes after the end"""
    _previous: bytes = _PAIR
    """The line end before the next byte, already returned: the normalised one (LF) or the sender's,
    or nothing. At first that of the DATA command, so that an immediate dot ends the message."""
    _pending: bytes = b""
    """bytes with a meaning that depends on the next ones"""

    def feed(self, chunk: bytes) -> tuple[bytes, bool]:
        """Take a piece; return the bytes that may be forwarded, and whether it ends here."""
        before = self._previous
        data = before + self._pending + chunk
        clean, dot = _line_ends(data)
        end = data.find(END, max(0, dot - 1)) if dot >= 0 else -1
        if dot >= 0 and dot != end + 1:
            self.dotted = True
        if end >= 0:
            self.rest = data[end + 5 :]
            if clean:
                return data[2 if before else 0 : end + 2], True
            data = data[: end + 2]
        else:
            data = self._split_pending(data)
        if not (clean or _line_ends(data)[0]):
            self.bare = self.dotted = True
            data = _BARE.sub(_normalised, data)
        return (data[2:] if before else data), end >= 0

    def _split_pending(self, data: bytes) -> bytes:
        """Keep back the last bytes while their meaning depends on the next ones."""
        self._previous = self._pending = b""
        if data[-1:] not in b"\r\n.":
            return data
        body = data.rstrip(b"\r")
        # A run of CR of any length means the same as two, so only two are kept.
        run = b"\r" * min(2, len(data) - len(body))
        if body.endswith(b"\n"):
            self._previous = _PAIR if body.endswith(_PAIR) else b"\n"
        elif body.endswith(b"\r\n."):
            self._previous, run, body = _PAIR, b"." + run, body[:-1]
        self._pending = run
        return body


def unstuffed(data: bytes) -> bytes:
    """The message as sent: one dot less on each line that begins with one (RFC 5321, 4.5.2)."""
    if data.startswith(b"."):
        data = data[1:]
    return data.replace(b"\r\n.", b"\r\n") if _line_ends(data)[1] >= 0 else data


RELAYED_KEYWORDS = frozenset(
    (b"SIZE", b"8BITMIME", b"SMTPUTF8", b"DSN", b"ENHANCEDSTATUSCODES", b"PIPELINING")
)
TRUSTED_KEYWORDS = frozenset((b"XFORWARD",))

UPSTREAM_HELLO: dict[tuple[bytes, MailProtocol], bytes] = {
    (b"EHLO", "smtp"): b"EHLO",
    (b"HELO", "smtp"): b"HELO",
    (b"LHLO", "smtp"): b"EHLO",
    (b"EHLO", "lmtp"): b"LHLO",
    (b"HELO", "lmtp"): b"LHLO",
    (b"LHLO", "lmtp"): b"LHLO",
}
"""(the client's command, the next hop's protocol) -> the command for the next hop"""

_NUMBER = re.compile(rb"[0-9]{1,18}")

CLIENT_HELLOS: dict[MailProtocol, frozenset[bytes]] = {
    "smtp": frozenset((b"EHLO", b"HELO")),
    "lmtp": frozenset((b"LHLO",)),
}
"""the hello commands that a client may use (RFC 2033, 4.1: EHLO is no command of LMTP)"""


def upstream_command(line: bytes, upstream: MailProtocol) -> bytes:
    """The line for the next hop."""
    return UPSTREAM_HELLO[line[:4].upper(), upstream] + line[4:]


def client_hello_reply(
    reply: bytes, line: bytes, hostname: str, *, trusted: bool, limit: int
) -> bytes:
    """The reply to the client's EHLO, made from the next hop's reply.

    The relay announces only extensions that the next hop has and that a relay can honour. Never
    STARTTLS, AUTH, CHUNKING, BINARYMIME, ETRN, VRFY, XCLIENT or anything unknown. Pure; never
    fails.
    """
    name = hostname.encode("ascii", "replace")
    if line[:4].upper() == b"HELO":
        return b"250 " + name + b"\r\n"
    kept = [name]
    for offer in reply.split(b"\r\n")[1:-1]:
        words = offer[4:].split()
        keyword = words[0].upper() if words else b""
        if keyword == b"SIZE":
            kept.append(_size(words, limit))
        elif keyword in RELAYED_KEYWORDS or (trusted and keyword in TRUSTED_KEYWORDS):
            kept.append(offer[4:])
    lines = [b"250-" + text for text in kept[:-1]] + [b"250 " + kept[-1]]
    return b"\r\n".join(lines) + b"\r\n"


def _size(words: list[bytes], limit: int) -> bytes:
    theirs = int(words[1]) if len(words) > 1 and _NUMBER.fullmatch(words[1]) else 0
    both = [number for number in (theirs, limit) if number]
    return b"SIZE %d" % min(both) if both else b"SIZE"


_DSN: Final = {"MAIL": {"RET", "ENVID"}, "RCPT": {"NOTIFY", "ORCPT"}}
"""Postfix's proxy sends them although DSN is not announced; a rejection would bounce the
message."""


def mail_refusal(path: Path, limit_bytes: int, *, extended: bool) -> str:
    """The reply that rejects a MAIL command; empty if it is accepted.

    Pure. Announced parameters are checked; DSN's (RFC 3461) are accepted and ignored; all others
    are rejected, so that no client believes that an unknown parameter has an effect.
    """
    params = dict(path.params)
    if params and not extended:
        return delivery_replies.UNKNOWN_PARAMETER
    if params.pop("BODY", "7BIT").upper() not in {"7BIT", "8BITMIME"}:
        return delivery_replies.BAD_PARAMETER
    utf8 = params.pop("SMTPUTF8", None)
    size = params.pop("SIZE", "0")
    if utf8 or not (size.isascii() and size.isdigit() and len(size) <= 20):
        return delivery_replies.BAD_PARAMETER
    if int(size) > limit_bytes:
        return delivery_replies.TOO_BIG
    params.pop("AUTH", None)  # RFC 4954 5: ignored from untrusted clients
    if params.keys() - _DSN["MAIL"]:
        return delivery_replies.UNKNOWN_PARAMETER
    return _address_refusal(path.address, utf8=utf8 is not None)


def rcpt_refusal(path: Path, *, utf8: bool) -> str:
    """The reply that rejects a RCPT command; empty if it is accepted."""
    if path.params.keys() - _DSN["RCPT"]:
        return delivery_replies.UNKNOWN_PARAMETER
    refusal = "" if path.address else delivery_replies.BAD_RCPT
    return _address_refusal(path.address, utf8=utf8) or refusal


def _address_refusal(address: str, *, utf8: bool) -> str:
    if not is_text(address):
        return delivery_replies.BAD_ADDRESS
    return "" if utf8 or address.isascii() else delivery_replies.NEEDS_UTF8


class LineBuffer:
    """A queue of bytes with line access."""

    __slots__ = ("_at", "_data", "is_skipping", "left", "skipped")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self.left = 0
        """bytes in the buffer"""
        self.is_skipping = False
        """whether the rest of a too long line is being dropped"""
        self.skipped = 0
        """bytes dropped from too long lines"""

    def append(self, data: bytes) -> None:
        """Add received bytes."""
        self._data = self._data[self._at :] + data
        self._at, self.left = 0, len(self._data)

    def take_all(self) -> bytes:
        """Remove and return all bytes."""
        data = self._data[self._at :]
        self.clear()
        return data

    def peek(self) -> bytes:
        """Return all bytes without removing them."""
        return self._data[self._at :]

    def skip(self, count: int) -> None:
        """Remove that many bytes."""
        self._at += count
        self.left -= count

    def clear(self) -> None:
        """Remove all bytes."""
        self._data, self._at, self.left = b"", 0, 0

    def line(self, most: int) -> bytes:
        """Remove and return the next line with its LF; empty if it is incomplete.

        Of a line above `most` bytes the beginning is returned, without LF; the rest is dropped.
        """
        while True:
            end = self._data.find(b"\n", self._at) + 1
            if not end:
                return self._unfinished(most)
            line = self._data[self._at : end]
            self._at, self.left = end, len(self._data) - end
            if not self.is_skipping:
                return line
            self.is_skipping = False
            self.skipped += len(line)

    def _unfinished(self, most: int) -> bytes:
        if self.is_skipping:
            self.skipped += self.left
            self.clear()
        elif self.left > most:
            line = self._data[self._at : self._at + most + 1]
            self.skipped += self.left - len(line)
            self.clear()
            self.is_skipping = True
            return line
        return b""
