"""Read HTML: the visible text, the hidden text, the link targets, and the tag names.

Holds the guard before the parser; what is hidden is found by `visibility`.

Invariants: nothing reaches Lexbor before its size, tags, attributes and elements that multiply are
bounded; only elements matched by a selector in C are touched from Python (walking all of them
costs more than everything else in a message). Nothing raises; HTML beyond these bounds is read
by removing the tags, and marked "html:stripped".
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from selectolax.lexbor import LexborHTMLParser

from spamnb.mail import limits
from spamnb.mail.charset import Text, compact_text
from spamnb.mail.content import both_ends
from spamnb.mail.limits import PARTLY
from spamnb.mail.visibility import Page, style_sheets

FAST: Final = 1
"""LexborDocumentOptions.WO_EVENTS: no mirroring of <option> into <selectedcontent>, which copies
without end. It is also a tenth faster"""

# Two properties of `re`, measured: [^<>] compares each byte twice, while three ranges become a
# table (a quarter of the time of TAG), and many alternatives are faster if their first letters are
# tested first (a lookahead saves a seventh of the time of OPENING, groups a third of that of
# BLOCK).
TAG = re.compile(rb"<[/a-zA-Z][\0-;=?-\xff]*+>")
OPENED = re.compile(rb"<([a-zA-Z][a-zA-Z0-9]{0,15}+)[\0-;=?-\xff]*+>")
BLOCKS: Final = (
    b"br p div td th tr li h1 h2 h3 h4 h5 h6 table ol ul dd dl dt hr center blockquote option pre"
    b" img section article header footer nav aside main figure figcaption address form fieldset"
    b" legend dir menu details summary dialog hgroup search caption textarea button select listing"
    b" xmp plaintext marquee tspan text rt rp"
).split()
"""elements that begin a new line or cell: their tags separate words"""


def _any_of(names: Iterable[bytes]) -> bytes:
    """A pattern for these names. Those with one first letter are tried together."""
    letters: dict[bytes, list[bytes]] = {}
    for name in names:
        letters.setdefault(name[:1], []).append(name[1:])
    groups = (first + b"(?:" + b"|".join(rest) + b")" for first, rest in letters.items())
    return b"(?:" + b"|".join(groups) + b")"


BLOCK = re.compile(rb"<(?<!\s<)(?=/?+" + _any_of(BLOCKS) + rb"\b)", re.IGNORECASE)
_MULTIPLYING: Final = (
    rb"(?=[abcefhinstu])"
    rb"(?=(?:a|b(?:ig|ody)?|code|em|font|html|i|nobr|s(?:mall|trike|trong)?|tt|u)(?:[\s/>]|\Z))"
)
OPENING = re.compile(rb"<" + _MULTIPLYING, re.IGNORECASE)
CLOSING = re.compile(rb"</" + _MULTIPLYING, re.IGNORECASE)
TORN = re.compile(rb"""=\s*+(?:"[\0-!#-=?-\xff]*+>|'[\0-&(-=?-\xff]*+>)""")
QUOTED = re.compile(rb"""=\s*+(?:"[^">]*+>[^"]*+"|'[^'>]*+>[^']*+')""")
CONDITION = re.compile(rb"\A\[if[^\]>]{0,200}\]>|<!\[endif\]")
OPENS = re.compile(rb"<[a-zA-Z]")
GAPS = re.compile(rb"[\s/\"']++")
ADDRESS = re.compile(rb"\bhref\s{0,3}=\s{0,3}[\"']?([^\"'\s>]{1,2048})", re.IGNORECASE)
_NO_TEXT: Final = frozenset(("script", "style", "title"))
UNSEEN: Final = _NO_TEXT | {"noembed", "noframes", "iframe"}
"""elements with content that is not visible text"""
WANTED: Final = "[href],[src],[background],form," + ",".join(sorted(_NO_TEXT))

HOST = re.compile(
    r"(?:https?://|www\.)?((?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,24})(?=$|[/:?#\s])", re.IGNORECASE
)
TARGET = re.compile(r"\s*(?:https?:)?//(?:[^/?#@\\]*@)?([^/?#:\\\s]{1,255})", re.IGNORECASE)


@dataclass(slots=True)
class HtmlText:
    """The result of reading one html part."""

    text: Text = b""
    hidden: Text = b""
    links: list[Text] = field(default_factory=list)
    images: list[Text] = field(default_factory=list)
    markup: bytes = b""


@dataclass(slots=True)
class HtmlBudget:
    """The remaining work that the html parts of one message may cause."""

    parts: int = limits.HTML_PARTS
    tags: int = limits.HTML_TAGS
    unchecked: int = limits.HTML_UNCHECKED


def _comments(raw: bytes) -> list[bytes]:
    return [piece.partition(b"-->")[0] for piece in raw.split(b"<!--", 1000)[1:]]


def _uncommented(raw: bytes) -> bytes:
    """The page without comments; an unclosed comment before another one counts as text."""
    first, *others = raw.split(b"<!--")
    return first + b"".join([other.partition(b"-->")[2] or other for other in others])


def _shown_by_outlook(comments: list[bytes]) -> str:
    """The text within conditional comments, which only Outlook shows."""
    inside = [CONDITION.sub(b"", comment) for comment in comments if comment.startswith(b"[if")]
    text = b"".join([b" " + TAG.sub(b"", BLOCK.sub(b" <", one)) for one in inside])
    return html.unescape(text[: limits.HIDDEN_BYTES].decode("utf-8", "replace"))


def _markup(raw: bytes) -> bytes:
    return b" ".join(dict.fromkeys(OPENED.findall(raw, 0, limits.MARKUP_BYTES)))


def _attributes_bounded(raw: bytes) -> bool:
    """Whether no tag has too many attributes, however the parser splits tags.

    A tag can go past a `>` only within a quoted value, so where no quoted value holds a `>`, every
    tag ends at the first one, and the pieces between them can be measured one by one.
    """
    if TORN.search(raw) is not None:
        return False
    for piece in raw.split(b">"):
        if len(piece) > 2 * limits.HTML_ATTRIBUTES:
            start = OPENS.search(piece)
            if start is not None:
                gaps = GAPS.findall(piece, start.start())
                if len(gaps) > limits.HTML_ATTRIBUTES:
                    return False
    return True


def _many_roots(low: bytes) -> bool:
    return low.count(b"<html") + low.count(b"<body") > limits.HTML_ROOTS


def bounded_html(raw: bytes, low: bytes, budget: HtmlBudget, marks: set[str]) -> bytes | None:
    """The html in a form that Lexbor reads in bounded time; None if there is none."""
    tags = raw.count(b"<")
    budget.tags -= tags
    budget.parts -= 1
    if budget.tags < 0 or budget.parts < 0:
        return None
    budget.unchecked -= len(raw)
    checked = budget.unchecked < 0
    if checked and not _attributes_bounded(raw):
        raw = QUOTED.sub(lambda found: found[0].replace(b">", b"&gt;"), raw)
        marks.add("html:torn-quotes")
        if not _attributes_bounded(raw):
            return None
    if tags > limits.HTML_PLAIN_TAGS or (checked and _many_roots(low)):
        # two literal replacements take half the time of one with a group
        raw = CLOSING.sub(b"</x-", OPENING.sub(b"<x-", raw))
    return raw


def _pieces(raw: bytes) -> Iterator[bytes]:
    """Split a page before tags: to replace in the whole page, `re` makes a list of all tags."""
    at = 0
    while at < len(raw):
        end = raw.find(b"<", at + limits.HTML_PIECE)
        end = end if end >= 0 else len(raw)
        yield raw[at:end]
        at = end


def _read_without_parser(raw: bytes, marks: set[str]) -> HtmlText:
    """Read text, addresses and tags without a parser."""
    marks.add("html:stripped")
    pieces = [TAG.sub(b"", BLOCK.sub(b" <", piece)) for piece in _pieces(_uncommented(raw))]
    text = b"".join(pieces).decode("utf-8", "replace")
    if text.count("&") < limits.ENTITIES:
        text = html.unescape(text)
    else:
        marks.add(PARTLY)
    found = islice(ADDRESS.finditer(raw), limits.LINKS)
    links = [compact_text(match[1].decode("utf-8", "replace")) for match in found]
    return HtmlText(compact_text(text), b"", links, [], _markup(raw))


def _same_site(shown: str, target: str) -> bool:
    """Whether the last two labels are equal; a public suffix list would find more differences."""
    return shown.lower().split(".")[-2:] == target.lower().rstrip(".").split(".")[-2:]


def _check_target(href: str, marks: set[str]) -> None:
    if href[0] in " \t\n\rdDjJvV":
        scheme = href[:40].strip().partition(":")[0].lower()
        if scheme in {"data", "javascript", "vbscript"}:
            marks.add("url:" + scheme)


def _check_visible_text(text: str, href: str, marks: set[str]) -> None:
    """Compare the host in a link's visible text, if any, with the host of its target."""
    text = text[: 4 * limits.LINK_TEXT].replace("\xa0", " ").strip()[: limits.LINK_TEXT]
    shown = HOST.match(text)
    target = TARGET.match(href) if shown is not None else None
    if shown and target and not _same_site(shown[1], target[1]):
        marks.add("url:text-differs")


def _references(tree: Any, page: HtmlText, marks: set[str]) -> None:
    """Collect links and images, and remove elements without visible text.

    One search for all of these takes 18 us, one search for each of them takes 10 us.
    """
    work = limits.LINK_WORK
    for node in tree.css(WANTED):
        attributes = node.attributes
        tag = node.tag
        href = attributes.get("href") or (tag == "form" and attributes.get("action"))
        src = attributes.get("src") or attributes.get("background")
        if href and tag != "link" and len(page.links) < limits.LINKS:
            _check_target(href, marks)
            if work > 0 and tag in {"a", "x-a"}:
                text = node.text()
                work -= len(text)
                if "." in text:
                    _check_visible_text(text, href, marks)
            elif tag == "base":
                marks.add("html:base")
            page.links.append(compact_text(href[: limits.URL_BYTES]))
        if src and len(page.images) < limits.LINKS:
            if src[:5].lower() == "data:":
                marks.add("url:data-image")
            page.images.append(compact_text(src[: limits.URL_BYTES]))
        if tag in _NO_TEXT:
            node.decompose()


def _limited(source: Text, marks: set[str]) -> bytes:
    raw = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    if len(raw) > limits.HTML_BYTES:
        marks.update(("html:huge", PARTLY))  # grown by decoding: the encoded bytes were bounded
        raw = both_ends(raw, limits.HTML_BYTES)
    return raw


def visible_html(source: Text, budget: HtmlBudget) -> str | None:
    """One html part without its hidden elements, as html; None if it is beyond the limits."""
    raw = _limited(source, set())
    low = raw.lower()
    safe = bounded_html(raw, low, budget, set())
    if safe is None:
        return None
    tree = LexborHTMLParser(safe, options=FAST)
    Page(tree, low, style_sheets(tree, low)).remove_hidden()
    page = tree.html or ""
    # The parser repeats unclosed formatting elements, and closes every element.
    budget.tags -= max(0, page.count("<") - 2 * raw.count(b"<"))
    return page if budget.tags >= 0 else None


def read_html(source: Text, budget: HtmlBudget, marks: set[str]) -> HtmlText:
    """Read one html part."""
    raw = _limited(source, marks)
    low = raw.lower()
    safe = bounded_html(raw, low, budget, marks)
    if safe is None:
        return _read_without_parser(raw, marks)
    page = HtmlText()
    hidden = _comments(raw) if b"<!--" in raw else []
    page.markup = _markup(raw)
    tree = LexborHTMLParser(BLOCK.sub(b" <", safe), options=FAST)
    sheets = style_sheets(tree, low)
    _references(tree, page, marks)
    texts = Page(tree, low, sheets).remove_hidden()
    if texts:
        marks.add("html:hidden")
    body = tree.body
    shown = (body if body is not None else tree).text()
    page.text = compact_text(shown + _shown_by_outlook(hidden) if hidden else shown)
    if texts or hidden:
        texts += [comment.decode("utf-8", "replace").strip() for comment in hidden]
        page.hidden = compact_text(" ".join(texts)[: limits.HIDDEN_BYTES])
    return page
