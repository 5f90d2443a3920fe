"""Read html: its text, its links, and what a browser hides.

Find text in an html part that readers cannot see: hidden by styles, classes or colours.

Holds the tricks and how their elements are found and removed from a parsed tree. It must not know
where the tree came from; the caller bounds the tree (see `html`).

Invariants: elements are found by selectors in C, made from exact spellings in the text, so Python
visits only elements that may be hidden; each costs 2 us, and newsletters have a thousand elements
with a style. Nothing raises; text that is hidden in an unknown way counts as visible.

Read HTML: the visible text, the hidden text, the link targets, and the tag names.

Holds the guard before the parser; the ways to hide text are in `hidden_text`. It must not know
where the HTML came from nor what becomes of its parts.

Invariants: nothing reaches Lexbor before its size, tags, attributes and elements that multiply are
bounded; only elements matched by a selector in C are touched from Python (walking all of them
costs more than everything else in a message). Nothing raises; HTML beyond these bounds is read
by removing the tags, and marked "html:stripped".
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

from selectolax.lexbor import LexborHTMLParser

from spamnb.mail import limits
from spamnb.mail.charset import Text, compact_text
from spamnb.mail.content import both_ends
from spamnb.mail.limits import PARTLY

_IS: Final = r"\s{0,3}:\s{0,3}"
_END: Final = r"(?=\s{0,3}(?:[;\"'!}]|\Z))"
GONE: Final = (f"display{_IS}none", f"visibility{_IS}hidden")
TINY: Final = (
    rf"font-size{_IS}[01](?:\.\d{{0,3}})?(?:px|pt|%)?{_END}",
    rf"font-size{_IS}0?(?:\.0\d{{0,3}})?(?:em|rem){_END}",
    rf"(?<![a-z-])(?:max-)?(?:height|width){_IS}0(?:px|pt|em|%)?{_END}",
    rf"opacity{_IS}0?(?:\.0{{0,3}})?{_END}",
    rf"text-indent{_IS}-\d{{3,5}}(?:px|pt|em|%)?",
)
TRICK = re.compile("|".join(GONE + TINY).encode("ascii"))
SHEET_TRICK = re.compile("|".join(GONE).encode("ascii"))
SHEET_SHOWS = re.compile(rb"display\s{0,3}:\s{0,3}(?!none)|visibility\s{0,3}:\s{0,3}visible")
NO_DECLARATION = re.compile(
    r"/\*[\s\S]*?(?:\*/|\Z)|\"[^\"]*+(?:\"|\Z)|'[^']*+(?:'|\Z)|\([^)]*+(?:\)|\Z)"
)
INHERITED: Final = {"visibility": "", "font-size": ",font,table"}
"""properties that an inner element may set again, and other tags that do so"""
CLIPPED: Final = frozenset(("height", "width", "max-height", "max-width"))
STYLE = re.compile(rb"""style\s{0,3}=\s{0,3}("[^"]*+"|'[^']*+'|[^\s>"']++)""")
SHEET = re.compile(rb"<style[^>]{0,200}>([^<]*+)")
MEDIA = re.compile(rb"@[^{}@;]*+\{(?:[^{}]*+\{[^{}]*+\})*+[^{}]*+\}")
PLAIN_SELECTOR = re.compile(r"[a-z]{0,10}[.#][a-z_][\w-]{0,60}")

TEXT_COLOUR = re.compile(
    rb"color(?<![\w-]color)\s{0,3}[:=]\s{0,3}[\"']?\s{0,3}(#[0-9a-f]{3,6}|[a-z]{3,20})"
)
BACK_COLOUR = re.compile(
    rb"(?:bgcolor|background(?:-color)?)\s{0,3}[:=]\s{0,3}[\"']?\s{0,3}(#[0-9a-f]{3,6}|[a-z]{3,20})"
)
DIGITS = re.compile(r"#(?:[0-9a-f]{3}){1,2}")
NAMED: Final = {
    name: int(digits, 16)
    for name, digits in re.findall(
        r"(\w+)=(\w+)",
        "black=000000 white=ffffff red=ff0000 lime=00ff00 blue=0000ff yellow=ffff00 aqua=00ffff "
        "cyan=00ffff fuchsia=ff00ff magenta=ff00ff silver=c0c0c0 gray=808080 grey=808080 "
        "maroon=800000 green=008000 navy=000080 olive=808000 purple=800080 teal=008080 "
        "snow=fffafa ivory=fffff0 whitesmoke=f5f5f5 ghostwhite=f8f8ff orange=ffa500",
    )
}
WHITE: Final = 0xFFFFFF
NEAR: Final = 10
"""Difference of each channel (of 255) below which text cannot be read."""
COLOURED: Final = '[color],[style*="color" i]'


@lru_cache(maxsize=1024)
def _rgb(name: str) -> int:
    """Read a colour; -1 if it is unknown."""
    if not name.startswith("#"):
        return NAMED.get(name, -1)
    if DIGITS.fullmatch(name) is None:
        return -1
    digits = name[1:]
    if len(digits) == 3:
        digits = "".join(digit * 2 for digit in digits)
    return int(digits, 16)


def _is_near(a: int, b: int) -> bool:
    """Whether two colours cannot be told apart."""
    if a < 0 or b < 0:
        return False
    return a == b or (
        abs((a >> 16) - (b >> 16)) < NEAR
        and abs((a >> 8 & 255) - (b >> 8 & 255)) < NEAR
        and abs((a & 255) - (b & 255)) < NEAR
    )


def _class_selectors(low: bytes) -> list[str]:
    """Find classes and ids that a style sheet hides on every screen.

    Rules within @media are left out: legitimate newsletters hide one of two layouts there. If any
    rule shows elements again, the result is uncertain and empty.
    """
    sheets = b" ".join(SHEET.findall(low))
    if b"none" not in sheets and b"hidden" not in sheets:
        return []
    if len(sheets) > limits.RULES_BYTES or SHEET_SHOWS.search(sheets) is not None:
        return []
    out: list[str] = []
    for rule in MEDIA.sub(b" ", sheets).split(b"}"):
        names, _, body = rule.partition(b"{")
        if SHEET_TRICK.search(body) is not None:
            listed = [name.strip() for name in names.decode("latin-1").split(",")]
            out += [name for name in listed if PLAIN_SELECTOR.fullmatch(name) is not None]
    return out[: limits.TRICKS]


def _style_selector(low: bytes) -> str:
    """Build a selector for elements with a style or attribute that may hide; "" for most html."""
    wanted: list[str] = []
    if b"style" in low:
        # searched in the distinct styles only: in all of the text the alternatives cost 300 us
        styles = b" ".join(dict.fromkeys(STYLE.findall(low)))[: limits.STYLE_BYTES]
        if b"&" in styles:
            styles = html.unescape(styles.decode("latin-1")).encode("ascii", "ignore")
        found = {match.decode("ascii") for match in TRICK.findall(styles)}
        for spelling in sorted(found)[: limits.TRICKS]:
            escaped = spelling.replace("\n", "\\a ").replace("\r", "\\d ").replace("\f", "\\c ")
            wanted.append(f'[style*="{escaped}" i]')
    if b"hidden" in low:
        wanted.append("[hidden]")
    return ",".join(wanted)


@lru_cache(maxsize=512)
def _declared(style: str) -> dict[str, str]:
    """The properties that a style sets: the last one wins, unless an earlier one is important."""
    style = NO_DECLARATION.sub("", style.lower())
    found: dict[str, tuple[bool, str]] = {}
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        value, mark, _ = value.partition("!")
        if mark or not found.get(name, (False,))[0]:
            found[name] = bool(mark), value.strip()
    return {name: value for name, (_, value) in found.items()}


def _style_of(node: Any) -> dict[str, str]:
    return _declared((node.attributes.get("style") or "")[: limits.STYLE_READ])


def _tricks(declared: dict[str, str]) -> set[str]:
    """The properties by which a style hides."""
    found = {
        name for name, value in declared.items()
        if TRICK.fullmatch(f"{name}:{value}".encode("ascii", "replace")) is not None
    }  # fmt: skip
    return found if declared.get("overflow", "").startswith("hidden") else found - CLIPPED


def _is_hiding(node: Any, looks: Iterator[int]) -> bool:
    """Whether an element surely hides its whole content; in doubt, the text stays visible."""
    declared = _style_of(node)
    tricks = _tricks(declared)
    if not tricks:
        return "hidden" in node.attributes and "display" not in declared
    if not tricks <= INHERITED.keys():
        return True
    if next(looks, None) is None:
        return False
    return any(not _is_set_within(node, name) for name in tricks)


def _is_set_within(node: Any, name: str) -> bool:
    """Whether an inner element may set a property again."""
    inner = node.css(f'[style*="{name}" i]{INHERITED[name]}')
    if len(inner) > limits.INNER_NODES:
        return True
    return any(
        one != node and (one.tag in INHERITED[name] or _sets(_style_of(one), name)) for one in inner
    )


def _sets(declared: dict[str, str], name: str) -> bool:
    return name in declared and name not in _tricks(declared)


def _is_sheet_hiding(node: Any) -> bool:
    """Whether a style sheet hides this element and its own style does not show it again."""
    return not {"display", "visibility"} & _style_of(node).keys()


def _remove(tree: Any, selector: str, is_hidden: Callable[[Any], bool], most: int) -> list[str]:
    """Remove those matches of a selector that are hidden, and return their texts.

    Matches within a removed element go with it: they follow it in the list. The root stays: Lexbor
    cannot remove it, and mail programs show its content in a page of their own.
    """
    nodes = tree.css(selector)[:most] if selector else []
    out = []
    at = 0
    while at < len(nodes):
        node = nodes[at]
        if node.tag != "html" and is_hidden(node):
            at += len(node.css(selector)) or 1
            out.append(node.text(separator=" ").strip())
            node.decompose()
        else:
            at += 1
    return out


def _own_colour(node: Any, pattern: re.Pattern[bytes], names: tuple[str, ...]) -> int:
    """The colour that an element sets by attribute or style; -1 if none or uncertain."""
    attributes = node.attributes
    style = (attributes.get("style") or "").lower()
    found = pattern.findall(style[:1000].encode("ascii", "ignore"))
    if found:
        return _rgb(found[0].decode("ascii")) if len(found) == 1 else -1
    for name in names:
        value = attributes.get(name)
        if value:
            return _rgb(value.strip().lower()[: limits.COLOUR_NAME])
    return -1


def _background_of(node: Any, page: int) -> int:
    """The colour behind an element; -1 when a picture or an unknown colour may be there."""
    for _ in range(limits.ANCESTORS):
        attributes = node.attributes
        if attributes:
            style = (attributes.get("style") or "").lower()
            if "background" in attributes or "url(" in style or "gradient" in style:
                return -1
            if "bgcolor" in attributes or "background" in style:
                return _own_colour(node, BACK_COLOUR, ("bgcolor",))
        node = node.parent
        if node is None or not node.is_element_node:
            break
    return page


def _same_colour_selector(low: bytes) -> str:
    """Build a selector for text in a colour that is also a background, "" for most html."""
    texts = set(TEXT_COLOUR.findall(low))
    if not texts:
        return ""
    backs = {_rgb(name.decode("ascii")) for name in set(BACK_COLOUR.findall(low))} | {WHITE}
    names = sorted(name.decode("ascii") for name in texts)
    same = [name for name in names if any(_is_near(_rgb(name), back) for back in backs)]
    same = same[: limits.COLOURS]
    return ",".join(f'[color="{name}" i],[style*="{name}" i]' for name in same)


def _page_colour(low: bytes) -> int:
    """The colour of the page where no element sets one; -1 if a style sheet may set it."""
    sheets = SHEET.findall(low)
    known = len(sheets) == low.count(b"<style") and b"<link" not in low
    return WHITE if known and b"background" not in b" ".join(sheets) else -1


def _is_unreadable(node: Any, page: int) -> bool:
    """Whether text has the colour of its background, and no other colour is within it."""
    colour = _own_colour(node, TEXT_COLOUR, ("color",))
    return _is_near(colour, _background_of(node, page)) and len(node.css(COLOURED)) <= 1


def remove_hidden(tree: Any, low: bytes) -> list[str]:
    """Remove hidden elements from a tree and return their texts; `low` is the lower-case html."""
    is_hiding = partial(_is_hiding, looks=iter(range(limits.INNER_LOOKS)))
    texts = _remove(tree, _style_selector(low), is_hiding, limits.HIDDEN_NODES)
    if b"<style" in low:
        sheets = ",".join(_class_selectors(low))
        texts += _remove(tree, sheets, _is_sheet_hiding, limits.HIDDEN_NODES)
    coloured = _same_colour_selector(low)
    if coloured:
        is_unreadable = partial(_is_unreadable, page=_page_colour(low))
        texts += _remove(tree, coloured, is_unreadable, limits.COLOURED_NODES)
    return [text for text in texts if text]


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
UNSEEN: Final = frozenset(("script", "style", "title", "noembed", "noframes", "iframe"))
"""elements with content that is not visible text"""
WANTED: Final = "[href],[src],[background],form," + ",".join(sorted(UNSEEN))

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
        if tag in UNSEEN:
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
    remove_hidden(tree, low)
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
    _references(tree, page, marks)
    texts = remove_hidden(tree, low)
    if texts:
        marks.add("html:hidden")
    body = tree.body
    shown = (body if body is not None else tree).text()
    page.text = compact_text(shown + _shown_by_outlook(hidden) if hidden else shown)
    if texts or hidden:
        texts += [comment.decode("utf-8", "replace").strip() for comment in hidden]
        page.hidden = compact_text(" ".join(texts)[: limits.HIDDEN_BYTES])
    return page
