"""One client's session: checks each command, forwards it to the next hop, returns the reply.

A protocol core without sockets: bytes and events come in by method calls and go out through
`SessionIO`. One command at a time is sent upstream, so replies keep their order; pipelined input is
buffered. Lines are forwarded unchanged; a parsed copy serves logs and rules.

Invariants: a reply answers only the command that it belongs to; after an unexpected reply the next
hop is not used any more; a fault of the next hop is a 4xx; every command is answered unless the
client has left. Never raises on what a client or the next hop sends.
"""

from __future__ import annotations

from typing import ClassVar

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.endpoints.net.address import Speech
from spamnb.endpoints.net.reply_parser import EXPECTED_REPLIES, UpstreamCommand
from spamnb.endpoints.smtp.protocol import commands, ehlo
from spamnb.endpoints.smtp.protocol.commands import Phase
from spamnb.endpoints.smtp.protocol.line_buffer import LineBuffer
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.client_access import ClientAccess
from spamnb.endpoints.smtp.relay.message_transfer import MessageTransfer
from spamnb.endpoints.smtp.relay.params import MemoryShare
from spamnb.endpoints.smtp.relay.ports import INPUT, STUCK, ListenerContext, SessionIO
from spamnb.endpoints.smtp.relay.session_quota import SessionQuota
from spamnb.endpoints.smtp.relay.transaction import Transaction
from spamnb.endpoints.smtp.relay.upstream import NextHop

MAX_COMMANDS_PER_TURN = 32
"""commands that the relay answers itself before other sessions run"""


class RelaySession:
    """The state of one session."""

    __slots__ = (
        "_client", "_errors", "_hello", "_input", "_line", "_pumping", "_transaction", "access",
        "closed", "context", "deadline", "eof", "hop", "io", "params", "pending", "phase", "quota",
        "share", "speaks", "started", "stuck", "transfer",
    )  # fmt: skip

    def __init__(self, io: SessionIO, context: ListenerContext, peer: str) -> None:
        self.io, self.context, self.params = io, context, context.params
        self.access = ClientAccess(peer)
        self.speaks = self.params.speaks
        self.closed = self.eof = self.stuck = False
        self.phase: Phase = "start"
        self.pending: UpstreamCommand | None = None
        self.hop = NextHop(io, self, self.params.upstream)
        self.transfer: MessageTransfer | None = None
        self._transaction = Transaction()
        self.started = self.deadline = 0.0
        self._client = Client()
        self._input = LineBuffer()
        self._line = self._hello = b""
        self._errors, self._pumping = 0, False
        self.quota = SessionQuota(io.now())
        self.share: MemoryShare = context.budget.shares[False]  # of the memory for messages

    # -- the client's events ----------------------------------------------------------------------

    def begin(self) -> None:
        """Greet or refuse a client that has connected."""
        self._welcome(self.access.on_connect(self.params, self.context))

    def _welcome(self, reply: bytes) -> None:
        """Send the greeting or refusal, or wait for the PROXY header."""
        if self.access.is_proxied:
            self.wait(self.params.times.proxy_s)
        elif self.access.admitted:
            self._apply_trust()
            self._answer(reply)
        else:
            self._end(reply)

    def from_client(self, data: bytes) -> None:
        """Take bytes from the client."""
        if not self._input.left:
            if self.transfer is not None and self.transfer.wants_data:
                data = self.transfer.receive(data)
                if not data:
                    return
            elif self._is_listening and len(data) <= self.params.limits.command_bytes:
                # The usual case: one command, nothing buffered. Half the time of the code below.
                verb = commands.single_command(data)
                if verb is not None:
                    self._do(verb, data)
                    return
        self._input.append(data)
        self.resume()

    @property
    def _is_listening(self) -> bool:
        """Whether a command that arrives now is handled immediately."""
        return (
            self.pending is None
            and self.transfer is None
            and not (self.access.is_proxied or self.stuck or self.closed or self._input.is_skipping)
        )

    def client_eof(self) -> None:
        """The client will send nothing more; its buffered input is still processed."""
        self.eof = True
        self.resume()

    def client_lost(self) -> None:
        """The client has disconnected."""
        self.closed = True
        self.share.forget(self.io)
        if self.transfer is not None:
            self.transfer.client_lost()
        else:
            self.forget_transaction()
            self._leave()

    def client_full(self) -> None:
        """The client does not read its replies."""
        self.stuck = True
        self.io.pause_reading(STUCK)

    def client_drained(self) -> None:
        """The client reads again."""
        self.stuck = False
        self.io.resume_reading(STUCK)
        self.resume()

    def resume(self) -> None:
        """Process the buffered input as far as possible now."""
        if self._pumping:
            return
        self._pumping = True
        try:
            done = self._pump()
        finally:
            self._pumping = False
        if self.closed:
            return
        if self._input.left > self.params.limits.input_bytes:
            self.io.pause_reading(INPUT)
        else:
            self.io.resume_reading(INPUT)
        if self.eof and done and self.pending is None:
            self._end()

    def _pump(self) -> bool:
        """Whether nothing is left to do, except an incomplete line."""
        turns = 0
        while self._input.left and not (self.pending or self.stuck or self.closed):
            if turns >= MAX_COMMANDS_PER_TURN:
                self.io.resume_later()
                return False
            turns += 1
            if self.transfer is not None:
                if not self.transfer.wants_data:
                    return False
                self._input.append(self.transfer.receive(self._input.take_all()))
            elif not (self._take_proxy() if self.access.is_proxied else self._take_line()):
                return True
        return not self.stuck and (self.transfer is None or self.transfer.wants_data)

    def _take_proxy(self) -> bool:
        """Read the PROXY header; False if it is incomplete or invalid."""
        used, reply = self.access.read_proxy(self._input.peek(), self.params, self.context)
        self._input.skip(used)
        if reply:
            self._welcome(reply)
        return bool(used)

    def _take_line(self) -> bool:
        """Handle the next command; False if it is incomplete."""
        most = self.params.limits.command_bytes
        line = self._input.line(most)
        if self._input.skipped > self.params.limits.skipped_bytes:
            self._end(replies.TOO_MANY_ERRORS)
        elif len(line) > most:
            self._refuse(replies.LONG_COMMAND)
        elif line and not commands.is_whole(line):
            self._refuse(replies.BARE_COMMAND)
        elif line:
            self._command(line)
        return bool(line)

    # -- commands ---------------------------------------------------------------------------------

    def _command(self, line: bytes) -> None:
        found = commands.verb_of(line[:-2])
        if found is None:
            self._refuse(replies.SYNTAX)
        else:
            self._do(found[1], line)

    def _do(self, verb: commands.CommandRule, line: bytes) -> None:
        if not (self.quota.is_free or self.quota.spend(self.params.limits)):
            self._end(replies.TOO_MANY_COMMANDS)
        elif self.phase in verb.phases:
            self._ACTIONS[verb.action](self, line, verb)
        else:
            self._refuse(replies.SEQUENCE)

    def _refuse(self, reply: bytes) -> None:
        """Send the relay's own rejection; too many of them end the session."""
        self._errors += 1
        if self._errors > self.params.limits.errors:
            self._end(replies.TOO_MANY_ERRORS)
        else:
            self._answer(reply)

    def _answer(self, reply: bytes) -> None:
        self.io.write_client(reply)
        self._wait_for_client()

    def _fixed_reply(self, _line: bytes, verb: commands.CommandRule) -> None:
        if verb.reply is replies.UNKNOWN:
            self._refuse(verb.reply)
        else:
            self._answer(verb.reply)

    def _greet(self, line: bytes, _verb: commands.CommandRule) -> None:
        if line[:4].upper() not in ehlo.CLIENT_HELLOS[self.speaks]:
            self._refuse(replies.SYNTAX)
        elif self.context.closing:
            self._end(replies.CLOSING)
        else:
            self._ask("hello", line)

    def _xforward(self, line: bytes, _verb: commands.CommandRule) -> None:
        if self.access.trusted:
            self._ask("xforward", line)
        else:
            self._refuse(replies.NOT_TRUSTED)

    def _mail(self, line: bytes, _verb: commands.CommandRule) -> None:
        if not self._transaction.is_open:
            self._apply_new_settings()
        limit = self.params.size_limit_bytes
        if self.context.closing:
            self._end(replies.CLOSING)
        elif limit and commands.declared_bytes(line[:-2]) > limit:
            self._refuse(replies.TOO_BIG)
        else:
            self.quota.mailed = True
            self.started = self.io.now()
            self._ask("mail", line)

    def _rcpt(self, line: bytes, _verb: commands.CommandRule) -> None:
        if not (self.access.trusted or commands.is_for(line[:-2], self.params.recipient_domains)):
            self._refuse(replies.RELAY_DENIED)
        elif self._transaction.rcpts and (self.speaks, self.hop.address.speaks) == ("smtp", "lmtp"):
            # The client gets one final reply, which cannot report two different LMTP replies.
            self._answer(replies.ONE_RECIPIENT)
        elif self.recipients >= self.params.limits.recipients and not self.access.trusted:
            self.quota.commands -= 1
            self._answer(replies.TOO_MANY_RECIPIENTS)
        else:
            self._ask("rcpt", line)

    def _data(self, line: bytes, _verb: commands.CommandRule) -> None:
        self._ask("data", line)

    def _reset(self, line: bytes, _verb: commands.CommandRule) -> None:
        if self.hop.state == "up":
            self._ask("reset", line)
        else:
            self.forget_transaction()
            self._answer(replies.DONE)

    def _quit(self, _line: bytes, _verb: commands.CommandRule) -> None:
        self._end(replies.BYE)

    def _ask(self, what: UpstreamCommand, line: bytes) -> None:
        """Forward a command; connect to the next hop first if needed."""
        if self.hop.state == "up" and self.hop.has_unexpected_data():
            self.upstream_lost()
        up = self.hop.state == "up"
        if not self.closed and not up and what != "hello" and self._transaction.is_open:
            self._end(replies.LOST_UPSTREAM)
        if self.closed:
            return
        self.pending, self._line = what, line
        self.quota.pause(
            self.wait(self.params.times.reply_s if up else self.params.times.connect_s)
        )
        refusal = self.hop.ask(line, line if what == "hello" else self._hello, self.params.upstream)
        if refusal:
            self.pending = None
            self._end(refusal)

    # -- the next hop -----------------------------------------------------------------------------

    def upstream_connected(self) -> None:
        """The connection to the next hop is made."""
        self.hop.state = "greeting"
        self.wait(self.params.times.reply_s)

    def replied(self, reply: bytes, *, alone: bool) -> None:
        """Handle a reply of the next hop; `alone` says that no bytes followed it."""
        if self.pending is not None:
            # More than one reply to one command: it is unknown which of them answers it.
            if alone:
                self._answered(reply)
            else:
                self.upstream_lost()
        elif self.transfer is not None:
            self.transfer.from_upstream(reply, alone=alone)
        else:
            # A 421 of an idle next hop. The next command connects again.
            self.upstream_lost()

    def _answered(self, reply: bytes) -> None:
        what = self.pending
        assert what is not None
        if not reply.startswith(EXPECTED_REPLIES[what]) or reply.startswith(b"421"):
            self.upstream_lost(reply if reply.startswith(b"421") else replies.LOST_UPSTREAM)
            return
        self.pending = None
        self._wait_for_client()
        if reply[:1] in b"23":
            reply = self._accepted(what, reply)
        self.io.write_client(reply)
        if self.context.closing and self.is_between_messages:
            self._end(replies.CLOSING)
        elif self._input.left or self.eof:
            self.resume()

    def _accepted(self, what: UpstreamCommand, reply: bytes) -> bytes:
        """Record an accepted command; returns the reply for the client."""
        line = self._line[:-2]
        if what == "mail":
            self._transaction.mail, self.phase = line, "mail"
        elif what == "rcpt":
            self.phase = "rcpt"
            self.quota.commands -= 1
            self._transaction.add(line)
            self.share.take(len(line), self.io, self._transaction.size)
        elif what == "xforward":
            self._transaction.xforwards.append(line)
        elif what == "data":
            self.quota.pause(self.io.now())
            self.transfer = MessageTransfer(self)
        else:
            self.forget_transaction()
        if what == "hello":
            first, self._hello = not self._hello, self._line
            helo = commands.argument_of(line)
            self._client = Client(address=self.access.address, helo=helo)
            self.phase = "ready"
            if first:
                self.quota.greeted_at = self.io.now()
                self._wait_for_client()
            reply = ehlo.client_hello_reply(
                reply, line, self.params.hostname,
                trusted=self.access.trusted, limit=self.params.size_limit_bytes,
            )  # fmt: skip
        return reply

    def upstream_lost(self, reply: bytes = replies.LOST_UPSTREAM) -> None:
        """The next hop disconnected, was not reachable, was late, or broke the protocol."""
        if self.hop.state == "gone":
            return
        state = self.hop.state
        if state == "called":
            reply = replies.NO_UPSTREAM
        self.hop.drop()
        if self.transfer is not None:
            self.context.log_upstream_lost(self.hop.address, "message")
            self.transfer.upstream_lost()
        elif self.pending is not None or self._transaction.is_open:
            step = self.pending or self.phase if state == "up" else state
            self.context.log_upstream_lost(self.hop.address, step)
            self.pending = None
            self._end(reply)

    def _leave(self) -> None:
        self.hop.leave(send_quit=self.pending is None)
        self.pending = None

    # -- deadlines and ends -----------------------------------------------------------------------

    def wait(self, seconds: float) -> float:
        """Set the deadline at which `expire` is called; returns the time now."""
        now = self.io.now()
        self.deadline = now + seconds
        return now

    def _apply_trust(self) -> None:
        self.quota.is_free = self.access.trusted
        self.share = self.context.budget.shares[self.access.trusted]

    def _wait_for_client(self) -> None:
        quota, now, times = self.quota, self.io.now(), self.params.times
        single_command = quota.is_free and quota.mailed
        self.deadline = now + times.command_s if single_command else quota.due(now, times)

    def is_idle(self, now: float) -> bool:
        """Whether the client may be disconnected, on its turn, while resources are short."""
        is_clients_turn = self.pending is None and self.transfer is None and not self.closed
        return is_clients_turn and self.quota.is_idle(now, self.params.times)

    @property
    def is_between_messages(self) -> bool:
        """Whether ending the session now would interrupt nothing."""
        return self.pending is None and self.transfer is None and not self._transaction.is_open

    def expire(self) -> None:
        """Handle the passed deadline."""
        if self.pending is not None:
            self.upstream_lost()
        elif self.transfer is not None:
            self.transfer.expire()
        else:
            self._end(replies.TIMEOUT)

    def stop(self, reply: bytes) -> None:
        """End the session; an incomplete message is discarded."""
        self.closed = True
        if self.transfer is not None:
            self.transfer.stop()
        self._end(reply)

    def _end(self, reply: bytes = b"") -> None:
        if reply:
            self.io.write_client(reply)
        self.closed = True
        self._input.clear()
        self.wait(self.params.times.close_s)
        if self.transfer is None:
            self._leave()
        self.io.hang_up()

    # -- TransferHost -----------------------------------------------------------------------------

    @property
    def upstream(self) -> Speech | None:
        """The next hop's protocol; None if it is not connected."""
        return self.hop.address.speaks if self.hop.state == "up" else None

    def upstream_failed(self, step: str) -> None:
        """Count and log a failure of the next hop."""
        self.context.log_upstream_lost(self.hop.address, step)

    def has_unexpected_reply(self) -> bool:
        """Whether the next hop has sent something that no command asked for."""
        return self.hop.state == "up" and self.hop.has_unexpected_data()

    def drop(self) -> None:
        self.hop.drop()

    @property
    def peer(self) -> str:
        return self.access.peer

    @property
    def recipients(self) -> int:
        """The number of recipients that the next hop has accepted."""
        return len(self._transaction.rcpts)

    def envelope(self) -> Envelope:
        """The parsed envelope."""
        return self._transaction.envelope(self._client)

    def forget_transaction(self) -> None:
        """Discard the envelope after a message, RSET or EHLO."""
        if self._transaction.is_open:
            self.share.give(self._transaction.size)
            self._transaction = Transaction()
        self.phase = "ready" if self._hello else "start"
        self._apply_new_settings()

    def _apply_new_settings(self) -> None:
        """Apply new settings between two messages; the connection stays open."""
        if self.params is not self.context.params:
            self.params = self.context.params
            self.access.update_trust(self.params)
            self._apply_trust()
            if self.hop.state == "up" and self.hop.address != self.params.upstream:
                self.hop.drop()

    def message_done(self, *, accepted: bool) -> None:
        """The transfer has ended, answered or not."""
        self.transfer = None
        if accepted:
            self.quota.reset(self.io.now())
        self.share.forget(self.io)
        self.forget_transaction()
        if self.closed:
            self._leave()
        elif self.context.closing:
            self._end(replies.CLOSING)
        else:
            self._wait_for_client()
            if self._input.left or self.eof:
                self.resume()

    _ACTIONS: ClassVar = {
        "say": _fixed_reply, "hello": _greet, "xforward": _xforward, "mail": _mail,
        "rcpt": _rcpt, "data": _data, "reset": _reset, "quit": _quit,
    }  # fmt: skip
