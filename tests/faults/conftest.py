"""What the tests of the daemon start from: folders, and a trained model copied for each."""

import shutil
import tempfile
from pathlib import Path

import pytest
from support.learner import learner
from support.sink import Sink

from spamnb.engine.filter import Filter

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Train once."""
    home = tmp_path_factory.mktemp("daemon") / "home"
    with Filter.open(home, create=True, history=False) as model:
        for label in ("ham", "spam"):
            for path in sorted((SAMPLE / label).iterdir())[:40]:
                model.learn(path.read_bytes(), label)
    return home


@pytest.fixture
def home(trained, tmp_path):
    """A folder with a trained model in `home`."""
    shutil.copytree(trained, tmp_path / "home")
    return tmp_path


@pytest.fixture
def place():
    """A short folder that others may enter: a socket's address holds 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="spamnb-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def sink():
    """A next hop that takes everything."""
    made = Sink()
    yield made
    made.close()


@pytest.fixture
def running(place):
    """A learner with a small model."""
    with learner(place / "m", place) as running:
        yield running
