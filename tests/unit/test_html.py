"""HTML -> what is seen, what is hidden, links, tags."""

import pytest

from spamnb.mail import limits
from spamnb.mail.html import HtmlBudget, HtmlText, bounded_html, read_html
from spamnb.mail.limits import PARTLY


def page(source: bytes | str) -> tuple[HtmlText, list[str]]:
    odd: set[str] = set()
    return read_html(source, HtmlBudget(), odd), sorted(odd)


def seen(source: bytes | str) -> str:
    text = page(source)[0].text
    return " ".join((text if isinstance(text, str) else text.decode()).split())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"<p>one<p>two", "one two"),
        (b"V<b>i</b>a<!-- x -->g<i></i>ra", "Viagra"),
        (b"<td>a</td><td>b</td>", "a b"),
        (b"<table><tr><td><b>a</b></td><td>b</td></tr></table>", "a b"),
        (b"a<br>b<BR/>c<hr>d", "a b c d"),
        (b"<ul><li>a<li>b</ul><div>c</div>d", "a b c d"),
        (b"&lt;b&gt; &amp;eacute; &#65;&#x42;", "<b> &eacute; AB"),
        (b"caf&eacute;", "café"),
        ("caf\u00e9 <b>\u00fc</b>", "café ü"),
        (b"a&nbsp;b", "a b"),
        (b"<title>t</title><style>s{}</style><script>x</script>y", "y"),
        (b"<body>x<noscript>n</noscript><iframe>i</iframe></body>", "x"),
        (b"", ""),
        (b"<frameset><frame src=x></frameset>", ""),
        (b"<plaintext>a<b>c", "a<b>c"),
        (b"text < 5 and > 3", "text < 5 and > 3"),
    ],
)
def test_text_is_what_a_person_sees(source: bytes | str, text: str) -> None:
    """Words are parted where lines break on the screen, and nowhere else."""
    assert seen(source) == text


def test_ascii_pages_stay_bytes() -> None:
    """Every ASCII field is bytes, because later steps are faster on bytes."""
    found, odd = page(b"<!-- c --><a href=u>t&nbsp;</a><img src=i>")
    assert (found.hidden, found.links, found.images) == (b"c", [b"u"], [b"i"])
    assert (found.markup, odd) == (b"a img", [])


@pytest.mark.parametrize(
    "opening",
    [
        b'<b style="display:none">',
        b"<b style='DISPLAY : NONE'>",
        b"<b style=display:none>",
        b'<b style="color:red;display:none!important">',
        b'<b style="display:\nnone">',
        b'<b style="dis&#112;lay:none">',
        b'<b style="visibility:hidden">',
        b'<b style="font-size:0">',
        b'<b style="font-size: 1px">',
        b'<b style="font-size:0.01em">',
        b'<div style="max-height:0;overflow:hidden">',
        b'<b style="display:inline-block;width:0px;overflow:hidden">',
        b'<b style="opacity:0">',
        b'<div style="text-indent:-9999px;white-space:nowrap">',
        b"<b hidden>",
        b"<style>.x{color:red;display:none}</style><b class='a x'>",
        b"<style>i,#x {visibility:hidden}</style><b id=x>",
        b'<font color="#FFFFFF">',
        b"<font color=white>",
        b'<b style="color:#fff">',
        b'<b style="color:#fefefe">',
        b"<table bgcolor=#00ff00><td><font color=lime>",
        b'<div style="background-color:navy"><i style="color:#000080">',
    ],
)
def test_hidden_text_is_taken_out(opening: bytes) -> None:
    """Text that no person sees is not their text, and the trick leaves a mark."""
    found, odd = page(b"<p>seen</p>" + opening + b"secret <u>word</u>")
    assert found.hidden.split() == [b"secret", b"word"]
    assert found.text.split() == [b"seen"]
    assert odd == ["html:hidden"]


@pytest.mark.parametrize(
    "opening",
    [
        b'<b style="display:block">',
        b'<b style="font-size:0.9em">',
        b'<b style="font-size:10px">',
        b'<p style="font-size:0"></p><b style="font-size:0.9em">',
        b'<b style="line-height:0">',
        b'<b style="min-width:0;border-width:0">',
        b'<b style="opacity:0.9">',
        b"<input type=hidden><b>",
        b"<html hidden><b>",
        b'<html style="display:none"><b>',
        b'<html style="color:white"><b>',
        b"<style>@media print { .x{display:none} .y{display:none} }</style><b class=x>",
        b"<style>div > b{display:none}</style><b>",
        b"<style>.x{color:red}</style><b class=x>",
        b"<body bgcolor=black><font color=white>",
        b"<table><td bgcolor=#f00><font color=white>",
        b'<div style="background:url(x.png)"><font color=white>',
        b"<table background=x.png><td><font color=white>",
        b'<div style="background:linear-gradient(red,blue)"><font color=white>',
        b"<font color=bogus>",
        b"<font color=#12345>",
        b'<font color="#12 456">',
        b'<table><td bgcolor="#12=456"><font color=white>',
        b'<table><td bgcolor="#-12"><font color=white>',
        b"<font color=white><font color=black>",
        b"<b style='background-color:white'>",
    ],
)
def test_visible_text_stays(opening: bytes) -> None:
    """What only resembles a trick is read as text."""
    found, odd = page(b"<p>seen</p>" + opening + b"word")
    assert found.text.split() == [b"seen", b"word"]
    assert odd == []


def test_nested_hidden_text_is_reported_once() -> None:
    """Elements within a hidden element go with it."""
    inner = b'<p style="display:none">b<i hidden>c</i></p>'
    source = b'<div style="display:none">a' + inner + b"</div>d<b hidden>e</b>"
    found, _ = page(source)
    assert sorted(found.hidden.split()) == [b"a", b"b", b"c", b"e"]
    assert found.text.split() == [b"d"]


def test_comments_are_hidden_text() -> None:
    """A comment is hidden text, also without an end."""
    assert page(b"a<!-- b -->c<!--d")[0].hidden.split() == [b"b", b"d"]
    assert page("<!-- é -->".encode())[0].hidden == "é"


@pytest.mark.parametrize(
    ("source", "links", "images"),
    [
        (b'<a href="http://x/">t</a>', [b"http://x/"], []),
        (b"<A HREF=http://x/?a&amp;b><b>t</b> u</A>", [b"http://x/?a&b"], []),
        (b"<map><area href=/y></map>", [b"/y"], []),
        (b"<form action=/post><input src=i></form>", [b"/post"], [b"i"]),
        (b"<table background=bg><td background=td>", [], [b"bg", b"td"]),
        (b"<link href=style.css><a name=x>", [], []),
        (b"<a href>empty</a><img src>", [], []),
        ("<a href='http://\u00e9/'>\u00fc</a>", ["http://é/"], []),
        (b"<svg><a href=s>t</a></svg>", [b"s"], []),
    ],
)
def test_links_and_images_are_found(source, links, images) -> None:
    """Every kind of link of a page is listed."""
    found, _ = page(source)
    assert (found.links, found.images) == (links, images)


@pytest.mark.parametrize(
    ("source", "mark"),
    [
        (b"<a href='http://evil.example/'>www.bank.example.com</a>", "url:text-differs"),
        (b"<a href='http://evil.org/bank.com'>https://bank.com/login</a>", "url:text-differs"),
        (b"<a href='http://bank.com@evil.org/'>bank.com</a>", "url:text-differs"),
        (b"<a href='//evil.org'>bank.com</a>", "url:text-differs"),
        (b"<a href='//evil.org'>&nbsp;<b>bank</b>.com&nbsp;</a>", "url:text-differs"),
        (b"<a href=javascript:x>t</a>", "url:javascript"),
        (b"<a href=' VBScript:x'>t</a>", "url:vbscript"),
        (b"<a href=data:text/html,x>t</a>", "url:data"),
        (b"<img src=DATA:image/gif;base64,x>", "url:data-image"),
        (b"<base href=http://x/>", "html:base"),
    ],
)
def test_deceiving_links_are_reported(source: bytes, mark: str) -> None:
    """A link that shows another target, or is a program, leaves a mark."""
    assert page(source)[1] == [mark]


@pytest.mark.parametrize(
    "source",
    [
        b"<a href='http://www.bank.com/x'>bank.com</a>",
        b"<a href='http://BANK.com.'>https://login.bank.com/</a>",
        b"<a href='http://evil.org'>click here</a>",
        b"<a href='http://evil.org'>e.g.</a>",
        b"<a href='mailto:a@b.com'>bank.com</a>",
        b"<a href='/relative'>bank.com</a>",
        b"<a href='jump.html'>next</a>",
    ],
)
def test_honest_links_are_not(source: bytes) -> None:
    """Links within a site, to nowhere in particular, or with words leave none."""
    assert page(source)[1] == []


def test_everything_is_capped() -> None:
    """Links, images, their texts, tags and hidden text have limits of their own."""
    many = limits.LINKS + 50
    found, _ = page(b"<a href=x><img src=y></a>" * many)
    assert (len(found.links), len(found.images)) == (limits.LINKS, limits.LINKS)
    long = b"x" * 9999
    found, _ = page(b"<a href=" + long + b">" + long + b"</a><img src=" + long + b">")
    assert len(found.links[0]) == len(found.images[0]) == limits.URL_BYTES
    found, odd = page(b"<!-- " + b"c" * 99_999 + b" --><p a=" + b"y" * 400_000)
    assert len(found.hidden) == limits.HIDDEN_BYTES
    assert odd == ["html:huge", PARTLY]
    found, _ = page(b"".join(b"<p%04d>" % i for i in range(6000)))
    assert found.markup.split()[-1] == b"p%04d" % (limits.MARKUP_BYTES // len("<p0000>") - 1)
    nested = b"<a href=x>" * limits.HTML_PLAIN_TAGS + b"<a href=x>" * 100 + b"y" * 200_000
    assert len(page(nested)[0].links) == limits.LINKS


def attributes(count: int) -> bytes:
    return b"<a " + b" ".join(b"a%d" % i for i in range(count)) + b">"


FILL = b"fill " * (limits.HTML_UNCHECKED // 5 + 1)


@pytest.mark.parametrize(
    "source",
    [
        b"<b>" * (limits.HTML_TAGS + 1),
        b"</b>" * (limits.HTML_TAGS + 1),
        FILL + attributes(limits.HTML_ATTRIBUTES + 200),
        FILL + attributes(limits.HTML_ATTRIBUTES + 200)[:-1],
        FILL + b"<a " + b" ".join(b'a%d=">"' % i for i in range(500)) + b">",
        FILL + b'<a b="never closed>' + b"<p>" * 10,
    ],
    ids=["starts", "ends", "attributes", "open-tag", "quoted", "open-quote"],
)
def test_html_beyond_the_guard_is_stripped(source: bytes) -> None:
    """HTML that would cost the parser too much is read without it, and marked."""
    found, odd = page(b"hello &amp; <a href=http://x/>" + source + b" bye")
    assert "html:stripped" in odd
    assert found.text.startswith(b"hello & ")
    assert bounded_html(source, source, HtmlBudget(), set()) is None
    assert found.links == [b"http://x/"]


def test_references_without_a_parser_are_bounded() -> None:
    """Beyond the limit, references stay as they stand."""
    source = b"<b>" * (limits.HTML_TAGS + 1) + b"&lt;" * (limits.ENTITIES + 1)
    assert b"&lt;" in page(source)[0].text


def test_honest_large_html_is_parsed() -> None:
    """Long texts, long addresses and a quoted sign of a tag do not stop the parser."""
    source = FILL + b'<a title="a > b" href="' + b"x" * 3000 + b'">t</a>' + b"<p>" + FILL * 3
    found, odd = page(source)
    assert odd == ["html:torn-quotes"]
    assert found.links == [b"x" * limits.URL_BYTES]
    assert page(FILL + b"<p>" + FILL)[1] == []


def test_formatting_cannot_multiply() -> None:
    """Beyond the limit, unclosed formatting is inert, and links are found all the same."""
    source = b"<div>" + b"<font color=red>" * 300 + b"</div>" + b"<p>x</p>" * 100
    budget = HtmlBudget()
    safe = bounded_html(source, source, budget, set())
    assert safe is not None
    assert b"<font" not in safe
    assert b"</div>" in safe
    assert budget.tags == limits.HTML_TAGS - source.count(b"<")
    assert seen(source) == " ".join("x" * 100)
    roots = FILL + b"<html a><body b>" * limits.HTML_ROOTS
    safe = bounded_html(roots, roots, HtmlBudget(), set())
    assert safe is not None
    assert b"<html" not in safe


def test_the_budget_is_one_for_all_parts() -> None:
    """Many small parts cost no more than one large one."""
    budget, odd = HtmlBudget(), set()
    for _ in range(5):
        read_html(b"<p>" * (limits.HTML_TAGS // 4), budget, odd)
    assert odd == {"html:stripped"}


def test_many_tricks_of_hiding_are_bounded() -> None:
    """Distinct styles, elements and style sheets that hide have limits of their own."""
    spellings = b"".join(
        b'<b style="display:none;top:%dpx">h</b>' % i for i in range(limits.STYLES + 20)
    )
    found, odd = page(spellings)
    assert len(found.hidden.split()) == min(limits.STYLES, limits.HIDDEN_NODES)
    assert odd == ["html:hidden"]
    found, _ = page(b"<b hidden>h</b>" * (limits.HIDDEN_NODES + 10))
    assert len(found.text) == 10
    deep = b"<font color=white>" + b"<div>" * (limits.ANCESTORS + 5) + b"<i style='color:white'>x"
    assert page(b"<body bgcolor=white>" + deep)[0].hidden == b"x"
