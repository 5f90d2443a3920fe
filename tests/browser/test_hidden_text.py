"""Text that a browser does not draw is no visible text for the filter, and the other way round."""

import random

import pytest
from support.browser import chromium

from spamnb.mail.html import HtmlBudget, read_html

WORDS = "meeting minutes agenda library garden"
OTHERS = "gnimeet setunim adnega yrarbil nedrag"
"""words of the same size, in letters of one width"""
VIEW = {"width": 1024, "height": 300}
HIDING = [
    *("display:none", "display:none!important", "DISPLAY: None", "visibility:hidden"),
    *(r"d\69splay:none", "display/**/:/**/none", "width:1px;height:1px;overflow:auto"),
    *("visibility:collapse", "opacity:0", "opacity:0%", "filter:opacity(0)"),
    *("clip-path:inset(50%)", "clip-path:inset(100% 0 0 0)", "clip-path:circle(0)"),
    *("clip-path:polygon(0 0,0 0,0 0)", "position:absolute;clip:rect(0,0,0,0)"),
    *("position:absolute;clip:rect(1px 1px 1px 1px)", "transform:scale(0)", "transform:scaleY(0)"),
    *("transform:scale(1,0)", "transform:matrix(0,0,0,0,0,0)", "transform:rotateX(90deg)"),
    *("transform:translateX(-5000px)", "scale:0", "zoom:.001;opacity:0", "font-size:0"),
    *("font-size:calc(0px)", "font-size:calc(1px - 1px)", "font:0/0 serif", "font-size:0em"),
    *("max-height:0;overflow:hidden", "height:0;overflow:hidden", "width:0;overflow:hidden"),
    *("height:0px;overflow:auto", "max-width:0;max-height:0;overflow:clip"),
    *("height:0;overflow-y:hidden", "position:absolute;left:-9999px", "position:fixed;top:-900px"),
    *("position:relative;left:-9999px", "margin-left:-9999px", "content-visibility:hidden"),
    *("text-indent:-9999px;white-space:nowrap;overflow:hidden", "color:transparent"),
    *("color:#fff", "color:#ffff", "color:#00000000", "color:rgb(255,255,255)", "color:white"),
    *("color:rgb(100%,100%,100%)", "color:rgba(0,0,0,0)", "color:rgb(0 0 0 / 0%)"),
    *("color:hsl(0,0%,100%)", "color:hsla(120,100%,50%,0)", "color:rgb(255 255 255)"),
    *("background:#000;color:#000", "background-color:navy;color:#000080"),
    *("-webkit-text-fill-color:transparent", "display:var(--none)", "color:var(--pale)"),
]
SHOWING = [
    *("display:block", "display:none;display:block", "visibility:visible", "opacity:.9"),
    *("opacity:1;opacity:bogus", "clip-path:inset(0)", "clip:rect(0,0,0,0)", "transform:scale(1)"),
    *("font-size:14px", "font-size:0;font-size:1em", "max-height:0", "height:0", "width:0"),
    *("overflow:hidden", "color:#333", "color:#fff;color:#000", "background:#000;color:#fff"),
    *("x-display:none", "dis/**/play:none", "display:none none", "color:#12345", "left:-9999px"),
    *("background:#fff;color:rgb(0,0,0)", "color:rgba(0,0,0,.9)", "display:var(--missing)"),
    *("color:hsl(0,100%,30%)", "text-indent:20px", "margin-left:20px", "font:italic 14px serif"),
    *("/*display:none*/", 'font-family:";display:none;"', "mso-hide:all", "transform:scale(2)"),
]
PLACES = [
    ("", '<div style="{}">', "</div>"),
    ("", "<div STYLE='{}'>", "</div>"),
    ("", '<table><tr><td style="{}">', "</td></tr></table>"),
    ("<style>.q{{{}}}</style>", '<div class="q">', "</div>"),
    ("<style>#q{{{}}}</style>", '<div id="q">', "</div>"),
    ("<style><!-- div.q {{ {} }} --></style>", '<div class="p q">', "</div>"),
    ('<style>div[title="q"]{{{}}}</style>', '<div title="q">', "</div>"),
    ("<style>.o{{.q{{{}}}}}</style>", '<div class="o"><div class="q">', "</div></div>"),
    ("<style>.o{{& > .q{{{}}}}}</style>", '<div class="o"><div class="q">', "</div></div>"),
    ("<style>.o > p + div{{{}}}</style>", '<div class="o"><p>x</p><div>', "</div></div>"),
    ("<style>@media all{{.q{{{}}}}}</style>", '<div class="q">', "</div>"),
    ("<style>@media screen and (min-width:600px){{.q{{{}}}}}</style>", '<div class="q">', "</div>"),
    ("<style>a{{color:red}}.q{{{}}}.r{{color:red}}</style>", '<div class="q">', "</div>"),
    ('<style media="screen">.q{{{}}}</style>', '<div class="q">', "</div>"),
    ("<style>.\\71{{{}}}</style>", '<div class="q">', "</div>"),
]
NOT_APPLIED = [
    ("<style>@media print{{.q{{{}}}}}</style>", '<div class="q">', "</div>"),
    ("<style>@media (max-width:600px){{.q{{{}}}}}</style>", '<div class="q">', "</div>"),
    ("<style>.q{{{}}}</style>", '<div class="p">', "</div>"),
    ('<style media="print">.q{{{}}}</style>', '<div class="q">', "</div>"),
    ("<style>.o .q{{{}}}</style>", '<div class="q">', "</div>"),
    ("<style>@font-face{{{}}}</style>", "<div>", "</div>"),
]
ELEMENTS = [
    *(("", "<dialog>", "</dialog>"), ("", "<datalist><option>", "</datalist>")),
    *(("", "<audio>", "</audio>"), ("", '<video width="0" height="0">', "</video>")),
    *(("", "<noscript>", "</noscript>"), ("", "<div hidden>", "</div>")),
    *(("", "<template>", "</template>"), ("", "<noframes>", "</noframes>")),
    *(("", '<svg width="0" height="0"><text>', "</text></svg>"),),
    *(("", '<svg><text y="20" fill="none">', "</text></svg>"), ("", "<canvas>", "</canvas>")),
    *(("", "<svg><desc>", "</desc></svg>"), ("", '<font color="#ffffff">', "</font>")),
    *(("", "<iframe>", "</iframe>"), ("", "<ruby>x<rp>", "</rp></ruby>")),
    *(("", '<table bgcolor="black"><td><font color=black>', "</font></table>"),),
    ("<style>.q{display:none!important}</style>", '<p class=q style="display:block">', "</p>"),
    ("<style>#q{display:none}p{display:block}</style>", "<p id=q>", "</p>"),
]
SHOWN = [
    ("<style>.q{display:none}</style>", '<p class=q style="display:block">', "</p>"),
    ("<style>.q{display:none}#q{display:block}</style>", "<p class=q id=q>", "</p>"),
    ("<style>.q{display:none}</style><style>.q{display:block}</style>", "<p class=q>", "</p>"),
    ("<style>.q{display:none}@media all{.q{display:block}}</style>", "<p class=q>", "</p>"),
    ("", "<dialog open>", "</dialog>"),
    ("", '<div style="visibility:hidden"><b style="visibility:visible">', "</b></div>"),
    ("", '<div style="font-size:0"><p style="font-size:14px">', "</p></div>"),
    ("", '<div style="color:#fff"><b style="color:#000">', "</b></div>"),
    ("", '<body bgcolor=black><font color="#fff">', "</font>"),
    ("<style>body{background:#000}</style>", '<p style="color:#fff">', "</p>"),
    ("", '<span style="transform:scale(0)">', "</span>"),
    ("", '<span style="height:0;overflow:hidden">', "</span>"),
]


def cases():
    """Every way in one place, and ways in places by chance: 200 or more."""
    dice = random.Random(1)
    made = {}
    for ways, places in ((HIDING, PLACES), (SHOWING, PLACES), (HIDING, NOT_APPLIED)):
        for number, way in enumerate(ways):
            for place in (places[number % len(places)], dice.choice(places)):
                made[tuple(part.format(way.replace('"', "&quot;") if '="{}' in part else way)
                           for part in place)] = None  # fmt: skip
    return [*made, *ELEMENTS, *SHOWN]


def page_of(case, words):
    sheet, opening, closing = case
    variables = "<style>:root{--none:none;--pale:#fff}*{font-family:monospace}</style>"
    return f"<!DOCTYPE html>{variables}{sheet}<p>Buy now</p>{opening}{words}{closing}"


def visible(page):
    return str(read_html(page.encode(), HtmlBudget(), set()).text)


@pytest.fixture(scope="module")
def drawn():
    """Whether the browser draws the words of each case."""
    with chromium() as browser:
        window = browser.real.new_page(viewport=VIEW)
        found = []
        for case in cases():
            pictures = set()
            for words in (WORDS, OTHERS):
                window.set_content(page_of(case, words))
                pictures.add(window.screenshot(animations="disabled", caret="hide"))
            found.append((case, len(pictures) > 1))
    return found


def test_the_filter_sees_what_the_browser_draws(drawn):
    """Words are hidden where the picture stays the same with other words."""
    assert len(drawn) > 200
    wrong = [
        (is_drawn, page_of(case, WORDS))
        for case, is_drawn in drawn
        if ("library" in visible(page_of(case, WORDS))) != is_drawn
    ]
    assert not wrong, "\n".join(map(str, wrong))
