"""Fixtures of the scanning tests: a model, and scanners on copies of it."""

import shutil

import pytest
from support.scanning import COSTS, SAMPLE, TAUGHT, ScanRig, raws

from spamnb.engine.bulk import train
from spamnb.engine.filter import Filter, new_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of three quarters of the sample; closed, to be copied."""
    folder = tmp_path_factory.mktemp("scanning")
    for side in ("ham", "spam"):
        (folder / side).mkdir()
        for path in sorted((SAMPLE / side).iterdir())[:TAUGHT]:
            shutil.copy(path, folder / side)
    sources = [(side, str(folder / side)) for side in ("ham", "spam")]
    train(folder / "home", sources, recipe=new_recipe())
    return folder / "home"


@pytest.fixture
def home(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "home")


@pytest.fixture
def scan_rig(home):
    """Make scanners; close them before the next test."""
    made = []

    def make(policy=None, at=home, **more):
        made.append(ScanRig(at, policy, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def surest(trained, tmp_path_factory):
    """A new spam and a new ham that the model is surest of, and one that it is unsure of."""
    copy = shutil.copytree(trained, tmp_path_factory.mktemp("surest") / "home")
    new = raws("spam", TAUGHT) + raws("ham", TAUGHT)
    with Filter.open(copy, costs=COSTS) as model:
        verdicts = list(model.score_many(new))
    order = sorted(range(len(new)), key=lambda at: verdicts[at].log_odds)
    unsure = next(at for at in order if verdicts[at].decision == "unsure")
    assert verdicts[order[-1]].decision == "reject"
    return {"ham": new[order[0]], "spam": new[order[-1]], "unsure": new[unsure]}
