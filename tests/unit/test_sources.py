"""Where messages lie: files, folders, Maildirs, mboxes, standard input, and what is no mail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spamnb.engine import mailboxes
from spamnb.engine.mailboxes import SourceMessage, Unreadable, items, paths, units
from spamnb.errors import CorpusError


def mail(number):
    return f"From: ann@a.example\nMessage-ID: <{number}@a.example>\n\nplum {number}\n".encode()


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def mbox(numbers, line_end=b"\n"):
    head = b"From ann@a.example Mon Jan  6 07:00:00 2025\n"
    return b"".join(head + mail(n) + b"\n" for n in numbers).replace(b"\n", line_end)


def read(path):
    return [item.raw for item in items(path)]


def test_a_folder_is_read_to_any_depth_in_a_fixed_order(tmp_path):
    """Files are sorted by name at every level."""
    for name in ("b/2", "a/x/y/3", "a/1", "c"):
        put(tmp_path / name, mail(name))
    assert [Path(p).relative_to(tmp_path).as_posix() for p in paths(str(tmp_path))] == [
        "a/1", "a/x/y/3", "b/2", "c"
    ]  # fmt: skip
    assert read(tmp_path) == [mail(n) for n in ("a/1", "a/x/y/3", "b/2", "c")]


def test_a_single_file_is_a_corpus(tmp_path):
    """A path may name one message."""
    assert read(put(tmp_path / "one.eml", mail(1))) == [mail(1)]


def test_a_maildir_is_cur_and_new_without_what_is_in_delivery(tmp_path):
    """Half-written messages in tmp, and the files that Dovecot keeps, are not read."""
    for name in ("cur/1:2,S", "new/2", "tmp/3", "dovecot.index.log", "dovecot-uidlist",
                 ".Junk/cur/4:2,", ".Junk/new/5", ".Junk/tmp/6", "maildirfolder"):  # fmt: skip
        put(tmp_path / name, mail(name))
    (tmp_path / ".Junk/cur").mkdir(exist_ok=True)
    found = {Path(p).relative_to(tmp_path).as_posix() for p in paths(str(tmp_path))}
    assert found == {"cur/1:2,S", "new/2", ".Junk/cur/4:2,", ".Junk/new/5"}


def test_a_folder_named_tmp_elsewhere_is_read(tmp_path):
    """Only a Maildir's tmp is left out."""
    put(tmp_path / "tmp/1", mail(1))
    assert read(tmp_path) == [mail(1)]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_an_mbox_is_cut_into_its_messages(tmp_path, line_end):
    """Each message by its number, with LF or CRLF; the name says which."""
    path = put(tmp_path / "mail.mbox", mbox([1, 2, 3], line_end))
    found = list(items(path))
    assert [item.name for item in found] == [f"{path}#{n}" for n in (1, 2, 3)]
    for number, item in enumerate(found, 1):
        assert item.raw.startswith(b"From ")
        assert f"<{number}@a.example>".encode() in item.raw
        assert item.raw.count(b"Message-ID") == 1


def test_a_from_line_in_a_text_cuts_no_message(tmp_path):
    """A `From ` line needs an empty line before it and a time to begin a message."""
    text = (
        mbox([1]) + b"\nFrom here on it is easy.\nFrom a Mon Jan 6 07:00:00 2025\n>From b 07:00\n"
    )
    assert len(read(put(tmp_path / "m", text + mbox([2])))) <= 2
    assert read(put(tmp_path / "n", mbox([1]) + b"\nFrom here on it is easy.\n")) != []
    assert len(units(str(tmp_path / "n"))) == 1


def test_an_mbox_of_one_message_is_a_message(tmp_path):
    """An mbox of one message has no number in the name."""
    path = put(tmp_path / "one", mbox([1]))
    assert [item.name for item in items(path)] == [str(path)]


def test_what_cannot_be_read_is_reported_and_the_rest_is_read(tmp_path):
    """Empty files, files without mail and unreadable files have a reason; the others are read."""
    put(tmp_path / "1-good", mail(1))
    put(tmp_path / "2-empty", b"")
    put(tmp_path / "3-photo", bytes(range(128, 256)) * 100)
    (tmp_path / "4-broken").symlink_to("/proc/self/mem")
    put(tmp_path / "5-good", mail(5))
    found = list(items(tmp_path))
    assert [type(item) for item in found] == [
        SourceMessage,
        Unreadable,
        Unreadable,
        Unreadable,
        SourceMessage,
    ]
    assert [item.reason for item in found[1:3]] == ["empty", "not mail: it has no header"]
    assert found[3].reason


@pytest.mark.parametrize("make", [None, Path.mkdir])
def test_a_path_without_messages_is_an_error_that_names_it(tmp_path, make):
    """A missing or empty path raises CorpusError before anything else is done."""
    path = tmp_path / "nothing"
    if make:
        make(path)
    with pytest.raises(CorpusError, match="nothing"):
        units(str(path))


def test_links_to_folders_are_not_followed(tmp_path):
    """Links to folders are not followed."""
    put(tmp_path / "a/1", mail(1))
    (tmp_path / "a/up").symlink_to(tmp_path)
    assert read(tmp_path) == [mail(1)]


def test_a_fifo_is_no_message(tmp_path):
    """Named pipes are skipped."""
    put(tmp_path / "1", mail(1))
    os.mkfifo(tmp_path / "2")
    assert read(tmp_path) == [mail(1)]


def test_names_that_are_no_text_are_read(tmp_path):
    """File names may contain any bytes."""
    (tmp_path / os.fsdecode(b"caf\xe9\xff")).write_bytes(mail(1))
    assert read(tmp_path) == [mail(1)]


@pytest.mark.parametrize("numbers", [[1], [1, 2, 3]])
def test_standard_input_is_a_message_or_an_mbox(tmp_path, monkeypatch, numbers):
    """`-` reads standard input once, and splits an mbox."""
    given = put(tmp_path / "given", mail(1) if numbers == [1] else mbox(numbers))
    with given.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        found = read("-")
    assert len(found) == len(numbers)
    assert all(b"Message-ID" in raw for raw in found)


def test_a_huge_file_is_read_to_a_bound(tmp_path, monkeypatch):
    """A very large file is read only in its first part."""
    monkeypatch.setattr(mailboxes, "LARGEST_BYTES", 1000)
    assert read(put(tmp_path / "big", mail(1) + b"x" * 5000)) == [(mail(1) + b"x" * 5000)[:1000]]


@pytest.mark.parametrize("gone", [False, True])
def test_the_copy_of_a_stream_is_removed_at_exit(tmp_path, gone):
    """A process leaves no temporary file; a temporary folder that is gone is no fault."""
    program = (
        "import shutil, sys; from spamnb.engine.mailboxes import kept;"
        f"path = kept(sys.stdin.buffer); {gone} and shutil.rmtree({str(tmp_path)!r}); print(path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(tmp_path)},
        input="x", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(str(tmp_path))
    assert done.stderr == ""
    assert gone or list(tmp_path.iterdir()) == []
