"""One client's session: checks each command, forwards it to the next hop, returns the reply.

    stage       the client's bytes are          ends with
    proxy       the PROXY header                the header: admission
    admission   buffered                        `admitted`: command, or closed with a refusal
    command     commands                        a command for the next hop: asking, or QUIT: closed
    asking      buffered                        its reply: command, or message after DATA
    message     given to `MessageTransfer`      the end of the transfer: command
    closed      ignored

It knows neither sockets nor clocks (as h11 and aioquic): each event is a method with the time as
its last argument. After each event, the caller performs the actions in `output`, in their order,
and calls `timeout` at the deadline in `output`. One command at a time is sent upstream, so replies
keep their order; pipelined input is buffered. Lines are forwarded unchanged; a parsed copy serves
logs and rules.

Invariants: a reply answers only the command that it belongs to; after an unexpected reply the next
hop is not used any more; a fault of the next hop is a 4xx; every command is answered unless the
client has left. Never raises on what a client or the next hop sends.
"""

from __future__ import annotations

from typing import Literal

from spamnb.net import actions, address
from spamnb.net import actions as scan_actions
from spamnb.net.actions import INPUT, STUCK, Output
from spamnb.net.clients import UpstreamCommand
from spamnb.scan.values import ScanRequest, ScanResult
from spamnb.settings.values import ListenerParams
from spamnb.smtp import relay_replies, syntax
from spamnb.smtp.relay_message import MessageTransfer
from spamnb.smtp.relay_sides import (
    ClientState,
    NextHop,
    OwnReply,
    Transaction,
    UpstreamError,
    own_reply,
    rule_of,
)
from spamnb.smtp.syntax import LineBuffer
from spamnb.telemetry import Meters

MAX_COMMANDS_PER_TURN = 32
"""commands that the relay answers itself before other sessions run"""

Stage = Literal["proxy", "admission", "command", "asking", "message", "closed"]


class RelaySession:
    """The state of one session."""

    __slots__ = (
        "_errors", "_hop", "_input", "_is_finished", "_is_gone", "_meters", "_new_params", "client",
        "output", "stage", "transfer",
    )  # fmt: skip

    def __init__(self, params: ListenerParams, meters: Meters, peer: str, now: float) -> None:
        self.output = Output(now)
        self.stage: Stage = "admission"
        self.client = ClientState(params, peer, now)
        self.transfer: MessageTransfer | None = None
        """in the stage `message`"""
        self._new_params = params
        self._meters = meters
        self._input = LineBuffer()
        self._is_finished = self._is_gone = False
        """whether the client will send nothing more, or has disconnected"""
        self._errors = 0
        self._hop = NextHop(self.output, params.upstream)

    # -- the client's events ----------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """The client has connected."""
        params, self.output.now = self.client.params, now
        if not params.proxies:
            self._admit()
        elif params.proxies.contains(self.client.peer):
            self.stage = "proxy"
            self.output.deadline = self.output.now + params.times.proxy_s
        else:
            self._turn_away(relay_replies.CLIENT_DENIED)

    def admitted(self, reply: bytes, now: float) -> None:
        """The client is counted; if there is no room for it, `reply` says so."""
        self.output.now = now
        if reply:
            self._turn_away(reply)
        else:
            self.stage = "command"
            self._answer(relay_replies.greeting(self.client.params.hostname, self.client.protocol))
            self._advance()

    def client_bytes(self, data: bytes, now: float) -> None:
        """The client has sent bytes."""
        self.output.now = now
        if not self._input.left:
            if self.transfer is not None and self.transfer.wants_data:
                data = self.transfer.client_bytes(data)
                if not data and self.transfer.state != "over":
                    return
            elif (
                self.stage == "command"
                and len(data) <= self.client.params.limits.command_bytes
                and not (self.output.paused & STUCK or self._input.is_skipping)
                and (found := syntax.WHOLE_COMMAND.fullmatch(data))
            ):
                # The usual case: one command, nothing buffered; half the time of the code below.
                self._do(syntax.VERBS.get(found[1].upper(), syntax.UNKNOWN), data)
                return
        if self.stage != "closed":
            self._input.append(data)
            self._advance()

    def client_eof(self, now: float) -> None:
        """The client will send nothing more; its buffered input is still processed."""
        self.output.now = now
        self._is_finished = True
        self._advance()

    def client_lost(self, now: float) -> None:
        """The client has disconnected."""
        self.output.now = now
        self._is_gone = True
        self._input.clear()
        if self.transfer is not None:
            self.transfer.client_lost()
            self._advance()
        else:
            self._close()

    def pause(self, reason: int, now: float) -> None:
        """Stop reading from the client for this reason."""
        self.output.now = now
        self.output.pause(reason)

    def resume(self, reason: int, now: float) -> None:
        """The reason has ended, or other sessions have run since the action `ResumeLater`."""
        self.output.now = now
        self.output.resume(reason)
        self._advance()

    def _advance(self) -> None:
        """Process the buffered input as far as possible now."""
        self._settle()
        for _ in range(MAX_COMMANDS_PER_TURN):
            if not (self._input.left and self._waits_for_client and self._take()):
                break
        else:
            self.output.add(actions.ResumeLater())
            return
        if self.stage == "closed":
            return
        if self._input.left > self.client.params.limits.input_bytes:
            self.output.pause(INPUT)
        elif self.output.paused:
            self.output.resume(INPUT)
        if self._is_finished and self._waits_for_client:
            self._end(action="client-lost")

    def _take(self) -> bool:
        """Process one piece of input; False if it is incomplete."""
        if self.transfer is not None:
            self._input.append(self.transfer.client_bytes(self._input.take_all()))
            self._settle()
            return True
        return self._take_proxy() if self.stage == "proxy" else self._take_line()

    @property
    def _waits_for_client(self) -> bool:
        """Whether the client may send something that is processed now."""
        if self.output.paused & STUCK:
            return False
        if self.transfer is not None:
            return self.transfer.wants_data
        return self.stage in {"command", "proxy"}

    # -- admission --------------------------------------------------------------------------------

    def _take_proxy(self) -> bool:
        """Read the PROXY header; False if it is incomplete or invalid."""
        try:
            header = address.parse(self._input.peek())
        except ValueError:
            self._turn_away(relay_replies.NO_PROXY)
            return False
        if header is not None:
            self._input.skip(header.used)
            self.client.address = header.address
            self._admit()
        return header is not None

    def _admit(self) -> None:
        client, self.stage = self.client, "admission"
        client.update_trust()
        if client.is_closing:
            self._end(relay_replies.CLOSING)
        elif not (client.trusted or client.params.recipient_domains):
            self._turn_away(relay_replies.CLIENT_DENIED)
        else:
            self.output.add(actions.AdmitClient(client.address, client.trusted))

    def _turn_away(self, reply: bytes) -> None:
        self.output.add(actions.LogRefused(self.client.peer, self.client.address, reply))
        self._end(reply)

    # -- commands ---------------------------------------------------------------------------------

    def _take_line(self) -> bool:
        """Handle the next command; False if it is incomplete."""
        limits = self.client.params.limits
        line = self._input.line(limits.command_bytes)
        if self._input.skipped > limits.skipped_bytes:
            self._end(relay_replies.TOO_MANY_ERRORS)
        elif line:
            rule = rule_of(line, limits.command_bytes)
            if isinstance(rule, OwnReply):
                self._reply(rule)
            else:
                self._do(rule, line)
        return bool(line)

    def _do(self, rule: syntax.CommandRule, line: bytes) -> None:
        if rule.action == "mail" and not self.client.transaction.is_open:
            self._apply_new_settings()
        upstream = self._hop.address.protocol if self._hop.state == "up" else None
        reply = own_reply(rule, line, self.client, upstream)
        if reply is not None:
            if rule.action == "reset":
                self._forget_transaction()
            self._reply(reply)
        else:
            assert rule.action != "say"
            assert rule.action != "quit"
            self._ask(rule.action, line)

    def _reply(self, reply: OwnReply) -> None:
        self._errors += reply.kind == "refuse"
        if reply.kind == "end":
            self._end(reply.text)
        elif self._errors > self.client.params.limits.errors:
            self._end(relay_replies.TOO_MANY_ERRORS)
        else:
            self._answer(reply.text)

    def _answer(self, reply: bytes) -> None:
        self.output.add(actions.SendClient(reply))
        self._wait_for_client()

    def _ask(self, what: UpstreamCommand, line: bytes) -> None:
        """Forward a command; connect to the next hop first if needed."""
        client, hop, output = self.client, self._hop, self.output
        if hop.received:
            self._upstream_failed()
            if self.stage == "closed":
                return
        up = hop.state == "up"
        if not up and what != "hello" and client.transaction.is_open:
            self._end(relay_replies.LOST_UPSTREAM)
            return
        if what == "mail":
            client.quota.mailed = True
            client.transaction.began = output.now
        self.stage = "asking"
        client.quota.paused_at = output.now
        times = client.params.times
        output.deadline = output.now + (times.reply_s if up else times.connect_s)
        hop.ask(what, line, b"" if what == "hello" else client.hello, client.params.upstream)

    # -- the next hop's events --------------------------------------------------------------------

    def upstream_connected(self, now: float) -> None:
        """The connection to the next hop is made."""
        self.output.now = now
        self._hop.state = "greeting"
        self.output.deadline = self.output.now + self.client.params.times.reply_s

    def upstream_bytes(self, data: bytes, now: float) -> None:
        """The next hop has sent bytes."""
        self.output.now = now
        hop = self._hop
        try:
            what, reply = hop.asked, hop.next_reply(data)
            while reply:
                self._replied(what, reply)
                reply = hop.next_reply() if hop.received else b""
        except UpstreamError as error:
            self._upstream_failed(error.reply)
        self._settle()
        if self._input.left or self._is_finished:
            self._advance()

    def unexpected_data(self, now: float) -> None:
        """The last `AskUpstream` was not sent, because the next hop had sent bytes before."""
        self.output.now = now
        if self.transfer is not None:
            self.transfer.not_sent()
        elif what := self._hop.asked:
            self.stage, self._hop.asked = "command", None
            self._upstream_failed()
            if self.stage == "command":
                self._ask(what, self._hop.line)
        self._advance()

    def upstream_lost(self, now: float) -> None:
        """The next hop has disconnected, or was not reachable."""
        self.output.now = now
        self._upstream_failed()
        self._advance()

    def _replied(self, what: UpstreamCommand | None, reply: bytes) -> None:
        if self.transfer is not None:
            self.transfer.upstream_reply(reply)
        elif what is not None:
            self._answered(what, reply)
        else:
            # A 421 of an idle next hop. The next command connects again.
            self._upstream_failed()

    def _answered(self, what: UpstreamCommand, reply: bytes) -> None:
        """Pass the reply to a command on, and record the command if it is accepted."""
        if what == "data" and reply.startswith(b"354"):
            self.transfer = MessageTransfer(self.client, self._hop, self.output)
            self.stage = "message"
            self.output.add(actions.SendClient(reply))
            return
        self.stage = "command"
        self._wait_for_client()
        if reply.startswith(b"2"):
            reply = self._accepted(what, reply)
        self.output.add(actions.SendClient(reply))
        if self.client.is_closing and self._is_between_messages:
            self._end(relay_replies.CLOSING)

    def _accepted(self, what: UpstreamCommand, reply: bytes) -> bytes:
        """Record an accepted command; returns the reply for the client."""
        client = self.client
        if what in {"hello", "reset"}:
            self._forget_transaction()
        self.output.held_bytes += client.accept(what, self._hop.line)
        if what != "hello":
            return reply
        if not client.quota.is_greeted:
            client.quota.greet(self.output.now)
            self._wait_for_client()
        return syntax.client_hello_reply(
            reply, self._hop.line[:-2], client.params.hostname,
            trusted=client.trusted, limit=client.params.size_limit_bytes,
        )  # fmt: skip

    def _upstream_failed(self, reply: bytes = relay_replies.LOST_UPSTREAM) -> None:
        """The next hop disconnected, was not reachable, was late, or broke the protocol."""
        hop, state = self._hop, self._hop.state
        hop.drop()
        if state == "gone":
            return
        if self.transfer is not None:
            hop.log_failure("message")
            self.transfer.upstream_lost()
        elif self.stage == "asking" or self.client.transaction.is_open:
            step = hop.asked or self.client.phase
            hop.log_failure(step if state == "up" else state)
            self._end(relay_replies.NO_UPSTREAM if state == "called" else reply)

    # -- the message ------------------------------------------------------------------------------

    def scan_done(self, request: ScanRequest, result: ScanResult, now: float) -> None:
        """The scanner has a result; it may be too late."""
        self.output.now = now
        if self.transfer is not None:
            self.transfer.scan_done(request, result)
            self._advance()
        elif result.withdraw is not None:
            self.output.add(scan_actions.Withdraw(result.withdraw))

    def shed(self, now: float) -> None:
        """End the session to free memory or connections for others."""
        self.output.now = now
        if self.transfer is not None:
            self.transfer.abandon("shed", relay_replies.SLOW)
            self._advance()

    def _settle(self) -> None:
        """Continue after a message that is over, answered or not."""
        transfer = self.transfer
        if transfer is None or transfer.state != "over":
            return
        self._report(transfer)
        if self._is_gone:
            self._close()
        elif not transfer.ended_at:
            self._end()
        elif self.client.is_closing:
            self._end(relay_replies.CLOSING)
        else:
            self._wait_for_client()

    def _report(self, transfer: MessageTransfer) -> None:
        """Count and log a message, and forget it."""
        self.transfer, self.stage = None, "command"
        has_left = self._is_gone or self._is_finished
        record = transfer.report(self._meters, client_has_left=has_left)
        self.output.add(scan_actions.LogMessage(record))
        if transfer.is_accepted:
            self.client.quota.reset(self.output.now)
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        """Discard the envelope after a message, RSET or EHLO."""
        self.output.held_bytes = 0
        self.client.transaction = Transaction()
        self._apply_new_settings()

    # -- the listener's events --------------------------------------------------------------------

    def apply_settings(self, params: ListenerParams) -> None:
        """Take new settings; they apply between two messages, and the connection stays open."""
        self._new_params = params

    def _apply_new_settings(self) -> None:
        client, params = self.client, self._new_params
        if client.params is not params:
            client.params = params
            client.update_trust()
            if self._hop.state == "up" and self._hop.address != params.upstream:
                self._hop.drop()

    def drain(self, now: float) -> None:
        """The daemon shuts down: accept no further message."""
        self.output.now = now
        self.client.is_closing = True
        if self._is_between_messages:
            self._end(relay_replies.CLOSING)

    def stop(self, reply: bytes, now: float) -> None:
        """End the session for a reason of the listener; an incomplete message is discarded."""
        self.output.now = now
        self._end(reply)

    def fault(self, incident: str, now: float) -> None:
        """After an exception in an event or an action: pass the message being scanned, or end."""
        self.output.now = now
        if self.transfer is not None and self.transfer.scan_fault(incident):
            self._advance()
        else:
            self._end(relay_replies.FAULT_CLOSING)

    # -- deadlines and ends -----------------------------------------------------------------------

    def timeout(self, now: float) -> None:
        """The deadline has passed."""
        self.output.now = now
        if self.stage == "closed":
            self.output.add(actions.Abort())
        elif self.stage == "asking":
            self._upstream_failed()
        elif self.transfer is not None:
            self.transfer.timeout()
            self._advance()
        else:
            self._end(relay_replies.TIMEOUT)

    def _wait_for_client(self) -> None:
        client, output = self.client, self.output
        output.deadline = client.quota.due(output.now, client.params.times)

    def is_idle(self, now: float) -> bool:
        """Whether a client that must send may be disconnected while resources are short."""
        is_clients_turn = self.stage in {"proxy", "command"}
        return is_clients_turn and self.client.quota.is_idle(now, self.client.params.times)

    @property
    def _is_between_messages(self) -> bool:
        return self.stage in {"proxy", "command"} and not self.client.transaction.is_open

    def _end(self, reply: bytes = b"", action: str = "stopped") -> None:
        """Send the last reply and close; a message that is not over is logged with `action`."""
        if self.stage == "closed":
            return
        if self.transfer is not None:
            self.transfer.abandon(action)
            self._report(self.transfer)
        if reply:
            self.output.add(actions.SendClient(reply))
        self._close()
        self.output.deadline = self.output.now + self.client.params.times.close_s
        self.output.add(actions.HangUp())

    def _close(self) -> None:
        self._hop.leave(send_quit=self.stage != "asking")
        self.stage = "closed"
        self._input.clear()
        self._forget_transaction()
