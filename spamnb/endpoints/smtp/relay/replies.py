"""Every reply that we say ourselves, in one table. What the next hop says is relayed as it came.

Nothing internal stands in them: no class names, paths, clues. A fault of ours or of the next hop
is a 4xx, never a 5xx, so that the sender keeps the message (architecture, law 1 and 5).
"""

from __future__ import annotations

import re

_ENHANCED = re.compile(r"([245])\.[0-9]{1,3}\.[0-9]{1,3}(?: |\Z)")


def line(code: int, enhanced: str, text: str) -> bytes:
    """A reply of one line; the enhanced code is RFC 3463's."""
    return f"{code} {enhanced} {text}\r\n".encode("ascii", "replace")


# -- the dialogue ---------------------------------------------------------------------------------
BYE = line(221, "2.0.0", "Bye")
DONE = line(250, "2.0.0", "Ok")
VERIFY = line(252, "2.5.2", "Send some mail, I'll try my best")
SYNTAX = line(500, "5.5.2", "Syntax error, command unrecognized")
BARE_COMMAND = line(500, "5.5.2", "Commands end in CR LF and hold no other CR, LF or NUL")
LONG_COMMAND = line(500, "5.5.2", "Line too long")
UNKNOWN = line(502, "5.5.1", "Command not implemented")
SEQUENCE = line(503, "5.5.1", "Command out of sequence")

# -- who may do what ------------------------------------------------------------------------------
NOT_YOU = line(554, "5.7.1", "No mail from this client here")
NOT_TRUSTED = line(550, "5.7.1", "Not permitted for this client")
NOT_OURS = line(550, "5.7.1", "Relaying denied")
ONE_RECIPIENT = line(452, "4.5.3", "One recipient a transaction here")
TOO_MANY_RECIPIENTS = line(452, "4.5.3", "Too many recipients")
TOO_BIG = line(552, "5.3.4", "Message size exceeds the limit")

# -- limits and ends ------------------------------------------------------------------------------
CROWDED = line(421, "4.3.2", "Too many connections, try again later")
CROWDED_CLIENT = line(421, "4.7.0", "Too many connections from your address")
TOO_MANY_COMMANDS = line(421, "4.7.0", "Too many commands without a message")
TOO_MANY_ERRORS = line(421, "4.7.0", "Too many errors")
SLOW = line(421, "4.4.2", "Too slow while others wait, try again later")
TIMEOUT = line(421, "4.4.2", "Timeout exceeded")
CLOSING = line(421, "4.3.2", "Service shutting down, try again later")
FAULT_CLOSING = line(421, "4.3.0", "Temporary fault, try again later")
NO_PROXY = line(421, "4.3.2", "Try again later")
NO_UPSTREAM = line(421, "4.4.1", "Next hop not available, try again later")
LOST_UPSTREAM = line(421, "4.4.2", "Next hop lost, try again later")

# -- at the end of a message ----------------------------------------------------------------------
BARE_NEWLINE = line(550, "5.5.2", "Lines end in CR LF; this message has a bare CR or LF")
LONG_HEADER = line(552, "5.3.4", "Message header size exceeds the limit")
LONG_HEADER_LATER = line(451, "4.3.4", "Message header size exceeds the limit")
UPSTREAM_GONE = line(451, "4.4.2", "Next hop lost, try again later")
UPSTREAM_LATE = line(451, "4.4.2", "Next hop timed out, try again later")
FAULT = line(451, "4.3.0", "Temporary fault, try again later")

KEPT_TEXT = "Ok: accepted"
REFUSED_TEXT = "Message refused"
DEFERRED_TEXT = "Not now, try again later"


def with_text(code: int, enhanced: str, text: bytes, otherwise: str) -> bytes:
    """A reply whose text came from inside the house, made safe for the wire.

    The text may bring an enhanced code of its own.
    """
    shown = "".join(c if " " <= c <= "~" else "?" for c in text.decode("ascii", "replace"))
    own = _ENHANCED.match(shown)
    if own and own[1] == str(code)[0]:
        enhanced, shown = own[0].rstrip(), shown[own.end() :]
    return line(code, enhanced, (shown or otherwise)[:400])


def with_reference(reply: bytes, reference: str) -> bytes:
    """A reply that names the line in the log which tells more of it."""
    return reply.removesuffix(b"\r\n") + f" (reference {reference})\r\n".encode("ascii")


def greeting(hostname: str, speech: str) -> bytes:
    """The first line of a session."""
    name = "LMTP" if speech == "lmtp" else "ESMTP"
    return f"220 {hostname} {name}\r\n".encode("ascii", "replace")


def code_of(reply: bytes) -> int:
    """The three digits that a reply starts with."""
    return int(reply[:3])
