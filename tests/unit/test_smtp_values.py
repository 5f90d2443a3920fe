"""The relay's values: addresses, networks, next-hop replies, EHLO, the memory budget."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.mail.envelope import Client
from spamnb.net import address as proxy_protocol
from spamnb.net import clients
from spamnb.net.address import LOOPBACK, Address, NetworkSet
from spamnb.net.server import MemoryBudget, MemoryShare
from spamnb.smtp import relay_replies, syntax
from spamnb.smtp.syntax import LineBuffer


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("127.0.0.1:10025", Address("127.0.0.1", 10025), None),
        ("[::1]:25", Address("::1", 25), None),
        ("localhost:25", Address("localhost", 25), None),
        ("smtp://mx.example.org:25", Address("mx.example.org", 25), "mx.example.org:25"),
        ("unix:/run/x", Address(path="/run/x"), None),
        ("/run/x", Address(path="/run/x"), "unix:/run/x"),
        ("lmtp:unix:/run/x", Address(path="/run/x", protocol="lmtp"), None),
        ("lmtp://unix:/run/x", Address(path="/run/x", protocol="lmtp"), "lmtp:unix:/run/x"),
        ("lmtp://[::1]:24", Address("::1", 24, protocol="lmtp"), "lmtp:[::1]:24"),
        ("smtp:25", Address("smtp", 25), None),
        ("LMTP:localhost:24", Address("localhost", 24, protocol="lmtp"), "lmtp:localhost:24"),
    ],
)
def test_addresses_have_one_text_form(text, address, shown):
    """Read, written and read again they are the same."""
    assert Address.parse(text) == address
    assert str(address) == (shown or text)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "25", "localhost", "host:99999", "::1:25", "[nonsense]:25", "unix:relative", "unix:",
     "http://x:25", "a b:25", "host:-1", "unix:/" + "x" * 107, "host:2x"],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_a_reason(text):
    """The ValueError names the refused text."""
    with pytest.raises(ValueError, match=r"address|path|longer|brackets") as caught:
        Address.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.9.9.9:25", True),
        ("[::1]:25", True),
        ("unix:/x", True),
        ("localhost:1", True),
        ("0.0.0.0:25", False),
        ("[::]:25", False),
        ("mx.example.org:25", False),
    ],
)
def test_local_addresses_are_known(text, local):
    """An address is local if only programs of this machine can connect."""
    assert Address.parse(text).is_local is local


def test_nets_contain_what_they_say():
    """IPv4, IPv6, mapped ones, unix sockets; the answer is the same when asked again."""
    nets = NetworkSet(("192.0.2.0/24", "2001:db8::/32", "10.1.2.3"))
    inside = ["192.0.2.7", "2001:db8::1", "10.1.2.3", "::ffff:192.0.2.7", "2001:db8::1%eth0"]
    outside = ["192.0.3.1", "2001:db9::1", "10.1.2.4", "unix", "", "nonsense", "::ffff:10.1.2.4"]
    for _ in range(2):
        assert [nets.contains(address) for address in inside] == [True] * len(inside)
        assert [nets.contains(address) for address in outside] == [False] * len(outside)
    assert LOOPBACK.contains("unix")
    assert not NetworkSet()


def test_what_nets_remember_is_bounded():
    """A scan of many addresses does not fill the memory."""
    nets = NetworkSet(("10.0.0.0/8",))
    for number in range(10_000):
        assert nets.contains(f"10.0.{number // 250}.{number % 250}")
    assert len(nets._known) <= 4096


def test_a_net_that_is_none_is_refused():
    """An invalid network raises ValueError."""
    with pytest.raises(ValueError, match="nonsense"):
        NetworkSet(("nonsense",))


@pytest.mark.parametrize(
    ("data", "reply", "rest"),
    [
        (b"250 ok\r\nrest", b"250 ok\r\n", b"rest"),
        (b"250\r\n", b"250 \r\n", b""),
        (b"250 ok\n", b"250 ok\r\n", b""),
        (b"250-a\r\n250 b\r\n", b"250-a\r\n250 b\r\n", b""),
        (b"250 a\rb\0c\r\n", b"250 a?b?c\r\n", b""),
        (b"250-a\r\n250", b"", b"250-a\r\n250"),
        (b"250 a", b"", b"250 a"),
    ],
)
def test_replies_are_cut_out(data, reply, rest):
    """One line or several; what is not safe to repeat is replaced."""
    assert clients.take(data) == (reply, rest)


@pytest.mark.parametrize(
    "data",
    [b"\r\n", b"25 ok\r\n", b"650 x\r\n", b"150 x\r\n", b"250x\r\n", b"250-a\r\n251 b\r\n",
     b"x" * 20000, b"250-a\r\n" * 5000],
)  # fmt: skip
def test_what_is_no_reply_is_an_error(data):
    """An invalid or too long reply raises an error, also if it has no end."""
    with pytest.raises(ValueError, match="SMTP reply"):
        clients.take(data)


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        (b"250 2.0.0 Ok: queued as 4XyZ12\r\n", "4XyZ12"),
        (b"250 OK id=1tQx-00a\r\n", "1tQx-00a"),
        (b"250 fine\r\n", ""),
    ],
)
def test_queue_ids_are_found(reply, name):
    """In the forms of Postfix and Exim."""
    assert clients.queue_id(reply) == name


def test_a_recipient_of_another_spelling_is_not_one_of_this_site():
    """IDNA maps a soft hyphen to nothing, but other servers may read another domain."""
    assert syntax.is_for(b"RCPT TO:<ann@Example.org.>", frozenset({"example.org"}))
    other = "RCPT TO:<ann@exa\u00admple.org>".encode()
    assert not syntax.is_for(other, frozenset({"example.org"}))


@given(st.binary(max_size=300))
def test_parsers_never_fail_on_bytes(data):
    """Whatever comes: a value, None, or the one error that is promised."""
    line = data.replace(b"\r", b"").replace(b"\n", b"")
    syntax.verb_of(line)
    assert syntax.path_of(b"MAIL FROM:" + line).isprintable()
    assert not syntax.is_for(b"RCPT TO:" + line, frozenset())
    syntax.client_of(Client(), [b"XFORWARD " + line])
    syntax.client_hello_reply(
        b"250-x\r\n250 " + line + b"\r\n", b"EHLO x", "h", trusted=True, limit=7
    )
    for parse in (clients.take, proxy_protocol.parse):
        with contextlib.suppress(ValueError):
            parse(data)


def test_paths_are_read_for_the_log():
    """Without brackets, source routes and control characters."""
    assert syntax.path_of(b"MAIL FROM:<a@b> SIZE=1") == "a@b"
    assert syntax.path_of(b"RCPT TO:<@x,@y:a@b>") == "a@b"
    assert syntax.path_of(b'rcpt to: <"a>b"@c>') == '"a>b"@c'
    assert syntax.path_of(b"MAIL FROM:a@b") == "a@b"
    assert syntax.path_of(b"MAIL FROM:<>") == ""
    assert syntax.path_of(b"MAIL FROM:<a\x07@b>") == "a{U+0007}@b"
    assert syntax.path_of(b"nonsense") == ""


def test_sizes_are_read():
    """The smaller of two is announced; a declaration is found among other parameters."""
    assert syntax.declared_bytes(b"MAIL FROM:<a> BODY=8BITMIME size=77 X=1") == 77
    assert syntax.declared_bytes(b"MAIL FROM:<SIZE=9@b>") == 0
    for offer, limit, size in ((b"SIZE 9", 5, b"SIZE 5"), (b"SIZE 0", 5, b"SIZE 5"),
                               (b"SIZE 3", 5, b"SIZE 3"), (b"SIZE", 0, b"SIZE")):  # fmt: skip
        reply = b"250-x\r\n250 " + offer + b"\r\n"
        reply_sent = syntax.client_hello_reply(reply, b"EHLO x", "h", trusted=False, limit=limit)
        assert reply_sent == b"250-h\r\n250 " + size + b"\r\n"


def test_our_replies_are_one_safe_line():
    """Each of the table, and those with a text from inside."""
    table = [value for name, value in vars(relay_replies).items() if name.isupper()]
    for reply in (line for line in table if isinstance(line, bytes)):
        assert reply.endswith(b"\r\n")
        assert reply.count(b"\n") == 1
        assert reply.isascii()
        assert int(reply[:3]) in range(200, 560)
    assert relay_replies.with_text(550, "5.7.1", b"a\r\nb\xc3\xbc", "x") == b"550 5.7.1 a??b??\r\n"
    assert relay_replies.with_text(550, "5.7.1", b"5.7.9 no", "x") == b"550 5.7.9 no\r\n"
    assert relay_replies.with_text(451, "4.7.1", b"5.7.9 no", "x") == b"451 4.7.1 5.7.9 no\r\n"
    assert len(relay_replies.with_text(451, "4.7.1", b"y" * 9999, "x")) < 500


class Recorder:
    """A reader that notes whether it may read."""

    def __init__(self):
        self.reading = True

    def pause_for_memory(self):
        self.reading = False

    def resume_after_memory(self):
        self.reading = True

    def memory_cost(self, _now):
        return 0.0


LARGE = MemoryShare.SMALL_BYTES + 1


def test_the_budget_keeps_no_small_message_out():
    """However many large ones have stalled; they are accounted for all the same."""
    share, readers = MemoryBudget(100).shares[False], [Recorder() for _ in range(3)]
    for reader in readers[:2]:
        share.take(101, reader, LARGE)
    share.take(60, readers[2], MemoryShare.SMALL_BYTES)
    assert [reader.reading for reader in readers] == [True, False, True]
    assert share.used == 262


def test_the_budget_lets_one_read_on():
    """Over it one reads and the others wait; giving back frees all."""
    share, readers = MemoryBudget(100).shares[False], [Recorder() for _ in range(3)]
    for reader in readers:
        share.take(60, reader, LARGE)
    assert [reader.reading for reader in readers] == [True, True, False]
    share.take(60, readers[0], LARGE)
    assert [reader.reading for reader in readers] == [False, True, False]
    share.give(200)
    assert all(reader.reading for reader in readers)


def test_the_budget_passes_the_turn_on():
    """A reader that brings nothing, or is gone, does not keep the others waiting for ever."""
    share, readers = MemoryBudget(100).shares[False], [Recorder() for _ in range(3)]
    for reader in readers:
        share.take(101, reader, LARGE)
    assert [reader.reading for reader in readers] == [True, False, False]
    share.rotate(0.0)
    share.rotate(0.0)
    assert [reader.reading for reader in readers] == [False, True, False]
    share.forget(readers[1])
    assert [reader.reading for reader in readers] == [False, True, True]


def test_a_reader_that_ends_its_message_while_it_waits_is_read_again():
    """Its next command needs no memory, and no later event would resume it."""
    share, readers = MemoryBudget(100).shares[False], [Recorder() for _ in range(2)]
    for reader in readers:
        share.take(101, reader, LARGE)
    assert [reader.reading for reader in readers] == [True, False]
    share.forget(readers[1])
    assert readers[1].reading


def test_the_budget_does_not_wait_for_slow_clients():
    """One byte a second is no progress: the turn passes on; a whole window keeps it."""
    share, readers = MemoryBudget(100).shares[False], [Recorder() for _ in range(2)]
    for reader in readers:
        share.take(101, reader, LARGE)
    share.rotate(0.0)
    share.take(MemoryShare.LITTLE_BYTES, readers[0], LARGE)
    share.rotate(0.0)
    assert [reader.reading for reader in readers] == [True, False]
    share.take(1, readers[0], LARGE)
    share.rotate(0.0)
    assert [reader.reading for reader in readers] == [False, True]


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_cut_alike_however_they_come(lines, data):
    """Lines up to the limit come whole; longer ones give their beginning, once."""
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    intake, found = LineBuffer(), []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        intake.append(stream[start:stop])
        while line := intake.line(6):
            found.append(line if len(line) <= 6 else line[:7])
    assert found == [(line + b"\n")[:7] for line in lines]
