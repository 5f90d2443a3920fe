"""Ask for administrative operations: the part that all clients share.

`ControlClient` asks a daemon by its socket; `LocalClient` runs the operations in this process.
Failure: the errors of the operations; PeerError for an invalid reply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, BinaryIO

from spamnb import errors
from spamnb.errors import PeerError, SpamnbError
from spamnb.service.admin.request import AdminResponse, Header
from spamnb.service.feedback.types import Answer, Feedback, SenderChange


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
