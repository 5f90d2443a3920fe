"""The text that users read for a feature: location and token, and a sentence for each code.

Must not know the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from math import isqrt

from spamnb.core.features.locations import TokenLocation
from spamnb.core.features.shapes import order_shown
from spamnb.core.features.tokens import EXPECTED_HEADERS, mark_of, missing_mark
from spamnb.core.mail.marks import PARTLY

_COMPARED = {
    b"helo": "HELO {} sender domain",
    b"rdns": "reverse DNS {} sender domain",
    b"first": "first hop {} sender domain",
    b"reply": "Reply-To domain {} sender domain",
    b"client": "HELO of the first hop {} its reverse DNS",
    b"link": "link domain {} sender domain",
    b"link1": "first link domain {} sender domain",
    b"links": "commonest link domain {} sender domain",
    b"to": "recipient domain {} sender domain",
    b"hop": "HELO {} reverse DNS",
}
_SOUGHT = {
    b"name-d": "display name {} domain",
    b"name-l": "display name {} local part",
    b"name-s": "display name {} subject",
    b"name-t": "display name {} text",
    b"domain": "sender domain {} subject",
    b"rcpt": "recipient {} text",
    b"id-hop": "Message-ID domain {} hops",
    b"url-hop": "commonest link domain {} hops",
}


def _number(step: int) -> str:
    return str(step)


def _doubling(step: int) -> str:
    """The numbers of one step in which each step is twice as wide as the one before."""
    return str(step) if step < 3 else f"{(1 << step - 2) + 1} to {1 << step - 1}"


def _counted_from_one(step: int) -> str:
    """The numbers that have `step` bits when 1 is added."""
    first, last = (1 << step - 1) - 1, (1 << step) - 2
    return str(first) if first == last else f"{first} to {last}"


def _length(step: int) -> str:
    """The numbers that have a square of `step` bits."""
    return f"{isqrt((1 << step - 1) - 1) + 1} to {isqrt((1 << step) - 1)}" if step else "0"


def _percent(tenths: int) -> str:
    return f"{10 * tenths} to {10 * tenths + 9} %"


def _up_to(last: int, width: int = 1) -> Callable[[int], str]:
    """Steps of `width` numbers; the step `last` stands for all above."""

    def shown(step: int) -> str:
        first = step * width
        if step >= last:
            return f"{first} or more"
        return str(first) if width == 1 else f"{first} to {first + width - 1}"

    return shown


_COUNTED: dict[bytes, tuple[str, Callable[[int], str]]] = {
    b"length": ("bytes in local part", _number),
    b"words": ("words in display name", _number),
    b"dots": ("dots in link host", _number),
    b"sites": ("linked domains", _up_to(9)),
    b"quotes": ("quoted lines", _up_to(5, 3)),
    b"lines": ("lines", _counted_from_one),
    b"caps": ("capitals", _percent),
    b"!": ("exclamation marks", _up_to(8)),
    b"$": ("dollar signs", _up_to(6)),
    b"<": ("signs <", _counted_from_one),
    b"empty": ("blank lines", _percent),
    b"ragged": ("lines with trailing blanks", _counted_from_one),
}
_MARKS: dict[bytes, tuple[str, Callable[[int], str]]] = {
    b"hops": ("Received lines", _doubling),
    b"text": ("characters of text", _doubling),
    b"parts": ("parts", _doubling),
    b"links": ("links in html", _doubling),
    b"images": ("images in html", _doubling),
    b"hidden": ("characters of hidden text", _doubling),
    b"line": ("characters of the longest line", _length),
    b"to": ("addresses in To", _doubling),
}
_ODDITIES = {
    "charset:unknown": "unknown charset",
    "charset:wrong": "text does not fit its charset",
    "charset:undeclared-8bit": "bytes above 127 without a charset",
    "text:zero-width": "invisible characters in a word",
    "text:bidi": "characters that turn the direction of text",
    "text:mixed-script": "words of mixed scripts",
    "text:styled-letters": "letters that imitate others",
    "text:bare-cr": "CR without LF in the text",
    "header:many": "too many headers",
    "header:none": "no header",
    "header:junk": "a line in the header that is no header",
    "header:broken-word": "broken encoded word in the header",
    "header:many-words": "too many encoded words in the header",
    "header:8bit": "bytes above 127 in the header",
    "header:huge": "header too large",
    "header:long": "header too long",
    "header:bare-cr": "CR without LF in the header",
    "html:torn-quotes": "html with a quote that does not end",
    "html:stripped": "html that is no tree",
    "html:base": "html with a base address",
    "html:huge": "html too large",
    "html:hidden": "hidden text in html",
    "url:text-differs": "link text names another host than the link",
    "url:data-image": "image inside html",
    "text:huge": "text too large",
    "text:nul": "NUL bytes in the text",
    "boundary:again": "parts after the end of a multipart",
    "boundary:missing": "multipart without its boundary",
    "boundary:unclosed": "multipart without an end",
    "encoding:unknown": "unknown transfer encoding",
    "qp:broken": "malformed quoted-printable",
    "uuencode:broken": "malformed uuencode",
    "param:double": "a MIME parameter twice",
    "param:many": "too many MIME parameters",
    "mime:bad-type": "malformed Content-Type",
    "mime:depth": "parts nested too deeply",
    "mime:parts": "too many parts",
    "subject:shouts": "subject in capitals",
    PARTLY: "message read only in part",
}
_PLACES = ("HELO", "reverse DNS", "Message-ID")
_FACTS = {
    code + sign: sentence.format(word)
    for table, words in ((_COMPARED, ("differs from", "=")), (_SOUGHT, ("not in", "in")))
    for code, sentence in table.items()
    for sign, word in zip((b"!", b"="), words, strict=True)
}
_FACTS |= {
    b"in %d%d%d" % here: "sender domain in "
    + (", ".join(place for place, true in zip(_PLACES, here, strict=True) if true) or "no hop")
    for here in product((False, True), repeat=3)
}
_FACTS |= {
    b"no reply": "no Reply-To",
    b"no rDNS": "client without reverse DNS",
    b"no IP": "client without address",
    b"no links": "no links",
    b"own": "link domain = sender domain",
    b"foreign": "all link domains differ from sender domain",
    b"address": "link to an IP address",
}
_CODED = frozenset(
    {
        *(TokenLocation.ID_SHAPE, TokenLocation.FROM_SHAPE, TokenLocation.HOP),
        *(TokenLocation.AGREEMENT, TokenLocation.SENDER, TokenLocation.LINK_SHAPE),
        TokenLocation.STYLE,
    }
)


_SENTENCES = {mark_of(oddity).encode(): sentence for oddity, sentence in _ODDITIES.items()} | {
    missing_mark(name).encode(): f"no {shown}" for name, shown in EXPECTED_HEADERS.items()
}

_NAMING = {"header-double": "more than one header {}", "url-": "link of the scheme {}"}


NOT_STORED = "text not stored"
_KINDS: dict[str, tuple[TokenLocation, ...]] = {
    "words": (TokenLocation.BODY, TokenLocation.SUBJECT, TokenLocation.WORD,
        TokenLocation.GREETING),
    "links": (TokenLocation.URL, TokenLocation.LINK_SHAPE),
    "sender and recipient": (TokenLocation.FROM, TokenLocation.REPLY, TokenLocation.TO,
        TokenLocation.FROM_SHAPE, TokenLocation.SENDER, TokenLocation.ADDRESS_PART),
    "route and authentication": (TokenLocation.RECEIVED, TokenLocation.HOP, TokenLocation.AUTH,
        TokenLocation.RECEIVED_SHAPE, TokenLocation.AGREEMENT),
    "form of the header": (TokenLocation.ID, TokenLocation.HEADER, TokenLocation.HEADER_ORDER,
        TokenLocation.ID_SHAPE, TokenLocation.INNER),
    "form of the text": (TokenLocation.STYLE, TokenLocation.MARKUP),
    "hidden text": (TokenLocation.HIDDEN,),
    "parts and attachments": (TokenLocation.CONTENT, TokenLocation.PART, TokenLocation.FILE,
        TokenLocation.DIGEST),
    "oddities and counts": (TokenLocation.MARK,),
    "this message itself": (TokenLocation.SELF,),
}  # fmt: skip
_HEX = re.compile(r"[0-9a-f]{16,}")


def kind_shown(location: str, token: str) -> str:
    """The kind of a clue, for sums, by the name of its location."""
    if token_shown(location, token) == NOT_STORED:
        return NOT_STORED
    return _KIND_OF[location]


def token_shown(location: str, token: str) -> str:
    """The text of a clue for people: a sentence in place of a number that tells them nothing."""
    if location == location_shown(TokenLocation.SELF):
        return "labels of this message"
    if _HEX.match(token) is None:
        return token
    if location == location_shown(TokenLocation.DIGEST):
        return "an attachment that was seen before"
    return NOT_STORED if location == location_shown(TokenLocation.MARK) else token


def location_shown(location: TokenLocation) -> str:
    """The name of a location."""
    return location.name.lower().replace("_", " ")


def text_shown(location: TokenLocation, text: bytes) -> str:
    """The text of a feature as users read it."""
    if location is TokenLocation.HEADER_ORDER:
        kind, colon, rest = text.rpartition(b":")
        prefix = "all: " if colon and kind == b"all" else ""
        return prefix + order_shown(rest).decode("utf-8", "replace")
    shown = text.decode("utf-8", "replace")
    if location is TokenLocation.ADDRESS_PART:
        return f'"{shown}"'
    if location is TokenLocation.MARKUP:
        return f"<{shown}>"
    if location is TokenLocation.MARK:
        return _count_shown(_MARKS, *text.rsplit(b"-", 1)) or _mark_shown(text, shown)
    if location not in _CODED:
        return shown
    if text.startswith(b"top "):
        return f"top-level domain {shown[4:]}"
    return _count_shown(_COUNTED, *text.split(b" ", 1)) or _FACTS.get(text, shown)


def _mark_shown(text: bytes, shown: str) -> str:
    if sentence := _SENTENCES.get(text):
        return sentence
    for prefix, sentence in _NAMING.items():
        if shown.startswith(prefix):
            return sentence.format(shown.removeprefix(prefix))
    return shown


def _count_shown(
    table: dict[bytes, tuple[str, Callable[[int], str]]], code: bytes, step: bytes = b""
) -> str:
    """A counted fact with its range of numbers, or nothing where `table` has no such code."""
    sentence, numbers = table.get(code, ("", _number))
    return f"{sentence}: {numbers(int(step))}" if sentence and step.isdigit() else ""


_KIND_OF = {location_shown(one): kind for kind, every in _KINDS.items() for one in every}
