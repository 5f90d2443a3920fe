"""The Debian package: built twice alike, and installed, upgraded and purged in a new Debian."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.docs_snippets import changed, commands, shell
from support.postfix import free_ports
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


def test_the_settings_file_sets_only_its_version_and_the_home(tree):
    """It has every setting as a comment, is valid, and dpkg keeps the administrator's changes."""
    file = tree / "etc/spamnb/spamnb.toml"
    text = file.read_text()
    set_here = re.findall(r"^[a-z].*$", text, re.MULTILINE)
    assert set_here == ["settings_version = 1", 'home = "/var/lib/spamnb"']
    assert '\n#kind = "corrected"' in text
    assert (tree / "DEBIAN/conffiles").read_text() == "/etc/spamnb/spamnb.toml\n"
    command = [sys.executable, "-m", "spamnb", "--config", file, "config", "show"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    uncommented = tree / "uncommented.toml"
    uncommented.write_text(re.sub(r"^#([a-z])", r"\1", text, flags=re.MULTILINE))
    command[command.index(file)] = uncommented
    all_set = subprocess.run(command, check=True, capture_output=True, text=True)
    plain = [re.sub(f"  # .*{tree}.*", "", one) for one in (done.stdout, all_set.stdout)]
    values = [one.partition("\n")[2] for one in plain]
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
HERE = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())[1]
NEXT = "trixie"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
FIRST_START = "etc/systemd/system/multi-user.target.wants/spamnb.service"
KEEP_MODEL, REMOVE_MODEL = "false", "true"
LABELS = ("ham", "spam")
UNSEEN = 10
"""messages of each label; a model of 190 messages a label marks six of ten spam messages"""


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

    def typed(self, line):
        """Run a command of root's shell."""
        return self.run("sh", "-c", f"cd /root && HOME=/root && export HOME && {line}")

    def install(self, package):
        shutil.copy(package, self.root / "package.deb")
        return self.run("dpkg", "--force-confdef", "-i", "/package.deb")

    def has(self, place):
        return os.path.lexists(self.root / place)


@pytest.fixture(scope="module")
def release(request):
    """The release of Debian: this machine's, or the parameter of a test."""
    return getattr(request, "param", HERE)


@pytest.fixture(scope="module")
def new_root(release, tmp_path_factory):
    """Create a Debian; DEBIAN_ROOT names one of this machine's release that debootstrap made."""
    made = os.environ.get("DEBIAN_ROOT") if release == HERE else None
    if os.geteuid() != 0 or not (made or shutil.which("debootstrap")):
        pytest.skip("needs root and debootstrap")
    if made:
        return Path(made)
    root = tmp_path_factory.mktemp("debian") / "root"
    command = ["debootstrap", "--variant=minbase", "--include=python3,systemd", release, root]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return root


@contextmanager
def copied(new_root, folder):
    """Give a copy of a Debian, with /proc, in which no package starts a service."""
    root = folder / "root"
    subprocess.run(["cp", "-a", new_root, root], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield Debian(root)
    finally:
        subprocess.run(["umount", root / "proc"], check=True)
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def debian(new_root, tmp_path_factory):
    with copied(new_root, tmp_path_factory.mktemp("copy")) as made:
        yield made


@pytest.fixture(scope="module")
def real_package(release, tmp_path_factory, request):
    """Build the package with all libraries, on a system of its release."""
    folder = tmp_path_factory.mktemp("real")
    if release == HERE:
        return built(folder, os.environ)
    with copied(request.getfixturevalue("new_root"), folder) as debian:
        debian.run("apt-get", "update", "-qq")
        debian.run("apt-get", "install", "-y", "-qq", "python3-venv", "ca-certificates")
        shutil.copy(CERTIFICATES, debian.root / CERTIFICATES.relative_to("/"))
        files = subprocess.check_output(["git", "ls-files", "-z"], cwd=PROJECT, text=True)
        for name in files.split("\0")[:-1]:
            place = debian.root / "root" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, place)
        debian.typed(f"SOURCE_DATE_EPOCH={EPOCH} scripts/package/deb /out {' '.join(QUICK)}")
        [made] = (debian.root / "out").iterdir()
        return Path(shutil.copy(made, folder))


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


@contextmanager
def serving(debian):
    """Run the daemon as root in the new Debian."""
    with debian.start("spamnb", "serve", stderr=subprocess.DEVNULL) as daemon:
        asked = ["chroot", debian.root, "spamnb", "status"]
        quiet = {"env": IN_ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            until(lambda: subprocess.run(asked, check=False, **quiet).returncode == 0, "the daemon")
            yield
        finally:
            daemon.terminate()


def serves_and_learns(debian):
    """Train, start the daemon, run the doctor, and mark messages."""
    shutil.copytree(PROJECT / "corpora/sample", debian.root / "root", dirs_exist_ok=True)
    set_apart(debian.root / "root")
    debian.typed("spamnb train ham spam")
    assert (debian.root / "var/lib/spamnb").stat().st_uid != 0
    with serving(debian):
        debian.run("spamnb", "doctor")
        marks_unseen_spam(debian)


def set_apart(home):
    """Move the first messages of each label to a folder that no command trains."""
    for label in LABELS:
        unseen = home / "unseen" / label
        unseen.mkdir(parents=True)
        for path in sorted((home / label).iterdir())[:UNSEEN]:
            path.rename(unseen / path.name)


def marks_unseen_spam(debian, least=UNSEEN // 3):
    """Filter the messages that were set apart: no ham and at least this much spam gets a mark."""
    root = debian.root / "root"
    marked = dict.fromkeys(LABELS, 0)
    for file in (root / "unseen").glob("*/*"):
        told = debian.typed(f"spamnb filter < {file.relative_to(root)}")
        assert re.search(r"(?m)^Subject: .*$", file.read_text(errors="replace"))[0] in told
        marked[file.parent.name] += "X-Spam-Flag: YES" in told
    assert marked["ham"] == 0
    assert marked["spam"] >= least if least else marked["spam"] == 0


def new_python(debian):
    """Write the files of the system's Python again, as its security updates do."""
    form = "${db:Status-Abbrev}${Package}\\n"
    listed = debian.run("dpkg-query", "--show", "--showformat", form)
    names = re.findall(r"^ii +((?:lib)?python3\.\d+(?:-minimal|-stdlib)?)$", listed, re.MULTILINE)
    assert len(names) > 2
    debian.run("apt-get", "update", "-qq")
    debian.run("apt-get", "install", "-y", "-qq", "--reinstall", *names)


def goes_back_to_the_model_before(debian):
    """The upgrade has backed up the model; the next one cannot, and changes nothing."""
    [backup] = (debian.root / "var/lib/spamnb-backup").iterdir()
    before = debian.run("spamnb", "export")
    debian.run("spamnb", "undo", "1", "--yes")
    debian.run("spamnb", "restore", "--force", f"/{backup.relative_to(debian.root)}")
    assert debian.run("spamnb", "export") == before
    model = debian.root / "var/lib/spamnb/data.mdb"
    kept = model.read_bytes()
    model.write_bytes(b"no model" * 4096)
    told = debian.run("dpkg", "-i", "/package.deb", code=1)
    assert "nothing is changed: the model could not be backed up" in told
    model.write_bytes(kept)
    debian.run("spamnb", "check")


@pytest.mark.full
@pytest.mark.parametrize("release", dict.fromkeys([HERE, NEXT]), indirect=True)
def test_it_is_installed_upgraded_and_purged(debian, real_package, tmp_path):
    """Enabled but not started; an upgrade keeps settings and choices; a purge keeps the model.

    An administrator who answers the question of the purge with yes gets the model removed. An
    update of the system's Python changes nothing.
    """
    debian.install(real_package)
    assert debian.has(FIRST_START)
    assert not debian.has("run/spamnb")
    assert "no problems found" in debian.run("spamnb", "config", "check")
    serves_and_learns(debian)
    new_python(debian)
    debian.run("spamnb", "check")

    settings = debian.root / "etc/spamnb/spamnb.toml"
    settings.write_text(settings.read_text() + "# of the administrator\n")
    debian.run("systemctl", "disable", "spamnb.service")
    debian.install(version_after(real_package, tmp_path))
    assert settings.read_text().endswith("# of the administrator\n")
    assert not debian.has(FIRST_START)
    debian.run("spamnb", "check")
    goes_back_to_the_model_before(debian)

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


OTHER_FILTERS = {
    "SpamAssassin": (["spamassassin"], ["sa-learn --ham ham", "sa-learn --spam spam"]),
    "rspamd": (["rspamd"], []),
    "bogofilter": (["bogofilter"], ["find ham -type f | bogofilter -nb",
                                    "find spam -type f | bogofilter -sb"]),
    "DSPAM": ([], []),
    "Nothing": ([], []),
}  # fmt: skip
"""packages and training of what runs before the switch; DSPAM is in no Debian of today"""


@pytest.mark.full
@pytest.mark.parametrize("start", OTHER_FILTERS)
def test_each_start_of_switching_leads_to_marked_mail(new_root, real_package, start, tmp_path):
    """In a new Debian: the other filter with its training, the package, the page's commands."""
    packages, training = OTHER_FILTERS[start]
    with copied(new_root, tmp_path) as debian:
        user_mail(debian.root / "root")
        if packages:
            debian.run("apt-get", "update", "-qq")
            debian.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
        began = time.monotonic()
        for line in training:
            debian.typed(line)
        debian.install(real_package)
        for line in commands("switching.md", start):
            debian.typed(line)
        with serving(debian):
            # Imported counts alone never mark mail as junk.
            marks_unseen_spam(debian, least=0 if start == "bogofilter" else UNSEEN // 3)
        print(f"{start}: {time.monotonic() - began:.0f} s")


@pytest.mark.full
def test_the_first_hour_works_with_the_package(new_root, real_package, tmp_path):
    """The page getting-started, typed by root where the package takes the place of its install."""
    page = shell("getting-started.md")
    install, start = page.split("export SPAMNB_HOME", 1)
    assert len(install.splitlines()) == 3
    front, post = free_ports(2)
    ports = {"127.0.0.1:10025": f"127.0.0.1:{front}", ":10027": f":{post}"}
    with copied(new_root, tmp_path) as debian:
        debian.run("apt-get", "update", "-qq")
        debian.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "curl")
        debian.install(real_package)
        clone = debian.root / "root"
        shutil.copytree(PROJECT / "scripts", clone / "scripts")
        shutil.copytree(PROJECT / "corpora", clone / "corpora")
        typed = f"cd /root\nexport SPAMNB_HOME{changed(start, ports)}"
        said = debian.run("sh", "-e", stdin=typed)
        junk = re.findall(r"^(\w+) +\w+ +[\d.]+ run/hour/mail/.*\.Junk", said, re.MULTILINE)
        assert junk == ["deliver", "junk"], said
        assert "event 402" in said
        assert list((clone / "run").iterdir()) == []


def user_mail(home):
    """Give a user sorted mail, a Maildir of it with keywords, and messages that are in neither."""
    shutil.copytree(PROJECT / "corpora/sample", home, dirs_exist_ok=True)
    set_apart(home)
    for label, folder, keyword in (("ham", ".Friends", "b"), ("spam", ".Junk", "a")):
        cur = home / "Maildir" / folder / "cur"
        cur.mkdir(parents=True)
        (cur.parent / "new").mkdir()
        (cur.parent / "dovecot-keywords").write_text("0 $Junk\n1 $NotJunk\n")
        for path in (home / label).iterdir():
            shutil.copy(path, cur / f"{path.stem}:2,S{keyword}")


@pytest.mark.full
@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed")
def test_lintian_finds_no_error(real_package):
    """The package follows Debian's policy, but for the overrides with their reasons."""
    command = ["lintian", "--allow-root", "--fail-on", "error", real_package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_a_release_is_built_twice_and_compared(tmp_path):
    """`scripts/release` makes wheel, source archive, site and package, the same in two builds."""
    done = subprocess.run([PROJECT / "scripts/release", tmp_path], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert done.returncode == 0, done.stdout
    made = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rpartition(".")[2] for name in made] == ["SHA256SUMS", "whl", "gz", "gz", "deb"]
    with tarfile.open(next(tmp_path.glob("*-site.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"index.html", "search-index.js", "reference/settings.html"} <= names
    with tarfile.open(next(tmp_path.glob("*[0-9].tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"PKG-INFO", "pyproject.toml", "scripts/run", "tests/test_package.py"} <= names
