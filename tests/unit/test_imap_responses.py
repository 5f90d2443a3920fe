"""Responses of IMAP servers, names of folders, and which folders are read."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.errors import PeerError
from spamnb.imap.client import (
    LINE_BYTES,
    LITERAL_BYTES,
    SEARCH_BYTES,
    ListedFolder,
    ResponseReader,
    decoded_name,
    listed_folder,
    quoted,
    watched,
)

TALK = (
    b"* OK [CAPABILITY IMAP4rev1] ready {5}\r\n"
    b'* LIST (\\HasNoChildren \\Junk) "/" "Junk \\"mail\\""\r\n'
    b"* LIST () NIL {3}\r\nA&B\r\n"
    b"* 2 FETCH (UID 7 FLAGS (\\Seen) BODY[HEADER.FIELDS (FROM TO)]<0> {4}\r\na\r\nb)\r\n"
    b'* 3 FETCH (BODY[]<0> "quo)ted" UID 8)\n'
    b"* SEARCH 1 2 30\r\n* SEARCH\r\n+ go on\r\n"
    b"* 5 EXISTS\r\ns1 NO [TRYCREATE] no such {9}\r\n"
)
PARSED = [
    ("*", "OK", 0, "CAPABILITY IMAP4rev1", "ready {5}", ()),
    ("*", "LIST", 0, "", "", ([b"\\HasNoChildren", b"\\Junk"], b"/", b'Junk "mail"')),
    ("*", "LIST", 0, "", "", ([], None, b"A&B")),
    ("*", "FETCH", 2, "", "", ([b"UID", b"7", b"FLAGS", [b"\\Seen"],
                                b"BODY[HEADER.FIELDS (FROM TO)]<0>", b"a\r\nb"],)),
    ("*", "FETCH", 3, "", "", ([b"BODY[]<0>", b"quo)ted", b"UID", b"8"],)),
    ("*", "SEARCH", 0, "", "", (1, 2, 30)),
    ("*", "SEARCH", 0, "", "", ()),
    ("+", "", 0, "", "go on", ()),
    ("*", "EXISTS", 5, "", "", ()),
    ("s1", "NO", 0, "TRYCREATE", "no such {9}", ()),
]  # fmt: skip


def test_responses_are_read():
    """Literals, quoted strings, lists, sections, and texts that look like literals."""
    assert list(map(tuple, ResponseReader().feed(TALK))) == PARSED


@given(st.lists(st.integers(0, len(TALK)), max_size=8))
def test_a_split_anywhere_changes_nothing(cuts):
    """The network may deliver any number of bytes at a time."""
    reader, ends = ResponseReader(), [0, *sorted(cuts), len(TALK)]
    parts = [TALK[a:b] for a, b in pairwise(ends)]
    found = [tuple(one) for part in parts for one in reader.feed(part)]
    assert found == PARSED
    assert reader.is_empty


PIECES = [b"* ", b"LIST ", b"1 FETCH ", b"SEARCH ", b"(", b")", b'"', b"\\", b"{3}\r\n", b"{x}",
          b"[", b"]", b"\r\n", b"\n", b"\0", b"\xff", b"99999999999 ", b"NIL ", b"s1 OK ",
          b"+ "]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=5), max_size=60))
def test_any_bytes_are_responses_or_an_error(parts):
    """No other exception leaves the reader."""
    reader = ResponseReader()
    try:
        for part in parts:
            list(reader.feed(part))
    except PeerError:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"* OK " + b"x" * LINE_BYTES,
        b"* SEARCH " + b"1" * SEARCH_BYTES,
        b'* LIST () "/" {%d}\r\n' % (LITERAL_BYTES + 1),
        b"* 1 FETCH (" + b"{1000000}\r\n" + b"x" * 1_000_000 + b" {1000000}\r\n",
        b"* 1 FETCH (" + b"{40000}\r\n" + b"x" * 40_000 + b" " * LINE_BYTES,
        b"* LIST " + b"(" * 20 + b"\r\n",
        b"* LIST (" + b"a " * 3000 + b")\r\n",
        b"* LIST )(\r\n",
        b"* SEARCH 4294967296\r\n",
        b"* SEARCH -1\r\n",
        b"HTTP/1.1 200 fine\r\n",
    ],
    ids=lambda data: data[:20],
)
def test_what_is_too_much_is_refused(data):
    """Lines, literals, depth, number of values and numbers are limited."""
    with pytest.raises(PeerError):
        list(ResponseReader().feed(data))


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        ("INBOX", "INBOX"),
        ("Entw&APw-rfe", "Entwürfe"),
        ("&ZeVnLIqe-/&U,BTFw-", "日本語/台北"),
        ("A &- B", "A & B"),
        ("broken &4-", "broken &4-"),
    ],
)
def test_names_are_decoded(wire, name):
    """Modified UTF-7; what is not valid stays as it is."""
    assert decoded_name(wire) == name


def test_only_names_that_a_command_can_hold_are_listed():
    """A name with bytes of no ASCII character, or without any, is left out."""
    assert listed_folder([[b"\\Junk"], b".", b"INBOX.Junk"]).last == "junk"
    for wire in (b"a\r\nb", b"\xfc", b"", None, [b"x"]):
        assert listed_folder([[], b"/", wire]) is None
    assert listed_folder([]) is None
    assert quoted('a"b\\') == b'"a\\"b\\\\"'


def folders(*names):
    """Listed folders: name, or name and flag."""
    made = []
    for name in names:
        wire, _, flag = name.partition("|")
        made.append(ListedFolder(wire, frozenset([flag] if flag else []), "/"))
    return made


@pytest.mark.parametrize(
    ("listed", "junk", "found"),
    [
        (["INBOX", "Junk"], "", ("INBOX", "Junk", ())),
        (["Inbox", "Spam", "Junk|\\junk"], "", ("Inbox", "Junk", ("Spam",))),
        (["INBOX", "Spam", "Work"], "", ("INBOX", "Spam", ("Work",))),
        (["INBOX", "INBOX/Spam"], "", ("INBOX", "INBOX/Spam", ())),
        (["INBOX", "Sp&AOQ-m"], "Späm", ("INBOX", "Sp&AOQ-m", ())),
        (["INBOX", "Junk"], "Spam", None),
        (["INBOX", "Junk|\\noselect"], "", None),
        (["INBOX"], "INBOX", None),
        (["INBOX", "Junk", "Junk/old", "Trash", "Trash/a", "All|\\all", "Work", "Gesendet|\\sent"],
         "", ("INBOX", "Junk", ("Work",))),
    ],
)  # fmt: skip
def test_which_folders_are_read(listed, junk, found):
    """The junk folder of the settings, the marked one, or one with a usual name."""
    assert watched(folders(*listed), "INBOX", junk) == found
