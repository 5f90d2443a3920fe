"""One daemon, and all ways by which a message reaches it.

Each way takes a message and returns what its client gets: the message or the header with the added
fields, or the fields that its protocol can express.
"""

import http.client
import json
import re
import shutil
import smtplib
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from support import exim, postfix, sendmail
from support.cli import forked
from support.clients import SPAMC
from support.daemon import serve
from support.exim import AskingExim
from support.filtering import PATIENT
from support.imap_rig import ImapRig
from support.opensmtpd_process import Process, message
from support.postfix import Rig, free_ports
from support.sendmail import Sendmail
from support.sink import Sink
from support.waiting import LIMIT_S, until

HOST = "mx.example.org"
TOML = """
[serve]
user = "root"
workers = 1
[local]
hosts = ["{host}"]
[actions]
junk = "tag"
reject = "tag"
[listener.smtp]
address = "127.0.0.1:{smtp}"
upstream = "{sink}"
[listener.lmtp]
address = "lmtp:127.0.0.1:{lmtp}"
upstream = "lmtp:{sink}"
[listener.milter]
protocol = "milter"
address = "127.0.0.1:{milter}"
[listener.scanner]
protocol = "scanner"
address = "127.0.0.1:{scanner}"
"""
MAILBOX = 'act = "nothing"\n'
SENDER, RECIPIENT = "stranger@example.net", "alice@example.org"


class Site:
    """The daemon, and the mail servers that can run here."""

    def __init__(self, folder, home):
        self.home, self.config = folder / "home", folder / "spamnb.toml"
        shutil.copytree(home, self.home, ignore=shutil.ignore_patterns("*.sock"))
        self.port = dict(zip(("smtp", "lmtp", "milter", "scanner"), free_ports(4), strict=True))
        self.sink = Sink()
        self.config.write_text(TOML.format(host=HOST, sink=self.sink.address, **self.port))
        self.servers = {}
        self.verdicts = {}
        """message -> the first verdict on it, if `spamnb score` gives none"""
        self.reasons = {}
        """message -> the reason that its first verdict names"""
        self.subjects = {}
        """message -> its first marked subjects"""
        self.sessions = 0
        """of OpenSMTPD"""
        self._filter = None
        self.mailbox = None
        """in a real Dovecot"""
        if not postfix.why_not():
            self._dovecot = ImapRig()
            self.mailbox = self._dovecot.mailbox()
            self.mailbox.settings(folder, more=MAILBOX)
        self.daemon = serve(folder, config=self.config)

    def opensmtpd(self):
        """The process that OpenSMTPD starts; it runs from the first use on."""
        if self._filter is None:
            address = f"127.0.0.1:{self.port['scanner']}"
            self._filter = Process(address, "--deadline", 280).__enter__()
        return self._filter

    def start(self):
        """Start all of it."""
        self.daemon.ready()
        if not postfix.why_not():
            self.servers["Postfix"] = self._postfix()
        if not sendmail.why_not():
            self.servers["Sendmail"] = Sendmail()
            self.servers["Sendmail"].port["filter"] = self.port["milter"]
        if not exim.why_not_scanning():
            for name in ("spamd", "rspamd"):
                self.servers[f"Exim, {name}"] = one = AskingExim(f"protocol of {name}")
                one.port["filter"], one.socket = self.port["scanner"], ""
        for server in self.servers.values():
            server.start()

    def _postfix(self):
        """Postfix with the milter, which passes messages on as they are."""
        rig = Rig()
        rig.master = f"127.0.0.1:{rig.port['mx']} inet n - n - - smtpd\n"
        rig.main += (
            f"smtpd_milters = inet:127.0.0.1:{self.port['milter']}\n"
            f"virtual_transport = smtp:{self.sink.address}\n"
            "smtp_line_length_limit = 0\ndisable_mime_output_conversion = yes\n"
        )
        return rig

    @property
    def programs(self):
        """What can run here; "" stands for the daemon alone."""
        others = {"spamc": SPAMC, "Dovecot": self.mailbox}
        return {"", *self.servers, *(name for name, found in others.items() if found)}

    def stop(self):
        """End all of it."""
        if self._filter is not None:
            self._filter.__exit__()
        self.daemon.__exit__()
        if self.mailbox:
            self.mailbox.imap.logout()
            self._dovecot.stop()
        for server in self.servers.values():
            server.stop()
        self.sink.close()


def _relayed(sink, send):
    """The message that the next hop gets."""
    before = len(sink.messages)
    send()
    until(lambda: len(sink.messages) > before, what="the next hop's message")
    return re.sub(rb"(?m)^\.", b"", sink.messages[-1])


def by_smtp(site, raw):
    with smtplib.SMTP("127.0.0.1", site.port["smtp"], timeout=LIMIT_S) as client:
        return _relayed(site.sink, lambda: client.sendmail(SENDER, [RECIPIENT], _wire(raw)))


def by_lmtp(site, raw):
    with smtplib.LMTP("127.0.0.1", site.port["lmtp"], timeout=LIMIT_S) as client:
        return _relayed(site.sink, lambda: client.sendmail(SENDER, [RECIPIENT], _wire(raw)))


def by_postfix(site, raw):
    server = site.servers["Postfix"]
    return _relayed(site.sink, lambda: server.send(_wire(raw), [RECIPIENT]))


def by_sendmail(site, raw):
    server = site.servers["Sendmail"]
    return _relayed(server.sink, lambda: server.send(raw, [RECIPIENT]))


def by_exim(name, site, raw):
    server = site.servers[name]
    before = server.delivered("alice", "")
    server.send(raw, [RECIPIENT])
    until(lambda: len(server.delivered("alice", "")) > len(before), what="Exim's delivery")
    (found,) = [one for one in server.delivered("alice", "") if one not in before]
    return found


def by_spamc(option, site, raw):
    command = [SPAMC, "-d", "127.0.0.1", "-p", str(site.port["scanner"]), "-x", *option]
    return subprocess.run(
        command, input=raw, capture_output=True, check=True, timeout=LIMIT_S
    ).stdout


def by_rspamd(site, raw):
    found = json.loads(_posted(site, "/checkv2", raw))["milter"]["add_headers"]
    return _as_fields((name, field["value"]) for name, field in found.items())


def by_own_path(query, site, raw):
    return _posted(site, f"/v1/message{query}", raw)


def by_old_rspamc(site, raw):
    with socket.create_connection(("127.0.0.1", site.port["scanner"]), LIMIT_S) as client:
        client.sendall(b"CHECK RSPAMC/1.3\r\nContent-length: %d\r\n\r\n" % len(raw) + raw)
        reply = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
    spam, score = re.search(r"Metric: default; (\w+); (\S+) / 5.0", reply).groups()
    flag = {"True": "YES", "False": "NO"}[spam]
    return _as_fields([("X-Spam-Flag", flag), ("X-Spam-Score", score)])


def by_filter(site, raw):
    return _filtered(site, raw, f"127.0.0.1:{site.port['scanner']}")


def by_filter_alone(site, raw):
    return _filtered(site, raw, site.home / "no daemon listens here")


def by_imap(site, raw):
    """A mailbox on a server: no command adds to a message, or removes anything from it."""
    before = len(site.daemon.logged("imap"))
    site.mailbox.append(_wire(raw))
    (record,) = until(lambda: site.daemon.logged("imap")[before:], what="the mailbox's reader")
    assert record["done"] == "judged", record
    return _as_fields(())


def by_opensmtpd(site, raw):
    site.sessions += 1
    session = b"S%d" % site.sessions
    running = site.opensmtpd()
    running.send(message(session, raw))
    lines = running.wait_for(session).removesuffix(b".")
    return re.sub(rb"(?m)^\.", b"", lines)


def _filtered(site, raw, place):
    where = ("--config", site.config, "filter", *PATIENT, "-U", place)
    done = forked(site.home, *where, stdin=raw)
    assert (done.code, done.err) == (0, "")
    return done.out.encode(errors="surrogateescape")


def _posted(site, path, raw):
    client = http.client.HTTPConnection("127.0.0.1", site.port["scanner"], timeout=LIMIT_S)
    try:
        client.request("POST", path, raw)
        return client.getresponse().read()
    finally:
        client.close()


def _wire(raw):
    """The message with the line ends of SMTP."""
    return raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _as_fields(fields):
    return "".join(f"{name}: {value}\n" for name, value in fields).encode() + b"\n"


BY_SMTP = frozenset(("bare CR",))
"""shapes that a relay changes before they are scanned"""
BY_MTA = BY_SMTP | {
    "body at once", "dot in the header", "first line continues", "forged first line",
    "line that is no field",
}  # fmt: skip
"""shapes that an MTA changes before they are scanned: it ends the header at such a line"""
BY_DOVECOT = BY_SMTP | {"NUL", "forged first line"}
"""Dovecot changes the first two; the third stays a part of the message, as in `spamnb score`"""
NO_IDENTITY = frozenset(("no header", "body at once"))
"""the IMAP reader distinguishes messages by their header, so it needs one"""
SPAMC_HEADERS = frozenset(("no body", "no header", "body at once", "NUL"))
"""spamc looks for the blank line of the message itself: without one it prints the message as it
was, and of a message that begins with one it prints what follows the next one; it loses NULs"""
ALL, FEW, NONE = None, ("X-Spam-Flag", "X-Spam-Score"), ()


@dataclass(frozen=True)
class Way:
    """A way, and its differences from the others."""

    ask: Callable[..., bytes]
    needs: str = ""
    """the program"""
    changed: frozenset[str] = frozenset()
    """shapes with another verdict, because the way changes the message"""
    without: frozenset[str] = frozenset()
    """shapes that the program does not send, or gives back unmarked"""
    names: tuple[str, ...] | None = ALL
    """of the fields that the client gets"""
    whole: bool = True
    """whether the client gets the message as it was scanned"""
    tags: bool = True
    """whether it gets the marked subject"""


BY_EXIM = partial(
    Way,
    changed=BY_MTA | {"mbox line"},
    without=frozenset(("forged name with a low line",)),
    names=FEW,
    tags=False,
)
WAYS = {
    "SMTP": Way(by_smtp, changed=BY_SMTP),
    "LMTP": Way(by_lmtp, changed=BY_SMTP),
    "milter, Postfix": Way(by_postfix, "Postfix", changed=BY_MTA),
    "milter, Sendmail": Way(by_sendmail, "Sendmail", changed=BY_MTA, without=BY_SMTP, whole=False),
    "Exim, spamd": BY_EXIM(partial(by_exim, "Exim, spamd"), "Exim, spamd"),
    "Exim, rspamd": BY_EXIM(partial(by_exim, "Exim, rspamd"), "Exim, rspamd", names=ALL),
    "spamc": Way(partial(by_spamc, ()), "spamc"),
    "spamc --headers": Way(partial(by_spamc, ("--headers",)), "spamc", without=SPAMC_HEADERS),
    "rspamd": Way(by_rspamd, whole=False, tags=False),
    "rspamc, old": Way(by_old_rspamc, names=FEW, whole=False, tags=False),
    "spamnb filter": Way(by_filter),
    "spamnb filter, alone": Way(by_filter_alone),
    "IMAP": Way(
        by_imap,
        "Dovecot",
        changed=BY_DOVECOT,
        without=NO_IDENTITY,
        names=NONE,
        whole=False,
        tags=False,
    ),
    "spamnb opensmtpd": Way(by_opensmtpd),
    "/v1/message": Way(partial(by_own_path, ""), whole=False),
    "/v1/message?full=1": Way(partial(by_own_path, "?full=1")),
}
