"""Token locations, and the marks for oddities."""

import pytest

from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import read
from spamnb.model import tokens
from spamnb.model.features import Key, extract
from spamnb.model.tokens import (
    HEADER_RULES,
    WRITTEN,
    TokenLocation,
    document,
    fields,
    marks,
)

MAIL = b"""Return-Path: <x@y.example>
Received: from mail.a.example (mail.a.example [192.0.2.1])
\tby mx.b.example with ESMTPS id 4QxYzz1234; Mon, 6 Jan 2025 07:00:00 +0100
From: Ann <ann@a.example>
Reply-To: other@c.example
To: ben@b.example, eve@b.example
Subject: Plums for sale
Date: Mon, 6 Jan 2025 07:00:00 +0100
Message-ID: <1234.abcd@a.example>
In-Reply-To: <77.efgh@b.example>
MIME-Version: 1.0
X-Mailer: Quill 2.1
DKIM-Signature: v=1; a=rsa-sha256; d=a.example; s=key1; h=from:to; b=QUJDREVGRw==
Content-Type: multipart/mixed; boundary="=_8f3a77c1"

--=_8f3a77c1
Content-Type: text/html; charset=utf-8

<p>Hello <a href="http://shop.example/buy">here</a><b hidden>secret</b></p>
--=_8f3a77c1
Content-Type: application/pdf; name="offer.pdf"
Content-Disposition: attachment; filename="offer.pdf"
Content-Transfer-Encoding: base64

JVBERi0xLjQK
--=_8f3a77c1--
"""


def found(raw, local=None):
    return fields(read(raw, local or LocalHosts()))


def marks_of(raw):
    message = read(raw)
    return marks(message, [name for name, _ in message.headers])


def at(raw, location, local=None):
    """All text in a place."""
    return b" | ".join(text for where, _, text in found(raw, local) if where == location)


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (TokenLocation.SUBJECT, b"Plums for sale"),
        (TokenLocation.FROM, b"ann@a.example"),
        (TokenLocation.REPLY, b"other@c.example"),
        (TokenLocation.TO, b"eve@b.example"),
        (TokenLocation.RECEIVED, b"mail.a.example [192.0.2.1]"),
        (TokenLocation.ID, b"a.example"),
        (TokenLocation.BODY, b"Hello"),
        (TokenLocation.URL, b"shop.example/buy"),
        (TokenLocation.PART, b"application/pdf"),
        (TokenLocation.FILE, b"offer.pdf"),
        (TokenLocation.HIDDEN, b"secret"),
        (TokenLocation.HEADER, b"Quill 2.1"),
        (TokenLocation.MARK, b"to-2"),
        (TokenLocation.FROM_SHAPE, b"Aa <a@a.a>"),
        (TokenLocation.RECEIVED_SHAPE, b"from mail.a.example"),
        (TokenLocation.HOP, b"192.0"),
        (TokenLocation.AGREEMENT, b"reply!"),
        (TokenLocation.SENDER, b"name-l="),
        (TokenLocation.ADDRESS_PART, b"^ann"),
        (TokenLocation.LINK_SHAPE, b"shop.example"),
        (TokenLocation.STYLE, b"lines 1"),
        (TokenLocation.GREETING, b"hello here"),
    ],
)
def test_every_piece_is_read_at_its_location(location, text):
    """The table of places, tried on a message that has something for each."""
    assert text in at(MAIL, location)


@pytest.mark.parametrize(
    "gone",
    [
        b"1234.abcd",
        b"77.efgh",
        b"4QxYzz1234",
        b"07:00:00",
        b"8f3a77c1",
        b"QUJDREVGRw",
        b"y.example",
    ],
)
def test_what_names_only_one_message_is_not_read(gone):
    """Random ids, queue ids, times, boundaries, signatures: they never come back, only fill up."""
    features = extract(Key(bytes(32)), [found(MAIL)])
    assert all(gone not in features.word(row)[1] for row in features.of(0).tolist())


def test_hidden_text_is_no_body():
    """Hidden text does not count, so it cannot lower the score of visible text."""
    assert b"secret" not in at(MAIL, TokenLocation.BODY)


def test_places_keep_their_numbers():
    """They are on disk: a number that is given is never given again."""
    assert [(location.name, location.value) for location in TokenLocation] == [
        ("BODY", 1), ("SUBJECT", 2), ("URL", 3), ("FROM", 4), ("REPLY", 5), ("TO", 6),
        ("RECEIVED", 7), ("ID", 8), ("CONTENT", 9), ("AUTH", 10), ("HEADER", 12),
        ("PART", 13), ("FILE", 14), ("HIDDEN", 15), ("MARKUP", 16), ("MARK", 17), ("INNER", 18),
        ("DIGEST", 19), ("WORD", 20), ("SELF", 21), ("HEADER_ORDER", 22), ("ID_SHAPE", 23),
        ("FROM_SHAPE", 24), ("RECEIVED_SHAPE", 25), ("HOP", 26), ("AGREEMENT", 27),
        ("SENDER", 28), ("ADDRESS_PART", 29), ("LINK_SHAPE", 30), ("STYLE", 31),
        ("GREETING", 32),
        ("PASSAGE", 33),
        ("IDENTITY", 34),
    ]  # fmt: skip


def test_the_author_wrote_body_subject_links_address_and_documents():
    """Group 0; everything else is how the message was sent."""
    assert {
        TokenLocation.BODY,
        TokenLocation.SUBJECT,
        TokenLocation.URL,
        TokenLocation.WORD,
        TokenLocation.ADDRESS_PART,
        TokenLocation.LINK_SHAPE,
        TokenLocation.STYLE,
        TokenLocation.GREETING,
    } == WRITTEN


def test_every_reading_is_of_a_lower_case_name_and_total():
    """Names are compared in lower case, and no value makes a reading fail."""
    for name, (location, keep) in HEADER_RULES.items():
        assert name == name.lower()
        assert location in TokenLocation
        for value in (b"", b"\xff" * 50, b";" * 99, b"<" * 99, b"id " * 99, b"@" * 99, b"=" * 99):
            assert keep is None or isinstance(keep(value), bytes)


def test_results_of_other_servers_are_not_believed():
    """Authentication-Results count only from servers in authserv_ids."""
    raw = (
        b"Authentication-Results: mx.b.example; spf=pass\n"
        b"Authentication-Results: evil.example; dkim=pass\n"
        b"Received: from a.example by mx.b.example; now\n\nx\n"
    )
    ours = LocalHosts(hosts=("mx.b.example",), authserv_ids=("mx.b.example",))
    assert b"spf=pass" in at(raw, TokenLocation.AUTH, ours)
    assert b"dkim=pass" not in at(raw, TokenLocation.AUTH, ours)
    assert at(raw, TokenLocation.AUTH) == b""


def test_other_filters_verdicts_and_our_own_are_no_features():
    """A forged or foreign verdict must not be learnt."""
    raw = b"X-Spam-Flag: YES\nX-Spamnb-Verdict: ham; p=0\nX-Bogosity: Ham\nSubject: x\n\ntext\n"
    texts = b" ".join(name + text for _, name, text in found(raw)).lower()
    assert b"yes" not in texts
    assert b"p=0" not in texts
    assert b"bogosity" not in texts


@pytest.mark.parametrize(
    ("raw", "mark"),
    [
        (b"\nx\n", "missing-from"),
        (b"Subject: x\n\nx\n", "missing-date"),
        (b"To: a@b.example, c@b.example, d@b.example\n\nx\n", "to-3"),
        (b"To: a@b.example\n\nx\n", "to-1"),
        (b"Subject: BUY THIS NOW\n\nx\n", "subject-shouts"),
        (b"Received: from a by b; x\n" * 3 + b"\nx\n", "hops-3"),
        (b"Received: from a by b; x\n" * 5 + b"\nx\n", "hops-4"),
        (b"From: a@b.example\n\n" + b"x" * 72 + b"\nx\n", "line-13"),
        (b"From: a@b.example\n\n" + b"x" * 100 + b"\nx\n", "line-14"),
        (b"From: a@b.example\n\n" + b"\xc3\xbc" * 72 + b"\nx\n", "line-13"),
    ],
)
def test_oddities_are_named_in_words(raw, mark):
    """What a person would notice about the envelope, each as one word."""
    assert mark in marks_of(raw)


def test_a_mark_is_one_word_with_at_most_one_joint():
    """A second joint would make a second feature of each mark."""
    for raw in (MAIL, b"", b"\xff" * 500, b"Content-Type: multipart/mixed\n\n--\n"):
        for mark in marks_of(raw):
            assert mark.isascii()
            assert mark.count("-") <= 1
            assert mark.replace("-", "").isalnum()


def test_the_number_of_headers_and_their_length_are_bounded():
    """Strangers choose both: ten thousand headers, or long ones, cost no more than some."""
    many = b"".join(b"X-H%d: plum\n" % n for n in range(10_000)) + b"\nx\n"
    read_headers = [one for one in found(many) if one[0] == TokenLocation.HEADER]
    assert len(read_headers) <= tokens.HEADERS_READ
    long = b"X-Long: " + b"plum " * 2000 + b"\n\nx\n"
    assert max(
        len(text) for location, _, text in found(long) if location == TokenLocation.HEADER
    ) <= (tokens.VALUE_READ)


def test_links_are_bounded():
    """A text of nothing but links is read to a bound."""
    text = b"\n" + b"http://a.example/x " * 5000
    assert at(text, TokenLocation.URL).count(b"a.example") <= tokens.URLS_READ


def test_a_plain_document_is_one_field():
    """Text that is no mail: one place, and read to a bound."""
    assert document("plum Fig", b"\x07\xff") == [
        (TokenLocation.WORD, b"", b"plum Fig"),
        (TokenLocation.SELF, b"", b"07ff"),
    ]
    assert len(document("x" * 10**6, b"")[0][2]) == tokens.DOCUMENT_READ


@pytest.mark.parametrize(
    "raw", [b"", b"\0", b"\xff\xfe" * 99, b":" * 99, b"From:\n" * 99, MAIL[:300]]
)
def test_it_is_total(raw):
    """Whatever the bytes: fields of bytes in places there are."""
    for location, name, text in found(raw):
        assert isinstance(location, TokenLocation)
        assert isinstance(name, bytes)
        assert isinstance(text, bytes)
