"""What all tests share: environment, profiles of hypothesis, corpora beside the project."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

# Before numpy is imported: its threads would make small tests slower, and sums depend on them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# Without a deadline, because a test must not fail on a busy machine.
settings.register_profile("here", deadline=None)
# In continuous integration every run has the same examples.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# A background job of a shell ignores SIGINT, and so would the programs that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parent.parent
pytest_plugins = ["support.fixtures"]


def pytest_configure(config):
    """Let the processes that the tests start share compiled modules, also if Python writes none.

    The tests start about 2000 Python processes; to compile spamnb takes a third of their CPU time.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in os.environ:
        folder = tempfile.mkdtemp(prefix="pyc-")
        Path(folder).chmod(0o755)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(scope="session")
def shared_corpora() -> Path:
    """Find real mail beside the project, for tests that want it; they skip without it."""
    folder = PROJECT.parent / "shared" / "corpora"
    if not folder.is_dir():
        pytest.skip(f"no real mail at {folder}")
    return folder


@pytest.fixture
def no_system_file(monkeypatch, tmp_path):
    """Keep the machine's own settings out of a test."""
    monkeypatch.setattr("spamnb.settings.DEFAULT_FILE", tmp_path / "absent.toml")
