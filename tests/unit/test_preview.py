"""The preview of a message: what it shows, where links lead, and what it never contains."""

import re
from html import escape
from pathlib import Path
from urllib.parse import quote

import pytest
from support.cpu_time import is_within
from support.evasions import every
from support.html_attacks import AT_ONCE, PRESSED

from spamnb.console.preview import (
    MOST_BYTES,
    TAGS,
    clean_html,
    preview,
    safe_target,
)

HOSTILE = Path(__file__).parents[2].parent / "shared" / "corpora" / "hostile"
HEAD = b"From: Ann <ann@example.org>\nSubject: lunch\n"
PAGE = HEAD + b"Content-Type: text/html; charset=utf-8\n\n"
OWN_TAGS = {"html", "head", "meta", "title", "style", "body", "main", "section"}
TAG = re.compile(r"<([a-z!/][^\s>]*)([^>]*)>", re.IGNORECASE)
ATTRIBUTES = re.compile(r'\s+([a-z-]+)="[^"]*"')
FILE = "Content-Type: a/b\nContent-Disposition: attachment; filename"
SLOW_S = 1.5
"""the worst page that was found takes 0.9 s; without limits some take minutes"""


def parts(*bodies):
    head = HEAD + b"Content-Type: multipart/mixed; boundary=b\n\n"
    return head + b"".join(b"--b\n" + body + b"\n" for body in bodies) + b"--b--\n"


def assert_harmless(document):
    """Only known tags and attributes are in a document, and targets are of three schemes."""
    for name, rest in TAG.findall(document.partition("</style>")[2]):
        assert name.lstrip("/") in TAGS | OWN_TAGS, name
        known = {"href", "rel", "class", "scope"}
        assert set(ATTRIBUTES.findall(rest)) <= known, (name, rest)
        assert ATTRIBUTES.sub("", rest).strip() == "", (name, rest)
    for target in re.findall(r'href="([^"]*)"', document):
        assert target.startswith(("http://", "https://", "mailto:")), target


@pytest.mark.parametrize("page", [*AT_ONCE.values(), *PRESSED.values()],
                         ids=[*AT_ONCE, *PRESSED])  # fmt: skip
def test_an_attack_leaves_nothing_that_acts(page):
    """After cleaning only structure and links remain."""
    assert_harmless(preview(PAGE + page.encode()))


def test_header_text_and_attachments_are_shown():
    """Header fields are decoded, text is kept as it is, attachments are named and not opened."""
    shown = preview(
        parts(
            b"Content-Type: text/plain\n\nfirst <b>line</b>\n  second & last",
            b'Content-Type: application/pdf; name="<i>a.pdf"\n\nPDF CONTENT',
            b"Content-Type: text/html\nContent-Disposition: attachment; filename=x.html\n\nINSIDE",
        ).replace(b"lunch", b"=?utf-8?q?l=C3=BCnch_<b>?=")
    )
    assert "<bdi>lünch &lt;b&gt;</bdi>" in shown
    assert "first &lt;b&gt;line&lt;/b&gt;\n  second &amp; last" in shown
    assert "&lt;i&gt;a.pdf" in shown
    assert "11 bytes" in shown
    assert "x.html" in shown
    assert "CONTENT" not in shown
    assert "INSIDE" not in shown


@pytest.mark.parametrize(
    ("written", "shown", "ending"),
    [
        (f"{FILE}*=utf-8''invoice_2026%E2%80%AEfdp.exe", "invoice_2026<U+202E>fdp.exe", ".exe"),
        (f'{FILE}="=?utf-8?q?a=E2=80=AEfdp=2Eexe?="', "a<U+202E>fdp.exe", ".exe"),
        (f'{FILE}="a.pdf.e=?utf-8?q?=E2=80=8B?=xe"', "a.pdf.e<U+200B>xe", ".exe"),
        (f'{FILE}="a.pdf{" " * 20}.scr"', f"a.pdf{' ' * 20}.scr", ".scr"),
        ('Content-Type: a/b; name="=?utf-8?q?a=E2=80=AEfdp=2Eexe?="', "a<U+202E>fdp.exe", ".exe"),
    ],
)
def test_a_deceptive_name_of_an_attachment_is_told(written, shown, ending):
    """The name has its logical order and visible controls; its true ending and a warning follow."""
    document = preview(parts(b"Content-Type: text/plain\n\nhello", f"{written}\n\nMZ".encode()))
    row = f'<th scope="row"><bdi>{escape(shown)}</bdi></th><td><bdi>{ending}</bdi></td>'
    assert row in document
    assert f'<p class="warning">The name <bdi>{escape(shown)}</bdi>' in document
    assert f"the file really ends in {ending}." in document
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b]", document)


def test_an_ordinary_name_has_no_warning():
    """Names of all languages are shown as they are."""
    for name in ("report.pdf", "Rechnung für März.pdf", "חשבונית.pdf", "請求書\u3000三月.pdf"):
        field = "Content-Disposition: attachment; filename*=utf-8''" + quote(name)
        document = preview(parts(b"Content-Type: text/plain\n\nhello", f"{field}\n\nx".encode()))
        assert f"<bdi>{name}</bdi>" in document
        assert 'class="warning"' not in document


def test_header_fields_keep_their_logical_order():
    """Subject and addresses, also of a message inside, show the control instead of obeying it."""
    evil = "=?utf-8?q?ab=E2=80=AEcd?="
    inside = f"From: {evil} <i@x.example>\nSubject: {evil} in\n\nbody"
    raw = f"From: {evil} <a@x.example>\nSubject: {evil} out\n"
    raw += f"Content-Type: message/rfc822\n\n{inside}"
    document = preview(raw.encode())
    for one in ("ab<U+202E>cd <a@x.example>", "ab<U+202E>cd out", "ab<U+202E>cd <i@x.example>",
                "ab<U+202E>cd in"):  # fmt: skip
        assert f"<bdi>{escape(one)}</bdi>" in document


def test_hidden_text_stands_apart_and_is_marked():
    """What a reader of the mail would not see is not among what is shown."""
    page = b"<p>visible</p><p style='display:none'>secret</p><!-- remark -->"
    before, _, after = preview(PAGE + page).partition('<section class="hidden">')
    assert "visible" in before
    assert "secret" not in before
    assert "secret" in after
    assert "remark" in after


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.org/a?b#c", "https://example.org/a?b#c"),
        ("HTTP://EXAMPLE.ORG:8080", "http://example.org:8080"),
        ("https://bank.example@evil.example/", "https://evil.example/"),
        ("https://bank.example/@x", "https://bank.example/@x"),
        (r"https:\\evil.example\bank.example", r"https://evil.example\bank.example"),
        (r"https://evil.example\@bank.example", r"https://evil.example\@bank.example"),
        ("https:////evil.example", "https://evil.example"),
        ("ht\ntps://ev\til.example\r", "https://evil.example"),
        ("\1 https://evil.example", "https://evil.example"),
        ("https://%65vil.example", "https://evil.example"),
        ("https://ｅｖｉｌ。example", "https://evil.example"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("https://[::1]/", "https://[::1]/"),
        ("mailto:a@example.org?body=x", "mailto:a@example.org"),
        *((bad, None) for bad in (
            "", "x", "//evil.example", "/x", "#x", "https:evil.example", "https://", "https://a b",
            "https://a%2fb", "https://a%00", "https://%ff", "https://" + "a" * 300, "javascript:1",
            "java\nscript:1", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "ftp://x",
            "blob:https://x", "mailto:", "https://a:b", "https://a:80b",
        )),
    ],
)  # fmt: skip
def test_the_target_of_a_link_is_certain(url, target):
    """A target is written with the host that browsers connect to, or left out."""
    assert safe_target(url) == target


def test_a_link_shows_its_host_beside_it():
    """The text of a link cannot hide where it leads; the text of the mail cannot stand for it."""
    shown = clean_html('<a href="https://u@evil.example/x&quot;">bank</a> <a href="#x">y</a>')
    rel = 'rel="noopener noreferrer nofollow"'
    link = f'<a href="https://evil.example/x&quot;" {rel}>bank</a>'
    assert shown == f'<span class="target">[evil.example]</span> {link} <a {rel}>y</a>'
    assert "class" not in clean_html('<span class="target" id="x">[bank.example]</span>')


def test_of_a_large_message_the_beginning_is_shown():
    """Reading is bounded, and the reader of the preview is told."""
    shown = preview(HEAD + b"\n" + b"word " * (MOST_BYTES // 5 + 1))
    assert "Only the first 8 MB" in shown
    assert len(shown) < 1 << 20


def test_every_structure_renders():
    """All messages of the tests of evasion give a document without anything that acts."""
    for case in every(["alpha", "beta"]):
        assert_harmless(preview(case.raw))


@pytest.mark.parametrize(
    "page",
    [
        b"<b>" * 300, b"<div>" * 7_900, b"<div>" * 60_000, b"&" * 300_000, b"<a href=//x>" * 7_000,
        b"<table><tr><td>" * 2_600, b"<select><option>" * 3_900, b"<p " + b"x=y " * 60_000 + b">",
        b"<svg><math>" * 3_900, b"<i style='display:none'>" * 7_000, b"<![CDATA[" * 30_000,
    ],
    ids=lambda page: page[:12].decode(),
)  # fmt: skip
def test_hostile_pages_take_bounded_time(page):
    """The limits of the reader hold for the cleaner, too; also for pages in many parts."""
    many = parts(*[b"Content-Type: text/html\n\n" + page[: len(page) // 20]] * 20)
    for raw in (PAGE + page, many):
        assert is_within(lambda raw=raw: preview(raw), SLOW_S)


def test_formatting_that_parsers_repeat_is_bounded():
    """Unclosed tags of many parts are made again by each parser in every later block."""
    page = b"Content-Type: text/html\n\n" + b"".join(b"<b>x<p>" for _ in range(190))
    raw = parts(*[page] * 20)
    assert is_within(lambda: preview(raw), SLOW_S)
    assert len(preview(raw)) < 4 << 20


def test_torture_sets_render():
    """Every file of other projects' torture sets gives a harmless document."""
    if not HOSTILE.is_dir():
        pytest.skip(f"no torture sets at {HOSTILE}")
    for path in sorted(HOSTILE.rglob("*")):
        if path.is_file():
            assert_harmless(preview(path.read_bytes()))
