"""The guard of DATA: where a message ends, and that nothing else can be taken for its end."""

import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.relay import stuffed

from spamnb.smtp.syntax import _WINDOW, DataFramer, unstuffed

PIECES = [b"\r\n", b"\r", b"\n", b".", b"\0", b"a", b"bc", b" ", b"\r\n.", b"..", b"\r\n..\r\n"]
LINE_ENDS = [b"\r\n", b"\r", b"\n"]
ENDINGS = [
    b"\n.\n", b"\r.\r", b"\n.\r\n", b"\r\n.\n", b"\r\n.\r", b"\r.\r\n", b"\r\r\n.\n", b"\n.\r",
    b"\r\n\0.\r\n", b"\r\n.\0\r\n", b"\r\n.\r\0\n", b"\r\0\n.\r\n", b"\r\n.\r\r\n", b"\r.\n",
]  # fmt: skip
"""none of them ends a message"""


def fed(data, cuts=()):
    """Feed a message in pieces: (what came out, whether it ended, the rest, whether bare)."""
    wire, out, ended = DataFramer(), b"", False
    edges = [0, *sorted(cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        if ended:
            break
        if start < stop:
            clean, ended = wire.feed(data[start:stop])
            out += clean
            rest = wire.rest + data[stop:]
    return out, ended, rest if ended else b"", wire.bare


def meant(wire_form):
    """Read a message slowly: its lines, and whether it ended, by the rules in plain words."""
    lines = re.split(rb"(\r+\n?|\n)", wire_form)
    found, is_wire_line = [], True
    for text, end in zip(lines[0::2], [*lines[1::2], b""], strict=True):
        # A dot that a real line end precedes is stuffing, unless it is all there is.
        stuffing = is_wire_line and text.startswith(b".") and text != b"."
        found.append(text[1:] if stuffing else text)
        is_wire_line = end.endswith(b"\r\n")
    return b"\r\n".join(found)


@given(st.lists(st.sampled_from(PIECES), max_size=40), st.data())
def test_a_message_is_read_alike_however_it_is_cut(pieces, data):
    """Whole, byte by byte, or in any pieces: the same bytes, the same end."""
    message = b"".join(pieces) + b"\r\n.\r\nQUIT\r\n"
    whole = fed(message)
    assert whole[1]
    assert fed(message, range(1, len(message))) == whole
    cuts = data.draw(st.lists(st.integers(0, len(message)), max_size=6))
    assert fed(message, cuts) == whole


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_what_comes_out_can_end_nothing(pieces):
    """No server finds an end of DATA in it, whether CR, LF or CR LF ends a line."""
    message = b"".join(pieces) + b"\r\n.\r\n"
    out, ended, _, _ = fed(message)
    assert ended
    assert not re.search(rb"\r(?!\n)|(?<!\r)\n", out)
    assert b"." not in re.split(rb"\r\n|\r|\n", out)[:-1]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_clean_messages_pass_byte_for_byte(pieces):
    """Without a bare CR or LF nothing is changed, and stuffing is undone and redone exactly."""
    text = re.sub(rb"\r\n|\r|\n", b"\r\n", b"".join(pieces)) + b"\r\n"
    out, ended, rest, bare = fed(stuffed(text) + b".\r\nrest")
    assert (out, ended, rest, bare) == (stuffed(text), True, b"rest", False)
    assert unstuffed(out) == text


@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_mending_keeps_the_text(pieces):
    """After mending, the receiver's lines are those that the bytes meant."""
    body = b"".join(pieces)
    message = body + b"\r\n.\r\n"
    out, ended, rest, _ = fed(message)
    taken = message[: len(message) - len(rest) - 3] if ended else b""
    assert unstuffed(out) == meant(taken)


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_ending_of_another_form_is_data(ending):
    """Only CR LF . CR LF ends a message; the rest of the smuggled one stays inside."""
    smuggled = b"MAIL FROM:<evil@example.org>\r\nRCPT TO:<victim@example.net>\r\nDATA\r\nspam"
    message = b"Subject: x\r\n\r\nbody" + ending + smuggled + b"\r\n.\r\n"
    for cuts in ((), range(1, len(message))):
        out, ended, rest, _ = fed(message, cuts)
        assert ended
        assert rest == b""
        assert smuggled in out
        assert b"." not in re.split(rb"\r\n|\r|\n", out)


def test_an_empty_message_ends_with_its_first_line():
    """The line end of DATA itself counts for the end."""
    assert fed(b".\r\nQUIT\r\n") == (b"", True, b"QUIT\r\n", False)
    assert fed(b".\r\n", (1, 2)) == (b"", True, b"", False)


def test_a_run_of_cr_is_not_kept():
    """A million CR wait for what comes next, without being kept."""
    wire = DataFramer()
    for _ in range(100):
        wire.feed(b"\r" * 10000)
    assert len(wire._pending) < 10
    assert wire.feed(b"x\r\n.\r\n") == (b"\r\nx\r\n", True)


def test_random_cuts_of_long_messages():
    """Also where the pieces are as the network cuts them."""
    chance = random.Random(7)
    for _ in range(30):
        lines = [chance.choice([b".", b"..", b"x" * 500, b"", b".x"]) for _ in range(200)]
        text = b"\r\n".join(lines) + b"\r\n"
        message = stuffed(text) + b".\r\n"
        cuts = [chance.randrange(len(message)) for _ in range(20)]
        assert fed(message, cuts) == (stuffed(text), True, b"", False)


@pytest.mark.parametrize("piece", [b"\r\n..x", b"\r\n.x", b"\r\n", b"\r", b"\n", b"\r\n.\r\nQUIT"])
def test_large_pieces_are_read_like_small_ones(piece):
    """What is looked at in parts shows the same where two parts meet."""
    for shift in range(-8, 4):
        message = b"a" * (_WINDOW + shift) + piece + b"b" * 9 + b"\r\n.\r\n"
        whole = fed(message)
        assert whole == fed(message, range(997, len(message), 997))
        assert whole[3] is (piece in (b"\r", b"\n"))
        assert unstuffed(whole[0]) == whole[0].replace(b"\r\n.", b"\r\n")
