"""The formats of other filters: those that can be imported, and why the others cannot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

from spamnb.core.model.events import Recipe
from spamnb.core.model.training_rows import day_of
from spamnb.errors import UserError
from spamnb.service.engine.clock import now_us
from spamnb.service.foreign import bogofilter, popfile, spambayes
from spamnb.service.foreign.dump import MOST_COUNT, DumpEntry, DumpFacts, cleaned
from spamnb.service.foreign.mapper import DumpOptions, MappedDump, map_dump

READERS: Mapping[str, Callable[[BinaryIO, DumpFacts], Iterator[DumpEntry]]] = {
    "bogofilter": bogofilter.read,
    "spambayes": spambayes.read,
    "popfile": popfile.read,
}
_HASHES = "its dump has hashes instead of words, so no feature can be made of them"
REFUSED: Mapping[str, tuple[str, str]] = {
    "spamassassin": (
        _HASHES,
        "its list of trained messages has their labels: spamnb train --labels sa:FILE FOLDERS",
    ),
    "rspamd": ("its statistics have hashes of pairs of words", "train on the mail: spamnb train"),
    "dspam": (_HASHES, "train on the mail: spamnb train"),
    "crm114": (_HASHES, "train on the mail: spamnb train"),
}
"""filters of which no counts can be imported: the reason, and what to do instead"""
FORMATS = (*READERS, *REFUSED)
_PIECE = 1 << 20


def read_dump(recipe: Recipe, file: BinaryIO, options: DumpOptions) -> MappedDump:
    """Return a dump of a format as a change of a model; UserError if it cannot be read."""
    name, most = options.format, options.most
    if name in REFUSED:
        reason, hint = REFUSED[name]
        raise UserError(f"counts of {name} cannot be imported: {reason}", hint=hint)
    if name not in READERS:
        raise UserError(f"there is no format {name!r}", hint=f"one of {', '.join(READERS)}")
    if not isinstance(most, int) or not 0 < most <= MOST_COUNT:
        raise UserError("`most` must be a whole number of 1 or more")
    facts = DumpFacts()
    entries = cleaned(READERS[name](file, facts), facts)
    return map_dump(recipe, entries, facts, options, day_of(now_us()))


def dump_digest(file: BinaryIO) -> bytes:
    """Return the digest that identifies a dump; the file is read again from its start."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in iter(lambda: file.read(_PIECE), b""):
        digest.update(piece)
    file.seek(0)
    return digest.digest()
