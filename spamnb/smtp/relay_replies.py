"""All replies that the relay itself sends. The next hop's replies are relayed unchanged.

They reveal nothing internal: no class names, paths or clues. A fault of the relay or of the next
hop is a 4xx, never a 5xx, so that the sender keeps the message.
"""

from __future__ import annotations

import re

_ENHANCED = re.compile(r"([245])\.[0-9]{1,3}\.[0-9]{1,3}(?: |\Z)")


def line(code: int, enhanced: str, text: str) -> bytes:
    """A reply of one line; the enhanced code is that of RFC 3463."""
    return f"{code} {enhanced} {text}\r\n".encode("ascii", "replace")


# -- commands -------------------------------------------------------------------------------------
BYE = line(221, "2.0.0", "Bye")
DONE = line(250, "2.0.0", "Ok")
VERIFY = line(252, "2.5.2", "Cannot VRFY user, but will accept message and attempt delivery")
SYNTAX = line(500, "5.5.2", "Syntax error, command unrecognized")
BARE_COMMAND = line(
    500, "5.5.2", "Command lines must end in CRLF and contain no other CR, LF or NUL"
)
LONG_COMMAND = line(500, "5.5.2", "Line too long")
UNKNOWN = line(502, "5.5.1", "Command not implemented")
SEQUENCE = line(503, "5.5.1", "Command out of sequence")

# -- permissions ----------------------------------------------------------------------------------
CLIENT_DENIED = line(554, "5.7.1", "Access denied: this client may not connect")
NOT_TRUSTED = line(550, "5.7.1", "This command is not permitted for this client")
RELAY_DENIED = line(550, "5.7.1", "Relaying denied")
ONE_RECIPIENT = line(452, "4.5.3", "Only one recipient per message, send to the others separately")
TOO_MANY_RECIPIENTS = line(452, "4.5.3", "Too many recipients")
TOO_BIG = line(552, "5.3.4", "Message size exceeds the limit")

# -- limits and ends ------------------------------------------------------------------------------
CROWDED = line(421, "4.3.2", "Too many connections, try again later")
CROWDED_CLIENT = line(421, "4.7.0", "Too many connections from your address")
TOO_MANY_COMMANDS = line(421, "4.7.0", "Too many commands without a message, closing connection")
TOO_MANY_ERRORS = line(421, "4.7.0", "Too many errors, closing connection")
SLOW = line(421, "4.4.2", "Data arrives too slowly while the server is busy, try again later")
TIMEOUT = line(421, "4.4.2", "Timeout exceeded")
CLOSING = line(421, "4.3.2", "Service shutting down, try again later")
FAULT_CLOSING = line(421, "4.3.0", "Temporary internal error, try again later")
NO_PROXY = line(421, "4.3.2", "PROXY protocol header missing or invalid")
NO_UPSTREAM = line(421, "4.4.1", "Mail server not reachable, try again later")
LOST_UPSTREAM = line(421, "4.4.2", "Connection to the mail server lost, try again later")

# -- at the end of a message ----------------------------------------------------------------------
BARE_NEWLINE = line(550, "5.5.2", "Message contains a bare CR or LF; lines must end in CRLF")
LONG_HEADER = line(552, "5.3.4", "Message header size exceeds the limit")
LONG_HEADER_LATER = line(451, "4.3.4", "Message header size exceeds the limit")
UPSTREAM_GONE = line(451, "4.4.2", "Connection to the mail server lost, try again later")
UPSTREAM_LATE = line(451, "4.4.2", "Mail server timed out, try again later")

KEPT_TEXT = "Ok: accepted"
REFUSED_TEXT = "Message rejected"
DEFERRED_TEXT = "Temporary failure, try again later"


def with_text(code: int, enhanced: str, text: bytes, otherwise: str) -> bytes:
    """A reply with the scanner's text, made safe for the wire.

    The text may begin with an enhanced code, which then replaces the given one.
    """
    shown = "".join(c if " " <= c <= "~" else "?" for c in text.decode("ascii", "replace"))
    own = _ENHANCED.match(shown)
    if own and own[1] == str(code)[0]:
        enhanced, shown = own[0].rstrip(), shown[own.end() :]
    return line(code, enhanced, (shown or otherwise)[:400])


def with_reference(reply: bytes, reference: str) -> bytes:
    """A reply that names the reference of its log line."""
    return reply.removesuffix(b"\r\n") + f" (reference {reference})\r\n".encode("ascii")


def greeting(hostname: str, speech: str) -> bytes:
    """The first line of a session."""
    name = "LMTP" if speech == "lmtp" else "ESMTP"
    return f"220 {hostname} {name}\r\n".encode("ascii", "replace")
