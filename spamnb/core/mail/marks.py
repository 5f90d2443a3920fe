"""The marks of the reader that affect decisions.

Most marks are only features of the model; they are defined where they are found.
"""

from __future__ import annotations

from typing import Final

PARTLY: Final = "read:partly"
"""The reader skipped something that a mail program may show: a limit was reached, or programs
differ in how they read the message. A verdict on such a message is `unsure` at least."""
