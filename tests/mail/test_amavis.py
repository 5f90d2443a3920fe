"""Amavis asks spamnb as docs/suites.md says, and marks mail by its verdict.

$AMAVIS may name the folder of an unpacked package, because its package starts a service.
"""

import contextlib
import os
import shutil
import signal
import smtplib
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.docs_snippets import changed, snippet
from support.postfix import PROJECT, Daemon, free_ports
from support.sink import Sink
from support.waiting import LIMIT_S, until

ROOT = Path(os.environ.get("AMAVIS") or "/")
PROGRAM = ROOT / "usr/sbin/amavisd"
needs_amavis = pytest.mark.skipif(
    os.geteuid() != 0 or not PROGRAM.exists(),
    reason="needs root, and Amavis installed or in $AMAVIS",
)
PAGE, SECTION = "suites.md", "iRedMail and modoboa"
SAMPLE = PROJECT / "corpora" / "sample"
CONFIGURATION = """use strict;
$daemon_user = 'nobody'; $daemon_group = 'nogroup';
$MYHOME = '{folder}'; $TEMPBASE = $MYHOME; $db_home = $MYHOME; $helpers_home = $MYHOME;
$lock_file = "$MYHOME/amavisd.lock"; $pid_file = "$MYHOME/amavisd.pid"; $QUARANTINEDIR = undef;
$myhostname = 'mx.here.example'; $mydomain = 'here.example';
@local_domains_maps = (['.here.example']);
$max_servers = 1; $do_syslog = 0; $logfile = undef; $enable_db = 0; $enable_zmq = 0;
$inet_socket_bind = '127.0.0.1'; $inet_socket_port = {port};
$forward_method = 'smtp:[127.0.0.1]:{hop}'; $notify_method = $forward_method;
@bypass_virus_checks_maps = (1);
$sa_tag_level_deflt = undef; $sa_tag2_level_deflt = 6.31; $sa_kill_level_deflt = 9999;
$final_spam_destiny = D_PASS;
{lines}1;
"""


@contextlib.contextmanager
def amavis(folder, lines, hop):
    """Run Amavis with these lines in its settings; gives its port."""
    [port] = free_ports(1)
    configuration = folder / "amavis.conf"
    own = folder / "amavis"  # the others must not be writable for it
    own.mkdir()
    shutil.chown(own, "nobody", "nogroup")
    values = {"folder": own, "port": port, "hop": hop, "lines": lines}
    text = CONFIGURATION
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    configuration.write_text(text)
    program = folder / "amavisd"  # it starts itself again without options of Perl
    rest = PROGRAM.read_text().partition("\n")[2]
    program.write_text(f"#!/usr/bin/perl -T -I{ROOT / 'usr/share/perl5'}\n{rest}")
    program.chmod(0o755)
    with (folder / "amavis.log").open("w") as log:
        command = [program, "-c", configuration, "foreground"]
        with subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process:
            try:
                until(lambda: process.poll() is not None or answers(port), "Amavis")
                assert process.poll() is None, (folder / "amavis.log").read_text()
                yield port
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def answers(port):
    try:
        with smtplib.SMTP("127.0.0.1", port, timeout=LIMIT_S):
            return True
    except OSError:
        return False


@needs_amavis
def test_amavis_marks_mail_by_the_verdict_of_spamnb():
    """With the lines of the page, X-Spam-Flag is in what spamnb calls junk, and only there."""
    folder = Path(tempfile.mkdtemp(prefix="spamnb-amavis-"))
    folder.chmod(0o755)
    [scanner] = free_ports(1)
    settings = changed(snippet(PAGE, SECTION, "spamnb.toml"), {"11333": str(scanner)})
    lines = snippet(PAGE, SECTION, "/etc/amavis/conf.d/50-user")
    # The page uses the address that Amavis has for rspamd.
    address = f"url => 'http://127.0.0.1:{scanner}/checkv2',"
    lines = changed(lines, {"score_factor": f"{address} score_factor"})
    daemon, sink = Daemon(folder, settings), Sink()
    try:
        daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
        daemon.start()
        with amavis(folder, lines, sink.address.rpartition(":")[2]) as port:
            for label in ("ham", "spam"):
                raw = min((SAMPLE / label).iterdir()).read_bytes()
                with smtplib.SMTP("127.0.0.1", port, timeout=LIMIT_S) as client:
                    client.sendmail("ann@far.example", ["bob@here.example"], raw)
        assert [b"X-Spam-Flag: YES" in message for message in sink.messages] == [False, True]
    finally:
        daemon.stop()
        sink.close()
        shutil.rmtree(folder)
