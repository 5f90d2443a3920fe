"""OpenSMTPD's filter protocol: each line of a message comes out once, whatever happens."""

from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.net.clients import ScanAnswer
from spamnb.opensmtpd import REGISTRATION, OpensmtpdFilter, VersionError

START = b"""config|smtpd-version|6.8.0p2
config|smtp-session-timeout|300
config|subsystem|smtp-in
config|admd|mx.example.org
config|ready"""
BEGIN = b"""report|0.6|1.5|smtp-in|link-connect|S1|mail.example.net|pass|192.0.2.1:4056|127.0.0.1:25
report|0.6|1.5|smtp-in|link-identify|S1|EHLO|client.example.net
report|0.6|1.5|smtp-in|tx-begin|S1|0e8847da
report|0.6|1.5|smtp-in|tx-mail|S1|0e8847da|ok|alice@example.com
report|0.6|1.5|smtp-in|tx-rcpt|S1|0e8847da|ok|bob@example.org
report|0.6|1.5|smtp-in|tx-rcpt|S1|0e8847da|permfail|"a|b"@c.example
report|0.6|1.5|smtp-in|tx-rcpt|S1|0e8847da|ok|"a|b"@d.example"""
MESSAGE = [
    b"Received: from x",
    b"Subject: plums",
    b"X-Spam-Flag: NO",
    b"",
    b"..dot",
    b"a|b|c\r",
    b"",
]
HEADER = b"X-Spam-Flag: YES\r\nReceived: from x\r\n.Subject: plums\r\n\r\n"
JUNK = ScanAnswer(HEADER, {"action": "add header"})
REJECT = ScanAnswer(HEADER, {"action": "reject"})
DEFERRED = ScanAnswer(b"", {})
UNSCANNED = [b"X-Spamnb-Verdict: unscanned; reason=fault", *MESSAGE[:2]]


def data_line(line, session=b"S1", token=b"T1"):
    return b"filter|0.6|1.5|smtp-in|data-line|%b|%b|%b" % (session, token, line)


def take(state):
    """The lines that are written now."""
    written, state.output = bytes(state.output), bytearray()
    return written.split(b"\n")[:-1]


def feed(state, lines):
    for line in lines:
        state.receive(line)
    return take(state)


def sent(*lines, limit=1 << 20):
    """A filter that has a message, and what it has written."""
    state = OpensmtpdFilter(limit)
    assert feed(state, START.split(b"\n")) == REGISTRATION.split(b"\n")[:-1]
    return state, feed(state, [*BEGIN.split(b"\n"), *map(data_line, lines)])


def datalines(written, session=b"S1", token=b"T1"):
    start = b"filter-dataline|%b|%b|" % (session, token)
    assert all(line.startswith(start) for line in written), written
    return [line.removeprefix(start) for line in written]


def commit(state):
    [line] = feed(state, [b"filter|0.6|1.5|smtp-in|commit|S1|T2|"])
    return line


def test_what_is_asked():
    """The message with CRLF, dots not stuffed, and the envelope as far as it was accepted."""
    state, written = sent(*MESSAGE, b".")
    assert written == []
    [asked] = state.pending
    assert asked.raw == b"\r\n".join([*MESSAGE[:4], b".dot", *MESSAGE[5:], b""])
    assert asked.headers == {
        "From": ["alice@example.com"],
        "Rcpt": ["bob@example.org", '"a|b"@d.example'],
        "IP": ["192.0.2.1"],
        "Hostname": ["mail.example.net"],
        "Helo": ["client.example.net"],
        "Queue-Id": ["0e8847da"],
    }


@pytest.mark.parametrize(
    ("answer", "header", "result"),
    [
        (JUNK, [b"X-Spam-Flag: YES", b"Received: from x", b"..Subject: plums"], b"proceed"),
        (
            REJECT,
            [b"X-Spam-Flag: YES", b"Received: from x", b"..Subject: plums"],
            b"reject|550 5.7.1 This message is not wanted here",
        ),
        (DEFERRED, MESSAGE[:3], b"reject|451 4.3.0 Temporary failure, please try again later"),
        (None, UNSCANNED, b"proceed"),
    ],
    ids=["junk", "reject", "deferred", "none"],
)
def test_each_answer(answer, header, result):
    """The header of the answer, then the body as it came; the commit gets the result, once."""
    state, _ = sent(*MESSAGE, b".")
    state.answered(state.pending.popleft(), answer)
    assert datalines(take(state)) == [*header, *MESSAGE[3:], b"."]
    assert commit(state) == b"filter-result|S1|T2|" + result
    assert commit(state) == b"filter-result|S1|T2|proceed"
    assert state.held_bytes == 0


@pytest.mark.parametrize("event", [b"link-disconnect|S1", b"tx-reset|S1|0e8847da"])
def test_a_message_that_is_given_up(event):
    """Its answer comes too late: nothing is written, and no memory is kept."""
    for lines in ([*MESSAGE, b"."], MESSAGE):
        state, _ = sent(*lines)
        state.receive(b"report|0.6|1.5|smtp-in|" + event)
        for message in state.pending:
            state.answered(message, JUNK)
        assert take(state) == []
        assert state.held_bytes == 0


def test_a_new_transaction_forgets_the_old_envelope():
    """After a reset, only the next transaction's sender and recipients are named."""
    state, _ = sent()
    state.receive(b"report|0.6|1.5|smtp-in|tx-reset|S1|0e8847da")
    feed(state, map(data_line, [*MESSAGE, b"."]))
    headers = state.pending.popleft().headers
    assert (headers["From"], headers["Rcpt"]) == ([""], [])
    assert headers["IP"] == ["192.0.2.1"]


def test_above_the_limit_of_memory_mail_passes():
    """What is held comes out first, with the field that says so, then line after line."""
    state, written = sent(*MESSAGE, limit=sum(map(len, MESSAGE)) + 3)
    marked = [b"X-Spamnb-Verdict: unscanned; reason=large", *MESSAGE[:2], *MESSAGE[3:]]
    assert datalines(written) == marked
    assert datalines(feed(state, [data_line(b".")])) == [b"."]
    assert state.held_bytes == 0
    assert len(state.notes) == 1
    feed(state, map(data_line, [b"", b"."]))
    assert len(state.pending) == 1


def test_the_largest_message_makes_room():
    """Large messages that never end do not keep other mail from being scanned."""
    state, _ = sent(*[b"x" * 1000] * 9, limit=10_000)
    written = feed(state, [data_line(b"y" * 1000, b"S2"), data_line(b".", b"S2")])
    assert len(datalines(written)) == 9
    assert [message.session for message in state.pending] == [b"S2"]
    assert state.held_bytes == 1002


@pytest.mark.parametrize("version", [b"6.6.4", b"6.7.1p1", b"5.9"])
def test_an_old_version_is_refused(version):
    """Its fields have other places."""
    with pytest.raises(VersionError, match=version.decode()):
        OpensmtpdFilter().receive(b"config|smtpd-version|" + version)


@pytest.mark.parametrize("version", [b"6.8.0", b"7.6.0-portable", b"8", b"current"])
def test_later_versions_are_accepted(version):
    """And those without a number."""
    OpensmtpdFilter().receive(b"config|smtpd-version|" + version)


@given(st.lists(st.binary().map(lambda one: one.replace(b"\n", b""))), st.data())
def test_no_line_is_an_error(lines, data):
    """Lines that OpenSMTPD never sends are logged at most, and the next message is handled."""
    kinds = st.sampled_from([b"", b"report|", b"filter|", b"config|", data_line(b"")[:-4]])
    state, _ = sent()
    for line in lines:
        if not line.startswith(b"smtpd-version"):
            state.receive(data.draw(kinds) + line)
    state.receive(b"report|0.6|1.5|smtp-in|link-disconnect|S1")
    state.pending.clear()
    feed(state, map(data_line, [*MESSAGE, b"."]))
    assert len(state.pending) == 1


LINES = st.binary(max_size=30).map(lambda one: b"x" + one.replace(b"\n", b""))
TEXTS = st.lists(LINES | st.sampled_from([b"", b"..", b"..x"]), max_size=12)


@given(TEXTS, TEXTS, st.integers(0, 200), st.booleans())
def test_each_line_comes_out_once(first, second, limit, breaks):
    """Of two messages that come at the same time, whatever the limit, and after internal errors."""
    state = OpensmtpdFilter(limit)
    if breaks:
        state._data_line = None
    written = []
    # Without a field at the start, a blank line would separate the added field from the text.
    first, second = ([b"A: b", *lines] for lines in (first, second))
    for pair in zip_longest([*first, b"."], [*second, b"."]):
        for session, line in zip((b"S1", b"S2"), pair, strict=True):
            if line is not None:
                written += feed(state, [data_line(line, session)])
    while state.pending:
        state.answered(state.pending.popleft(), DEFERRED)
        written += take(state)
    for session, lines in ((b"S1", first), (b"S2", second)):
        own = [line for line in written if line.startswith(b"filter-dataline|" + session)]
        found = datalines(own, session)
        assert [line for line in found if b"unscanned; reason=large" not in line] == [*lines, b"."]
    assert state.held_bytes == 0
