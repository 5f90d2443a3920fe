"""A message gets the same verdict by whatever way it comes to the daemon."""

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from support.cli import spamnb
from support.daemon import let_others_enter
from support.equality import ALL, HOST, WAYS, Site
from support.shapes import messages, messages_of_corpus
from support.waiting import until

from spamnb import __version__
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import read
from spamnb.model.costs import Costs
from spamnb.policy.headers import (
    ScanVerdict,
    header_end,
    is_own,
    junk_threshold,
    scanned_fields,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the mail servers need root to start")
NOT_SCORED = ("no header", "body at once", "forged first line")
"""`spamnb score` refuses the first two, and reads the third with the forged line"""


MARKED = ("junk", "reject")
"""decisions that mark the subject, by the settings of `Site`"""
LOCAL = LocalHosts(hosts=(HOST,))


class Case(NamedTuple):
    """A message, and what `spamnb score` says of it."""

    shape: str
    raw: bytes
    score: dict | None


@pytest.fixture(
    scope="module",
    params=[20, *(pytest.param(how, marks=pytest.mark.full) for how in (200, "corpus"))],
)
def how(request):
    """How many messages, or those of a public corpus.

    Each has a site of its own: the reader of a mailbox skips messages that it knows.
    """
    return request.param


@pytest.fixture(scope="module")
def site(trained, how):
    """The daemon and all mail servers."""
    folder = Path(tempfile.mkdtemp(prefix="spamnb-equal-"))
    let_others_enter(folder)
    one = Site(folder, trained)
    try:
        one.start()
        yield one
    finally:
        one.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cases(how, site, tmp_path_factory):
    """Give shape, message and score of each message."""
    folder = tmp_path_factory.mktemp("equal")
    found = messages_of_corpus(200) if how == "corpus" else messages(how)
    if not found:
        pytest.skip("no corpus: set SPAMNB_CORPUS, or run scripts/fetch-corpora spamassassin")
    for number, (shape, raw) in enumerate(found):
        if shape not in NOT_SCORED:
            (folder / f"{number:03}").write_bytes(raw)
    done = spamnb(site.home, "--config", site.config, "score", "--json", folder)
    assert done.code == 0, done.err
    scores = {int(Path(one["path"]).name): one for one in done.json}
    return [Case(shape, raw, scores.get(number)) for number, (shape, raw) in enumerate(found)]


def verdict_of(row):
    return {name: row[name] for name in ("id", "probability", "log_odds", "label", "decision")}


def fields_in(raw, wanted=is_own):
    """The fields with the names of added ones, unfolded."""
    lines = raw.replace(b"\r\n", b"\n")
    end = header_end(lines)
    head = re.sub(rb"\n[ \t]+", b" ", lines if end < 0 else lines[:end])
    parts = [line.partition(b":") for line in head.split(b"\n")]
    return [
        (name.decode().strip(), " ".join(value.decode("latin-1").split()))
        for name, colon, value in parts
        if colon and wanted(name)
    ]


def is_subject(name):
    return name.strip().lower() == b"subject"


def reason_in(fields):
    """The reason that the verdict's field names."""
    return dict(fields).get("X-Spamnb-Verdict", "").partition("; reason=")[2]


def added_fields(row, reason, names):
    """What a client gets for a verdict of the history."""
    facts = (row[name] for name in ("label", "probability", "log_odds", "decision", "signature"))
    fields = scanned_fields(
        ScanVerdict(*facts, reason), junk_threshold(Costs()), version=__version__
    )
    return [
        (name, " ".join(value.split())) for name, value in fields if names is ALL or name in names
    ]


def history(site):
    """The stored verdicts, oldest first."""
    done = spamnb(site.home, "--config", site.config, "history", "--json", "--limit", 0)
    return done.json[::-1]


@pytest.mark.parametrize("name", WAYS)
def test_each_way_gives_the_same_verdict(site, cases, name):
    """Digest, probability and decision are those of `spamnb score`; forged fields are gone.

    The subject of junk is marked the same everywhere; everything else is the scanned message.
    """
    way = WAYS[name]
    if way.needs not in site.programs:
        pytest.skip(f"{way.needs} cannot run here")
    sent = [one for one in enumerate(cases) if one[1].shape not in way.without]
    before = len(history(site))
    got = [way.ask(site, case.raw) for _, case in sent]
    rows = until(lambda: _all(history(site)[before:], len(sent)), what="the verdicts")
    for (number, case), answer, row in zip(sent, got, rows, strict=True):
        where = f"{number} {case.shape}"
        if case.shape not in way.changed:
            wanted = case.score or site.verdicts.setdefault(case.raw, verdict_of(row))
            assert verdict_of(row) == verdict_of(wanted), where
        added = fields_in(answer)
        reason = reason_in(added)
        assert added == added_fields(row, reason, way.names), where
        if case.shape not in way.changed and way.names is ALL:
            assert reason == site.reasons.setdefault(case.raw, reason), where
        if way.tags and row["decision"] in MARKED:
            found = fields_in(answer, is_subject)
            assert case.shape in way.changed or found == site.subjects.setdefault(case.raw, found)
        elif way.whole:
            assert read(answer, LOCAL).digest.hex() == row["id"], where


def _all(rows, count):
    """The rows, as soon as there are as many."""
    return rows if len(rows) >= count else None
