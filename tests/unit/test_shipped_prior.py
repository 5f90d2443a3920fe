"""A new model begins with a table of common words and forms, which names no person."""

import gzip
import os
import re
import tomllib
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from email.utils import getaddresses
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import numpy as np
import pytest
from labelled_mail import clean, files
from support.cli import undated

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.prior import (
    CHANNEL,
    SHIPPED,
    TEXTS,
    features_of_priors,
    shipped_prior,
)
from spamnb.maintenance.export import export
from spamnb.model.tokens import TokenLocation
from spamnb.policy.actions import LEAST_MESSAGES
from spamnb.store import maintenance as audit

PROJECT = Path(__file__).parents[2]
MOST_BYTES = 400_000
COLLECTION = os.environ.get("SPAMNB_CORPUS", "")
needs_collection = pytest.mark.skipif(
    "easy-ham-1" not in "".join(map(str, files(Path(COLLECTION)))) if COLLECTION else True,
    reason="$SPAMNB_CORPUS is not the collection of the shipped prior",
)


@pytest.fixture(scope="module")
def maker():
    """Give scripts/make-prior as a module."""
    loader = SourceFileLoader("make_prior", str(PROJECT / "scripts" / "make-prior"))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def opened(path, **options):
    return Filter.open(path, create=True, history=False, **options)


def test_the_table_is_small_and_has_no_address():
    """It stays below 400 KB; the sign of addresses is only in forms, where letters are `a`."""
    assert SHIPPED.stat().st_size < MOST_BYTES
    prior, _ = shipped_prior()
    assert prior.features > 5_000
    for location, _, text in prior.tokens:
        is_form = location is TokenLocation.FROM_SHAPE and not re.search(rb"[b-zB-Z1-8]", text)
        assert is_form or b"@" not in text, text


def test_packages_contain_the_table():
    """The wheel has the data that pyproject.toml names; the Debian package is made of it."""
    table = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    patterns = table["tool"]["setuptools"]["package-data"]["spamnb"]
    assert SHIPPED in {path for one in patterns for path in (PROJECT / "spamnb").glob(one)}


@needs_collection
def test_no_word_of_the_table_names_a_sender_or_recipient():
    """No word of a text occurs in a name or address of the collection's headers."""
    named = set()
    for path, _ in files(Path(COLLECTION)):
        head = message_from_bytes(path.read_bytes().partition(b"\n\n")[0] + b"\n\n")
        fields = [value for name in ("from", "sender", "reply-to", "to", "cc")
                  for value in head.get_all(name, [])]  # fmt: skip
        for pair in getaddresses(list(map(str, fields))):
            named |= set(re.findall(r"[a-z]{3,}", " ".join(pair).lower()))
    assert len(named) > 5_000
    prior, _ = shipped_prior()
    words = {text.decode(errors="replace").lower() for at, _, text in prior.tokens if at in TEXTS}
    assert len(words) > 2_000
    assert sorted(words & named) == []


@needs_collection
def test_the_table_is_what_the_script_makes(maker):
    """The collection and the script give these lines."""
    rows = maker.ordered((clean(path.read_bytes()), label) for path, label in files())
    assert maker.digest(rows) in (PROJECT / "corpora" / "README.md").read_text()
    assert "".join(maker.prior_of(rows)).encode() == gzip.decompress(SHIPPED.read_bytes())


def test_only_a_new_model_of_ham_and_spam_takes_it(tmp_path):
    """Other labels, plain texts and the classical kinds begin empty, and so do all by default."""
    for number, options in enumerate(
        ({"labels": ("spam", "ham")}, {"kind": "bernoulli"}, {"documents": True})
    ):
        with opened(tmp_path / str(number), recipe=new_recipe(**options), prior=True) as model:
            assert next(iter(model.store.read().__enter__().events()), None) is None
    with opened(tmp_path / "plain") as model, model.store.read() as view:
        assert view.totals().last_seq == 0
    with opened(tmp_path / "plain", prior=True) as model:
        model.undo(1)
    with opened(tmp_path / "plain", prior=True) as model, model.store.read() as view:
        assert view.totals().last_seq == 2


def test_a_creation_that_was_killed_is_completed(tmp_path, monkeypatch):
    """A process that ends between the store and the prior leaves a model without events."""
    with monkeypatch.context() as patched:
        patched.setattr(Filter, "_add_prior", lambda _: os._exit(9))
        child = os.fork()
        if child == 0:
            opened(tmp_path / "m", prior=True)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with opened(tmp_path / "m") as model, model.store.read() as view:
        assert view.totals().last_seq == 0
    with Filter.open(tmp_path / "m", prior=True) as model, model.store.read() as view:
        assert view.event(1).channel == CHANNEL


def test_one_undo_leaves_an_empty_model(tmp_path):
    """The first event is the prior; without it the export is that of an empty model."""
    recipe = new_recipe()
    with opened(tmp_path / "empty", recipe=recipe) as model:
        empty = "".join(export(model.store))
    with opened(tmp_path / "new", recipe=recipe, prior=True) as model:
        with model.store.read() as view:
            assert view.event(1).channel == CHANNEL
            assert audit.check(view) == []
            assert view.learnt(LEAST_MESSAGES) == [0, 0]
            assert view.totals().messages.tolist() == [0, 0]
            assert features_of_priors(view) == shipped_prior()[0].features
        assert undated("".join(export(model.store))) != undated(empty)
        model.undo(1)
        assert undated("".join(export(model.store))) == undated(empty)


def test_processes_that_create_one_model_add_it_once(tmp_path):
    """However many begin at one time, the journal has one event."""

    def begin(_):
        opened(tmp_path / "m", prior=True).close()

    with ThreadPoolExecutor(8) as several:
        list(several.map(begin, range(8)))
    with Filter.open(tmp_path / "m", readonly=True) as model, model.store.read() as view:
        assert view.totals().last_seq == 1


def test_it_tells_mail_apart_before_any_training(tmp_path):
    """Without own training, most spam of the sample has a higher score than most ham."""
    sample = PROJECT / "corpora" / "sample"
    with opened(tmp_path / "m", prior=True) as model:
        odds = [
            [v.log_odds for v in model.score_many(f.read_bytes() for f in sorted(side.iterdir()))]
            for side in (sample / "ham", sample / "spam")
        ]
    assert np.mean(np.array(odds[0])[:, None] < np.array(odds[1])) > 0.6
