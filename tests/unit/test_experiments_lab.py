"""The experiments' own model: what they decided holds only while it is the product's."""

import random
from dataclasses import replace

import arrays
import lab
import numpy as np
import streams


def test_the_lab_scores_as_the_product_does():
    """The same log-odds for a hundred messages of the sample, but for what the store rounds."""
    files = sorted((lab.PROJECT / "corpora" / "sample").glob("*/*"))
    files = random.Random(3).sample(files, 100)
    samples = streams.samples(files)
    truth, odds = streams.Stream("sample", samples, list(range(100))).judged()
    mail = arrays.read_mail(files)
    corpus = arrays.as_corpus(mail)
    assert corpus.spam.tolist() == truth.tolist()
    ours = lab.online(corpus, list(range(100)), lab.Constants())
    np.testing.assert_allclose(ours, odds, atol=2e-3)
    # The test can tell: with another constant the log-odds are others.
    other = lab.online(corpus, list(range(100)), replace(lab.Constants(), eta=7.0))
    assert np.abs(other - odds).max() > 0.05


def test_the_lab_reads_a_corpus_as_its_streams_do(tmp_path):
    """Features, groups and capitals of a folder are those of the streams."""
    for side in ("ham", "spam"):
        (tmp_path / side).mkdir()
        for path in sorted((lab.PROJECT / "corpora" / "sample" / side).iterdir())[:5]:
            (tmp_path / side / path.name).write_bytes(path.read_bytes())
    one = lab.corpus(tmp_path)
    files = sorted(tmp_path.glob("*/*"), key=lambda f: (f.name, f.parent.name))
    other = arrays.as_corpus(arrays.read_mail(files))
    for name in ("rows", "offsets", "group", "place", "exact", "spam"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    assert 0 < one.exact.sum() < len(one.exact)
    assert set(one.group.tolist()) == {0, 1}
