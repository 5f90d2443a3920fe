"""The milter session without sockets: packets in, packets and scans out."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamnb.milter.packets import Offer, PacketReader, packet_of
from spamnb.milter.session import MilterSession
from spamnb.scan.values import ScanResult
from spamnb.settings.values import MilterParams
from spamnb.telemetry import Meters

POSTFIX = (6, 0x1FF, 0x1FFFFF)
SILENT = (2, 0x3F, 0)
"""an old MTA: it expects a reply to each command"""
FIELDS = (("X-Spam-Flag", "NO"), ("X-Spam-Status", "No,\n score=1"))


def negotiation(offer):
    return packet_of(b"O", struct.pack("!III", *offer))


def texts(*words):
    return b"".join(word + b"\0" for word in words)


def header(name, value):
    return packet_of(b"L", texts(name, value))


CONNECT = packet_of(b"C", b"mx.example.net\x004\x12\x34203.0.113.9\0")
HELO = packet_of(b"H", texts(b"mx.example.net"))
MAIL = packet_of(b"M", texts(b"<ann@a.example>", b"size=310"))
RCPT = packet_of(b"R", texts(b"<bob@b.example>"))
END_OF_HEADER = packet_of(b"N")
BODY = packet_of(b"B", b"plum\r\n")
END = packet_of(b"E")
ENVELOPE = CONNECT + HELO + MAIL + RCPT + packet_of(b"T")
HEADER = header(b"From", b" ann@a.example") + header(b"Subject", b" plums")
MESSAGE = ENVELOPE + HEADER + END_OF_HEADER + BODY + END


class Driver:
    """A session that performs its actions as a connection would."""

    def __init__(self, offer=POSTFIX, result=None, **params):
        self.session = MilterSession(MilterParams(**params), Meters(), "127.0.0.1", 0.0)
        self.result = ScanResult(add=FIELDS) if result is None else result
        self.requests, self.sent, self.names, self.records = [], b"", [], []
        self.hold = False
        self.feed(negotiation(offer))
        self.sent = b""

    def feed(self, data):
        self.run(self.session.receive, data)
        return self

    def run(self, event, *arguments):
        event(*arguments, 1.0)
        while self.session.actions:
            action = self.session.actions.popleft()
            name = type(action).__name__
            self.names.append(name)
            if name == "SendBytes":
                self.sent += action.data
            elif name == "LogMessage":
                self.records.append(action.record)
            elif name == "Withdraw":
                action.delete()
            elif name == "StartScan":
                self.requests.append(action.request)
                if not self.hold:
                    self.run(self.session.scan_done, action.request, self.result)

    @property
    def replies(self):
        return list(PacketReader().feed(self.sent))


def change(index, name, value):
    return (b"m", struct.pack("!I", index) + texts(name, value))


def insert(name, value):
    return (b"i", struct.pack("!I", 1) + texts(name, value))


def test_a_message_gets_one_reply_with_the_changes_before_it():
    """The MTA inserts each field after its own first line, so the last field comes first."""
    driver = Driver().feed(MESSAGE)
    assert driver.replies == [
        insert(b"X-Spam-Status", b" No,\n score=1"), insert(b"X-Spam-Flag", b" NO"), (b"c", b"")
    ]  # fmt: skip
    (request,) = driver.requests
    assert request.raw == b"From: ann@a.example\r\nSubject: plums\r\n\r\nplum\r\n"
    assert request.raw[request.header_bytes :] == b"plum\r\n"
    assert (request.whole, request.before_queue) == (True, True)
    envelope = request.envelope
    assert (envelope.sender, envelope.recipients) == ("ann@a.example", ("bob@b.example",))
    assert envelope.mail_line == b"MAIL FROM:<ann@a.example> size=310"
    assert envelope.client[:3] == ("203.0.113.9", "mx.example.net", "mx.example.net")
    assert driver.records[0]["code"] == 250


def test_an_old_mta_gets_a_reply_to_each_command():
    """Without the no-reply steps each command is answered; without LEADING_SPACE no blank is."""
    driver = Driver(SILENT).feed(MESSAGE)
    assert [command for command, _ in driver.replies] == [b"c"] * 9 + [b"i", b"i", b"c"]
    assert insert(b"X-Spam-Flag", b"NO") in driver.replies
    assert driver.requests[0].raw.startswith(b"From:  ann@a.example\r\n")


def test_an_mta_may_leave_out_what_is_not_used():
    """It names the macros that are read, and DATA and the end of the header need not come."""
    driver = Driver()
    (answer,) = PacketReader().feed(Offer(*POSTFIX).answer().packet())
    macros = [b"", b"", b"{auth_authen}", b"", b"", b"i", b""]
    assert answer[1][12:] == b"".join(
        struct.pack("!I", stage) + texts(names) for stage, names in enumerate(macros)
    )
    short = CONNECT + HELO + MAIL + RCPT + HEADER + packet_of(b"D", b"E" + texts(b"i", b"4Zq"))
    driver.feed(short + BODY + END).feed(CONNECT + HELO + MAIL + RCPT + HEADER + END)
    assert [command for command, _ in driver.replies] == [b"i", b"i", b"c"] * 2
    whole, empty = driver.requests
    assert whole.raw[whole.header_bytes :] == b"plum\r\n"
    assert empty.raw[empty.header_bytes :] == b""
    assert whole.envelope.client.ident == "4Zq"


def test_marks_of_a_filter_in_front_stay():
    """Behind another filter only forged copies of this program's own fields are deleted."""
    driver = Driver(other="rspamd", result=ScanResult())
    marks = header(b"X-Spam-Flag", b" YES") + header(b"X-Spamnb-Verdict", b" ham")
    driver.feed(ENVELOPE + HEADER + marks + END_OF_HEADER + END)
    assert driver.replies[:-1] == [change(1, b"X-Spamnb-Verdict", b"")]
    assert b"X-Spam-Flag: YES" in driver.requests[0].raw


def test_forged_copies_are_deleted_from_the_last_one_on():
    """A deletion leaves the indices of the copies before it as they are."""
    forged = header(b"X-Spam-Flag", b" NO") + header(b"x-spam-flag ", b" NO")
    driver = Driver().feed(ENVELOPE + forged + HEADER + forged + END_OF_HEADER + END)
    assert driver.replies[:4] == [
        change(4, b"x-spam-flag ", b""), change(3, b"X-Spam-Flag", b""),
        change(2, b"x-spam-flag ", b""), change(1, b"X-Spam-Flag", b""),
    ]  # fmt: skip
    assert b"NO" not in driver.requests[0].raw


@pytest.mark.parametrize(
    ("subjects", "want"),
    [
        (b"", [insert(b"Subject", b" [SPAM]")]),
        (header(b"Subject", b" plums"), [change(1, b"Subject", b" [SPAM] plums")]),
        (header(b"Subject", b" red\n plums"), [change(1, b"Subject", b" [SPAM] red\n plums")]),
        (header(b"Subject", b" red\r\n plums"), [change(1, b"Subject", b" [SPAM] red\n plums")]),
        (
            header(b"subject", b" a") + header(b"Subject", b" b"),
            [change(1, b"subject", b" [SPAM] a"), change(2, b"Subject", b" [SPAM] b")],
        ),
    ],
)
def test_the_subject_is_tagged(subjects, want):
    """Each subject is tagged, as by a relay; without one the tag is the subject."""
    driver = Driver(result=ScanResult(tag=b"[SPAM] "))
    driver.feed(ENVELOPE + subjects + END_OF_HEADER + END)
    assert driver.replies == [*want, (b"c", b"")]


def test_a_refusal_is_a_reply_that_no_mta_takes_as_a_format():
    """Sendmail takes the text as a format, so a percent sign is doubled."""
    driver = Driver(result=ScanResult("refuse", reply=b"5.7.1 100% spam")).feed(MESSAGE)
    ((command, data),) = driver.replies
    assert command == b"y"
    assert data.startswith(b"550 5.7.1 100%% spam (reference ")
    assert data.endswith(b"\0")
    driver = Driver(result=ScanResult("defer")).feed(MESSAGE)
    assert driver.replies[0][1].startswith(b"451 4.3.0 ")


@pytest.mark.parametrize(
    "client",
    [
        b"",
        packet_of(b"C", b"localhost\0U"),
        packet_of(b"C", b"localhost\x004\0\x00127.0.0.1\0"),
    ],
)
def test_mail_of_the_mta_itself_is_never_refused(client):
    """A refusal of mail without a waiting client would be a bounce."""
    driver = Driver(result=ScanResult("refuse", FIELDS))
    driver.feed(client + MAIL + RCPT + END_OF_HEADER + END)
    assert not driver.requests[0].before_queue
    assert driver.requests[0].envelope.client.source == "LOCAL"
    assert driver.replies[-1] == (b"c", b"")
    assert driver.records[0]["instead_of"] == "refuse"


def test_mail_of_a_user_who_is_logged_in_is_local():
    """The macro of the authentication makes the mail local until the message ends."""
    macros = packet_of(b"D", b"M" + texts(b"{auth_authen}", b"ann"))
    queued = packet_of(b"D", b"E" + texts(b"i", b"4ABC"))
    message = RCPT + END_OF_HEADER + queued + END
    driver = Driver().feed(CONNECT + HELO + macros + MAIL + message).feed(MAIL + message)
    clients = [request.envelope.client for request in driver.requests]
    assert [client.source for client in clients] == ["LOCAL", "REMOTE"]
    assert clients[0].ident == "4ABC"


@pytest.mark.parametrize(("keeps", "reply"), [(True, (b"d", b"")), (False, (b"c", b""))])
def test_only_a_message_in_quarantine_is_discarded(keeps, reply):
    """Without a server for released messages the message is withdrawn and delivered."""
    withdrawn = []
    result = ScanResult("keep", FIELDS, withdraw=lambda: withdrawn.append(1))
    driver = Driver(result=result, keeps=keeps).feed(MESSAGE)
    assert driver.replies[-1] == reply
    assert len(withdrawn) == (not keeps)


def test_an_abort_ends_the_scan_and_withdraws_what_comes_late():
    """The result of an aborted message is not sent; its copy in quarantine is deleted."""
    driver = Driver()
    driver.hold = True
    driver.feed(MESSAGE + packet_of(b"A"))
    assert driver.names[-1] == "StopScan"
    withdrawn = []
    late = ScanResult("keep", withdraw=lambda: withdrawn.append(1))
    driver.run(driver.session.scan_done, driver.requests[0], late)
    assert (driver.replies, withdrawn) == ([], [1])
    driver.hold = False
    driver.feed(MAIL + RCPT + HEADER + END_OF_HEADER + END)
    assert driver.replies[-1] == (b"c", b"")


def test_progress_is_sent_only_during_a_scan():
    """Progress packets keep the MTA waiting."""
    driver = Driver()
    driver.hold = True
    driver.run(driver.session.progress)
    assert driver.replies == []
    driver.feed(MESSAGE)
    driver.run(driver.session.progress)
    assert driver.replies == [(b"p", b"")]


def test_a_large_message_is_scanned_by_its_first_bytes():
    """Bytes above the limit are counted and not kept."""
    driver = Driver(scan_limit_bytes=100)
    driver.feed(ENVELOPE + HEADER + END_OF_HEADER + packet_of(b"B", b"x" * 500) * 3 + END)
    (request,) = driver.requests
    assert not request.whole
    assert len(request.raw) == 100 + 2
    assert driver.records[0]["size"] > 1500
    assert driver.session.held_bytes == 0


def test_a_header_above_the_limit_is_refused():
    """Forged copies behind the limit could not be deleted, so the message is refused."""
    driver = Driver(header_limit_bytes=100)
    driver.feed(ENVELOPE + header(b"A", b"x" * 90) * 1000 + END_OF_HEADER + END)
    assert driver.requests == []
    assert driver.replies[-1][1].startswith(b"550 5.3.4 ")
    reference = str(driver.records[0]["reference"])
    assert reference.encode() in driver.replies[-1][1]
    assert driver.session.state == "ready"


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!I", 0),
        struct.pack("!I", 1 << 31),
        packet_of(b"Z"),
        RCPT,
        END,
        CONNECT + MAIL + MAIL,
        MAIL + packet_of(b"R", b"<no end>"),
        ENVELOPE + packet_of(b"L", texts(b"one")),
        negotiation(POSTFIX),
    ],
)
def test_what_breaks_the_protocol_closes_the_connection(data):
    """A breach is logged; the MTA then does what its settings say."""
    driver = Driver().feed(data)
    assert driver.names[-1] == "CloseConnection"
    assert driver.records[-1]["event"] == "milter protocol error"
    assert driver.requests == []
    driver.feed(MESSAGE)
    assert driver.requests == []


@pytest.mark.parametrize("offer", [(1, 0x3F, 0), (6,)])
def test_a_negotiation_that_is_too_old_or_too_short_is_refused(offer):
    """Versions before 2 have other packets."""
    session = MilterSession(MilterParams(), Meters(), "127.0.0.1", 0.0)
    session.receive(packet_of(b"O", struct.pack(f"!{len(offer)}I", *offer)), 0.0)
    assert session.closed


def test_an_mta_that_offers_no_changes_gets_none():
    """The listener then only scans, and says so in the log."""
    driver = Driver((6, 0, 0x1FFFFF))
    assert driver.records[0]["event"] == "milter cannot change headers"
    driver.feed(MESSAGE)
    assert driver.replies == [(b"c", b"")]


def test_macros_are_bounded():
    """Of the known stages only those that are used are stored, if they are at most 2 KB."""
    many = b"".join(texts(b"m%d" % number, b"x") for number in range(800))
    many += texts(b"{auth_authen}", b"x" * 2049, b"i", b"4Zqk")
    driver = Driver().feed(packet_of(b"D", b"C" + many) + packet_of(b"D", b"?" + many))
    assert driver.session._macros == {b"C": {b"i": b"4Zqk"}}


def test_nothing_is_done_after_the_end():
    """What comes with QUIT in one read is not looked at."""
    driver = Driver().feed(packet_of(b"Q") + MESSAGE)
    assert (driver.requests, driver.sent) == ([], b"")


def test_memory_is_counted_and_bounded():
    """Packets that are not complete, recipients and forged copies count; recipients have an end."""
    driver = Driver().feed(MAIL)
    assert driver.session.held_bytes >= len("<ann@a.example>size=310")
    before = driver.session.held_bytes
    driver.feed(RCPT * 100)
    assert driver.session.held_bytes - before >= 100 * (len("<bob@b.example>") + 100)
    before = driver.session.held_bytes
    driver.feed(header(b"X-Spam-Flag", b" NO") * 100)
    assert driver.session.held_bytes - before >= 100 * 100
    driver.feed(packet_of(b"B", b"x" * 50_000)[:40_000])
    assert driver.session.held_bytes >= 40_000
    long = packet_of(b"R", texts(b"<" + b"x" * 500_000 + b">"))
    driver = Driver().feed(MAIL + long * 10)
    assert driver.session.closed
    assert driver.session.held_bytes == 0


def test_an_offer_is_answered_with_its_part():
    """Only what is offered and used is negotiated; later fields of an offer are ignored."""
    data = struct.pack("!IIII", 9, 0xFFFFFFFF, 0xFFFFFFFF, 7)
    assert Offer.parse(data).answer().version == 6
    assert Offer(6, 0x10, 0x80).answer() == (6, 0x10, 0x80)


@settings(max_examples=settings.default.max_examples * 5)
@given(st.integers(0, 1 << 30))
def test_the_split_of_the_stream_is_of_no_importance(seed):
    """Packets that come in any pieces give the same packets and scans."""
    stream, dice = CONNECT + MESSAGE.replace(BODY, BODY * 3), random.Random(seed)
    want, driver, at = Driver().feed(stream), Driver(), 0
    while at < len(stream):
        size = dice.choice((1, 3, 50, 1000))
        driver.feed(stream[at : at + size])
        at += size
    assert (driver.sent, driver.requests) == (want.sent, want.requests)


@settings(max_examples=settings.default.max_examples * 10)
@given(st.lists(st.sampled_from([
    CONNECT, HELO, MAIL, RCPT, packet_of(b"T"), HEADER, END_OF_HEADER, BODY, END, packet_of(b"A"),
    packet_of(b"K"), packet_of(b"Q"), packet_of(b"U", b"x\0"), packet_of(b"D", b"Mi\0x\0"),
    negotiation(POSTFIX), b"\0", packet_of(b"L", b""), packet_of(b"C", b""), packet_of(b"M", b""),
]), max_size=30))  # fmt: skip
def test_any_order_of_packets_gives_at_most_one_reply_a_message(packets):
    """Each end of a message that is reached gets one final reply; memory is given back."""
    driver = Driver()
    for data in packets:
        driver.feed(data)
    final = [command for command, _ in driver.replies if command in (b"c", b"d", b"y")]
    assert len(final) == len(driver.requests)
    if driver.session.closed:
        assert driver.session.held_bytes == 0


@pytest.mark.parametrize("login", [b"", b"ann"])
def test_the_border_deletes_claims_of_strangers_and_every_proof(login):
    """A user with a login may send results on; fields that prove results are always deleted."""
    name, other = b"Authentication-Results", b"authentication-results "
    head = (
        header(name, b" other.example; spf=pass")
        + header(other, b" mx.example.org; spf=pass")
        + header(b"X-Spamnb-Border", b" 00")
        + header(b"x-spamnb-results", b" 00")
    )
    macros = packet_of(b"D", b"M" + texts(b"{auth_authen}", login))
    message = CONNECT + HELO + macros + MAIL + RCPT + packet_of(b"T") + head + HEADER + BODY + END
    added = ScanResult(add=(("X-Spamnb-Border", "11"),))
    driver = Driver(result=added, border=True, authserv_ids=("mx.example.org",)).feed(message)
    deleted = [reply for reply in driver.replies if reply[0] == b"m"]
    proofs = [change(1, b"x-spamnb-results", b""), change(1, b"X-Spamnb-Border", b"")]
    assert [one for one in deleted if one in proofs] == proofs
    assert [one for one in deleted if one not in proofs] == ([change(2, other, b"")] * (not login))
    assert driver.replies[-2:] == [insert(b"X-Spamnb-Border", b" 11"), (b"c", b"")]
