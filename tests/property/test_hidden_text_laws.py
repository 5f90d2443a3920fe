"""Laws of hidden text: any style is read, in bounded time, and what is uncertain is visible."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.cpu_time import is_within

from spamnb.mail.html import HtmlBudget, read_html

LIMIT_S = 0.7
"""for one page, on the reference machine"""
WORDS = [
    *("{", "}", ";", ":", ",", "(", ")", "[", "]", '"', "'", "\\", "/*", "*/", "<!--", "-->", "\n"),
    *("!", "&", "*", ">", "+", "~", ".", "#", "%", "-", "--", " ", "0", "1", "1e9", "9999999px"),
    *(".a", "#b", "div", "p", "[title]", ":not(.a)", ":is(", ":where(.a)", "::before", ":hover"),
    *("@media", "@media screen{", "@supports not (", "@import", "@layer x", "(max-width:600px)"),
    *("display:none", "display:block", "color:#fff", "color:rgb(", "rgba(1 2 3/", "hsl(9,9%,9%)"),
    *("font-size:", "font:0/0 x", "calc(1px - ", "var(--x", "--x:", "transform:scale(0)", "\\69"),
    *("clip-path:polygon(0 0", "inset(50%)", "clip:rect(0,0,0,0)", "position:absolute", "é", "\0"),
    *("opacity:0", "visibility:hidden", "height:0", "overflow:hidden", "background:", "!important"),
]
CSS = st.lists(st.sampled_from(WORDS), max_size=40).map("".join)


def read(page: str):
    return read_html(page.encode(), HtmlBudget(), set())


def is_visible(page: str) -> bool:
    return "letter" in str(read(page).text)


@given(CSS, CSS)
@example("((((((", "{{{{{{")
@example("color:hsl(1,2%,3%/", "@media not{.a{display:none")
@example("font-size:calc(0/0)", "*{font-size:calc(1px/0)}")
@example("font-size:calc(9**9**9)", ".a{width:calc(((((((((1)))))))))}")
@example("display:var(--x)", ":root{--x:var(--x)}")
def test_any_style_is_read(own: str, sheet: str) -> None:
    """No style stops the reading, and text outside of styled elements stays."""
    own = own.replace('"', "&quot;")
    page = f'<style>{sheet}</style><div class=a id=b style="{own}">word</div>'
    assert read(page).text is not None
    assert is_visible(f'letter<div style="{own}">word</div>')


UNCERTAIN = [
    "div:nth-child(2n){%s}",
    "div:has(p){%s}",
    "@media (hover) and (x:1){div{%s}}",
    "@media (resolution>1dppx){div{%s}}",
    "@supports not (color:red){div{%s}}",
    "a:not(div > p),div:nth-of-type(1){%s}",
    "body > * > * > * > * > * > *,div:nth-child(1n){%s}",
]


@pytest.mark.parametrize("rule", UNCERTAIN)
@pytest.mark.parametrize(
    ("hides", "shows"),
    [
        ("display:none", "display:block"),
        ("color:#fff", "color:#000"),
        ("font-size:0", "font-size:14px"),
        ("height:0;overflow:hidden", "height:50px"),
    ],
)
def test_text_that_an_uncertain_rule_may_show_is_visible(rule, hides, shows) -> None:
    """A rule with a selector or a condition that is not understood may apply."""
    certain = f"<style>div{{{hides}}}</style>"
    assert not is_visible(f"{certain}<div>letter</div>")
    uncertain = f"<style>{rule % f'{shows}!important'}</style>"
    assert is_visible(f"{certain}{uncertain}<div>letter</div>")
    assert is_visible(f"<style>{rule % hides}</style><div>letter</div>")


def test_the_later_one_of_a_shorthand_and_its_property_counts() -> None:
    """A shorthand overrules what stands before it, and not what stands after it."""
    assert is_visible('<p style="background-color:#222;background:#fff;color:#222">letter')
    assert not is_visible('<p style="background:#fff;background-color:#222;color:#222">letter')
    assert is_visible('<p style="font-size:0;font:14px serif">letter')
    assert not is_visible('<p style="font:14px serif;font-size:0">letter')


def sheet(rules: str) -> str:
    return f"<style>{rules}</style>"


MANY = 3_900
COSTLY = {
    "open brackets": f"<style>{'(' * 60_000}</style><p>x",
    "open squares": f"<style>{'a[' * 30_000}{{color:#fff}}</style><p>x",
    "open braces": f"<style>{'a{' * 30_000}</style><p>x",
    "open quotes": f"<style>{chr(34) * 60_000}</style><p>x",
    "escapes": f"<style>{chr(92) * 60_000}</style><p>x",
    "comments": f"<style>{'/*' * 30_000}</style><p>x",
    "nested lists": f"<style>{'a,b,c,&{' * 7_000}color:#fff{'}' * 7_000}</style><p>x",
    "doubled ampersands": f"<style>{'&&&&&&&&{' * 6_000}color:#fff</style><p>x",
    "selectors": f"<style>{','.join(f'.a{i}' for i in range(9_000))}{{display:none}}</style><p>x",
    "rules": sheet("".join(f".a{i}{{color:#fff}}" for i in range(399))) + "<p class=a1>x" * MANY,
    "every rule for every element": sheet("p{color:#fff}" * 399) + "<p>x" * MANY,
    "descendants": sheet("div div div div div div{color:#fff}" * 399)
    + f"{'<div>' * 500}x{'</div>' * 500}",
    "siblings": sheet("p~p~p~p~p~p{color:#fff}" * 399) + "<p>x" * MANY,
    "variables": sheet(f":root{{{''.join(f'--a{i}:var(--a{i + 1});' for i in range(2_000))}}}")
    + "".join(f"<p style='color:var(--a{i})'>x" for i in range(2_000)),
    "styles": "".join(f"<p style='color:#fff;top:{i}px'>x" for i in range(MANY // 2)),
    "colours": "<style>p{color:#fff}</style>" + "<font color=#fff>" * 200 + "<p>x" * MANY,
    "calculations": "".join(
        f"<p style='font-size:calc({'(' * 30}{i}px{')' * 30})'>x" for i in range(2_000)
    ),
    "long style": f"<p style='{'color:#fff;' * 20_000}'>x",
    "set again within": "<style>b{visibility:visible}</style>"
    + "<div style='visibility:hidden'>" * 300
    + "<b style='visibility:hidden'>x" * 3_000,
}


@pytest.mark.parametrize("name", COSTLY)
def test_no_page_takes_long(name: str) -> None:
    """The work for one page has limits, whatever its styles are."""
    assert is_within(lambda: read(COSTLY[name]), LIMIT_S)


def test_style_sheets_do_not_stay_in_memory() -> None:
    """Many pages with long style sheets, each different, leave a few of them in memory."""
    tracemalloc.start()
    try:
        for number in range(100):
            unknown = f"@font-face{{src:url({number}{'x' * 30_000})}}"
            read(f"{sheet(unknown + f'p{{content:{number}{chr(121) * 30_000}}}')}<p>x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000
