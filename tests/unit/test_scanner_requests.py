"""The readers of requests without sockets: spamd's protocol and HTTP, however the bytes come."""

import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.scanner.dialects import HttpRequestReader, SpamdRequestReader
from spamnb.scanner.request import RequestError

LIMIT = 1000
BODY = b"Subject: plums\n\nfresh\n"


def pieces(data, cuts):
    ends = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


def spamd(data, cuts=(), *, end=True):
    reader = SpamdRequestReader(LIMIT, LIMIT)
    for piece in pieces(data, cuts):
        if (found := reader.feed(piece)) is not None:
            return found
    return reader.end() if end else None


def http(data, cuts=()):
    """All requests in the data."""
    reader, found = HttpRequestReader(LIMIT), []
    for piece in pieces(data, cuts):
        request = reader.feed(piece)
        while request is not None:
            found.append(request)
            request = reader.feed(b"")
    return found


def refused(read, data):
    with pytest.raises(RequestError) as error:
        read(data)
    return error.value.problem


CHECK = b"check SPAMC/1.5\r\nContent-length: %d\r\nUSER: alice\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    b"POST /checkv2 HTTP/1.1\r\nRcpt: a@x\r\nRcpt: b@x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;note=1\r\nSubje\r\n11\r\nct: plums\n\nfresh\n\r\n0\r\nTrailer: 1\r\n\r\n"
)
GET = b"GET /ping?x=1 HTTP/1.1\r\nConnection: close\r\n\r\n"


@given(st.lists(st.integers(0, 200), max_size=8))
def test_a_spamd_request_is_the_same_however_it_is_cut(cuts):
    """The bytes may come in any pieces; names of headers and the command are without case."""
    found = spamd(CHECK, cuts, end=False)
    assert (found.dialect, found.verb, found.version) == ("spamd", "CHECK", (1, 5))
    assert (found.header("user"), found.body) == ("alice", BODY)


def test_a_message_without_a_length_ends_with_the_input():
    """An old client sends no length; the old rspamd protocol needs one, as no end comes."""
    assert spamd(b"CHECK SPAMC/1.2\r\n\r\n" + BODY).body == BODY
    assert refused(spamd, b"CHECK RSPAMC/1.3\r\n\r\n" + BODY) == "protocol"
    old = b"CHECK RSPAMC/1.3\r\nContent-length: %d\r\n\r\n" % len(BODY) + BODY
    assert spamd(old, end=False).dialect == "rspamc"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"CHECK SPAMC/1.5\r\nContent-length: 9\r\n\r\nlonger than nine", "protocol"),
        (b"CHECK SPAMC/1.5\r\nContent-length: 90\r\n\r\nshorter", "protocol"),
        (b"CHECK SPAMC/1.5\r\nContent-length: -1\r\n\r\n", "protocol"),
        (b"CHECK SPAMC/1.5\r\nContent-length: 1\r\nContent-length: 1\r\n\r\nx", "protocol"),
        (b"CHECK SPAMC/1.5\r\nContent-length: 1001\r\n\r\n", "size"),
        (b"CHECK SPAMC/1.5\r\nContent-length: " + b"9" * 5000 + b"\r\n\r\n", "size"),
        (b"CHECK SPAMC/1.5\r\n\r\n" + b"x" * 1001, "size"),
        (b"CHECK SPAMC/1.5\r\n" + b"a: b\r\n" * 65, "protocol"),
        (b"CHECK SPAMC/1.5\r\n" + b"a" * 9000, "protocol"),
        (b"CHECK SPAMC/1.5\r\nno header\r\n\r\n", "protocol"),
        (b"CHECK SMTP/1.5\r\n\r\n", "protocol"),
        (b"CHECK SPAMC/1.5\r\nCompress: zlib\r\n\r\nx", "data"),
        (b"CHECK SPAMC/1.5\r\nCompress: zstd\r\nContent-length: 1\r\n\r\nx", "data"),
        (b"CHECK SPAMC/1.5\r\nCompress: zlib\r\nContent-length: 1\r\n\r\nx", "data"),
    ],
)
def test_a_spamd_request_that_lies_is_refused(data, problem):
    """Lengths that do not fit, and lines that are none, are errors, never guesses."""
    assert refused(spamd, data) == problem


def test_compressed_messages_are_inflated_up_to_a_limit():
    """A small body that inflates to more than the limit, or is cut off, is refused."""

    def request(data):
        return b"CHECK SPAMC/1.5\r\nCompress: zlib\r\nContent-length: %d\r\n\r\n%b" % (
            len(data), data,
        )  # fmt: skip

    assert spamd(request(zlib.compress(BODY))).body == BODY
    assert refused(spamd, request(zlib.compress(bytes(1 << 19)))) == "data"
    assert refused(spamd, request(zlib.compress(BODY)[:-3])) == "data"


@given(st.lists(st.integers(0, 300), max_size=8))
def test_http_requests_are_the_same_however_they_are_cut(cuts):
    """Several requests of a connection may come in any pieces, with a length or in chunks."""
    length = b"POST /scan HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    first, second, third = http(CHUNKED + length + GET, cuts)
    assert (first.verb, first.body, first.headers["rcpt"]) == ("/checkv2", BODY, ["a@x", "b@x"])
    assert (second.verb, second.body, second.keep_alive) == ("/scan", BODY, False)
    assert (third.method, third.verb, third.query) == ("GET", "/ping", "x=1")
    assert first.keep_alive
    assert not third.keep_alive


HEAD = b"POST /checkv2 HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "protocol"),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", "protocol"),
        (HEAD + b"Content-Length: +1\r\n\r\nx", "protocol"),
        (HEAD + b"Content-Length : 1\r\n\r\nx", "protocol"),
        (HEAD + b"Content-Length: 1001\r\n\r\n", "size"),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "protocol"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n", "size"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "protocol"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"e" * 1_000_000, "protocol"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxyz", "protocol"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 3000, "protocol"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "protocol"),
        (HEAD + b"a: b\r\n folded\r\n\r\n", "protocol"),
        (HEAD + b"a: b\nc: d\r\n\r\n", "protocol"),
        (HEAD + b"a: b\r\n" * 20_000, "protocol"),
        (b"GET /" + b"x" * 9000, "protocol"),
        (b"GET / HTTP/2.0\r\n\r\n", "protocol"),
    ],
)
def test_an_http_request_with_two_meanings_is_refused(data, problem):
    """Whatever two programs could read differently, or is too long, ends the connection."""
    assert refused(http, data) == problem


def test_a_client_that_waits_for_100_is_told_to_send():
    """Expect: 100-continue counts until the body has come."""
    reader = HttpRequestReader(LIMIT)
    assert reader.feed(HEAD + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n") is None
    assert reader.wants_continue
    assert reader.feed(b"x").body == b"x"
    assert not reader.wants_continue


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_no_bytes_break_a_reader(data, cuts):
    """Any input gives requests or a RequestError, and never more memory than was sent."""
    for start in (b"", b"CHECK SPAMC/1.5\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\n"):
        for read in (spamd, http):
            with contextlib.suppress(RequestError):
                read(start + data, cuts)
