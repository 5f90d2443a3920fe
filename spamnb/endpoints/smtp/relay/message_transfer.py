"""One message's way through: from the next hop's 354 to the reply that the client gets.

    collect -> judge -> reply                      stored, judged, sent on in one go
    collect -> judge -> stream -> reply            above the scan limit
    any of them -> discard                         doomed: the rest is read, then the reply is given

A protocol core without sockets. The body stays in wire form. Invariants: no 250 before the next
hop's 250, or the scanner's word that the quarantine holds it; what the next hop got without the
final dot is broken off, never completed; the header section is cleaned and stamped in every case;
one line in the log, whatever happens. Never raises on mail.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal

from spamnb.core.policy import verdict_headers
from spamnb.endpoints.net import reply_parser
from spamnb.endpoints.smtp.protocol.commands import shown
from spamnb.endpoints.smtp.protocol.data_framing import DataFramer, unstuffed
from spamnb.endpoints.smtp.relay import replies
from spamnb.endpoints.smtp.relay.ports import INPUT, MEMORY, ROOM, STUCK, TransferHost
from spamnb.service.scanning.types import ScanRequest, ScanResult, unjudged

State = Literal["collect", "judge", "stream", "discard", "reply", "over"]

FEW = 3
"""recipients that a log line names"""
TOGETHER_BYTES = 16384
"""of the body that go out with the header; copying megabytes to save a packet does not pay"""
LEAST_BYTES_S = 500
"""What a client must send where room is short: as Postfix's smtpd_min_data_rate."""


class MessageTransfer:
    """The state of one message."""

    __slots__ = (
        "_action", "_codes", "_copied", "_doom", "_due", "_each", "_ended_at", "_facts",
        "_header", "_host", "_left", "_looked", "_recall", "_said", "_sealed", "_seen", "_sent_at",
        "_size", "_state", "_stored", "_taken", "_whole", "_wire", "began", "wants_data",
    )  # fmt: skip

    def __init__(self, host: TransferHost) -> None:
        self._host = host
        self._wire = DataFramer()
        self._stored, self._sealed = bytearray(), b""
        self._taken = self._size = self._copied = 0
        self._header, self._looked = -1, 0
        self._state: State = "collect"
        self.wants_data = True
        """whether it takes bytes from the client now"""
        self._whole = False
        self._doom = b""
        self._ended_at = self._sent_at = 0.0
        self.began = host.wait(host.door.times.data_s)
        self._due = self.began + host.door.times.crowded_data_s
        """until when the client may send nothing: each byte adds to it"""
        self._seen = self.began, 0
        """when the clock was looked at last, and the size then"""
        self._left = 1
        self._each = False
        """whether the next hop has a reply for each recipient, and so has the client"""
        self._said: list[bytes] = []
        self._codes: list[int] = []
        """of all that the client was told"""
        self._action = "relay"
        self._facts: dict[str, object] = {}
        self._recall: Callable[[], None] | None = None
        """takes the message back from the scanner"""
        if host.upstream is None:
            self._give_up(replies.UPSTREAM_GONE, "defer")

    # -- from the client --------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> bytes:
        """Bytes of the message; gives back those after its end."""
        host, (data, ended) = self._host, self._wire.feed(chunk)
        size = len(data)
        self._size += size
        if self._state == "collect":
            self._stored += data
            self._taken += size
            host.share.take(size, host.io, self._size)
        if self._state != "discard" and (reply := self._unfit()):
            self._give_up(self._known(reply), "refuse" if reply.startswith(b"5") else "defer")
        elif self._state == "stream" and data:
            host.io.pass_on(data)
        if ended:
            self._ended()
        else:
            host.wait(host.door.times.data_s)
            if self._state == "collect" and self._size > host.door.scan_limit_bytes:
                self._judge_with_header()
        return self._wire.rest

    def _unfit(self) -> bytes:
        """Why the message cannot pass, whatever it says."""
        door = self._host.door
        before = door.queue == "before"
        if self._wire.bare and door.bare_newlines == "refuse" and before:
            return replies.BARE_NEWLINE
        if 0 < door.size_limit_bytes < self._size:
            return replies.TOO_BIG
        if self._size > door.header_limit_bytes and self._header_bytes() > door.header_limit_bytes:
            return replies.LONG_HEADER if before else replies.LONG_HEADER_LATER
        return b""

    def _header_bytes(self) -> int:
        """Length of the header section, all that is stored if it has not ended."""
        if self._header < 0 and self._state == "collect":
            self._header = verdict_headers.header_end(self._stored, self._looked)
            self._looked = len(self._stored)
        return self._header if self._header >= 0 else len(self._stored)

    def _ended(self) -> None:
        self.wants_data = False
        self._ended_at = self._host.io.now()
        if self._state == "stream" and self._host.is_answering():
            self._give_up(replies.UPSTREAM_GONE, "defer")
        if self._state == "collect":
            self._whole = self._size <= self._host.door.scan_limit_bytes
            self._judge()
        elif self._state == "stream":
            self._host.io.pass_on(b".\r\n")
            self._await_reply()
        else:
            self._finish_with(self._doom)

    # -- judged -----------------------------------------------------------------------------------

    def _judge_with_header(self) -> None:
        """Stream, if the header section is whole: what of it were sent on could not be cleaned."""
        self._header_bytes()
        if self._header >= 0:
            self._judge()

    def _judge(self) -> None:
        host = self._host
        self._header_bytes()
        self._state, self.wants_data = "judge", False
        host.wait(host.door.times.judge_s)
        wire = self._for_scan()
        if self._wire.dotted or not self._whole:
            # A copy, which is memory that the message takes while it waits for its scan.
            self._copied = len(wire)
            host.share.take(self._copied, host.io, self._size)
        request = ScanRequest(
            raw=unstuffed(wire) if self._wire.dotted else wire,
            envelope=host.envelope(),
            before_queue=host.door.queue == "before",
            whole=self._whole,
        )
        try:
            self._recall = host.place.scanner.scan(request, self.judged)
        except Exception:  # noqa: BLE001 - the boundary: whatever fails here, the mail flows on
            self._facts["incident"] = host.place.fault()
            self._unjudged("fault")

    def _for_scan(self) -> bytes:
        """The message; of one above the limit its head, or just what we hold back of it."""
        if self._whole:
            # One copy: what is scanned is what is sent.
            self._sealed = bytes(self._stored)
            self._stored = bytearray()
            return self._sealed
        door = self._host.door
        most = door.scan_limit_bytes if door.oversize == "head" else self._header_bytes()
        with memoryview(self._stored) as stored:
            return bytes(stored[:most])

    def _unjudged(self, reason: str) -> None:
        """There is no verdict: policy decides."""
        self.judged(unjudged(reason, self._host.door, self._host.place.meters))

    def judged(self, outcome: ScanResult) -> None:
        """The scanner's word; one that comes too late changes nothing."""
        if outcome.withdraw is not None and not (self._state == "judge" and self._whole):
            outcome.withdraw()
        if self._state != "judge":
            return
        self._host.share.give(self._copied)
        self._copied = 0
        self._action = outcome.action
        self._facts.update(outcome.facts)
        if not self._doom and self._host.is_answering():
            # A reply that is there before the final dot cannot be the reply to it.
            self._interrupted(replies.UPSTREAM_GONE)
        if outcome.action == "keep" and self._whole:
            self._settle(replies.with_text(250, "2.0.0", outcome.reply, replies.KEPT_TEXT))
        elif self._doom:
            self._action = "defer"
            self._settle(self._doom)
        elif outcome.action == "defer":
            reply = replies.with_text(451, "4.7.1", outcome.reply, replies.DEFERRED_TEXT)
            self._settle(self._known(reply))
        elif outcome.action == "refuse" and self._host.door.queue == "before":
            reply = replies.with_text(550, "5.7.1", outcome.reply, replies.REFUSED_TEXT)
            self._settle(self._known(reply))
        else:
            self._relay(outcome)

    def _known(self, reply: bytes) -> bytes:
        """The reply with a reference, by which the administrator finds the message in the log."""
        reference = secrets.token_hex(4)
        self._facts["reference"] = reference
        return replies.with_reference(reply, reference)

    def _relay(self, outcome: ScanResult) -> None:
        if self._action != "relay":
            # After the queue a refusal would be a bounce; of an unfinished message nothing is kept.
            self._facts["instead_of"] = self._action
            self._action = "relay"
        body = self._sealed if self._whole else self._stored
        cut = self._header if self._header >= 0 else len(body)
        head = verdict_headers.stamped(bytes(body[:cut]), outcome.block, outcome.tag)
        end = b".\r\n" if self._ended_at else b""
        if len(body) - cut <= TOGETHER_BYTES:
            self._host.io.pass_on(b"".join((head, body[cut:], end)))
        else:
            split = cut + TOGETHER_BYTES
            self._host.io.pass_on(head + body[cut:split])
            self._host.io.pass_on(memoryview(body)[split:])
            if end:
                self._host.io.pass_on(end)
        self._stored, self._sealed = bytearray(), b""
        if self._ended_at:
            self._await_reply()
        else:
            self._state, self.wants_data = "stream", True
            self._host.wait(self._host.door.times.data_s)
            self._host.resume()

    def _settle(self, reply: bytes) -> None:
        """The message goes no further: the next hop must not get its end."""
        if self._ended_at:
            self._host.drop()
            self._finish_with(reply)
        else:
            self._give_up(reply, self._action)
            self._host.resume()

    def _give_up(self, reply: bytes, action: str) -> None:
        """Read the rest for nothing; `reply` is what its end gets."""
        self._state, self._doom, self._action = "discard", reply, action
        self.wants_data = not self._ended_at
        self._release()
        self._host.drop()
        self._host.io.free(ROOM)
        self._host.wait(self._host.door.times.data_s)

    def _release(self) -> None:
        self._host.share.give(self._taken + self._copied)
        self._taken = self._copied = 0
        self._stored, self._sealed = bytearray(), b""

    # -- from the next hop ------------------------------------------------------------------------

    def _await_reply(self) -> None:
        host = self._host
        self._state = "reply"
        self._sent_at = host.io.now()
        if host.upstream == "lmtp":
            self._left = host.recipients
            self._each = host.speaks == "lmtp"
        host.deadline = max(self._sent_at, self._ended_at + host.door.times.final_s)

    def from_upstream(self, reply: bytes, *, alone: bool) -> None:
        """A reply that was not asked for by a command."""
        if self._state != "reply":
            # Nobody replies to half a message, unless to refuse it; then the rest is no use.
            known = reply[:1] in b"45" and not reply.startswith(b"421")
            self._interrupted(reply if known else replies.UPSTREAM_GONE)
        elif not reply.startswith((b"25", b"4", b"5")):
            self._host.upstream_failed("message")
            self._finish_late(replies.UPSTREAM_GONE)
        else:
            self._left -= 1
            self._say(reply, 1 if self._each else self._copies)
            if not self._left:
                if not alone or reply.startswith(b"421"):
                    self._host.drop()
                self._finish()

    @property
    def _copies(self) -> int:
        """How many replies the client wants: LMTP has one for each recipient (RFC 2033, 4.2)."""
        return self._host.recipients if self._host.speaks == "lmtp" else 1

    def upstream_lost(self) -> None:
        """The next hop is gone, or talks nonsense."""
        if self._state == "reply":
            self._finish_late(replies.UPSTREAM_GONE)
        else:
            self._interrupted(replies.UPSTREAM_GONE)

    def _interrupted(self, reply: bytes) -> None:
        if self._state == "judge":
            # The scanner still may keep the message, and then that is its reply.
            self._doom = reply
            self._host.drop()
        elif self._state in {"collect", "stream"}:
            self._give_up(reply, "defer" if reply.startswith(b"4") else "upstream-refused")

    def _finish_late(self, reply: bytes) -> None:
        """Give all that still wait the same reply: nobody knows what the next hop made of it."""
        missing = self._left if self._each else self._copies
        self._host.drop()
        self._facts["upstream_reply"] = "none"
        self._say(reply, missing)
        self._finish()

    # -- time and ends ----------------------------------------------------------------------------

    def expire(self) -> None:
        """The deadline has passed."""
        if self._state == "judge":
            # The scanner breaks off a scan that takes too long; it has not even come to that.
            self._take_back()
            self._unjudged("busy")
        elif self._state == "reply":
            self._host.upstream_failed("late")
            self._finish_late(replies.UPSTREAM_LATE)
        elif self._host.io.is_held(ROOM):
            self._host.upstream_failed("late")
            self._give_up(replies.UPSTREAM_LATE, "defer")
        elif self._host.io.is_held(INPUT | MEMORY):
            # Held by us, so not to blame. But whoever brings nothing when it is read again has had
            # its time: else a few that stall would fill the memory for good.
            self._host.wait(self._host.door.times.sweep_s)
        else:
            self._abandon("timeout", replies.TIMEOUT)

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client that must send, and is read."""
        return self.wants_data and not self._host.io.is_held(~STUCK)

    def is_slow(self, now: float) -> bool:
        """Whether the client sends less than the least rate; asked at every look at the clocks.

        Bytes that came fast count for `crowded_data_s` at most: a client that has sent a megabyte
        at once must go on. The time that the relay holds the client back is not the client's.
        """
        at, size = self._seen
        self._seen = now, self._size
        waits, longest = self.waits_for_client, now + self._host.door.times.crowded_data_s
        self._due += (self._size - size) / LEAST_BYTES_S + (0.0 if waits else now - at)
        self._due = min(self._due, longest)
        return waits and now > self._due

    def burden(self, now: float) -> float:
        """Bytes stored until the client has sent the rest, times seconds beyond the grace.

        Nothing while the relay holds the client back for another reason than memory.
        """
        held = self._host.io.is_held(~(STUCK | MEMORY))
        age = now - self.began - self._host.door.times.crowded_data_s
        return self._taken * max(0.0, age) if self.wants_data and not held else 0.0

    def rate(self, now: float) -> float:
        """Bytes a second since the message began."""
        return self._size / max(now - self.began, 1e-3)

    def shed(self) -> None:
        """End the session in favour of others, who wait for room."""
        self._abandon("shed", replies.SLOW)

    def client_lost(self) -> None:
        """The client has left. Once the next hop has it all, its word is still wanted."""
        if self._state != "reply":
            self._abandon("client-lost", b"")

    def stop(self) -> None:
        """We must end now."""
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
        self._said.append(reply)
        self._codes += [int(reply[:3])] * copies
        self._host.io.say(reply * copies)

    def _finish_with(self, reply: bytes) -> None:
        self._say(reply, self._copies)
        self._finish()

    def _finish(self) -> None:
        """Count, log, and let the session go on."""
        host = self._host
        if self._state == "judge":
            self._take_back()
        first, self._state, self.wants_data = self._state, "over", False
        self._release()
        self._count()
        if first == "reply" and (host.closed or host.eof) and min(self._codes, default=999) < 300:
            host.place.meters.count("duplicates_likely")
            self._facts["duplicate_likely"] = True
        host.place.tell(self._record(first))
        host.message_done(accepted=200 <= min(self._codes, default=0) < 300)

    def _take_back(self) -> None:
        """The scanner's word is not wanted any more."""
        if self._recall is not None:
            self._recall()

    def _count(self) -> None:
        meters = self._host.place.meters
        best = min(self._codes, default=0) // 100
        if best == 2:
            meters.count("messages")
            meters.count("bytes", self._size)
        elif best in {4, 5}:
            meters.count("deferred" if best == 4 else "refused")

    def _record(self, state: State) -> dict[str, object]:
        host, now, said = self._host, self._host.io.now(), b"".join(self._said)
        envelope = host.envelope()
        client = envelope.client
        record: dict[str, object] = {
            "event": "message",
            "peer": host.peer,
            "client": client.address,
            "helo": client.helo,
            "ident": client.ident,
            "from": envelope.sender,
            "to": list(envelope.recipients[:FEW]),
            "recipients": len(envelope.recipients),
            "size": self._size,
            "action": self._action,
            "code": self._codes[0] if self._codes else 0,
            "reply": shown(said.partition(b"\r\n")[0])[:200],
            "ms": int((now - host.started) * 10_000) / 10,
        }
        if state == "reply":
            seconds = now - self._sent_at
            host.place.meters.observe("upstream_seconds", seconds)
            record["upstream_id"] = reply_parser.queue_id(said)
            record["upstream_ms"] = int(seconds * 10_000) / 10
        record.update(self._facts)
        return record
