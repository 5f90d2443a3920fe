"""Print results: text, JSON, and on terminals colours and progress bars; ask for single keys.

Control characters in text from messages are made visible, or a subject could control the terminal.
Failure: a closed pipe is handled in `main`.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spamnb.errors import UserError
from spamnb.mail.limits import visible

if TYPE_CHECKING:
    from collections.abc import Callable


import re
import termios
import tty
from collections.abc import Callable

_KEPT = "\t" + "".join(map(chr, range(0xDC80, 0xDD00)))
"""tabs, and undecodable bytes of paths, which `print_anything` writes as they are"""
MOST = sys.maxsize
"""upper bound of numeric arguments"""
_COLOURS = {"spam": "red", "junk": "red", "reject": "red", "ham": "green", "deliver": "green",
            "unsure": "yellow"}  # fmt: skip


def print_anything() -> None:
    """Make stdout and stderr accept any text: undecodable bytes of paths pass, the rest is ?."""

    def escape(error: UnicodeError) -> tuple[str | bytes, int]:
        assert isinstance(error, UnicodeEncodeError)
        part = error.object[error.start : error.end]
        raw = bytes(ord(c) - 0xDC00 if "\udc80" <= c <= "\udcff" else 0x3F for c in part)
        return raw, error.end

    codecs.register_error("spamnb", escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="spamnb")


def safe(text: str) -> str:
    """Make visible what could control the terminal, hide text or turn its direction."""
    return visible(text, keep=_KEPT)


def shown_time(time: int | str) -> str:
    """Format a time, in microseconds or as ISO 8601, in the local time zone."""
    at = (
        datetime.fromtimestamp(time / 1e6, UTC)
        if isinstance(time, int)
        else datetime.fromisoformat(time)
    )
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def coloured(text: str, word: str) -> str:
    """Colour a text by a label or decision, on a terminal."""
    if not wants_colour() or word not in _COLOURS:
        return text
    return click.style(text, fg=_COLOURS[word])


def wants_colour() -> bool:
    """Return True if stdout is a terminal and $NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str = "") -> None:
    """Print a line to stdout."""
    sys.stdout.write(text + "\n")


def warn(text: str) -> None:
    """Print a line to stderr, with the program's name."""
    sys.stdout.flush()
    sys.stderr.write(f"spamnb: {safe(text)}\n")


def write_text(file: str, text: str) -> None:
    """Write a result to a file; - is standard output."""
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from error


def say_json(value: Any) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(json.dumps(value) + "\n")


def table(rows: Iterable[tuple[str, ...]], right: tuple[int, ...] = ()) -> None:
    """Print aligned columns; those in `right` are aligned to the right."""
    lines = [tuple(safe(cell).replace("\t", " ") for cell in row) for row in rows]
    if not lines:
        return
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        say("  ".join(cells).rstrip())


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """Yield a function (done, total, note) that updates a bar on stderr; None without a terminal.

    The bar starts with the first call, because its thread must not exist when workers are forked.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Items per second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        Rate(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None, note="")

    def move(done: int, total: int, note: str = "") -> None:
        bar.start()
        bar.update(task, completed=done, total=total or None, note=note)

    try:
        yield move
    finally:
        bar.stop()


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
