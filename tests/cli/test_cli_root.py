"""Root on a home of another user: the files that root names are opened as root."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from support.cli import ONE_HAM, ONE_SPAM, PROJECT, SAMPLE, forked

OWNER = 54_321
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def trained_once():
    place = Path(tempfile.mkdtemp(prefix="spamnb-root-"))
    place.chmod(0o755)
    mail = shutil.copytree(SAMPLE, place / "mail")
    assert forked(place / "model", "train", mail / "ham", mail / "spam").code == 0
    yield place / "model"
    shutil.rmtree(place)


@pytest.fixture
def site(trained_once):
    """A home of another user beside a folder that root alone may enter."""
    place = Path(tempfile.mkdtemp(prefix="spamnb-root-"))
    place.chmod(0o755)
    (place / "root").mkdir(mode=0o700)
    shutil.copytree(trained_once, place / "home")
    for path in [place / "home", *(place / "home").rglob("*")]:
        os.chown(path, OWNER, OWNER)
    yield place
    shutil.rmtree(place)


def owners(site):
    return {path.stat().st_uid for path in (site / "home").rglob("*")}


@pytest.fixture
def root_only_program(site):
    """Start the program with all its libraries in a folder that root alone may enter."""
    installed = {"libraries": sysconfig.get_path("purelib"), "program": PROJECT}
    for name, place in installed.items():
        (site / "root" / name).symlink_to(place)
    paths = ":".join(str(site / "root" / name) for name in installed)

    def run(*arguments):
        command = [sys.executable, "-S", "-m", "spamnb", "--home", site / "home", *arguments]
        environment = os.environ | {"PYTHONPATH": paths}
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=False
        )

    return run


def test_a_program_that_root_alone_can_read(site, root_only_program):
    """All modules, of libraries too, are imported before root becomes the owner of the home."""
    copy, one = site / "root" / "copy", private(site, "one.eml", ONE_HAM)
    for arguments in (
        ["correct", "spam", one], ["explain", one], ["backup", copy], ["restore", "--force", copy],
    ):  # fmt: skip
        done = root_only_program(*arguments)
        assert done.returncode == 0, done.stderr
    assert owners(site) == {OWNER}


def private(site, name, source):
    """A file that root alone can read."""
    target = site / "root" / name
    shutil.copy(source, target)
    target.chmod(0o600)
    return target


@pytest.mark.parametrize(
    "arguments", [["score"], ["score", "--remember"], ["explain"], ["correct", "ham"], ["forget"],
              ["score", "--jobs", "2"]],
)  # fmt: skip
def test_a_message_that_root_names_is_read_as_root(site, arguments):
    """The owner of the home cannot read it, and need not."""
    message = private(site, "one.eml", ONE_HAM)
    done = forked(site / "home", *arguments, message)
    assert done.code == 0, done.err
    assert owners(site) == {OWNER}


def test_training_reads_folders_of_root(site):
    """The readers that it starts read them too, as does the one that makes a new home."""
    for name in ("ham", "spam"):
        shutil.copytree(SAMPLE / name, site / "root" / name)
    done = forked(site / "home", "train", site / "root" / "ham", site / "root" / "spam")
    assert done.code == 0, done.err
    assert " unreadable" not in done.out
    assert owners(site) == {OWNER}


@pytest.mark.parametrize("command", ["backup", "export"])
def test_a_file_that_root_lets_write_is_roots(site, command):
    """It is written where the owner may not write, is private, and belongs to root."""
    target = site / "root" / "copy"
    for _ in range(2):
        done = forked(site / "home", command, target)
        assert done.code == 0, done.err
    about = target.stat()
    assert (about.st_uid, about.st_mode & 0o777) == (0, 0o600)
    assert [path.name for path in (site / "root").iterdir()] == ["copy"]
    assert owners(site) == {OWNER}


def test_a_backup_of_root_comes_back_into_the_home(site):
    """The backup is read as root; the model that is made belongs to the owner of the home."""
    copy = site / "root" / "copy"
    assert forked(site / "home", "backup", copy).code == 0
    done = forked(site / "home", "restore", "--force", copy)
    assert done.code == 0, done.err
    assert owners(site) == {OWNER}


def test_an_export_of_root_is_imported(site):
    """The file is read as root."""
    copy = site / "root" / "counts"
    assert forked(site / "home", "export", copy).code == 0
    done = forked(site / "home", "import", copy)
    assert done.code == 0, done.err
    assert owners(site) == {OWNER}


def test_a_maildir_of_root_is_watched(site):
    """Its messages are read as root; what the watcher remembers is the owner's."""
    maildir = site / "root" / "Maildir"
    for part in ("new", "cur", "tmp", ".Junk/new", ".Junk/cur", ".Junk/tmp"):
        (maildir / part).mkdir(parents=True)
    assert forked(site / "home", "watch", "--once", maildir).code == 0
    shutil.copy(ONE_HAM, maildir / ".Junk" / "cur" / "1.x:2,S")
    done = forked(site / "home", "watch", "--once", maildir)
    assert done.code == 0, done.err
    assert "-> spam" in done.out
    assert owners(site) == {OWNER}


@pytest.mark.parametrize("arguments", [["score"], ["correct", "ham"], ["restore", "--force"]])
def test_the_owner_cannot_lead_root_to_a_file_of_root(site, arguments):
    """A link that the owner made is not followed with rights that the owner has not."""
    secret = private(site, "secret.eml", ONE_SPAM)
    theirs = site / "home" / "theirs"
    theirs.mkdir()
    (theirs / "link.eml").symlink_to(secret)
    (theirs / "folder").symlink_to(site / "root")
    for path in (theirs, theirs / "link.eml", theirs / "folder"):
        os.lchown(path, OWNER, OWNER)
    for name in ("link.eml", "folder/secret.eml"):
        done = forked(site / "home", *arguments, theirs / name)
        assert done.code in {2, 3}, done.out
        assert "link" in done.err


@pytest.mark.parametrize("command", ["backup", "export"])
def test_the_owner_cannot_have_root_write_through_a_link(site, command):
    """What root owns behind such a link stays as it is."""
    (site / "root" / "precious").write_text("kept")
    theirs = site / "home" / "theirs"
    theirs.mkdir()
    (theirs / "out").symlink_to(site / "root" / "precious")
    for path in (theirs, theirs / "out"):
        os.lchown(path, OWNER, OWNER)
    done = forked(site / "home", command, theirs / "out")
    assert done.code in {2, 3}
    assert "link" in done.err
    assert (site / "root" / "precious").read_text() == "kept"


def test_a_link_of_root_is_followed(site):
    """As everywhere."""
    message = private(site, "one.eml", ONE_HAM)
    (site / "root" / "link.eml").symlink_to(message)
    assert forked(site / "home", "score", site / "root" / "link.eml").code == 0
