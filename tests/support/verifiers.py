"""Programs that check DKIM and SPF, as real milters; a zone and signed messages for them.

OpenDKIM and OpenDMARC are installed; rspamd is taken from the package that $RSPAMC belongs to. None
of them asks the internet: OpenDKIM reads public keys from a file, rspamd asks a name server of this
process, and OpenDMARC works on the results of OpenDKIM.
"""

import base64
import hashlib
import os
import shutil
import socket
import struct
import subprocess
import threading
from contextlib import contextmanager
from functools import cache

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from support.other_filters import FOLDERS, RSPAMD
from support.postfix import free_ports
from support.waiting import LIMIT_S, until

SITE = "mx.example.org"
"""the name of the site's server, under which all verifiers report"""
SELECTOR = "s1"
needs_opendkim = pytest.mark.skipif(
    shutil.which("opendkim") is None or shutil.which("opendmarc") is None,
    reason="OpenDKIM or OpenDMARC is not installed",
)

OPENDKIM = """
Mode v
Socket inet:{port}@127.0.0.1
AuthservID {site}
AlwaysAddARHeader yes
TestPublicKeys {folder}/keys
InternalHosts {folder}/none
ExternalIgnoreList {folder}/none
PeerList {folder}/none
Background no
Syslog yes
MinimumKeyBits 1024
"""
OPENDMARC = """
Socket inet:{port}@127.0.0.1
AuthservID {site}
TrustedAuthservIDs {site}
IgnoreHosts {folder}/none
Background false
SPFSelfValidate false
PublicSuffixList {folder}/suffixes
"""
RSPAMD_CONF = """
options {{
  pidfile = "{folder}/rspamd.pid";
  control_socket = "{folder}/control.sock mode=0600";
  tempdir = "{folder}";
  url_tld = "{folder}/tld.dat";
  dns {{ nameserver = ["127.0.0.1:{names}"]; timeout = 5s; retransmits = 2; }}
  filters = "dkim,spf";
  local_addrs = [];
  hostname = "{site}";
}}
logging {{ type = "console"; level = "info"; }}
actions {{ reject = 1000; add_header = 999; greylist = 998; }}
worker "rspamd_proxy" {{
  bind_socket = "127.0.0.1:{port}"; count = 1; milter = yes; timeout = 60s;
  upstream "local" {{ default = yes; self_scan = yes; }}
}}
worker "normal" {{ bind_socket = "{folder}/normal.sock"; count = 1; }}
modules {{ path = "$PLUGINSDIR"; }}
lua = "$RULESDIR/rspamd.lua";
dkim {{ }}
spf {{ }}
group "policies" {{
  symbol "R_DKIM_ALLOW" {{ weight = 0; }}
  symbol "R_SPF_ALLOW" {{ weight = 0; }}
}}
milter_headers {{
  use = ["authentication-results"]; skip_local = false; skip_authenticated = false;
}}
"""


@cache
def _key():
    return rsa.generate_private_key(65537, 1024)


def public_key():
    """Return the TXT record of the key that signs for every domain."""
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    der = _key().public_key().public_bytes(serialization.Encoding.DER, spki)
    return f"v=DKIM1; k=rsa; p={base64.b64encode(der).decode()}"


def signed(raw, domain, identity=""):
    """Return a message with CRLF line ends and a DKIM signature of `domain` (RFC 6376)."""
    head, _, body = raw.partition(b"\r\n\r\n")
    body = body.rstrip(b"\r\n") + b"\r\n"
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    tags = (
        f"v=1; a=rsa-sha256; c=relaxed/simple; d={domain}; s={SELECTOR}; h=from:subject;"
        f" bh={digest}; b="
    )
    tags = f"i={identity}; {tags}" if identity else tags
    lines = dict(line.split(b":", 1) for line in head.split(b"\r\n") if b":" in line)
    named = {name.lower(): b" ".join(value.split()) for name, value in lines.items()}
    text = b"".join(b"%b:%b\r\n" % (name, named[name]) for name in (b"from", b"subject"))
    text += b"dkim-signature:" + tags.encode()
    value = base64.b64encode(_key().sign(text, padding.PKCS1v15(), hashes.SHA256())).decode()
    return f"DKIM-Signature: {tags}{value}\r\n".encode() + head + b"\r\n\r\n" + body


@contextmanager
def opendkim(folder, domains):
    """Run OpenDKIM, which knows the keys of these domains; gives its port."""
    keys = [f"{SELECTOR}._domainkey.{one} {public_key()}\n" for one in domains]
    (folder / "keys").write_text("".join(keys))
    yield from _milter(folder, "opendkim", OPENDKIM, ["opendkim", "-f", "-x"])


@contextmanager
def opendmarc(folder):
    """Run OpenDMARC; gives its port."""
    (folder / "suffixes").write_text("org\nexample\n")
    yield from _milter(folder, "opendmarc", OPENDMARC, ["opendmarc", "-f", "-c"])


@contextmanager
def rspamd_milter(folder, zone):
    """Run rspamd as a milter that adds Authentication-Results only; gives its port."""
    with name_server(zone) as names:
        (folder / "tld.dat").write_text("example\norg\n")
        share = RSPAMD.parents[1] / "share" / "rspamd"
        places = dict.fromkeys(FOLDERS, folder) | {
            "SHAREDIR": share, "LUALIBDIR": share / "lualib",
            "RULESDIR": share / "rules", "PLUGINSDIR": share / "plugins",
        }  # fmt: skip
        variables = [f"--var={name}={place}" for name, place in places.items()]
        libraries = os.environ.get("RSPAMC_LIBRARIES") or str(RSPAMD.parents[1] / "lib" / "rspamd")
        command = [RSPAMD, "-f", "-i", *variables, "-c"]
        text = RSPAMD_CONF.replace("{names}", str(names))
        yield from _milter(folder, "rspamd", text, command, LD_LIBRARY_PATH=libraries)


def _milter(folder, name, settings, command, **variables):
    (port,) = free_ports(1)
    (folder / "none").write_text("192.0.2.255\n")
    path = folder / f"{name}.conf"
    path.write_text(settings.format(folder=folder, port=port, site=SITE))
    with (folder / f"{name}.log").open("wb") as output:
        running = subprocess.Popen(
            [*command, path], stdout=output, stderr=output, env=os.environ | variables
        )
    try:
        until(lambda: _answers(port, running, folder / f"{name}.log"), f"the answer of {name}")
        yield port
    finally:
        running.terminate()
        running.wait(LIMIT_S)


def _answers(port, running, log):
    assert running.poll() is None, log.read_text()
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def name_server(zone):
    """Serve TXT records by UDP; gives the port. Other questions get an empty answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=_serve, args=(server, zone), daemon=True)
        thread.start()
        port = server.getsockname()[1]
        try:
            yield port
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", ("127.0.0.1", port))
            thread.join()


def _serve(server, zone):
    while True:
        asked, client = server.recvfrom(4096)
        if not asked:
            return
        labels, at = [], 12
        while asked[at]:
            labels.append(asked[at + 1 : at + 1 + asked[at]].decode("ascii", "replace").lower())
            at += 1 + asked[at]
        question = asked[12 : at + 5]
        text = zone.get(".".join(labels)) if asked[at + 1 : at + 3] == b"\0\x10" else None
        answer = b""
        if text is not None:
            parts = [text[start : start + 255].encode() for start in range(0, len(text), 255)]
            data = b"".join(bytes([len(one)]) + one for one in parts)
            answer = b"\xc0\x0c\0\x10\0\x01" + struct.pack("!IH", 60, len(data)) + data
        head = struct.pack("!HHHHH", 0x8580, 1, bool(answer), 0, 0)
        server.sendto(asked[:2] + head + question + answer, client)
