"""`spamnb quarantine`: list, show, release and delete quarantined messages."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.correct import show as show_answer
from spamnb.cli.main import CommandGroup, command
from spamnb.cli.printing import safe, say, say_json, shown_time, table, warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spamnb.scan.quarantine import Quarantine
    from spamnb.scan.values import (
        QuarantinedMessage,
        ReleasedMessage,
        ReleaseReply,
    )

EXAMPLES = """
spamnb quarantine list                   oldest first
spamnb quarantine show ID                envelope, verdict and message
spamnb quarantine release ID... --learn  deliver it, and train it as ham
spamnb quarantine delete ID...           delete it
"""
_PLACES = {
    "list": "spamnb.cli.quarantine:list_",
    "show": "spamnb.cli.quarantine:show",
    "release": "spamnb.cli.quarantine:release",
    "delete": "spamnb.cli.quarantine:delete",
    "expire": "spamnb.cli.quarantine:expire",
}
_SHOWN = 40
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
IDS = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=EXAMPLES,
    short_help="List, release or delete quarantined mail.",
)
def quarantine() -> None:
    """List, show, release and delete quarantined messages.

    Messages are stored with their original envelope. Released messages go to the next hop without
    another scan.
    """


def _folder(session: CliSession) -> Quarantine:
    from spamnb.scan.quarantine import Quarantine

    return Quarantine(session.home / "quarantine", session.settings.quarantine, log=session.log)


@command("List quarantined messages.", EXAMPLES, name="list")
@JSON
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List quarantined messages, oldest first.

    Columns: ID, time, state, decision, label, probability of spam, sender, recipients, subject.
    """
    folder = _folder(session)
    kept = [(entry, folder.shown(entry.id)["subject"]) for entry in folder.messages()]
    if as_json:
        for entry, subject in kept:
            say_json(entry.as_dict() | {"subject": subject})
        return
    table((_row(entry, subject) for entry, subject in kept), right=(5,))


def _row(entry: QuarantinedMessage, subject: str) -> tuple[str, ...]:
    probability = entry.facts.get("probability")
    to = entry.recipients[0] if entry.recipients else ""
    more = len(entry.recipients) - 1
    return (
        entry.id,
        shown_time(entry.time_us),
        "maybe sent" if entry.state == "releasing" else entry.state,
        str(entry.facts.get("decision") or ""),
        str(entry.facts.get("verdict") or ""),
        f"{probability:.4f}" if isinstance(probability, float) else "",
        f"{entry.sender or '<>'}"[:_SHOWN],
        f"{to}"[:_SHOWN] + (f" and {more} more" if more > 0 else ""),
        subject[:_SHOWN],
    )


@command("Show one message.", "spamnb quarantine show ID")
@click.argument("identity", metavar="ID")
@click.option("--raw", is_flag=True, help="Print only the message, byte for byte.")
@JSON
@pass_session
def show(session: CliSession, identity: str, raw: bool, as_json: bool) -> None:
    """Show a message with its envelope and verdict."""
    folder = _folder(session)
    entry, message = folder.get(identity), folder.raw(identity)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(message)
        return
    if as_json:
        say_json(entry.as_dict() | {"raw": message.decode("latin-1")})
        return
    lines = [("", line) for line in (entry.mail_line, *entry.rcpt_lines)]
    facts = [(name, str(value)) for name, value in entry.facts.items() if value not in ("", None)]
    table([("id", entry.id), ("kept", shown_time(entry.time_us)), ("state", entry.state),
           ("next hop", entry.upstream), *lines, *facts])  # fmt: skip
    say()
    for line in message.decode("utf-8", "replace").splitlines():
        say(safe(line))


@command("Deliver messages.", EXAMPLES)
@IDS
@click.option("--learn", is_flag=True, help="Also train them as ham.")
@click.option("--upstream", metavar="ADDRESS",
              help="The next hop. Default: their original next hop.")  # fmt: skip
@click.option("--again", is_flag=True, help="Include messages that an interrupted release may "
              "already have sent.")  # fmt: skip
@JSON
@pass_session
def release(
    session: CliSession,
    ids: tuple[str, ...],
    learn: bool,
    upstream: str | None,
    again: bool,
    as_json: bool,
) -> None:
    """Deliver messages to the next hop with their original envelope, without another scan.

    A message leaves the quarantine when the next hop has accepted it for all recipients.
    """
    folder = _folder(session)
    failed = []
    for identity in ids:
        raw = folder.raw(identity)
        after = folder.release(identity, _sender(upstream), again=again)
        _show(after, as_json=as_json)
        if after.open:
            failed.append(identity)
        elif learn:
            _learn(session, identity, raw, as_json=as_json)
    if failed:
        raise PeerError(
            f"not delivered to all recipients: {', '.join(failed)}",
            hint="these messages stay in quarantine",
        )


def _sender(upstream: str | None) -> Any:
    """Return a function that delivers a message to its next hop."""
    from spamnb.net.address import Address
    from spamnb.net.clients import deliver

    def send(released: ReleasedMessage) -> Sequence[ReleaseReply]:
        where = upstream or released.upstream
        try:
            address = Address.parse(where)
        except ValueError as error:
            raise PeerError(
                f"the next hop {where!r} is not valid: {error}", hint="name one with --upstream"
            ) from error
        return deliver(address, released)

    return send


def _show(entry: QuarantinedMessage, *, as_json: bool) -> None:
    if as_json:
        say_json(entry.as_dict())
        return
    for recipient, result in entry.results():
        say(f"{entry.id}: {safe(recipient)}: {safe(result)}")


def _learn(session: CliSession, identity: str, raw: bytes, *, as_json: bool) -> None:
    from spamnb.cli.session import checked, teacher

    with teacher(session) as (target, me):
        answer = checked(target.teach(replace(me, label="ham", raw=raw)))
        show_answer(identity, answer, as_json=as_json)


@command("Delete messages.", "spamnb quarantine delete ID...")
@IDS
@pass_session
def delete(session: CliSession, ids: tuple[str, ...]) -> None:
    """Delete messages from the quarantine; they are not delivered."""
    folder = _folder(session)
    for identity in ids:
        folder.delete(identity)
        say(f"{identity}: deleted")


@command("Delete old messages.", "spamnb quarantine expire")
@pass_session
def expire(session: CliSession) -> None:
    """Delete messages older than quarantine.keep_days. A running daemon does so too.

    After the clock has jumped ahead nothing expires: see `spamnb expire --trust-clock`.
    """
    from spamnb.maintenance.home_files import expiry_mark, warning

    mark = expiry_mark(session.home, log=session.log)
    if mark.ahead_us:
        warn(warning(mark))
    say(f"{_folder(session).expire(mark.expires_us)} messages expired")
