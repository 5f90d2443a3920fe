"""Labelled mail for the benchmarks: a given folder, a downloaded corpus, or the sample.

$SPAMNB_CORPUS (a folder with ham/ and spam/) comes first, then run/corpora/spamassassin as
`scripts/fetch-corpora spamassassin` creates it, then the committed sample. The sample is generated
and small: its figures only show that the benchmark runs.
"""

import os
import random
import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FETCHED = PROJECT / "run" / "corpora" / "spamassassin"
SAMPLE = PROJECT / "corpora" / "sample"
SEED = 20240601
_SIDES = re.compile(r"(?:.*[_-])?(ham|spam)(?:[_-].*|\d*)")
"""names of folders with mail of one label: ham, easy_ham_2, spam-1, 20030228_spam"""
_MARKS = re.compile(
    rb"[!-9;-~]*(?:spam|virus|barracuda|asg-|bitdefender|amavis|scan|policyd|brightmail|pyzor|razor"
    rb"|greylist|ironport|proofpoint|cloudmark|postfilter|antiabuse)"
    rb"|x(?:status|level|flag|score|checker)"
    rb"|x-(?:rc|cm|vr|sbb|bogosity|keywords|status|uid|pmflags|junk|mozilla-status)"
    rb"|(?:x-)?status:",
    re.IGNORECASE,
)
"""headers that carry the verdict of another filter, or the flags of the collector's own mailbox"""


def folder():
    """Return the folder of the corpus."""
    named = os.environ.get("SPAMNB_CORPUS")
    return Path(named) if named else FETCHED if FETCHED.is_dir() else SAMPLE


def is_sample():
    """Return whether the corpus is the sample."""
    return folder() == SAMPLE


def files(where=None):
    """Return (path, label) of each message, ordered by name."""
    found = []
    for path in (where or folder()).rglob("*"):
        side = _SIDES.fullmatch(path.parent.name)
        if side and path.is_file() and not _is_other(path):
            found.append((path, side[1]))
    if not found:
        raise SystemExit(f"{where or folder()} has no folders with ham or spam")
    return sorted(found, key=lambda row: (row[0].name, row[1], row[0]))


def _is_other(path):
    """Return whether a file of a collection is not a message."""
    return path.name == "cmds" or path.suffix == ".json"


def messages(where=None):
    """Return (raw, label) of each message, cleaned, in one fixed order."""
    rows = [(clean(path.read_bytes()), label) for path, label in files(where)]
    random.Random(SEED).shuffle(rows)
    return rows


def clean(raw):
    """Return a message without an mbox separator and without headers of other filters."""
    raw = raw.replace(b"\r\n", b"\n")
    if raw.startswith((b"From ", b">From ")):
        raw = raw.partition(b"\n")[2]
    head, gap, body = raw.partition(b"\n\n")
    kept, drop = [], False
    for line in head.split(b"\n"):
        if line[:1] not in (b" ", b"\t"):
            drop = _MARKS.match(line.partition(b":")[0] + b":") is not None
        if not drop:
            kept.append(line)
    return b"\n".join(kept) + gap + re.sub(rb"(?m)^From ", b">From ", body)
