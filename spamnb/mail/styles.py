"""Read style sheets and style attributes, as far as they decide what a reader sees.

Declarations, rules with their media, lengths and colours. What this module does not understand has
no value (None), and the caller takes its text for visible. Pure; nothing raises. Every pattern is
possessive or bounded, so that no style takes more than linear time; those with possessive groups
need `regex` (Python's engine before 3.11.5 does not go back behind them).
"""

from __future__ import annotations

import ast
import colorsys
import operator
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import regex

SCREEN_WIDTH: Final = 1024
"""pixels of the window of a mail program: the one of two layouts that a newsletter shows there"""
EM: Final = 16.0

_STRING = r"\"[^\"\n]*+\"?|'[^'\n]*+'?"
_PARENS = r"\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)?"
_STRINGS_AND_COMMENTS = re.compile(rf"({_STRING})|/\*[\s\S]*?(?:\*/|\Z)")
_DECLARATION = regex.compile(rf"(?:[^;\"'(\\]|\\[\s\S]|{_STRING}|{_PARENS}|[\"'\\])++")
_NOT_PLAIN = re.compile(r"[\"'()\\]|/\*")
_BRACES = regex.compile(rf"\\[\s\S]|{_STRING}|{_PARENS}|[{{}}]")
_ESCAPE = re.compile(r"\\(?:([0-9a-f]{1,6})[ \t\n\r\f]?|([^\n\r\f]))", re.IGNORECASE)
_VARIABLE = re.compile(r"var\(\s*(--[\w-]{1,60})\s*(?:,\s*([^()]{0,200}))?\)")
_NUMBER = r"[+-]?(?:\d{1,7}(?:\.\d{0,9})?|\.\d{1,9})"
_LENGTH = re.compile(rf"({_NUMBER})(px|pt|pc|in|cm|mm|q|r?em|ex|ch|vw|vh|%)?")
_QUANTITY = re.compile(rf"(?<![\w.])({_NUMBER})(px|pt|pc|in|cm|mm|q|r?em|ex|ch|vw|vh|%)?")
_ARITHMETIC = re.compile(r"[0-9.+\-*/() ]{1,400}")
_PIXELS: Final = {
    "px": 1.0, "pt": 4 / 3, "pc": 16.0, "in": 96.0, "cm": 37.8, "mm": 3.78, "q": 0.945,
    "em": EM, "rem": EM, "ex": EM / 2, "ch": EM / 2, "vw": SCREEN_WIDTH / 100, "vh": 7.68,
    "%": EM / 100, "": 1.0,
}  # fmt: skip
_MEDIA_TYPES: Final = {"all": True, "screen": True, "print": False, "speech": False, "tv": False}
_FEATURE = re.compile(
    r"\(\s*(?:(min|max)-)?((?:device-)?width|orientation|prefers-color-scheme|color|hover)"
    r"\s*(?::\s*([\w.-]+))?\s*\)"
)
_RANGE = re.compile(r"\(\s*(?:device-)?width\s*(<=?|>=?)\s*([\w.]+)\s*\)")
_NAMED: Final = {"orientation": "landscape", "prefers-color-scheme": "light", "hover": "hover"}
_GROUPS: Final = ("@media", "@supports", "@layer")
MOST_SELECTORS: Final = 64
"""of one rule, which grow with each level of nesting"""


PROPERTIES: Final = frozenset((
    "display", "visibility", "content-visibility", "opacity", "filter", "-webkit-filter", "clip",
    "clip-path", "-webkit-clip-path", "zoom", "position", "float", "left", "top", "right",
    "bottom", "inset", "transform", "-webkit-transform", "scale", "text-indent", "white-space",
    "margin", "margin-left", "margin-top", "height", "max-height", "min-height", "width",
    "max-width", "min-width", "overflow", "overflow-x", "overflow-y", "padding", "padding-top",
    "padding-right", "padding-bottom", "padding-left", "font", "font-size", "color",
    "-webkit-text-fill-color", "-webkit-text-stroke", "text-shadow", "background",
    "background-color", "background-image",
))  # fmt: skip
"""Only these properties and variables are read; a third of the declarations in newsletters."""


class Declared(NamedTuple):
    """The value of a property."""

    value: str
    important: bool


class Rule(NamedTuple):
    """A rule of a style sheet, for one selector."""

    selector: str
    style: dict[str, Declared]
    is_certain: bool
    """whether it surely applies; its media may be unknown"""
    rank: tuple[int, int, int]
    """the specificity of the selector"""
    parts: tuple[tuple[str, str], ...] | None
    """each simple part with the combinator before it; None for a selector that is not understood"""


def specificity(selector: str) -> tuple[int, int, int]:
    """Return the number of ids, of classes and attributes, and of elements in a selector."""
    text = _WHERE.sub("", selector)
    others = _CLASSES.sub(" ", _IDS.sub(" ", text))
    return len(_IDS.findall(text)), len(_CLASSES.findall(text)), len(_ELEMENTS.findall(others))


_PART = regex.compile(
    r"\s*([>+~])\s*|(\s+)|((?:[^\s>+~\[(\\]|\\(?:[0-9a-f]{1,6}\s?|.)|\[[^\]]*+\]|\([^()]*+\))++)",
    regex.IGNORECASE,
)
_SIMPLE = regex.compile(
    r"(?:\*|[a-z][\w-]*+)?(?:[.#](?:[\w-]|[^\0-\x7f]|\\(?:[0-9a-f]{1,6}\s?|.))++|\[[^\]]*+\]"
    r"|:(?:root|first-child|last-child|only-child|link|any-link|empty|not\([.#\w-]+\)))*+",
    regex.IGNORECASE,
)
_NEVER = re.compile(
    r"::|:(?:before|after|first-line|first-letter|hover|active|focus|visited|target|checked)\b",
    re.IGNORECASE,
)
"""what is no element, or one only when a reader acts on it"""
MOST_PARTS: Final = 6


def parts_of(selector: str) -> tuple[tuple[str, str], ...] | None:
    """Return the simple parts of a selector, each with the combinator before it."""
    parts: list[tuple[str, str]] = []
    sign, at = "", 0
    while at < len(selector):
        found = _PART.match(selector, at)
        if found is None:
            return None
        at = found.end()
        if found[3] is None:
            sign = found[1] or sign or " "
        elif _SIMPLE.fullmatch(found[3]) is None:
            return None
        else:
            parts.append((sign if parts else "", found[3]))
            sign = ""
    return tuple(parts) if 0 < len(parts) <= MOST_PARTS else None


_WHERE = re.compile(r":where\([^()]*+\)")
_IDS = re.compile(r"#[\w\\-]++")
_CLASSES = re.compile(r"\.[\w\\-]++|\[[^\]]*+\]|(?<!:):(?!not|is|has)[\w-]++")
_ELEMENTS = re.compile(r"(?<![\w-])[a-zA-Z][\w-]*+")


def _without_comments(text: str) -> str:
    if "/*" not in text:
        return text
    return _STRINGS_AND_COMMENTS.sub(lambda found: found[1] or " ", text)


def unescaped(text: str) -> str:
    """Return a name or value with its escapes replaced."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[2]
    code = int(found[1], 16)
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


def declarations(text: str) -> dict[str, Declared]:
    """Return the properties that a style sets: the last value, or the last important one."""
    # Newsletters repeat short styles; long ones would fill the memory.
    return (_remembered if len(text) <= _SHORT else _declarations)(text)


_SHORT: Final = 1_000


def _declarations(text: str) -> dict[str, Declared]:
    is_plain = _NOT_PLAIN.search(text) is None
    found: dict[str, Declared] = {}
    # Most styles have no strings, brackets, escapes or comments; they take half of the time.
    for one in text.split(";") if is_plain else _DECLARATION.findall(_without_comments(text)):
        name, _, value = one.partition(":")
        name = (name if is_plain else unescaped(name)).strip().lower()
        if name not in PROPERTIES and not name.startswith("--"):
            continue
        value, mark, important = value.partition("!")
        if not is_plain:
            value, important = unescaped(value), unescaped(important)
        is_important = bool(mark) and important.strip().lower() == "important"
        if is_important or not mark:
            declared = Declared(" ".join(value.lower().split()), is_important)
            sets = _longhands(name, declared) if name in _SHORTHANDS else ((name, declared),)
            for property_, its in sets:
                before = found.get(property_)
                if before is None or is_important or not before.important:
                    found[property_] = its
    return found


_remembered = lru_cache(maxsize=1024)(_declarations)


_SHORTHANDS: Final = frozenset(("background", "font"))


def _longhands(name: str, declared: Declared) -> Iterator[tuple[str, Declared]]:
    """The property, and the one that a shorthand sets, too."""
    yield name, declared
    if name == "background":
        yield "background-color", declared
    elif name == "font":
        sizes = (part.partition("/")[0] for part in declared.value.split())
        size = next((one for one in sizes if _is_size(one)), "")
        yield "font-size", declared._replace(value=size)


def _is_size(text: str) -> bool:
    """Whether a part of a font is its size, not its weight."""
    return pixels(text) is not None and (text == "0" or not text.isdigit())


def rules(sheet: str, most: int) -> list[Rule]:
    """Return the rules of a style sheet for a screen, in their order: `most` or a few more."""
    sheet = _without_comments(sheet).replace("<!--", " ").replace("-->", " ")
    found: list[Rule] = []
    blocks = [_Block([], certain=True)]
    at = 0
    for token in _BRACES.finditer(sheet):
        sign = token[0]
        if sign not in {"{", "}"}:
            continue
        text = sheet[at : token.start()]
        at = token.end()
        if sign == "{":
            *declared, prelude = _DECLARATION.findall(f"{text} ") if ";" in text else [text]
            blocks[-1].declared += declared
            blocks.append(_opened(blocks[-1], prelude.strip() if len(blocks) < _DEEPEST else "@"))
            continue
        blocks[-1].declared.append(text)
        if len(blocks) > 1:
            found += blocks.pop().rules()
            if len(found) > most:
                return found
    blocks[-1].declared.append(sheet[at:])
    for block in reversed(blocks[1:]):
        found += block.rules()
    return found


class _Block:
    """What stands between two braces."""

    def __init__(self, selectors: list[str], *, certain: bool | None) -> None:
        self.selectors, self.certain = selectors, certain
        self.declared: list[str] = []

    def rules(self) -> Iterator[Rule]:
        """The rules of the block; its certainty is None if none of them applies."""
        if self.certain is None or not self.selectors:
            return
        style = declarations(";".join(self.declared))
        if style:
            for one in self.selectors:
                if _NEVER.search(one) is None:
                    yield Rule(one, style, self.certain, specificity(one), parts_of(one))


_DEEPEST: Final = 8
"""levels of nesting that are read"""
_LONGEST: Final = 300
"""characters of a selector"""


def _opened(outer: _Block, prelude: str) -> _Block:
    """The block that this text opens."""
    if outer.certain is None:
        return _Block([], certain=None)
    if not prelude.startswith("@"):
        named = [one.strip() for one in _COMMAS.findall(prelude)[:MOST_SELECTORS]]
        if outer.selectors:
            named = [
                one.replace("&", before) if "&" in one else f"{before} {one}"
                for before in outer.selectors
                for one in named
            ]
        named = [one[:_LONGEST] for one in named if one][:MOST_SELECTORS]
        return _Block(named, certain=outer.certain)
    name, _, condition = prelude.partition(" ")
    if not name.lower().startswith(_GROUPS):
        return _Block([], certain=None)
    applies: bool | None = True
    if name.lower().startswith("@media"):
        applies = media_applies(prelude[len("@media") :])
    elif name.lower() == "@supports" and "not" in condition:
        applies = None
    certain = None if applies is False else outer.certain and applies is True
    return _Block(list(outer.selectors), certain=certain)


_COMMAS = regex.compile(
    rf"(?:[^,\"'(\[\\]|\\[\s\S]|{_STRING}|{_PARENS}|\[[^\]]{{0,300}}+\]|[\"'\\\[])++"
)


@lru_cache(maxsize=256)
def media_applies(text: str) -> bool | None:
    """Return whether a media query is true on a screen; None if this is unknown."""
    found = [_query_applies(one.strip()) for one in text.lower().split(",")[:20]]
    if True in found:
        return True
    return None if None in found else False


def _query_applies(query: str) -> bool | None:
    first, _, rest = query.partition(" ")
    negated = first == "not"
    parts = [part.strip() for part in (rest if first in {"not", "only"} else query).split(" and ")]
    values = [_part_applies(part) for part in parts]
    result = False if False in values else None if None in values else True
    return result if result is None or not negated else not result


def _part_applies(part: str) -> bool | None:
    if not part:
        return True
    if not part.startswith("("):
        return _MEDIA_TYPES.get(part)
    compared = _RANGE.fullmatch(part)
    if compared is not None:
        width = pixels(compared[2])
        compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
        return None if width is None else bool(compare[compared[1]](SCREEN_WIDTH, width))
    feature = _FEATURE.fullmatch(part)
    if feature is None:
        return None
    bound, name, value = feature.groups("")
    if name in _NAMED:
        return value in {"", _NAMED[name]}
    if name == "color":
        return not value
    width = pixels(value)
    if width is None:
        return None
    return {"min": width <= SCREEN_WIDTH, "max": width >= SCREEN_WIDTH}.get(
        bound, width == SCREEN_WIDTH
    )


def with_variables(value: str, variables: dict[str, str]) -> str | None:
    """Return a value with its variables replaced; None if one is unknown."""
    for _ in range(4):
        if "var(" not in value:
            return value
        found = _VARIABLE.search(value)
        if found is None:
            return None
        text = variables.get(found[1], found[2])
        if text is None or len(text) > 200:
            return None
        value = f"{value[: found.start()]}{text}{value[found.end() :]}"
    return None


_OPERATIONS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _evaluated(node: ast.AST) -> float:
    """The value of an arithmetic expression; ValueError for anything else."""
    if isinstance(node, ast.Expression):
        return _evaluated(node.body)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _evaluated(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return float(_OPERATIONS[type(node.op)](_evaluated(node.left), _evaluated(node.right)))
    raise ValueError


def _calculated(text: str) -> float | None:
    """The number of a calculation, with all lengths in pixels."""
    plain = _QUANTITY.sub(lambda one: f"{float(one[1]) * _PIXELS[one[2] or '']:.6f}", text)
    if _ARITHMETIC.fullmatch(plain) is None:
        return None
    try:
        return _evaluated(ast.parse(plain.strip(), mode="eval"))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=1024)
def pixels(text: str) -> float | None:
    """Return a length in pixels, a number as it is; a share is one of the size of letters."""
    found = _LENGTH.fullmatch(text)
    if found is not None:
        return float(found[1]) * _PIXELS[found[2] or ""]
    calculation = text.removeprefix("calc(").removesuffix(")")
    if text.startswith("calc(") and len(calculation) <= 80:
        return _calculated(calculation)
    return None


class Colour(NamedTuple):
    """Red, green, blue up to 255, and the opacity up to 1."""

    red: float
    green: float
    blue: float
    alpha: float = 1.0

    def over(self, back: Colour) -> Colour:
        """Return how this colour looks on another one."""
        if self.alpha == 1.0:
            return self
        mixed = (
            a * self.alpha + b * (1 - self.alpha) for a, b in zip(self[:3], back, strict=False)
        )
        return Colour(*mixed)

    def is_near(self, other: Colour) -> bool:
        """Return whether text of one colour cannot be read on the other one."""
        return (
            abs(self.red - other.red) < NEAR
            and abs(self.green - other.green) < NEAR
            and abs(self.blue - other.blue) < NEAR
        )


NEAR: Final = 10
"""Difference of each channel (of 255) below which text cannot be read."""
WHITE: Final = Colour(255, 255, 255)
_HEX = re.compile(r"#([0-9a-f]{3,8})")
_FUNCTION = re.compile(r"(rgb|hsl)a?\(([^()]{1,80})\)")
_COLOURS: Final = {
    name: int(digits, 16)
    for name, digits in re.findall(
        r"(\w+)=(\w+)",
        "black=000000 white=ffffff red=ff0000 lime=00ff00 blue=0000ff yellow=ffff00 aqua=00ffff "
        "cyan=00ffff fuchsia=ff00ff magenta=ff00ff silver=c0c0c0 gray=808080 grey=808080 "
        "maroon=800000 green=008000 navy=000080 olive=808000 purple=800080 teal=008080 "
        "snow=fffafa ivory=fffff0 whitesmoke=f5f5f5 ghostwhite=f8f8ff orange=ffa500 "
        "floralwhite=fffaf0 mintcream=f5fffa azure=f0ffff aliceblue=f0f8ff seashell=fff5ee "
        "honeydew=f0fff0 lavenderblush=fff0f5 oldlace=fdf5e6 linen=faf0e6 beige=f5f5dc "
        "cornsilk=fff8dc lightyellow=ffffe0 lightcyan=e0ffff lavender=e6e6fa gainsboro=dcdcdc "
        "lightgray=d3d3d3 lightgrey=d3d3d3 darkgray=a9a9a9 darkgrey=a9a9a9 dimgray=696969",
    )
}


@lru_cache(maxsize=1024)
def colour(text: str) -> Colour | None:
    """Return a colour; None if it is unknown."""
    if text == "transparent":
        return Colour(0, 0, 0, 0)
    if text in _COLOURS:
        return _of_digits(f"{_COLOURS[text]:06x}")
    digits = _HEX.fullmatch(text)
    if digits is not None:
        return _of_digits(digits[1])
    function = _FUNCTION.fullmatch(text)
    return None if function is None else _of_function(*function.groups())


def _of_digits(digits: str) -> Colour | None:
    if len(digits) in {3, 4}:
        digits = "".join(digit * 2 for digit in digits)
    if len(digits) not in {6, 8}:
        return None
    red, green, blue, alpha = (int((digits + "ff")[at : at + 2], 16) for at in (0, 2, 4, 6))
    return Colour(red, green, blue, alpha / 255)


def _of_function(name: str, text: str) -> Colour | None:
    parts = text.replace(",", " ").replace("/", " ").split()
    if len(parts) not in {3, 4}:
        return None
    numbers = [_channel(part) for part in parts]
    if None in numbers:
        return None
    values = [value for value in numbers if value is not None]
    shares = [
        value / 100 if part.endswith("%") else value
        for part, value in zip(parts, values, strict=True)
    ]
    alpha = min(max(shares[3], 0.0), 1.0) if len(parts) == 4 else 1.0
    if name == "hsl":
        light, full = (min(max(share, 0.0), 1.0) for share in (shares[2], shares[1]))
        red, green, blue = colorsys.hls_to_rgb(values[0] % 360 / 360, light, full)
        return Colour(255 * red, 255 * green, 255 * blue, alpha)
    red, green, blue = (
        min(max(255 * share if part.endswith("%") else share, 0.0), 255.0)
        for part, share in zip(parts[:3], shares[:3], strict=True)
    )
    return Colour(red, green, blue, alpha)


def _channel(text: str) -> float | None:
    """A number of a colour, without its sign for a share or an angle."""
    found = re.fullmatch(rf"({_NUMBER})(?:%|deg)?", text)
    return None if found is None else float(found[1])
