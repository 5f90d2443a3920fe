"""Scoring files on all cores gives the same verdicts as on one, in the order of the files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import LIMIT_S

from spamnb.engine.bulk import Scoring, score_paths
from spamnb.engine.filter import Filter
from spamnb.errors import CorpusError, StoreMissingError

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer") / "model"
    with Filter.open(folder, create=True, history=False) as model:
        for side in ("ham", "spam"):
            for path in sorted((SAMPLE / side).iterdir())[:20]:
                model.learn(path.read_bytes(), side)
    return folder


@pytest.fixture
def home(trained, tmp_path_factory):
    """A copy for each test: a model that one of them leaves open must not disturb the others."""
    folder = tmp_path_factory.mktemp("home") / "model"
    shutil.copytree(trained, folder)
    return folder


@pytest.mark.parametrize("jobs", [1, 2])
def test_verdicts_are_those_of_the_filter_in_the_order_of_the_files(home, jobs):
    """The scores and their order do not depend on the number of processes."""
    found = list(score_paths(home, [str(SAMPLE)], Scoring(jobs=jobs)))
    names = sorted(str(path) for path in SAMPLE.rglob("*.eml"))
    assert [scored.path for scored in found] == names
    with Filter.open(home, readonly=True) as model:
        verdicts = list(model.score_many(Path(name).read_bytes() for name in names))
    for scored, verdict in zip(found, verdicts, strict=True):
        assert scored.verdict.log_odds == pytest.approx(verdict.log_odds, abs=1e-9)
        assert scored.verdict.digest == verdict.digest
        assert scored.clues == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_clues_come_along_when_asked_for(home, jobs):
    """On request each file has its strongest clues, as texts."""
    scored = next(iter(score_paths(home, [str(SAMPLE)], Scoring(jobs=jobs, clues=3))))
    with Filter.open(home, readonly=True) as model:
        want = model.score(Path(scored.path).read_bytes(), remember=False).clues(3)
    assert [clue[:2] for clue in scored.clues] == [clue[:2] for clue in want]


def test_unreadable_files_stay_in_their_place(home, tmp_path):
    """Each file has a line; an unreadable one has the reason instead of a verdict."""
    good = (SAMPLE / "ham").iterdir().__next__().read_bytes()
    for name, data in (("1", good), ("2", b""), ("3", b"\x80" * 50), ("4", good)):
        (tmp_path / name).write_bytes(data)
    found = list(score_paths(home, [str(tmp_path)]))
    assert [bool(scored.verdict) for scored in found] == [True, False, False, True]
    assert [bool(scored.error) for scored in found] == [False, True, True, False]


def test_paths_are_scored_in_the_order_given(home):
    """Several paths are scored one after the other, a repeated path again."""
    paths = [str(SAMPLE / side / "0003.eml") for side in ("spam", "ham", "spam")]
    assert [scored.path for scored in score_paths(home, paths)] == paths


def test_scoring_leaves_no_trace(home):
    """Scoring writes neither model nor history."""
    before = {path: path.stat().st_mtime_ns for path in home.rglob("data.mdb")}
    list(score_paths(home, [str(SAMPLE / "ham")]))
    assert {path: path.stat().st_mtime_ns for path in home.rglob("data.mdb")} == before


def test_scoring_lets_go_of_the_model(home):
    """The calling process may train the model after scoring."""
    list(score_paths(home, [str(SAMPLE / "ham" / "0003.eml")]))
    with Filter.open(home) as model:
        assert model.learn(b"Subject: x\n\nplum\n", "ham").changed


def test_a_missing_path_or_model_is_reported_before_workers_start(home, tmp_path):
    """Wrong paths raise errors in the parent."""
    with pytest.raises(CorpusError):
        list(score_paths(home, [str(tmp_path / "nowhere")]))
    with pytest.raises(StoreMissingError):
        list(score_paths(tmp_path / "nowhere", [str(SAMPLE)]))


def test_deep_folders_and_many_clues_cannot_stop_the_workers(home, tmp_path):
    """Large tasks and results do not block the pool."""
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    raw = (SAMPLE / "ham" / "0003.eml").read_bytes()
    for number in range(3200):
        os.link(deep / "0", deep / str(number)) if number else (deep / "0").write_bytes(raw)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from spamnb.engine.bulk import Scoring, score_paths\n"
        "print(sum(1 for _ in score_paths(Path(sys.argv[1]), [sys.argv[2]],"
        " Scoring(jobs=2, clues=20))))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, home, deep],
        cwd=PROJECT,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert child.stdout.strip() == b"3200", child.stderr.decode()
