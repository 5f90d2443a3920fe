"""A bare Debian with a mail server and sorted mail gets spamnb by its package and `spamnb setup`.

The machine is a folder with a release of Debian, made by debootstrap; its processes run in
namespaces of their own, without a network, and with ports in use that setup would choose. Time
counts from the installation of the package to the end of the training of three mailboxes; it is
that of the processor, because other programs use the machine, too.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
from support.debian import (
    PROJECT,
    bare,
    copy_of,
    inside,
    needs_debootstrap,
    project_in,
    this_release,
    with_network,
)

USERS = ("alice", "bob", "carol")
OLD_MESSAGES = 2_000
MOST_S = 180
"""of all commands together"""


def processor_s(file):
    """The seconds that `times` of a shell has written: its own, and those of its commands."""
    found = re.findall(r"(\d+)m([\d.]+)s", file.read_text())
    assert len(found) == 4
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in found)


TAKEN_PORTS = (10027, 8025)

pytestmark = [pytest.mark.full, needs_debootstrap]


class Server(NamedTuple):
    """A mail server as a postmaster has it before spamnb."""

    packages: str
    prepare: str
    start: str
    train: str = "spamnb train " + " ".join(f"--mailbox {user}" for user in USERS)
    restart: str = ""
    """makes it read new settings, if `spamnb setup` cannot without systemd"""
    release: str = ""
    """of Debian; empty: that of this machine"""
    options: str = ""
    """of `spamnb setup`"""


DOVECOT = r"""
sed -i 's|^mail_location.*|mail_location = maildir:~/Maildir|' /etc/dovecot/conf.d/10-mail.conf
cat > /etc/dovecot/local.conf <<END
auth_username_format = %n
ssl = no
log_path = /var/log/dovecot.log
END
"""
DOVECOT_24 = """
cat > /etc/dovecot/local.conf <<END
mail_driver = maildir
mail_path = ~/Maildir
mail_inbox_path = ~/Maildir
auth_username_format = %{user | username}
ssl = no
log_path = /var/log/dovecot.log
END
"""
POSTFIX = """
        postconf -e 'mydestination = example.org, localhost' 'inet_interfaces = loopback-only' \\
            'mailbox_transport = lmtp:unix:/run/dovecot/lmtp' 'disable_dns_lookups = yes' \\
            'maillog_file = /var/log/postfix.log'
        postconf -F '*/*/chroot = n'
"""
SENDMAIL = r"""
        echo example.org >> /etc/mail/local-host-names
        echo "127.0.0.1 mx.example.org mx localhost" > /etc/hosts
        cat > /root/lda <<'END'
FEATURE(`local_procmail', `/usr/lib/dovecot/dovecot-lda', `dovecot-lda -d $u')dnl
MODIFY_MAILER_FLAGS(`LOCAL', `-f')dnl
FEATURE(`nocanonify')dnl
FEATURE(`accept_unresolvable_domains')dnl
END
        sed -i '/^include.*provider/r /root/lda' /etc/mail/sendmail.mc
        make -C /etc/mail
"""
SERVERS = {
    "postfix": Server(
        "postfix dovecot-imapd dovecot-lmtpd dovecot-sieve",
        DOVECOT + POSTFIX,
        "postfix start && dovecot",
    ),
    "postfix, in front of lmtp": Server(
        "postfix dovecot-imapd dovecot-lmtpd dovecot-sieve",
        DOVECOT + POSTFIX,
        "postfix start && dovecot",
        options=" --way lmtp",
    ),
    "postfix, dovecot 2.4": Server(
        "postfix dovecot-imapd dovecot-lmtpd dovecot-sieve",
        DOVECOT_24 + POSTFIX,
        "postfix start && dovecot",
        release="trixie",
    ),
    "sendmail": Server(
        "sendmail-bin sendmail-cf sendmail-base make dovecot-imapd dovecot-lmtpd dovecot-sieve",
        DOVECOT + SENDMAIL,
        "sh -c '/usr/sbin/sendmail -bd -q1m; :'; dovecot",
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


@pytest.fixture(scope="module")
def installed_from(tmp_path_factory):
    """Makes a bare machine of a release with the package of this checkout for it in /root."""
    made = {}

    def machine(release):
        if release not in made:
            root = bare(tmp_path_factory.mktemp("debian") / "root", release)
            building = copy_of(root, root.with_name("building"))
            project_in(building / "root" / "project")
            with_network(
                building,
                """
                apt-get install -y -qq --no-install-recommends python3-venv
                SOURCE_DATE_EPOCH=1700000000 /root/project/scripts/package/deb /root
                """,
            )
            (package,) = (building / "root").glob("*.deb")
            shutil.move(package, root / "root" / "spamnb.deb")
            shutil.rmtree(building)
            made[release] = root
        return made[release]

    return machine


@pytest.fixture
def machine(request, installed_from, tmp_path):
    """A machine with a mail server, three users, their sorted mail, and the package in /root."""
    server = SERVERS[request.param]
    root = copy_of(installed_from(server.release or this_release()), tmp_path / "root")
    with_network(
        root,
        f"""
        apt-get install -y -qq --no-install-recommends procps {server.packages}
        apt-get install -y -qq --no-install-recommends --download-only /root/spamnb.deb
        """,
    )
    users = "\n".join(f"        useradd -m -s /bin/sh {user}" for user in USERS)
    inside(root, users + "\n" + server.prepare)
    sort_mail(root, tmp_path / "sample")
    return root, server


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
        apt-get install -y -qq --no-install-recommends /root/spamnb.deb
        cp -a /etc /root/etc.installed
        install -d -o spamnb -g spamnb /run/spamnb
        start-stop-daemon --start --background --output /root/serve.log \
            --exec /opt/spamnb/bin/spamnb -- serve --create
        n=0
        until spamnb status >/dev/null 2>&1; do sleep .2; n=$((n+1)); [ $n -lt 600 ]; done
        spamnb setup --yes --answer act=file {options} > /root/setup.txt
        {restart}
        {train}
        times > /root/times
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


@pytest.mark.parametrize("machine", SERVERS, indirect=True)
def test_the_first_day(machine):
    """Mail is scanned, junk is filed, a move teaches; removal leaves each file as it was."""
    root, server = machine
    sample = root.parent / "sample"
    texts = [max((sample / side).iterdir()).read_text("utf-8") for side in ("spam", "ham")]
    has_imap = "dovecot" in server.packages
    inside(
        root,
        DAY.format(
            start=server.start,
            restart=server.restart,
            train=server.train,
            options=("--test alice@example.org" if has_imap else "") + server.options,
            texts=texts,
            marked=len(texts),
        ),
        TAKEN_PORTS,
    )
    assert processor_s(root / "root" / "times") <= MOST_S
    learnt = json.loads((root / "root" / "status.json").read_text())["model"]["messages"]
    # Of mail that was not answered, an inbox proves nothing.
    assert learnt == {"ham": OLD_MESSAGES // 4, "spam": OLD_MESSAGES // 2}
    junk, inbox = (root / "home" / "alice" / "Maildir" / folder for folder in (".Junk/new", "new"))
    assert [path.read_text("utf-8").count("X-Spam-Status: Yes") for path in junk.iterdir()] == [1]
    assert all("X-Spam-Status: No" in path.read_text("utf-8") for path in inbox.iterdir())
    said = (root / "root" / "setup.txt").read_text()
    assert ("learning        spam, from alice through imap" in said) == has_imap


MAILBOX = r"""
        dovecot
        echo alice:secret | chpasswd
        apt-get install -y -qq --no-install-recommends /root/spamnb.deb
        useradd -m -s /bin/sh dave
        cat > /home/dave/day <<'END'
        umask 077
        echo secret > ~/password
        find . -type f | sort > /tmp/before
        spamnb setup --imap 127.0.0.1:143 --user alice --password-file ~/password --yes
        config=~/.config/spamnb/spamnb.toml
        spamnb --config $config stats --json > /tmp/stats.json
        times > /tmp/times
        spamnb --config $config imap --once --existing --json > /tmp/judged.json
        spamnb setup --remove
        find . -type f | grep -v .local/share/spamnb | sort | diff /tmp/before -
        END
        su - dave -c 'sh -eux ~/day'
"""


@pytest.mark.parametrize("machine", ["postfix"], indirect=True)
def test_the_first_day_of_a_mailbox_alone(machine):
    """A user without root connects a mailbox by IMAP; old mail is learnt, the inbox is judged."""
    root, _ = machine
    inside(root, MAILBOX, TAKEN_PORTS)
    assert processor_s(root / "tmp" / "times") <= MOST_S
    learnt = json.loads((root / "tmp" / "stats.json").read_text())["messages"]
    assert learnt["ham"] > OLD_MESSAGES // 15
    assert learnt["spam"] > OLD_MESSAGES // 7
    judged = (root / "tmp" / "judged.json").read_text().splitlines()
    assert {json.loads(line)["done"] for line in judged} == {"judged"}
