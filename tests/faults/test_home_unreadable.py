"""A home that the daemon cannot read: status and log give the reason."""

import os
import pwd

import pytest
from support.cli import spamnb
from support.daemon import NO_DELIVERY, environment, let_others_enter, serve, settings_in
from support.learner import as_user
from support.waiting import LIMIT_S, until

from spamnb.cli.import_ahead import is_world_readable
from spamnb.engine.filter import Filter, new_recipe
from spamnb.operations.protocol import ControlClient

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can serve as another user"),
    pytest.mark.skipif(not is_world_readable(), reason="no other user can run the program here"),
]
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def place(tmp_path):
    """A folder with a home that belongs to the user `nobody`, as which the daemon runs."""
    let_others_enter(tmp_path)
    home = tmp_path / "home"
    Filter.open(home, create=True, recipe=new_recipe(), history=False).close()
    for path in (home, *home.iterdir()):
        os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
    return tmp_path


def status(folder, uid=0):
    """Return the daemon's reply to a user."""

    def run():
        with ControlClient(folder / "c.sock", LIMIT_S) as caller:
            return "\n".join(caller.ask("status").header["status"]["warnings"])

    return as_user(uid, run) if uid else run()


def served(folder):
    control = f'control = "{folder}/c.sock"'
    config = settings_in(folder, user="nobody", serve=control, **NO_DELIVERY)
    return serve(folder, config=config, env=environment(SPAMNB_LOG_FORMAT="text"))


def lines(running, text):
    return [line for line in running.plain if text in line]


def test_a_model_that_cannot_be_read(place):
    """Root and every other user see the reason; the log of the learner has it once."""
    (place / "home/data.mdb").chmod(0o000)
    with served(place) as running:
        until(lambda: lines(running, " ready "), "ready")
        assert f"the model cannot be used: {place}/home: Permission denied" in status(place)
        shown = status(place, 8)
        assert "the model cannot be used: the home: Permission denied" in shown
        assert str(place) not in shown
        assert len(lines(running, "training is not possible")) == 1


def test_a_home_that_is_closed_while_the_daemon_runs(place):
    """Status answers with the reason instead of an error, and the log has it in one line."""
    with served(place) as running:
        until(lambda: lines(running, " ready "), "ready")
        (place / "home").chmod(0o000)
        assert f"the home {place}/home cannot be read: Permission denied" in status(place)
        assert "the home cannot be read: Permission denied" in status(place, 8)
        until(lambda: lines(running, "home cannot be read"), "the line in the log")
        (place / "home").chmod(0o700)
        until(lambda: "cannot be read" not in status(place), "a home that can be read")
        assert len(lines(running, "home cannot be read")) == 1


def test_the_status_of_a_user_does_not_deny_a_daemon_in_a_closed_home(place):
    """The command says that it sees nothing, and states no fact: no daemon, no queue, no scan."""
    (place / "home").chmod(0o700)
    done = as_user(8, lambda: spamnb(place / "home", "status").out)
    assert done.startswith("this user cannot enter the home")
    assert "a daemon may run" in done
    assert len(done.splitlines()) == 1
