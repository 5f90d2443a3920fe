"""One home for the daemon and all commands; commands that work while the settings have a mistake.

The system's folders are those of a mount namespace, so the machine's own ones are not touched.
"""

import re
import subprocess

import pytest
from support.cli import HAM, PROGRAM, SPAM, spamnb
from support.daemon import END_S, NO_DELIVERY, environment, serve, settings_in
from support.namespaces import PRIVATE, needs_mounts
from support.waiting import LIMIT_S, until

SYSTEM = """
set -e
mount --make-rprivate /
for place in /var/lib /etc /run /root; do
    mkdir -p "$1$place" "$1/work$place"
    mount -t tmpfs none "$1$place"
    cp -a "$place/passwd" "$place/group" "$1$place" 2>/dev/null || true
done
mkdir -p "$1/root/home" "$1/etc/spamnb" "$1/var/lib/spamnb" "$1/run/spamnb"
for place in /var/lib /etc /run /root; do mount --rbind "$1$place" "$place"; done
chmod 700 /var/lib/spamnb
shift
exec "$@"
"""


class System:
    """A machine with an installation: its own /etc, /var/lib, /run and /root."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, script):
        """Run a shell script there, in which `spamnb` is the program."""
        program = " ".join(PROGRAM)
        return subprocess.run(
            [*PRIVATE, "sh", "-c", SYSTEM, "sh", self.folder, "sh", "-ec",
             f'spamnb() {{ {program} "$@"; }}\n{script}'],
            capture_output=True, text=True, check=False, timeout=LIMIT_S * 3,
            env=environment(HOME="/root", SPAMNB_MODEL_PRIOR="false") | {"XDG_DATA_HOME": ""},
        )  # fmt: skip


@pytest.fixture
def system(tmp_path):
    return System(tmp_path / "system")


TRAIN = f"spamnb train --jobs 1 {HAM} {SPAM} >/dev/null"


@needs_mounts
def test_root_trains_the_model_that_the_daemon_serves(system):
    """Without a home in the settings both use /var/lib/spamnb, as does the daemon's user."""
    done = system.run(f"""
        {TRAIN}
        test -e /var/lib/spamnb/data.mdb
        test ! -e /root/.local/share/spamnb
        spamnb config show | head -n 1
        STATE_DIRECTORY=/var/lib/spamnb spamnb config show | head -n 1
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("home: /var/lib/spamnb\n") == 2
    assert done.stderr == ""


@needs_mounts
@pytest.mark.parametrize("command", ["status", "config check", "stats"])
def test_a_second_home_is_named(system, command):
    """Each command says which of two models it uses, and what to do."""
    done = system.run(f"""
        {TRAIN}
        mkdir -p /root/.local/share
        cp -a /var/lib/spamnb /root/.local/share/spamnb
        spamnb {command} || test $? -le 2
        spamnb --home /var/lib/spamnb {command} >/dev/null 2>/root/explicit || test $? -le 2
        cat /root/explicit
    """)
    assert done.returncode == 0, done.stderr
    said = "there are two models: /var/lib/spamnb is used, /root/.local/share/spamnb is not"
    assert done.stderr.count(said) == 1
    assert said not in done.stdout


@needs_mounts
def test_a_daemon_of_another_home_is_named(system):
    """A home in the settings that the daemon does not use is told, with the one that it serves."""
    done = system.run(
        f"""
        {TRAIN}
        printf '[serve]\\ncontrol = "/run/spamnb/control.sock"\\nuser = "root"\\n' \
            >/etc/spamnb/a.toml
        printf '[listener.a]\\naddress = "unix:/run/spamnb/a"\\nupstream = "unix:/run/b"\\n' \
            >>/etc/spamnb/a.toml
        {" ".join(PROGRAM)} --config /etc/spamnb/a.toml serve 2>/root/log &
        until spamnb --config /etc/spamnb/a.toml status >/dev/null; do kill -0 $!; done
        cp -a /var/lib/spamnb /root/other
        printf 'home = "/root/other"\\n' >/etc/spamnb/spamnb.toml
        spamnb status >/dev/null || :
        kill $!
        wait $!
    """
    )
    assert done.returncode == 0, done.stderr
    said = "the daemon serves /var/lib/spamnb, and this command uses /root/other"
    assert said in done.stderr


# -- mistakes in the settings ---------------------------------------------------------------------


MISTAKES = {
    "an unknown name": ("[scna]\nclues = 3\n", "there is no setting scna.clues"),
    "no TOML": ("[scan\nclues = = 3\n", "is not valid TOML"),
    "a wrong value": ("[scan]\nworkers = -7\n", "scan"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A daemon that runs, and its settings file with the home in it."""
    folder = tmp_path_factory.mktemp("mistakes")
    config = settings_in(folder, **NO_DELIVERY)
    config.write_text(f'home = "{folder / "home"}"\n{config.read_text()}')
    with serve(folder, "--create", config=config) as daemon:
        daemon.wait_for("ready")
        yield folder, config, daemon


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_emergency_switch_works_with_a_mistake_in_the_settings(served, mistake):
    """`bypass`, `status` and `reload` reach the daemon, and name the mistake."""
    folder, config, _ = served
    right = config.read_text()
    wrong, said = MISTAKES[mistake]
    config.write_text(right + wrong)

    def ask(*command):
        done = subprocess.run(
            [*PROGRAM, "--config", config, *command], capture_output=True, text=True,
            check=False, timeout=LIMIT_S + END_S, env=environment(),
        )  # fmt: skip
        assert said in done.stderr, done.stderr
        return done

    try:
        assert ask("bypass", "on").returncode == 0
        until(lambda: re.search(r"scanning +off", ask("status").stdout), "the bypass")
        shown = ask("status")
        assert (shown.returncode, "learner" in shown.stdout) == (0, True)
        reloaded = ask("reload")
        assert "the daemon keeps its old settings" in reloaded.stdout
        assert reloaded.returncode == 2
        assert ask("bypass", "off").returncode == 0
        assert not (folder / "home" / "bypass").exists()
    finally:
        config.write_text(right)


def test_other_commands_still_refuse_a_mistake(home, tmp_path):
    """What depends on the settings is not done with others."""
    config = tmp_path / "wrong.toml"
    config.write_text("[scna]\nclues = 3\n")
    done = spamnb(home, "--config", config, "score", HAM)
    assert done.code == 2
    assert "there is no setting scna.clues" in done.err
