"""Read messages from files, folders of any depth, Maildirs, mboxes and standard input.

They are read one at a time, in the same order on every run. A file that cannot be read yields an
`Unreadable`; only a path that is missing, empty or without mail raises CorpusError. Must not know
what is done with the messages.

Messages and mboxes may be compressed by gzip, bzip2 or xz, in several streams one after the other.
A few compressed bytes can expand to gigabytes, so a file may expand to at most RATIO times its size
plus FREE_BYTES; the caller limits the total. The xz decoder may use as much memory as the highest
preset of `xz` needs.
"""

from __future__ import annotations

import atexit
import bz2
import errno
import io
import itertools
import lzma
import mmap
import os
import re
import select
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from spamnb.errors import CorpusError
from spamnb.store.files import as_caller, open_named

RATIO: Final = 100
"""Text mail compresses to a third, a mailbox of copies of one message to a fiftieth."""
FREE_BYTES: Final = 1 << 20
_XZ_BYTES: Final = 100 << 20
_CHUNK: Final = 1 << 16


class _Decoder(Protocol):
    """The interface of the standard library's decoders for bzip2 and xz."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """The same interface for gzip."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)


_DECODERS: Final[tuple[tuple[re.Pattern[bytes], Callable[[], _Decoder]], ...]] = (
    (re.compile(rb"\x1f\x8b\x08"), _Gzip),
    (re.compile(rb"BZh[1-9]1AY&SY"), bz2.BZ2Decompressor),
    (re.compile(rb"\xfd7zXZ\0"), lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_BYTES)),
)
HEAD: Final = 10
"""number of bytes that `is_compressed` needs"""


def is_compressed(head: bytes) -> bool:
    """Return whether a file with these first bytes is compressed; no message begins with them."""
    return _maker(head) is not None


def _maker(head: bytes) -> Callable[[], _Decoder] | None:
    return next((make for magic, make in _DECODERS if magic.match(head)), None)


def expanded(source: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a compressed file in pieces."""
    size_in = size_out = 0
    pending = source.read(_CHUNK)
    while (make := _maker(pending)) is not None:
        decoder = make()
        while not decoder.eof:
            size_in += len(pending)
            piece = _next(decoder, pending)
            size_out += len(piece)
            if size_out > FREE_BYTES + RATIO * size_in:
                raise OSError(errno.EFBIG, f"expands to more than {RATIO} times its size")
            if piece:
                yield piece
            pending = source.read(_CHUNK) if decoder.needs_input and not decoder.eof else b""
            if not (piece or pending or decoder.eof):
                raise OSError(errno.EIO, "the compressed data is truncated")
        size_in -= len(decoder.unused_data)
        pending = decoder.unused_data + source.read(_CHUNK)


def _next(decoder: _Decoder, data: bytes) -> bytes:
    try:
        return decoder.decompress(data, _CHUNK)
    except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise OSError(errno.EIO, "the compressed data is damaged") from error


def expanded_bytes(raw: bytes, most: int) -> bytes:
    """Return the content of compressed bytes, up to `most` bytes."""
    found = bytearray()
    for piece in expanded(io.BytesIO(raw)):
        found += piece
        if len(found) >= most:
            break
    return bytes(found[:most])


LARGEST_BYTES = 64 * 1024 * 1024
"""Mail servers do not accept larger messages; only the first part of a message is parsed anyway."""
MAILBOX_BYTES = 16 << 30
"""maximum size of a decompressed mbox"""

_PIECE = 1 << 16
_MAILDIR = ("cur", "new")
_NOT_MAIL = frozenset(
    {"cmds", ".DS_Store", "dovecot.index", "dovecot.index.cache", "dovecot.index.log",
     "dovecot-uidlist", "dovecot-keywords", "maildirfolder", "subscriptions"}
)  # fmt: skip
"""Other files that mail programs and corpora keep in folders with messages."""

_ONE_MESSAGE = (".eml", ".msg")
"""files with these suffixes contain one message"""
_IN_MAILDIR = f"{os.sep}cur{os.sep}"


class SourceMessage(NamedTuple):
    """A message and its name: a path, path#N for message N of an mbox, or - for standard input."""

    name: str
    raw: bytes


class Unreadable(NamedTuple):
    """A message that could not be read, and the reason."""

    name: str
    reason: str


@as_caller()
def paths(path: str) -> list[str]:
    """Return the files under a path, in a fixed order; the path itself for a file or `-`."""
    if path == "-":
        return [path]
    if os.path.isfile(path):  # noqa: PTH113 - os.path is a third of pathlib's cost per file
        return [path]
    if not os.path.isdir(path):  # noqa: PTH112
        raise _no_corpus(path)
    found = list(_walk(path))
    if not found:
        raise CorpusError(
            f"no messages in {path}", hint="give a folder, Maildir, mbox or file with mail"
        )
    return found


def _no_corpus(path: str) -> CorpusError:
    try:
        Path(path).stat()
    except FileNotFoundError:
        return CorpusError(f"no such file or folder: {path}", hint="check the path")
    except OSError as error:
        return CorpusError(f"{path}: {error.strerror}", hint="check the path and the permissions")
    return CorpusError(
        f"{path} is neither a file nor a folder", hint="redirect it to standard input, and give -"
    )


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
    """A message's position in a file: bytes start to stop, or the whole file if stop is 0."""

    path: str
    start: int = 0
    stop: int = 0
    number: int = 0
    shown: str = ""
    """the file's name in messages, if it is not the path"""
    fault: str = ""
    """why the message cannot be read, if that is known already"""

    @property
    def name(self) -> str:
        """Return the message's name for people."""
        path = self.shown or self.path
        return f"{path}#{self.number}" if self.number else path


MailSource = str | Sequence[MessageSpan]
"""a path, or messages that were found already"""


def units(path: str, *, documents: bool = False) -> list[MessageSpan]:
    """Return the position of every message under a path; mboxes are searched for their messages.

    With `documents`, each file is one text document instead of mail.
    """
    if documents and path != "-":
        return [MessageSpan(name) for name in paths(path)]
    if path == "-":
        return [unit._replace(shown=path) for unit in _split_mbox(kept(sys.stdin.buffer))]
    found: list[MessageSpan] = []
    for name in paths(path):
        # Opening 6,046 files to check whether they are mboxes took 80 ms.
        found += (
            [MessageSpan(name)]
            if name.endswith(_ONE_MESSAGE) or _IN_MAILDIR in name
            else _split_mbox(name)
        )
    return found


def spans(source: MailSource, *, documents: bool = False) -> list[MessageSpan]:
    """Return the messages of a source."""
    return units(source, documents=documents) if isinstance(source, str) else list(source)


def items(path: str | Path, *, documents: bool = False) -> Iterator[SourceMessage | Unreadable]:
    """Yield the messages, or documents, under a path."""
    for unit in units(str(path), documents=documents):
        yield read_unit(unit, documents=documents)


def read_unit(unit: MessageSpan, *, documents: bool = False) -> SourceMessage | Unreadable:
    """Read one message, or one document, which may be any text."""
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
    """Read with system calls; a file object takes 10 us more."""
    handle = open_named(unit.path)
    try:
        stop = unit.stop or os.fstat(handle).st_size
        raw = os.pread(handle, min(stop - unit.start, LARGEST_BYTES), unit.start)
    finally:
        os.close(handle)
    return expanded_bytes(raw, LARGEST_BYTES) if is_compressed(raw[:HEAD]) else raw


_HEADER = re.compile(rb"(?m)^[A-Za-z][A-Za-z0-9_-]{1,99}[ \t]*:")
"""Standards allow more characters in names, but then random bytes would often pass as mail. With
these, one in 300 files of random bytes does; a NUL before the first header excludes a file."""
_HEAD_BYTES = 4096
_SEPARATOR = re.compile(
    rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\r\n]{1,200}\d\d:\d\d[^\r\n]{0,60}\r?\n"
)
"""A `From ` line with a time, after an empty line. `>From ` lines are not unquoted, because it is
unknown whether the program that wrote the mbox quoted them."""


def _split_mbox(path: str) -> Iterator[MessageSpan]:
    """Yield the messages of one file: several if it is an mbox."""
    try:
        with os.fdopen(open_named(path), "rb", buffering=0) as file:
            head = file.read(max(HEAD, 5))
            if is_compressed(head):
                file.seek(0)
                yield from _split_compressed(path, file)
                return
            if not head.startswith(b"From "):
                yield MessageSpan(path)
                return
            size = os.fstat(file.fileno()).st_size
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # Not closed explicitly: after an interrupt the pattern still references it.
            starts = [found.start() for found in _SEPARATOR.finditer(mapped)]
    except OSError:
        yield MessageSpan(path)
        return
    if len(starts) <= 1:
        yield MessageSpan(path)
        return
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], size], strict=True), 1):
        yield MessageSpan(path, start, stop, number)


def _split_compressed(path: str, file: BinaryIO) -> Iterator[MessageSpan]:
    """Yield the messages of a compressed file; an mbox is decompressed into a temporary file."""
    chunks = expanded(file)
    try:
        first = next(chunks, b"")
        name = _kept_pieces(first, chunks) if first.startswith(b"From ") else ""
    except OSError as error:
        yield MessageSpan(path, fault=error.strerror or "cannot be decompressed")
        return
    if not name:
        yield MessageSpan(path)
        return
    for unit in _split_mbox(name):
        yield unit._replace(shown=path)


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for piece in chunks:
        size += len(piece)
        if size > MAILBOX_BYTES:
            raise OSError(errno.EFBIG, f"expands to more than {MAILBOX_BYTES} bytes")
        yield piece


@as_caller()
def _kept_pieces(first: bytes, chunks: Iterator[bytes]) -> str:
    with _file_until_exit() as file:
        for piece in _bounded(itertools.chain([first], chunks)):
            file.write(piece)
    return file.name


@as_caller()
def kept(source: BinaryIO) -> str:
    """Copy a stream to a temporary file, because a pipe can be read only once; return its path.

    The file is removed when the process ends.
    """
    with _file_until_exit() as file:
        file.writelines(_pieces(source))
    return file.name


def _file_until_exit() -> tempfile._TemporaryFileWrapper[bytes]:
    file = tempfile.NamedTemporaryFile(prefix="spamnb-", delete=False)  # noqa: SIM115 - returned
    atexit.register(_remove, Path(file.name))
    return file


@as_caller()
def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)  # the folder for temporary files may be gone


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a stream; a signal just before a read interrupts the read, too.

    Python runs the handler of a signal after the system call, so Ctrl-C between two reads would
    wait for more input (4 of 120 interrupted commands). The wakeup descriptor ends the wait.
    """
    stream = source.fileno()
    woken, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(wakeup)
    try:
        while select.select([stream, woken], [], []) and (piece := os.read(stream, _PIECE)):
            yield piece
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wakeup)
