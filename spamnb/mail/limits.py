"""Limits of the parser, marks of what exceeds them, and printable text.

Every bound on hostile input is here, with the reason for each number. A bound is checked before the
work it bounds (bytes before a regex, tags and attributes before the HTML parser). Nothing fails;
input beyond a bound is cut or read in a simpler way, and leaves a mark: a feature of the model,
some of which affect decisions.

Measured on one core of 2026 with Python 3.11. Together the bounds guarantee at most 100 ms of CPU
for any input of 1 MB, and at most ten times its memory.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

HEADER_LINES = 4_096
"""Header fields that are checked one by one; later ones count for the digest unchanged. An unknown
name costs 4 us to classify, so a megabyte of new names would cost 0.4 s; this is 20 ms."""

FIELDS = 400
"""Fields that are decoded; visible ones take precedence. One of undeclared 8-bit takes 10 us;
legitimate mail has under 200."""

SHOWN_FIELDS = 4
"""First and last fields of one visible name, if a block has more than `FIELDS`."""

INNER_FIELDS = 512
"""Fields of inner messages, after which no further inner message's fields are decoded."""

HEADER_BYTES = 65_536
"""Decoded header bytes that may become features. Real headers end below 20 KB."""

VALUE_BYTES = 8_192
"""One header value, for features. A References line of 100 messages has 6 KB."""

SHOWN_BYTES = 2_048
"""Encoded bytes of a subject or From line; features use 4,096 bytes of the decoded value."""

NAME_BYTES = 128
"""A longer field name is not cached, and is shortened for features."""

LINE_BYTES = 998
"""RFC 5322 2.1.1; a longer text before a colon is no field name."""

NAMES_KNOWN = 4_096
"""Classified field names kept in memory. 6,046 real messages use 640."""

PARAM_BYTES = 65_536
"""A Content-* value is parsed up to here; RFC 2231 names of 255 characters take 800 bytes."""

PARAMS = 16
"""Parameters, RFC 2231 continuations and parentheses that every field may have, 1 us each."""

PARAM_STEPS = 4_000
"""Further steps, shared by all fields of a message."""

WORDS = 512
"""Encoded words decoded in one value: as many as fit in the part that is read."""

MESSAGE_ID_BYTES = 255

DEPTH = 500
"""Nesting of multiparts and inner messages. Legitimate forwards of forwards stay below 8."""

CROWD = 200
"""Parts of one multipart above which empty ones are left out first."""

PART_HEADERS = 1_000
"""Headers of parts and of inner messages that are read in one message, 4 us each; a multipart may
take half of what is left."""

LEAST_PART_HEADERS = 4
"""Parts that every multipart may have, even when the budget is spent."""

MOST_PART_HEADERS = 1_400
"""The sum of both limits."""

PARTS = 500
"""Leaves that are read, 10 us each; visible ones and large ones take precedence."""

BOUNDARY_BYTES = 998
"""RFC 2046 allows 70; longer ones occur in real mail, endless ones only in attacks."""

BOUNDARIES = 4
"""Candidates for one boundary that are searched."""

DELIMITERS = 10_000
"""Boundary lines and look-alikes (a boundary that is a prefix of another) examined in one message,
0.3 us each; a multipart may take half of what is left."""

LEAST_DELIMITERS = 16
"""Boundary lines that every multipart may have, and as many at its end."""

SCANNED_BYTES = 33_554_432
"""Bytes searched for boundary lines in one message, 5 ms: a part nested n deep is searched n
times."""

REREADINGS = 4
"""Parts that are read in two ways, because mail programs read them differently."""

UNPACKED_BYTES = 8_388_608
"""Bytes of encoded inner messages, which may be nested."""

UU_LINES = 20_000
"""Lines of uuencode, 0.5 us each; whole ones make 900 KB."""

SEGMENTS = 1_000
"""Padded pieces of base64 in one part."""

TEXT_BYTES = 262_144
"""Decoded text that is read in one message. Longer texts add no evidence, only time."""

NAME_TEXT = 255
"""Characters of a decoded file name."""

FEATURES = (4_096, 1_024)
"""Features of one message: of what was written, and of how it was sent. 262 KB of random words made
36,000 (81,000 of Chinese characters) and 2.5 MB (5.5 MB) in the store. Of 6,046 real messages the
median has 279, 99.9 % stay below 2,900, and 2 have more than 4,096 of what was written; of how
they were sent, the most is 521."""

SAMPLE_BYTES = 8_192
"""Input of the charset detector: 10 us; more input does not change its result."""

SCRIPT_SAMPLE = 16_384
"""Characters searched for mixed scripts, 12 ns each."""

HTML_BYTES = 262_144
"""HTML that is read in one part."""

HTML_UNCHECKED = 16_000
"""The first bytes of html in a message, for which attributes are not counted: 5,000 in one tag take
27 ms, and most mail is shorter."""

HTML_ATTRIBUTES = 300
"""Attributes of one tag beyond that. Lexbor compares each new one with all before: 111,000 take
15 s; 256 KB of tags with 300 attributes each take 15 ms."""

HTML_TAGS = 8_000
"""Tags, of both kinds, given to Lexbor for one message. Work grows with tags x depth: 200,000
nested <div> take over a minute; of 26 elements tried, 8,000 tags take 45 ms at worst (all <div>).
A newsletter of 150 KB has 5,000."""

HTML_PARTS = 200
"""Parts given to Lexbor for one message, 70 us each if they are short."""

HTML_PLAIN_TAGS = 400
"""Up to here formatting elements keep their names. Every unclosed <b> is made again in every later
block, so n start tags make n*n/4 elements (300: 4.5 ms, 1,000: 90 ms and 80 MB); above this number
they are renamed, which ends that."""

HTML_PIECE = 16_384
"""Bytes of a page from which tags are removed in one step without the parser."""

ENTITIES = 10_000
"""Character references replaced without the parser, 1 us each."""

HTML_ROOTS = 8
"""<html> and <body> tags; the attributes of later ones are all added to the first one."""

LINKS = 200
"""Links, and as many images, of one part."""

LINK_TEXT = 200
"""Characters of a link's visible text."""

URL_BYTES = 2_048

LINK_WORK = 1_048_576
"""Characters of link texts read before shortening; nested links repeat their text."""

STYLED_NODES = 4_000
"""Elements of one part of which the style is read, 1 us each."""

STYLES = 400
"""Distinct styles of one part that are read, 20 us each at the first time."""

RULES = 400
"""Rules of the style sheets of one part that say something about what is seen; with more, no rule
counts."""

MATCH_STEPS = 20_000
"""Elements of one part that are compared with selectors of several parts, .3 us each; after them
it is unknown what a rule is for."""

RULE_ENTRIES = 20_000
"""Elements of one part that are listed by the rules that select them, .1 us each; the other rules
are compared with each element."""

HIDDEN_NODES = 400
"""Hidden elements removed from one part."""

INNER_NODES = 20
"""Elements that may be visible within a hidden one; with more, the text stays visible."""

INNER_LOOKS = 20
"""Hidden elements of one part in which such elements are searched."""

STYLE_READ = 1_000
"""Characters of an element's own style; legitimate ones have a few hundred."""

COLOURED_NODES = 100
"""Elements of which the colour is compared with their background."""

ANCESTORS = 30
"""Ancestors that are searched for a background, 0.4 us each."""

COLOURS = 12
"""Distinct colours of text that occur as backgrounds too."""

RULES_BYTES = 65_536
"""Style sheets of one part that are read, 100 ns a byte; of longer ones no rule counts."""

MARKUP_BYTES = 16_384
"""HTML of which the tags are kept as structure; more tags repeat the same kinds, 4 ns a byte."""

HIDDEN_BYTES = 65_536
"""Hidden text and comments of one part."""


PARTLY: Final = "read:partly"
"""The reader skipped something that a mail program may show: a limit was reached, or programs
differ in how they read the message. A verdict on such a message is `unsure` at least."""


_BLANKS: Final = "\xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_SHOWN_AS_IT_IS: Final = re.compile(
    f"([{_BLANKS}]+|(?<=[\u0370-\u1fff\u2100-\U0010ffff])[\u200c\u200d](?![\u200c\u200d]))"
)
"""blanks, and joiners within words in Persian and Hindi and within emoji; after a Latin letter, or
more than one, they only hide something"""
_RUN: Final = re.compile(r"([^ -~\u00a1-\u00ac\u00ae-\u036f])\1*")


def visible(text: str, *, keep: str = "", word: bool = False) -> str:
    """Show each character that is not printable as its code point: `<U+202E>`.

    All places that show text of a sender or of another program use this function.

    These are control and format characters, such as those that set the direction of text, line
    separators, and lone surrogates. A run of one character is shown once, with its length:
    `<U+200B x 57>`. Blanks of all widths stay, joiners that a language needs, and the characters in
    `keep`; not within a `word`, such as an address, where the form is `{U+202E}`.
    """
    if text.isprintable():
        return text
    if word:
        return _RUN.sub(_in_word, text)
    return "".join(
        part if at % 2 else _RUN.sub(partial(_in_text, keep), part)
        for at, part in enumerate(_SHOWN_AS_IT_IS.split(text))
    )


def _in_text(keep: str, run: re.Match[str]) -> str:
    if run[1].isprintable() or run[1] in keep:
        return run[0]
    times = f" x {len(run[0])}" if len(run[0]) > 1 else ""
    return f"<U+{ord(run[1]):04X}{times}>"


def _in_word(run: re.Match[str]) -> str:
    one = run[1]
    return run[0] if one.isprintable() else f"{{U+{ord(one):04X}}}" * len(run[0])


def shown(raw: bytes) -> str:
    """Visible text of bytes, for logs."""
    return visible(raw.decode("utf-8", "replace"))
