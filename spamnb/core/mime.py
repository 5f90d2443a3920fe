"""The structure of a message: multiparts, inner messages, transfer encodings, and the leaves.

Holds how a body falls apart into `Part`s. It must not know what is done with them, nor read HTML
itself. It works on positions in one buffer, so nesting copies nothing.

Invariants: every leaf is reached once; nesting, number of parts and decoded text are bounded, and
what is beyond a bound is read as plain text of the part where the bound was met. Nothing raises;
broken structure leaves a mark.
"""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from spamnb.core import headers, limits
from spamnb.core.charset import Text, looked_at, to_text
from spamnb.core.house import House
from spamnb.core.html import Budget, read_html

NOBODY: Final = House()
BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
NOT_BASE64: Final = bytes(set(range(256)) - set(BASE64))
INNER_NAMES: Final = frozenset((b"subject", b"from", b"to", b"cc", b"reply-to", b"sender"))

KIND = re.compile(rb"[ \t]*+([\w!#$&^.+-]{1,80}/[\w!#$&^.+-]{1,80})[ \t]*+(?=;|$|\s|,)")
PARAM = re.compile(
    rb';\s*+([^\s=;*"]++)(\*\d{1,4})?(\*)?\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"?+|([^;]*+))', re.DOTALL
)
META = re.compile(rb"<meta\b[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
NO_ESCAPE = re.compile(rb"=(?![0-9A-Fa-f]{2}|[ \t\r]*+(?:\n|\Z))")
PADDED = re.compile(rb"=[ \t]++\n")
UUENCODED = re.compile(rb"begin (?<=^begin )[0-7]{3,4} \S", re.MULTILINE)
"""a pattern that begins with plain letters takes half the time of the operator `in`"""


class Kind(NamedTuple):
    """A parsed Content-Type or Content-Disposition."""

    name: str
    params: dict[str, Text]

    def param(self, name: str) -> str:
        """Give a parameter as text, "" if missing."""
        value = self.params.get(name, "")
        return value.decode("ascii") if isinstance(value, bytes) else value


@dataclass(slots=True)
class Part:
    """A leaf of the structure."""

    kind: str
    """"text/html", lower case, "" if missing or garbage"""
    charset: str = ""
    encoding: str = ""
    disposition: str = ""
    name: Text = b""
    """decoded file name"""
    size: int = 0
    """decoded size in bytes"""
    digest: bytes = b""
    """8 bytes of blake2b of the decoded content of parts that are not text"""
    head: bytes = b""
    """first 8 decoded bytes of parts that are not text"""
    text: Text = b""
    """what a person sees of a text part"""
    hidden: Text = b""
    """html: text that is there but not seen, and comments"""
    links: list[Text] = field(default_factory=list)
    images: list[Text] = field(default_factory=list)
    markup: bytes = b""
    """html: the names of its tags, each once, joined by blanks"""
    depth: int = 0


@dataclass(slots=True)
class Reading:
    """What one message has yielded so far, and what may still be spent on it."""

    odd: set[str]
    parts: list[Part] = field(default_factory=list)
    inner: list[tuple[bytes, Text]] = field(default_factory=list)
    text_left: int = limits.TEXT_BYTES
    html_left: Budget = field(default_factory=Budget)
    delimiters_left: int = limits.DELIMITERS


Special = dict[bytes, bytes]


def _value(raw: bytes, extended: str, odd: set[str]) -> Text:
    """Read a parameter's value: by RFC 2231 if it said so, else as many senders do, by words."""
    if extended:
        return looked_at(to_text(unquote_to_bytes(raw), extended, odd, "header"), odd)
    return headers.decoded(raw, odd)


def _params(rest: bytes, odd: set[str]) -> dict[str, Text]:
    pieces: dict[bytes, dict[int, bytes]] = {}
    charsets: dict[bytes, str] = {}
    for count, found in enumerate(PARAM.finditer(rest)):
        if count == limits.PARAMS:
            odd.add("param:many")
            break
        name = found[1].lower()
        value = found[5].strip() if found[4] is None else found[4].replace(b"\\", b"")
        number = int(found[2][1:]) if found[2] else 0
        if found[3] and number == 0:
            charset, quote, tail = value.partition(b"'")
            if quote:
                charsets[name] = charset.decode("latin-1") or "utf-8"
                value = tail.partition(b"'")[2]
        if number in pieces.setdefault(name, {}):
            odd.add("param:double")
        pieces[name].setdefault(number, value)
    return {
        name.decode("latin-1"): _value(
            b"".join(found[n] for n in sorted(found)), charsets.get(name, ""), odd
        )
        for name, found in pieces.items()
    }


def parse_kind(value: bytes, odd: set[str]) -> Kind:
    """Read a Content-Type; its name is "" if it is garbage."""
    value = value[: limits.PARAM_BYTES]
    found = KIND.match(value)
    if found is None:
        odd.add("mime:bad-type")
        return Kind("", _params(b";" + value.partition(b";")[2], odd))
    return Kind(found[1].decode("latin-1").lower(), _params(value[found.end() :], odd))


@lru_cache(maxsize=1024)
def _cached_kind(value: bytes) -> tuple[Kind, tuple[str, ...]]:
    odd: set[str] = set()
    return parse_kind(value, odd), tuple(odd)


def kind_of(special: Special, odd: set[str]) -> Kind:
    """Find the Content-Type among some fields."""
    value = special.get(b"content-type")
    if value is None:
        return NO_KIND
    if len(value) > 80 or b"boundary" in value:
        return parse_kind(value, odd)
    # a few spellings make up most mail: 0.1 us instead of 4
    kind, marks = _cached_kind(value)
    odd.update(marks)
    return kind


NO_KIND: Final = Kind("", {})


def _segment(run: bytes) -> bytes:
    return binascii.a2b_base64(run[: len(run) - (len(run) % 4 == 1)] + b"==")


def from_base64(data: bytes, odd: set[str]) -> bytes:
    """Decode base64, as much of it as there is; some senders join pieces that are padded."""
    inner = data.rstrip(b"= \t\r\n")
    if b"=" not in inner:
        try:
            return binascii.a2b_base64(data)
        except binascii.Error:
            pass
    odd.add("base64:broken")
    runs = inner.split(b"=", limits.SEGMENTS)
    return b"".join([_segment(run.translate(None, NOT_BASE64)) for run in runs])


def unpacked(data: bytes, encoding: str, odd: set[str]) -> bytes:
    """Undo a transfer encoding, as far as it can be."""
    if encoding == "quoted-printable":
        if NO_ESCAPE.search(data) is not None:
            odd.add("qp:broken")
        # padded on the way, which binascii does not know
        return binascii.a2b_qp(PADDED.sub(b"=\n", data))
    if encoding == "base64":
        return from_base64(data, odd)
    if encoding not in {"", "7bit", "8bit", "binary"}:
        odd.add("encoding:unknown")
    return data


def encoding_of(special: Special) -> str:
    """Name the transfer encoding, in lower case."""
    value = special.get(b"content-transfer-encoding")
    if value is None:
        return ""
    return value[:40].decode("latin-1").lower().strip(" \t\"'")


def disposition_of(special: Special, kind: Kind, odd: set[str]) -> tuple[str, Text]:
    """Tell how the part wants to be shown, and its file name."""
    value = special.get(b"content-disposition")
    name: Text = b""
    said = ""
    if value is not None:
        first, _, rest = value[: limits.PARAM_BYTES].partition(b";")
        said = first.strip()[:40].decode("latin-1").lower()
        name = _params(b";" + rest, odd).get("filename", b"") if rest else b""
    return said, (name or kind.params.get("name", b""))[: limits.NAME_TEXT]


def leaf(seen: Reading, raw: bytes, special: Special, kind: Kind, depth: int) -> None:
    """Add one part."""
    odd = seen.odd
    encoding = encoding_of(special)
    data = raw if encoding in {"7bit", ""} else unpacked(raw, encoding, odd)
    part = Part(kind.name, encoding=encoding, size=len(data), depth=depth)
    if b"content-disposition" in special or kind.params:
        part.disposition, part.name = disposition_of(special, kind, odd)
        part.charset = kind.param("charset").lower()[:40]
    seen.parts.append(part)
    if kind.name and not kind.name.startswith(("text/", "message/", "multipart/")):
        part.digest = blake2b(data, digest_size=8).digest()
        part.head = data[:8]
        return
    if len(data) > seen.text_left:
        odd.add("text:huge")
        data = data[: seen.text_left]
    seen.text_left -= len(data)
    _read_text(seen, part, data)


def _read_text(seen: Reading, part: Part, data: bytes) -> None:
    odd = seen.odd
    if b"\0" in data:
        odd.add("text:nul")
    html = part.kind == "text/html" or (part.kind == "" and _looks_html(data))
    charset = part.charset
    if html and not charset and not data.isascii():
        found = META.search(data[:1024])
        charset = found[1].decode("ascii") if found else ""
    text = to_text(data, charset, odd, "text")
    if not html:
        if UUENCODED.search(data) is not None:
            odd.add("text:uuencode")
        part.text = looked_at(text, odd)
        return
    page = read_html(text, seen.html_left, odd)
    part.text, part.hidden = looked_at(page.text, odd), page.hidden
    part.links, part.images, part.markup = page.links, page.images, page.markup


def _looks_html(data: bytes) -> bool:
    return data[:64].lstrip()[:14].lower().startswith((b"<html", b"<!doctype html"))


def delimiters(
    seen: Reading, buffer: bytes, span: tuple[int, int], boundary: bytes
) -> list[tuple[int, int, bool]]:
    """Find boundary lines: (where it starts, where the next line starts, whether it closes).

    A line that only starts like the boundary is none (RFC 2046 5.1.1): inner boundaries may extend
    outer ones.
    """
    mark = b"--" + boundary
    out: list[tuple[int, int, bool]] = []
    at, end = span
    while (at := buffer.find(mark, at, end)) >= 0:
        seen.delimiters_left -= 1
        if seen.delimiters_left < 0 or len(seen.parts) + len(out) > limits.PARTS:
            seen.odd.add("mime:parts")
            break
        stop = buffer.find(b"\n", at, end)
        stop = end if stop < 0 else stop
        tail = buffer[at + len(mark) : min(stop, at + len(mark) + 80)].rstrip()
        if (at == span[0] or buffer[at - 1] == 10) and tail in {b"", b"--"}:
            out.append((at, min(stop + 1, end), tail == b"--"))
            if tail:
                break
        at = stop
    return out


def _multipart(seen: Reading, buffer: bytes, span: tuple[int, int], kind: Kind, depth: int) -> bool:
    """Read the parts of a multipart; False if it has none."""
    boundary = kind.param("boundary").encode("utf-8", "replace").rstrip()
    if not 0 < len(boundary) <= limits.BOUNDARY_BYTES:
        seen.odd.add("boundary:missing")
        return False
    found = delimiters(seen, buffer, span, boundary)
    if not found or found[0][2]:
        seen.odd.add("boundary:missing")
        return False
    if not found[-1][2]:
        seen.odd.add("boundary:unclosed")
    default = MESSAGE if kind.name == "multipart/digest" else NO_KIND
    for i, (_, start, closes) in enumerate(found):
        if closes:
            break
        end = found[i + 1][0] - 1 if i + 1 < len(found) else span[1]
        block, body = headers.split(buffer, (start, end), NOBODY, seen.odd)
        inside = kind_of(block.special, seen.odd)
        where = (body, max(body, end))
        walk(seen, buffer, where, (block.special, inside if inside.name else default), depth + 1)
    return True


MESSAGE: Final = Kind("message/rfc822", {})


def _inner(
    seen: Reading, buffer: bytes, span: tuple[int, int], special: Special, depth: int
) -> None:
    """Read a message inside the message: its headers count as inner ones, its parts as ours."""
    encoding = encoding_of(special)
    if encoding in {"base64", "quoted-printable"}:
        buffer = unpacked(buffer[span[0] : span[1]], encoding, seen.odd).replace(b"\r\n", b"\n")
        span = (0, len(buffer))
    block, body = headers.split(buffer, span, NOBODY, seen.odd)
    wanted = [
        (name, value)
        for name, value in block.fields
        if name in INNER_NAMES or name.startswith(b"content-")
    ]
    for name, value in headers.features(headers.Block(fields=wanted), seen.odd):
        seen.inner.append((b"inner-" + name, value))
    what = (block.special, kind_of(block.special, seen.odd))
    walk(seen, buffer, (body, span[1]), what, depth + 1)


def walk(
    seen: Reading,
    buffer: bytes,
    span: tuple[int, int],
    what: tuple[Special, Kind],
    depth: int,
) -> None:
    """Read the body at `span` of `buffer`, whose fields are `what`, into `seen`."""
    special, kind = what
    name = kind.name
    if name.startswith(("multipart/", "message/")):
        if depth >= limits.DEPTH:
            seen.odd.add("mime:depth")
        elif name.startswith("multipart/"):
            if _multipart(seen, buffer, span, kind, depth):
                return
        elif name in {"message/rfc822", "message/global"}:
            _inner(seen, buffer, span, special, depth)
            return
    if len(seen.parts) >= limits.PARTS:
        seen.odd.add("mime:parts")
        return
    leaf(seen, buffer[span[0] : span[1]], special, kind, depth)
