"""Requests of administrative operations: the caller, the fields and the reply.

An endpoint identifies the caller and frames the request; `operations` checks the caller's right and
reads the fields by its table. Failure: UserError for a field of a wrong type or value, RefusedError
for a caller that acts for another user without the right.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from spamnb.core.policy.rulings import WORDS, Word
from spamnb.errors import RefusedError, UserError
from spamnb.service.feedback.types import Feedback, ListTarget, SenderChange, Trust

Header = dict[str, Any]
"""the fields of a request or a reply, as values of JSON"""
Role = Literal["admin", "delegate", "self"]
Field = Callable[[Header, str], Any]
"""reads one field of a request"""

MOST_REFS = 16
_REF_CHARS = 1000
_CLIENT_CHARS = 64
MAILBOXES = ("imap", "maildir")
"""Channels that read a user's mailbox. Their server confirms that a message is the user's own, even
if it is older than the history or than this installation."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request, as identified by the endpoint."""

    uid: int
    role: Role
    login: str


def login_of(uid: int) -> str:
    """Return the name of a user; the uid as text if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_id(name: str) -> int | None:
    """Return the id of a user given by name or number; None for an unknown name."""
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


class AdminRequest(NamedTuple):
    """A request; the operation that reads its body knows the size limit."""

    caller: Caller
    header: Header
    body: Callable[[int], bytes]
    """reads the body; UserError if it is longer than the given limit"""
    save_body: Callable[[int, int], None]
    """writes the body, at most the given number of bytes, to a descriptor"""


class AdminResponse(NamedTuple):
    """The reply to a request."""

    header: Header
    body: bytes = b""


RequestHandler = Callable[[AdminRequest], AdminResponse]
"""handles requests; called by many threads"""


# --- fields --------------------------------------------------------------------------------------


def read_fields(fields: Mapping[str, Field], header: Header) -> Header:
    """Return the values of these fields."""
    return {name: read(header, name) for name, read in fields.items()}


def text(header: Header, name: str) -> str:
    """Read a string, by default empty."""
    found = header.get(name, "")
    if not isinstance(found, str):
        raise UserError(f"`{name}` must be a string")
    return found


def label(header: Header, name: str) -> str:
    """Read a label."""
    if not (found := text(header, name)):
        raise UserError("no label is given")
    return found


def word(header: Header, name: str) -> Word | None:
    """Read `wanted` or `unwanted`; None without one."""
    given = text(header, name)
    found: Word | None = next((one for one in WORDS if one == given), None)
    if given and found is None:
        raise UserError(f"`{name}` must be {' or '.join(WORDS)}, or empty")
    return found


def positive(header: Header, name: str) -> int:
    """Read a whole number of 1 or more."""
    found = header.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 1 << 63:
        raise UserError(f"`{name}` must be a whole number of 1 or more")
    return found


def share(header: Header, name: str) -> float:
    """Read a number between 0 and 1, by default 0.5."""
    found = header.get(name, 0.5)
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 < found < 1:
        raise UserError(f"`{name}` must be a number between 0 and 1")
    return float(found)


def boolean(header: Header, name: str) -> bool:
    """Read true or false."""
    found = header.get(name)
    if not isinstance(found, bool):
        raise UserError(f"`{name}` must be true or false")
    return found


def anything(header: Header, name: str) -> Any:
    """Read a value that the operation checks; None without one."""
    return header.get(name)


def references(header: Header, name: str) -> tuple[str, ...]:
    """Read a list of references to one message."""
    refs = header.get(name, [])
    good = isinstance(refs, list) and len(refs) <= MOST_REFS
    if not good or not all(isinstance(ref, str) and len(ref) <= _REF_CHARS for ref in refs):
        raise UserError(f"`{name}` must be a list of at most {MOST_REFS} references")
    return tuple(refs)


def _trust(header: Header, name: str) -> str:
    found = text(header, name)
    if found and found not in get_args(Trust):
        raise UserError(f"`{name}` must be admin, user or stranger")
    return found


SOURCE: dict[str, Field] = {"for": text, "trust": _trust, "channel": text, "person": text}
"""the user and the channel of a change, and the person that it is for"""
SENDERS = SOURCE | {"domain": text}
"""whose list of senders it is: that of the site if an admin names no person and no domain"""
SENDER = SENDERS | {"word": word, "sender": text, "refs": references}
FEEDBACK = SOURCE | {"label": text, "refs": references, "domain": text, "client": text}


# --- the user of a request -----------------------------------------------------------------------


def feedback_of(caller: Caller, fields: Header, raw: bytes) -> Feedback:
    """Build a feedback from `FEEDBACK`, with the user and trust that the caller may claim."""
    user, trust = speaker_of(caller, fields)
    channel = fields["channel"] or "api"
    admin = caller.role == "admin"
    if fields["person"] and not admin:
        raise RefusedError(f"{caller.login} may not label for a person", hint="leave out `person`")
    return Feedback(
        label=fields["label"],
        raw=raw,
        refs=fields["refs"],
        user=user,
        channel=channel,
        trust=trust,
        vouched=channel in MAILBOXES and caller.role in ("admin", "delegate"),
        domain=fields["domain"] if admin else "",
        client=fields["client"][:_CLIENT_CHARS] if admin else "",
        person=fields["person"],
    )


def sender_change_of(caller: Caller, fields: Header, raw: bytes) -> SenderChange:
    """Build a change of a list of senders from `SENDERS` and the fields of the sender."""
    target = target_of(caller, fields)
    return SenderChange(target, fields["word"], fields["sender"], raw, fields["refs"])


def target_of(caller: Caller, fields: Header) -> ListTarget:
    """Return whose list of senders a request from `SENDERS` means; RefusedError without a right."""
    user, trust = speaker_of(caller, fields)
    return ListTarget(user, trust, fields["person"], fields["domain"])


def speaker_of(caller: Caller, fields: Header) -> tuple[str, Trust]:
    """Return the user that the caller acts for, and the user's trust level."""
    named, trust = fields["for"], fields["trust"]
    if caller.role == "admin":
        return named or caller.login, trust or ("user" if named else "admin")
    if named and caller.role != "delegate" and named != caller.login:
        raise RefusedError(
            f"{caller.login} may not act for {named}", hint="see serve.delegates in the settings"
        )
    return named or caller.login, "stranger" if trust == "stranger" else "user"
