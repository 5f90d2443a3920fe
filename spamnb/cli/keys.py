"""Ask questions that a user answers with one key."""

from __future__ import annotations

import os
import re
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from spamnb.cli.printing import safe

QUIT = "q"
"""also stands for the end of the input"""
_KEY = re.compile(r"\[(\w)\]")


@contextmanager
def typed_keys() -> Iterator[Callable[[str], str]]:
    """Yield a function that asks until one of the keys in brackets is typed, such as `[q]uit?`.

    The terminal passes keys on without Enter.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # DRAIN, not FLUSH, which discards keys that were typed before the prompt.
    tty.setcbreak(terminal, termios.TCSADRAIN)

    def ask(prompt: str) -> str:
        key = ""
        while key not in _KEY.findall(prompt):
            click.echo(prompt, nl=False, err=True)
            key = os.read(terminal, 1).decode("ascii", "replace").lower() or QUIT
            click.echo(safe(key), err=True)
        return key

    try:
        yield ask
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
