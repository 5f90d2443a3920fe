"""bogofilter with a new word list and its default settings, to compare with.

Failure: UserError if the program fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from spamnb.errors import UserError

HAM, SPAM = 0.45, 0.99
"""by default, a message is ham up to the first and spam from the second probability on"""
_UNTRAINED = 0.5


def is_installed() -> bool:
    """Return whether the program is in the path."""
    return shutil.which("bogofilter") is not None


class Bogofilter:
    """bogofilter with its word list in a folder."""

    def __init__(self, folder: str) -> None:
        self._environment = dict(os.environ, HOME=folder)
        self._command = ["bogofilter", "-C", "-d", folder]
        self._trained = False

    def _run(self, option: str, raw: bytes) -> bytes:
        done = subprocess.run(  # noqa: S603 - the program that the user wants to compare with
            [*self._command, option],
            input=raw,
            capture_output=True,
            env=self._environment,
            check=False,
        )
        if done.returncode > 2:
            raise UserError(f"bogofilter: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def score(self, raw: bytes) -> float:
        """Return the probability of spam; 0.5 before the first training."""
        return float(self._run("-TT", raw).split()[-1]) if self._trained else _UNTRAINED

    def learn(self, raw: bytes, *, spam: bool) -> None:
        """Learn one message."""
        self._run("-s" if spam else "-n", raw)
        self._trained = True
