"""The scanner session without sockets: bytes in; replies, scans and questions out."""

import email
import json

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from spamnb.errors import LimitError, StoreBusyError, StoreDamagedError
from spamnb.mail.message import read
from spamnb.net.address import NetworkSet
from spamnb.operations.logins import ApiToken
from spamnb.operations.request import AdminResponse, Caller
from spamnb.policy.headers import ScanVerdict
from spamnb.scan.values import Advice, ScanResult
from spamnb.scanner.request import PeerIdentity, ScannerParams
from spamnb.scanner.session import ScannerSession
from spamnb.telemetry import Meters

TCP = PeerIdentity("192.0.2.1")
FIELDS = (("X-Spam-Flag", "YES"), ("X-Spam-Status", "Yes,\n score=7.5"))
BODY = b"Subject: plums\nx-spam-flag: NO\nMessage-ID: <1@a.example>\n\nfresh\n"
LEARNT = AdminResponse({"state": "learnt"})
ROLES = {
    1: Caller(1, "self", "alice"),
    2: Caller(2, "delegate", "vmail"),
    0: Caller(0, "admin", "root"),
}


def advised(decision="junk", mail_action="headers", tag=b"", score=7.5):
    verdict = ScanVerdict("spam", 0.99, 4.0, decision, "s1", "")
    return ScanResult("relay", FIELDS, tag, advice=Advice(verdict, mail_action, score, 9.5))


JUNK, HAM = advised(), advised("deliver", score=1.2)
DEFERRED = ScanResult("defer", facts={"verdict": "unscanned", "reason": "busy"})
UNSCANNED = ScanResult(add=(), facts={"verdict": "unscanned", "reason": "fault"})


ZSTD = zstandard.ZstdCompressor()
UNSIZED = zstandard.ZstdCompressor(write_content_size=False)


class Driver:
    """A session that performs its actions as a connection would."""

    def __init__(self, result=JUNK, answer=LEARNT, peer=TCP, **params):
        self.session = ScannerSession(ScannerParams(**params), Meters(), peer, 0.0)
        self.result, self.answer = result, answer
        self.requests, self.sent, self.questions, self.records = [], b"", [], []

    def feed(self, data):
        self.run(self.session.receive, data)
        return self

    def end(self):
        self.run(self.session.input_ended)
        return self

    def run(self, event, *arguments):
        event(*arguments, 1.0)
        while self.session.actions:
            action = self.session.actions.popleft()
            name = type(action).__name__
            if name == "SendBytes":
                self.sent += action.data
            elif name == "LogMessage":
                self.records.append(action.record)
            elif name == "AskDaemon":
                self.questions.append(action)
                self.run(self.session.asked, self.session.request, self.answer)
            elif name == "StartScan":
                self.requests.append(action.request)
                self.run(self.session.scan_done, action.request, self.result)


def spamd(verb, version="1.5", body=BODY, **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"{verb} SPAMC/{version}\r\nContent-length: {len(body)}\r\n{lines}\r\n".encode() + body


def post(path, body=BODY, **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def json_of(sent):
    return json.loads(sent.partition(b"\r\n\r\n")[2])


# --- spamd ---------------------------------------------------------------------------------------


REPORT = b"spamnb: junk, label spam, probability 0.9900, score 7.5 of 5.0\n\n  7.5 SPAMNB_JUNK\n"
LINE = b"Spam: True ; 7.5 / 5.0\r\n"


@pytest.mark.parametrize(
    ("verb", "version", "reply"),
    [
        ("CHECK", "1.5", b"Content-length: 0\r\n" + LINE + b"\r\n"),
        ("CHECK", "1.2", LINE + b"\r\n"),
        ("SYMBOLS", "1.3", b"Content-length: 11\r\n" + LINE + b"\r\nSPAMNB_JUNK"),
        ("SYMBOLS", "1.2", LINE + b"\r\nSPAMNB_JUNK\r\n"),
        ("REPORT", "1.5", b"Content-length: %d\r\n" % len(REPORT) + LINE + b"\r\n" + REPORT),
        ("REPORT", "1.2", LINE + b"\r\n" + REPORT),
        ("REPORT_IFSPAM", "1.2", LINE + b"\r\n" + REPORT),
    ],
)
def test_replies_of_spamd_to_the_letter(verb, version, reply):
    """From 1.3 on a reply has length and verdict, before one of them: Exim refuses both."""
    one = Driver().feed(spamd(verb, version))
    assert one.sent == b"SPAMD/1.1 0 EX_OK\r\n" + reply
    assert one.session.closed


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (spamd("CHECK", body=b"x" * 2000), b"65 EX_DATAERR the message is too large"),
        (spamd("CHECK", Compress="zlib"), b"65 EX_DATAERR"),
        (spamd("TELL", Message_class="eggs", Set="local"), b"65 EX_DATAERR Message-class"),
        (
            b"CHECK SPAMC/1.5\r\nContent-length: -1\r\n\r\n",
            b"76 EX_PROTOCOL invalid Content-length",
        ),
        (b"CHECK SPAMC/1.5\r\nno header\r\n\r\n", b"76 EX_PROTOCOL invalid header line"),
        (spamd("CHECK") + b"more", b"76 EX_PROTOCOL more bytes than"),
    ],
)
def test_errors_of_spamd(data, reply):
    """Each error has its code and its name; no scan is made."""
    one = Driver(size_limit_bytes=1000).feed(data)
    assert one.sent.startswith(b"SPAMD/1.1 " + reply), one.sent
    assert one.session.closed
    assert one.requests == one.questions == []


@pytest.mark.parametrize(
    ("result", "spam", "symbol"),
    [
        (HAM, "False ; 1.2", "DELIVER"),
        (advised("unsure", score=2.5), "False ; 2.5", "UNSURE"),
        (JUNK, "True ; 7.5", "JUNK"),
        (advised("junk", "quarantine"), "True ; 7.5", "JUNK"),
        (advised("reject", "reject", score=9.5), "True ; 9.5", "REJECT"),
        (UNSCANNED, "False ; 0.0", "UNSCANNED"),
    ],
)
def test_decisions_in_the_words_of_spamassassin(result, spam, symbol):
    """5.0 is the threshold of junk; an unscanned message is no spam, and its symbol says why."""
    reply = Driver(result).feed(spamd("SYMBOLS")).sent
    assert f"\r\nSpam: {spam} / 5.0\r\n".encode() in reply
    assert reply.endswith(f"\r\n\r\nSPAMNB_{symbol}".encode())


def test_small_commands_of_spamd():
    """PING needs no message, SKIP gets no reply, an unknown command an error."""
    assert Driver().feed(b"PING SPAMC/1.2\r\n").sent == b"SPAMD/1.5 0 PONG\r\n"
    skipped = Driver().feed(b"SKIP SPAMC/1.2\r\n")
    assert (skipped.sent, skipped.session.closed) == (b"", True)
    assert Driver().feed(spamd("EAT")).sent == b"SPAMD/1.1 64 EX_USAGE no such command\r\n"
    assert Driver(HAM).feed(spamd("REPORT_IFSPAM")).sent.endswith(b"1.2 / 5.0\r\n\r\n")


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_process_returns_the_marked_message(ends):
    """Fields are added, forged copies are gone, the rest and its line ends are as they came."""
    raw = BODY.replace(b"\n", ends)
    sent = Driver(advised(mail_action="tag", tag=b"[SPAM] ")).feed(spamd("PROCESS", body=raw)).sent
    found = sent.partition(b"\r\n\r\n")[2]
    wanted = (
        b"X-Spam-Flag: YES\nX-Spam-Status: Yes,\n score=7.5\nSubject: [SPAM] plums\n"
        b"Message-ID: <1@a.example>\n\nfresh\n"
    )
    assert found == wanted.replace(b"\n", ends)
    header = (
        Driver(advised(mail_action="tag", tag=b"[SPAM] ")).feed(spamd("HEADERS", body=raw)).sent
    )
    assert header.partition(b"\r\n\r\n")[2] == found.removesuffix(b"fresh" + ends)


def test_what_is_scanned_has_the_digest_of_the_mailbox():
    """Forged copies, and the lines that Exim puts before a message, are not scanned."""
    lines = b"From ann@a.example Mon\nX-Envelope-From: <ann@a.example>\nX-Envelope-To: b@x, c@x\n"
    one = Driver().feed(spamd("CHECK", body=lines + BODY))
    (request,) = one.requests
    assert b"\nX-Envelope" not in request.raw
    assert b"x-spam-flag" not in request.raw
    clean = BODY.replace(b"x-spam-flag: NO\n", b"")
    assert read(request.raw).digest == read(clean).digest


def test_a_fault_is_a_verdict_or_a_temporary_error():
    """As `on_fault` says: mail passes as no spam, or the client is told to try again."""
    assert b"Spam: False ; 0.0 / 5.0\r\n" in Driver(UNSCANNED).feed(spamd("CHECK")).sent
    assert Driver(DEFERRED).feed(spamd("CHECK")).sent.startswith(b"SPAMD/1.1 75 EX_TEMPFAIL")


def test_the_old_rspamd_reply_to_the_letter():
    """Exim reads it with one pattern; the threshold is that of junk, and the new fields follow."""
    data = b"CHECK RSPAMC/1.3\r\nContent-length: %d\r\nIP: 203.0.113.9\r\n\r\n" % len(BODY) + BODY
    one = Driver().feed(data)
    assert one.sent == (
        b"RSPAMD/1.3 0 EX_OK\r\nMetric: default; True; 7.5 / 5.0 / 9.5\r\nAction: add header\r\n"
        b"Symbol: SPAMNB_JUNK(7.5)\r\nMessage-ID: 1@a.example\r\nX-Spam-Flag: YES\r\n"
        b"X-Spam-Status: Yes, score=7.5\r\n\r\n"
    )
    assert one.requests[0].envelope.client.address == "203.0.113.9"


# --- HTTP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "action"),
    [
        (HAM, "no action"),
        (advised("unsure", score=2.5), "no action"),
        (JUNK, "add header"),
        (advised(mail_action="quarantine"), "add header"),
        (advised(mail_action="tag", tag=b"[SPAM] "), "rewrite subject"),
        (advised("reject", "reject"), "reject"),
        (advised("reject", "headers"), "add header"),
        (UNSCANNED, "no action"),
        (DEFERRED, "soft reject"),
    ],
)
def test_actions_in_the_words_of_rspamd(result, action):
    """The score's line is that of a rejection, as in rspamd; forged copies are named."""
    one = Driver(result).feed(post("/checkv2"))
    found = json_of(one.sent)
    assert (found["action"], found["message-id"]) == (action, "1@a.example")
    assert found["is_skipped"] == (result in (UNSCANNED, DEFERRED))
    assert not one.session.closed
    if result is JUNK:
        assert (found["score"], found["required_score"]) == (7.5, 9.5)
        assert found["milter"]["add_headers"]["X-Spam-Flag"] == {"value": "YES", "order": 0}
        assert found["milter"]["remove_headers"]["x-spam-flag"] == 0
    if action == "rewrite subject":
        assert found["subject"] == "[SPAM] plums"
    assert json_of(Driver(result).feed(post("/scan")).sent)["default"]["action"] == action


def test_the_own_path_returns_header_or_message():
    """The outcome is a header of the reply; `?full=1` asks for the whole message."""
    sent = Driver().feed(post("/v1/message")).sent
    reply = email.message_from_bytes(sent.partition(b"\r\n")[2])
    assert json.loads(reply["Spamnb-Outcome"])["score"] == 7.5
    assert sent.endswith(b"Message-ID: <1@a.example>\n\n")
    assert Driver().feed(post("/v1/message?full=1")).sent.endswith(b"\n\nfresh\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (post("/checkv2", File="/etc/passwd"), 400),
        (post("/checkv2", Path="/etc/passwd"), 400),
        (post("/checkv2", Shm="x"), 400),
        (post("/checkv2", Shm_Offset="1"), 400),
        (post("/checkv2", Compression="brotli"), 415),
        (post("/checkv2", b"no zstd", Compression="zstd"), 400),
        (post("/checkv2", ZSTD.compress(BODY)[:-3], Compression="zstd"), 400),
        (post("/checkv2", ZSTD.compress(bytes(1 << 28)), Compression="zstd"), 400),
        (post("/checkv2", UNSIZED.compress(bytes(1 << 28)), Compression="zstd"), 400),
        (post("/unknown"), 404),
        (b"GET /checkv2 HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/3.0\r\n\r\n", 400),
        (post("/learnspam"), 403),
        (post("/learnclass"), 400),
    ],
)
def test_requests_that_are_not_served(data, status):
    """No file of this machine is read for a client; no scan is made."""
    one = Driver().feed(data)
    assert one.sent.startswith(b"HTTP/1.1 %d " % status)
    assert one.requests == one.questions == []


@pytest.mark.parametrize("packer", [ZSTD, UNSIZED])
@pytest.mark.parametrize("name", ["Compression", "Content_Encoding"])
def test_a_message_of_zstd_is_the_message(packer, name):
    """With and without its size in the frame, as clients of rspamd send it."""
    one = Driver().feed(post("/checkv2", packer.compress(BODY), **{name: "zstd"}))
    plain = Driver().feed(post("/checkv2"))
    assert one.requests[0].raw == plain.requests[0].raw
    assert json_of(one.sent)["action"] == "add header"
    ping = Driver().feed(b"GET /ping HTTP/1.1\r\nCompression: zstd\r\n\r\n")
    assert ping.sent.startswith(b"HTTP/1.1 200 ")


def test_requests_of_one_connection_are_answered_in_order():
    """Thousands of small requests at once are answered one after the other."""
    ping = b"GET /ping HTTP/1.1\r\n\r\n"
    one = Driver().feed(ping * 5000 + post("/checkv2", Connection="close") + ping)
    assert one.sent.count(b"pong\r\n") == 5000
    assert len(one.requests) == 1
    assert one.session.closed


# --- teaching ------------------------------------------------------------------------------------


def user(uid):
    return {"peer": PeerIdentity("unix", uid), "caller_of": ROLES.__getitem__}


@pytest.mark.parametrize(
    ("client", "named", "fields"),
    [
        (user(1), "alice", {"channel": "api", "trust": "user", "for": "alice"}),
        (user(1), "", {"channel": "api", "trust": "user", "for": "alice"}),
        (user(1), "bob", None),
        (user(2), "bob", {"channel": "imap", "trust": "user", "for": "bob"}),
        (user(2), "vmail", {"channel": "api", "trust": "stranger", "for": "vmail"}),
        (user(0), "", {"channel": "api", "trust": "admin", "for": "root"}),
        (user(0), "bob", {"channel": "imap", "trust": "user", "for": "bob"}),
        ({}, "alice", None),
        ({"teachers": NetworkSet(["192.0.2.1"])}, "bob",
         {"channel": "imap", "trust": "user", "for": "bob"}),
        ({"teachers": NetworkSet(["192.0.2.1"])}, "",
         {"channel": "api", "trust": "stranger", "for": "192.0.2.1"}),
        ({"teachers": NetworkSet(["198.51.100.0/24"])}, "bob", None),
    ],
)  # fmt: skip
def test_who_may_teach_on_whose_behalf(client, named, fields):
    """The rights of the control socket on a unix socket; over TCP the listener's teachers alone."""
    headers = {"User": named} if named else {}
    told = Driver(**client).feed(spamd("TELL", Message_class="spam", Set="local", **headers))
    learnt = Driver(**client).feed(post("/learnham", **headers))
    if fields is None:
        assert told.sent.startswith(b"SPAMD/1.1 77 EX_NOPERM")
        assert learnt.sent.startswith(b"HTTP/1.1 403 ")
        assert told.questions == learnt.questions == []
    else:
        assert told.sent == b"SPAMD/1.1 0 EX_OK\r\nDidSet: local\r\nContent-length: 0\r\n\r\n"
        assert json_of(learnt.sent) == {"success": True}
        assert told.questions[0].fields == fields | {"label": "spam"}
        assert learnt.questions[0].fields == fields | {"label": "ham"}


def token(user="", scopes=("teach",)):
    """A listener that knows one token."""
    known = {"secret": ApiToken("mutt", "", scopes, user, 0, 1)}
    return {"token_of": known.get}


@pytest.mark.parametrize(
    ("client", "password", "named", "fields"),
    [
        (token("alice"), "secret", "", {"channel": "api", "trust": "user", "for": "alice"}),
        (token("alice"), "secret", "Alice", {"channel": "api", "trust": "user", "for": "alice"}),
        (token("alice"), "secret", "bob", None),
        (token("alice", ("score", "read")), "secret", "", None),
        (token("alice"), "another", "", None),
        (token("alice"), "", "", None),
        (token(), "secret", "", {"channel": "api", "trust": "admin", "for": "token mutt"}),
        (token(), "secret", "bob", {"channel": "imap", "trust": "user", "for": "bob"}),
        (user(1) | token(), "secret", "bob", None),
    ],
)
def test_a_token_teaches_over_tcp(client, password, named, fields):
    """A password that is a token with the scope `teach` counts; on a unix socket the user does."""
    headers = {"Password": password} if password else {}
    asked = post("/learnspam", **headers | ({"Deliver-To": named} if named else {}))
    one = Driver(**client).feed(asked)
    assert [question.fields for question in one.questions] == (
        [] if fields is None else [fields | {"label": "spam"}]
    )
    assert one.sent.startswith(b"HTTP/1.1 403 " if fields is None else b"HTTP/1.1 200 ")


def test_tokens_that_cannot_be_read_are_no_refusal():
    """The client may try again: it is not known whether it may teach."""

    def damaged(_text):
        raise StoreDamagedError("tokens.json is not a file of tokens")

    one = Driver(token_of=damaged).feed(post("/learnspam", Password="secret"))
    assert one.sent.startswith(b"HTTP/1.1 503 ")
    assert one.questions == []


def test_recipients_count_only_from_clients_that_may_name_them():
    """Else a local user could have a message remembered as delivered to another user."""
    asked = post("/checkv2", Rcpt="<alice@x.example>", From="<ann@a.example>")
    assert Driver(**user(1)).feed(asked).requests[0].envelope.recipients == ()
    envelope = Driver(**user(2)).feed(asked).requests[0].envelope
    assert (envelope.sender, envelope.recipients) == ("ann@a.example", ("alice@x.example",))


@pytest.mark.parametrize(
    ("answer", "spamd_reply", "status", "value"),
    [
        (AdminResponse({"state": "unchanged"}), b"SPAMD/1.1 0 EX_OK\r\nContent-length", 200,
         {"success": True}),
        (AdminResponse({"state": "review", "review": "r1"}), b"SPAMD/1.1 0 EX_OK\r\nContent-length",
         202, {"success": False, "review": "r1"}),
        (AdminResponse({"state": "refused", "reason": "no"}), b"SPAMD/1.1 77 EX_NOPERM no", 403,
         {"error": "no"}),
        (LimitError("too many today"), b"SPAMD/1.1 77 EX_NOPERM too", 403,
         {"error": "too many today"}),
        (StoreBusyError("away"), b"SPAMD/1.1 75 EX_TEMPFAIL away", 503, {"error": "away"}),
    ],
)  # fmt: skip
def test_what_the_learner_says_in_each_protocol(answer, spamd_reply, status, value):
    """Only what was learnt is reported as done; while the learner is away the client may retry."""
    told = Driver(answer=answer, **user(1)).feed(spamd("TELL", Set="local", Message_class="ham"))
    assert told.sent.startswith(spamd_reply)
    learnt = Driver(answer=answer, **user(1)).feed(post("/learnham"))
    assert learnt.sent.startswith(b"HTTP/1.1 %d " % status)
    assert json_of(learnt.sent) == value


def test_nothing_is_reported_to_other_sites():
    """`spamc -C report` sets `remote`: it is answered, and nothing is done."""
    one = Driver(**user(1)).feed(spamd("TELL", Message_class="spam", Set="remote"))
    assert one.sent == b"SPAMD/1.1 0 EX_OK\r\nContent-length: 0\r\n\r\n"
    removed = Driver(**user(1)).feed(spamd("TELL", Remove="local"))
    assert b"DidRemove: local\r\n" in removed.sent
    assert removed.questions[0].op == "forget"


def test_status_in_the_words_of_rspamc():
    """`rspamc stat` finds its numbers."""
    status = {"counters": {"scanned": 3, "decision_junk": 1}, "model": {"messages": {"ham": 2}}}
    one = Driver(answer=AdminResponse({"status": status})).feed(b"GET /stat HTTP/1.1\r\n\r\n")
    found = json_of(one.sent)
    assert (found["scanned"], found["total_learns"]) == (3, 2)
    assert found["actions"]["add header"] == 1


# --- any input -----------------------------------------------------------------------------------


def test_silent_clients_and_late_results():
    """A silent client is closed; a scan that is late is stopped; its result changes nothing."""
    one = Driver()
    one.run(one.session.timeout)
    assert one.session.closed
    late = Driver()
    late.session.receive(spamd("CHECK"), 1.0)
    action = late.session.actions.popleft()
    late.run(late.session.close)
    late.run(late.session.scan_done, action.request, JUNK)
    assert late.sent == b""
    assert late.session.held_bytes == 0


def test_a_session_that_has_ended_has_nothing_to_answer():
    """A deadline that passes after the end of a question changes nothing."""
    one = Driver(peer=PeerIdentity("unix", 1000))
    one.session.receive(spamd("TELL", Message_class="spam", Set="local"), 1.0)
    assert one.session.state == "asking"
    one.run(one.session.close)
    one.run(one.session.timeout)
    assert (one.sent, one.session.closed) == (b"", True)


@pytest.mark.parametrize("head", [post("/checkv2", b"abc")[:-3], spamd("CHECK", body=b"abc")[:-3]])
def test_a_request_has_begun_with_its_head(head):
    """While the body is awaited, the connection is not idle, and the headers count as memory."""
    one = Driver()
    assert one.session.is_idle
    one.feed(head)
    assert not one.session.is_idle
    assert one.session.held_bytes >= 400
    one.feed(b"abc")
    assert len(one.requests) == 1
    assert one.session.held_bytes == 0


@given(
    st.sampled_from(
        [b"", spamd("TELL"), spamd("PROCESS"), post("/checkv2"), b"POST /scan HTTP/1.1\r\n"]
    ),
    st.binary(max_size=200),
    st.lists(st.integers(0, 300), max_size=5),
)
def test_no_input_breaks_a_session(start, noise, cuts):
    """Whatever comes in whatever pieces: one reply for a request, no exception, bounded memory."""
    one, data = Driver(), start + noise
    ends = sorted({cut % (len(data) + 1) for cut in cuts})
    for a, b in zip([0, *ends], [*ends, len(data)], strict=True):
        one.feed(data[a:b])
        assert one.session.held_bytes <= 2 * len(data) + 400 * data.count(b"\n")
    one.end()
    assert one.session.closed or one.session.state == "first" or not data
    assert one.sent.count(b"SPAMD/1.1") <= 1


QUEUE_ID = "4XyZ1"
RECEIVED = (
    "Received: from a (id 4XyZ1 [192.0.2.1])\r\n\tby mx.example.org with ESMTP{};\r\n\tnow\r\n"
)


@pytest.mark.parametrize(
    ("queue", "hop", "is_received"),
    [
        ("", RECEIVED.format(""), True),
        (QUEUE_ID, RECEIVED.format(f"\r\n id {QUEUE_ID}"), True),
        (QUEUE_ID, "x-a: b\r\n" + RECEIVED.format(f" id {QUEUE_ID}"), True),
        (QUEUE_ID, RECEIVED.format(""), False),
        (QUEUE_ID, RECEIVED.format(f" id {QUEUE_ID}2"), False),
        (QUEUE_ID, RECEIVED.format(" id 1") + RECEIVED.format(f" id {QUEUE_ID}"), False),
        (QUEUE_ID, "", False),
    ],
)
def test_a_client_that_names_a_queue_id_has_its_hop_on_top(queue, hop, is_received):
    """A sender that writes a hop of the site does not know the queue id that the server gives."""
    body = hop.encode() + b"Subject: x\r\n\r\ntext\r\n"
    named = f"Queue-Id: {queue}\r\n" if queue else ""
    head = f"POST /checkv2 HTTP/1.1\r\nContent-Length: {len(body)}\r\n{named}\r\n"
    (request,) = Driver().feed(head.encode() + body).requests
    assert request.is_received == is_received
