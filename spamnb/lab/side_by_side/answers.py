"""The labels that a person gave to drawn messages, in a file: `ham ID` or `spam ID`, one a line.

Each change writes the whole file, so that it is on disk before the next message is shown. Comments
and the order of lines stay. Failure: UserError for a line that is no answer, and for a file that
cannot be read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spamnb.errors import UserError
from spamnb.lab.side_by_side.records import Truth
from spamnb.store.files import durable_write
from spamnb.store.paths import open_named

NAME = "trial-answers"
"""of the file in the home"""
_TRUTHS: dict[str, Truth] = {"ham": "ham", "spam": "spam"}


class AnswerFile:
    """The answers in a file; of several answers on one message, the last counts."""

    def __init__(self, path: str | Path, *, may_be_missing: bool = True) -> None:
        self.path = Path(path)
        self._lines: list[str] = []
        try:
            with open(open_named(str(path)), encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123
                self._lines = [line.rstrip("\n") for line in lines]
        except FileNotFoundError as error:
            if not may_be_missing:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        self.answers  # noqa: B018 - an invalid line is an error before the first question

    @property
    def answers(self) -> Mapping[str, Truth]:
        """The label of each message, by `ident`."""
        found: dict[str, Truth] = {}
        for number, line in enumerate(self._lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            label = _TRUTHS.get(words[0])
            if label is None or len(words) < 2:
                raise UserError(
                    f"line {number} of {self.path} is {line.strip()[:60]!r}",
                    hint="each line must be `ham ID` or `spam ID`",
                )
            found[words[1]] = label
        return found

    def add(self, label: Truth, ident: str) -> None:
        """Add an answer; on return it is on disk."""
        self._lines.append(f"{label} {ident}")
        self._write()

    def remove_last(self) -> None:
        """Remove the newest answer."""
        self._lines.pop()
        self._write()

    def _write(self) -> None:
        try:
            text = "".join(f"{line}\n" for line in self._lines)
            durable_write(self.path, text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}",
                hint="name another file with --answers",
            ) from error
