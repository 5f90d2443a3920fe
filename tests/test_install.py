"""The units for systemd are valid and sandboxed, and `scripts/install` places them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.docs_snippets import snippet
from support.namespaces import OFFLINE, PRIVATE, needs_mounts, needs_offline
from support.standin_pip import without_network
from support.waiting import LIMIT_S

PROJECT = Path(__file__).resolve().parent.parent
MOST_EXPOSED = 2.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install below a folder, with a program of the name that is there."""
    root = tmp_path_factory.mktemp("root")
    program = root / "opt" / "spamnb"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m spamnb "$@"\n')
    program.chmod(0o755)
    command = [PROJECT / "scripts/install", "--root", root, "--program", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root


def units(root):
    return sorted((root / "etc/systemd/system").iterdir())


@pytest.fixture
def install(tmp_path):
    """Run the script with a stand-in for pip that needs no network."""
    environment = without_network(tmp_path)

    def run(*command, code=0):
        done = subprocess.run(
            [PROJECT / "scripts/install", *command],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def files(root):
    """Every file and link below a folder."""
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def test_a_tree_that_is_moved_runs(install, tmp_path):
    """What is made below --root names no scratch path: it runs once it is where it belongs."""
    stage, prefix = tmp_path / "stage", tmp_path / "there" / "opt"
    install("--root", stage, "--prefix", prefix)
    made = stage / prefix.relative_to("/")
    assert (stage / "usr/local/bin/spamnb").readlink() == prefix / "bin/spamnb"
    for path in [*(made / "bin").iterdir(), made / "pyvenv.cfg", *units(stage)]:
        if path.is_file() and not path.is_symlink():
            assert str(stage) not in path.read_text("utf-8", errors="replace"), path
    prefix.parent.mkdir()
    made.rename(prefix)
    done = subprocess.run(
        [prefix / "bin/spamnb", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "spamnb"), done.stderr


def test_it_installs_all_and_removes_all_but_the_settings(install, tmp_path):
    """Documents, completion and the scripts for Dovecot too; a file of an older version goes."""
    root = tmp_path / "root"
    install("--root", root)
    there = files(root)
    for name in (
        "usr/local/share/doc/spamnb/README.md",
        "usr/local/share/doc/spamnb/docs/upgrade.md",
        "usr/local/share/doc/spamnb/docs/decisions/0014-event-models.md",
        "usr/local/share/bash-completion/completions/spamnb",
        "usr/local/share/zsh/site-functions/_spamnb",
        "usr/local/share/fish/vendor_completions.d/spamnb.fish",
        "usr/local/share/man/man1/spamnb-train.1",
        "usr/local/share/man/man5/spamnb.toml.5",
        "usr/local/share/man/man7/spamnb-headers.7",
        "usr/local/lib/spamnb/spamnb-teach",
        "usr/local/lib/spamnb/spamnb-to-junk.sieve",
        "usr/local/bin/spamnb",
        "opt/spamnb/bin/spamnb",
    ):
        assert name in there
    assert os.access(root / "usr/local/lib/spamnb/spamnb-teach", os.X_OK)
    listed = root / "usr/local/lib/spamnb/installed"
    older = root / "usr/local/share/doc/spamnb/older.md"
    older.write_text("of a version before\n")
    listed.write_text(listed.read_text() + "/usr/local/share/doc/spamnb/older.md\n")
    spool = root / "usr/local/lib/spamnb/spool"
    spool.write_text("/srv/spool\n")
    install("--root", root)
    assert files(root) - there == {"usr/local/lib/spamnb/spool"}
    mine = root / "etc/spamnb/spamnb.toml"
    mine.write_text("")
    install("--uninstall", "--root", root)
    assert files(root) == {"etc/spamnb/spamnb.toml", "usr/local/lib/spamnb/spool"}
    assert "nothing is installed" in install("--uninstall", "--root", root, code=1).stderr


def test_an_upgrade_backs_up_the_model_first(install, tmp_path):
    """The installed version makes the backup; if it cannot, nothing is changed."""
    root = tmp_path / "root"
    home, kept = root / "var/lib/spamnb", root / "var/lib/spamnb-backup"
    assert "backing up" not in install("--root", root).stdout
    ham, spam = (PROJECT / "corpora/sample" / label for label in ("ham", "spam"))
    command = [sys.executable, "-m", "spamnb", "--home"]
    subprocess.run(
        [*command, home, "train", ham / "0001.eml", spam / "0001.eml"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    done = install("--root", root)
    (backup,) = kept.iterdir()
    assert f"to go back: spamnb restore --force {backup}" in done.stdout
    subprocess.run(
        [*command, tmp_path / "again", "restore", backup], check=True, stdout=subprocess.DEVNULL
    )
    (home / "data.mdb").write_bytes(b"damaged" * 1000)
    done = install("--root", root, code=1)
    assert "nothing is changed: the model could not be backed up" in done.stderr
    assert "creating" not in done.stdout
    assert list(kept.iterdir()) == [backup]
    install("--root", root, "--no-backup")


@needs_offline
def test_a_run_without_network_blocks_neither_the_next_nor_the_removal(install, tmp_path):
    """The real pip fails; the next run completes the environment, or --uninstall removes it."""
    root, other = tmp_path / "root", tmp_path / "other"
    model = root / "var/lib/spamnb"
    ham, spam = (PROJECT / "corpora/sample" / label / "0001.eml" for label in ("ham", "spam"))
    train = [sys.executable, "-m", "spamnb", "--home", model, "train", ham, spam]
    subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "SPAMNB_"))}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0"}
    for folder in (root, other):
        done = subprocess.run(
            [*OFFLINE, PROJECT / "scripts/install", "--root", folder],
            capture_output=True, text=True, check=False, env=environment, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout + done.stderr
        assert "not complete. Correct the cause and run it again" in done.stderr
    assert (root / "opt/spamnb/bin/python").exists()
    done = install("--root", root)
    assert "no backup of the model" in done.stdout
    assert (root / "usr/local/bin/spamnb").is_symlink()
    assert "backing up the model" in install("--root", root).stdout
    install("--uninstall", "--root", other)
    assert files(other) == set()


MACHINE = """
set -e
mount --make-rprivate /
mkdir "$1" && mount -t tmpfs none "$1"
for place in usr etc var opt root; do
    mkdir -p "$1/$place/upper" "$1/$place/work"
    mount -t overlay -o "lowerdir=/$place,upperdir=$1/$place/upper,workdir=$1/$place/work" \
        overlay "/$place"
done
mount -t tmpfs none /run
rm -f /usr/bin/systemctl /usr/bin/systemd-*
mkdir -p /etc/postfix
cd "$2"
"""
"""makes a machine without systemd out of this one; what is written there is lost with it"""


@needs_mounts
def test_without_systemd_it_makes_the_user_and_stops_the_daemon(tmp_path):
    """Removed is said when the daemon has ended; what still points at it is named."""
    script = (
        MACHINE
        + """
    scripts/install >/root/said
    getent passwd spamnb | cut -d: -f6
    stat -c '%a %U' /var/spool/spamnb /var/lib/spamnb
    cat >/etc/spamnb/spamnb.toml <<TOML
    [serve]
    user = "root"
    [listener.front]
    address = "unix:/run/filter.sock"
    upstream = "unix:/run/next.sock"
TOML
    for line in '# unix:/run/filter.sock' 'smtpd_milters = unix:/run/filter.sock'; do
        echo "$line"
    done >/etc/postfix/main.cf
    /usr/local/bin/spamnb serve --create 2>/root/log &
    daemon=$!
    until /usr/local/bin/spamnb status >/dev/null 2>&1; do kill -0 $daemon; done
    scripts/install --uninstall
    if tr '\\0' ' ' </proc/$daemon/cmdline | grep serve; then exit 9; fi
    wait $daemon
    echo "ended $?"
    ls -d /opt/spamnb || :
    echo SAID
    cat /root/said
    """
    )
    done = subprocess.run(
        [*PRIVATE, "sh", "-c", script, "sh", tmp_path / "machine", PROJECT],
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
        env=without_network(tmp_path) | {"HOME": "/root", "SPAMNB_MODEL_PRIOR": "false"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    removal, said = done.stdout.split("SAID\n")
    assert removal.startswith("/var/lib/spamnb\n1733 spamnb\n700 spamnb\n")
    stopped, removed = removal.index("stopping the daemon"), removal.index("== removed")
    assert stopped < removed
    assert "  /etc/postfix/main.cf:2\n" in removal
    assert "main.cf:1\n" not in removal
    assert "ended 0\n" in removal
    assert "cannot access '/opt/spamnb'" in done.stderr
    assert "3. spamnb serve (as root" in said


def test_the_next_steps_are_what_one_sees(install, tmp_path):
    """A run prints few lines; each file is in the list that it names."""
    root = tmp_path / "root"
    lines = install("--root", root).stdout.splitlines()
    assert len(lines) <= 12, lines
    assert str(root / "usr/local/lib/spamnb/installed") in lines[-8]
    assert lines[-6] == "Next:"


def test_units_name_the_program_by_its_full_path(installed):
    """Without the full path systemd looks for the program in few folders."""
    for unit in units(installed):
        for program in re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.MULTILINE):
            assert program == str(installed / "opt/spamnb"), unit


def test_the_example_settings_are_read_without_a_complaint(installed):
    """What is put into /etc is a settings file that holds."""
    file = installed / "etc/spamnb/spamnb.toml.example"
    command = [sys.executable, "-m", "spamnb", "--config", file, "config", "check"]
    environment = os.environ | ({"SPAMNB_SERVE_USER": "root"} if os.geteuid() == 0 else {})
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def test_a_package_has_the_places_of_the_distribution(install, tmp_path):
    """With --package nothing lies in /usr/local or in /etc/systemd, which belong to the admin."""
    root = tmp_path / "root"
    install("--package", "--root", root)
    there = files(root)
    assert {
        "usr/bin/spamnb",
        "usr/lib/systemd/system/spamnb.service",
        "usr/share/man/man1/spamnb.1",
        "usr/share/zsh/vendor-completions/_spamnb",
    } <= there
    etc = {name for name in there if name.startswith(("usr/local/", "etc/"))}
    assert etc == {"etc/spamnb/spamnb.toml.example"}


@needs_systemd
def test_systemd_understands_the_units(installed):
    """Not one warning."""
    command = ["systemd-analyze", "--man=no", "verify", *units(installed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("page", "section", "file"),
    [
        ("milter.md", "A unix socket", "/etc/systemd/system/spamnb.service.d/milter.conf"),
        ("spamc.md", "The listener", "/etc/systemd/system/spamnb.service.d/port.conf"),
    ],
)
def test_systemd_understands_the_drop_ins_of_the_pages(installed, tmp_path, page, section, file):
    """Each changes what the shipped unit sets, without a warning."""
    shutil.copytree(installed / "etc/systemd/system", tmp_path / "system")
    drop_in = tmp_path / file.removeprefix("/etc/systemd/")
    drop_in.parent.mkdir()
    drop_in.write_text(snippet(page, section, file))
    command = ["systemd-analyze", "--man=no", "verify", tmp_path / "system/spamnb.service"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    drop_in.write_text(drop_in.read_text() + "Mistake=yes\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"{drop_in}:" in done.stderr, "it is not read"


@needs_systemd
def test_systemd_understands_the_unit_for_a_mailbox(tmp_path):
    """A user's unit, with the program below the user's home."""
    program = tmp_path / ".local/bin/spamnb"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    unit = tmp_path / "spamnb-imap.service"
    unit.write_text(
        snippet("imap.md", "Run it as a service", "~/.config/systemd/user/spamnb-imap.service")
    )
    command = ["systemd-analyze", "--user", "--man=no", "verify", unit]
    # systemd refuses addresses of sockets of more than 107 bytes, also those of other units.
    with tempfile.TemporaryDirectory() as runtime:
        environment = os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": runtime}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", ["spamnb.service", "spamnb-upkeep.service"])
def test_the_units_have_a_low_exposure_level(installed, unit):
    """An exposure of at most 2.0 by systemd's own measure."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    command.append(installed / "etc/systemd/system" / unit)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure[1]) <= MOST_EXPOSED


def test_settings_that_are_there_stay(installed):
    """A second run updates units and leaves the admin's settings alone."""
    mine = installed / "etc/spamnb/spamnb.toml"
    mine.write_text('home = "/var/lib/spamnb"\n')
    command = [PROJECT / "scripts/install", "--root", installed, "--program"]
    subprocess.run([*command, installed / "opt/spamnb"], check=True, stdout=subprocess.DEVNULL)
    assert mine.read_text() == 'home = "/var/lib/spamnb"\n'
