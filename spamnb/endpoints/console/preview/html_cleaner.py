"""Make the HTML of a message safe to show. Pure.

Only tags that structure text, and links, are kept. A link keeps its target only if the host can be
written in ASCII. The target is written anew, so the host that is shown beside the link is the one
that a browser would connect to.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Final
from urllib.parse import unquote

import nh3

from spamnb.core.mail.html import UNSEEN
from spamnb.core.mail.printable import visible

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
