"""The table of SMTP commands and the phases they are allowed in; parsers for their arguments.

Only lines that every server reads alike are forwarded: letters, then a blank or the end of the
line, without CR, LF or NUL inside. The next hop could read any other line as two commands (command
smuggling). Pure. Parsing never fails: if a part cannot be parsed, its text is empty, and the
forwarded line is unchanged.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.core.mail.printable import visible
from spamnb.endpoints.smtp.relay import replies

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
    b"NOOP": CommandRule("say", reply=replies.DONE),
    b"QUIT": CommandRule("quit"),
    b"VRFY": CommandRule("say", reply=replies.VERIFY),
    # Known and rejected: each would change what the bytes after it mean, or the client's identity.
    b"STARTTLS": CommandRule("say", reply=replies.UNKNOWN),
    b"AUTH": CommandRule("say", reply=replies.UNKNOWN),
    b"BDAT": CommandRule("say", reply=replies.UNKNOWN),
    b"XCLIENT": CommandRule("say", reply=replies.UNKNOWN),
}
UNKNOWN = CommandRule("say", reply=replies.UNKNOWN)

_WORD = re.compile(rb"([A-Za-z]{4,16})(?:[ \t]|\Z)")
WHOLE_COMMAND = re.compile(rb"([A-Za-z]{4,16})(?:[ \t][^\r\n\0]*+)?\r\n")
"""one complete line; group 1 is its verb"""
_PATH = re.compile(
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
    """Whether every server reads these bytes, with their line end, as one line."""
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
    found = _PATH.match(line)
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
