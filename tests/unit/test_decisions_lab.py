"""What users see of a filter: the simulated site is judged as the daemon judges."""

import shutil

import pytest
from support.cli import SAMPLE

from spamnb.lab.decisions import Site, decisions_of, play
from spamnb.lab.runs import Options, read_samples
from spamnb.model.verdict import SHIPPED

OPTIONS = Options()
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def mail():
    """The first hundred messages of each kind, ham and spam in turn."""
    sides = [sorted((SAMPLE / label).iterdir())[:100] for label in ("ham", "spam")]
    return [
        (path.read_bytes(), path.parent.name) for pair in zip(*sides, strict=True) for path in pair
    ]


@pytest.fixture(scope="module")
def samples(mail):
    return read_samples(mail, OPTIONS)


def test_the_threshold_of_the_site_files_more(samples):
    """With the site's threshold more spam is filed, and users correct less."""
    ours = play(samples, OPTIONS, Site(apart_s=DAY_S))
    shipped = play(samples, OPTIONS, Site(apart_s=DAY_S, one_in=0))
    assert ours.threshold < shipped.threshold == SHIPPED
    assert ours.spam_filed > shipped.spam_filed
    assert ours.corrections < shipped.corrections
    assert ours.ham == ours.spam == 100


def test_silence_needs_time(samples):
    """Messages that come within a day settle nothing: only labels can move the threshold."""
    quick = play(samples, OPTIONS, Site(teaching="full", answered=0.2, apart_s=0.001))
    slow = play(samples, OPTIONS, Site(teaching="full", answered=0.2, apart_s=DAY_S))
    assert slow.threshold <= quick.threshold
    assert slow.spam_filed >= quick.spam_filed


def test_a_site_that_never_teaches_files_nothing(samples):
    """No user answers: no correction, and the threshold is the shipped one."""
    found = play(samples, OPTIONS, Site(answered=0.0))
    assert (found.spam_filed, found.ham_filed, found.corrections) == (0, 0, 0)
    assert found.threshold == SHIPPED


def test_late_labels_file_less(samples):
    """A label that comes after the stream teaches nothing."""
    never = play(samples, OPTIONS, Site(late_s=1000 * DAY_S, apart_s=1.0))
    assert never.spam_filed == 0
    assert never.corrections > 0


def test_it_repeats_exactly(samples):
    """The same mail gives the same figures."""
    site = Site(answered=0.5, apart_s=3600)
    assert play(samples, OPTIONS, site) == play(samples, OPTIONS, site)


@pytest.mark.skipif(not shutil.which("bogofilter"), reason="bogofilter is not installed")
def test_bogofilter_gets_the_same_mail_and_labels(mail):
    """Both filters are judged on the same messages."""
    ours, beside = decisions_of(mail[:60], OPTIONS, Site(), beside=True)
    assert (ours.filter, beside.filter) == ("spamnb", "bogofilter")
    assert (ours.ham, ours.spam) == (beside.ham, beside.spam) == (30, 30)
    assert beside.corrections > 0
    assert beside.spam_filed > 0
