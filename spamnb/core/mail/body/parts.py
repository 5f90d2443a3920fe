"""The values of reading a message: entities, parts, and the remaining budgets.

They do not know how structure is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spamnb.core.mail import limits
from spamnb.core.mail.body.parameters import MediaType, ParseBudget, Special
from spamnb.core.mail.charset import Text
from spamnb.core.mail.html import HtmlBudget

SHOWN, INSTEAD, ASIDE = range(3)
"""shown by all programs; shown instead of another part on request; shown only when opened"""


@dataclass(slots=True)
class Part:
    """A leaf of the structure."""

    kind: str
    """"text/html", lower case, "" if missing or garbage"""
    charset: str = ""
    encoding: str = ""
    disposition: str = ""
    name: Text = b""
    """decoded file name"""
    size: int = 0
    """decoded size in bytes"""
    digest: bytes = b""
    """8 bytes of blake2b of the decoded content of parts that are not text"""
    head: bytes = b""
    """first 8 decoded bytes of parts that are not text"""
    text: Text = b""
    """the visible text of a text part"""
    hidden: Text = b""
    """html: invisible text, and comments"""
    links: list[Text] = field(default_factory=list)
    images: list[Text] = field(default_factory=list)
    markup: bytes = b""
    """html: the names of its tags, each once, joined by blanks"""
    depth: int = 0


class Entity(NamedTuple):
    """A body with its fields: the message's own, of a part, or of a message inside."""

    buffer: bytes
    start: int
    end: int
    special: Special
    kind: MediaType
    depth: int = 0
    rank: int = SHOWN


@dataclass(slots=True)
class DecodedPart:
    """A part without its transfer encoding, before its text is read."""

    part: Part
    rank: int
    data: bytes = b""
    """of a text part"""
    source: Text = b""
    """of a text part: its characters, with the tags of html"""
    text: bool = True
    html: bool = False
    special: Special = field(default_factory=dict)
    """the fields of the part that determine how it is read, as they were written"""


@dataclass(slots=True)
class ReadingState:
    """The results of reading one message so far, and its remaining budgets."""

    marks: set[str]
    parts: list[Part] = field(default_factory=list)
    inner: list[tuple[bytes, Text]] = field(default_factory=list)
    inner_fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    """the same, as they were written"""
    leaves: list[Entity] = field(default_factory=list)
    decoded: list[DecodedPart] = field(default_factory=list)
    html_left: HtmlBudget = field(default_factory=HtmlBudget)
    steps: ParseBudget = field(default_factory=ParseBudget)
    entities: int = 0
    entities_left: int = limits.PART_HEADERS
    delimiters_left: int = limits.DELIMITERS
    scanned_left: int = limits.SCANNED_BYTES
    unpacked_left: int = limits.UNPACKED_BYTES
    rereadings: int = limits.REREADINGS
