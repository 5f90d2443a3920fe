"""Other spam filters as real programs, with as few rules as possible.

rspamd is taken from the package that $RSPAMC belongs to, which may be unpacked only. $SPAMASSASSIN
is the folder into which the packages of SpamAssassin and spamd were unpacked.
"""

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clients import RSPAMC
from support.postfix import free_ports
from support.waiting import until

RSPAMD = Path(RSPAMC).parent / "rspamd" if RSPAMC else Path(shutil.which("rspamd") or "/nowhere")
needs_rspamd = pytest.mark.skipif(
    not RSPAMD.is_file(), reason="rspamd is neither installed nor beside $RSPAMC"
)
SPAMASSASSIN = Path(os.environ.get("SPAMASSASSIN") or "/")
needs_spamd = pytest.mark.skipif(
    not (SPAMASSASSIN / "usr/sbin/spamd").is_file(),
    reason="spamd is neither installed nor in $SPAMASSASSIN",
)
GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"
"""a text that SpamAssassin and rspamd call spam"""
CONFIGURATION = """
options {{
  pidfile = "{folder}/rspamd.pid";
  control_socket = "{folder}/control.sock mode=0600";
  tempdir = "{folder}";
  url_tld = "{folder}/tld.dat";
  enable_test_patterns = true;
  gtube_patterns = "all";
  dns {{ nameserver = ["127.0.0.1:1"]; timeout = 0.1s; retransmits = 1; }}
  filters = "";
}}
logging {{ type = "console"; level = "info"; }}
actions {{ reject = 15; add_header = 6; greylist = 4; }}
worker "normal" {{ bind_socket = "127.0.0.1:{port}"; count = 1; }}
"""
FOLDERS = ("CONFDIR", "LOCAL_CONFDIR", "DBDIR", "RUNDIR", "LOGDIR")
TESTS_OF_RSPAMD = {
    "spam": b"YJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X",
    "reject": GTUBE,
}
"""texts by which rspamd adds its header, and rejects"""


@contextmanager
def rspamd(folder):
    """Run rspamd with its own scanner on a port of this machine; gives the port."""
    (port,) = free_ports(1)
    (folder / "tld.dat").write_text("example\n")  # the complete list takes seconds
    (folder / "rspamd.conf").write_text(CONFIGURATION.format(folder=folder, port=port))
    share = RSPAMD.parents[1] / "share" / "rspamd"
    places = dict.fromkeys(FOLDERS, folder) | {
        "SHAREDIR": share, "LUALIBDIR": share / "lualib",
        "RULESDIR": share / "rules", "PLUGINSDIR": share / "plugins",
    }  # fmt: skip
    variables = [f"--var={name}={place}" for name, place in places.items()]
    libraries = os.environ.get("RSPAMC_LIBRARIES") or str(RSPAMD.parents[1] / "lib" / "rspamd")
    command = [RSPAMD, "-f", "-i", "-c", folder / "rspamd.conf", *variables]
    yield from _running(command, port, folder / "log", LD_LIBRARY_PATH=libraries)


@contextmanager
def spamd(folder):
    """Run spamd with the rules of its package and without a network; gives the port."""
    (port,) = free_ports(1)
    modules = [SPAMASSASSIN / "usr/share/perl5", *SPAMASSASSIN.glob("usr/lib/*/perl5/*")]
    command = [
        "perl", "-T", *(f"-I{place}" for place in modules), SPAMASSASSIN / "usr/sbin/spamd",
        "-L", "-x", "-m", "1", "--min-children=1", "-i", "127.0.0.1", "-p", str(port),
        "-A", "127.0.0.1", "-C", SPAMASSASSIN / "usr/share/spamassassin",
        f"--siteconfigpath={SPAMASSASSIN / 'etc/spamassassin'}", "--syslog=stderr",
    ]  # fmt: skip
    yield from _running(command, port, folder / "log")


def _running(command, port, log, **variables):
    with log.open("wb") as output:
        running = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | variables
        )
    try:
        until(lambda: _answers(port, running, log), f"the answer of {command[0]}")
        yield port
    finally:
        running.terminate()
        running.wait()


def _answers(port, running, log):
    assert running.poll() is None, log.read_text()
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
