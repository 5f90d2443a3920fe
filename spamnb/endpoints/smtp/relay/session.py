"""One client's session: which command is allowed when, what goes to the next hop, what comes back.

A protocol core without sockets: bytes and events come in by method calls, and go out through
`SessionIO`. One command is in flight upstream at a time, so replies keep their order; what a client
pipelines waits here. Lines go on as they came; a parsed copy serves logs and rules.

Invariants: a reply is said only to the command that it answers; a next hop that says more than it
was asked is not believed again; a fault of the next hop is a 4xx, and every command is answered,
unless the client has left. Never raises on what a client or the next hop sends.
"""

from __future__ import annotations

from typing import ClassVar

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.endpoints.net.address import Speech
from spamnb.endpoints.net.reply_parser import TAKEN, Asked
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

MOST_IN_A_TURN = 32
"""commands that we answer ourselves before other sessions get their turn"""


class RelaySession:
    """The state of one session."""

    __slots__ = (
        "_client", "_errors", "_hello", "_intake", "_line", "_pumping", "_transaction", "access",
        "asked", "closed", "deadline", "door", "eof", "hop", "io", "phase", "place", "quota",
        "share", "speaks", "started", "stuck", "transfer",
    )  # fmt: skip

    def __init__(self, io: SessionIO, place: ListenerContext, peer: str) -> None:
        self.io, self.place, self.door = io, place, place.door
        self.access = ClientAccess(peer)
        self.speaks = self.door.speaks
        self.closed = self.eof = self.stuck = False
        self.phase: Phase = "start"
        self.asked: Asked | None = None
        self.hop = NextHop(io, self, self.door.upstream)
        self.transfer: MessageTransfer | None = None
        self._transaction = Transaction()
        self.started = self.deadline = 0.0
        self._client = Client()
        self._intake = LineBuffer()
        self._line = self._hello = b""
        self._errors, self._pumping = 0, False
        self.quota = SessionQuota(io.now())
        self.share: MemoryShare = place.budget.shares[False]  # of the memory for messages

    # -- the client comes, speaks and goes --------------------------------------------------------

    def begin(self) -> None:
        """A client has connected."""
        self._welcome(self.access.arrive(self.door, self.place))

    def _welcome(self, said: bytes) -> None:
        """Greet the client, turn it away, or wait for what a proxy says of it."""
        if self.access.is_proxied:
            self.wait(self.door.times.proxy_s)
        elif self.access.is_in:
            self._judged()
            self._answer(said)
        else:
            self._end(said)

    def from_client(self, data: bytes) -> None:
        """Bytes from the client."""
        if not self._intake.left:
            if self.transfer is not None and self.transfer.wants_data:
                data = self.transfer.feed(data)
                if not data:
                    return
            elif self._is_listening and len(data) <= self.door.limits.command_bytes:
                # The usual case: one command, and nobody waits. Half the time of the way below.
                verb = commands.usual(data)
                if verb is not None:
                    self._do(verb, data)
                    return
        self._intake.put(data)
        self.resume()

    @property
    def _is_listening(self) -> bool:
        """Whether a command that comes now is done now."""
        return (
            self.asked is None
            and self.transfer is None
            and not (
                self.access.is_proxied or self.stuck or self.closed or self._intake.is_skipping
            )
        )

    def client_eof(self) -> None:
        """The client will send nothing more; what it has sent is still worked off."""
        self.eof = True
        self.resume()

    def client_lost(self) -> None:
        """The client's connection is gone."""
        self.closed = True
        self.share.forget(self.io)
        if self.transfer is not None:
            self.transfer.client_lost()
        else:
            self.forget_transaction()
            self._leave()

    def client_full(self) -> None:
        """The client does not read what we say."""
        self.stuck = True
        self.io.hold(STUCK)

    def client_drained(self) -> None:
        """The client reads again."""
        self.stuck = False
        self.io.free(STUCK)
        self.resume()

    def resume(self) -> None:
        """Work off what the client has sent, as far as nothing else must come first."""
        if self._pumping:
            return
        self._pumping = True
        try:
            done = self._pump()
        finally:
            self._pumping = False
        if self.closed:
            return
        if self._intake.left > self.door.limits.input_bytes:
            self.io.hold(INPUT)
        else:
            self.io.free(INPUT)
        if self.eof and done and self.asked is None:
            self._end()

    def _pump(self) -> bool:
        """Whether nothing is left to do, or only what has not come as a whole."""
        turns = 0
        while self._intake.left and not (self.asked or self.stuck or self.closed):
            if turns >= MOST_IN_A_TURN:
                self.io.later()
                return False
            turns += 1
            if self.transfer is not None:
                if not self.transfer.wants_data:
                    return False
                self._intake.put(self.transfer.feed(self._intake.everything()))
            elif not (self._take_proxy() if self.access.is_proxied else self._take_line()):
                return True
        return not self.stuck and (self.transfer is None or self.transfer.wants_data)

    def _take_proxy(self) -> bool:
        """Read the PROXY header; False if it has not come as a whole, or is none."""
        used, said = self.access.read_proxy(self._intake.peek(), self.door, self.place)
        self._intake.skip(used)
        if said:
            self._welcome(said)
        return bool(used)

    def _take_line(self) -> bool:
        """Do the next command; False if it has not come as a whole."""
        most = self.door.limits.command_bytes
        line = self._intake.line(most)
        if self._intake.skipped > self.door.limits.skipped_bytes:
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
        if not (self.quota.is_free or self.quota.spend(self.door.limits)):
            self._end(replies.TOO_MANY_COMMANDS)
        elif self.phase in verb.phases:
            self._ACTIONS[verb.does](self, line, verb)
        else:
            self._refuse(replies.SEQUENCE)

    def _refuse(self, reply: bytes) -> None:
        """Our own no; too many of them end the session."""
        self._errors += 1
        if self._errors > self.door.limits.errors:
            self._end(replies.TOO_MANY_ERRORS)
        else:
            self._answer(reply)

    def _answer(self, reply: bytes) -> None:
        self.io.say(reply)
        self._wait_for_client()

    def _say(self, _line: bytes, verb: commands.CommandRule) -> None:
        if verb.says is replies.UNKNOWN:
            self._refuse(verb.says)
        else:
            self._answer(verb.says)

    def _greet(self, line: bytes, _verb: commands.CommandRule) -> None:
        if line[:4].upper() not in ehlo.SPOKEN[self.speaks]:
            self._refuse(replies.SYNTAX)
        elif self.place.closing:
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
            self._follow()
        limit = self.door.size_limit_bytes
        if self.place.closing:
            self._end(replies.CLOSING)
        elif limit and commands.declared_bytes(line[:-2]) > limit:
            self._refuse(replies.TOO_BIG)
        else:
            self.quota.mailed = True
            self.started = self.io.now()
            self._ask("mail", line)

    def _rcpt(self, line: bytes, _verb: commands.CommandRule) -> None:
        if not (self.access.trusted or commands.is_for(line[:-2], self.door.recipient_domains)):
            self._refuse(replies.NOT_OURS)
        elif self._transaction.rcpts and (self.speaks, self.hop.address.speaks) == ("smtp", "lmtp"):
            # One final reply to the client cannot tell of two at the next hop.
            self._answer(replies.ONE_RECIPIENT)
        elif self.recipients >= self.door.limits.recipients and not self.access.trusted:
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

    def _ask(self, what: Asked, line: bytes) -> None:
        """Pass a command on; the next hop is called first, if it is not there."""
        if self.hop.state == "up" and self.hop.has_surplus():
            self.upstream_lost()
        up = self.hop.state == "up"
        if not self.closed and not up and what != "hello" and self._transaction.is_open:
            self._end(replies.LOST_UPSTREAM)
        if self.closed:
            return
        self.asked, self._line = what, line
        self.quota.pause(self.wait(self.door.times.reply_s if up else self.door.times.connect_s))
        refusal = self.hop.ask(line, line if what == "hello" else self._hello, self.door.upstream)
        if refusal:
            self.asked = None
            self._end(refusal)

    # -- the next hop -----------------------------------------------------------------------------

    def upstream_met(self) -> None:
        """The next hop has taken our call."""
        self.hop.state = "greeting"
        self.wait(self.door.times.reply_s)

    def replied(self, reply: bytes, *, alone: bool) -> None:
        """A reply of the next hop; `alone` says that nothing came behind it."""
        if self.asked is not None:
            # More than one reply to one command: nothing tells which of them is meant for what.
            if alone:
                self._answered(reply)
            else:
                self.upstream_lost()
        elif self.transfer is not None:
            self.transfer.from_upstream(reply, alone=alone)
        else:
            # A 421 of a next hop that is tired of waiting. The next command calls it anew.
            self.upstream_lost()

    def _answered(self, reply: bytes) -> None:
        what = self.asked
        assert what is not None
        if not reply.startswith(TAKEN[what]) or reply.startswith(b"421"):
            self.upstream_lost(reply if reply.startswith(b"421") else replies.LOST_UPSTREAM)
            return
        self.asked = None
        self._wait_for_client()
        if reply[:1] in b"23":
            reply = self._accepted(what, reply)
        self.io.say(reply)
        if self.place.closing and self.is_between:
            self._end(replies.CLOSING)
        elif self._intake.left or self.eof:
            self.resume()

    def _accepted(self, what: Asked, reply: bytes) -> bytes:
        """Take note of a yes; gives the reply as the client shall see it."""
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
            said = commands.argument_of(line)
            self._client = Client(address=self.access.address, helo=said)
            self.phase = "ready"
            if first:
                self.quota.met = self.io.now()
                self._wait_for_client()
            reply = ehlo.announced(
                reply, line, self.door.hostname,
                trusted=self.access.trusted, limit=self.door.size_limit_bytes,
            )  # fmt: skip
        return reply

    def upstream_lost(self, reply: bytes = replies.LOST_UPSTREAM) -> None:
        """The next hop is gone, cannot be reached, is late, or does not speak SMTP."""
        if self.hop.state == "gone":
            return
        state = self.hop.state
        if state == "called":
            reply = replies.NO_UPSTREAM
        self.hop.drop()
        if self.transfer is not None:
            self.place.tell_upstream_lost(self.hop.address, "message")
            self.transfer.upstream_lost()
        elif self.asked is not None or self._transaction.is_open:
            step = self.asked or self.phase if state == "up" else state
            self.place.tell_upstream_lost(self.hop.address, step)
            self.asked = None
            self._end(reply)

    def _leave(self) -> None:
        self.hop.leave(politely=self.asked is None)
        self.asked = None

    # -- time and ends ----------------------------------------------------------------------------

    def wait(self, seconds: float) -> float:
        """Set the time at which `expire` is due; gives the time now."""
        now = self.io.now()
        self.deadline = now + seconds
        return now

    def _judged(self) -> None:
        """The client is trusted, or is not."""
        self.quota.is_free = self.access.trusted
        self.share = self.place.budget.shares[self.access.trusted]

    def _wait_for_client(self) -> None:
        quota, now, times = self.quota, self.io.now(), self.door.times
        usual = quota.is_free and quota.mailed
        self.deadline = now + times.command_s if usual else quota.due(now, times)

    def is_idle(self, now: float) -> bool:
        """Whether it is the client's turn, and it should go first where room is short."""
        waits = self.asked is None and self.transfer is None and not self.closed
        return waits and self.quota.is_idle(now, self.door.times)

    @property
    def is_between(self) -> bool:
        """Whether ending now would break nothing off."""
        return self.asked is None and self.transfer is None and not self._transaction.is_open

    def expire(self) -> None:
        """The deadline has passed."""
        if self.asked is not None:
            self.upstream_lost()
        elif self.transfer is not None:
            self.transfer.expire()
        else:
            self._end(replies.TIMEOUT)

    def stop(self, reply: bytes) -> None:
        """End the session for a reason of ours; a message that is not complete is given up."""
        self.closed = True
        if self.transfer is not None:
            self.transfer.stop()
        self._end(reply)

    def _end(self, reply: bytes = b"") -> None:
        if reply:
            self.io.say(reply)
        self.closed = True
        self._intake.clear()
        self.wait(self.door.times.close_s)
        if self.transfer is None:
            self._leave()
        self.io.hang_up()

    # -- for the passage of a message -------------------------------------------------------------

    @property
    def upstream(self) -> Speech | None:
        """What the next hop speaks; None if it is gone."""
        return self.hop.address.speaks if self.hop.state == "up" else None

    def upstream_failed(self, step: str) -> None:
        """Count and log that the next hop failed us."""
        self.place.tell_upstream_lost(self.hop.address, step)

    def is_answering(self) -> bool:
        """Whether the next hop has sent something that no command asked for."""
        return self.hop.state == "up" and self.hop.has_surplus()

    def drop(self) -> None:
        self.hop.drop()

    @property
    def peer(self) -> str:
        return self.access.peer

    @property
    def recipients(self) -> int:
        """How many the next hop has accepted."""
        return len(self._transaction.rcpts)

    def envelope(self) -> Envelope:
        """The parsed copy of what was said."""
        return self._transaction.envelope(self._client)

    def forget_transaction(self) -> None:
        """After a message, a reset or a hello."""
        if self._transaction.is_open:
            self.share.give(self._transaction.size)
            self._transaction = Transaction()
        self.phase = "ready" if self._hello else "start"
        self._follow()

    def _follow(self) -> None:
        """Go by the newest settings: between two messages, on connections that are kept."""
        if self.door is not self.place.door:
            self.door = self.place.door
            self.access.judge(self.door)
            self._judged()
            if self.hop.state == "up" and self.hop.address != self.door.upstream:
                self.hop.drop()

    def message_done(self, *, accepted: bool) -> None:
        """The message has its reply, or nobody who waits for one."""
        self.transfer = None
        if accepted:
            self.quota.reset(self.io.now())
        self.share.forget(self.io)
        self.forget_transaction()
        if self.closed:
            self._leave()
        elif self.place.closing:
            self._end(replies.CLOSING)
        else:
            self._wait_for_client()
            if self._intake.left or self.eof:
                self.resume()

    _ACTIONS: ClassVar = {
        "say": _say, "hello": _greet, "xforward": _xforward, "mail": _mail,
        "rcpt": _rcpt, "data": _data, "reset": _reset, "quit": _quit,
    }  # fmt: skip
