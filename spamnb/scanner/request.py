"""A request of a scanner client in any of the protocols, and its reply in their common words.

`ClientRequest` is a request, `scan_request` what is scanned, `report_of` the result, `stat_of` what
`rspamc stat` reads, and `teaching_fields` says who teaches. Failure: RequestError, RefusedError,
SpamnbError if the tokens cannot be read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from spamnb.errors import RefusedError
from spamnb.mail.envelope import Client, Envelope, same_name
from spamnb.mail.site_results import is_first_hop
from spamnb.model.verdict import Clue
from spamnb.net.actions import ScanAction
from spamnb.net.address import NetworkSet
from spamnb.operations.logins import ApiToken
from spamnb.operations.request import Caller, login_of
from spamnb.policy.actions import MailAction
from spamnb.policy.headers import (
    REQUIRED_SCORE,
    Fields,
    add_to_message,
    header_end,
    is_own,
    may_be_forged,
)
from spamnb.scan.values import ScanRequest, ScanResult
from spamnb.settings.values import ListenerRules

_NONE = NetworkSet()
MOST_BYTES = 64 << 20
"""of a message, if no other limit is set"""


def _no_rights(uid: int) -> Caller:
    return Caller(uid, "self", login_of(uid))


def _no_token(_text: str) -> ApiToken | None:
    return None


@dataclass(frozen=True, slots=True)
class ScannerParams(ListenerRules):
    """One listener for programs that ask."""

    teachers: NetworkSet = _NONE
    """TCP clients that may name recipients and users, and teach on behalf of users"""
    caller_of: Callable[[int], Caller] = _no_rights
    """the role of a local user on a unix socket"""
    token_of: Callable[[str], ApiToken | None] = _no_token
    """text -> its valid token; raises SpamnbError if the tokens cannot be read"""


@dataclass(frozen=True, slots=True)
class AskDaemon:
    """Ask the learner for an administrative operation; `asked` follows."""

    op: str
    body: bytes = b""
    fields: Mapping[str, object] = field(default_factory=dict)


ScannerAction = ScanAction | AskDaemon


_ACTIONS: Final[dict[MailAction, str]] = {
    "reject": "reject",
    "tag": "rewrite subject",
    "quarantine": "add header",
}
"""rspamd's name of an action; for other actions the decision gives the name"""
_UNSAFE = re.compile(r"[^ -~]|[;,()<>]")
_CLUE_CHARACTERS: Final = 80


class ScanReport(NamedTuple):
    """One message's result."""

    spam: bool
    score: float
    reject_score: float
    symbol: str
    action: str
    """in rspamd's words"""
    summary: str
    clues: tuple[str, ...]
    skipped: bool
    """whether there is no verdict, or none for this client"""

    @property
    def spam_line(self) -> str:
        """The verdict in SpamAssassin's words."""
        return f"{self.spam} ; {self.score:.1f} / {REQUIRED_SCORE:.1f}"

    @property
    def text(self) -> str:
        """The report for people."""
        lines = [self.summary, "", f"{self.score:5.1f} {self.symbol}"]
        return "\n".join([*lines, *(f"      {clue}" for clue in self.clues)]) + "\n"

    def symbols(self) -> dict[str, tuple[float, str]]:
        """Name -> score and description; the verdict has the whole score."""
        found = {self.symbol: (self.score, self.summary)}
        for number, clue in enumerate(self.clues, 1):
            found[f"SPAMNB_CLUE_{number}"] = (0.0, clue)
        return found


def report_of(result: ScanResult) -> ScanReport:
    """Return the report of a result that is not deferred."""
    if result.advice is None:
        reason = str(result.facts.get("reason", ""))
        observed = bool(result.facts.get("observed"))
        symbol = "SPAMNB_OBSERVED" if observed else "SPAMNB_UNSCANNED"
        why = "observed only" if observed else f"unscanned, reason {reason}"
        return ScanReport(False, 0.0, 999.0, symbol, "no action", f"spamnb: {why}", (), True)
    verdict, mail_action, score, reject_score = result.advice
    spam = verdict.decision in ("junk", "reject")
    harsh = "add header" if spam else "no action"
    reason = f", reason {verdict.reason}" if verdict.reason else ""
    summary = (
        f"spamnb: {verdict.decision}, label {verdict.label}, probability "
        f"{verdict.probability:.4f}, score {score:.1f} of {REQUIRED_SCORE:.1f}{reason}"
    )
    symbol = f"SPAMNB_{verdict.decision.upper()}"
    action = _ACTIONS.get(mail_action, harsh)
    clues = tuple(map(_clue_text, verdict.clues))
    return ScanReport(spam, score, reject_score, symbol, action, summary, clues, False)


def _clue_text(clue: Clue) -> str:
    token = _UNSAFE.sub("_", f"{clue.location}: {clue.token}")[:_CLUE_CHARACTERS]
    return f"{token} {clue.nats:+.2f}"


Dialect = Literal["spamd", "rspamc", "http"]
HEADER_BYTES: Final = 400
"""memory that Python needs for a header in addition to its text"""
Problem = Literal["usage", "method", "data", "size", "protocol", "media"]
"""usage: no such command; method: not for this path; data: the body is not what it claims to be;
size: the request is too large; protocol: everything else; media: an unknown compression"""

_NAME = re.compile(rb"[!-~]+")


class RequestError(Exception):
    """A request that is not served; the text is for the client."""

    def __init__(self, problem: Problem, text: str) -> None:
        super().__init__(text)
        self.problem = problem
        self.text = text


@dataclass(slots=True)
class ClientRequest:
    """One request."""

    dialect: Dialect
    verb: str
    """the command in upper case; of HTTP the path without its query"""
    version: tuple[int, int] = (1, 1)
    method: str = ""
    query: str = ""
    headers: dict[str, list[str]] = field(default_factory=dict)
    """by name in lower case"""
    body: bytes = b""
    keep_alive: bool = False
    header_bytes: int = 0
    """that the headers need in memory"""

    def header(self, *names: str) -> str:
        """The first value of the first of these headers that is present."""
        return next((self.headers[name][0] for name in names if name in self.headers), "")

    def add_header(self, line: bytes) -> None:
        """Add the header in a line without its end; RequestError if it is none."""
        name, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(name) is None:
            raise RequestError("protocol", "invalid header line")
        text = value.strip().decode("utf-8", "replace")
        self.headers.setdefault(name.decode("ascii").lower(), []).append(text)
        self.header_bytes += len(line) + HEADER_BYTES


def length_of(headers: dict[str, list[str]], most: int) -> int | None:
    """The value of Content-Length; None without one."""
    values = headers.get("content-length")
    if values is None:
        return None
    if len(values) != 1 or not (values[0].isascii() and values[0].isdigit()):
        raise RequestError("protocol", "invalid Content-length")
    if len(values[0]) > len(str(most)) or int(values[0]) > most:
        raise RequestError("size", "the message is too large")
    return int(values[0])


MOST_RECIPIENTS: Final = 1000
_EXIM_LINES = re.compile(
    rb"(From [^\n]*\n)(?:X-Envelope-From: <[^\n]*>\r?\n)?(?:X-Envelope-To: [^\n]*\n)?"
)
"""what Exim puts before a message that it has scanned: it is not part of the message"""
_FIELD_NAME = re.compile(rb"^([!-9;-~]+)[ \t]*:", re.MULTILINE)
_MESSAGE_ID = re.compile(rb"\nmessage-id:[ \t\r\n]*<([^>\r\n]{1,500})>")
_SUBJECT = re.compile(rb"\nsubject:([^\r\n]*)")
"""for a header in lower case that begins with a line end: ten times as fast as ^ and IGNORECASE"""


def original(request: ClientRequest) -> bytes:
    """The message without the lines that the client's mail server put before it."""
    found = _EXIM_LINES.match(request.body) if request.dialect != "http" else None
    return found[1] + request.body[found.end() :] if found else request.body


def scan_request(
    request: ClientRequest, *, named: bool, refusable: bool, limit_bytes: int
) -> ScanRequest:
    """Return the message for the scanner; `named`: the client may name the recipients."""
    message = original(request)
    whole = len(message) <= limit_bytes
    lines = message[:limit_bytes].replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    raw = add_to_message(lines, ())
    end = header_end(raw)
    end = len(raw) if end < 0 else end
    envelope = envelope_of(request, named=named)
    # A mail server that names its queue id has written it into its Received field, too.
    queue = envelope.client.ident
    is_received = not queue or is_first_hop(raw[:end], queue)
    return ScanRequest(raw, end, envelope, refusable, whole, is_received)


def envelope_of(request: ClientRequest, *, named: bool) -> Envelope:
    """Return the envelope that the client names, with recipients only if it may name them."""
    rcpts = request.headers.get("rcpt", ()) or request.headers.get("deliver-to", ())
    names = [_path(one) for text in rcpts for one in text.split(",")] if named else []
    recipients = tuple(name for name in names[:MOST_RECIPIENTS] if name)
    sender, address = _path(request.header("from")), request.header("ip")
    return Envelope(
        sender=sender,
        recipients=recipients,
        client=Client(
            address=address,
            name=request.header("hostname"),
            helo=request.header("helo"),
            ident=request.header("queue-id"),
            source="REMOTE" if address else "",
        ),
    )


def marked(message: bytes, fields: Fields, tag: bytes) -> tuple[bytes, bytes]:
    """Header section with the fields, and body, with the line ends of the message."""
    end = header_end(message)
    header = message if end < 0 else message[:end]
    changed = add_to_message(header, fields, tag)
    if b"\r\n" not in header:
        changed = changed.replace(b"\r\n", b"\n")
    return changed, message[len(header) :]


def header_of(request: ClientRequest) -> bytes:
    """The header section of a request's message; replies repeat parts of it."""
    end = header_end(request.body)
    return request.body[: end if end >= 0 else 65_536]


def message_id_in(header: bytes) -> str:
    """The first Message-ID without its brackets; `undef` if there is none, as rspamd says."""
    return _first(_MESSAGE_ID, header).decode("ascii", "replace") or "undef"


def subject_in(header: bytes) -> str:
    """The text of the first subject, as it is written."""
    return _first(_SUBJECT, header).strip().decode("utf-8", "replace")


def _first(pattern: re.Pattern[bytes], header: bytes) -> bytes:
    found = pattern.search(b"\n" + header.lower())
    return header[found.start(1) - 1 : found.end(1) - 1] if found else b""


def own_names_in(header: bytes) -> list[str]:
    """Names of header fields that are forged copies of added ones, sorted."""
    if not may_be_forged(header):
        return []
    return sorted({name.decode("ascii") for name in _FIELD_NAME.findall(header) if is_own(name)})


def _path(text: str) -> str:
    return text.strip().removeprefix("<").removesuffix(">")


_VERSION: str = sys.modules["spamnb"].__version__


def stat_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to /stat from the learner's status."""
    facts = header.get("status") or {}
    counters = facts.get("counters") or {}

    def count(name: str) -> int:
        return int(counters.get(name, 0))

    model = facts.get("model") or {}
    return {
        "version": _VERSION,
        "uptime": int(facts.get("up_s", 0)),
        "read_only": False,
        "scanned": count("scanned"),
        "learned": count("learned_spam") + count("learned_ham") + count("learned_other"),
        "actions": {
            "reject": count("decision_reject"),
            "soft reject": count("unscanned_deferred"),
            "rewrite subject": count("mail_action_tag"),
            "add header": count("decision_junk"),
            "greylist": 0,
            "no action": count("decision_deliver") + count("decision_unsure"),
        },
        "spam_count": count("decision_junk") + count("decision_reject"),
        "ham_count": count("decision_deliver") + count("decision_unsure"),
        "connections": count("connections"),
        "control_connections": 0,
        "pools_allocated": 0,
        "pools_freed": 0,
        "bytes_allocated": 0,
        "chunks_allocated": 0,
        "shared_chunks_allocated": 0,
        "chunks_freed": 0,
        "chunks_oversized": 0,
        "fragmented": 0,
        "total_learns": sum(_trained(model)),
        "statfiles": [],
        "fuzzy_hashes": {},
    }


def _trained(model: Mapping[str, Any]) -> list[int]:
    messages = model.get("messages")
    if isinstance(messages, Mapping):
        return [int(number) for number in messages.values()]
    return [int(messages)] if isinstance(messages, int) else []


_MAILBOX = {"channel": "imap", "trust": "user"}
"""the message was in the user's mailbox: its server says so"""


class PeerIdentity(NamedTuple):
    """The other end of a connection."""

    address: str
    uid: int | None = None
    """of the peer of a unix socket"""

    def caller(self, params: ScannerParams) -> Caller | None:
        """The local user of a unix socket."""
        return None if self.uid is None else params.caller_of(self.uid)


def may_name(peer: PeerIdentity, params: ScannerParams) -> bool:
    """Whether the client may name recipients and users."""
    caller = peer.caller(params)
    if caller is None:
        return params.teachers.contains(peer.address)
    return caller.role != "self"


def teaching_fields(
    peer: PeerIdentity, params: ScannerParams, named: str, password: str = ""
) -> dict[str, Any]:
    """Return the user of a correction, and how far the correction is trusted.

        unix socket   the kernel names the user; its role is the one on the control socket: an
                      admin or a delegate may name another user, all others teach as themselves
        TCP           refused unless the client is one of the listener's teachers, which may name
                      a user, or sends a token with the scope `teach`; a token for a user teaches
                      as that user, other tokens have the rights of an admin

    A mail program that names no user is not asked whose mailbox the message was in, so its
    corrections wait for review.
    """
    caller = peer.caller(params)
    if caller is None:
        if params.teachers.contains(peer.address):
            return _MAILBOX | {"for": named} if named else _unnamed(peer.address)
        return _token_fields(params, named, password)
    if caller.role == "self":
        if named not in ("", caller.login):
            raise RefusedError(f"{caller.login} may not act for {named}")
        return {"channel": "api", "trust": "user", "for": caller.login}
    if caller.role == "delegate":
        is_named = named not in ("", caller.login)
        return _MAILBOX | {"for": named} if is_named else _unnamed(caller.login)
    if named in ("", caller.login):
        return {"channel": "api", "trust": "admin", "for": caller.login}
    return _MAILBOX | {"for": named}


def _token_fields(params: ScannerParams, named: str, password: str) -> dict[str, Any]:
    token = params.token_of(password) if password else None
    if token is None or "teach" not in token.scopes:
        raise RefusedError("this client may not teach", hint="see listener.*.teachers")
    if token.user:
        if named and not same_name(named, token.user):
            raise RefusedError(f"this client may not act for {named}")
        return {"channel": "api", "trust": "user", "for": token.user}
    if named:
        return _MAILBOX | {"for": named}
    return {"channel": "api", "trust": "admin", "for": f"token {token.name}"}


def _unnamed(name: str) -> dict[str, Any]:
    return {"channel": "api", "trust": "stranger", "for": name}
