"""Templates and assets: HTML with all values escaped, style sheet and script under hashed names.

Only the filter `picture` makes HTML that is not escaped: drawings of charts. Must not know
requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from spamnb.core.mail.printable import visible
from spamnb.endpoints.console.pages.texts import TEXTS, text, word
from spamnb.service.engine.clock import duration
from spamnb.service.telemetry.charts import Chart, ChartSize, ChartWords, draw

_HERE: Final = Path(__file__).resolve().parent
_TYPES: Final = {".css": "text/css", ".js": "text/javascript"}
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-src 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types spamnb"
)
_NEARLY: Final = 0.9999
_UNSTORED: Final = re.compile(r"[0-9a-f]{16}")
"""the text of a clue if only its id is known"""
_UNITS: Final = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


class Asset(NamedTuple):
    """A file that browsers may keep forever, because a changed file has another name."""

    path: str
    data: bytes
    media_type: str


class Drawing(NamedTuple):
    """A chart to be drawn."""

    chart: Chart
    words: ChartWords
    size: ChartSize


class Renderer:
    """Renders templates."""

    def __init__(self) -> None:
        self.assets = {name: _asset(name) for name in ("console.css", "console.js")}
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        self._templates.tests["unstored"] = _UNSTORED.fullmatch
        self._templates.globals |= {
            "t": text,
            "raw": TEXTS.get,
            "word": word,
            "asset": self._path_of,
        }
        self._templates.filters |= {
            "when": when,
            "percent": percent,
            "picture": picture,
            "bytes": size_text,
            "duration": duration,
            "number": number,
            "sentence": sentence,
        }

    def page(self, template: str, facts: Mapping[str, Any]) -> str:
        """Return the HTML of a page."""
        return self._templates.get_template(f"{template}.html").render(facts)

    def _path_of(self, name: str) -> str:
        return self.assets[name].path

    @cached_property
    def by_path(self) -> Mapping[str, Asset]:
        """The assets by their paths."""
        return {one.path: one for one in self.assets.values()}


def _shown(value: object) -> object:
    """Text that may be a sender's, with the invisible made visible; lines of texts stay."""
    return visible(value, keep="\n\t") if type(value) is str else value


def _asset(name: str) -> Asset:
    path = _HERE / "assets" / name
    data = path.read_bytes()
    named = f"/assets/{path.stem}.{sha256(data).hexdigest()[:16]}{path.suffix}"
    return Asset(named, data, _TYPES[path.suffix])


def when(time: str) -> Markup:
    """Return a time element in UTC; the script changes it to the zone of the browser."""
    at = (
        datetime.fromisoformat(time) if isinstance(time, str) else datetime.fromtimestamp(time, UTC)
    )
    at = at.astimezone(UTC)
    shown = text("utc", time=f"{at:%Y-%m-%d %H:%M}")
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="seconds"), shown)


def picture(drawing: Drawing) -> Markup:
    """Return the SVG of a chart; its texts are already escaped."""
    return Markup(draw(*drawing))  # noqa: S704


def percent(share: float) -> str:
    """Return a probability in percent; only exactly 0 and 1 give 0 and 100."""
    if share > _NEARLY:
        return f"over {_NEARLY:.2%}".replace("%", " %") if share < 1 else "100 %"
    if share < 1 - _NEARLY:
        return f"under {1 - _NEARLY:.2%}".replace("%", " %") if share > 0 else "0 %"
    digits = 2 if min(share, 1 - share) < 0.01 else 1
    return f"{share * 100:.{digits}f} %"


def size_text(size: float) -> str:
    """Return a size in bytes with its unit."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} bytes"


def number(value: float) -> str:
    """Return a whole number with spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def sentence(phrase: object) -> str:
    """Return the text of an error as a sentence."""
    found = str(phrase).strip()
    return found[:1].upper() + found[1:] + ("" if found[-1:] in tuple(".?!:") else ".")
