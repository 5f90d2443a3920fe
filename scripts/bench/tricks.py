"""Tricks that hide a spam from filters: good text beside it, hidden text, other parts, long mail.

Each trick makes a new message of a spam's header and text and of other people's good text. The
header stays, except for the fields that describe the content.
"""

import email
import io
import re
import zipfile
import zlib
from email.message import EmailMessage
from html import escape
from typing import NamedTuple

WORDS_OF_FILLER = (50, 200, 1000, 3000)
_CONTENT_FIELD = re.compile(rb"(?im)^(?:content-[a-z-]+|mime-version):[^\n]*\n(?:[ \t][^\n]*\n)*")
_TEXT_TYPES = ("text/plain", "text/html")


class Spam(NamedTuple):
    """What the tricks use of a spam."""

    head: bytes
    """all header fields that do not describe the content, each with its line end"""
    plain: str
    html: str
    """empty if the message has only plain text"""


def spam_of(raw):
    """Return the header and the texts of a message; None if it has no text."""
    head = raw.partition(b"\n\n")[0] + b"\n"
    texts = texts_of(raw)
    if not any(text.strip() for text in texts.values()):
        return None
    return Spam(_CONTENT_FIELD.sub(b"", head), texts["text/plain"], texts["text/html"])


def texts_of(raw):
    """Return the plain and the HTML text of a message, by type."""
    found = dict.fromkeys(_TEXT_TYPES, "")
    for part in email.message_from_bytes(raw).walk():
        kind = part.get_content_type()
        if kind in found and part.get_content_disposition() != "attachment":
            content = part.get_payload(decode=True) or b""
            found[kind] += _decoded(content, part.get_content_charset("latin-1"))
    return found


def _decoded(content, charset):
    try:
        return content.decode(charset, "replace")
    except LookupError:
        return content.decode("latin-1")


def rebuilt(spam, message):
    """Return the message with the header of the spam."""
    return spam.head + message.as_bytes().replace(b"\r\n", b"\n")


def _message(plain="", html=""):
    """Return a message with one text or two alternatives."""
    made = EmailMessage()
    if plain or not html:
        made.set_content(_clean(plain), cte="quoted-printable")
    if html and plain:
        made.add_alternative(_clean(html), subtype="html", cte="quoted-printable")
    elif html:
        made.set_content(_clean(html), subtype="html", cte="quoted-printable")
    return made


def _clean(text):
    return text.encode("utf-8", "replace").decode().replace("\r", "")


def _plain_of(spam):
    return spam.plain or re.sub(r"(?s)<style.*?</style>|<[^>]*>", " ", spam.html)


def _html_of(spam):
    return spam.html or f"<html><body><p>{escape(spam.plain)}</p></body></html>"


def _lines(words):
    return "\n".join(" ".join(words[i : i + 11]) for i in range(0, len(words), 11))


class GoodText:
    """Texts of other people's good mail."""

    def __init__(self, raws, dice):
        texts = [texts_of(raw)["text/plain"].split() for raw in raws]
        self._mails = [words for words in texts if len(words) > 40]
        self._dice = dice
        if not self._mails:
            raise SystemExit("the ham has no plain text of 40 words or more")

    def words(self, count):
        """Return words of whole mails, one after the other."""
        found = []
        while len(found) < count:
            found += self._dice.choice(self._mails)
        return found[:count]

    def mixed(self, count):
        """Return words in random order."""
        found = self.words(3 * count)
        self._dice.shuffle(found)
        return found[:count]


# ----------------------------------------------------------------- good text in the same part


def _beside(spam, plain, html, place):
    """Return the spam with good text above, below or between its lines."""
    return rebuilt(
        spam,
        _message(
            _placed_in_plain(spam.plain, plain, place) if spam.plain else "",
            _placed_in_html(spam.html, html, place) if spam.html else "",
        ),
    )


def _placed_in_plain(text, good, place):
    if place == "above":
        return f"{good}\n\n{text}"
    if place == "below":
        return f"{text}\n\n{good}"
    return _between(text.split("\n"), good.split("\n"), "\n")


def _placed_in_html(page, good, place):
    body = re.search(r"(?i)<body[^>]*>", page)
    first = body.end() if body else 0
    end = re.search(r"(?i)</body", page)
    last = end.start() if end else len(page)
    if place == "above":
        return page[:first] + good + page[first:]
    if place == "below":
        return page[:last] + good + page[last:]
    pieces = re.split(r"(?i)(?<=</p>)|(?<=</td>)|(?<=<br>)", page[first:last])
    return page[:first] + _between(pieces, good.split("\n"), "") + page[last:]


def _between(lines, good, joint):
    """Return lines with a part of the good text after each."""
    count = max(len(lines), 1)
    made = []
    for index, line in enumerate(lines):
        made += [line, *good[index * len(good) // count : (index + 1) * len(good) // count]]
    return joint.join(made)


def _forms(good, count, number):
    """Return filler as plain text and as HTML, in one of three forms."""
    words = good.mixed(count) if number % 3 == 2 else good.words(count)
    text = _lines(words)
    if number % 3 == 1:
        return text.replace("\n", "\n> "), f"<blockquote>{escape(text)}</blockquote>"
    return text, f"<p>{escape(text)}</p>"


def filler(count, place="below"):
    def trick(spam, good, number):
        return _beside(spam, *_forms(good, count, number), place)

    return trick


# ----------------------------------------------------------------- text that no reader sees

_BOX = "<div {}>{{}}</div>".format
HIDDEN = {
    "color transparent": ("", _BOX('style="color:transparent"')),
    "color rgb": ("", _BOX('style="color:rgb(255,255,255)"')),
    "color rgba": ("", _BOX('style="color:rgba(0,0,0,0)"')),
    "color hsl": ("", _BOX('style="color:hsl(0,0%,100%)"')),
    "clip-path": ("", _BOX('style="clip-path:inset(50%)"')),
    "scale 0": ("", _BOX('style="transform:scale(0)"')),
    "font-size calc": ("", _BOX('style="font-size:calc(0px)"')),
    "max-height": ("", _BOX('style="max-height:0;overflow:hidden"')),
    "zoom": ("", _BOX('style="zoom:0.0001;opacity:0"')),
    "filter": ("", _BOX('style="filter:opacity(0)"')),
    "variable": ("<style>:root{--c:none}</style>", _BOX('style="display:var(--c)"')),
    "escape": ("", _BOX(r'style="d\69splay:none"')),
    "comment": ("", _BOX('style="dis/**/play:block;display/**/:/**/none"')),
    "class": ("<style>.quiet{display:none}</style>", _BOX('class="quiet"')),
    "attribute": ('<style>div[title="x"]{display:none}</style>', _BOX('title="x"')),
    "nested": (
        "<style>.a{.b{display:none}}</style>",
        '<div class="a"><div class="b">{}</div></div>',
    ),
    "descendant": (
        "<style>table.a > tbody td.b{display:none}</style>",
        '<table class="a"><tr><td class="b">{}</td></tr></table>',
    ),
    "media": ("<style>@media all{.quiet{display:none}}</style>", _BOX('class="quiet"')),
    "datalist": ("", "<datalist><option>{}</option></datalist>"),
    "video": ("", '<video style="display:block;width:0;height:0">{}</video>'),
    "audio": ("", "<audio>{}</audio>"),
    "svg": ("", '<svg width="0" height="0"><text>{}</text></svg>'),
    "dialog": ("", "<dialog>{}</dialog>"),
    "scroll box": ("", _BOX('style="width:1px;height:1px;overflow:auto"')),
    "off screen": ("", _BOX('style="position:absolute;left:-9999px"')),
    "text-indent": ("", _BOX('style="text-indent:-9999px;overflow:hidden;white-space:nowrap"')),
    "visibility": ("", _BOX('style="visibility:hidden"')),
    "opacity": ("", _BOX('style="opacity:0.001"')),
    "details": ("", "<details><summary></summary>{}</details>"),
    "noframes": ("", "<noframes>{}</noframes>"),
    "hidden": ("", _BOX("hidden")),
}
"""A style sheet and an element: a page looks the same with this element and without its text."""


def hidden(way):
    """The spam as HTML, with good text in an element that is not shown."""
    sheet, element = HIDDEN[way]

    def trick(spam, good, _):
        text = escape(_lines(good.words(400)))
        return rebuilt(spam, _message("", hidden_page(_html_of(spam), sheet, element.format(text))))

    return trick


def hidden_page(page, sheet, element):
    """Return a page with a style sheet and an element at its end."""
    return sheet + _placed_in_html(page, element, "below")


# ----------------------------------------------------------------- the spam in another part


def _attached(make):
    """Good text as the text of the message, and the spam attached."""

    def trick(spam, good, _):
        made = _message(_lines(good.words(200)))
        make(made, spam)
        return rebuilt(spam, made)

    return trick


def _as_message(made, spam):
    inner = _message(spam.plain, spam.html)
    inner["Subject"] = "Fwd: your request"
    made.add_attachment(inner)


def _as_html(made, spam):
    made.add_attachment(_clean(_html_of(spam)).encode(), "text", "html", filename="read.html")


def _as_text(made, spam):
    made.add_attachment(_clean(_plain_of(spam)).encode(), "text", "plain", filename="read.txt")


def _as_zip(made, spam):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("read.html", _clean(_html_of(spam)))
    made.add_attachment(packed.getvalue(), "application", "zip", filename="read.zip")


def _as_pdf(made, spam):
    made.add_attachment(pdf_of(_plain_of(spam)), "application", "pdf", filename="read.pdf")


def pdf_of(text):
    """Return a document with the text, as programs write it: one compressed page."""
    lines = (re.sub(r"[^ -~]", "?", line)[:90] for line in text.split("\n"))
    drawn = "BT /F1 10 Tf 40 800 Td 12 TL\n"
    for line in lines:
        drawn += "(" + re.sub(r"([\\()])", r"\\\1", line) + ") Tj T*\n"
    page = zlib.compress((drawn + "ET").encode())
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources 6 0 R >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(page), page),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Font << /F1 5 0 R >> >>",
    )
    made, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return made + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\n"
        b"startxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table, len(objects) + 1, len(made))
    )


def _alternative(spam, good, _):
    return rebuilt(spam, _message(_lines(good.words(200)), _html_of(spam)))


def _calendar(made, spam):
    text = re.sub(r"([\\;,])", r"\\\1", _clean(_plain_of(spam))).replace("\n", "\\n")
    entry = (
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nMETHOD:REQUEST\r\nBEGIN:VEVENT\r\nUID:1@host.example\r\n"
        f"DTSTART:20260105T090000Z\r\nSUMMARY:Meeting\r\nDESCRIPTION:{text}\r\n"
        "END:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    made.add_attachment(entry.encode(), "text", "calendar", filename="invite.ics")


# ----------------------------------------------------------------- good text before the spam


def _long_first(size):
    def trick(spam, good, _):
        text = _lines(good.words(size // 5))[:size]
        return rebuilt(spam, _message(f"{text}\n\n{_plain_of(spam)}"))

    return trick


def _many_parts(count):
    def trick(spam, good, _):
        made = EmailMessage()
        made.make_mixed()
        for text in [*(_lines(good.words(40)) for _ in range(count)), _plain_of(spam)]:
            part = EmailMessage()
            part.set_content(_clean(text), cte="quoted-printable")
            made.attach(part)
        return rebuilt(spam, made)

    return trick


def _unchanged(spam, *_):
    return rebuilt(spam, _message(spam.plain, spam.html))


TRICKS = {
    "none": _unchanged,
    **{f"{count} words below": filler(count) for count in WORDS_OF_FILLER},
    "1000 words above": filler(1000, "above"),
    "1000 words between": filler(1000, "between"),
    **{f"hidden: {way}": hidden(way) for way in HIDDEN},
    "part: attached message": _attached(_as_message),
    "part: attached html": _attached(_as_html),
    "part: attached text": _attached(_as_text),
    "part: attached pdf": _attached(_as_pdf),
    "part: attached zip": _attached(_as_zip),
    "part: alternative": _alternative,
    "part: calendar": _attached(_calendar),
    "first: 260 KB": _long_first(260_000),
    "first: 1 MB": _long_first(1_000_000),
    "first: 500 parts": _many_parts(500),
}
"""name: function of (spam, good text, number of the message) that returns the message"""
