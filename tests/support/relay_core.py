"""A relay session between a client and a next hop that are byte streams: no sockets, no clock."""

from collections import deque
from dataclasses import replace
from typing import Any

from spamnb.net import actions
from spamnb.net import actions as scan_actions
from spamnb.net.address import Address
from spamnb.policy.headers import unscanned_fields
from spamnb.scan.scanner import BUSY_REPLY
from spamnb.scan.values import ScanResult
from spamnb.settings.values import ListenerParams
from spamnb.smtp.relay_session import RelaySession
from spamnb.telemetry import Meters

BEGIN_S = 1000.0
HELD = object()
"""in a script: the next hop sends nothing"""
LOST = object()
"""in a script: the next hop disconnects"""
PARAMS = ListenerParams(
    Address("127.0.0.1", 25), Address("127.0.0.1", 26), hostname="relay.example"
)
EHLO, MAIL, RCPT, DATA, QUIT = (
    b"EHLO c.example\r\n",
    b"MAIL FROM:<a@x.example>\r\n",
    b"RCPT TO:<b@y.example>\r\n",
    b"DATA\r\n",
    b"QUIT\r\n",
)
ENVELOPE = MAIL + RCPT + DATA
OK = b"250 2.0.0 Ok\r\n"
QUEUED = b"250 2.0.0 Ok: queued as 4ABC\r\n"
VERDICT = (("X-Spamnb-Verdict", "ham"),)
BLOCK = b"X-Spamnb-Verdict: ham\r\n"
FALLBACKS = {
    "busy": ScanResult("defer", reply=BUSY_REPLY),
    "fault": ScanResult(add=unscanned_fields("fault")),
}
"""reason of a stopped scan -> its result"""
END = b".\r\n"
LARGE = {"scan_limit_bytes": 64, "header_limit_bytes": 64}
TEXT = b"Subject: x\r\n\r\nHello\r\n..two dots\r\n"


class NextHopScript:
    """One connection at the next hop: bytes in, replies out."""

    def __init__(self, script, lmtp):
        self.script, self.lmtp = script, lmtp
        self.received, self.buffer = bytearray(), b""
        self.in_data, self.rcpts = False, 0
        self.is_open = True

    def reply_to(self, step, usual):
        reply = self.script.get(step, usual)
        if isinstance(reply, list):
            reply = reply.pop(0) if reply else usual
        return reply

    def receive(self, data):
        """Take bytes; returns the replies."""
        self.received += data
        self.buffer += data
        replies: list[Any] = []
        while (end := self.end_of_next()) > 0:
            line, self.buffer = self.buffer[:end], self.buffer[end:]
            replies += self.ended() if self.in_data else [self.command(line)]
        return replies

    def end_of_next(self):
        """Where the next command or message ends; 0 if it is incomplete."""
        if not self.in_data:
            return self.buffer.find(b"\r\n") + 2 if b"\r\n" in self.buffer else 0
        if self.buffer.startswith(b".\r\n"):
            return 3
        return self.buffer.find(b"\r\n.\r\n") + 5 if b"\r\n.\r\n" in self.buffer else 0

    def ended(self):
        self.in_data = False
        count = self.rcpts if self.lmtp else 1
        return [self.reply_to("end", b"250 2.0.0 Ok: queued as 4ABC\r\n") for _ in range(count)]

    def command(self, line):
        verb = line[:4].upper().decode()
        usual = {"EHLO": b"250-hop\r\n250-PIPELINING\r\n250 SIZE 999999\r\n", "DATA": b"354 go\r\n"}
        usual["LHLO"] = usual["EHLO"]
        reply = self.reply_to(verb, usual.get(verb, b"250 2.0.0 Ok\r\n"))
        if reply is not HELD and reply is not LOST:
            self.rcpts = (self.rcpts + reply.startswith(b"2")) if verb == "RCPT" else self.rcpts
            self.in_data = verb == "DATA" and reply.startswith(b"354")
        return reply


class SessionDriver:
    """Runs a session: performs its actions, and notes what the other sides get."""

    def __init__(self, script=None, result=None, *, lmtp=False, refusal=b"", **changes):
        upstream = Address("127.0.0.1", 26, protocol="lmtp" if lmtp else "smtp")
        self.params = replace(PARAMS, upstream=upstream, **changes)
        self.meters, self.now = Meters(), BEGIN_S
        self.script, self.lmtp = script or {}, lmtp
        self.result, self.refusal = result or ScanResult(), refusal
        self.is_holding_scans = self.has_unread = self.is_auto = False
        self.client, self.hops = bytearray(), []
        self.to_deliver: deque[Any] = deque()
        self.done, self.log, self.requests = [], [], []
        self.is_reading, self.is_closed, self.later = True, False, 0
        self.session = RelaySession(self.params, self.meters, "127.0.0.1", self.now)
        self.run(self.session.begin)

    @property
    def hop(self):
        return self.hops[-1]

    @property
    def names(self):
        """The names of all actions performed so far."""
        return [type(action).__name__ for action in self.done]

    def run(self, event, *args):
        event(*args, self.now)
        output = self.session.output
        while output.actions:
            action = output.actions.popleft()
            self.done.append(action)
            self.perform(action)

    def perform(self, action):
        session = self.session
        match action:
            case actions.AdmitClient():
                self.run(session.admitted, self.refusal)
            case actions.SendClient(data):
                self.client += data
            case actions.ConnectUpstream():
                self.hops.append(NextHopScript(self.script, self.lmtp))
                self.to_deliver.append(self.hop.reply_to("connect", b"220 hop ESMTP\r\n"))
            case actions.AskUpstream() if self.has_unread:
                self.has_unread = False
                self.run(session.unexpected_data)
            case actions.AskUpstream(data) | actions.SendUpstream(data):
                assert self.hop.is_open
                self.to_deliver.extend(self.hop.receive(bytes(data)))
            case actions.DropUpstream() | actions.QuitUpstream():
                self.hop.is_open = False
                self.to_deliver.clear()
            case scan_actions.StartScan(request):
                self.requests.append(request)
                if not self.is_holding_scans:
                    self.run(session.scan_done, request, self.result)
            case scan_actions.StopScan(reason) if reason:
                self.run(session.scan_done, self.requests[-1], FALLBACKS[reason])
            case actions.PauseReading() | actions.ResumeReading():
                self.is_reading = isinstance(action, actions.ResumeReading)
            case actions.ResumeLater():
                self.later += 1
            case actions.HangUp() | actions.Abort():
                self.is_closed = True
            case scan_actions.LogMessage(record):
                self.log.append(record)
            case scan_actions.Withdraw(delete):
                delete()

    def deliver(self, size=1 << 20):
        """Deliver the next hop's next bytes, at most so many."""
        reply = self.to_deliver.popleft()
        if self.session._hop.state == "called":
            if reply is LOST:
                self.run(self.session.upstream_lost)
                return
            self.run(self.session.upstream_connected)
        if reply is LOST:
            self.run(self.session.upstream_lost)
        elif reply is not HELD:
            if reply[size:]:
                self.to_deliver.appendleft(reply[size:])
            self.run(self.session.upstream_bytes, reply[:size])

    def settle(self):
        """Deliver all replies, and run what was put off."""
        while self.to_deliver or self.later:
            if self.to_deliver:
                self.deliver()
            else:
                self.later -= 1
                self.run(self.session.resume, 0)

    def send(self, data):
        """Send the client's bytes; returns what the client gets for them."""
        before = len(self.client)
        self.run(self.session.client_bytes, data)
        self.settle()
        return bytes(self.client[before:])

    def pass_time(self, seconds=None):
        """Let the time until the deadline pass, or so many seconds; the client's new bytes."""
        before = len(self.client)
        self.now = self.session.output.deadline if seconds is None else self.now + seconds
        if self.session.output.deadline <= self.now:
            self.run(self.session.timeout)
            self.settle()
        return bytes(self.client[before:])
