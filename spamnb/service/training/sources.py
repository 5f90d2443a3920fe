"""Where messages lie: files, folders of any depth, Maildirs, mboxes, standard input.

Messages and mboxes may be compressed (`compressed`).

Gives them one by one, never holding more than one message, in an order that is the same on every
run. Must not know what is done with them. A file that can't be read is a value that says so; only
a path that is missing, empty or no mail at all is an error (CorpusError).
"""

from __future__ import annotations

import atexit
import errno
import itertools
import mmap
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from spamnb.errors import CorpusError
from spamnb.service.training.compressed import HEAD, expanded, expanded_bytes, is_compressed
from spamnb.store.named_files import as_caller, open_named

LARGEST_BYTES = 64 * 1024 * 1024
"""No mail server of today passes larger messages; the reader looks at the first part anyway."""
MAILBOX_BYTES = 16 << 30
"""what a compressed mbox may expand to"""

_MAILDIR = ("cur", "new")
_NOT_MAIL = frozenset(
    {"cmds", ".DS_Store", "dovecot.index", "dovecot.index.cache", "dovecot.index.log",
     "dovecot-uidlist", "dovecot-keywords", "maildirfolder", "subscriptions"}
)  # fmt: skip
"""Files that mail programs and corpora keep beside messages."""


_ONE_MESSAGE = (".eml", ".msg")
"""By these names a file is one message."""
_IN_MAILDIR = f"{os.sep}cur{os.sep}"


class SourceMessage(NamedTuple):
    """One message and where it lay: a path, path#N inside an mbox, or - for standard input."""

    name: str
    raw: bytes


class Unreadable(NamedTuple):
    """A file that could not be read, and why."""

    name: str
    reason: str


@as_caller()
def paths(path: str) -> list[str]:
    """The files under a path, in a fixed order; the path itself if it is a file, or `-`."""
    if path == "-":
        return [path]
    if os.path.isfile(path):  # noqa: PTH113 - os.path is a third of pathlib's cost per file
        return [path]
    if not os.path.isdir(path):  # noqa: PTH112
        raise _no_corpus(path)
    found = list(_walk(path))
    if not found:
        raise CorpusError(
            f"no messages in {path}", hint="a folder, Maildir, mbox or file with mail"
        )
    return found


def _no_corpus(path: str) -> CorpusError:
    try:
        Path(path).stat()
    except FileNotFoundError:
        return CorpusError(f"no such file or folder: {path}", hint="check the path")
    except OSError as error:
        return CorpusError(f"{path}: {error.strerror}", hint="check the path and the permissions")
    return CorpusError(f"{path} is neither a file nor a folder", hint="pipe it in, and name it -")


def _walk(folder: str) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise CorpusError(
            f"cannot list {folder}: {error.strerror}", hint="check permissions"
        ) from error
    names = {entry.name for entry in entries}
    maildir = names.issuperset(_MAILDIR)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if not (maildir and entry.name == "tmp"):
                yield from _walk(entry.path)
        elif entry.is_file() and not (entry.name in _NOT_MAIL or entry.name.startswith("dovecot")):
            yield entry.path


class MessageSpan(NamedTuple):
    """One message's place in a file: bytes start to stop, the whole file if stop is 0."""

    path: str
    start: int = 0
    stop: int = 0
    number: int = 0
    shown: str = ""
    """how people call the file, if not by its path"""
    fault: str = ""
    """why it cannot be read, where that is known already"""

    @property
    def name(self) -> str:
        """How people call it."""
        path = self.shown or self.path
        return f"{path}#{self.number}" if self.number else path


def units(path: str, *, documents: bool = False) -> list[MessageSpan]:
    """Every message under a path; mboxes are looked through for where their messages begin.

    Documents are no mail: each file is one.
    """
    if documents and path != "-":
        return [MessageSpan(name) for name in paths(path)]
    if path == "-":
        return [unit._replace(shown=path) for unit in _cut(kept(sys.stdin.buffer))]
    found: list[MessageSpan] = []
    for name in paths(path):
        # Opening 6,046 files only to see that they are no mboxes took 80 ms.
        found += (
            [MessageSpan(name)]
            if name.endswith(_ONE_MESSAGE) or _IN_MAILDIR in name
            else _cut(name)
        )
    return found


def items(path: str | Path, *, documents: bool = False) -> Iterator[SourceMessage | Unreadable]:
    """The messages, or documents, under a path."""
    for unit in units(str(path), documents=documents):
        yield read_unit(unit, documents=documents)


def read_unit(unit: MessageSpan, *, documents: bool = False) -> SourceMessage | Unreadable:
    """One message, or one document: that may be any text."""
    if unit.fault:
        return Unreadable(unit.name, unit.fault)
    try:
        raw = _bytes_of(unit)
    except OSError as error:
        return Unreadable(unit.name, error.strerror or "cannot be read")
    if not raw:
        return Unreadable(unit.name, "empty")
    if documents:
        return Unreadable(unit.name, "not text") if b"\0" in raw else SourceMessage(unit.name, raw)
    header = _HEADER.search(raw, 0, _HEAD_BYTES)
    if header is None or b"\0" in raw[: header.start()]:
        return Unreadable(unit.name, "not mail: it has no header")
    return SourceMessage(unit.name, raw)


def _bytes_of(unit: MessageSpan) -> bytes:
    """Read with plain system calls, no more than is there: a file object costs 10 us more."""
    handle = open_named(unit.path)
    try:
        stop = unit.stop or os.fstat(handle).st_size
        raw = os.pread(handle, min(stop - unit.start, LARGEST_BYTES), unit.start)
    finally:
        os.close(handle)
    return expanded_bytes(raw, LARGEST_BYTES) if is_compressed(raw[:HEAD]) else raw


_HEADER = re.compile(rb"(?m)^[A-Za-z][A-Za-z0-9_-]{1,99}[ \t]*:")
"""Standards allow stranger names, but with any sign in them random bytes were mail. So are one in
300 files of random bytes with these; what has a NUL before its first header is none."""
_HEAD_BYTES = 4096
_SEPARATOR = re.compile(
    rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\r\n]{1,200}\d\d:\d\d[^\r\n]{0,60}\r?\n"
)
"""A `From ` line with a time, after an empty line. `>From ` lines stay as they are: nobody can tell
whether the writer of the mbox quoted them."""


def _cut(path: str) -> Iterator[MessageSpan]:
    """The messages of one file: many if it is an mbox."""
    try:
        with os.fdopen(open_named(path), "rb", buffering=0) as file:
            head = file.read(max(HEAD, 5))
            if is_compressed(head):
                file.seek(0)
                yield from _cut_compressed(path, file)
                return
            if not head.startswith(b"From "):
                yield MessageSpan(path)
                return
            size = os.fstat(file.fileno()).st_size
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # Not closed by hand: an interrupt would find the pattern still holding it.
            starts = [found.start() for found in _SEPARATOR.finditer(held)]
    except OSError:
        yield MessageSpan(path)
        return
    if len(starts) <= 1:
        yield MessageSpan(path)
        return
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], size], strict=True), 1):
        yield MessageSpan(path, start, stop, number)


def _cut_compressed(path: str, file: BinaryIO) -> Iterator[MessageSpan]:
    """The messages of a compressed file; an mbox is expanded once, into a file until we end."""
    chunks = expanded(file)
    try:
        first = next(chunks, b"")
        name = _kept_pieces(first, chunks) if first.startswith(b"From ") else ""
    except OSError as error:
        yield MessageSpan(path, fault=error.strerror or "cannot be expanded")
        return
    if not name:
        yield MessageSpan(path)
        return
    for unit in _cut(name):
        yield unit._replace(shown=path)


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for piece in chunks:
        size += len(piece)
        if size > MAILBOX_BYTES:
            raise OSError(errno.EFBIG, f"it expands to more than {MAILBOX_BYTES} bytes")
        yield piece


@as_caller()
def _kept_pieces(first: bytes, chunks: Iterator[bytes]) -> str:
    file = tempfile.NamedTemporaryFile(prefix="spamnb-")  # noqa: SIM115 - it lives as long as we
    try:
        for piece in _bounded(itertools.chain([first], chunks)):
            file.write(piece)
        file.flush()
    except BaseException:
        file.close()
        raise
    atexit.register(file.close)
    return file.name


@as_caller()
def kept(source: BinaryIO) -> str:
    """Name a file that holds what a stream brings, until we end: a pipe can't be read twice."""
    file = tempfile.NamedTemporaryFile(prefix="spamnb-")  # noqa: SIM115 - it lives as long as we
    atexit.register(file.close)
    shutil.copyfileobj(source, file)
    file.flush()
    return file.name
