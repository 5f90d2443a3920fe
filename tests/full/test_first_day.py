"""A bare Debian with a mail server and sorted mail gets spamnb by its package and `spamnb setup`.

The machine is a folder with this release of Debian, made by debootstrap; its processes run in
namespaces of their own, without a network, and with ports in use that setup would choose. Time
counts from the installation of the package to the end of the training of three mailboxes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).resolve().parents[2]
USERS = ("alice", "bob", "carol")
OLD_MESSAGES = 2_000
MOST_S = 180
"""of all commands together"""
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("debootstrap", "unshare", "dpkg-deb"))),
        reason="needs root, debootstrap and unshare",
    ),
]


class Server(NamedTuple):
    """A mail server as a postmaster has it before spamnb."""

    packages: str
    prepare: str
    start: str
    train: str = "spamnb train " + " ".join(f"--mailbox {user}" for user in USERS)
    restart: str = ""
    """makes it read new settings, if `spamnb setup` cannot without systemd"""


DOVECOT = r"""
sed -i 's|^mail_location.*|mail_location = maildir:~/Maildir|' /etc/dovecot/conf.d/10-mail.conf
cat > /etc/dovecot/local.conf <<END
auth_username_format = %n
ssl = no
log_path = /var/log/dovecot.log
END
"""
SERVERS = {
    "postfix": Server(
        "postfix dovecot-imapd dovecot-lmtpd dovecot-sieve",
        DOVECOT
        + """
        postconf -e 'mydestination = example.org, localhost' 'inet_interfaces = loopback-only' \\
            'mailbox_transport = lmtp:unix:/run/dovecot/lmtp' 'disable_dns_lookups = yes' \\
            'maillog_file = /var/log/postfix.log'
        postconf -F '*/*/chroot = n'
        """,
        "postfix start && dovecot",
    ),
    "exim": Server(
        "exim4-daemon-heavy dovecot-imapd dovecot-lmtpd dovecot-sieve",
        DOVECOT
        + r"""
        cat > /etc/exim4/update-exim4.conf.conf <<END
        dc_eximconfig_configtype='internet'
        dc_other_hostnames='example.org'
        dc_local_interfaces='127.0.0.1'
        dc_use_split_config='true'
        dc_localdelivery='dovecot_lmtp'
        END
        cat > /etc/exim4/conf.d/transport/40_dovecot <<END
        dovecot_lmtp:
          driver = lmtp
          socket = /run/dovecot/lmtp
          batch_max = 20
        END
        update-exim4.conf
        """,
        "sh -c 'exim4 -bd -q30m; :'; dovecot",  # a child of process 1 would stay in the foreground
    ),
    "opensmtpd": Server(
        "opensmtpd",
        """
        cat > /etc/smtpd.conf <<END
        table aliases file:/etc/aliases
        listen on lo
        action "local" maildir alias <aliases>
        match from any for domain "example.org" action "local"
        match from local for local action "local"
        END
        touch /etc/aliases
        echo example.org > /etc/mailname
        """,
        "smtpd",
        """
        for user in alice bob carol; do
            spamnb train --labels folders --yes /home/$user/Maildir
        done
        """,
        "pkill -o smtpd; while pgrep smtpd >/dev/null; do sleep .1; done; smtpd",
    ),
}


PORTS_IN_USE = """
import socket, time
taken = [socket.create_server(("127.0.0.1", port)) for port in (10027, 8025)]
time.sleep(3600)
"""


def script(text):
    """Remove the indent of each line, which files within the text must not have."""
    return "\n".join(line.removeprefix("        ") for line in text.splitlines())


def inside(machine, text, *, network=False, check=True):
    """Run a script in the machine; the processes end with it."""
    for name in ("proc", "dev", "sys"):
        (machine / name).mkdir(exist_ok=True)
    (machine / "root" / "script").write_text(script(text))
    alone = 'ip link set lo up; "$0" -c "$1" >/dev/null 2>&1 &'
    enter = f"""
        set -e
        mount -t proc proc {machine}/proc
        mount --rbind /dev {machine}/dev
        {"" if network else alone}
        hostname mx.example.org
        exec chroot {machine} sh -eux /root/script
    """
    namespaces = NAMESPACES if network else (*NAMESPACES, "--net")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
    environment |= {name: os.environ[name] for name in os.environ if name.endswith("_proxy")}
    result = subprocess.run(
        [*namespaces, "sh", "-c", enter, sys.executable, PORTS_IN_USE],
        stdin=subprocess.DEVNULL,
        env=environment | {"DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not check or result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The Debian package of this checkout."""
    folder = tmp_path_factory.mktemp("package")
    made = [PROJECT / "scripts" / "package" / "deb", folder]
    result = subprocess.run(made, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"no package: {result.stderr[-500:]}")
    return next(folder.glob("*.deb"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A bare Debian, and the sources from which it gets packages."""
    folder = tmp_path_factory.mktemp("debian")
    asked = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    release = re.search(
        r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE
    )[1]
    source = re.search(rf"^{release} (\S+)$", listed, re.MULTILINE)
    if source is None:
        pytest.skip("apt has no source of this release")
    made = ["debootstrap", "--variant=minbase", release, folder / "root", source[1]]
    result = subprocess.run(made, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"debootstrap failed: {result.stdout[-500:]}")
    return folder / "root"


@pytest.fixture(params=SERVERS)
def machine(request, bare, package, tmp_path):
    """A machine with a mail server, three users, their sorted mail, and the package in /root."""
    server = SERVERS[request.param]
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", bare, root], check=True)  # device files, too
    shutil.copy(package, root / "root")
    downloads = f"""
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends procps {server.packages}
        apt-get install -y -qq --no-install-recommends --download-only /root/{package.name}
    """
    if inside(root, downloads, network=True, check=False).returncode:
        pytest.skip("the packages of the mail server cannot be installed")
    users = "\n".join(f"        useradd -m -s /bin/sh {user}" for user in USERS)
    inside(root, users + "\n" + server.prepare)
    sort_mail(root, tmp_path / "sample")
    yield root, server
    for name in ("dev", "proc"):
        assert not os.path.ismount(root / name)


def sort_mail(root, sample):
    """Fill the mailboxes: ham in INBOX, read or answered, and spam in Junk."""
    half = str(OLD_MESSAGES // 2)
    maker = [sys.executable, PROJECT / "scripts" / "make-sample", sample, "--ham", half]
    subprocess.run([*maker, "--spam", half], check=True, capture_output=True)
    for side, folder in (("ham", "Maildir"), ("spam", "Maildir/.Junk")):
        for number, path in enumerate(sorted((sample / side).iterdir())):
            place = root / "home" / USERS[number % len(USERS)] / folder
            for name in ("cur", "new", "tmp"):
                (place / name).mkdir(parents=True, exist_ok=True)
            flags = "RS" if number % 2 else "S"
            shutil.copy(path, place / "cur" / f"{1_700_000_000 + number}.{number}.mx:2,{flags}")
    own = "\n".join(f"        chown -R {user}: /home/{user}" for user in USERS)
    inside(root, own)


DAY = r"""
        {start}
        began=$(date +%s)
        apt-get install -y -qq --no-install-recommends /root/{package}
        cp -a /etc /root/etc.installed
        install -d -o spamnb -g spamnb /run/spamnb
        start-stop-daemon --start --background --output /root/serve.log \
            --exec /opt/spamnb/bin/spamnb -- serve --create
        n=0
        until spamnb status >/dev/null 2>&1; do sleep .2; n=$((n+1)); [ $n -lt 600 ]; done
        spamnb setup --yes --answer act=file {options} > /root/setup.txt
        {restart}
        {train}
        echo $(($(date +%s) - began)) > /root/seconds
        python3 - <<END
        import smtplib
        for text in {texts!r}:
            with smtplib.SMTP("127.0.0.1", 25) as client:
                client.sendmail("x@example.net", ["alice@example.org"], text)
        END
        n=0
        until [ $(grep -rl X-Spam-Status /home/alice/Maildir | wc -l) -ge {marked} ]; do
            sleep .2; n=$((n+1)); [ $n -lt 600 ]
        done
        spamnb status --json > /root/status.json
        spamnb setup --remove > /root/removed.txt
        diff -r --no-dereference /etc /root/etc.installed
"""


def test_the_first_day(machine, package):
    """Mail is scanned, junk is filed, a move teaches; removal leaves each file as it was."""
    root, server = machine
    sample = root.parent / "sample"
    texts = [max((sample / side).iterdir()).read_text("utf-8") for side in ("spam", "ham")]
    has_imap = "dovecot" in server.packages
    inside(
        root,
        DAY.format(
            package=package.name,
            start=server.start,
            restart=server.restart,
            train=server.train,
            options="--test alice@example.org" if has_imap else "",
            texts=texts,
            marked=len(texts),
        ),
    )
    assert int((root / "root" / "seconds").read_text()) <= MOST_S
    learnt = json.loads((root / "root" / "status.json").read_text())["model"]["messages"]
    # Of mail that was not answered, an inbox proves nothing.
    assert learnt == {"ham": OLD_MESSAGES // 4, "spam": OLD_MESSAGES // 2}
    junk, inbox = (root / "home" / "alice" / "Maildir" / folder for folder in (".Junk/new", "new"))
    assert [path.read_text("utf-8").count("X-Spam-Status: Yes") for path in junk.iterdir()] == [1]
    assert all("X-Spam-Status: No" in path.read_text("utf-8") for path in inbox.iterdir())
    said = (root / "root" / "setup.txt").read_text()
    assert ("learning        spam, from alice through imap" in said) == has_imap
