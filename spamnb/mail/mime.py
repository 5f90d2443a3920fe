"""Walk the parts of a message, and find its attached messages byte for byte. Pure.

Nothing raises; what is broken is read as far as it can be. Nesting, number of parts and decoded
text are bounded. Must not know how the parts are used, nor read HTML itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

from spamnb.mail import content, headers, limits
from spamnb.mail.charset import Text, clean_text, is_wide, to_text
from spamnb.mail.content import (
    NO_KIND,
    UU_BEGIN,
    Y_BEGIN,
    MediaType,
    ParseBudget,
    Special,
    both_ends,
    decode_transfer,
    disposition_of,
    encoding_of,
    kind_of,
    squeeze,
    text_shares,
    unfold_text,
)
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.html import HtmlBudget, read_html
from spamnb.mail.limits import PARTLY

SHOWN, INSTEAD, ASIDE = range(3)
"""shown by all programs; shown instead of another part on request; shown only when opened"""


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
    """the visible text of a text part"""
    hidden: Text = b""
    """html: invisible text, and comments"""
    links: list[Text] = field(default_factory=list)
    images: list[Text] = field(default_factory=list)
    markup: bytes = b""
    """html: the names of its tags, each once, joined by blanks"""
    depth: int = 0


class Entity(NamedTuple):
    """A body with its fields: the message's own, of a part, or of a message inside."""

    buffer: bytes
    start: int
    end: int
    special: Special
    kind: MediaType
    depth: int = 0
    rank: int = SHOWN


@dataclass(slots=True)
class DecodedPart:
    """A part without its transfer encoding, before its text is read."""

    part: Part
    rank: int
    data: bytes = b""
    """of a text part"""
    source: Text = b""
    """of a text part: its characters, with the tags of html"""
    text: bool = True
    html: bool = False
    special: Special = field(default_factory=dict)
    """the fields of the part that determine how it is read, as they were written"""


@dataclass(slots=True)
class ReadingState:
    """The results of reading one message so far, and its remaining budgets."""

    marks: set[str]
    parts: list[Part] = field(default_factory=list)
    inner: list[tuple[bytes, Text]] = field(default_factory=list)
    inner_fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    """the same, as they were written"""
    leaves: list[Entity] = field(default_factory=list)
    decoded: list[DecodedPart] = field(default_factory=list)
    html_left: HtmlBudget = field(default_factory=HtmlBudget)
    steps: ParseBudget = field(default_factory=ParseBudget)
    entities: int = 0
    entities_left: int = limits.PART_HEADERS
    delimiters_left: int = limits.DELIMITERS
    scanned_left: int = limits.SCANNED_BYTES
    unpacked_left: int = limits.UNPACKED_BYTES
    rereadings: int = limits.REREADINGS


NO_HOSTS: Final = LocalHosts()
INNER_NAMES: Final = frozenset((b"subject", b"from", b"to", b"cc", b"reply-to", b"sender"))
MESSAGES: Final = frozenset(("message/rfc822", "message/global", "message/news", "message/partial"))
HTML_KINDS: Final = frozenset(
    ("text/html", "application/xhtml+xml", "text/x-amp-html", "text/enriched", "text/richtext")
)
UNTYPED: Final = frozenset(("application/octet-stream", "application/x-unknown-content-type"))
"""types for which programs use the file name"""
HTML_ENDINGS: Final = (".htm", ".html", ".shtml", ".xhtml")
TEXTS: Final = ("text/", "message/", "multipart/")

META = re.compile(rb"<meta\b[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
PART_LINE = re.compile(rb"(?:\A|\n)--([^\s-][^\n]{0,199})\n(?=content-|\n)", re.IGNORECASE)

MESSAGE: Final = MediaType("message/rfc822", {})


# -- finding the leaves --------------------------------------------------------------------------


def read_body(state: ReadingState, block: headers.Block, body: bytes) -> None:
    """Read the parts of a message from the fields of its block and its body."""
    kind = kind_of(block.special, state.marks, state.steps)
    if b"\r" in body and kind.name.startswith(("multipart/", "message/")):
        body = body.replace(b"\r", b"\n")
    found = Entity(body, 0, len(body), block.special, kind)
    if block.other or kind.boundaries or kind.name.startswith(("multipart/", "message/")):
        walk(state, _readings(state, found, block))
    else:
        state.leaves.append(found)
    read_leaves(state)


def walk(state: ReadingState, entities: list[Entity]) -> None:
    """Find the leaves of some entities, in order, in a loop: hostile mail nests without bound.

    It works on positions in one buffer, so nesting copies nothing.
    """
    stack = entities[::-1]
    while stack:
        entity = stack.pop()
        children = _children(state, entity)
        if children is None:
            state.leaves.append(entity)
        else:
            stack += children[::-1]


def _children(state: ReadingState, entity: Entity) -> list[Entity] | None:
    """The entities within an entity; None for a leaf."""
    name = entity.kind.name
    many = name.startswith("multipart/") or (not name and entity.kind.boundaries)
    if not many and name not in MESSAGES:
        return None
    if entity.depth >= limits.DEPTH:
        state.marks.update(("mime:depth", PARTLY))
        return None
    return multipart(state, entity) if many else _inner(state, entity)


def _readings(state: ReadingState, entity: Entity, block: headers.Block) -> list[Entity]:
    """An entity, and a second reading of it for programs that use the other fields."""
    if not block.other:
        return [entity]
    other = {
        name: value
        for name, value in block.other.items()
        if name.startswith(b"content-") and block.special.get(name) != value
    }
    if not other:
        return [entity]
    state.marks.add(PARTLY)
    if state.rereadings == 0:
        return [entity]
    state.rereadings -= 1
    special = block.special | other
    start = min(block.other_body if block.other_body >= 0 else entity.start, entity.end)
    kind = kind_of(special, state.marks, state.steps)
    return [entity, entity._replace(start=start, special=special, kind=kind)]


def multipart(state: ReadingState, entity: Entity) -> list[Entity] | None:
    """The parts of a multipart; None if it has none."""
    found = delimiters(state, entity)
    if not found:
        return _encoded_multipart(state, entity)
    if not found[-1][2]:
        state.marks.add("boundary:unclosed")
    spans = [
        (start, max(start, found[i + 1][0] - 1) if i + 1 < len(found) else entity.end)
        for i, (_, start, closes) in enumerate(found)
        if not closes
    ]
    default = MESSAGE if entity.kind.name == "multipart/digest" else NO_KIND
    parts: list[Entity] = []
    for start, end in _select_parts(state, entity.buffer, spans):
        parts += _part(state, entity, (start, end), default)
    if entity.kind.name == "multipart/alternative":
        return _alternatives(parts)
    return parts


def _part(
    state: ReadingState, entity: Entity, span: tuple[int, int], default: MediaType
) -> list[Entity]:
    state.entities += 1
    block, body = headers.split(entity.buffer, span, NO_HOSTS, state.marks)
    kind = kind_of(block.special, state.marks, state.steps)
    end = max(body, span[1])
    part = entity._replace(
        start=body, end=end, special=block.special, kind=kind if kind.name else default,
        depth=entity.depth + 1,
    )  # fmt: skip
    return _readings(state, part, block)


def _alternatives(parts: list[Entity]) -> list[Entity]:
    """Rank alternatives: programs show the last one that they can, html if there is any."""
    texts = [i for i, part in enumerate(parts) if not part.kind.name or _may_show(part.kind.name)]
    last = texts[-1] if texts else -1
    return [
        part
        if i == last or not part.kind.name.startswith("text/") or part.kind.name in HTML_KINDS
        else part._replace(rank=max(part.rank, INSTEAD))
        for i, part in enumerate(parts)
    ]


def _may_show(name: str) -> bool:
    return name.startswith(TEXTS) or name in HTML_KINDS


def _encoded_multipart(state: ReadingState, entity: Entity) -> list[Entity] | None:
    """Look for parts below a transfer encoding, or for an undeclared boundary."""
    buffer, start, end, special, *_ = entity
    encoding = encoding_of(special, state.marks, state.steps)
    if encoding in {"base64", "quoted-printable"} and end - start <= state.unpacked_left:
        state.unpacked_left -= end - start
        data = decode_transfer(buffer[start:end], encoding, state.marks).replace(b"\r\n", b"\n")
        bare = {name: value for name, value in special.items() if b"encoding" not in name}
        return [entity._replace(buffer=data, start=0, end=len(data), special=bare)]
    state.marks.add("boundary:missing")
    line = PART_LINE.search(buffer, start, min(end, start + limits.HEADER_BYTES))
    if line is None or line[1].rstrip() in entity.kind.boundaries:
        return None
    state.marks.add(PARTLY)
    kind = entity.kind._replace(boundaries=(line[1].rstrip(),))
    return [entity._replace(start=max(start, line.start()), kind=kind)]


def _select_parts(
    state: ReadingState, buffer: bytes, spans: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The parts to read, in order: the largest of those that are not empty."""
    if len(spans) > limits.CROWD:
        state.marks.add("mime:parts")
        spans = [span for span in spans if not _is_blank(buffer, span)]
    most = max(limits.LEAST_PART_HEADERS, state.entities_left // 2)
    most = min(most, limits.MOST_PART_HEADERS - state.entities)
    if len(spans) > most:
        state.marks.update(("mime:parts", PARTLY))
        spans = sorted(sorted(spans, key=lambda span: span[0] - span[1])[: max(most, 0)])
    state.entities_left -= min(len(spans), state.entities_left)
    return spans


def _is_blank(buffer: bytes, span: tuple[int, int]) -> bool:
    """Whether a part, or the body below its header, is blank."""
    text = buffer[slice(*span)]
    if text.startswith(b"\n") or not text.strip():
        return not text.strip()
    if len(text) > limits.LINE_BYTES:
        return False
    return not text.partition(b"\n\n")[2].strip() and b":" in text.partition(b"\n")[0]


def delimiters(state: ReadingState, entity: Entity) -> list[tuple[int, int, bool]]:
    """Find boundary lines: (start of the line, start of the next line, whether it closes).

    Includes all readings of the boundary; of the closing lines, only one at the end of the list is
    kept. A reading whose first line closes is ignored.
    """
    most = max(limits.LEAST_DELIMITERS, state.delimiters_left // 2)
    found: dict[int, tuple[int, int, bool]] = {}
    for boundary in entity.kind.boundaries:
        state.scanned_left -= entity.end - entity.start
        if state.scanned_left < 0:
            state.marks.update(("mime:depth", PARTLY))
            break
        lines = _boundary_lines(state, entity, b"--" + boundary, most)
        if lines and not lines[0][2]:
            found |= {line[0]: line for line in lines}
    out = [found[at] for at in sorted(found)]
    return [line for i, line in enumerate(out) if not line[2] or i == len(out) - 1]


def _boundary_lines(
    state: ReadingState, entity: Entity, mark: bytes, most: int
) -> list[tuple[int, int, bool]]:
    """The lines of one boundary: the first ones, and the last ones if there are too many.

    A line that only starts like the boundary does not count (RFC 2046 5.1.1): inner boundaries may
    extend outer ones.
    """
    buffer, span = entity.buffer, (entity.start, entity.end)
    out = []
    spent = 0
    for spent, at in enumerate(_forwards(buffer, mark, span)):
        if spent >= most:
            state.marks.update(("mime:parts", PARTLY))
            tail = _backwards(buffer, mark, (at, entity.end))
            later = (_delimiter(buffer, mark, where, span) for where in tail)
            out += sorted(line for line in later if line is not None)
            break
        line = _delimiter(buffer, mark, at, span)
        if line is not None:
            out.append(line)
            if line[2]:
                _mark_later_parts(state, entity, mark, line[1])
                break
    state.delimiters_left -= min(spent, state.delimiters_left)
    return out


def _mark_later_parts(state: ReadingState, entity: Entity, mark: bytes, start: int) -> None:
    """Mark parts after the end of a multipart: most programs show none of them."""
    span = (start, entity.end)
    at = next(_forwards(entity.buffer, mark, span), -1)
    if at >= 0 and _delimiter(entity.buffer, mark, at, span) is not None:
        state.marks.update(("boundary:again", PARTLY))


def _forwards(buffer: bytes, mark: bytes, span: tuple[int, int]) -> Iterator[int]:
    at, end = span
    if buffer.startswith(mark, at, end):
        yield at
    while (at := buffer.find(b"\n" + mark, at, end)) >= 0:
        at += 1
        yield at


def _backwards(buffer: bytes, mark: bytes, span: tuple[int, int]) -> Iterator[int]:
    start, end = span
    for _ in range(limits.LEAST_DELIMITERS):
        end = buffer.rfind(b"\n" + mark, start, end)
        if end < 0:
            return
        yield end + 1


def _delimiter(
    buffer: bytes, mark: bytes, at: int, span: tuple[int, int]
) -> tuple[int, int, bool] | None:
    """Read one line that starts like a boundary line."""
    end = span[1]
    stop = buffer.find(b"\n", at, end)
    stop = end if stop < 0 else stop
    tail = buffer[at + len(mark) : min(stop, at + len(mark) + 80)].rstrip()
    return (at, min(stop + 1, end), bool(tail)) if tail in {b"", b"--"} else None


def _inner(state: ReadingState, entity: Entity) -> list[Entity] | None:
    """Open an inner message: its headers become inner ones, its parts those of the message."""
    buffer, start, end, special, *_ = entity
    encoding = encoding_of(special, state.marks, state.steps)
    if encoding in {"base64", "quoted-printable"}:
        state.unpacked_left -= end - start
        if state.unpacked_left < 0:
            state.marks.update(("mime:depth", PARTLY))
            return None
        buffer = decode_transfer(buffer[start:end], encoding, state.marks).replace(b"\r\n", b"\n")
        start, end = 0, len(buffer)
    block, body = headers.split(buffer, (start, end), NO_HOSTS, state.marks)
    wanted = [
        (name, value)
        for name, value in block.fields
        if name in INNER_NAMES or name.startswith(b"content-")
    ]
    if len(state.inner) < limits.INNER_FIELDS:
        for name, value in headers.features(headers.Block(fields=wanted), state.marks):
            state.inner.append((b"inner-" + name, value))
        state.inner_fields += [(b"inner-" + name, value) for name, value in wanted]
    else:
        state.marks.add("header:huge")
    kind = kind_of(block.special, state.marks, state.steps)
    children = Entity(buffer, body, end, block.special, kind, entity.depth + 1, entity.rank)
    return _readings(state, children, block)


# -- reading the leaves --------------------------------------------------------------------------


def read_leaves(state: ReadingState) -> None:
    """Read the leaves that were found.

    All leaves are found before the first is read, so no part takes the share of another; visible
    parts come first, and unread ones leave the mark `PARTLY`.
    """
    found = state.leaves
    if len(found) > limits.PARTS:
        found = _select_leaves(state)
    leaves: list[DecodedPart] = []
    for entity in found:
        leaves += _decode_part(state, entity)
    state.decoded, state.parts = leaves, [leaf.part for leaf in leaves]
    texts = [leaf for leaf in leaves if leaf.text]
    if sum(len(leaf.data) for leaf in texts) > limits.TEXT_BYTES:
        _limit_text(state, texts)
    for leaf in _reading_order(texts):
        _read_text(state, leaf)


def _select_leaves(state: ReadingState) -> list[Entity]:
    """Choose among too many leaves: visible ones, then the largest; they stay in order."""
    state.marks.update(("mime:parts", PARTLY))
    order = sorted(
        range(len(state.leaves)),
        key=lambda i: (state.leaves[i].rank, state.leaves[i].start - state.leaves[i].end),
    )
    return [state.leaves[i] for i in sorted(order[: limits.PARTS])]


def _decode_part(state: ReadingState, entity: Entity) -> list[DecodedPart]:
    """Decode the transfer encoding of a part; files within its text become extra parts."""
    marks, kind, special = state.marks, entity.kind, entity.special
    raw = entity.buffer[entity.start : entity.end]
    encoding = encoding_of(special, marks, state.steps)
    part = Part(kind.name, encoding=encoding, depth=entity.depth)
    delsp = False
    if b"content-disposition" in special or kind.params:
        part.disposition, part.name = disposition_of(special, kind, marks, state.steps)
        part.charset = kind.param("charset").lower()[:40]
        delsp = kind.param("delsp").lower() == "yes"
    data = raw if encoding in {"7bit", ""} else decode_transfer(raw, encoding, marks)
    part.size = len(data)
    aside = part.disposition == "attachment" and entity.depth > 0
    leaf = DecodedPart(part, ASIDE if aside else entity.rank, special=special)
    if kind.name and not kind.name.startswith(TEXTS):
        part.digest = blake2b(data, digest_size=8).digest()
        part.head = data[:8]
        leaf.text = leaf.html = not aside and _shown_as_html(part)
        leaf.data = data if leaf.html else b""
        return [leaf]
    leaf.html = part.kind in HTML_KINDS or (part.kind == "" and _looks_html(data))
    leaf.data = unfold_text(data, kind.name, delsp=delsp)
    if leaf.html or b"begin " not in data:
        return [leaf]
    return [leaf, *_embedded_files(state, leaf)]


def _shown_as_html(part: Part) -> bool:
    if part.kind in HTML_KINDS:
        return True
    name = part.name if isinstance(part.name, str) else part.name.decode("latin-1")
    return part.kind in UNTYPED and name.lower().endswith(HTML_ENDINGS)


def _embedded_files(state: ReadingState, leaf: DecodedPart) -> list[DecodedPart]:
    """Read the first uuencoded or yEnc html page or text in a text, as old programs show it."""
    for pattern, encoding in ((UU_BEGIN, "uuencode"), (Y_BEGIN, "yenc")):
        found = pattern.search(leaf.data)
        if found is None:
            continue
        state.marks.add("text:" + encoding)
        ending = found[1].strip().rpartition(b".")[2].lower()
        if ending in {b"htm", b"html", b"txt"}:
            data = decode_transfer(leaf.data[found.start() :], encoding, state.marks)
            kind = "text/plain" if ending == b"txt" else "text/html"
            part = Part(kind, encoding=encoding, size=len(data), depth=leaf.part.depth + 1)
            return [DecodedPart(part, leaf.rank, data, html=kind == "text/html")]
    return []


def _limit_text(state: ReadingState, leaves: Sequence[DecodedPart]) -> None:
    """Share the limit on text between the parts."""
    state.marks.add("text:huge")
    each = limits.TEXT_BYTES // len(leaves)
    for leaf in leaves:
        if len(leaf.data) > each:
            leaf.data = squeeze(leaf.data, html=leaf.html)
    shares = text_shares([(leaf.rank, len(leaf.data)) for leaf in leaves])
    for leaf, share in zip(leaves, shares, strict=True):
        if share < len(leaf.data):
            leaf.data = both_ends(leaf.data, share)
            if leaf.rank < ASIDE:
                state.marks.add(PARTLY)


def _reading_order(leaves: Sequence[DecodedPart]) -> Sequence[DecodedPart]:
    """The order in which parts use the html budget: small ones before large ones."""
    pages = [leaf for leaf in leaves if leaf.html]
    if len(pages) < 2:
        return leaves
    few = len(pages) <= limits.HTML_PARTS
    if few and sum(leaf.data.count(b"<") for leaf in pages) <= limits.HTML_TAGS:
        return leaves
    return sorted(leaves, key=lambda leaf: (leaf.rank, leaf.data.count(b"<")))


def _read_text(state: ReadingState, leaf: DecodedPart) -> None:
    marks, part, data = state.marks, leaf.part, leaf.data
    if b"\0" in data:
        marks.add("text:nul")
    charset = part.charset
    if leaf.html and not charset and not data.isascii():
        found = META.search(data[:1024])
        charset = found[1].decode("ascii") if found else ""
        if is_wide(charset):
            charset = ""  # the declaration itself was read as ASCII: browsers ignore it
    text = to_text(data, charset, marks, "text")
    if b"\0" in data:
        text = _without_nul(text, html=leaf.html)
    leaf.source = text
    if not leaf.html:
        part.text = clean_text(text, marks)
        return
    page = read_html(text, state.html_left, marks)
    part.text, part.hidden = clean_text(page.text, marks), page.hidden
    part.links, part.images, part.markup = page.links, page.images, page.markup


_MARKUP: Final = re.compile(r"<style[^<>]*+>?[^<]*+|<[/a-z][^<>]*+", re.IGNORECASE)


def _without_nul(text: Text, *, html: bool) -> Text:
    """A text without NUL. Within tags and style sheets it becomes a letter.

    Browsers drop NUL between tags. In names of elements and properties they read U+FFFD, so these
    are unknown names, which hide nothing.
    """
    found = text if isinstance(text, str) else text.decode("latin-1")
    if html:
        found = _MARKUP.sub(lambda part: part[0].replace("\0", "x"), found)
    found = found.replace("\0", "")
    return found if isinstance(text, str) else found.encode("latin-1")


def _looks_html(data: bytes) -> bool:
    return data[:64].lstrip()[:14].lower().startswith((b"<html", b"<!doctype html"))


Carrier = Literal["message", "headers", "report"]

KINDS: Final[dict[str, Carrier]] = {
    "message/rfc822": "message",
    "message/global": "message",
    "text/rfc822-headers": "headers",
    "text/rfc822-header": "headers",
    "message/feedback-report": "report",
}
"""RFC 2046 and 6532, RFC 6522, RFC 5965"""
FILE_ENDING: Final = ".eml"
"""the name that Outlook and web mailers give to a message attached as an untyped file"""


class AttachedMessage(NamedTuple):
    """A part that holds a message, the header of a message, or a machine's report on one."""

    carrier: Carrier
    raw: bytes
    """decoded; LF line ends if it was not encoded"""


class OpenedMessage(NamedTuple):
    """The type of a message, and its attached messages."""

    kind: str
    """its Content-Type"""
    report_type: str
    attached: list[AttachedMessage]


def open_message(raw: bytes) -> OpenedMessage:
    """Find the attached messages of a message.

    Reading for features decodes and cuts; here the bytes of an attached message stay as they were,
    so that its digest is the one it had when it was scored. Pure; must not know what the messages
    are used for.

    Invariants: attached messages are not opened (their attachments do not count); nesting,
    delimiters and parts are bounded; nothing raises; all decoded bytes together are at most as many
    as the message has.
    """
    buffer = raw.replace(b"\r\n", b"\n")
    state = ReadingState(set())
    block, body = headers.split(buffer, (0, len(buffer)), NO_HOSTS, state.marks)
    kind = content.kind_of(block.special, state.marks, state.steps)
    entity = Entity(buffer, body, len(buffer), block.special, kind)
    found = list(_walk(state, entity))
    return OpenedMessage(kind.name, kind.param("report-type").lower(), found)


def _walk(state: ReadingState, whole: Entity) -> Iterator[AttachedMessage]:
    stack = [whole]
    while stack:
        entity = stack.pop()
        kind = entity.kind
        if kind.name.startswith("multipart/") and entity.depth < limits.DEPTH:
            stack += (multipart(state, entity) or [])[::-1]
            continue
        _, name = content.disposition_of(entity.special, kind, state.marks, state.steps)
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        named = text.lower().endswith(FILE_ENDING) and entity.depth > 0
        carrier = KINDS.get(kind.name) or ("message" if named else None)
        if carrier is not None:
            encoding = content.encoding_of(entity.special, state.marks, state.steps)
            data = entity.buffer[entity.start : entity.end]
            yield AttachedMessage(carrier, content.decode_transfer(data, encoding, state.marks))
