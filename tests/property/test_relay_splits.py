"""The relay's session does not depend on how the streams of both sides are split."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from support.relay_core import (
    DATA,
    EHLO,
    END,
    ENVELOPE,
    HELD,
    LARGE,
    MAIL,
    OK,
    QUEUED,
    QUIT,
    RCPT,
    TEXT,
    VERDICT,
    NextHopScript,
    SessionDriver,
)

from spamnb.scan.values import ScanResult

MESSAGES = [
    TEXT,
    b"",
    b"no header",
    b"Subject: y\r\n\r\n" + b"z" * 200 + b"\r\n.\r\r\n.x\r\n",
    b"a: b\r\n" * 40 + b"\r\n.\n.\r\nend",
]
SCRIPTS = [
    {},
    {"MAIL": [b"451 4.3.0 later\r\n"]},
    {"RCPT": [OK, b"550 5.1.1 unknown\r\n"]},
    {"DATA": [b"554 5.5.1 no\r\n"]},
    {"end": [b"452-4.3.1 disk\r\n452 4.3.1 full\r\n", QUEUED]},
    {"connect": b"554 no\r\n"},
    {"EHLO": [b"250-hop\r\n250-XFORWARD NAME\r\n250 DSN\r\n"]},
]
RESULTS = [ScanResult(add=VERDICT), ScanResult("refuse"), ScanResult("keep"), ScanResult("defer")]
dialogues = st.builds(
    lambda bodies, lines: EHLO
    + b"".join(MAIL + RCPT + RCPT + DATA + body + b"\r\n" + END + line for body, line in
               zip(bodies, lines, strict=True))
    + QUIT,
    st.lists(st.sampled_from(MESSAGES), min_size=2, max_size=2),
    st.lists(
        st.sampled_from([b"", b"RSET\r\n", b"NOOP\r\n", b"BDAT 1\r\n", EHLO, b"x\n", b"\0\r\n"]),
        min_size=2,
        max_size=2,
    ),
)  # fmt: skip


def outcome(driver):
    """What all sides got, without what differs from run to run."""
    logs = [
        {key: value for key, value in record.items() if key != "reference"} for record in driver.log
    ]
    for record in logs:
        record["reply"] = re.sub(r"reference \w+", "", record["reply"])
    replies = re.sub(rb"reference \w+", b"", bytes(driver.client))
    return replies, [bytes(hop.received) for hop in driver.hops], driver.requests, logs


def play(stream, script, changes, result, cuts=(), turns=()):
    """Run a session; the cuts say how long the pieces are, the turns which side sends next."""
    copy = {step: list(it) if isinstance(it, list) else it for step, it in script.items()}
    driver = SessionDriver(copy, result, **changes)
    sizes = iter([*cuts, *[1 << 20] * (2 * len(stream) + 1000)])
    sides = iter(turns)
    while stream or driver.to_deliver or driver.later:
        is_client = stream and driver.is_reading and (not driver.to_deliver or next(sides, False))
        if driver.is_closed:
            break
        if is_client:
            size = next(sizes)
            driver.run(driver.session.client_bytes, stream[:size])
            stream = stream[size:]
        elif driver.to_deliver:
            driver.deliver(next(sizes))
        elif driver.later:
            driver.later -= 1
            driver.run(driver.session.resume, 0)
    return driver


@settings(max_examples=settings.default.max_examples * 5)
@given(
    dialogues,
    st.sampled_from(SCRIPTS),
    st.sampled_from([{}, LARGE, {"bare_newlines": "refuse"}, {"size_limit_bytes": 100}]),
    st.sampled_from(RESULTS),
    st.lists(st.integers(1, 60), max_size=300),
    st.lists(st.booleans(), max_size=300),
)
def test_how_the_bytes_are_split_does_not_matter(stream, script, changes, result, cuts, turns):
    """Both sides get the same bytes, and the log has the same lines, for each way to split."""
    whole = play(stream, script, changes, result)
    split = play(stream, script, changes, result, cuts, turns)
    assert outcome(split)[0] == outcome(whole)[0]
    if changes is LARGE:
        # What is sent before a message is refused, or how much of it is scanned, may differ.
        ended = [bytes(hop.received) for hop in split.hops if not hop.in_data]
        assert ended == [bytes(hop.received) for hop in whole.hops if not hop.in_data]
    else:
        assert outcome(split) == outcome(whole)


@settings(max_examples=settings.default.max_examples * 5)
@given(st.binary(max_size=300), st.binary(max_size=100), st.lists(st.integers(1, 9), max_size=200))
def test_any_bytes_leave_the_session_sound(client, upstream, cuts):
    """Whatever both sides send, nothing raises, and the memory is given back at the end."""
    driver = SessionDriver({"RCPT": upstream or HELD})
    stream = EHLO + ENVELOPE + client
    for size in [*cuts, 1 << 20]:
        driver.send(stream[:size])
        stream = stream[size:]
    driver.run(driver.session.client_lost)
    while driver.session.stage != "closed":
        driver.pass_time()
    assert driver.session.output.held_bytes == 0


def test_the_next_hops_script_is_a_next_hop():
    """The stand-in of these tests ends a message at its dot only."""
    hop = NextHopScript({}, lmtp=False)
    assert hop.receive(DATA) == [b"354 go\r\n"]
    assert hop.receive(b"a\r\n..\r\n.") == []
    assert hop.receive(b"\r\n") == [QUEUED]
