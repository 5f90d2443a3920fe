"""Requests of administrators, and the client that sends them.

An endpoint identifies the caller and frames the request; `table` checks the caller's right and
reads the parameters. `AdminClient` is what all clients share: `ControlClient` asks a daemon by its
socket, `LocalClient` runs the operations in this process. Failure: UserError for a wrong parameter,
RefusedError for a caller that acts for another user without the right to, PeerError for an invalid
reply.
"""

from __future__ import annotations

import pwd
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
)

from spamnb import errors
from spamnb.errors import PeerError, RefusedError, SpamnbError, StoreAccessError
from spamnb.feedback.values import Answer, Feedback, ListTarget, SenderChange, Trust
from spamnb.operations.parameters import TEXT, Parameter, choice, lists
from spamnb.policy.rulings import WORDS
from spamnb.store.files import refused
from spamnb.telemetry import Meters

if TYPE_CHECKING:
    from spamnb.engine.filter import Filter
    from spamnb.feedback.review import ReviewQueue
    from spamnb.feedback.service import FeedbackService
    from spamnb.operations.home import ModelConfig
    from spamnb.operations.status import Facts

Switch = Literal["bypass", "live"]
"""bypass: all mail is delivered unscanned; live: listeners that only observe mark and file mail"""
SWITCHES: tuple[Switch, ...] = get_args(Switch)


def is_on(home: Path, switch: Switch, *, before: bool | None = None) -> bool:
    """Whether a switch is on; on a disk error return `before`, or raise if it is None.

    A switch is on while a file of its name exists in the home. A file persists over restarts and
    works without a running daemon; the supervisor copies it to the shared state each second.
    """
    try:
        return (home / switch).exists()
    except OSError as error:
        if before is None:
            raise refused(error, home / switch) from error
        return before


def turn(home: Path, switch: Switch, *, on: bool) -> None:
    """Create or remove the file."""
    try:
        if on:
            (home / switch).touch(0o600)
        else:
            (home / switch).unlink(missing_ok=True)
    except OSError as error:
        raise StoreAccessError(
            f"{home / switch} cannot be changed: {error.strerror}",
            hint="only the home's owner and root can change it",
        ) from error


Result = TypeVar("Result")


class AdminModel(Protocol):
    """The model of a home: the daemon's `ModelHolder`, or `HomeModel` without a daemon."""

    @property
    def config(self) -> ModelConfig:
        """The configuration."""

    @property
    def fault(self) -> str:
        """Why the model cannot be used; empty if it can."""

    @property
    def documents(self) -> bool:
        """True if the model is for plain text instead of mail."""

    @property
    def review_queue(self) -> ReviewQueue:
        """The review queue, which needs no model."""

    def service(self) -> AbstractContextManager[FeedbackService]:
        """Open the feedback service for one request."""

    def reading(self) -> AbstractContextManager[Filter]:
        """Open the model for reading."""

    def open(self) -> None:
        """Try to open the model now."""

    def replaced(self, replace: Callable[[], Result]) -> Result:
        """Run a function while this process has the model closed; other requests wait."""


class AdminDaemon(Protocol):
    """The daemon that runs the operations."""

    def facts(self) -> Facts:
        """Return the facts of `status` that only a daemon has."""

    def meters(self) -> Meters:
        """Return the counters of all processes."""

    def set_switch(self, switch: Switch, *, on: bool) -> None:
        """Let all processes see a switch at once."""

    def reread_settings(self) -> None:
        """Start to read the settings again."""


Header = dict[str, Any]
"""the fields of a request or a reply, as values of JSON"""
Role = Literal["admin", "delegate", "self"]

MOST_REFS = 16
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


# --- parameters ----------------------------------------------------------------------------------


def optional(name: str, meaning: str) -> Parameter:
    """Make a parameter for a text that may be missing."""
    return Parameter(name, TEXT, meaning, "")


_REFS: Final = Parameter(
    "refs", lists(TEXT, 0, MOST_REFS),
    "References to one message (its signature, digest or Message-ID), instead of the message.", (),
)  # fmt: skip
SOURCE: Final = (
    optional("for", "The user who speaks, if it is not the caller."),
    Parameter(
        "trust", choice("", *get_args(Trust)), "That user's rights; only an admin raises them.", ""
    ),
    optional("channel", "Where the label comes from; `api` without it."),
    optional("person", "The person whose own label or list is meant; admins only."),
)
"""the user and the channel of a change, and the person that it is for"""
_DOMAIN: Final = optional("domain", "The domain of the message's recipients.")
SENDERS: Final = (*SOURCE, _DOMAIN)
"""whose list of senders it is: that of the site if an admin names no person and no domain"""
SENDER: Final = (
    *SENDERS,
    Parameter("word", choice("", *WORDS), "What the sender is; empty removes it.", ""),
    optional("sender", "An address or a domain; without it, the author of the message is meant."),
    _REFS,
)
FEEDBACK: Final = (
    *SOURCE,
    _REFS,
    _DOMAIN,
    optional("client", "The network of the client that sent a report by mail; it has a quota."),
)


# --- the user of a request -----------------------------------------------------------------------


def feedback_of(caller: Caller, fields: Header, raw: bytes) -> Feedback:
    """Build a feedback from `FEEDBACK` and its label.

    It has the user and the trust that the caller may claim.
    """
    user, trust = speaker_of(caller, fields)
    channel = fields["channel"] or "api"
    admin = caller.role == "admin"
    if fields["person"] and not admin:
        raise RefusedError(f"{caller.login} may not label for a person", hint="leave out `person`")
    return Feedback(
        label=fields.get("label", ""),
        raw=raw,
        refs=tuple(fields["refs"]),
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
    refs = tuple(fields["refs"])
    return SenderChange(target, fields["word"] or None, fields["sender"], raw, refs)


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


class AdminClient(ABC):
    """Asks for operations."""

    @abstractmethod
    def ask(self, op: str, body: bytes = b"", **fields: Any) -> AdminResponse:
        """Run an operation; its error is raised here."""

    @abstractmethod
    def ask_with_file(self, op: str, file: BinaryIO, size: int, **fields: Any) -> Header:
        """Run an operation with a plain file of that size as its body; returns the reply."""

    @property
    def documents(self) -> bool:
        """True if the model is for plain text instead of mail."""
        return bool(self.ask("ping").header.get("documents"))

    def teach(self, feedback: Feedback) -> Answer:
        """Submit one feedback."""
        op = "teach" if feedback.label else "forget"
        return answer_of(self.ask(op, feedback.raw, **spoken(feedback)).header)

    def list_sender(self, asked: SenderChange) -> Answer:
        """Change a list of senders."""
        target = asked.target
        fields: Header = {"for": target.user, "trust": target.trust, "channel": "address"}
        fields |= {"person": target.person, "domain": target.domain}
        fields |= {"word": asked.word or "", "sender": asked.sender, "refs": list(asked.refs)}
        return answer_of(self.ask("sender", asked.raw, **fields).header)

    def undo(self, event: int, feedback: Feedback, *, waiting: bool = False) -> Answer:
        """Undo an event, or a correction that waits under this number."""
        fields = spoken(feedback) | ({"waiting": True} if waiting else {})
        return answer_of(self.ask("undo", event=event, **fields).header)


def answer_of(header: Header) -> Answer:
    """Return the answer in the header of a reply."""
    try:
        return Answer.from_dict(header)
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError("the daemon's answer is invalid") from error


def spoken(feedback: Feedback) -> Header:
    """Return the fields of a feedback, without the message."""
    fields: Header = {"channel": feedback.channel, "trust": feedback.trust}
    if feedback.label:
        fields["label"] = feedback.label
    if feedback.user:
        fields["for"] = feedback.user
    if feedback.refs:
        fields["refs"] = list(feedback.refs)
    fields |= {"domain": feedback.domain} if feedback.domain else {}
    fields |= {"client": feedback.client} if feedback.client else {}
    fields |= {"person": feedback.person} if feedback.person else {}
    return fields


def failed(header: Header) -> SpamnbError:
    """Return the error in the header of a reply."""
    error_type = getattr(errors, str(header.get("error_type")), None)
    if not (isinstance(error_type, type) and issubclass(error_type, SpamnbError)):
        error_type = PeerError
    return error_type(str(header.get("error") or "refused"), hint=str(header.get("hint") or ""))


def failure(error: SpamnbError) -> Header:
    """Return an error as the header of a reply; the inverse of `failed`."""
    return {
        "ok": False,
        "error": " ".join(str(error).split()),
        "hint": error.hint,
        "error_type": type(error).__name__,
        "code": error.exit_code,
        "transient": bool(getattr(error, "transient", False)),
    }
