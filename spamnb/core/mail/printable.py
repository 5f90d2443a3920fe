"""Text that a sender or another program wrote, made safe to show.

All places that show such text use this function: pages, previews, digests, receipts, terminals,
logs and error messages. The text keeps its logical order. A character that would be invisible, turn
the direction of text or control a terminal is shown as its code point.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

_BLANKS: Final = "\xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_SHOWN_AS_IT_IS: Final = re.compile(
    f"([{_BLANKS}]+|(?<=[\u0370-\u1fff\u2100-\U0010ffff])[\u200c\u200d](?![\u200c\u200d]))"
)
"""blanks, and joiners within words in Persian and Hindi and within emoji; after a Latin letter, or
more than one, they only hide something"""
_RUN: Final = re.compile(r"([^ -~\u00a1-\u00ac\u00ae-\u036f])\1*")


def visible(text: str, *, keep: str = "", word: bool = False) -> str:
    """Show each character that is not printable as its code point: `<U+202E>`.

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
