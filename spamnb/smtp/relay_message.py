"""One message through the relay: from the next hop's 354 to the reply that the client gets.

    state      client's bytes   message ends    next hop replies   it is lost   deadline passes
    collect    store            scan            discard            discard      over: timeout
    scan       -                -               451 unless kept    the same     unscanned: busy
    scan_head  -                -               discard            the same     unscanned: busy
    stream     forward          reply           discard            discard      over: timeout
    discard    drop             over: reply     -                  -            over: timeout
    reply      -                -               over: its reply    over: 451    over: 451
    over

`scan`: the message is complete. `scan_head`: it is above the scan limit; a scan result then leads
to `stream` if the client has more to send. `discard`: the rest is read, then the reply is sent. `-`
in the second column: the session buffers what the client sends.

No sockets and no clock: events come in, actions go out. The body stays in wire form. Invariants:
the client gets 250 only after the next hop's 250, or after the scanner has stored the message in
quarantine; if the final dot has not been sent, the next hop's connection is aborted and the message
never completed; the header section is always cleaned and marked. Never raises on mail.
"""

from __future__ import annotations

from typing import Literal

from spamnb.errors import incident_id
from spamnb.mail.limits import shown
from spamnb.net import clients
from spamnb.net.actions import (
    INPUT,
    MEMORY,
    ROOM,
    STUCK,
    TURN,
    AskUpstream,
    Output,
    SendClient,
    SendUpstream,
    StartScan,
    StopScan,
    Withdraw,
)
from spamnb.policy import headers
from spamnb.scan.values import ScanRequest, ScanResult
from spamnb.smtp import relay_replies
from spamnb.smtp.relay_sides import ClientState, DataRate, NextHop
from spamnb.smtp.syntax import DataFramer, unstuffed
from spamnb.telemetry import Meters

TransferState = Literal["collect", "scan", "scan_head", "stream", "discard", "reply", "over"]

FIRST_WRITE_BYTES = 16384
"""of the body, sent in one write with the header; copying megabytes to save a packet is slower"""
LOGGED_RECIPIENTS = 3
"""recipients that a log line names"""
_WANT_DATA = frozenset(("collect", "stream", "discard"))
_SCANNING = frozenset(("scan", "scan_head"))


class MessageTransfer:
    """The state of one message."""

    __slots__ = (
        "_client", "_final_reply", "_framer", "_header_end", "_held", "_hop",
        "_missing_replies", "_output", "_params", "_searched", "_stored", "action",
        "best_code", "ended_at", "envelope", "facts", "is_accepted", "rate", "replies", "request",
        "sent_at", "size", "state",
    )  # fmt: skip

    def __init__(self, client: ClientState, hop: NextHop, output: Output) -> None:
        self._client, self._hop, self._output = client, hop, output
        self._params = client.params
        self.state: TransferState = "collect"
        self._framer = DataFramer()
        self._stored: bytes | bytearray = bytearray()
        """what is kept of the message until it is scanned, in wire form"""
        self._header_end = -1
        """where the body begins in it; -1: not found in the first `_searched` bytes"""
        self._searched = 0
        self._held = 0
        """bytes of memory"""
        self.size = 0
        self.rate = DataRate(output.now, self._params.times.data_busy_s)
        self.request: ScanRequest | None = None
        """what is scanned; None before the scan and after its result"""
        self._final_reply = b""
        """the reply that the client gets at the end instead of the next hop's reply"""
        self.ended_at = 0.0
        """when the client's final dot came, or zero"""
        self.sent_at = 0.0
        """when the next hop was sent the final dot, or zero"""
        self._missing_replies = 1
        self.replies: list[bytes] = []
        """that the client got"""
        self.best_code = 0
        """of these replies; zero without one"""
        self.is_accepted = False
        """whether the client got a 250, for one recipient at least"""
        self.action = "relay"
        self.facts: dict[str, object] = {}
        """for the log line"""
        self.envelope = client.envelope()
        output.deadline = output.now + self._params.times.data_s

    # -- from the client --------------------------------------------------------------------------

    @property
    def wants_data(self) -> bool:
        """Whether it accepts bytes from the client now."""
        return self.state in _WANT_DATA

    def client_bytes(self, chunk: bytes) -> bytes:
        """Take bytes of the message; returns those after its end."""
        data, ended = self._framer.feed(chunk)
        self.size += len(data)
        if self.state == "collect":
            self._stored += data
            self._hold(len(data))
        if self.state != "discard" and (reply := self._refusal()):
            self._discard(
                self._with_reference(reply), "refuse" if reply.startswith(b"5") else "defer"
            )
        elif self.state == "stream" and data:
            self._output.add(SendUpstream(data))
        if ended:
            self._ended()
        else:
            self._output.deadline = self._output.now + self._params.times.data_s
            # Header lines that were sent could not be cleaned, so the header must be complete.
            if self.state == "collect" and self._is_large and self._find_header() >= 0:
                self._scan("scan_head")
        return self._framer.rest

    @property
    def _is_large(self) -> bool:
        return self.size > self._params.scan_limit_bytes

    def _refusal(self) -> bytes:
        """The reply that rejects the message for its size or form; empty for none."""
        params = self._params
        before = params.queue == "before"
        if self._framer.bare and params.bare_newlines == "refuse" and before:
            return relay_replies.BARE_NEWLINE
        if 0 < params.size_limit_bytes < self.size:
            return relay_replies.TOO_BIG
        limit = params.header_limit_bytes
        if self.size > limit and not 0 <= self._find_header() <= limit:
            return relay_replies.LONG_HEADER if before else relay_replies.LONG_HEADER_LATER
        return b""

    def _find_header(self) -> int:
        """Where the body begins; -1 if that has not arrived. Searches each byte once."""
        if self._header_end < 0:
            self._header_end = headers.header_end(self._stored, self._searched)
            self._searched = len(self._stored)
        return self._header_end

    def _ended(self) -> None:
        self.ended_at = self._output.now
        if self.state == "collect":
            self._scan("scan_head" if self._is_large else "scan")
        elif self.state == "stream":
            self._end_upstream(b".\r\n")
        else:
            self._finish_with(self._final_reply)

    def _hold(self, count: int) -> None:
        """Account for memory."""
        self._held += count
        self._output.held_bytes += count

    # -- scan -------------------------------------------------------------------------------------

    def _scan(self, state: TransferState) -> None:
        self.state = state
        self._clean_header()
        whole, is_dotted = state == "scan", self._framer.dotted
        # The scanner and the next hop get the same bytes, from one copy.
        wire = self._stored = bytes(self._stored)
        if not whole:
            wire = wire[: self._params.scan_limit_bytes]
        if is_dotted or not whole:
            # A copy: it counts as the message's memory until the scan ends.
            self._hold(len(wire))
        header = min(self._header_end, len(wire))
        if is_dotted:
            header -= wire.startswith(b".") + wire.count(b"\r\n.", 0, header)
        self.request = ScanRequest(
            raw=unstuffed(wire) if is_dotted else wire,
            header_bytes=header,
            envelope=self.envelope,
            before_queue=self._params.queue == "before",
            whole=whole,
            is_received=self._client.wrote_received,
        )
        self._output.deadline = self._output.now + self._params.times.scan_total_s
        self._output.add(StartScan(self.request))

    def _clean_header(self) -> None:
        """Remove what is forged; without an end of the header, all is header.

        Copies of the added fields are. Results of authentication under the site's names are, in
        mail of a stranger: behind a queue, and from a trusted client, a server of the site may have
        written them.
        """
        end = self._find_header()
        header = bytes(self._stored[: end if end >= 0 else None])
        clean = headers.remove_forged(header, shared=not self._params.other)
        client = self._client
        if not client.trusted or self._is_of_stranger:
            clean = headers.remove_claims(
                clean,
                self._params.local,
                received=client.wrote_received,
                sent=not client.trusted,
            )
        self._header_end = len(clean)
        if len(clean) < len(header):
            self._stored = clean + self._stored[len(header) :]

    @property
    def _is_of_stranger(self) -> bool:
        """Whether an MTA in front of the queue passes on mail of a client of its own."""
        seen = self.envelope.client
        is_named = bool(self.envelope.xforward_lines)
        return self._params.queue == "before" and is_named and seen.source.upper() != "LOCAL"

    def scan_fault(self, incident: str) -> bool:
        """Handle a fault of the daemon during the scan: the message is passed on unscanned.

        Returns False if no result is awaited any more, or if this is not the first fault.
        """
        if self.state not in _SCANNING or "incident" in self.facts:
            return False
        self.facts["incident"] = incident
        if self.request is None:
            return False
        self._output.add(StopScan("fault"))
        return True

    def scan_done(self, request: ScanRequest, result: ScanResult) -> None:
        """Apply the scan result; if it is late, only the message that it stored is deleted."""
        is_awaited = request is self.request
        if result.withdraw is not None and not (is_awaited and request.whole):
            self._output.add(Withdraw(result.withdraw))
        if is_awaited:
            self._apply(result)

    def _apply(self, result: ScanResult) -> None:
        self.request = None
        self._hold(len(self._stored) - self._held)
        self.action = result.action
        self.facts.update(result.facts)
        if result.action == "keep" and self.state == "scan":
            self._end_here(
                relay_replies.with_text(250, "2.0.0", result.reply, relay_replies.KEPT_TEXT)
            )
        elif self._final_reply:
            self.action = "defer"
            self._end_here(self._final_reply)
        elif result.action == "defer":
            reply = relay_replies.with_text(451, "4.7.1", result.reply, relay_replies.DEFERRED_TEXT)
            self._end_here(self._with_reference(reply))
        elif result.action == "refuse" and self._params.queue == "before":
            reply = relay_replies.with_text(550, "5.7.1", result.reply, relay_replies.REFUSED_TEXT)
            self._end_here(self._with_reference(reply))
        else:
            self._relay(result)

    def _with_reference(self, reply: bytes) -> bytes:
        """The reply with a reference by which an administrator finds the message in the log."""
        reference = incident_id()
        self.facts["reference"] = reference
        return relay_replies.with_reference(reply, reference)

    def _relay(self, result: ScanResult) -> None:
        if self.action != "relay":
            # After the queue a rejection causes a bounce; an incomplete message is never stored.
            self.facts["instead_of"] = self.action
            self.action = "relay"
        wire, cut = self._stored, self._header_end
        head = headers.add_fields(bytes(wire[:cut]), result.add, result.tag)
        split = cut + FIRST_WRITE_BYTES
        first, rest = head + wire[cut:split], memoryview(wire)[split:]
        self._stored = b""
        if not self.ended_at:
            self._send(first, rest)
            self.state = "stream"
            self._output.deadline = self._output.now + self._params.times.data_s
        elif rest:
            self._send(first, rest)
            self._end_upstream(b".\r\n")
        else:
            self._end_upstream(first + b".\r\n")

    def _send(self, first: bytes, rest: memoryview) -> None:
        self._output.add(SendUpstream(first))
        if rest:
            self._output.add(SendUpstream(rest))

    def _end_here(self, reply: bytes) -> None:
        """Answer the client without forwarding: the next hop must not get the message's end."""
        if self.ended_at:
            self._hop.drop()
            self._finish_with(reply)
        else:
            self._discard(reply, self.action)

    def _discard(self, reply: bytes, action: str) -> None:
        """Read and discard the rest; its end gets `reply`."""
        self.state, self._final_reply, self.action = "discard", reply, action
        self._release()
        self._hop.drop()
        self._output.deadline = self._output.now + self._params.times.data_s

    def _release(self) -> None:
        self._hold(-self._held)
        self._stored = b""

    # -- from the next hop ------------------------------------------------------------------------

    def _end_upstream(self, data: bytes) -> None:
        """Send the last bytes with the final dot, unless bytes of the next hop are unread."""
        output = self._output
        self.state, self.sent_at = "reply", output.now
        if self._hop.received:
            self.not_sent()
            return
        if self._hop.address.protocol == "lmtp":
            self._missing_replies = len(self._client.transaction.rcpts)
        output.deadline = max(self.sent_at, self.ended_at + self._params.times.final_s)
        output.add(AskUpstream(data))

    def not_sent(self) -> None:
        """The final dot was not sent, because the next hop had sent unexpected bytes before."""
        self.sent_at = 0.0
        self._discard(relay_replies.UPSTREAM_GONE, "defer")
        self._finish_with(self._final_reply)

    def upstream_reply(self, reply: bytes) -> None:
        """A reply from the next hop to the message, or to no command at all."""
        if self.state != "reply":
            # A reply to an incomplete message can only reject it; the rest need not be sent.
            known = reply[:1] in b"45" and not reply.startswith(b"421")
            self._interrupted(reply if known else relay_replies.UPSTREAM_GONE)
        elif not reply.startswith((b"25", b"4", b"5")):
            self._hop.log_failure("message")
            self._finish_late(relay_replies.UPSTREAM_GONE)
        else:
            self._missing_replies -= 1
            self._answer(reply, 1 if self._is_per_recipient else self._copies)
            if not self._missing_replies:
                if self._hop.received or reply.startswith(b"421"):
                    self._hop.drop()
                self._finish()

    @property
    def _is_per_recipient(self) -> bool:
        """Whether the next hop sends a reply for each recipient, and the client expects them."""
        return self._client.protocol == self._hop.address.protocol == "lmtp"

    @property
    def _copies(self) -> int:
        """How many replies the client expects: LMTP has one a recipient (RFC 2033, 4.2)."""
        return len(self._client.transaction.rcpts) if self._client.protocol == "lmtp" else 1

    def upstream_lost(self) -> None:
        """The next hop has disconnected or broken the protocol."""
        if self.state == "reply":
            self._finish_late(relay_replies.UPSTREAM_GONE)
        else:
            self._interrupted(relay_replies.UPSTREAM_GONE)

    def _interrupted(self, reply: bytes) -> None:
        if self.state in _SCANNING:
            # The scanner may still store the message in quarantine; then the client gets a 250.
            self._final_reply = reply
            self._hop.drop()
        elif self.state in {"collect", "stream"}:
            self._discard(reply, "defer" if reply.startswith(b"4") else "upstream-refused")

    def _finish_late(self, reply: bytes) -> None:
        """Send this reply for all missing ones: it is unknown what became of the message."""
        self._hop.drop()
        self.facts["upstream_reply"] = "none"
        self._answer(reply, self._missing_replies if self._is_per_recipient else self._copies)
        self._finish()

    # -- deadlines and ends -----------------------------------------------------------------------

    def timeout(self) -> None:
        """Handle the passed deadline."""
        output = self._output
        if self.state in _SCANNING:
            # The scanner itself ends a scan that takes too long; this scan has not begun in time.
            output.add(StopScan("busy"))
        elif self.state == "reply":
            self._hop.log_failure("late")
            self._finish_late(relay_replies.UPSTREAM_LATE)
        elif output.paused & ROOM:
            self._hop.log_failure("late")
            self._discard(relay_replies.UPSTREAM_LATE, "defer")
        elif output.paused & (INPUT | MEMORY | TURN):
            # The relay paused the client, so wait. A client that sends nothing once it is read
            # again is not given more time: a few stalled clients could fill the memory for good.
            output.deadline = output.now + self._params.times.sweep_s
        else:
            self.abandon("timeout", relay_replies.TIMEOUT)

    @property
    def waits_for_client(self) -> bool:
        """Whether the client must send and is being read."""
        return self.wants_data and not self._output.paused & ~STUCK

    def is_slow(self, now: float) -> bool:
        """Whether the client sends below the minimum rate; called at each deadline check."""
        return self.rate.is_slow(now, self.size, waiting=self.waits_for_client)

    def memory_cost(self, now: float) -> float:
        """Byte-seconds beyond the grace period, if the client must send the rest.

        Zero while the relay pauses the client for another reason than memory.
        """
        if not self.wants_data or self._output.paused & ~(STUCK | MEMORY):
            return 0.0
        return self.rate.memory_cost(now, self._held)

    def client_lost(self) -> None:
        """Handle the client's disconnection; the next hop's final reply is still read."""
        if self.state != "reply":
            self.abandon("client-lost")

    def abandon(self, action: str, reply: bytes = b"") -> None:
        """End the transfer immediately."""
        self.action = action
        self._hop.drop()
        if reply:
            self._answer(reply, 1)
        self._finish()

    def _answer(self, reply: bytes, copies: int) -> None:
        self.replies.append(reply)
        self.best_code = min(self.best_code or 999, int(reply[:3]))
        self.is_accepted = self.best_code < 300
        self._output.add(SendClient(reply * copies))

    def _finish_with(self, reply: bytes) -> None:
        self._answer(reply, self._copies)
        self._finish()

    def _finish(self) -> None:
        if self.request is not None:
            self.request = None
            self._output.add(StopScan())
        self._release()
        self.state = "over"

    # -- the log ----------------------------------------------------------------------------------

    def report(self, meters: Meters, *, client_has_left: bool) -> dict[str, object]:
        """Count the message, which is over; returns its one log line."""
        now, code = self._output.now, self.best_code
        is_doubtful = self.is_accepted and self.sent_at > 0 and client_has_left
        if is_doubtful:
            self.facts["duplicate_likely"] = True
        record = self._record(now) | self.facts
        if self.is_accepted:
            meters.count("messages")
            meters.count("bytes", self.size)
            meters.count("duplicates_likely", is_doubtful)
        elif code:
            meters.count("deferred" if code < 500 else "refused")
        if self.sent_at:
            meters.observe("upstream_seconds", now - self.sent_at)
        return record

    def _record(self, now: float) -> dict[str, object]:
        envelope, sent = self.envelope, b"".join(self.replies)
        client = envelope.client
        found: dict[str, object] = {
            "event": "message",
            "peer": self._client.peer,
            "client": client.address,
            "helo": client.helo,
            "ident": client.ident,
            "from": envelope.sender,
            "to": list(envelope.recipients[:LOGGED_RECIPIENTS]),
            "recipients": len(envelope.recipients),
            "size": self.size,
            "action": self.action,
            "code": int(sent[:3]) if sent else 0,
            "reply": shown(sent.partition(b"\r\n")[0])[:200],
            "ms": int((now - self._client.transaction.began) * 10_000) / 10,
        }
        if self.sent_at:
            found["upstream_id"] = clients.queue_id(sent)
            found["upstream_ms"] = int((now - self.sent_at) * 10_000) / 10
        return found
