"""Text that is in an html part but not seen: styles, classes and colours that hide it.

Holds the tricks and how their elements are found and taken out of a parsed tree. It must not know
where the tree came from; the tree is bounded before (see `html`).

Invariants: elements are found by selectors in C, made from exact spellings found in the text, so
that only suspects are touched from Python; looking at every style costs 2 us an element, and
newsletters have a thousand. Nothing raises; a trick that is not known stays visible text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from spamnb.core.mail import limits

_IS: Final = r"\s{0,3}:\s{0,3}"
_END: Final = r"(?=\s{0,3}(?:[;\"'!}]|\Z))"
GONE: Final = (f"display{_IS}none", f"visibility{_IS}hidden", f"mso-hide{_IS}all")
TINY: Final = (
    rf"font-size{_IS}[01](?:\.\d{{0,3}})?(?:px|pt|%)?{_END}",
    rf"font-size{_IS}0?(?:\.0\d{{0,3}})?(?:em|rem){_END}",
    rf"(?<![a-z-])(?:max-)?(?:height|width){_IS}0(?:px|pt|em|%)?{_END}",
    rf"opacity{_IS}0?(?:\.0{{0,3}})?{_END}",
    rf"text-indent{_IS}-\d{{3,5}}",
)
TRICK = re.compile("|".join(GONE + TINY).encode("ascii"))
SHEET_TRICK = re.compile("|".join(GONE[:2]).encode("ascii"))
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
    """Read a colour, -1 if it is none that we know."""
    if not name.startswith("#"):
        return NAMED.get(name, -1)
    if DIGITS.fullmatch(name) is None:
        return -1
    digits = name[1:]
    if len(digits) == 3:
        digits = "".join(digit * 2 for digit in digits)
    return int(digits, 16)


def _near(a: int, b: int) -> bool:
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

    Rules within @media are left out: honest newsletters hide one of two layouts there.
    """
    sheets = b" ".join(SHEET.findall(low))[: limits.RULES_BYTES]
    if b"none" not in sheets and b"hidden" not in sheets:
        return []
    out: list[str] = []
    for rule in MEDIA.sub(b" ", sheets).split(b"}"):
        names, _, body = rule.partition(b"{")
        if SHEET_TRICK.search(body) is not None:
            listed = [name.strip() for name in names.decode("latin-1").split(",")]
            out += [name for name in listed if PLAIN_SELECTOR.fullmatch(name) is not None]
    return out[: limits.TRICKS]


def _style_selector(low: bytes) -> str:
    """Build a selector for elements whose own style or attribute may hide, "" for most html."""
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


def _is_hiding(node: Any) -> bool:
    """Whether an element hides by itself; "font-size:0" is found in "font-size:0.9em" too."""
    attributes = node.attributes
    style = (attributes.get("style") or "")[: limits.VALUE_BYTES].lower()
    return "hidden" in attributes or TRICK.search(style.encode("ascii", "replace")) is not None


def _take(tree: Any, selector: str, is_hidden: Callable[[Any], bool], most: int) -> list[str]:
    """Remove the hidden ones of what a selector matches, and give their texts.

    Matches within a removed element go with it: they stand right behind it in the list. The root
    stays: Lexbor cannot remove it, and mail programs show what is in it on a page of their own.
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
    """Read the colour an element sets by attribute or style, -1 if none."""
    attributes = node.attributes
    style = attributes.get("style") or ""
    found = pattern.search(style[:1000].lower().encode("ascii", "ignore"))
    if found is not None:
        return _rgb(found[1].decode("ascii"))
    for name in names:
        value = attributes.get(name)
        if value:
            return _rgb(value.strip().lower()[: limits.COLOUR_NAME])
    return -1


def _behind(node: Any) -> int:
    """Find the colour behind an element; -1 when a picture or an unknown colour may be there."""
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
    return WHITE


def _suspects(low: bytes) -> str:
    """Build a selector for text in a colour that is also a background, "" for most html."""
    texts = set(TEXT_COLOUR.findall(low))
    if not texts:
        return ""
    backs = {_rgb(name.decode("ascii")) for name in set(BACK_COLOUR.findall(low))} | {WHITE}
    names = sorted(name.decode("ascii") for name in texts)
    same = [name for name in names if any(_near(_rgb(name), back) for back in backs)]
    same = same[: limits.COLOURS]
    return ",".join(f'[color="{name}" i],[style*="{name}" i]' for name in same)


def _is_unreadable(node: Any) -> bool:
    """Whether text has the colour of what lies behind it, and no other colour is within it."""
    colour = _own_colour(node, TEXT_COLOUR, ("color",))
    return _near(colour, _behind(node)) and len(node.css(COLOURED)) <= 1


def take_out(tree: Any, low: bytes) -> list[str]:
    """Take hidden elements out of a tree and give their texts; `low` is the html in lower case."""
    texts = _take(tree, _style_selector(low), _is_hiding, limits.HIDDEN_NODES)
    if b"<style" in low:
        sheets = ",".join(_class_selectors(low))
        texts += _take(tree, sheets, lambda _: True, limits.HIDDEN_NODES)
    texts += _take(tree, _suspects(low), _is_unreadable, limits.COLOURED_NODES)
    return [text for text in texts if text]
