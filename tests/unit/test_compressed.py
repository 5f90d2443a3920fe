"""Compressed messages and mboxes: read as if they were not compressed, within bounds."""

import bz2
import gzip
import lzma
import tracemalloc

import pytest

from spamnb.engine import mailboxes
from spamnb.engine.mailboxes import (
    SourceMessage,
    Unreadable,
    expanded_bytes,
    is_compressed,
    items,
)

KINDS = pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)


def mail(number):
    return f"From: ann@a.example\nMessage-ID: <{number}@a.example>\n\nplum {number}\n".encode()


def mbox(count):
    head = b"From ann@a.example Mon Jan  6 07:00:00 2025\n"
    return b"".join(head + mail(n) + b"\n" for n in range(count))


@KINDS
def test_a_compressed_message_is_a_message(tmp_path, ending, pack):
    """Compressed files are recognized under any name."""
    for name in (f"one.eml{ending}", "one.eml", "cur/one:2,S"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pack(mail(1)))
        assert list(items(path)) == [SourceMessage(str(path), mail(1))]


@KINDS
def test_a_compressed_mbox_is_cut_into_its_messages(tmp_path, ending, pack):
    """Messages of a compressed mbox are numbered."""
    plain, packed = tmp_path / "mail.mbox", tmp_path / f"mail.mbox{ending}"
    plain.write_bytes(mbox(300))
    packed.write_bytes(pack(mbox(300)))
    found, want = list(items(packed)), list(items(plain))
    assert [item.raw for item in found] == [item.raw for item in want]
    assert [item.name for item in found] == [f"{packed}#{n}" for n in range(1, 301)]


@KINDS
def test_several_streams_in_one_file_are_one_content(ending, pack):
    """Concatenated streams are read; bytes after the last stream are ignored."""
    assert is_compressed(pack(b"a")[: mailboxes.HEAD])
    assert expanded_bytes(pack(b"one ") + pack(b"two") + b"\0\0", 100) == b"one two"


@KINDS
def test_what_expands_too_far_is_reported_and_not_held(tmp_path, ending, pack):
    """A decompression bomb is refused without using memory."""
    bombs = [mail(1) + bytes(20_000_000), mbox(1) + b"x" * 20_000_000]
    for number, bomb in enumerate(bombs):
        (tmp_path / str(number)).write_bytes(pack(bomb))
    del bomb, bombs
    tracemalloc.start()
    found = list(items(tmp_path))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [type(item) for item in found] == [Unreadable, Unreadable]
    assert all("times its size" in item.reason for item in found)
    assert most < 15_000_000


@KINDS
def test_damaged_and_short_files_are_reported(tmp_path, ending, pack):
    """A truncated or damaged file is unreadable."""
    whole = pack(mbox(300))
    for at in (mailboxes.HEAD, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:at])
        assert all(isinstance(item, Unreadable) for item in items(tmp_path / "cut"))
    middle = len(whole) // 2
    (tmp_path / "changed").write_bytes(whole[:middle] + b"\xff" * 40 + whole[middle + 40 :])
    assert all(isinstance(item, Unreadable) for item in items(tmp_path / "changed"))


def test_a_mailbox_may_not_fill_the_disk(tmp_path, monkeypatch):
    """The decompressed size of an mbox is limited."""
    monkeypatch.setattr(mailboxes, "MAILBOX_BYTES", 1000)
    (tmp_path / "m.gz").write_bytes(gzip.compress(mbox(100)))
    assert [type(item) for item in items(tmp_path / "m.gz")] == [Unreadable]


def test_mail_is_not_taken_for_compressed():
    """A header may begin with the first characters of a bzip2 file."""
    assert not is_compressed(b"BZh9: a header")
    assert not is_compressed(b"From ann@a.example")
