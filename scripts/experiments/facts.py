"""Numbers and categories of a message that no word tells: what the experiments on facts read.

Thirty facts: how much there is of what (sizes, counts), shares of sorts of characters, and when and
how it was sent. A fact that cannot be told is None.
"""

from __future__ import annotations

import re
import zlib
from math import log1p

from lab import folder

from spamnb.core.mail.message import canonical, read

DATE = re.compile(
    rb"(?:(\w{3}),)?\s*\d{1,2}\s+\w{3}\s+\d{2,4}\s+(\d{1,2}):(\d\d)(?::\d\d)?\s*([+-]\d{4})?"
)
WORD = re.compile(rb"[^\W\d_]+")
SHARES = {
    "capitals": re.compile(rb"[A-Z]"),
    "digits": re.compile(rb"[0-9]"),
    "spaces": re.compile(rb"[ \t]"),
    "lines": re.compile(rb"\n"),
    "marks": re.compile(rb"[!?]"),
    "money": re.compile(rb"[$%]"),
    "signs": re.compile(rb"[-_=*#<>|~+]"),
    "high": re.compile(rb"[\x80-\xff]"),
    "quotes": re.compile(rb"^>", re.MULTILINE),
}
NUMBERS = (
    "size", "text", "headers", "hops", "parts", "links", "images", "hidden", "markup", "people",
    "subject", "subject-capitals", "subject-digits", "word-length", "longest-line", "squeezed",
    "different-words", "header-share", *SHARES,
)  # fmt: skip
CATEGORIES = ("day", "hour", "zone", "kind", "charset", "encoding")


def facts(raw: bytes) -> tuple[list[float | None], list[str | None]]:
    message = read(raw)
    text = b"\n".join(_bytes(part.text) for part in message.parts)[:65536]
    first: dict[bytes, bytes] = {}
    for name, value in message.headers:
        first.setdefault(name, _bytes(value))
    words = WORD.findall(text)
    subject = first.get(b"subject", b"")
    size = len(canonical(raw))
    head = sum(len(name) + len(_bytes(value)) + 3 for name, value in message.headers)
    parts = message.parts
    numbers = [
        log1p(size),
        log1p(len(text)),
        log1p(len(message.headers)),
        log1p(sum(name == b"received" for name, _ in message.headers)),
        log1p(len(parts)),
        log1p(sum(len(part.links) for part in parts)),
        log1p(sum(len(part.images) for part in parts)),
        log1p(sum(len(part.hidden) for part in parts)),
        log1p(sum(len(part.markup) for part in parts)),
        log1p(sum(first.get(name, b"").count(b"@") for name in (b"to", b"cc"))),
        log1p(len(subject)),
        _share(rb"[A-Z]", subject),
        _share(rb"[0-9]", subject),
        sum(map(len, words)) / len(words) if words else None,
        log1p(max(map(len, text.split(b"\n")), default=0)),
        len(zlib.compress(text, 1)) / len(text) if len(text) > 50 else None,
        len(set(words)) / len(words) ** 0.8 if len(words) > 20 else None,
        head / max(size, 1),
        *(len(pattern.findall(text)) / len(text) if text else None for pattern in SHARES.values()),
    ]
    when = DATE.search(first.get(b"date", b""))
    categories = [
        when[1].decode() if when and when[1] else None,
        when[2].decode().zfill(2) if when else None,
        when[4].decode() if when and when[4] else None,
        parts[0].kind if parts else None,
        parts[0].charset if parts else None,
        parts[0].encoding if parts else None,
    ]
    return numbers, categories


def of_corpus(where=None) -> tuple[list[list[float | None]], list[list[str | None]]]:
    """The facts of the messages that `lab.corpus` reads, in its order."""
    files = sorted((where or folder()).glob("*/*"), key=lambda f: (f.name, f.parent.name))
    read_facts = [facts(f.read_bytes()) for f in files]
    return [numbers for numbers, _ in read_facts], [named for _, named in read_facts]


def _bytes(text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")


def _share(pattern: bytes, text: bytes) -> float | None:
    return len(re.findall(pattern, text)) / len(text) if text else None
