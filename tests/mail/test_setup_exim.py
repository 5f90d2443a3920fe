"""`spamnb setup` on a machine with a real Exim and a real Dovecot, and with Debian's settings."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.docs_snippets import snippet
from support.exim import CONF, PROGRAM, Exim, needs_scanning_exim
from support.namespaces import needs_mounts
from support.postfix import PROJECT, needs_rig
from support.setup_site import Site, done_by
from support.waiting import until

from spamnb.setup import exim
from spamnb.setup import run as module
from spamnb.setup.edits import without_blocks

pytestmark = [needs_scanning_exim, needs_rig]


class EximToDovecot(Exim):
    """An Exim that delivers to Dovecot."""

    def __init__(self, lmtp):
        super().__init__()
        self.lmtp = lmtp

    def parts(self):
        """The settings without spamnb."""
        host = f"daemon_smtp_ports = {self.port['mx']}\nlocal_interfaces = 127.0.0.1\n"
        router = "dovecot:\n  driver = accept\n  domains = +local_domains\n  transport = dovecot\n"
        transport = (
            "dovecot:\n  driver = smtp\n  protocol = lmtp\n  hosts = 127.0.0.1\n"
            f"  port = {self.lmtp}\n  allow_localhost\n"
        )
        return {"main": host, "junk_router": router, "junk_transport": transport}


class EximSite(Site):
    """Exim in front of the Dovecot of the rig, whose Postfix gets no mail."""

    def __init__(self, folder):
        super().__init__(folder)
        self.exim = EximToDovecot(self.rig.port["lmtp"])

    def places(self):
        """The options that name its files and a free port."""
        return (
            "--exim", self.exim.root / "exim.conf",
            "--dovecot", self.rig.root / "dovecot" / "dovecot.conf",
            "--listen", f"127.0.0.1:{self.rig.port['back']}",
        )  # fmt: skip

    def files(self):
        """All settings: path -> bytes."""
        path = self.exim.root / "exim.conf"
        return super().files() | {path: path.read_bytes()}

    def setup(self, *arguments, **more):
        """Run `spamnb setup`; if it changed Exim's settings, wait until Exim has read them."""
        started = self.exim.log().count("daemon started")
        before = self.files()
        result = super().setup(*arguments, **more)
        path = self.exim.root / "exim.conf"
        if self.files()[path] != before[path]:
            until(lambda: self.exim.log().count("daemon started") > started, "Exim's new settings")
        return result

    def submit(self, raw):
        """Send a message to Alice from outside."""
        self.exim.send(raw, ["alice@example.org"])

    def start(self):
        """Start all."""
        super().start()
        self.exim.start()
        until(lambda: "daemon started" in self.exim.log(), "Exim")

    def close(self):
        """End all."""
        super().close()
        self.exim.stop()


@pytest.fixture(scope="module")
def path_with_exim(tmp_path_factory):
    """A path of programs on which Exim is the installed one."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "exim4").symlink_to(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def site(path_with_exim, tmp_path_factory):
    made = EximSite(tmp_path_factory.mktemp("exim"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_from_bare_to_filed_and_taught(site):
    """Mail is scanned and filed, a move teaches, a test message too; removing leaves no byte."""
    before = site.files()
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))
    assert "Exim: " in done_by(site.setup("--yes"))
    observed = site.arrives(site.send("spam"))
    assert b"X-Spamnb-Signature" in observed
    assert b"X-Spam-Flag" not in observed

    changed = json.loads(done_by(site.setup("--yes", "--json", "--answer", "act=file")))
    assert [Path(one["path"]).name for one in changed["files"]] == ["spamnb.toml"]
    site.files_and_teaches()

    output = done_by(site.setup("--yes", "--test", "alice@example.org", "--json"))
    test = json.loads(output)["test"]
    states = {check["check"]: check["state"] for check in test["checks"]}
    assert states["learning"] == states["learning again"] == states["marked mail"] == "ok"
    assert "broken" not in states.values()

    site.is_done_and_taken_out(before)
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))


def test_killed_before_exim_reads_its_new_settings(site):
    """The next run takes back what was written; mail is not lost, and none waits for spamnb."""
    before = site.files()
    pid = os.fork()
    if pid == 0:
        module.Setup._run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        os._exit(Site.setup(site, "--yes").code)
    os.waitpid(pid, 0)
    site.arrives(site.send("ham"))
    done_by(Site.setup(site, "--remove"))
    assert site.files() == before


SCANNING = "spamd_address = 127.0.0.1 783\n"


@pytest.mark.parametrize(
    ("main", "change", "why"),
    [
        (SCANNING, None, "another scanner"),
        ("", ("acl_smtp_data = acl_check_data", ""), "not the name of an ACL"),
        (
            "",
            ("acl_smtp_data = acl_check_data", "acl_smtp_data = ${if def:x{a}{b}}"),
            "not the name",
        ),
    ],
    ids=["another filter", "no ACL", "an ACL by condition"],
)
def test_an_exim_that_setup_leaves(path_with_exim, tmp_path, main, change, why):
    """Setup says why, with the lines to add, and has no edit for Exim."""
    file = exim_file(tmp_path, main)
    if change:
        file.write_text(file.read_text().replace(*change))
    assert why in exim.find(file).problems[0]


def exim_file(tmp_path, main=""):
    file = tmp_path / "exim.conf"
    values = dict.fromkeys(("acl", "data", "routers", "junk_router", "transports", "retry"), "")
    values |= {"program": PROGRAM, "root": tmp_path, "back": 1, "user": "nobody", "people": "alice"}
    file.write_text(CONF.format(main=main, junk_transport="", **values))
    return file


@pytest.mark.parametrize(
    "change",
    [("", ""), ("acl_check_data:", "  acl_check_data :   "), ("F,2h,15m\n", "F,2h,15m")],
    ids=["plain", "blanks", "no line feed at its end"],
)
def test_settings_in_one_file(path_with_exim, tmp_path, change):
    """Exim accepts the lines, and a second look changes nothing."""
    file = exim_file(tmp_path)
    file.write_text(file.read_text().replace(*change) if change[0] else file.read_text())
    checked(file, "127.0.0.1:10025")
    checked(file, "unix:/run/spamnb/scan.sock")


def checked(file, address):
    """Do the stage, verify it, and take it back; return the settings that were in force."""
    found = exim.find(file)
    assert found.problems == ()
    stage = found.stage(address)
    for edit in stage.edits:
        module._put(edit.path, edit.after)
    for command in stage.checks:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert stage.verify() == ""
    command = [PROGRAM, "-C", file, "-bP", "config"]
    config = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    again = exim.find(file)
    assert again.problems == ()
    assert again.stage(address) is None
    for edit in stage.edits:
        assert without_blocks(edit.after) == (edit.before or "")
        module._put(edit.path, edit.before)
    return config


def test_the_lines_are_those_of_the_page():
    """Other tests run the page with a real Exim, also while the daemon is down."""
    page = snippet("spamc.md", "Exim", "exim4.conf: acl for DATA, protocol of rspamd")
    assert list(exim._ACL_LINES) == page.splitlines()[1:]


DEBIAN = """
set -e
mount -t tmpfs none /var/lib
mount -t tmpfs none /run
mkdir /var/lib/exim4 /run/etc /run/sbin
cp -a /etc/. /run/etc
cp -r {package}/etc/exim4 /run/etc
mount --bind /run/etc /etc
mount --bind /usr/sbin /run/sbin
mount -t tmpfs none /usr/sbin
ln -s /run/sbin/* /usr/sbin
rm -f /usr/sbin/exim4 /usr/sbin/update-exim4.conf
cp {package}/usr/sbin/update-exim4.conf /usr/sbin
ln -s {package}/usr/sbin/exim4 /usr/sbin/exim4
echo example.org >/etc/mailname
cat >/etc/exim4/update-exim4.conf.conf <<END
dc_eximconfig_configtype='internet'
dc_other_hostnames='example.org'
dc_local_interfaces='127.0.0.1.2525'
dc_minimaldns='false'
dc_use_split_config='{split}'
dc_localdelivery='maildir_home'
END
{more}
hostname mx.example.org
update-exim4.conf
exec {python} {test}
"""
OWN_ACL = """
printf 'CHECK_DATA_LOCAL_ACL_FILE = /etc/exim4/own-acl\\n' >/etc/exim4/{place}
printf '  warn add_header = X-Own: yes\\n' >/etc/exim4/own-acl
"""


@needs_mounts
@pytest.mark.parametrize(
    ("split", "more"),
    [("true", ""), ("false", ""), ("true", "conf.d/main/000_localmacros"),
     ("false", "exim4.conf.localmacros")],
    ids=["split", "one template", "split with an own ACL", "one template with an own ACL"],
)  # fmt: skip
def test_settings_of_debian(split, more, tmp_path):
    """Debian's own program makes the settings of these files, and Exim accepts them."""
    package = Path(PROGRAM).parents[2]
    if not (package / "etc/exim4").is_dir():
        pytest.skip("the package exim4-config is not unpacked beside $EXIM")
    script = tmp_path / "start"
    script.write_text(
        DEBIAN.format(
            package=package,
            split=split,
            more=OWN_ACL.format(place=more) if more else "",
            python=sys.executable,
            test=__file__,
        )
    )
    done = subprocess.run(
        ["unshare", "--mount", "--uts", "sh", script],
        capture_output=True, text=True, check=False, cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": f"{PROJECT}:{PROJECT / 'tests'}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    own = "own-acl" if more else "spamnb-acl"
    assert found["files"][1] == f"/etc/exim4/{own}"
    assert found["domains"] == ["example.org"]
    assert found["smtp"] == "127.0.0.1:2525"
    assert ("X-Own" in found["config"]) == bool(more)
    assert found["same"]


def on_debian():
    """In the namespace: check the settings of the machine, and print what was seen."""
    file = Path("/var/lib/exim4/config.autogenerated")
    found, before = exim.find(file), all_settings()
    files = [str(edit.path) for edit in found.stage("127.0.0.1:10025").edits]
    config = checked(file, "127.0.0.1:10025")
    seen = {"files": files, "domains": found.domains, "smtp": found.smtp, "config": config}
    print(json.dumps(seen | {"same": all_settings() == before}))


def all_settings():
    return {path: path.read_bytes() for path in Path("/etc/exim4").rglob("*") if path.is_file()}


if __name__ == "__main__":
    on_debian()
