"""The mail that the benches judge: a folder that is named, a fetched corpus, or the sample.

$SPAMNB_CORPUS (a folder that holds ham/ and spam/) comes first, then run/corpora/spamassassin as
`scripts/fetch-corpora spamassassin` leaves it, then the committed sample, which is made up and
small: its figures show that the bench runs, not how good the filter is.
"""

import os
import random
import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FETCHED = PROJECT / "run" / "corpora" / "spamassassin"
SAMPLE = PROJECT / "corpora" / "sample"
SEED = 20240601
_SIDES = re.compile(r"(?:.*_)?(ham|spam)(?:_.*|\d*)")
"""names of folders with mail of one label: ham, easy_ham_2, spam, 20030228_spam"""
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
    """Where the mail is."""
    named = os.environ.get("SPAMNB_CORPUS")
    return Path(named) if named else FETCHED if FETCHED.is_dir() else SAMPLE


def is_sample():
    """Whether there is no other mail than the sample."""
    return folder() == SAMPLE


def files(where=None):
    """(path, label) of each message, ordered by name."""
    found = []
    for path in (where or folder()).rglob("*"):
        side = _SIDES.fullmatch(path.parent.name)
        if side and path.is_file() and path.name != "cmds":
            found.append((path, side[1]))
    if not found:
        raise SystemExit(f"{where or folder()} holds no ham and no spam")
    return sorted(found, key=lambda row: (row[0].name, row[1], row[0]))


def messages(where=None):
    """(raw, label) of each message without the marks of other filters, in one fixed order."""
    rows = [(clean(path.read_bytes()), label) for path, label in files(where)]
    random.Random(SEED).shuffle(rows)
    return rows


def clean(raw):
    """A message without the separator of an mbox and without headers of other filters."""
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
