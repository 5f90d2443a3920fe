"""The preview of a message: one HTML document that is safe to show. Pure.

Header fields are a table; text is shown as it is; attachments are listed and never opened; hidden
text that the reader found is shown separately and marked. The passage that raises the score of a
message is quoted above its text. Of HTML, only tags that structure text, and links, are kept
(`clean_html`). A link keeps its target only if the host can be written in ASCII. The target is
written anew, so the host that is shown beside the link is the one that a browser would connect to.

The limits of the reader (`mail/limits.py`) bound the work for any message. No function raises.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final
from urllib.parse import unquote

import nh3

from spamnb.mail.charset import ZERO_WIDTH, Text
from spamnb.mail.content import written_name
from spamnb.mail.headers import shown_value
from spamnb.mail.html import UNSEEN, HtmlBudget, visible_html
from spamnb.mail.limits import PARTLY, visible
from spamnb.mail.message import Message, read_with_sources
from spamnb.mail.mime import ASIDE, INSTEAD, DecodedPart
from spamnb.model.features import text_of_blocks
from spamnb.model.scoring import Passage
from spamnb.model.tokens import fields

TAGS: Final = frozenset((
    *("a", "abbr", "b", "bdi", "big", "blockquote", "br", "caption", "center", "cite", "code"),
    *("dd", "del", "dfn", "div", "dl", "dt", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr"),
    *("i", "ins", "kbd", "li", "ol", "p", "pre", "q", "s", "samp", "small", "span", "strike"),
    *("strong", "sub", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "tt", "u"),
    *("ul", "var"),
))  # fmt: skip
SCHEMES: Final = frozenset(("http", "https", "mailto"))

_IGNORED: Final = re.compile(r"[\t\n\r]|\A[\0- ]+|[\0- ]+\Z")
"""what browsers remove from a URL before they read it"""
_WEB: Final = re.compile(
    r"(https?):[/\\]{2,}(?:[^/\\?#]*@)?(\[[0-9a-f:.]+\]|[^/\\?#:@\[\]]{1,1000})(:[0-9]{1,5})?((?=[/\\?#]|\Z).*)",
    re.IGNORECASE | re.DOTALL,
)
_HOST: Final = re.compile(r"[a-z0-9._-]{1,253}|\[[0-9a-f:.]+\]")
_MAIL: Final = re.compile(r"mailto:([^\s<>?]{1,320})", re.IGNORECASE)
_LINK: Final = re.compile(r'<a href="([^"]*)"')


def clean_html(page: str) -> str:
    """Return a fragment without active content; the host of each link is shown beside it."""
    return _LINK.sub(_with_host, _CLEANER.clean(page))


def safe_target(url: str) -> str | None:
    """Return the target of a link, with the host in ASCII and without a login; None if invalid."""
    url = _IGNORED.sub("", url)
    web = _WEB.match(url)
    if web is None:
        mail = _MAIL.match(url)
        return f"mailto:{mail[1]}" if mail is not None else None
    scheme, name, port, rest = web.groups(default="")
    host = _ascii_host(name)
    return f"{scheme.lower()}://{host}{port}{rest}" if host else None


def _ascii_host(name: str) -> str:
    """The host as browsers resolve it, "" if that is not certain."""
    try:
        text = unicodedata.normalize("NFKC", unquote(name, errors="strict"))
        host = text.lower().encode("idna").decode("ascii")
    except UnicodeError:
        return ""
    return host if _HOST.fullmatch(host) is not None else ""


def _attribute(_: str, name: str, value: str) -> str | None:
    """The value of an attribute; the cleaner itself sets `rel`."""
    if name == "href":
        return safe_target(value)
    return value if name == "rel" else None


def _with_host(link: re.Match[str]) -> str:
    target = html.unescape(link[1])
    web = _WEB.match(target)
    shown = web[2] if web is not None else target
    return f'<span class="target">[{html.escape(visible(shown))}]</span> {link[0]}'


_CLEANER: Final = nh3.Cleaner(
    tags=set(TAGS),
    clean_content_tags=set(UNSEEN),
    attributes={"a": {"href"}},
    attribute_filter=_attribute,
    link_rel="noopener noreferrer nofollow",
    url_schemes=set(SCHEMES),
)


HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""of the reply with the document; even without the cleaner they stop scripts and requests"""
MOST_BYTES: Final = 8 << 20
"""of a message that are shown: reading takes up to ten times as much memory"""
_FIELDS: Final = (
    *("from", "sender", "reply-to", "to", "cc", "date", "subject", "message-id"),
    *("inner-from", "inner-reply-to", "inner-to", "inner-subject"),
)
_MOST_FIELDS: Final = 40
_MOST_VALUE: Final = 1_000
_LINES: Final = "\n\t"
_GAP: Final = re.compile(r"\s{3}.*\.[^.]*\Z", re.DOTALL)
"""blanks that move the ending of a file name out of sight"""
_STYLE: Final = """
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{margin:1rem;overflow-wrap:anywhere}
h1,h2{font-size:1rem}
table{border-collapse:collapse;max-width:100%}
caption{text-align:left}
th{text-align:left;vertical-align:top;padding-right:1em;font-weight:600}
caption+tbody th{overflow-wrap:normal}
pre{white-space:pre-wrap;font:inherit;font-family:ui-monospace,monospace}
section{border-top:1px solid GrayText;margin-top:1rem}
.hidden{border:2px dashed #b00;padding:0 .5rem}
.passage{border:2px solid #b00;padding:0 .5rem}
.warning{color:#b00;font-weight:600}
.target{font-family:ui-monospace,monospace;font-size:.85em;background:#fd6;color:#000}
"""


def preview(raw: bytes, passage: Passage | None = None) -> str:
    """Return the document for a message; it shows the passage that makes it spam, if one does."""
    message, parts, header = read_with_sources(raw[:MOST_BYTES])
    budget = HtmlBudget()
    body = [_fields(header), *_warnings(message, raw)]
    if passage is not None:
        text = text_of_blocks(fields(message), passage.first, passage.blocks)
        body.append(_section("The passage that is most like spam", _pre(text), kind="passage"))
    for part in parts:
        if part.text and part.rank < ASIDE:
            body += _shown(part, budget)
    body.append(_attachments([part for part in parts if not part.text or part.rank == ASIDE]))
    return _document("".join(body))


def failed(title: str, hint: str) -> str:
    """Return the document that replaces a preview which could not be made."""
    return _document(f"<h1>{escape(title)}</h1><p>{escape(hint)}</p>")


def _document(body: str) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Message</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def _fields(fields: Iterable[tuple[bytes, bytes]]) -> str:
    found: dict[bytes, list[str]] = {name.encode(): [] for name in _FIELDS}
    for name, value in fields:
        if len(found.get(name, [""] * _MOST_FIELDS)) < _MOST_FIELDS:
            found[name].append(shown_value(value)[:_MOST_VALUE])
    rows = [(name.decode(), value) for name, values in found.items() for value in values]
    return _table("Header", (), (_named(*row) for row in rows[:_MOST_FIELDS]))


def _named(name: str, value: str) -> tuple[str, str]:
    """The row of a field; a field of an embedded message is marked as such."""
    inner = name.removeprefix("inner-")
    return inner.capitalize() + (" (of a message inside)" if inner != name else ""), value


def _warnings(message: Message, raw: bytes) -> Iterator[str]:
    if len(raw) > MOST_BYTES:
        yield f"<p>Only the first {MOST_BYTES >> 20} MB of the message are shown.</p>"
    if PARTLY in message.oddities:
        yield "<p>Mail programs may show this message in another way.</p>"


def _shown(part: DecodedPart, budget: HtmlBudget) -> Iterator[str]:
    """The text of a part, and what is hidden in it."""
    title = visible(part.part.kind) or "text"
    if part.rank == INSTEAD:
        title += ", shown by programs without HTML"
    page = visible_html(part.source, budget) if part.html else None
    if page is not None:
        yield _section(title, f"<div>{clean_html(page)}</div>")
    else:
        yield _section(title, _pre(part.part.text if part.html else part.source))
    if part.part.hidden:
        yield _section("Hidden: mail programs do not show this text", _pre(part.part.hidden),
                       kind="hidden")  # fmt: skip


def _attachments(parts: Sequence[DecodedPart]) -> str:
    if not parts:
        return ""
    names = [_decoded(written_name(one.special)) for one in parts]
    rows = [(visible(name) or "(no name)", _ending(name), one.part.kind, f"{one.part.size} bytes")
            for name, one in zip(names, parts, strict=True)]  # fmt: skip
    table = _table("", ("Name", "Ends in", "Type", "Size"), rows)
    return _section("Attachments", table + "".join(map(_deceptive, names)))


def _ending(name: str) -> str:
    """The ending of a file name, by which programs choose what to do with the file."""
    stem, dot, ending = ZERO_WIDTH.sub("", name).rstrip(" .").rpartition(".")
    return visible(dot + ending.strip()) if stem else ""


def _deceptive(name: str) -> str:
    """A warning about a file name that programs show in another way than it is."""
    if ZERO_WIDTH.search(name):
        why = "contains characters that hide or turn a part of it"
    elif _GAP.search(name):
        why = "contains a gap before its end"
    else:
        return ""
    ending = _ending(name)
    really = f": the file really ends in {ending}" if ending else ""
    return f'<p class="warning">The name <bdi>{escape(visible(name))}</bdi> {why}{really}.</p>'


def _table(caption: str, heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; the first cell of each row is its heading."""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    lines = "".join(
        f'<tr><th scope="row">{_cell(first)}</th>'
        + "".join(f"<td>{_cell(one)}</td>" for one in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f"<table>{title}{f'<tr>{head}</tr>' if head else ''}{lines}</table>"


def _section(title: str, content: str, kind: str = "part") -> str:
    return f'<section class="{kind}"><h2>{escape(title)}</h2>{content}</section>'


def _pre(text: Text) -> str:
    return f"<pre>\n{escape(visible(_decoded(text), keep=_LINES))}</pre>"


def _cell(text: str) -> str:
    return f"<bdi>{escape(visible(text))}</bdi>"


def _decoded(text: Text) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")
