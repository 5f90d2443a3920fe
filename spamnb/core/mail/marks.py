"""Marks of reading that decisions depend on.

Most marks are words that only the model weighs; they stand where they are found.
"""

from __future__ import annotations

from typing import Final

PARTLY: Final = "read:partly"
"""Something that a mail program may show was not read: a bound on the work was reached, or programs
differ in what they take for the message. A verdict on such a message is `unsure` at least."""
