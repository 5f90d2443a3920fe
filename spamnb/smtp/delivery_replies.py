"""All replies of the delivery agent, in one table. They reveal nothing internal."""

from __future__ import annotations

import re
from typing import Final

BUSY: Final = "421 4.3.2 Too many connections, try again later"
STOPPING: Final = "421 4.3.2 Service shutting down, try again later"
TIMEOUT: Final = "421 4.4.2 Timeout exceeded, closing connection"
TOO_MANY_FAILURES: Final = "421 4.7.0 Too many failed logins, closing connection"

SENDER_OK: Final = "250 2.1.0 Sender OK"
RECIPIENT_OK: Final = "250 2.1.5 Recipient OK"
XFORWARD_OK: Final = "250 2.0.0 Ok"
DELIVERED: Final = "250 2.0.0 Delivered"
THANKS: Final = "250 2.0.0 Report accepted, thank you"
IN_PART: Final = "250 2.0.0 Report accepted in part, the rest is discarded"
NOTHING_TAKEN: Final = "250 2.0.0 Received, but nothing was learnt from it"
GO_ON: Final = "354 End data with <CR><LF>.<CR><LF>"
VRFY: Final = "252 2.1.5 Cannot VRFY user, but will accept message and attempt delivery"

FAULT: Final = "451 4.3.0 Temporary internal error, try again later"
NOT_STORED: Final = "451 4.3.0 The message cannot be stored in the mailbox, try again later"
NO_ROOM: Final = "452 4.3.1 Insufficient memory for this message, try again later"
NO_TEACHER: Final = "451 4.3.0 Reports cannot be processed now, try again later"
TOO_MUCH: Final = "450 4.7.1 Report not learnt, the daily limit is reached, try again later"
TOO_MANY_RECIPIENTS: Final = "452 4.5.3 Too many recipients"
ONE_REPORT: Final = "452 4.5.3 A report must have no other recipient, send it separately"
NO_TLS: Final = "454 4.7.0 TLS is not available"
SLOW_DOWN: Final = "454 4.7.0 Too many failed logins, wait a minute"

BAD_PARAMETER: Final = "501 5.5.4 Invalid parameter"
BAD_MAIL: Final = "501 5.5.4 Syntax: MAIL FROM:<address>"
BAD_RCPT: Final = "501 5.5.4 Syntax: RCPT TO:<address>"
BAD_DATA: Final = "501 5.5.4 Syntax: DATA"
BAD_HELLO: Final = "501 5.5.4 Syntax: EHLO hostname"
BAD_XFORWARD: Final = "501 5.5.4 Syntax: XFORWARD NAME=value ..."
BAD_LOGIN: Final = "501 5.5.2 Invalid credentials syntax"
NO_SUCH: Final = "502 5.5.1 Command not available here"
HELLO_FIRST: Final = "503 5.5.1 Send EHLO or LHLO first"
NESTED: Final = "503 5.5.1 Sender already given"
NO_SENDER: Final = "503 5.5.1 Send MAIL first"
NO_RECIPIENT: Final = "503 5.5.1 Send RCPT first"
IN_TRANSACTION: Final = "503 5.5.1 Not allowed within a mail transaction"
TWICE: Final = "503 5.5.1 Already done"
UNKNOWN_MECHANISM: Final = "504 5.5.4 Unknown mechanism, use PLAIN or LOGIN"
WRONG_LOGIN: Final = "535 5.7.8 Wrong login or password"
TLS_FIRST: Final = "538 5.7.11 Encryption required, send STARTTLS first"
UNKNOWN_USER: Final = "550 5.1.1 No such mailbox"
NOT_LEARNT: Final = "550 5.6.0 Report not learnt: it contains no message that can be learnt"
RELAYING: Final = "550 5.7.1 Relaying denied"
NOT_YOU: Final = "550 5.7.1 This command is not permitted for this client"
TOO_BIG: Final = "552 5.3.4 Message size exceeds the limit"
BAD_ADDRESS: Final = "553 5.1.3 Invalid address"
NEEDS_UTF8: Final = "553 5.6.7 This address requires SMTPUTF8"
UNKNOWN_PARAMETER: Final = "555 5.5.4 Unknown parameter"
LOGGED_IN: Final = "235 2.7.0 Authentication successful"

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_BARE = re.compile(rb"([245])(\d\d) (?!\d\.\d{1,3}\.\d{1,3})")
_ENHANCED = {b"500": b"5.5.2", b"501": b"5.5.4", b"502": b"5.5.1", b"503": b"5.5.1"}


def clean(reply: str | bytes, hostname: str) -> bytes:
    """One reply line for the wire: no control characters, always with an enhanced status code.

    Greetings have none (RFC 2034 4). aiosmtpd's own replies echo what the client sent.
    """
    raw = reply.encode("ascii", "replace") if isinstance(reply, str) else reply
    raw = _CONTROL.sub(b"?", raw)
    found = _BARE.match(raw)
    if found is None or raw[4:].startswith(hostname.encode("ascii", "replace")):
        return raw
    code = raw[:3]
    return code + b" " + _ENHANCED.get(code, found[1] + b".0.0") + raw[3:]
