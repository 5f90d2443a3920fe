"""Messages that hide one payload from a filter in many MIME structures.

`every(words)` makes them. Each says whether it is valid by RFC 5322, 2045 to 2049, 2183 and 2231.
The reader must read a valid message; an invalid one is still displayed by some mail program.
"""

from __future__ import annotations

import base64
import binascii
import quopri
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

HEAD = (
    "From: Ann <ann@example.org>\nTo: bob@example.net\nSubject: meeting notes\n"
    "Date: Mon, 6 Oct 2025 10:00:00 +0000\nMessage-ID: <1@example.org>\nMIME-Version: 1.0\n"
)
FILLER = "the minutes of our meeting are attached, please tell me what you think of them\n"


@dataclass(frozen=True)
class Payload:
    """A body part: its type with parameters, encoding, and body as it travels."""

    type: str
    encoding: str
    body: str
    words: tuple[str, ...]

    def fields(self) -> str:
        """The header of the part."""
        encoding = f"Content-Transfer-Encoding: {self.encoding}\n" if self.encoding else ""
        return f"Content-Type: {self.type}\n{encoding}"

    def part(self) -> str:
        """The part as it stands in a multipart."""
        return f"{self.fields()}\n{self.body}"


class Case(NamedTuple):
    """One message."""

    name: str
    valid: bool
    raw: bytes


def payloads(words: list[str]) -> dict[str, Payload]:
    """The same words in the usual forms of a part."""
    text = " ".join(words) + "\n"
    html = f"<html><body><p>{text}</p></body></html>\n"
    made = {}
    for name, kind, body in (("text", "text/plain", text), ("html", "text/html", html)):
        raw = body.encode()
        forms = {
            "": body,
            "base64": base64.encodebytes(raw).decode(),
            "quoted-printable": quopri.encodestring(raw).decode(),
        }
        for encoding, form in forms.items():
            key = f"{name}-{encoding or 'plain'}"
            made[key] = Payload(kind, encoding, form, tuple(words))
    return made


def multi(*parts: str, boundary: str = "b", kind: str = "mixed", head: str = "") -> str:
    """A multipart with its header, without the header of the message."""
    inside = "".join(f"--{boundary}\n{part}\n" for part in parts)
    content_type = head or f'multipart/{kind}; boundary="{boundary}"'
    return f"Content-Type: {content_type}\n\n{inside}--{boundary}--\n"


TEXT = f"Content-Type: text/plain\n\n{FILLER}"
PAGE = f"Content-Type: text/html\n\n<p>{FILLER}</p>"


def nested(payload: Payload, depth: int, kind: str = "mixed") -> str:
    made = payload.part()
    for level in range(depth):
        made = multi(made, boundary=f"n{level}x", kind=kind)
    return made


def _nested_messages(payload: Payload, depth: int) -> str:
    made = payload.part()
    for _ in range(depth):
        made = f"Content-Type: message/rfc822\n\nSubject: fwd\n{made}"
    return made


def spelled(head: str, boundary: str = "q") -> Callable[[Payload], str]:
    """Make a multipart with a Content-Type in a given spelling."""
    return lambda payload: multi(payload.part(), boundary=boundary, head=head)


SPELLINGS = {
    "comment": "multipart/mixed; boundary=(x)q",
    "comment-behind": "multipart/mixed; boundary=q(x)",
    "comment-quoted": 'multipart/mixed; boundary=(x)"q"(y)',
    "comment-nested": "multipart/mixed; boundary=(x (y) \\) z)q",
    "comment-semicolon": "multipart/mixed; (; boundary=z) boundary=q",
    "comment-quote": 'multipart/mixed; (") boundary=q (")',
    "comment-in-type": "multipart/(c)mixed; boundary=q",
    "comment-before": "(c) multipart/mixed; boundary=q",
    "comment-after-type": "multipart/mixed(c); boundary=q",
    "comment-before-equals": "multipart/mixed; boundary(c)=q",
    "comment-long": f"multipart/mixed; ({'c ' * 4000}) boundary=q",
    "comments-many": f"multipart/mixed; {'(c)' * 2000} boundary=q",
    "comment-deep": f"multipart/mixed; {'(' * 500}{')' * 500} boundary=q",
    "blanks": "multipart / mixed ; boundary = q",
    "tabs": "multipart\t/\tmixed\t;\tboundary\t=\tq",
    "folded": 'multipart/mixed;\n boundary=\n\t"q"',
    "case": "MULTIPART/MIXED; BOUNDARY=q",
    "pairs": 'multipart/mixed; boundary="\\q"',
    "unknown-kind": "multipart/x-other; boundary=q",
    "alternative": "multipart/alternative; boundary=q",
    "related": "multipart/related; type=text/html; boundary=q",
    "report": "multipart/report; report-type=other; boundary=q",
    "signed": "multipart/signed; micalg=x; protocol=a/b; boundary=q",
    "form-data": "multipart/form-data; boundary=q",
    "continued": "multipart/mixed; boundary*0=q",
    "extended": "multipart/mixed; boundary*=us-ascii'en'q",
    "extended-percent": "multipart/mixed; boundary*=us-ascii''%71",
    "parameter-first": 'multipart/mixed; x="; boundary=z"; boundary=q',
    "parameter-long": f'multipart/mixed; x="{"y" * 6000}"; boundary=q',
    "parameters-many": f"multipart/mixed; {'; '.join(f'x{i}=y' for i in range(600))}; boundary=q",
    "quote-in-quote": 'multipart/mixed; x="a\\"; boundary=z; y=\\""; boundary=q',
}
BROKEN_SPELLINGS = {
    "no-semicolon": "multipart/mixed boundary=q",
    "single-quotes": "multipart/mixed; boundary='q'",
    "angle": "multipart/mixed; boundary=<q>",
    "unclosed-quote": 'multipart/mixed; boundary="q',
    "blank-behind": 'multipart/mixed; boundary="q "',
    "double-first": "multipart/mixed; boundary=q; boundary=z",
    "double-last": "multipart/mixed; boundary=z; boundary=q",
    "no-subtype": "multipart; boundary=q",
    "slash": "multipart/mixed/x; boundary=q",
    "missing": "multipart/mixed",
    "other": "multipart/mixed; boundary=z",
    "encoded": "multipart/mixed; boundary==?us-ascii?q?q?=",
    "extended-bare": "multipart/mixed; boundary*=q",
    "mixed-continued": "multipart/mixed; boundary=z; boundary*0=q",
    "comment-open": "multipart/mixed; boundary=q (",
    "quoted-type": '"multipart/mixed"; boundary=q',
    "comma": "multipart/mixed, boundary=q",
}
BOUNDARIES = ("a b", "=?us-ascii?q?q?=", "'()+_,-./:=?", "x" * 70, "--", "=_(c)", "a  b", "0")


def _spelled() -> Iterator[tuple[str, bool, Callable[[Payload], str]]]:
    for name, head in SPELLINGS.items():
        yield f"type-{name}", True, spelled(head)
    for name, head in BROKEN_SPELLINGS.items():
        yield f"type-{name}", False, spelled(head)
    for boundary in BOUNDARIES:
        name = f"boundary-{boundary[:12]}"
        yield name, True, spelled(f'multipart/mixed; boundary="{boundary}"', boundary)
    pieces = "; ".join(f'boundary*{i}="{sign}"' for i, sign in enumerate("quite-long"))
    yield "type-continued-many", True, spelled(f"multipart/mixed; {pieces}", "quite-long")
    backwards = "multipart/mixed; boundary*1=b; boundary*0=a"
    yield "type-continued-backwards", True, spelled(backwards, "ab")
    mixed = "multipart/mixed; boundary*0*=us-ascii''%61; boundary*1=\"%62\"; boundary*2*=%63"
    yield "type-continued-percent", True, spelled(mixed, "a%62c")


def _crowd() -> Iterator[tuple[str, bool, Callable[[Payload], str]]]:
    empty = "\n"
    typed = "Content-Type: text/plain\n\n"
    for count in (201, 1000, 3000):
        yield f"empty-{count}", True, lambda p, n=count: multi(*[empty] * n, p.part())
        yield f"empty-typed-{count}", True, lambda p, n=count: multi(*[typed] * n, p.part())
        yield f"tiny-{count}", True, lambda p, n=count: multi(*["\nx\n"] * n, p.part())
        yield f"before-tiny-{count}", True, lambda p, n=count: multi(p.part(), *["\nx\n"] * n)
        yield (
            f"amidst-tiny-{count}", True,
            lambda p, n=count: multi(*["\nx\n"] * n, p.part(), *["\nx\n"] * n),
        )  # fmt: skip
    page = "Content-Type: text/html\n\n<p>x</p>\n"
    image = "Content-Type: image/gif\n\nGIF89a\n"
    yield "pages-300", True, lambda p: multi(*[page] * 300, p.part())
    yield "images-900", True, lambda p: multi(*[image] * 900, p.part())
    yield (
        "crowd-aside",
        True,
        lambda p: multi(multi(*["\nx\n"] * 1900, boundary="c"), multi(p.part(), boundary="d")),
    )
    yield (
        "crowds-aside",
        True,
        lambda p: multi(
            *(multi(*["\nx\n"] * 400, boundary=f"c{i}") for i in range(5)),
            multi(p.part(), boundary="d"),
        ),
    )
    yield (
        "messages-300",
        True,
        lambda p: multi(*["Content-Type: message/rfc822\n\nSubject: x\n\nx\n"] * 300, p.part()),
    )
    yield "look-alikes", True, lambda p: multi("\n" + "--bx\n" * 12_000, p.part())
    yield (
        "look-alikes-before",
        True,
        lambda p: multi(p.part()).replace("\n\n--b\n", "\n\n" + "--bx\n" * 4000 + "\n--b\n", 1),
    )


def _deep() -> Iterator[tuple[str, bool, Callable[[Payload], str]]]:
    for depth in (5, 13, 50, 200):
        yield f"deep-{depth}", True, lambda p, n=depth: nested(p, n)
        yield f"deep-messages-{depth}", True, lambda p, n=depth: _nested_messages(p, n)
    yield "deep-alternative", True, lambda p: nested(p, 20, "alternative")
    yield "digest", True, lambda p: multi(f"\nSubject: x\n{p.part()}", kind="digest")
    yield (
        "partial",
        True,
        lambda p: (
            "Content-Type: message/partial; id=x; number=1; total=1\n\nSubject: y\n" + p.part()
        ),
    )
    yield (
        "message",
        True,
        lambda p: multi(TEXT, f"Content-Type: message/rfc822\n\nSubject: x\n{p.part()}"),
    )
    yield (
        "message-encoded",
        False,
        lambda p: multi(
            TEXT,
            "Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n"
            + base64.encodebytes(f"Subject: x\n{p.part()}".encode()).decode(),
        ),
    )
    yield (
        "message-global-encoded",
        True,
        lambda p: multi(
            TEXT,
            "Content-Type: message/global\nContent-Transfer-Encoding: base64\n\n"
            + base64.encodebytes(f"Subject: x\n{p.part()}".encode()).decode(),
        ),
    )
    yield (
        "multipart-encoded",
        False,
        lambda p: (
            "Content-Transfer-Encoding: base64\nContent-Type: multipart/mixed; boundary=b\n\n"
            + base64.encodebytes(multi(p.part()).partition("\n\n")[2].encode()).decode()
        ),
    )


def _large() -> Iterator[tuple[str, bool, Callable[[Payload], str]]]:
    long = FILLER * 3500
    yield (
        "alternative-behind-text",
        True,
        lambda p: multi(f"Content-Type: text/plain\n\n{long}", p.part(), kind="alternative"),
    )
    yield "behind-text", True, lambda p: multi(f"\n{long}", p.part())
    yield "behind-texts", True, lambda p: multi(*[f"\n{FILLER * 350}"] * 12, p.part())
    yield "behind-page", True, lambda p: multi(f"Content-Type: text/html\n\n{long}", p.part())
    yield (
        "behind-attachment",
        True,
        lambda p: multi(
            f"Content-Type: text/plain\nContent-Disposition: attachment\n\n{long}", p.part()
        ),
    )
    yield (
        "behind-tags",
        True,
        lambda p: multi("Content-Type: text/html\n\n" + "<b>x</b>" * 9000, p.part()),
    )
    yield "before-text", True, lambda p: multi(p.part(), f"\n{long}")
    yield (
        "behind-message",
        True,
        lambda p: multi(f"Content-Type: message/rfc822\n\nSubject: x\n\n{long}", p.part()),
    )


def _headers() -> Iterator[tuple[str, bool, Callable[[Payload], str]]]:
    yield "fields-before", True, lambda p: "X-A: b\n" * 6000 + p.part()
    yield "fields-before-multipart", True, lambda p: "X-A: b\n" * 6000 + multi(p.part())
    yield "fields-alike", True, lambda p: "Content-Type-X: b\n" * 6000 + p.part()
    yield "field-blank", True, lambda p: p.part().replace("Content-Type:", "Content-Type :")
    yield "part-fields-before", True, lambda p: multi(TEXT, "X-A: b\n" * 6000 + p.part())
    yield (
        "double-first",
        False,
        lambda p: multi(p.part().replace("\n\n", "\nContent-Type: text/plain\n\n", 1)),
    )
    yield "double-last", False, lambda p: multi("Content-Type: image/gif\n" + p.part())
    yield "double-top", False, lambda p: "Content-Type: text/plain\n" + multi(p.part())
    yield (
        "double-top-last",
        False,
        lambda p: multi(p.part()).replace("\n\n", "\nContent-Type: text/plain\n\n", 1),
    )
    yield "junk-line", False, lambda p: multi("no field\n" + p.part())
    yield "junk-line-amidst", False, lambda p: multi("X-A: b\nno field\n" + p.part())
    yield "junk-line-top", False, lambda p: "no field\n" + p.part()
    yield "bare-cr", False, lambda p: "X-A: b\r" + p.part()
    yield "bare-cr-part", False, lambda p: multi("X-A: b\r" + p.part())
    yield "no-version", False, lambda p: p.part()


def _encodings() -> Iterator[tuple[str, bool, Callable[[Payload], str]]]:
    def encoded(*values: str) -> Callable[[Payload], str]:
        return lambda p: p.part().replace(
            f"Encoding: {p.encoding}\n", f"Encoding: {values[0].format(p.encoding)}\n"
        )

    for name, value in (
        ("comment", "{} (c)"), ("comment-before", "(c) {}"), ("comment-both", "(a){}(b (c))"),
        ("comment-long", "(" + "c" * 90 + ") {}"), ("folded", "\n {}"), ("tab", "\t{}\t"),
    ):  # fmt: skip
        yield f"encoding-{name}", True, encoded(value)
    for name, value in (("semicolon", "{};"), ("words", "{} x"), ("quoted", '"{}"')):
        yield f"encoding-{name}", False, encoded(value)
    yield (
        "encoding-case",
        True,
        lambda p: p.part().replace(
            f"Encoding: {p.encoding}\n", f"Encoding: {p.encoding.upper()}\n"
        ),
    )

    def recoded(p: Payload) -> str:
        made = p.body
        if p.encoding == "base64":
            made = "".join(f"{sign}*!" for sign in p.body)
        return f"{p.fields()}\n{made}"

    yield "base64-junk", True, recoded

    def uuencoded(p: Payload) -> str:
        name = "x.html" if "html" in p.type else "x.txt"
        lines = _uu(_body(p))
        fields = f"Content-Type: {p.type}\nContent-Transfer-Encoding: x-uuencode\n"
        return f"{fields}\nbegin 644 {name}\n{lines}`\nend\n"

    yield "uuencode", False, uuencoded
    yield (
        "uuencode-inline",
        False,
        lambda p: multi("\n" + uuencoded(p).partition("\n\n")[2].replace("x.txt", "y.txt")),
    )


def _body(p: Payload) -> bytes:
    raw = p.body.encode()
    if p.encoding == "base64":
        return base64.decodebytes(raw)
    return quopri.decodestring(raw) if p.encoding else raw


def _uu(data: bytes) -> str:
    lines = (data[at : at + 45] for at in range(0, len(data), 45))
    return "".join(binascii.b2a_uu(line).decode() for line in lines)


CHARSETS = ("utf-8", "utf-16", "utf-16le", "utf-32", "utf-7", "iso-2022-jp", "windows-1252",
            "cp037", "koi8-r", "us-ascii (Plain text)", '"utf-8"', "(c)utf-8",
            "UTF-16BE")  # fmt: skip


def _charsets() -> Iterator[tuple[str, bool, Callable[[Payload], str]]]:
    for charset in CHARSETS:
        codec = charset.replace('"', "").replace("(c)", "").partition(" ")[0]

        def made(p: Payload, charset: str = charset, codec: str = codec) -> str:
            raw = base64.encodebytes(_body(p).decode().encode(codec)).decode()
            fields = f"Content-Type: {p.type}; charset={charset}\n"
            return f"{fields}Content-Transfer-Encoding: base64\n\n{raw}"

        yield f"charset-{charset}", True, made
    for unknown in ("x-none", "utf-99", "ascii-8bit"):
        yield (
            f"charset-{unknown}",
            False,
            lambda p, name=unknown: p.part().replace(p.type, f"{p.type}; charset={name}", 1),
        )


def _around() -> Iterator[tuple[str, bool, Callable[[Payload], str]]]:
    yield "plain", True, Payload.part
    yield "preamble", True, lambda p: multi(p.part()).replace("\n\n--b", f"\n\n{FILLER}\n--b", 1)
    yield "epilogue", True, lambda p: multi(p.part()) + FILLER
    yield "alternative", True, lambda p: multi(TEXT, p.part(), kind="alternative")
    yield (
        "alternative-calendar",
        True,
        lambda p: multi(
            TEXT, p.part(), "Content-Type: text/calendar\n\nBEGIN:VCALENDAR\n", kind="alternative"
        ),
    )
    yield (
        "related",
        True,
        lambda p: multi(p.part(), "Content-Type: image/gif\n\nGIF89a\n", kind="related"),
    )
    yield "related-start", True, lambda p: multi(
        "Content-Type: image/gif\n\nGIF89a\n", "Content-ID: <r>\n" + p.part(), kind="related",
        head='multipart/related; start="<r>"; boundary=b',
    )  # fmt: skip
    yield (
        "alternative-related",
        True,
        lambda p: multi(TEXT, multi(p.part(), kind="related", boundary="c"), kind="alternative"),
    )
    yield "page-before", True, lambda p: multi(PAGE, p.part())
    yield (
        "padded-delimiters",
        True,
        lambda p: multi(p.part()).replace("--b\n", "--b \t \n").replace("--b--", "--b-- "),
    )
    yield "unclosed", False, lambda p: multi(p.part()).replace("--b--\n", "")
    yield "closed-early", False, lambda p: multi(TEXT, p.part()).replace("--b\n", "--b--\n", 2)
    yield (
        "closed-between",
        False,
        lambda p: (
            "Content-Type: multipart/mixed; boundary=b\n\n"
            f"--b\n{TEXT}\n--b--\n--b\n{p.part()}\n--b--\n"
        ),
    )
    yield "inner-longer", True, lambda p: multi(multi(p.part(), boundary="b-c"))
    yield (
        "disposition",
        True,
        lambda p: multi(TEXT, "Content-Disposition: inline (c); filename=x\n" + p.part()),
    )
    yield "name", True, lambda p: p.part().replace(p.type, p.type + '; name="a (1).pdf"', 1)


def _pages(words: list[str]) -> Iterator[Case]:
    """HTML that starts with a text that is not the first one shown."""
    text = " ".join(words)
    blank = "\n" * 300_000
    for name, before in (
        ("comment", f"<!--{FILLER * 4000}-->"),
        ("style", f"<style>{'a { color: red } ' * 18000}</style>"),
        ("blanks", blank),
        ("picture", f'<img src="data:image/png;base64,{"A" * 300_000}">'),
        ("hidden", f'<div style="display:none">{FILLER * 4000}</div>'),
    ):
        page = f"Content-Type: text/html\n\n<html><body>{before}<p>{text}</p></body></html>\n"
        yield Case(f"page-{name}", True, (HEAD + page).encode())
    plain = f"Content-Type: text/plain\n\n{blank}{text}\n"
    yield Case("text-blanks", True, (HEAD + plain).encode())
    torn = " ".join(f"{word[:2]}<i></i>{word[2:]}" for word in words)
    page = multi("Content-Type: text/html\n\n" + "<b>x</b>" * 9000,
                 f"Content-Type: text/html\n\n<p>{torn}</p>")  # fmt: skip
    yield Case("page-torn-behind-tags", True, (HEAD + page).encode())
    xhtml = f"Content-Type: application/xhtml+xml\n\n<html><body><p>{text}</p></body></html>\n"
    yield Case("page-xhtml", True, (HEAD + xhtml).encode())
    spread = multi(*(f"\n{word}\n" for word in words), *["\nx\n"] * 300)
    yield Case("spread", True, (HEAD + spread).encode())


def every(words: list[str]) -> Iterator[Case]:
    """All messages that carry these words."""
    forms = payloads(words)
    groups = (_around, _spelled, _crowd, _deep, _large, _headers, _encodings, _charsets)
    for group in groups:
        for name, valid, structure in group():
            for form, payload in forms.items():
                if group is _encodings and payload.encoding != "base64":
                    continue
                if group is _charsets and payload.encoding:
                    continue
                made = HEAD + structure(payload)
                yield Case(f"{name}/{form}", valid, made.encode())
    yield from _pages(words)
