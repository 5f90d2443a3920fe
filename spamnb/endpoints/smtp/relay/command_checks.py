"""The relay's own replies: to commands that it does not forward to the next hop. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from spamnb.endpoints.net.address import Speech
from spamnb.endpoints.smtp.protocol import commands, ehlo
from spamnb.endpoints.smtp.protocol.commands import CommandRule
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.client_state import ClientState


class OwnReply(NamedTuple):
    """A reply of the relay itself."""

    text: bytes
    kind: Literal["answer", "refuse", "end"] = "refuse"
    """refuse: counts as an error of the client; end: it is the last reply of the session"""


def rule_of(line: bytes, most: int) -> CommandRule | OwnReply:
    """The rule for a line of at most `most` bytes, or the reply to a line that is no command."""
    if len(line) > most:
        return OwnReply(replies.LONG_COMMAND)
    if not commands.is_whole(line):
        return OwnReply(replies.BARE_COMMAND)
    found = commands.verb_of(line[:-2])
    return OwnReply(replies.SYNTAX) if found is None else found[1]


def own_reply(
    rule: CommandRule, line: bytes, client: ClientState, upstream: Speech | None
) -> OwnReply | None:
    """The reply to a command, or None if it is forwarded.

    `upstream` is the protocol of the connected next hop.
    """
    quota = client.quota
    if not (quota.is_free or quota.spend(client.params.limits)):
        return OwnReply(replies.TOO_MANY_COMMANDS, "end")
    if client.phase not in rule.phases:
        return OwnReply(replies.SEQUENCE)
    if rule.reply:
        return OwnReply(rule.reply, "refuse" if rule.reply is replies.UNKNOWN else "answer")
    check = _CHECKS.get(rule.action)
    return check(line, client, upstream) if check is not None else None


def _hello(line: bytes, client: ClientState, _upstream: Speech | None) -> OwnReply | None:
    if line[:4].upper() not in ehlo.CLIENT_HELLOS[client.speaks]:
        return OwnReply(replies.SYNTAX)
    return OwnReply(replies.CLOSING, "end") if client.is_closing else None


def _xforward(_line: bytes, client: ClientState, _upstream: Speech | None) -> OwnReply | None:
    return None if client.trusted else OwnReply(replies.NOT_TRUSTED)


def _mail(line: bytes, client: ClientState, _upstream: Speech | None) -> OwnReply | None:
    limit = client.params.size_limit_bytes
    if client.is_closing:
        return OwnReply(replies.CLOSING, "end")
    if limit and commands.declared_bytes(line[:-2]) > limit:
        return OwnReply(replies.TOO_BIG)
    return None


def _rcpt(line: bytes, client: ClientState, upstream: Speech | None) -> OwnReply | None:
    params, rcpts = client.params, client.transaction.rcpts
    if not (client.trusted or commands.is_for(line[:-2], params.recipient_domains)):
        return OwnReply(replies.RELAY_DENIED)
    if rcpts and (client.speaks, upstream) == ("smtp", "lmtp"):
        # The client gets one final reply, which cannot report two different LMTP replies.
        return OwnReply(replies.ONE_RECIPIENT, "answer")
    if len(rcpts) >= params.limits.recipients and not client.trusted:
        client.quota.commands -= 1
        return OwnReply(replies.TOO_MANY_RECIPIENTS, "answer")
    return None


def _reset(_line: bytes, _client: ClientState, upstream: Speech | None) -> OwnReply | None:
    return None if upstream else OwnReply(replies.DONE, "answer")


def _quit(_line: bytes, _client: ClientState, _upstream: Speech | None) -> OwnReply | None:
    return OwnReply(replies.BYE, "end")


_CHECKS: dict[str, Callable[[bytes, ClientState, Speech | None], OwnReply | None]] = {
    "hello": _hello,
    "xforward": _xforward,
    "mail": _mail,
    "rcpt": _rcpt,
    "reset": _reset,
    "quit": _quit,
}
