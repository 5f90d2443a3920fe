"""Authentication-Results: what is read, and what a sender can hide in a true field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.mail.results import claims, passed_domains, plain_identities, read_results

SITE = "mx.example.org"
REAL = {
    "OpenDKIM": (
        (
            b"mx.example.org;\tdkim=pass (1024-bit key; unprotected) header.d=wanted.example"
            b" header.i=@wanted.example header.a=rsa-sha256 header.s=s1 header.b=meQItauB;"
            b"\tdkim-atps=neutral"
        ),
        ["wanted.example"],
    ),
    "OpenDKIM, not quoted": (
        (
            b"mx.example.org;\tdkim=pass (1024-bit key) header.d=wanted.example"
            b" header.i=@wanted.example header.a=rsa-sha256 header.s=s1 header.b=iZg/OlX/;"
            b"\tdkim-atps=neutral"
        ),
        ["wanted.example"],
    ),
    "OpenDKIM, quoted": (
        (
            b"mx.example.org; dkim=pass (1024-bit key) header.d=a.example header.i=x@m.a.example"
            b' header.b="me/ItauB"; dkim=fail reason="key not found in DNS" header.d=b.example'
            b" header.i=@b.example header.b=pYdxLlzW"
        ),
        ["a.example"],
    ),
    "OpenDMARC": (
        b"mx.example.org; dmarc=none (p=none dis=none) header.from=wanted.example",
        [],
    ),
    "OpenDMARC, SPF": (b"mx.example.org; spf=pass smtp.mailfrom=a.example", ["a.example"]),
    "rspamd": (
        (
            b'mx.example.org;\tdkim=pass header.d=wanted.example header.s=s1 header.b="sIKy0d//";'
            b"\tspf=pass (mx.example.org: domain of boss@b.example designates 203.0.113.9 as"
            b" permitted sender) smtp.mailfrom=boss@b.example"
        ),
        ["wanted.example", "b.example"],
    ),
    "policyd-spf": (
        (
            b"mx.example.org; spf=pass (sender SPF authorized) smtp.mailfrom=a.example"
            b" (client-ip=192.0.2.1; helo=a.example; envelope-from=x@a.example; receiver=x)"
        ),
        ["a.example"],
    ),
    "nothing": (b"mx.example.org; none", []),
}


@pytest.mark.parametrize("name", REAL)
def test_fields_of_real_verifiers_are_read(name):
    """The fields that these programs write."""
    value, domains = REAL[name]
    results = read_results(value, (SITE,))
    assert results is not None
    assert passed_domains(results) == domains
    assert read_results(value, ("other.example",)) is None


@pytest.mark.parametrize(
    "value",
    [
        # OpenDKIM 2.11 copies the decoded tag i= of a signature of evil.example
        (
            b"mx.example.org; dkim=pass (1024-bit key) header.d=evil.example header.i=x; dkim=pass"
            b" header.d=wanted.example header.i=@evil.example header.a=rsa-sha256 header.s=s1"
            b" header.b=YICPj/s8; dkim-atps=neutral"
        ),
        (
            b"mx.example.org; dkim=pass header.d=evil.example header.i=@evil.example; dkim=pass"
            b" header.d=wanted.example header.z=@evil.example"
        ),
        b"mx.example.org; dkim=pass header.d=wanted.example header.d=evil.example",
        b"mx.example.org; dkim=pass header.d=a.example header.d=wanted.example",
        # rspamd quotes the sender's address, but within a comment
        (
            b'mx.example.org; dkim=none; spf=none (mx: domain of "a); dkim=pass'
            b' header.d=wanted.example (@evil.example" has no SPF policy when checking 192.0.2.1)'
            b' smtp.mailfrom="a); dkim=pass header.d=wanted.example (@evil.example"'
        ),
        b"mx.example.org; dkim=pass header.d=wanted.example smtp.mailfrom=x@evil.example",
        b"mx.example.org; spf=fail smtp.mailfrom=a; spf=pass smtp.mailfrom=wanted.example",
        b"mx.example.org; spf=pass smtp.mailfrom=wanted.example x-new.ptype=1",
        b"mx.example.org x; dkim=pass header.d=wanted.example",
        b"mx.example.org 2; dkim=pass header.d=wanted.example",
        b"mx.example.org; none; dkim=pass header.d=wanted.example",
        b"mx.example.org; dkim=pass header.d=wanted.example; ; ",
        b"mx.example.org; dkim=pass header.d=wanted.example\xc3\xa9",
        b"mx.example.org; dkim=pass header.d=wanted.example (a (b))",
        b"mx.example.org; dkim=pass header.d=wanted.example (a\0b)",
        b'mx.example.org; dkim=pass header.d=wanted.example; spf=pass smtp.mailfrom="open',
        b"mx.example.org; dkim=pass(c)header.d=wanted.example",
        b"; dkim=pass header.d=wanted.example",
        b"mx.example.org; dkim=pass header.d=wanted.example; " + b"dkim=none; " * 40,
        b"mx.example.org; dkim=pass header.d=wanted.example" + b" " * 9000 + b"; x=y",
    ],
)
def test_a_field_with_a_fault_says_nothing(value):
    """Anything off makes the whole field void, since the sender's text may be in it."""
    assert not passed_domains(read_results(value, (SITE,)) or [])


@pytest.mark.parametrize(
    ("identity", "plain"),
    [
        (b"@a.example", True),
        (b"bounce=2Bx@a.example", True),
        (b"x=3B=20dkim=3Dpass@a.example", False),
        (b"x=28@a.example", False),
        (b"x=20y@a.example", False),
        (b'"x"@a.example', False),
    ],
)
def test_identities_that_verifiers_copy_must_be_plain(identity, plain):
    """A decoded text that could end a result or hide one makes all results void."""
    signature = b"v=1; a=rsa-sha256; d=a.example; s=s; I =" + identity + b"; h=from; b=xx"
    assert plain_identities([b"v=1; d=b.example; b=i=;", signature]) == plain


@pytest.mark.parametrize(
    ("name", "value", "is_claim"),
    [
        (b"authentication-results", b" mx.example.org; dkim=pass", True),
        (b"authentication-results", b" MX.example.ORG.; dkim=pass", True),
        (b"authentication-results", b' (a) "mx\\.example.org" 1; dkim=pass', True),
        (b"authentication-results", b" mx\r\n .exam(x (y))ple.org; dkim=pass", True),
        (b"authentication-results", b" mx.example.org\0; dkim=pass", True),
        (b"authentication-results", b" \xef\xbd\x8dx.example.org; dkim=pass", True),
        (b"authentication-results", b" mx.other.example; dkim=pass", False),
        (b"received-spf", b" pass receiver=mx.example.org", True),
        (b"subject", b" mx.example.org; dkim=pass", False),
    ],
)
def test_a_claim_is_what_any_reader_may_take_for_the_site(name, value, is_claim):
    """Comments, quotes, case and blanks do not hide a name."""
    assert claims(name, value, (SITE,)) == is_claim


@given(st.text(alphabet='mxexample.org ;="()\\@dkimpasshr.d1-\t', max_size=200))
def test_only_well_formed_results_are_read(text):
    """No input raises; a result that is read is in the text as it stands."""
    for one in read_results(f"{SITE}; {text}".encode("latin-1"), (SITE,)) or []:
        assert f"{one.method}" in text.lower()


@pytest.mark.parametrize(
    "unit", [" ", "(a) ", ' "', ";", "dkim=pass ", "a.b=c ", "(", " header.d=a"]
)
def test_long_values_take_linear_time(unit):
    """8 KB of one thing, the most that is read, take a few milliseconds."""
    value = f"{SITE}; dkim=pass{unit * (8_000 // len(unit))}".encode()
    assert read_results(value, (SITE,)) in (None, []) or len(value) < 8_192
