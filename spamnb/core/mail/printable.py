"""Text that is safe to show: on terminals, in log lines and in replies."""

from __future__ import annotations


def printable(text: str, instead: str = "?", *, keep: str = "") -> str:
    """Replace each character that is not printable: it may control a terminal, or hide text.

    These are control and format characters, such as those that set the direction of text, line
    separators, all blanks but the space, and lone surrogates; except for those in `keep`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else instead for c in text)


def shown(raw: bytes) -> str:
    """Printable text of bytes, for logs and rules."""
    return printable(raw.decode("utf-8", "replace"))
