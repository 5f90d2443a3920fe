"""The Debian package: built twice alike, and installed, upgraded and purged in a new Debian."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.standin_pip import without_network
from support.waiting import until

PROJECT = Path(__file__).resolve().parent.parent
EPOCH = "1700000000"
QUICK = ["-Zgzip", "-z1"]
"""options of dpkg-deb for a package that is not kept"""
OWN = ("DEBIAN", "etc/spamnb", "opt/spamnb", "usr/bin/spamnb", "usr/lib/spamnb", "usr/lib/systemd",
       "usr/lib/sysusers.d/spamnb.conf", "usr/lib/tmpfiles.d/spamnb.conf", "usr/share")  # fmt: skip

pytestmark = pytest.mark.skipif(
    shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed"
)


def built(folder, environment):
    """Build the package; return its path."""
    command = [PROJECT / "scripts/package/deb", folder, *QUICK]
    environment = environment | {"SOURCE_DATE_EPOCH": EPOCH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Build the package twice, without the libraries of other projects."""
    folder = tmp_path_factory.mktemp("deb")
    environment = without_network(folder)
    return [built(folder / name, environment) for name in ("first", "second")]


@pytest.fixture(scope="module")
def tree(packages, tmp_path_factory):
    """Unpack the package, with its control files."""
    tree = tmp_path_factory.mktemp("tree") / "root"
    subprocess.run(["dpkg-deb", "-R", packages[0], tree], check=True)
    return tree


def test_two_builds_are_equal(packages):
    """The same source gives the same package, bit for bit."""
    first, second = (path.read_bytes() for path in packages)
    assert first == second


def test_all_files_are_in_own_places_and_belong_to_root(packages):
    """Nothing lies in /usr/local, nothing is writable for others, no path of the build is left."""
    listed = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", packages[0]], stdout=subprocess.PIPE)
    with listed, tarfile.open(fileobj=listed.stdout, mode="r|") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            assert member.isdir() or name.startswith(OWN), name
            assert (member.uid, member.gid) == (0, 0), name
            assert member.issym() or not member.mode & 0o022, name
            assert member.mtime == int(EPOCH), name
    assert listed.returncode == 0


def test_the_settings_file_sets_only_the_home(tree):
    """It has every setting as a comment, is valid, and dpkg keeps the administrator's changes."""
    file = tree / "etc/spamnb/spamnb.toml"
    text = file.read_text()
    assert re.findall(r"^[a-z].*$", text, re.MULTILINE) == ['home = "/var/lib/spamnb"']
    assert '\n#kind = "corrected"' in text
    assert (tree / "DEBIAN/conffiles").read_text() == "/etc/spamnb/spamnb.toml\n"
    command = [sys.executable, "-m", "spamnb", "--config", file, "config", "show"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    uncommented = tree / "uncommented.toml"
    uncommented.write_text(re.sub(r"^#([a-z])", r"\1", text, flags=re.MULTILINE))
    command[command.index(file)] = uncommented
    all_set = subprocess.run(command, check=True, capture_output=True, text=True)
    values = [one.partition("\n")[2] for one in (done.stdout, all_set.stdout)]
    assert values[0] == values[1].replace('home = ""', 'home = "/var/lib/spamnb"')


def test_the_scripts_of_the_package_are_valid(tree):
    """A shell reads them, and the control file names one release of Python."""
    for name in ("preinst", "postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", tree / "DEBIAN" / name], check=True)
    control = (tree / "DEBIAN/control").read_text()
    assert re.search(r"python3 \(>= 3\.\d+\), python3 \(<< 3\.\d+\)", control)
    assert "@" not in re.sub(r"<\S+@\S+>", "", control)


# -- in a new Debian ------------------------------------------------------------------------------

IN_ROOT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
}
FIRST_START = "etc/systemd/system/multi-user.target.wants/spamnb.service"
KEEP_MODEL, REMOVE_MODEL = "false", "true"


class Debian:
    """A root folder with Debian, in which programs run."""

    def __init__(self, root):
        self.root = root

    def start(self, *command, **options):
        return subprocess.Popen(["chroot", self.root, *command], env=IN_ROOT, **options)

    def run(self, *command, code=0, stdin=None):
        """Run a program to its end; return what it prints."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with self.start(*command, stdin=subprocess.PIPE, **streams) as process:
            printed, _ = process.communicate(stdin)
        assert process.returncode == code, printed
        return printed

    def install(self, package):
        shutil.copy(package, self.root / "package.deb")
        return self.run("dpkg", "--force-confdef", "-i", "/package.deb")

    def has(self, place):
        return os.path.lexists(self.root / place)


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    """Create a Debian of this machine's release; DEBIAN_ROOT names one that debootstrap made."""
    if os.geteuid() != 0 or not ("DEBIAN_ROOT" in os.environ or shutil.which("debootstrap")):
        pytest.skip("needs root and debootstrap")
    root = tmp_path_factory.mktemp("debian") / "root"
    if made := os.environ.get("DEBIAN_ROOT"):
        subprocess.run(["cp", "-a", made, root], check=True)
    else:
        release = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())[1]
        command = ["debootstrap", "--variant=minbase", "--include=python3,systemd", release, root]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    yield Debian(root)
    subprocess.run(["umount", root / "proc"], check=True)


@pytest.fixture(scope="module")
def real_package(tmp_path_factory):
    """Build the package with all libraries."""
    return built(tmp_path_factory.mktemp("real"), os.environ)


def version_after(package, folder):
    """Return the same package as a later version."""
    tree = folder / "later"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("Version: 0", "Version: 9"))
    settings = tree / "etc/spamnb/spamnb.toml"
    settings.write_text(settings.read_text() + "# of the later version\n")
    later = folder / "later.deb"
    subprocess.run(["dpkg-deb", *QUICK, "-b", tree, later], check=True, stdout=subprocess.DEVNULL)
    return later


def serves_and_learns(debian):
    """Train, start the daemon and run the doctor, as root in the new Debian."""
    shutil.copytree(PROJECT / "corpora/sample", debian.root / "sample", dirs_exist_ok=True)
    debian.run("spamnb", "train", "/sample/ham", "/sample/spam")
    assert (debian.root / "var/lib/spamnb").stat().st_uid != 0
    with debian.start("spamnb", "serve", stderr=subprocess.DEVNULL) as daemon:
        asked = ["chroot", debian.root, "spamnb", "status"]
        quiet = {"env": IN_ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            until(lambda: subprocess.run(asked, check=False, **quiet).returncode == 0, "the daemon")
            debian.run("spamnb", "doctor")
        finally:
            daemon.terminate()


@pytest.mark.full
def test_it_is_installed_upgraded_and_purged(debian, real_package, tmp_path):
    """Enabled but not started; an upgrade keeps settings and choices; a purge keeps the model.

    An administrator who answers the question of the purge with yes gets the model removed.
    """
    debian.install(real_package)
    assert debian.has(FIRST_START)
    assert not debian.has("run/spamnb")
    assert "no problems found" in debian.run("spamnb", "config", "check")
    serves_and_learns(debian)

    settings = debian.root / "etc/spamnb/spamnb.toml"
    settings.write_text(settings.read_text() + "# of the administrator\n")
    debian.run("systemctl", "disable", "spamnb.service")
    debian.install(version_after(real_package, tmp_path))
    assert settings.read_text().endswith("# of the administrator\n")
    assert not debian.has(FIRST_START)
    debian.run("spamnb", "check")

    debian.run("dpkg", "--remove", "spamnb")
    assert settings.exists()
    assert not debian.has("opt/spamnb")
    for answer in (KEEP_MODEL, REMOVE_MODEL):
        debian.install(real_package)
        question = f"spamnb spamnb/remove_model boolean {answer}\n"
        debian.run("debconf-set-selections", stdin=question)
        debian.run("dpkg", "--purge", "spamnb")
        assert not debian.has("etc/spamnb")
        assert debian.has("var/lib/spamnb") is (answer == KEEP_MODEL)


@pytest.mark.full
def test_it_refuses_an_installation_without_a_package(debian, real_package):
    """Files of scripts/install would hide those of the package, so they must be removed before."""
    listed = debian.root / "usr/local/lib/spamnb/installed"
    listed.parent.mkdir(parents=True)
    listed.touch()
    try:
        shutil.copy(real_package, debian.root / "package.deb")
        told = debian.run("dpkg", "-i", "/package.deb", code=1)
        assert "scripts/install --uninstall" in told
    finally:
        shutil.rmtree(listed.parent)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed")
def test_lintian_finds_no_error(real_package):
    """The package follows Debian's policy, but for the overrides with their reasons."""
    command = ["lintian", "--allow-root", "--fail-on", "error", real_package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_a_release_is_built_twice_and_compared(tmp_path):
    """`scripts/release` makes wheel, source archive and package, each the same in two builds."""
    done = subprocess.run([PROJECT / "scripts/release", tmp_path], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert done.returncode == 0, done.stdout
    made = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rpartition(".")[2] for name in made] == ["SHA256SUMS", "whl", "gz", "deb"]
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"PKG-INFO", "pyproject.toml", "scripts/run", "tests/test_package.py"} <= names
