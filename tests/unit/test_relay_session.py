"""The relay's session without sockets: events and bytes in, actions and bytes out."""

from dataclasses import replace

import pytest
from support.relay_core import (
    BLOCK,
    DATA,
    EHLO,
    END,
    ENVELOPE,
    HELD,
    LARGE,
    LOST,
    MAIL,
    OK,
    QUEUED,
    QUIT,
    RCPT,
    TEXT,
    VERDICT,
    SessionDriver,
)

from spamnb.net import actions
from spamnb.net.actions import MEMORY, ROOM, STUCK
from spamnb.net.address import Address, NetworkSet
from spamnb.scan.values import ScanResult
from spamnb.settings.values import Limits, Timeouts
from spamnb.smtp.relay_session import MAX_COMMANDS_PER_TURN

STEPS = ["connect", "EHLO", "MAIL", "RCPT", "DATA", "end"]
PARTS = dict(zip(STEPS[1:], [EHLO, MAIL, RCPT, DATA, TEXT + END], strict=True))
STATES = ["collect", "scan", "scan_head", "stream", "reply", "discard"]


def ready(*args, **changes):
    """Return a session up to the 354."""
    driver = SessionDriver(*args, **changes)
    driver.send(EHLO)
    assert driver.send(ENVELOPE).endswith(b"354 go\r\n")
    return driver


def in_state(state):
    """Return a session with a message in a state of the table in `message_transfer`."""
    changes = LARGE if state in {"scan_head", "stream", "discard"} else {}
    driver = ready({"end": HELD}, **changes)
    driver.is_holding_scans = state.startswith("scan")
    body = {"collect": TEXT, "scan": TEXT + END, "reply": TEXT + END}
    driver.send(body.get(state, TEXT + b"y" * 70 + b"\r\n"))
    if state == "discard":
        driver.run(driver.session.upstream_bytes, b"452 4.3.1 full\r\n")
    assert driver.session.transfer.state == state
    return driver


def codes(replies):
    return [line[:3] for line in replies.split(b"\r\n") if line[3:4] == b" "]


# -- the dialogue ---------------------------------------------------------------------------------


def test_a_whole_session_in_one_piece():
    """Pipelined commands go on one at a time; the client gets one reply for each."""
    driver = SessionDriver(result=ScanResult(add=VERDICT))
    driver.send(EHLO + (ENVELOPE + TEXT + END) * 2 + QUIT)
    assert codes(driver.client) == [b"220", b"250", *[b"250", b"250", b"354", b"250"] * 2, b"221"]
    assert driver.hop.received == EHLO + (ENVELOPE + BLOCK + TEXT + END) * 2
    assert driver.names[-2:] == ["QuitUpstream", "HangUp"]
    assert [record["code"] for record in driver.log] == [250, 250]
    assert [request.raw for request in driver.requests] == [TEXT.replace(b"\r\n..", b"\r\n.")] * 2
    assert driver.session.output.held_bytes == 0


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"BDAT 5 LAST\r\n", b"502"),
        (b"STARTTLS\r\n", b"502"),
        (b"NOOP\n", b"500"),
        (b"!\r\n", b"500"),
        (b"NOOP " + b"x" * 5000 + b"\r\n", b"500"),
        (DATA, b"503"),
        (b"VRFY a\r\n", b"252"),
    ],
)
def test_the_relay_answers_what_it_does_not_forward(line, code):
    """A line that the relay answers by itself never reaches the next hop."""
    driver = SessionDriver()
    driver.send(EHLO)
    assert driver.send(line).startswith(code)
    assert driver.hop.received == EHLO


@pytest.mark.parametrize("step", STEPS[2:])
@pytest.mark.parametrize("code", [b"451", b"452", b"550", b"554"])
def test_the_next_hops_rejection_is_the_clients_reply(step, code):
    """It passes unchanged, with all its lines, and the session goes on."""
    refusal = code + b"-4.7.1 not\r\n" + code + b" 4.7.1 now\r\n"
    driver = SessionDriver({step: [refusal]})
    for at in STEPS[1:]:
        reply = driver.send(PARTS[at])
        if at == step:
            break
    assert reply == refusal
    assert driver.send(b"RSET\r\n") == OK


def test_a_reset_after_a_refused_hello_is_forwarded():
    """The next hop that has refused EHLO is connected; it answers the next command, too."""
    driver = SessionDriver({"EHLO": [b"550 5.5.1 not you\r\n"]})
    assert driver.send(EHLO).endswith(b"550 5.5.1 not you\r\n")
    assert driver.send(b"RSET\r\n") == OK
    assert bytes(driver.hop.received).endswith(b"RSET\r\n")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("failure", [LOST, HELD, b"hello\r\n", b"250-a\r\n550 b\r\n", b"334 a\r\n"])
def test_a_next_hop_that_fails_at_a_step(step, failure):
    """The client gets a 4xx at that step and keeps its message; the next hop is aborted."""
    driver = SessionDriver({step: failure})
    for at in STEPS[1:]:
        reply = driver.send(PARTS[at])
        if not reply:
            reply = driver.pass_time()
        if reply.startswith(b"4"):
            break
    assert reply.startswith(b"4")
    assert at == ("EHLO" if step == "connect" else step)
    assert driver.names.count("DropUpstream") == 1
    assert "QuitUpstream" not in driver.names
    assert driver.names.count("LogUpstreamLost") == 1
    assert driver.is_closed == (step != "end")


@pytest.mark.parametrize("step", STEPS[2:5])
def test_two_replies_to_one_command_are_not_believed(step):
    """With two replies it is unknown which one belongs to the command, so the session ends."""
    good = b"354 go\r\n" if step == "DATA" else OK
    driver = SessionDriver({step: good + b"250 2.0.0 queued as FALSE\r\n"})
    driver.send(EHLO + ENVELOPE)
    assert codes(driver.client)[-1] == b"421"
    assert b"FALSE" not in driver.client


@pytest.mark.parametrize("large", [False, True])
def test_a_reply_that_is_unread_before_the_dot_does_not_answer_it(large):
    """The dot is not sent, the connection is aborted, and the client gets 451."""
    driver = ready(**(LARGE if large else {}))
    driver.send(TEXT + b"y" * 70 + b"\r\n")
    driver.has_unread = True
    assert driver.send(END).startswith(b"451")
    assert driver.names[-4:] == ["AskUpstream", "DropUpstream", "SendClient", "LogMessage"]
    assert driver.send(MAIL) == OK
    assert len(driver.hops) == 2


def test_a_reply_that_is_unread_between_messages_makes_a_new_connection():
    """Within an envelope the session ends instead: a new connection would lack it."""
    driver = SessionDriver()
    driver.send(EHLO)
    driver.has_unread = True
    assert driver.send(MAIL) == OK
    assert [hop.received for hop in driver.hops] == [EHLO, EHLO + MAIL]
    driver.has_unread = True
    assert driver.send(RCPT).startswith(b"421")


def test_an_idle_next_hop_that_leaves_is_connected_again():
    """The relay reconnects between two messages, and the client gets its usual replies."""
    driver = SessionDriver()
    driver.send(EHLO)
    driver.run(driver.session.upstream_bytes, b"421 4.4.2 idle\r\n")
    assert driver.names[-1] == "DropUpstream"
    assert driver.send(ENVELOPE + TEXT + END).endswith(QUEUED)


@pytest.mark.parametrize("client", ["smtp", "lmtp"])
def test_lmtp_has_a_reply_for_each_recipient(client):
    """An LMTP client gets each reply; an SMTP client may have one recipient only."""
    script = {"end": [QUEUED, b"452 4.2.2 full\r\n"]}
    driver = SessionDriver(script, lmtp=True, protocol=client)
    driver.send(EHLO.replace(b"EHLO", b"LHLO") if client == "lmtp" else EHLO)
    replies = driver.send(MAIL + RCPT + RCPT + DATA + TEXT + END)
    second, last = (b"250", [b"250", b"452"]) if client == "lmtp" else (b"452", [b"250"])
    assert codes(replies) == [b"250", b"250", second, b"354", *last]


# -- the client leaves ----------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_a_client_that_leaves_within_its_message(state):
    """The next hop never gets the dot, unless it has it already; then its reply is logged."""
    driver = in_state(state)
    driver.run(driver.session.client_lost)
    if state == "reply":
        assert driver.session.stage == "message"
        driver.run(driver.session.upstream_bytes, QUEUED)
        assert driver.log[0]["duplicate_likely"]
        assert driver.meters.value("duplicates_likely") == 1
    else:
        assert not driver.hop.received.endswith(END)
        assert not driver.hop.is_open
        assert driver.log[0]["action"] == "client-lost"
        assert ("StopScan" in driver.names) == state.startswith("scan")
    assert driver.session.stage == "closed"
    assert driver.session.output.held_bytes == 0


def test_a_client_that_shuts_its_side_gets_its_replies():
    """What it sent before is processed; then the relay closes."""
    driver = SessionDriver()
    driver.run(driver.session.client_bytes, EHLO + ENVELOPE + TEXT + END)
    driver.run(driver.session.client_eof)
    driver.settle()
    assert codes(driver.client) == [b"220", b"250", b"250", b"250", b"354", b"250"]
    assert driver.is_closed


def test_a_client_that_shuts_its_side_within_its_message_has_sent_none():
    """The session ends immediately, and the next hop's connection is aborted."""
    driver = in_state("collect")
    driver.run(driver.session.client_eof)
    assert driver.log[0]["action"] == "client-lost"
    assert driver.names[-2:] == ["LogMessage", "HangUp"]
    assert not driver.hop.is_open


# -- the next hop leaves, or is late --------------------------------------------------------------


@pytest.mark.parametrize("state", STATES[:-1])
def test_a_next_hop_that_leaves_within_a_message(state):
    """The end of the message gets 451, and the next message is tried again."""
    driver = in_state(state)
    driver.script.clear()
    before = len(driver.client)
    driver.run(driver.session.upstream_lost)
    if state.startswith("scan"):
        driver.run(driver.session.scan_done, driver.requests[0], ScanResult())
    if state not in {"scan", "reply"}:
        assert len(driver.client) == before
        driver.send(b"\r\n" + END)
    assert driver.client[before:].startswith(b"451 4.4.2")
    driver.is_holding_scans = False
    assert driver.send(ENVELOPE + TEXT + END).endswith(QUEUED)
    assert len(driver.hops) == 2


@pytest.mark.parametrize("refusal", [b"552 5.3.4 too much\r\n", b"452 4.3.1 full\r\n"])
@pytest.mark.parametrize("state", ["collect", "scan_head", "stream"])
def test_a_rejection_of_half_a_message_is_kept_for_its_end(state, refusal):
    """The client gets it after its last byte; the action says which side rejected."""
    driver = in_state(state)
    driver.run(driver.session.upstream_bytes, refusal)
    if state == "scan_head":
        driver.run(driver.session.scan_done, driver.requests[0], ScanResult())
    assert driver.send(b"\r\n" + END) == refusal


def test_a_250_before_the_dot_is_not_believed():
    """A next hop that accepts half a message gets nothing more of it."""
    driver = in_state("collect")
    driver.run(driver.session.upstream_bytes, b"250 2.0.0 queued as FALSE\r\n")
    assert driver.send(END).startswith(b"451")
    assert driver.names[-2:] == ["SendClient", "LogMessage"]


@pytest.mark.parametrize(
    ("state", "reply", "closed"),
    [
        ("collect", b"421 4.4.2 Timeout", True),
        ("stream", b"421 4.4.2 Timeout", True),
        ("discard", b"421 4.4.2 Timeout", True),
        ("scan", b"451 4.3.2 Too much mail", False),
        ("reply", b"451 4.4.2 Mail server timed out", False),
    ],
)
def test_each_state_has_a_deadline(state, reply, closed):
    """A message that is not forwarded in time is not acknowledged."""
    driver = in_state(state)
    assert driver.pass_time().startswith(reply)
    assert driver.is_closed == closed
    assert not driver.hop.is_open


def test_a_client_that_is_paused_for_memory_is_not_late():
    """Its time goes on when it is read again; a next hop that takes nothing is late."""
    driver = in_state("stream")
    driver.run(driver.session.pause, MEMORY)
    assert not driver.is_reading
    for _ in range(3):
        assert driver.pass_time() == b""
    driver.run(driver.session.pause, ROOM)
    driver.run(driver.session.resume, MEMORY)
    assert not driver.is_reading
    assert driver.pass_time() == b""
    assert driver.is_reading
    assert driver.send(END).startswith(b"451 4.4.2 Mail server timed out")


def test_the_deadlines_of_commands():
    """First the first MAIL, then each command; the last reply has its own time."""
    times = Timeouts()
    driver = SessionDriver()
    assert driver.session.output.deadline == driver.now + times.first_mail_s
    driver.now += 20
    driver.send(EHLO)
    assert driver.session.output.deadline == driver.now + times.first_mail_s
    driver.send(MAIL)
    assert driver.session.output.deadline == driver.now + times.command_s
    assert driver.pass_time().startswith(b"421 4.4.2 Timeout")
    assert driver.session.output.deadline == driver.now + times.close_s
    driver.pass_time()
    assert driver.names[-1] == "Abort"


# -- the scan -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "reply", "action"),
    [
        (ScanResult("keep", reply=b"kept as 17"), b"250 2.0.0 kept as 17", "keep"),
        (ScanResult("refuse", reply=b"no"), b"550 5.7.1 no", "refuse"),
        (ScanResult("defer", reply=b"wait"), b"451 4.7.1 wait", "defer"),
    ],
)
def test_a_message_that_is_not_forwarded(result, reply, action):
    """The next hop's DATA is aborted, and the next message gets a new connection."""
    driver = ready(result=result)
    assert driver.send(TEXT + END).startswith(reply)
    assert not driver.hop.received.endswith(END)
    assert driver.log[0]["action"] == action
    driver.result = ScanResult()
    assert driver.send(ENVELOPE + TEXT + END).endswith(QUEUED)
    assert len(driver.hops) == 2


def test_a_large_message_is_scanned_by_its_beginning_and_streamed():
    """After a large message's beginning, the rest is forwarded as it arrives."""
    driver = ready(result=ScanResult(add=VERDICT), **LARGE)
    driver.send(TEXT + b"y" * 70 + b"\r\n")
    assert not driver.requests[0].whole
    assert driver.hop.received.endswith(BLOCK + TEXT + b"y" * 70 + b"\r\n")
    driver.send(b"more\r\n")
    assert driver.hop.received.endswith(b"y\r\nmore\r\n")
    assert driver.send(END) == QUEUED


def test_a_large_body_is_sent_without_a_copy():
    """All but the beginning is a view of the bytes that were scanned."""
    driver = ready()
    driver.send(b"Subject: x\r\n\r\n" + b"y" * 500_000 + b"\r\n" + END)
    views = [a.data for a in driver.done if isinstance(getattr(a, "data", None), memoryview)]
    assert [view.obj is driver.requests[0].raw for view in views] == [True]
    assert len(views[0]) > 480_000


def test_a_result_that_comes_too_late_is_withdrawn():
    """The message is no longer in quarantine; a later message of the session is not affected."""
    driver = in_state("scan")
    driver.script.clear()
    assert driver.pass_time().startswith(b"451")
    assert "StopScan" in driver.names
    driver.send(ENVELOPE + TEXT + END)
    deleted = []
    late = ScanResult("keep", withdraw=lambda: deleted.append(1))
    driver.run(driver.session.scan_done, driver.requests[0], late)
    assert deleted == [1]
    assert driver.session.transfer.state == "scan"
    driver.run(driver.session.scan_done, driver.requests[1], ScanResult())
    driver.settle()
    assert driver.client.endswith(QUEUED)


def test_a_fault_while_a_message_is_scanned_lets_it_pass():
    """The second fault ends the session, as a fault at any other time does."""
    for state, faults in (("scan", 2), ("collect", 1)):
        driver = in_state(state)
        driver.run(driver.session.fault, "12345678")
        if faults == 2:
            assert driver.hop.received.endswith(END)
            assert b"X-Spamnb-Verdict: unscanned" in driver.hop.received
            driver.run(driver.session.fault, "12345678")
        assert driver.client.endswith(b"421 4.3.0 Temporary internal error, try again later\r\n")
        assert driver.is_closed


def test_input_during_a_scan_waits():
    """Commands after the dot are processed after the reply."""
    driver = ready()
    driver.is_holding_scans = True
    assert driver.send(TEXT + END + b"NOOP\r\n" + QUIT) == b""
    driver.run(driver.session.scan_done, driver.requests[0], ScanResult())
    driver.settle()
    assert codes(driver.client)[-3:] == [b"250", b"250", b"221"]


# -- limits, trust, memory ------------------------------------------------------------------------


def test_a_client_that_does_not_read_its_replies_is_not_read():
    """Its commands wait, also those that have arrived; and it does not occupy the process."""
    driver = SessionDriver()
    driver.run(driver.session.pause, STUCK)
    driver.run(driver.session.client_bytes, b"NOOP\r\n" * 100)
    assert not driver.is_reading
    assert codes(driver.client) == [b"220"]
    driver.run(driver.session.resume, STUCK)
    assert driver.is_reading
    assert len(codes(driver.client)) == 1 + MAX_COMMANDS_PER_TURN
    assert driver.later == 1
    driver.settle()
    assert len(codes(driver.client)) == 101


def test_input_above_the_limit_pauses_the_client():
    """It is read again when the buffer has room."""
    driver = SessionDriver({"EHLO": HELD}, limits=Limits(input_bytes=100))
    driver.run(driver.session.client_bytes, EHLO + b"NOOP\r\n" * 20)
    assert not driver.is_reading
    driver.settle()
    driver.run(driver.session.upstream_bytes, b"250 hop\r\n")
    assert driver.is_reading
    assert len(codes(driver.client)) == 22


def test_a_client_without_room_is_turned_away():
    """The reply is the listener's, and the client's input is ignored."""
    driver = SessionDriver(refusal=b"421 4.3.2 Too many\r\n")
    assert driver.client == b"421 4.3.2 Too many\r\n"
    assert driver.names == ["AdmitClient", "LogRefused", "SendClient", "HangUp"]
    assert driver.send(EHLO) == b""


def test_the_proxy_header_may_come_in_pieces():
    """The rules use the address in the PROXY header."""
    driver = SessionDriver(
        proxies=NetworkSet(("127.0.0.0/8",)), recipient_domains=frozenset(("y.example",))
    )
    for byte in b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 25\r\n":
        driver.send(bytes([byte]))
    assert driver.session.client.address == "192.0.2.7"
    assert not driver.session.client.trusted
    driver.send(EHLO)
    assert driver.send(ENVELOPE).endswith(b"354 go\r\n")


def test_new_settings_apply_between_two_messages():
    """A message goes on with the next hop that it began with."""
    driver = ready()
    new = Address("127.0.0.1", 27)
    driver.session.apply_settings(replace(driver.params, upstream=new))
    assert driver.send(TEXT + END) == QUEUED
    assert driver.names[-1] == "DropUpstream"
    driver.send(MAIL)
    connects = [a.address for a in driver.done if isinstance(a, actions.ConnectUpstream)]
    assert connects == [driver.params.upstream, new]


@pytest.mark.parametrize("state", [None, *STATES])
def test_draining_ends_a_session_after_its_message(state):
    """An idle session ends immediately; `stop` ends the others."""
    driver = SessionDriver() if state is None else in_state(state)
    driver.run(driver.session.drain)
    assert driver.is_closed == (state is None)
    driver.run(driver.session.stop, b"421 4.3.2 closing\r\n")
    assert driver.is_closed
    assert [record["action"] for record in driver.log] == ([] if state is None else ["stopped"])
    assert driver.session.output.held_bytes == 0


def test_memory_is_accounted_for_until_the_next_hop_has_answered():
    """A message counts from its first byte; what is discarded does not count."""
    driver = in_state("reply")
    assert driver.session.output.held_bytes > len(TEXT)
    driver.run(driver.session.upstream_bytes, QUEUED)
    assert driver.session.output.held_bytes == 0
    driver = in_state("discard")
    held = driver.session.output.held_bytes
    driver.send(b"y" * 1000)
    assert driver.session.output.held_bytes == held < 100
