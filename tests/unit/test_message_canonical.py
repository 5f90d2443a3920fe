"""The canonical form and the identity taken from it."""

import pytest
from support.cpu_time import is_within

from spamnb.mail import limits
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import canonical, read, without_mbox

MESSAGE = (
    b"Received: from a.example by b.example; Mon, 1 Jan 2024 10:00:00 +0000\n"
    b"From: Ann <ann@example.org>\nSubject: Hello\n\tthere\nMessage-ID: <m1@example.org>\n"
    b"Content-Type: text/plain; charset=us-ascii\n\nOne\nTwo\n"
)
OTHERS = [
    b"X-Spam-Flag: YES",
    b"X-Spamnb-Verdict: spam; p=1",
    b"X-Bogosity: Spam, tests=bogofilter",
    b"X-DSPAM-Result: Innocent",
    b"X-Virus-Scanned: amavisd-new",
    b"X-Rspamd-Score: 12",
    b"X-Barracuda-Spam-Score: 3",
    b"X-Proofpoint-Details: rule=x",
    b"X-IronPort-Anti-Spam-Result: xyz",
    b"X-ASG-Debug-ID: 1",
    b"X-Brightmail-Tracker: AAA",
    b"X-Greylist: delayed",
    b"X-AntiAbuse: check",
    b"X-Policyd-Weight: x",
    b"X-PostFilter: x",
    b"X-Pyzor: x",
    b"X-Razor: x",
    b"X-Cloudmark-Score: 1",
    b"X-CM-Analysis: v=2",
    b"X-RC-FROM: x",
    b"X-VR-STATUS: OK",
    b"X-SBB-Score: 1",
    b"XStatus: x",
    b"Status: RO",
    b"X-Status: A",
    b"X-UID: 17",
    b"X-Keywords: NonJunk",
    b"X-PMFLAGS: 1",
    b"X-Mozilla-Status2: 0",
    b"X-Junk: 1",
    b"X-Mox-Reason: x",
    b"X-Microsoft-Antispam: BCL:0",
    b"X-MS-Exchange-Organization-SCL: 5",
    b"Return-Path: <ann@example.org>",
    b"Delivered-To: bob@example.net",
    b"X-Original-To: bob@example.net",
    b"Envelope-To: bob@example.net",
    b"X-Envelope-From: ann@example.org",
    b"X-Mailbox-Line: From ann@example.org Mon Jan  1 00:00:00 2024",
    b"Authentication-Results: stranger.example; spf=pass",
    b"ARC-Authentication-Results: i=1; stranger.example; spf=pass",
    b"Received-SPF: pass receiver=stranger.example",
]


@pytest.mark.parametrize("line", OTHERS, ids=lambda line: line.partition(b":")[0].decode())
def test_marks_of_others_are_no_part_of_a_message(line: bytes) -> None:
    """A verdict, mailbox flag or delivery line, first or last in the block, changes nothing."""
    plain = read(MESSAGE)
    head, _, body = MESSAGE.partition(b"\n\n")
    assert read(line + b"\n folded\n" + MESSAGE) == plain
    assert read(head + b"\n" + line.upper() + b"\n\n" + body) == plain


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.replace(b"\n", b"\r\n"),
        lambda m: m.replace(b"\n", b"\r\r\n"),
        lambda m: m.replace(b"\n", b"\r" * 9 + b"\n"),
        lambda m: m.replace(b"\n", b"\r" * 99 + b"\n"),
        lambda m: b"From ann@example.org Mon Jan  1\n" + m,
        lambda m: b">From ann@example.org Mon Jan  1\r\n" + m,
        lambda m: m + b"\n\n\n",
        lambda m: m.rstrip(b"\n"),
        lambda m: m.replace(b"\n\t", b"\r\n\t"),
        lambda m: m.replace(b"Hello\n\tthere", b"Hello\tthere"),
        lambda m: m.replace(b"\n", b"\r"),
        lambda m: m.replace(b"Subject:", b"Subject \t:"),
    ],
)
def test_transport_changes_nothing(change) -> None:
    """Line ends, mbox lines, folding, blanks before a colon and at the end are no part of it."""
    source = MESSAGE if change(b"\n") != b"\r" else MESSAGE.replace(b"\n\t", b"\t")
    assert read(change(source)) == read(MESSAGE)
    assert canonical(change(source)) == canonical(MESSAGE)


@pytest.mark.parametrize(
    "change", [(b"One", b"one"), (b"Hello", b"Hallo"), (b"a.example", b"c.example")]
)
def test_a_change_of_the_content_changes_the_digest(change: tuple[bytes, bytes]) -> None:
    """Any change of a kept field or of the body gives another digest."""
    assert read(MESSAGE.replace(*change)).digest != read(MESSAGE).digest


def test_own_hops_go_and_those_of_others_stay() -> None:
    """A Received line of a local host does not count; case does not matter."""
    ours = b"Received: from x.example by MX.example.net (Postfix); Mon, 1 Jan 2024\n"
    local_hosts = LocalHosts(hosts=("mx.Example.net",))
    assert read(ours + MESSAGE, local_hosts) == read(MESSAGE, local_hosts)
    assert read(ours + MESSAGE).digest != read(MESSAGE).digest
    other = b"Received: from mx.example.net by evil.example; Mon\n"
    assert read(other + MESSAGE, local_hosts).digest != read(MESSAGE, local_hosts).digest
    bare = b"Received: (qmail 1 invoked from network)\n"
    assert read(bare + MESSAGE, local_hosts).digest != read(MESSAGE, local_hosts).digest


@pytest.mark.parametrize(
    "line",
    [
        b"Authentication-Results: mx.example.net; spf=pass\n",
        b"Authentication-Results: MX.example.net 1; none\n",
        b"Received-SPF: pass (x) client-ip=1.2.3.4; receiver=mx.example.net; helo=y\n",
    ],
)
def test_results_count_only_from_our_own_servers(line: bytes) -> None:
    """Results count above the site's own hop, under its name; the digest never has them."""
    local_hosts = LocalHosts(hosts=("mx.example.net",), authserv_ids=("mx.example.net",))
    name = line.partition(b":")[0].lower()
    received = b"Received: from x by mx.example.net; now\n" + MESSAGE

    def names(raw: bytes, local: LocalHosts = local_hosts) -> set[bytes]:
        message = read(raw, local)
        assert message.digest == read(received, local).digest
        return {low for low, _ in message.headers}

    assert name in names(line + received)
    assert name not in names(line + received, local_hosts._replace(authserv_ids=("other.net",)))
    assert name not in names(line + received, LocalHosts(hosts=("mx.example.net",)))
    assert name not in names(name + b":\n" + received)
    below = received.replace(b"From: Ann", line + b"From: Ann")
    assert name not in names(below)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"\r",
        b"\n\n",
        b"text only",
        b" starts with a blank\n",
        b"X-Spam: x",
        b"X-Spam: x\n\nFrom a\n",
        b"A: b\r",
        b"A: b\n\n\r\n",
        b"From a\nFrom b\nA: b\n\nc",
        b"A: b\n \n c\n\nd",
        MESSAGE,
    ],
)
def test_the_canonical_form_is_its_own(raw: bytes) -> None:
    """The canonical form of a canonical form is itself, with the same digest."""
    form = canonical(raw)
    assert canonical(form) == form
    assert read(form).digest == read(raw).digest


def test_the_digest_is_that_of_the_canonical_form() -> None:
    """Equal canonical forms and equal digests are the same thing."""
    from hashlib import blake2b

    assert read(MESSAGE).digest == blake2b(canonical(MESSAGE), digest_size=16).digest()
    assert read(b"").digest == blake2b(canonical(b""), digest_size=16).digest()


def test_the_digest_covers_what_the_limits_cut() -> None:
    """Text and fields beyond the limits still make another message."""
    long = MESSAGE + b"x" * (2 * limits.TEXT_BYTES)
    assert read(long + b"1").digest != read(long + b"2").digest
    many = b"".join(b"A%d: b\n" % i for i in range(limits.HEADER_LINES + 10))
    one, two = read(many + b"Z: 1\n\n"), read(many + b"Z: 2\n\n")
    assert one.digest != two.digest
    assert {"header:many", "header:huge"} <= set(one.oddities)


def test_no_local_hosts_are_the_default() -> None:
    """Without names of local hosts, no header counts as written by local delivery."""
    assert read(MESSAGE, LocalHosts()) == read(MESSAGE)
    assert canonical(MESSAGE, LocalHosts()) == canonical(MESSAGE)


def test_forty_thousand_mbox_lines_are_passed_over_in_one_go():
    """Cut off one by one, with 10 MB behind them, they took 52 s."""
    raw = b"From \r\n>From x\n" * 20_000 + b"Subject: x\n\n" + b"body\n" * 2_000_000
    assert without_mbox(raw)[:12] == b"Subject: x\n\n"
    assert is_within(lambda: without_mbox(raw), 1)
    for short in (b"From ", b">From \nFrom x", b"From x\n"):
        assert without_mbox(short) == b""
    assert without_mbox(b">>From x\n") == b">>From x\n"
