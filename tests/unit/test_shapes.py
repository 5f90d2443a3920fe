"""Shapes: order, form and agreement of what a message says about itself, each as one feature."""

import re
import time
from pathlib import Path

import pytest

import spamnb.mail
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import read
from spamnb.model import tokens as shape_lines
from spamnb.model.features import LINE_BYTES, ROUGH_BYTES, Key, extract, rough, spans_of
from spamnb.model.tokens import (
    SHAPES,
    TokenLocation,
    fields,
    location_shown,
    mark_of,
    text_shown,
)

KEY = Key(bytes(range(32)))
OURS = LocalHosts(hosts=("mx.b.example",), authserv_ids=("mx.b.example",))
HEAD = b"""Received: from mail.a.example (mail.a.example [192.0.2.1])
\tby relay.c.example with ESMTPS id 4QxYzz1234; Mon, 6 Jan 2025 07:00:00 +0100
From: "James Bond" <james@a.example>
To: ben@b.example
Subject: Plums for sale
Date: Mon, 6 Jan 2025 07:00:00 +0100
Message-ID: <1234.abCD@mail.a.example>
"""
MAIL = HEAD + b"\nHello Ben,\n\nhttp://shop.a.example/buy/77 and http://192.0.2.7/x\n\nRegards\n"


def shapes(raw, local=OURS):
    """Location and text, as users read them, of every shape of a message."""
    found = extract(KEY, [fields(read(raw, local))])
    words = [found.word(row) for row in found.of(0).tolist()]
    return {(location_shown(at), text_shown(at, text)) for at, text in words if at in SHAPES}


def ids(raw, local=OURS):
    return extract(KEY, [fields(read(raw, local))]).ids.tolist()


@pytest.mark.parametrize(
    "clue",
    [
        ("header order", "from>to"),
        ("header order", "message-id>$"),
        ("header order", "from>to>subject>date>message-id"),
        ("header order", "all: from>to>subject>date>message-id"),
        ("id shape", "pattern:9999.aaAA"),
        ("id shape", "local part:9.a"),
        ("id shape", "host:a.a.a"),
        ("id shape", "bytes in local part: 9"),
        ("from shape", 'header:"a a" <a@a.a>'),
        ("from shape", 'case:"Aa Aa" <a@a.a>'),
        ("from shape", "words in display name: 2"),
        ("from shape", "top-level domain example"),
        ("received shape", "a a.a.a (a.a.a [9.9.9.9]) a a.a.a a a a 9a9"),
        ("hop", "HELO = reverse DNS"),
        ("hop", "HELO domain:a.example"),
        ("hop", "net:192.0"),
        ("agreement", "HELO = sender domain"),
        ("agreement", "link domain = sender domain"),
        ("agreement", "no Reply-To"),
        ("agreement", "sender domain in HELO, reverse DNS, Message-ID"),
        ("agreement", "commonest link domain in hops"),
        ("sender", "display name not in domain"),
        ("sender", "display name in local part"),
        ("sender", "recipient in text"),
        ("sender", "recipient domain differs from sender domain"),
        ("address part", '"@a.e"'),
        ("address part", '"^jam"'),
        ("link shape", "path:a/9"),
        ("link shape", "dots in link host: 2"),
        ("link shape", "link to an IP address"),
        ("link shape", "linked domains: 2"),
        ("style", "lines: 3 to 6"),
        ("greeting", "starts:hello ben"),
        ("greeting", "ends:regards"),
    ],
)
def test_a_clue_reads_as_a_sentence(clue):
    """Every family, as an administrator sees it."""
    assert clue in shapes(MAIL)


@pytest.mark.parametrize(
    ("location", "text", "shown"),
    [
        (TokenLocation.MARK, b"hops-0", "Received lines: 0"),
        (TokenLocation.MARK, b"hops-4", "Received lines: 5 to 8"),
        (TokenLocation.MARK, b"line-13", "characters of the longest line: 64 to 90"),
        (TokenLocation.MARK, b"line-0", "characters of the longest line: 0"),
        (TokenLocation.MARK, b"missing-mimeversion", "no MIME-Version"),
        (TokenLocation.MARK, b"read-partly", "message read only in part"),
        (TokenLocation.MARK, b"header-doublesubject", "more than one header subject"),
        (TokenLocation.MARK, b"url-javascript", "link of the scheme javascript"),
        (TokenLocation.MARK, b"links", "links"),
        (TokenLocation.MARKUP, b"font", "<font>"),
        (TokenLocation.STYLE, b"caps 0", "capitals: 0 to 9 %"),
        (TokenLocation.STYLE, b"quotes 1", "quoted lines: 3 to 5"),
        (TokenLocation.STYLE, b"quotes 5", "quoted lines: 15 or more"),
        (TokenLocation.STYLE, b"! 8", "exclamation marks: 8 or more"),
        (TokenLocation.STYLE, b"ragged 1", "lines with trailing blanks: 0"),
    ],
)
def test_a_count_reads_as_a_range_and_a_mark_as_a_sentence(location, text, shown):
    """An administrator understands a clue without knowing the codes in the store."""
    assert text_shown(location, text) == shown


def test_each_mark_of_the_reader_has_a_sentence():
    """A new mark without a sentence fails here."""
    source = "".join(path.read_text() for path in Path(spamnb.mail.__path__[0]).rglob("*.py"))
    marks = set(re.findall(r'"([a-z]+:[a-z0-9-]+[a-z])"', source))
    assert len(marks) > 30
    for mark in marks:
        text = mark_of(mark)
        assert text_shown(TokenLocation.MARK, text.encode()) != text


def test_a_look_alike_differs_from_the_sender_it_imitates():
    """A known name on a domain of a stranger shows in the names that disagree."""
    forged = MAIL.replace(b"james@a.example", b"james@a-example.test")
    found = shapes(forged) - shapes(MAIL)
    assert ("agreement", "HELO differs from sender domain") in found
    assert ("agreement", "link domain differs from sender domain") in found
    assert ("agreement", "sender domain in no hop") in found


def mail_with(author, link, recipient="ann@brightwell.example"):
    return (
        f"From: {author}\nTo: {recipient}\nSubject: x\n\n<html><a href='https://{link}/x'>x</a>"
    ).encode()


@pytest.mark.parametrize(
    ("author", "link", "clue"),
    [
        ("desk@brightwel1.com", "x.example", "sender domain differs by a letter from {r}"),
        ("desk@brightwe11.com", "x.example", "sender domain differs by a letter from {r}"),
        ("desk@brihgtwell.com", "x.example", "sender domain differs by a letter from {r}"),
        ("desk@brightwells.com", "x.example", "sender domain has the name of {r}"),
        ("desk@bri-ghtwell.com", "x.example", "sender domain differs by a letter from {r}"),
        ("desk@xn--brghtwell-w9h.com", "x.example", "sender domain differs by a letter from {r}"),
        ("desk@brightwell-pay.com", "x.example", "sender domain has the name of {r}"),
        ("desk@mail.brightwell.co.uk", "x.example", "sender domain differs by its end from {r}"),
        ("a@shop.example", "brightwell.evil.test", "link domain has the name of {r}"),
        ("a@shop.example", "brlghtwell.test", "link domain differs by a letter from {r}"),
        ("a@plumshop.example", "login.p1umshop.test", "link domain differs by a letter from {s}"),
        ("a@plumshop.example", "plumshop.evil.test", "link domain has the name of {s}"),
        ("a@plumshop.example", "plumshop.test", "link domain differs by its end from {s}"),
        ("a@plumshop.example", "p.test", "name of sender domain not in other link domains"),
        ("a@plumshop.example", "e-plumshop.test", "name of sender domain in other link domains"),
        ("Plum Shop <a@b.example>", "www.plum.co.uk", "display name in link domains"),
        ("Plum Shop <a@b.example>", "evil.test", "display name not in link domains"),
        ("plumshop.example <a@evil.test>", "x.test", "another domain in the display name"),
    ],
)
def test_a_name_that_imitates_another_is_a_clue(author, link, clue):
    """The sender like the recipient, a link like either of them, a name like no link."""
    clue = clue.format(r="the recipient's", s="the sender's")
    assert clue in {text for _, text in shapes(mail_with(author, link))}


@pytest.mark.parametrize(
    ("author", "link"),
    [
        ("a@mail.brightwell.example", "www.brightwell.example"),
        ("a@lightwell.example", "lightwell.example"),
        ("a@plum.example", "plumshop.example"),
        ("a@example", "example"),
        ("a@xn--\ufffd\ufffd.example", "xn--.example"),
    ],
)
def test_other_names_imitate_nothing(author, link):
    """Hosts of one organisation, names that differ by two letters, and short ones."""
    texts = {text for _, text in shapes(mail_with(author, link))}
    assert not [one for one in texts if "by a letter" in one or "the name of" in one]
    assert not [one for one in texts if "by its end" in one or "another domain" in one]


ADDED = (
    b"Return-Path: <x@y.example>\n",
    b"Delivered-To: ben@b.example\n",
    b"X-Original-To: ben@b.example\n",
    b"Envelope-to: ben@b.example\n",
    b"Delivery-date: Mon, 06 Jan 2025 07:00:00 +0100\n",
    b"X-Sieve: CMU Sieve 2.4\n",
    b"Content-Length: 77\n",
    b"X-Envelope-From: x@y.example\n",
    b"X-Spam-Flag: YES\n",
    b"X-Spamnb-Verdict: spam; p=1\n",
    b"X-Spamnb-Clues: header-order:from>to_+1.0\n",
    b"Received: from relay.c.example (relay.c.example [198.51.100.9]) by mx.b.example; now\n",
    b"Authentication-Results: stranger.example; spf=pass\n",
    b"X-Mozilla-Status: 0001\n",
)


@pytest.mark.parametrize("added", ADDED)
def test_what_delivery_adds_changes_no_feature(added):
    """One message has the same features at every endpoint, wherever a line is added."""
    assert ids(added + MAIL) == ids(MAIL)
    assert ids(HEAD + added + MAIL.removeprefix(HEAD)) == ids(MAIL)
    assert ids((added + MAIL).replace(b"\n", b"\r\n")) == ids(MAIL)


def test_the_order_of_headers_is_a_feature():
    """Two headers that change places change the shapes and nothing else."""
    date, to = b"Date: Mon, 6 Jan 2025 07:00:00 +0100\n", b"To: ben@b.example\n"
    other = MAIL.replace(date, b"").replace(to, to + date)
    changed = shapes(MAIL) ^ shapes(other)
    assert changed
    assert {place for place, _ in changed} == {"header order"}


def test_headers_of_an_attached_message_have_no_order():
    """What is inside does not count for the order of the message."""
    inner = b"Content-Type: message/rfc822\n\nX-One: 1\nX-Two: 2\n\ntext\n"
    assert not [text for _, text in shapes(HEAD + inner) if "x-one" in text]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (b"", b""),
        (b"abc", b"a"),
        (b"Ab12-3c", b"a9-9a"),
        (b"a.b", b"a.a"),
        (b"--__==", b"--__=="),
        ("größe".encode(), b"a"),
        (b"one\ntwo", b"a\na"),
        (b"aa\n\naa", b"a\n\na"),
    ],
)
def test_rough_shape(text, shape):
    """Runs of letters and of digits become one sign; everything else stays."""
    assert rough([text]) == [shape]


def test_lines_are_cut_and_keep_their_text():
    """Empty lines are no features, long ones are cut, and each line knows its text."""
    found = spans_of([], [b"", b"one\n\ntwo", b"x" * 500], [b"-" * 500, b"ab\ncd"])
    texts = [found.text[a:b] for a, b in zip(found.starts, found.ends, strict=True)]
    assert texts == [b"one", b"two", b"x" * LINE_BYTES, b"-" * ROUGH_BYTES, b"a", b"a"]
    assert found.owner.tolist() == [1, 1, 2, 3, 4, 4]
    assert len(spans_of([], [], []).starts) == 0


def test_a_line_is_one_feature_beside_words():
    """A line has neither joints nor capitals that make features; the same text as words has."""
    text = b"Mail.Example.COM <-> x"
    found = spans_of([text], [text], [])
    texts = [found.text[a:b] for a, b in zip(found.starts, found.ends, strict=True)]
    words = [b"mail.example.com", b"example.com", b"Mail.Example.COM", b"Example.COM"]
    assert sorted(texts) == sorted([*words, text])
    assert found.owner.tolist().count(1) == 1


def test_codes_of_header_names_are_distinct_and_keep_their_place():
    """Codes are part of ids on disk: names are appended, never moved."""
    codes = shape_lines._CODES
    assert len(set(codes.values())) == len(codes)
    assert all(len(code) == 1 for code in codes.values())
    some = [codes[name] for name in (b"from", b"references", b"received", b"delivery-date")]
    assert some == [b"a", b"n", b"o", b"8"]


HOSTILE = {
    "names": b"".join(b"X-%d-%s: y\n" % (n, b"n" * 90) for n in range(9_000)),
    "received": b"Received: from %s (%s [1.1.1.1]) by x\n" % (b"h" * 200, b"r" * 200) * 2_300,
    "brackets": b"Received: " + b"[(" * 500_000 + b"\n",
    "from": b"From: " + b"ab " * 330_000 + b"<a@b.example>\n",
    "at signs": b"From: " + b"@" * 1_000_000 + b"\n",
    "message-id": b"Message-ID: <" + b"a1" * 500_000 + b"@b.example>\n",
}


@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_a_megabyte_of_header_makes_a_bounded_number_of_shapes(head):
    """The sender chooses number and length of all headers."""
    found = [one for one in fields(read(head + b"\nbody\n")) if one[0] in SHAPES]
    assert sum(text.count(b"\n") + 1 for _, _, text in found) < 300
    assert sum(len(text) for _, _, text in found) < 100_000


@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_a_megabyte_of_header_is_shaped_in_time(head):
    """Shapes take few milliseconds of CPU, whatever the header."""
    message = read(head + b"\n" + b"http://a.example/x " * 5_000)
    took = []
    for _ in range(3):
        began = time.thread_time()
        extract(KEY, [fields(message)])
        took.append(time.thread_time() - began)
    assert min(took) <= 0.2


def test_links_hops_and_names_are_read_to_a_bound():
    """Ten thousand of each count as the first few."""
    hosts, paths = shape_lines.hosts_and_paths([b"a.example/" + b"x" * 999] * 10_000)
    assert len(hosts) == len(paths) == shape_lines.LINKS_READ
    assert max(map(len, paths)) == shape_lines.PATH_READ
    lines = shape_lines.hop_lines([b"from a by b; now"] * 10_000)
    assert len(lines) == shape_lines.HOPS
    pairs, _, _ = shape_lines.order(b"x-%d" % n for n in range(10_000))
    assert len(pairs) == shape_lines.NAMES_READ + 1


def test_every_code_has_a_sentence():
    """No clue shows a code of this program."""
    raws = (
        MAIL,
        mail_with("a@b.example", "b.example"),
        b"\nx\n",
        HEAD.replace(b"(mail.a.example [192.0.2.1])", b"") + b"\nx\n",
    )
    places = ("agreement", "sender", "style")
    texts = [text for raw in raws for place, text in shapes(raw) if place in places]
    assert texts
    assert all(" " in text and not text.endswith(("!", "=")) for text in texts)


def test_names_are_looked_for_in_the_beginning_of_the_text():
    """A long text costs no more than its beginning."""
    near, far = b"Ben here", b"x " * shape_lines.NAME_SOUGHT + b"ben here"
    assert ("sender", "recipient in text") in shapes(HEAD + b"\n" + near)
    assert ("sender", "recipient not in text") in shapes(HEAD + b"\n" + far)


def test_a_location_of_shapes_is_known_to_users():
    """Names of locations are words."""
    assert {location_shown(at) for at in SHAPES} == {
        *("header order", "id shape", "from shape", "received shape", "hop", "agreement"),
        *("sender", "address part", "link shape", "style", "greeting", "identity"),
    }
    assert text_shown(TokenLocation.BODY, b"plum") == "plum"


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        ("", []),
        ("dkim=none; spf=none", ["author not authentic", "author shop.example not authentic"]),
        (
            "spf=pass smtp.mailfrom=x@shop.example; dmarc=fail header.from=shop.example",
            ["author authentic", "author shop.example authentic"],
        ),
        (
            "dkim=fail header.d=shop.example; dkim=pass header.s=s1 header.d=other.example",
            [
                *("author not authentic", "author shop.example not authentic"),
                *("authentic for another domain", "authentic for other.example"),
            ],
        ),
        ("dmarc=pass header.from=shop.example", ["author not authentic"]),
        (
            (
                "x-dnslist=listed policy.zone=bl.example policy.of=client policy.code=127.0.0.2;"
                " x-dnslist=none policy.zone=dbl.example policy.of=link;"
                " x-dnslist=temperror policy.zone=wl.example policy.of=client"
            ),
            ["client in bl.example 127.0.0.2", "link not in dbl.example"],
        ),
    ],
)
def test_identity_of_the_author(results, wanted):
    """A pass of DKIM or SPF speaks for its domain; without results there is no line."""
    field = f"Authentication-Results: mx.example.org; {results}\n" if results else ""
    hop = "Received: from a by mx.example.org; now\n"
    raw = f"{field}{hop}From: Ann <ann@news.shop.example>\n\ntext\n".encode()
    local = LocalHosts(("mx.example.org",), ("mx.example.org",))
    found = [text for at, _, text in fields(read(raw, local)) if at is TokenLocation.IDENTITY]
    lines = b"\n".join(found).decode().split("\n") if found else []
    assert lines[: len(wanted)] == wanted
    assert bool(lines) == bool(results)


@pytest.mark.parametrize(
    ("author", "results", "is_authentic"),
    [
        ("bank.co.uk", "dkim=pass header.d=evil.co.uk", False),
        ("bank.co.uk", "dkim=pass header.d=bank.co.uk", True),
        ("bank.co.uk", "spf=pass smtp.mailfrom=news.bank.co.uk", True),
        ("bank.co.uk", "dkim=pass header.d=uk", False),
        ("a.bank.co.uk", "dkim=pass header.d=b.bank.co.uk", False),
        ("a.bank.co.uk", "dkim=pass header.d=b.bank.co.uk; dmarc=pass header.from=a.bank.co.uk",
         True),
        ("bank.co.uk", "dmarc=pass header.from=evil.co.uk", False),
    ],
)  # fmt: skip
def test_a_neighbour_below_a_public_suffix_proves_nothing(author, results, is_authentic):
    """The last two labels of two organisations may be the same."""
    field = f"Authentication-Results: mx.example.org; {results}\n"
    raw = f"{field}Received: from a by mx.example.org; now\nFrom: x@{author}\n\ntext\n".encode()
    local = LocalHosts(("mx.example.org",), ("mx.example.org",))
    (lines,) = (text for at, _, text in fields(read(raw, local)) if at is TokenLocation.IDENTITY)
    assert (b"author authentic" in lines.split(b"\n")) == is_authentic
