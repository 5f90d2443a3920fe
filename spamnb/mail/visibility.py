"""Find the text of a page that no reader sees, as a browser does.

What is declared for an element follows from its attributes, its style and the style sheets, by the
rules of the cascade. An element is hidden if its whole content surely is: not displayed, without
opacity, clipped, without size, off the screen, too small, or in the colour of what is behind it.

Invariants: elements are found by selectors in C; Python visits only those whose own style or a
matching rule may hide them, and their ancestors for a colour. All work is bounded by
`limits`. Nothing raises; what stays unknown counts as visible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple

from selectolax.lexbor import SelectolaxError

from spamnb.mail import limits
from spamnb.mail.styles import (
    WHITE,
    Colour,
    Declared,
    Rule,
    colour,
    declarations,
    media_applies,
    pixels,
    rules,
    with_variables,
)

_UNSEEN_BY_TAG: Final = (
    "[hidden],dialog:not([open]),datalist,audio,video,canvas,meter,progress,noscript,noembed,"
    "noframes,iframe,rp,svg desc,svg metadata,svg defs,svg symbol,svg[width='0'],svg[height='0'],"
    "svg text[fill='none'],svg text[fill='transparent'],svg text[opacity='0'],"
    "svg text[fill-opacity='0']"
)
_UNSEEN_TAGS = re.compile(
    rb"hidden|<(?:dialog|datalist|audio|video|canvas|meter|progress|no(?:script|embed|frames)"
    rb"|iframe|rp\b|svg)"
)
_BLOCKS: Final = frozenset((
    *("div", "p", "td", "th", "table", "tr", "ul", "ol", "li", "section", "article", "header"),
    *("footer", "nav", "aside", "main", "center", "blockquote", "pre", "form", "fieldset", "dl"),
    *("dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "figure", "figcaption", "address", "tbody"),
    *("body", "hr", "details", "summary", "video", "audio", "img", "button", "textarea"),
))  # fmt: skip
_BLOCK_DISPLAYS: Final = (
    "block", "inline-block", "table", "flex", "grid", "list-item", "flow-root", "inline-table",
    "inline-flex", "inline-grid",
)  # fmt: skip
_CELLS: Final = frozenset(("td", "th", "tr", "table", "tbody"))
"""A cell grows with its content, whatever its size."""
_TINY: Final = 2.0
"""pixels of letters that no reader can read"""
_FAR: Final = -400.0
"""pixels beyond the edge of the screen"""
_FAINT: Final = 0.04
"""opacity that leaves nothing to see"""
_NOTHING: Final = 0.02
"""scale that leaves nothing to see"""
Style = Mapping[str, Declared]


# ------------------------------------------------------------------------- of one style alone


def _value(style: Style, name: str) -> str:
    return style[name].value if name in style else ""


def _share(text: str) -> float | None:
    """A number or percentage, as for opacity."""
    value = pixels(text.removesuffix("%"))
    return None if value is None else value / 100 if text.endswith("%") else value


def _arguments(text: str, *functions: str) -> list[str]:
    """The arguments of the first of these functions within a value."""
    for function in functions:
        before, name, rest = text.partition(f"{function}(")
        if name and not before[-1:].isalpha():
            return rest.partition(")")[0].replace(",", " ").split()
    return []


def _numbers(texts: list[str]) -> list[float]:
    return [value for text in texts if (value := pixels(text)) is not None]


def _is_faint(value: str, _: Style) -> bool:
    opacity = _share(value)
    return opacity is not None and opacity < _FAINT


def _is_filtered(value: str, style: Style) -> bool:
    arguments = _arguments(value, "opacity")
    return bool(arguments) and _is_faint(arguments[0], style)


def _is_cut_by_path(value: str, _: Style) -> bool:
    sides = _arguments(value.partition(" round")[0], "inset")
    if sides:
        cut = [_percent(sides[index]) for index in _SIDES[min(len(sides), 4)]]
        return cut[0] + cut[2] >= 100 or cut[1] + cut[3] >= 100
    radius = _arguments(value, "circle", "ellipse")
    if radius:
        return pixels(radius[0]) == 0
    points = value[len("polygon(") : -1].split(",") if value.startswith("polygon(") else []
    return 0 < len({tuple(map(pixels, point.split())) for point in points}) < 3


_SIDES: Final = {1: (0, 0, 0, 0), 2: (0, 1, 0, 1), 3: (0, 1, 2, 1), 4: (0, 1, 2, 3)}


def _percent(text: str) -> float:
    share = _share(text) if text.endswith("%") else None
    return 0.0 if share is None else 100 * share


def _is_cut(value: str, style: Style) -> bool:
    sides = _numbers(_arguments(value, "rect"))
    if len(sides) != 4 or _value(style, "position") not in {"absolute", "fixed"}:
        return False
    top, right, bottom, left = sides
    return bottom - top <= 1 or right - left <= 1


def _is_zoomed_away(value: str, _: Style) -> bool:
    zoom = _share(value)
    return zoom is not None and 0 < zoom < 0.1


def _is_transformed_away(value: str, _: Style) -> bool:
    factors = map(_share, _arguments(value, "scale", "scalex", "scaley", "scale3d"))
    if any(factor is not None and abs(factor) < _NOTHING for factor in factors):
        return True
    matrix = _numbers(_arguments(value, "matrix"))
    if len(matrix) == 6 and abs(matrix[0] * matrix[3] - matrix[1] * matrix[2]) < _NOTHING**2:
        return True
    if {*_arguments(value, "rotatex", "rotatey")} & _SIDEWAYS:
        return True
    return _is_beyond(
        " ".join(_arguments(value, "translate", "translatex", "translatey", "translate3d"))
    )


_SIDEWAYS: Final = frozenset(("90deg", "-90deg", ".25turn", "0.25turn", "100grad"))


def _is_scaled_away(value: str, _: Style) -> bool:
    factors = map(_share, value.split())
    return any(factor is not None and abs(factor) < _NOTHING for factor in factors)


def _is_beyond(value: str) -> bool:
    return "-" in value and any(length < _FAR for length in _numbers(value.split()))


def _is_moved_away(value: str, style: Style) -> bool:
    return _is_beyond(value) and _value(style, "position") in {"absolute", "fixed", "relative"}


def _is_pushed_away(value: str, _: Style) -> bool:
    return _is_beyond(value)


def _is_indented_away(value: str, style: Style) -> bool:
    return _is_beyond(value) and _value(style, "white-space") in {"nowrap", "pre"}


def _is_without_height(value: str, style: Style) -> bool:
    return _has_no_room(value, style, "height", "y")


def _is_without_width(value: str, style: Style) -> bool:
    return _has_no_room(value, style, "width", "x")


def _has_no_room(value: str, style: Style, name: str, axis: str) -> bool:
    """Whether a box has no room and shows nothing beyond its edges."""
    size = pixels(value)
    if size is None or not 0 <= size <= 1 or value.endswith("%"):
        return False
    over = f"{_value(style, 'overflow')} {_value(style, f'overflow-{axis}')}".split()
    padding = [_value(style, one) for one in _PADDING]
    room = [pixels(_value(style, f"min-{name}")) or 0.0, *_numbers(" ".join(padding).split())]
    return bool(_CUTTING & set(over)) and max(room) <= 1


_PADDING: Final = ("padding", "padding-top", "padding-right", "padding-bottom", "padding-left")
_CUTTING: Final = frozenset(("hidden", "clip", "auto", "scroll"))


class _Check(NamedTuple):
    """Whether a value of a property hides the whole content of an element."""

    holds: Callable[[str, Style], bool]
    scope: Literal["all", "blocks", "boxes"] = "all"
    """sizes and transforms do not apply within a line, and cells grow with their content"""


_CHECKS: Final[dict[str, _Check]] = {
    "display": _Check(lambda value, _: value == "none"),
    "content-visibility": _Check(lambda value, _: value == "hidden"),
    "opacity": _Check(_is_faint),
    **dict.fromkeys(("filter", "-webkit-filter"), _Check(_is_filtered)),
    **dict.fromkeys(("clip-path", "-webkit-clip-path"), _Check(_is_cut_by_path)),
    "clip": _Check(_is_cut),
    "zoom": _Check(_is_zoomed_away),
    **dict.fromkeys(("left", "top", "right", "bottom", "inset"), _Check(_is_moved_away)),
    **dict.fromkeys(("transform", "-webkit-transform"), _Check(_is_transformed_away, "blocks")),
    "scale": _Check(_is_scaled_away, "blocks"),
    "text-indent": _Check(_is_indented_away, "blocks"),
    **dict.fromkeys(("margin", "margin-left", "margin-top"), _Check(_is_pushed_away, "blocks")),
    **dict.fromkeys(("height", "max-height"), _Check(_is_without_height, "boxes")),
    **dict.fromkeys(("width", "max-width"), _Check(_is_without_width, "boxes")),
}


def _applies(scope: str, tag: str, style: Style) -> bool:
    return scope == "all" or (_is_block(tag, style) and (scope == "blocks" or tag not in _CELLS))


def _is_block(tag: str, style: Style) -> bool:
    """Whether sizes and transforms apply to an element; an inline one ignores them."""
    display = _value(style, "display")
    if display:
        return display.startswith(_BLOCK_DISPLAYS)
    is_taken_out = _value(style, "position") in {"absolute", "fixed"}
    return tag in _BLOCKS or is_taken_out or _value(style, "float") in {"left", "right"}


def hiding_property(tag: str, style: Style) -> str:
    """Return the property that hides the content of an element; "" for none, or for its colour."""
    for name in style:
        check = _CHECKS.get(name)
        if check is None or not check.holds(style[name].value, style):
            continue
        if _applies(check.scope, tag, style):
            return name
    if _value(style, "visibility") in {"hidden", "collapse"}:
        return "visibility"
    size = pixels(_value(style, "font-size"))
    return "font-size" if size is not None and 0 <= size < _TINY else ""


def text_colour(style: Style) -> Colour | None:
    """Return the colour of letters that a style sets."""
    for name in ("-webkit-text-fill-color", "color"):
        found = colour(_value(style, name))
        if found is not None:
            return None if "text-shadow" in style or "-webkit-text-stroke" in style else found
    return None


# ------------------------------------------------------------------------------------ of a page


class ElementStyle(Mapping[str, Declared]):
    """What is declared for an element of a page; each property is looked up when it is needed."""

    def __init__(self, page: Page, node: Any) -> None:
        self._page, self._node = page, node
        self._own = declarations((node.attributes.get("style") or "")[: limits.STYLE_READ])
        self._known: dict[str, Declared | None] = {}

    def _found(self, name: str) -> Declared | None:
        if name not in self._known:
            self._known[name] = self._page.declared(self._node, self._own, name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._found(name) is not None

    def __getitem__(self, name: str) -> Declared:
        found = self._found(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        """The properties that may hide: own ones, and those of rules that hide."""
        return (
            name for name in _CHECKS.keys() & (self._own.keys() | self._page.hiding) if name in self
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Page:
    """A parsed page with its style sheets."""

    def __init__(self, tree: Any, low: bytes, sheets: list[str]) -> None:
        self._tree, self._low = tree, low
        text = "".join(sheets)
        found = sheet_of(text) if len(text) <= limits.RULES_BYTES else None
        self._is_known = found is not None and b"<link" not in low
        self._sheet = found or Sheet((), (), {}, frozenset())
        self.hiding = self._sheet.hiding
        self._variables = _variables(self._sheet.rules, low)
        self._selected: dict[str, dict[int, Any]] = {}
        self._setting: dict[str, tuple[dict[int, list[int]], list[int]]] = {}
        self._entries = limits.RULE_ENTRIES
        self._steps = limits.MATCH_STEPS
        self._behind: dict[int, Colour | None] = {}
        self._looks = iter(range(limits.INNER_LOOKS))

    def declared(self, node: Any, own: Style, name: str) -> Declared | None:
        """Return what is declared for a property of an element, by the rules of the cascade."""
        won = own.get(name)
        key: tuple[Any, ...] = (won.important, True) if won is not None else ()
        for number in self._rules_for(node, name):
            rule = self._sheet.rules[number]
            declared = rule.style[name]
            # Most styles are elements' own, and only important rules overrule them.
            if (declared.important, False, rule.rank, number) < key:
                continue
            matches = self._matches(node, rule)
            if matches is not False:
                key = declared.important, False, rule.rank, number
                # Text that an uncertain rule may show or hide is visible.
                is_sure = rule.is_certain and matches is True
                won = declared if is_sure else Declared("", declared.important)
        if won is not None and "var(" in won.value:
            return Declared(with_variables(won.value, self._variables) or "", won.important)
        return won

    def _rules_for(self, node: Any, name: str) -> Iterable[int]:
        """The numbers of the rules that may set a property of an element."""
        if name not in self._sheet.setting:
            return ()
        if name not in self._setting:
            self._setting[name] = self._rules_setting(name)
        by_element, others = self._setting[name]
        own = by_element.get(node.mem_id, ())
        return chain(own, others) if others else own

    def _rules_setting(self, name: str) -> tuple[dict[int, list[int]], list[int]]:
        """The rules that set a property: by their elements, and those with many or unknown ones."""
        by_element: dict[int, list[int]] = {}
        others = []
        for number in self._sheet.setting[name]:
            parts = self._sheet.rules[number].parts
            elements = self._simple(parts[-1][1]) if parts is not None else {}
            self._entries -= len(elements)
            if parts is None or self._entries < 0:
                others.append(number)
            else:
                for id_ in elements:
                    by_element.setdefault(id_, []).append(number)
        return by_element, others

    def _matches(self, node: Any, rule: Rule) -> bool | None:
        """Whether a rule is for an element; None if that is unknown.

        Lexbor selects by the simple parts alone: by `.x div div div` it takes 6 s for 500 nested
        elements.
        """
        if rule.parts is None:
            return None
        if node.mem_id not in self._simple(rule.parts[-1][1]):
            return False
        return self._follows(node, rule.parts, len(rule.parts) - 1)

    def _follows(self, node: Any, parts: Sequence[tuple[str, str]], at: int) -> bool | None:
        """Whether what stands before a part of a selector holds for an element of the part."""
        if at == 0:
            return True
        wanted = self._simple(parts[at - 1][1])
        for other in _reached(node, parts[at][0]):
            self._steps -= 1
            if self._steps < 0:
                return None
            if other.mem_id in wanted:
                found = self._follows(other, parts, at - 1)
                if found is not False:
                    return found
        return False

    def _simple(self, selector: str) -> dict[int, Any]:
        """The elements of a simple selector, by their ids."""
        if selector not in self._selected:
            self._selected[selector] = {node.mem_id: node for node in self._select(selector)}
        return self._selected[selector]

    def _select(self, selector: str) -> list[Any]:
        try:
            return list(self._tree.css(selector))
        except SelectolaxError:
            return []

    # -- what is hidden

    def remove_hidden(self) -> list[str]:
        """Remove hidden elements from the tree, and return their texts.

        The root stays: Lexbor cannot remove it, and mail programs show its content in a page of
        their own.
        """
        texts = []
        # A node that is removed must not be touched again, so all are found before.
        for node in list(islice(self._hidden(), limits.HIDDEN_NODES)):
            texts.append(node.text(separator=" ").strip())
            node.decompose()
        return [text for text in texts if text]

    def _hidden(self) -> Iterator[Any]:
        """Find hidden elements, but not those within one that is found before."""
        gone: set[int] = set()
        for node, is_hidden in self._suspects():
            if node.mem_id not in gone and node.tag != "html" and is_hidden(node):
                gone.add(node.mem_id)
                gone.update(one.mem_id for one in node.css("*"))
                yield node

    def _suspects(self) -> Iterator[tuple[Any, Callable[[Any], bool]]]:
        """Elements that may be hidden, each with what tells it."""
        if _UNSEEN_TAGS.search(self._low):
            for node in self._select(_UNSEEN_BY_TAG)[: limits.HIDDEN_NODES]:
                yield node, self._is_unseen
        if b"style" in self._low or b"color" in self._low:
            for node in self._candidates():
                yield node, self._is_hidden

    def _is_unseen(self, node: Any) -> bool:
        display = _value(self._style(node), "display")
        if "hidden" in node.attributes:
            return not display or display == "none"
        return node.tag not in _DISPLAYABLE or display in {"", "none"}

    def _style(self, node: Any) -> Style:
        return ElementStyle(self, node)

    def _candidates(self) -> list[Any]:
        """Elements that a style of their own, a rule or a colour may hide."""
        backs = [WHITE, *self._backgrounds()]
        found: dict[int, Any] = {}
        if b"style" in self._low:
            # One search for all elements with a style, and one look at each distinct style.
            verdicts: dict[str, bool] = {}
            for node in islice(self._select("[style]"), limits.STYLED_NODES):
                text = (node.attributes.get("style") or "")[: limits.STYLE_READ]
                if text not in verdicts:
                    is_read = len(verdicts) < limits.STYLES
                    verdicts[text] = is_read and _may_hide(own_look(text), backs)
                if verdicts[text]:
                    found[node.mem_id] = node
        for rule, look in zip(self._sheet.rules, self._sheet.looks, strict=True):
            if rule.is_certain and rule.parts is not None and _may_hide(look, backs):
                for node in islice(self._simple(rule.parts[-1][1]).values(), limits.HIDDEN_NODES):
                    found[node.mem_id] = node
        if b"color" in self._low:
            for node in self._select("[color]")[: limits.COLOURED_NODES]:
                found[node.mem_id] = node
        return list(found.values())

    def _backgrounds(self) -> Iterator[Colour]:
        names = list(dict.fromkeys(_BACKGROUNDS.findall(self._low)))[: limits.COLOURS]
        for name in names:
            found = colour(name.decode("ascii", "replace").strip())
            if found is not None and found.alpha > _FAINT:
                yield found

    def _is_hidden(self, node: Any) -> bool:
        style = self._style(node)
        name = hiding_property(node.tag, style)
        if not name and self._is_unreadable(node, style):
            name = "color"
        return bool(name) and not self._may_be_set_within(node, name)

    def _is_unreadable(self, node: Any, style: Style) -> bool:
        """Whether the letters of an element have the colour of what is behind them."""
        letters = text_colour(style)
        if letters is None and "color" not in style:
            letters = colour((node.attributes.get("color") or "").strip().lower())
        if letters is None:
            return False
        if letters.alpha < _FAINT:
            return True
        back = self._background(node)
        return back is not None and letters.over(back).is_near(back)

    def _background(self, node: Any, left: int = limits.ANCESTORS) -> Colour | None:
        """The colour behind an element; None if a picture or an unknown colour may be there."""
        if node is None or not node.is_element_node or left == 0:
            return WHITE if self._is_known else None
        id_ = node.mem_id
        if id_ not in self._behind:
            text = self._own_background(node)
            found = colour(text) if text else self._background(node.parent, left - 1)
            self._behind[id_] = found if found is not None and found.alpha == 1.0 else None
        return self._behind[id_]

    def _own_background(self, node: Any) -> str:
        """What an element declares for its background; "" if nothing."""
        attributes = node.attributes
        if "background" in attributes:
            return "a picture"
        # Most elements around a text declare none.
        is_styled = "style" in attributes or self._sheet.setting.keys() & _BACKGROUND_NAMES
        style = self._style(node) if is_styled else {}
        if "background-image" in style:
            return "a picture"
        texts = (
            _value(style, "background-color"),
            (attributes.get("bgcolor") or "").strip().lower(),
        )
        return next((text for text in texts if text and text not in _NO_BACKGROUND), "")

    def _may_be_set_within(self, node: Any, name: str) -> bool:
        """Whether an inner element may set a property again, so that its text is seen."""
        if name not in _SETTING:
            return False
        if next(self._looks, None) is None:
            return True
        inner = [one for one in node.css(_SETTING[name]) if one.mem_id != node.mem_id]
        for number in self._sheet.setting.get(name, ()):
            parts = self._sheet.rules[number].parts
            if parts is None:
                return True
            some = islice(self._simple(parts[-1][1]).values(), limits.INNER_NODES)
            inner += [one for one in some if _is_within(one, node)]
        if len(inner) > limits.INNER_NODES:
            return True
        return any(self._sets_again(one, name) for one in inner)

    def _sets_again(self, node: Any, name: str) -> bool:
        style = self._style(node)
        if name == "color":
            is_set = "color" in style or "color" in node.attributes
            return is_set and not self._is_unreadable(node, style)
        if name == "font-size":
            size = pixels(_value(style, name))
            return node.tag in {"font", "table"} or (size or 0.0) >= _TINY
        return "visibility" in style and _value(style, "visibility") not in {"hidden", "collapse"}


def _is_within(node: Any, outer: Any) -> bool:
    above = islice(_reached(node, " "), limits.ANCESTORS)
    return any(one.mem_id == outer.mem_id for one in above)


def _reached(node: Any, combinator: str) -> Iterator[Any]:
    """The elements that a combinator leads to: the parent, ancestors or the elements before."""
    while True:
        node = node.prev if combinator in {"+", "~"} else node.parent
        if node is None:
            return
        if node.is_element_node:
            yield node
            if combinator in {"+", ">"}:
                return


class Look(NamedTuple):
    """What a style may do, wherever it is."""

    hides: bool
    letters: Colour | None


def look_of(style: Style) -> Look:
    """Return what a style may do: for any element, and with any values of variables."""
    hides = any("var(" in declared.value for declared in style.values()) or bool(
        hiding_property("div", {**style, "position": _ABSOLUTE})
    )
    return Look(hides, text_colour(style))


class Sheet(NamedTuple):
    """The rules of a page."""

    rules: tuple[Rule, ...]
    looks: tuple[Look, ...]
    """of each rule"""
    setting: dict[str, list[int]]
    """of each property: the numbers of the rules that set it"""
    hiding: frozenset[str]
    """the properties by which rules may hide"""


# A sheet of RULES_BYTES may become 4 MB.
@lru_cache(maxsize=8)
def sheet_of(text: str) -> Sheet | None:
    """Return the rules of a style sheet; None if there are too many."""
    found = tuple(rules(text, limits.RULES))
    if len(found) > limits.RULES:
        return None
    looks = tuple(look_of(rule.style) for rule in found)
    setting: dict[str, list[int]] = {}
    for number, rule in enumerate(found):
        for name in rule.style:
            setting.setdefault(name, []).append(number)
    hiding = [rule.style.keys() for rule, look in zip(found, looks, strict=True) if look.hides]
    return Sheet(found, looks, setting, frozenset(_CHECKS.keys() & set().union(*hiding)))


@lru_cache(maxsize=4096)
def own_look(text: str) -> Look:
    """Return what a style attribute may do."""
    return look_of(declarations(text))


def _may_hide(look: Look, backs: list[Colour]) -> bool:
    letters = look.letters
    return look.hides or (
        letters is not None
        and (letters.alpha < _FAINT or any(letters.over(one).is_near(one) for one in backs))
    )


_DISPLAYABLE: Final = frozenset(("dialog", "datalist", "rp", "noscript"))
"""elements that a style may show"""
_BACKGROUND_NAMES: Final = frozenset(("background-color", "background-image"))
_ABSOLUTE: Final = Declared("absolute", False)
_NO_BACKGROUND: Final = frozenset(("transparent", "none", "inherit", "initial", "unset"))
_SETTING: Final = {
    "visibility": '[style*="visibility" i]',
    "font-size": '[style*="font" i],font,table',
    "color": '[style*="color" i],[color]',
}
_BACKGROUNDS = re.compile(
    rb"(?:bgcolor|background(?:-color)?)\s{0,3}[:=]\s{0,3}[\"']?\s{0,3}"
    rb"(#[0-9a-f]{3,8}|[a-z]{3,20}(?:\([\d.,%\s]{1,40}\))?)"
)
_CUSTOM = re.compile(r"(--[\w-]{1,60}+)\s*+:\s*+([^;\"'}]{1,200})")


def _variables(found: Iterable[Rule], low: bytes) -> dict[str, str]:
    """The variables of a page; one with two values is left out."""
    if b"--" not in low or b"var(" not in low:
        return {}
    values: dict[str, set[str]] = {}
    for rule in found:
        for name, declared in rule.style.items():
            if name.startswith("--") and rule.is_certain:
                values.setdefault(name, set()).add(declared.value)
    for name, value in islice(_CUSTOM.findall(low.decode("utf-8", "replace")), limits.STYLES):
        values.setdefault(name, set()).add(" ".join(value.split()))
    return {name: one.pop() for name, one in values.items() if len(one) == 1}


def style_sheets(tree: Any, low: bytes) -> list[str]:
    """Return the style sheets of a page that apply to a screen."""
    if b"<style" not in low:
        return []
    return [
        node.text()
        for node in tree.css("style")
        if media_applies(node.attributes.get("media") or "") is not False
    ]
