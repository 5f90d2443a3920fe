"""The sample corpus: made by the generator of this project, the same everywhere, and varied."""

import collections
import email
import ipaddress
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import scikit

from spamnb.model import bernoulli, multinomial
from spamnb.model.events import no_totals
from spamnb.model.smoothing import Assumptions, Batch

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"


def make(folder, *arguments):
    """Run the generator as a user does."""
    command = [sys.executable, PROJECT / "scripts" / "make-sample", folder, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def mail(folder):
    """Read all messages of a corpus by their name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.eml"))}


@pytest.fixture(scope="module")
def sample():
    return mail(SAMPLE)


def test_the_committed_corpus_is_what_the_generator_makes(tmp_path, sample):
    """The same arguments give the same bytes on every machine and every Python."""
    assert make(tmp_path).returncode == 0
    made = mail(tmp_path)
    assert made.keys() == sample.keys()
    assert [name for name in made if made[name] != sample[name]] == []


def test_size_and_number(sample):
    """200 of each side in less than a megabyte, for it is part of every clone."""
    sides = collections.Counter(name.split("/")[0] for name in sample)
    assert sides == {"ham": 200, "spam": 200}
    assert sum(map(len, sample.values())) < 1_000_000


def test_seeds_and_numbers_are_obeyed(tmp_path):
    """Another seed makes other mail, and as much of each side as asked."""
    assert make(tmp_path / "a", "--ham", "3", "--spam", "5", "--seed", "1").returncode == 0
    assert make(tmp_path / "b", "--ham", "3", "--spam", "5", "--seed", "2").returncode == 0
    one, two = mail(tmp_path / "a"), mail(tmp_path / "b")
    assert len(one) == len(two) == 8
    assert not set(one.values()) & set(two.values())


def test_mail_that_is_there_is_not_overwritten(tmp_path):
    """A folder that holds something is refused with a line that says what to do."""
    (tmp_path / "ham").mkdir()
    (tmp_path / "ham" / "mine").write_text("dear diary")
    done = make(tmp_path)
    assert done.returncode != 0
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["ham", "mine"]


def test_every_message_is_well_formed_mail(sample):
    """The standard library finds no defect, a sender, a date, and decodes every text part."""
    for name, raw in sample.items():
        message = email.message_from_bytes(raw)
        assert message["From"], name
        assert message["Date"], name
        for part in message.walk():
            assert not part.defects, (name, part.defects)
            if part.get_content_maintype() == "text":
                part.get_payload(decode=True).decode(part.get_content_charset())
    ids = [email.message_from_bytes(raw)["Message-ID"] for raw in sample.values()]
    ids = [identity for identity in ids if identity]
    assert len(ids) == len(set(ids))


def test_it_is_varied(sample):
    """All transfer encodings, many charsets, and the usual structures are there."""
    transfers, charsets, kinds = set(), set(), set()
    for raw in sample.values():
        for part in email.message_from_bytes(raw).walk():
            kinds.add(part.get_content_type())
            charsets.add(part.get_content_charset())
            transfers.add(part["Content-Transfer-Encoding"])
    assert {"7bit", "8bit", "base64", "quoted-printable"} <= transfers
    assert {"utf-8", "us-ascii", "iso-8859-1", "koi8-r", "gb2312", "iso-2022-jp"} <= charsets
    assert {"multipart/mixed", "multipart/alternative", "multipart/related"} <= kinds
    assert {"text/calendar", "application/pdf", "text/html", "image/gif"} <= kinds


def test_the_sample_names_no_real_host(sample):
    """Hosts end in reserved names and addresses are from the documentation ranges, everywhere."""
    ranges = [ipaddress.ip_network(f"{net}.0/24") for net in ("192.0.2", "198.51.100", "203.0.113")]
    for name, raw in sample.items():
        message = email.message_from_bytes(raw)
        parts = [p.get_payload(decode=True) for p in message.walk() if not p.is_multipart()]
        text = b"\n".join([raw.split(b"\n\n")[0], *parts]).decode("latin-1")
        for host in re.findall(r"(?:@|https?://|from |by )([\w.-]+\.[a-z]{3,})", text):
            assert host.rsplit(".", 1)[1] in {"example", "test", "invalid"}, (name, host)
        for found in re.findall(r"\[(\d+\.\d+\.\d+\.\d+)\]", text):
            assert any(ipaddress.ip_address(found) in net for net in ranges), (name, found)


def test_new_words_go_on_coming(tmp_path):
    """The vocabulary grows with the mail, slower than the mail: four times as much, twice or so."""
    make(tmp_path, "--ham", "800", "--spam", "0")
    words = [set(re.findall(rb"[a-z]{4,}", raw)) for raw in mail(tmp_path).values()]
    few, many = len(set().union(*words[:200])), len(set().union(*words))
    assert 1.4 * few < many < 3.9 * few


@pytest.mark.parametrize(
    ("model", "oracle"), [(multinomial, "MultinomialNB"), (bernoulli, "BernoulliNB")]
)
def test_the_event_models_equal_scikit_learn_on_it(sample, model, oracle):
    """Half of the sample is learnt; the other half scores the same to 1e-9, with right labels."""
    messages = [frozenset(re.findall(rb"[\w$!]+", raw)) for raw in sample.values()]
    y = np.array([name.startswith("spam") for name in sample]).astype(int)
    learnt = np.arange(len(y)) % 2 == 0
    vocabulary = sorted(
        set().union(*(m for m, known in zip(messages, learnt, strict=True) if known))
    )
    place = {word: i for i, word in enumerate(vocabulary)}
    rows = [np.array(sorted(place[w] for w in m if w in place), np.int64) for m in messages]
    X = np.zeros((len(messages), len(place)), int)
    for x, row in zip(X, rows, strict=True):
        x[row] = 1
    n = np.stack([X[learnt & (y == k)].sum(axis=0) for k in (0, 1)], axis=1).astype(np.uint32)
    totals = no_totals(1, 2)
    totals.messages, totals.tokens = np.bincount(y[learnt]), n.sum(axis=0, dtype=np.int64)
    totals.known, totals.histogram = len(place), bernoulli.histogram_of(n, 2)
    fresh = [row for row, known in zip(rows, learnt, strict=True) if not known]
    batch = Batch(np.concatenate(fresh), np.cumsum([0, *map(len, fresh)]))
    ours = model.joint_log_likelihood(batch, n, totals, Assumptions(0.01))
    reference = getattr(scikit, oracle)(alpha=0.01).fit(X[learnt], y[learnt])
    theirs = reference.predict_joint_log_proba(X[~learnt])
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    right = (ours.argmax(axis=1) == y[~learnt]).mean()
    assert 0.8 < right < 1
