"""One message through the relay: from the next hop's 354 to the reply that the client gets.

    collect -> scan -> reply                       stored, scanned, forwarded in one piece
    collect -> scan -> stream -> reply             above the scan limit
    any of them -> discard                         the rest is read, then the reply is sent

A protocol core without sockets. The body stays in wire form. Invariants: the client gets 250 only
after the next hop's 250, or after the scanner has stored the message in quarantine; if the final
dot has not been sent, the next hop's connection is aborted and the message never completed; the
header section is always cleaned and marked; each message has one log line. Never raises on mail.
"""

from __future__ import annotations

from typing import Literal

from spamnb.core.policy import verdict_headers
from spamnb.endpoints.net import reply_parser
from spamnb.endpoints.smtp.protocol.commands import shown
from spamnb.endpoints.smtp.protocol.data_framing import DataFramer, unstuffed
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.ports import INPUT, MEMORY, ROOM, STUCK, TransferHost
from spamnb.errors import incident_id
from spamnb.service.scanning.types import ScanRequest, ScanResult, StopScan

State = Literal["collect", "scan", "stream", "discard", "reply", "over"]

LOGGED_RECIPIENTS = 3
"""recipients that a log line names"""
FIRST_WRITE_BYTES = 16384
"""of the body, sent in one write with the header; copying megabytes to save a packet is slower"""
MIN_RATE_BYTES_S = 500
"""What a client must send while resources are short: as Postfix's smtpd_min_data_rate."""


class MessageTransfer:
    """The state of one message."""

    __slots__ = (
        "_accounted", "_action", "_codes", "_complete", "_copied", "_ended_at",
        "_facts", "_final_reply", "_framer", "_header", "_header_searched", "_host", "_is_complete",
        "_last_check", "_missing_replies", "_per_recipient", "_replies", "_sent_at", "_size",
        "_slow_after", "_state", "_stop_scan", "_stored", "began", "wants_data",
    )  # fmt: skip

    def __init__(self, host: TransferHost) -> None:
        self._host = host
        self._framer = DataFramer()
        self._stored, self._complete = bytearray(), b""
        self._accounted = self._size = self._copied = 0
        self._header, self._header_searched = -1, 0
        self._state: State = "collect"
        self.wants_data = True
        """whether it accepts bytes from the client now"""
        self._is_complete = False
        self._final_reply = b""
        self._ended_at = self._sent_at = 0.0
        self.began = host.wait(host.params.times.data_s)
        self._slow_after = self.began + host.params.times.crowded_data_s
        """the client counts as slow after this time; each byte received moves it"""
        self._last_check = self.began, 0
        """time of the last deadline check, and the size then"""
        self._missing_replies = 1
        self._per_recipient = False
        """whether the next hop sends a reply for each recipient, and the client expects them"""
        self._replies: list[bytes] = []
        self._codes: list[int] = []
        """of all replies sent to the client"""
        self._action = "relay"
        self._facts: dict[str, object] = {}
        self._stop_scan: StopScan | None = None
        if host.upstream is None:
            self._discard(replies.UPSTREAM_GONE, "defer")

    # -- from the client --------------------------------------------------------------------------

    def receive(self, chunk: bytes) -> bytes:
        """Take bytes of the message; returns those after its end."""
        host, (data, ended) = self._host, self._framer.feed(chunk)
        size = len(data)
        self._size += size
        if self._state == "collect":
            self._stored += data
            self._accounted += size
            host.share.take(size, host.io, self._size)
        if self._state != "discard" and (reply := self._refusal()):
            self._discard(
                self._with_reference(reply), "refuse" if reply.startswith(b"5") else "defer"
            )
        elif self._state == "stream" and data:
            host.io.write_upstream(data)
        if ended:
            self._ended()
        else:
            host.wait(host.params.times.data_s)
            if self._state == "collect" and self._size > host.params.scan_limit_bytes:
                self._scan_when_header_known()
        return self._framer.rest

    def _refusal(self) -> bytes:
        """The reply that rejects the message for its size or form; empty for none."""
        params = self._host.params
        before = params.queue == "before"
        if self._framer.bare and params.bare_newlines == "refuse" and before:
            return replies.BARE_NEWLINE
        if 0 < params.size_limit_bytes < self._size:
            return replies.TOO_BIG
        if (
            self._size > params.header_limit_bytes
            and self._header_bytes() > params.header_limit_bytes
        ):
            return replies.LONG_HEADER if before else replies.LONG_HEADER_LATER
        return b""

    def _header_bytes(self) -> int:
        """Length of the header section, or of all stored bytes if it has not ended."""
        if self._header < 0 and self._state == "collect":
            self._header = verdict_headers.header_end(self._stored, self._header_searched)
            self._header_searched = len(self._stored)
        return self._header if self._header >= 0 else len(self._stored)

    def _ended(self) -> None:
        self.wants_data = False
        self._ended_at = self._host.io.now()
        if self._state == "stream" and self._host.has_unexpected_reply():
            self._discard(replies.UPSTREAM_GONE, "defer")
        if self._state == "collect":
            self._is_complete = self._size <= self._host.params.scan_limit_bytes
            self._scan()
        elif self._state == "stream":
            self._host.io.write_upstream(b".\r\n")
            self._await_reply()
        else:
            self._finish_with(self._final_reply)

    # -- scan -------------------------------------------------------------------------------------

    def _scan_when_header_known(self) -> None:
        """Scan and stream if the header is complete: sent header lines could not be cleaned."""
        self._header_bytes()
        if self._header >= 0:
            self._scan()

    def _scan(self) -> None:
        host = self._host
        self._remove_forged()
        self._state, self.wants_data = "scan", False
        host.wait(host.params.times.scan_total_s)
        wire = self._scan_bytes()
        if self._framer.dotted or not self._is_complete:
            # A copy: it counts as the message's memory until the scan ends.
            self._copied = len(wire)
            host.share.take(self._copied, host.io, self._size)
        header = min(self._header, len(wire))
        if self._framer.dotted:
            header -= wire.startswith(b".") + wire.count(b"\r\n.", 0, header)
        request = ScanRequest(
            raw=unstuffed(wire) if self._framer.dotted else wire,
            header_bytes=header,
            envelope=host.envelope(),
            before_queue=host.params.queue == "before",
            whole=self._is_complete,
        )
        self._stop_scan = host.context.scanner.scan(request, self.on_result)

    def _remove_forged(self) -> None:
        """Remove forged copies of the added headers from the stored message."""
        end = self._header_bytes()
        header = bytes(self._stored[:end])
        clean = verdict_headers.remove_forged(header)
        if clean != header:
            self._stored[:end] = clean
        self._header = len(clean)

    def _scan_bytes(self) -> bytes:
        """The whole message; above the scan limit its first bytes."""
        if self._is_complete:
            # One copy: what is scanned is what is sent.
            self._complete = bytes(self._stored)
            self._stored = bytearray()
            return self._complete
        with memoryview(self._stored) as stored:
            return bytes(stored[: self._host.params.scan_limit_bytes])

    def on_result(self, result: ScanResult) -> None:
        """Apply the scan result; one that comes too late only undoes what it stored."""
        if result.withdraw is not None and not (self._state == "scan" and self._is_complete):
            result.withdraw()
        if self._state != "scan":
            return
        self._host.share.give(self._copied)
        self._copied = 0
        self._action = result.action
        self._facts.update(result.facts)
        if not self._final_reply and self._host.has_unexpected_reply():
            # A reply that arrived before the final dot was sent does not answer it.
            self._interrupted(replies.UPSTREAM_GONE)
        if result.action == "keep" and self._is_complete:
            self._end_transfer(replies.with_text(250, "2.0.0", result.reply, replies.KEPT_TEXT))
        elif self._final_reply:
            self._action = "defer"
            self._end_transfer(self._final_reply)
        elif result.action == "defer":
            reply = replies.with_text(451, "4.7.1", result.reply, replies.DEFERRED_TEXT)
            self._end_transfer(self._with_reference(reply))
        elif result.action == "refuse" and self._host.params.queue == "before":
            reply = replies.with_text(550, "5.7.1", result.reply, replies.REFUSED_TEXT)
            self._end_transfer(self._with_reference(reply))
        else:
            self._relay(result)

    def _with_reference(self, reply: bytes) -> bytes:
        """The reply with a reference by which an administrator finds the message in the log."""
        reference = incident_id()
        self._facts["reference"] = reference
        return replies.with_reference(reply, reference)

    def _relay(self, result: ScanResult) -> None:
        if self._action != "relay":
            # After the queue a rejection causes a bounce; an incomplete message is never stored.
            self._facts["instead_of"] = self._action
            self._action = "relay"
        body = self._complete if self._is_complete else self._stored
        cut = self._header
        head = verdict_headers.add_block(bytes(body[:cut]), result.block, result.tag)
        end = b".\r\n" if self._ended_at else b""
        if len(body) - cut <= FIRST_WRITE_BYTES:
            self._host.io.write_upstream(b"".join((head, body[cut:], end)))
        else:
            split = cut + FIRST_WRITE_BYTES
            self._host.io.write_upstream(head + body[cut:split])
            self._host.io.write_upstream(memoryview(body)[split:])
            if end:
                self._host.io.write_upstream(end)
        self._stored, self._complete = bytearray(), b""
        if self._ended_at:
            self._await_reply()
        else:
            self._state, self.wants_data = "stream", True
            self._host.wait(self._host.params.times.data_s)
            self._host.resume()

    def _end_transfer(self, reply: bytes) -> None:
        """Answer the client without forwarding: the next hop must not get the message's end."""
        if self._ended_at:
            self._host.drop()
            self._finish_with(reply)
        else:
            self._discard(reply, self._action)
            self._host.resume()

    def _discard(self, reply: bytes, action: str) -> None:
        """Read and discard the rest; its end gets `reply`."""
        self._state, self._final_reply, self._action = "discard", reply, action
        self.wants_data = not self._ended_at
        self._release()
        self._host.drop()
        self._host.io.resume_reading(ROOM)
        self._host.wait(self._host.params.times.data_s)

    def _release(self) -> None:
        self._host.share.give(self._accounted + self._copied)
        self._accounted = self._copied = 0
        self._stored, self._complete = bytearray(), b""

    # -- from the next hop ------------------------------------------------------------------------

    def _await_reply(self) -> None:
        host = self._host
        self._state = "reply"
        self._sent_at = host.io.now()
        if host.upstream == "lmtp":
            self._missing_replies = host.recipients
            self._per_recipient = host.speaks == "lmtp"
        host.deadline = max(self._sent_at, self._ended_at + host.params.times.final_s)

    def from_upstream(self, reply: bytes, *, alone: bool) -> None:
        """A reply from the next hop to the message, or to no command at all."""
        if self._state != "reply":
            # A reply to an incomplete message can only reject it; the rest need not be sent.
            known = reply[:1] in b"45" and not reply.startswith(b"421")
            self._interrupted(reply if known else replies.UPSTREAM_GONE)
        elif not reply.startswith((b"25", b"4", b"5")):
            self._host.upstream_failed("message")
            self._finish_late(replies.UPSTREAM_GONE)
        else:
            self._missing_replies -= 1
            self._say(reply, 1 if self._per_recipient else self._copies)
            if not self._missing_replies:
                if not alone or reply.startswith(b"421"):
                    self._host.drop()
                self._finish()

    @property
    def _copies(self) -> int:
        """How many replies the client expects: LMTP has one a recipient (RFC 2033, 4.2)."""
        return self._host.recipients if self._host.speaks == "lmtp" else 1

    def upstream_lost(self) -> None:
        """The next hop has disconnected or broken the protocol."""
        if self._state == "reply":
            self._finish_late(replies.UPSTREAM_GONE)
        else:
            self._interrupted(replies.UPSTREAM_GONE)

    def _interrupted(self, reply: bytes) -> None:
        if self._state == "scan":
            # The scanner may still store the message in quarantine; then the client gets a 250.
            self._final_reply = reply
            self._host.drop()
        elif self._state in {"collect", "stream"}:
            self._discard(reply, "defer" if reply.startswith(b"4") else "upstream-refused")

    def _finish_late(self, reply: bytes) -> None:
        """Send one reply in place of all missing ones: the message's fate is unknown."""
        missing = self._missing_replies if self._per_recipient else self._copies
        self._host.drop()
        self._facts["upstream_reply"] = "none"
        self._say(reply, missing)
        self._finish()

    # -- deadlines and ends -----------------------------------------------------------------------

    def expire(self) -> None:
        """Handle the passed deadline."""
        if self._state == "scan" and self._stop_scan is not None:
            # The scanner aborts a scan that takes too long; this one has not begun in time.
            self._stop_scan("busy")
        elif self._state == "reply":
            self._host.upstream_failed("late")
            self._finish_late(replies.UPSTREAM_LATE)
        elif self._host.io.is_paused(ROOM):
            self._host.upstream_failed("late")
            self._discard(replies.UPSTREAM_LATE, "defer")
        elif self._host.io.is_paused(INPUT | MEMORY):
            # The relay paused the client, so wait. A client that sends nothing once it is read
            # again is not given more time: a few stalled clients could fill the memory for good.
            self._host.wait(self._host.params.times.sweep_s)
        else:
            self._abandon("timeout", replies.TIMEOUT)

    @property
    def waits_for_client(self) -> bool:
        """Whether the client must send and is being read."""
        return self.wants_data and not self._host.io.is_paused(~STUCK)

    def is_slow(self, now: float) -> bool:
        """Whether the client sends below the minimum rate; called at each deadline check.

        Bytes received above that rate count for `crowded_data_s` at most, so a client that has sent
        a megabyte in one burst must continue. Time in which the relay pauses the client does not
        count.
        """
        at, size = self._last_check
        self._last_check = now, self._size
        waiting, longest = self.waits_for_client, now + self._host.params.times.crowded_data_s
        self._slow_after += (self._size - size) / MIN_RATE_BYTES_S + (0.0 if waiting else now - at)
        self._slow_after = min(self._slow_after, longest)
        return waiting and now > self._slow_after

    def memory_cost(self, now: float) -> float:
        """Bytes stored until the client has sent the rest, times seconds beyond the grace period.

        Zero while the relay pauses the client for another reason than memory.
        """
        is_paused = self._host.io.is_paused(~(STUCK | MEMORY))
        age = now - self.began - self._host.params.times.crowded_data_s
        return self._accounted * max(0.0, age) if self.wants_data and not is_paused else 0.0

    def rate(self, now: float) -> float:
        """Bytes a second since the message began."""
        return self._size / max(now - self.began, 1e-3)

    def shed(self) -> None:
        """End the session to free memory or connections for others."""
        self._abandon("shed", replies.SLOW)

    def client_lost(self) -> None:
        """Handle the client's disconnection; the next hop's final reply is still read."""
        if self._state != "reply":
            self._abandon("client-lost", b"")

    def stop(self) -> None:
        """End the transfer immediately."""
        if self._state != "over":
            self._abandon("stopped", b"")

    def _abandon(self, action: str, reply: bytes) -> None:
        self._action = action
        self._host.drop()
        if reply:
            self._say(reply, 1)
            self._host.closed = True
            self._finish()
            self._host.io.hang_up()
        else:
            self._finish()

    def _say(self, reply: bytes, copies: int) -> None:
        self._replies.append(reply)
        self._codes += [int(reply[:3])] * copies
        self._host.io.write_client(reply * copies)

    def _finish_with(self, reply: bytes) -> None:
        self._say(reply, self._copies)
        self._finish()

    def _finish(self) -> None:
        host = self._host
        if self._state == "scan" and self._stop_scan is not None:
            self._stop_scan("")
        first, self._state, self.wants_data = self._state, "over", False
        self._release()
        self._count()
        if first == "reply" and (host.closed or host.eof) and min(self._codes, default=999) < 300:
            host.context.meters.count("duplicates_likely")
            self._facts["duplicate_likely"] = True
        host.context.log_record(self._record(first))
        host.message_done(accepted=200 <= min(self._codes, default=0) < 300)

    def _count(self) -> None:
        meters = self._host.context.meters
        best = min(self._codes, default=0) // 100
        if best == 2:
            meters.count("messages")
            meters.count("bytes", self._size)
        elif best in {4, 5}:
            meters.count("deferred" if best == 4 else "refused")

    def _record(self, state: State) -> dict[str, object]:
        host, now, sent = self._host, self._host.io.now(), b"".join(self._replies)
        envelope = host.envelope()
        client = envelope.client
        record: dict[str, object] = {
            "event": "message",
            "peer": host.peer,
            "client": client.address,
            "helo": client.helo,
            "ident": client.ident,
            "from": envelope.sender,
            "to": list(envelope.recipients[:LOGGED_RECIPIENTS]),
            "recipients": len(envelope.recipients),
            "size": self._size,
            "action": self._action,
            "code": self._codes[0] if self._codes else 0,
            "reply": shown(sent.partition(b"\r\n")[0])[:200],
            "ms": int((now - host.started) * 10_000) / 10,
        }
        if state == "reply":
            seconds = now - self._sent_at
            host.context.meters.observe("upstream_seconds", seconds)
            record["upstream_id"] = reply_parser.queue_id(sent)
            record["upstream_ms"] = int(seconds * 10_000) / 10
        record.update(self._facts)
        return record
