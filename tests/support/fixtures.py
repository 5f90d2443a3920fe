"""Fixtures of the tests of endpoints and commands."""

import asyncio
import shutil

import pytest

from support.cli import HAM, SPAM, spamnb
from support.delivery_agent import running_agent
from support.imap_client import Reader
from support.imap_server import Server
from support.relay import loops


@pytest.fixture(params=loops(), ids=lambda kind: kind[0])
def on_loop(request):
    """Run a coroutine on an event loop of each kind."""

    def run(main):
        with asyncio.Runner(loop_factory=request.param[1]) as runner:
            return runner.run(main)

    return run


@pytest.fixture
def mail(tmp_path):
    """The folder of the delivery agent's Maildirs."""
    return tmp_path / "mail"


@pytest.fixture
def agent(mail):
    """A delivery agent on loopback that accepts any recipient."""
    with running_agent(root=str(mail)) as rig:
        yield rig


@pytest.fixture
def alone(monkeypatch, tmp_path, no_system_file):
    """Keep the machine's settings, homes and daemons out of a test."""
    for name in ("SPAMNB_HOME", "STATE_DIRECTORY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("spamnb.cli.session.WELL_KNOWN", tmp_path / "absent.sock")


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A home trained on the sample; tests may only read it."""
    home = tmp_path_factory.mktemp("cli") / "home"
    assert spamnb(home, "train", HAM, SPAM, "--jobs", 1).code == 0
    return home


@pytest.fixture
def home(trained, tmp_path):
    """A copy of the trained home for one test."""
    return shutil.copytree(trained, tmp_path / "home")


@pytest.fixture(scope="module")
def imap_server():
    """A scripted IMAP server."""
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def imap_reader(imap_server, tmp_path):
    """Return a function that makes a reader of a mailbox, for which the server fails as told."""
    made: list[Reader] = []

    def make(**options):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Reader(imap_server, imap_server.user(**options), folder))
        return made[-1]

    yield make
    for one in made:
        one.close()
