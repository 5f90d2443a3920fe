"""What all tests share: one thread for numpy, settings of hypothesis, corpora that may be there."""

import os
import signal
from pathlib import Path

# Before numpy is imported: its threads would make small tests slower, and sums depend on them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# No deadline: on a busy machine it fails tests for being slow once, which says nothing.
settings.register_profile("here", deadline=None)
# The same examples in every run, so that a change is judged by itself and not by luck.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# A shell's job in the background is born deaf to Ctrl-C, and so would be the programs it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parent.parent
pytest_plugins = ["support.fixtures"]


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
