"""Decompress gzip, bzip2 and xz files within limits.

A few compressed bytes can expand to gigabytes. A file may therefore expand to at most RATIO times
its size plus FREE_BYTES; the caller limits the total. The xz decoder may use as much memory as the
highest preset of `xz` needs. A file may contain several streams one after the other.

Failure: OSError; its `strerror` says what is wrong.
"""

from __future__ import annotations

import bz2
import errno
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, Protocol

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
