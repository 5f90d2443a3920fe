"""What users read of a feature: its place and its text, with a sentence for each code of a shape.

Must not know the model.
"""

from __future__ import annotations

from itertools import product

from spamnb.core.features.header_shapes import order_shown
from spamnb.core.features.tokens import TokenLocation

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
_COUNTED = {
    b"length": "local part of {} bytes",
    b"words": "display name of {} words",
    b"top": "top-level domain {}",
    b"dots": "link host with {} dots",
    b"sites": "{} linked domains",
    b"quotes": "quoted lines, step {}",
    b"lines": "lines, step {}",
    b"caps": "capitals {}0 %",
    b"!": "exclamation marks {}",
    b"$": "dollar signs {}",
    b"<": "angle brackets, step {}",
    b"empty": "blank lines {}0 %",
    b"ragged": "trailing blanks, step {}",
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


def place_shown(location: TokenLocation) -> str:
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
    if location not in _CODED:
        return shown
    code, _, number = text.partition(b" ")
    if code in _COUNTED and number:
        return _COUNTED[code].format(number.decode("utf-8", "replace"))
    return _FACTS.get(text, shown)
