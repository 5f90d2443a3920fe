"""Read messages named on the command line: paths, standard input, or references."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from spamnb.errors import CorpusError, UserError


def standard_input() -> str:
    """Return "-" for standard input; an error on a terminal, where the command would only wait."""
    if sys.stdin.isatty():
        raise UserError("no message is given", hint="name a file, or - to read from the terminal")
    return "-"


def one_message(path: str, *, documents: bool = False) -> bytes:
    """Read the one message at a path, or on standard input."""
    found = [raw for _, raw in all_messages(path, documents=documents)]
    if len(found) != 1:
        raise CorpusError(f"{path} contains {len(found)} messages", hint="give one message")
    return found[0]


def all_messages(path: str, *, documents: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every message at a path; an unreadable one is an error."""
    from spamnb.engine.mailboxes import SourceMessage, items

    for item in items(path, documents=documents):
        if not isinstance(item, SourceMessage):
            raise CorpusError(f"{item.name}: {item.reason}")
        yield item.name, item.raw


def named(refs: tuple[str, ...], *, documents: bool = False) -> Iterator[tuple[str, bytes | str]]:
    """Yield (name, message) for paths and (reference, reference) for everything else."""
    for ref in refs or (standard_input(),):
        if ref == "-" or is_path(ref):
            yield from all_messages(ref, documents=documents)
        else:
            yield ref, ref


def kept_file(path: str) -> str:
    """Return the path of a regular file: standard input and pipes are copied to one."""
    from spamnb.engine.mailboxes import kept
    from spamnb.store.files import as_caller, open_named

    with as_caller():
        if path != "-" and Path(path).is_file():
            return path
    with sys.stdin.buffer if path == "-" else os.fdopen(open_named(path), "rb") as file:
        return kept(file)


def is_path(ref: str) -> bool:
    """Return True if a reference is an existing path."""
    from spamnb.store.files import as_caller

    with as_caller():
        return os.path.exists(ref)  # noqa: PTH110 - no error for text that cannot be a path
