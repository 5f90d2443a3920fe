"""A real Postfix with real verifiers around the daemon, in each place of the documentation."""

import json
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from spamnb.mail.envelope import LocalHosts
from support.docs_snippets import changed, snippet
from support.forged_results import DOMAIN, SITE
from support.postfix import Daemon, Rig, free_ports, started
from support.verifiers import opendkim, opendmarc, public_key, rspamd_milter

BORDER, OPENDKIM, OPENDMARC, RSPAMD, FILTER = (
    f"inet:127.0.0.1:{port}" for port in (10024, 8891, 8893, 11332, 10025)
)
ZONE = {f"s1._domainkey.{DOMAIN}": public_key()}
POLICY = f"""
smtpd_sender_restrictions = check_sender_access inline:{{{{ {DOMAIN} =
    PREPEND Authentication-Results: {SITE}; spf=pass smtp.mailfrom={DOMAIN} }}}}
"""
"""Postfix in place of a policy service that checks SPF"""
ALLOWED = """
[rules]
allow = "{allow}"
"""


class Place(NamedTuple):
    """Where spamnb and the verifiers are."""

    way: str
    """milter, after, before, lmtp"""
    milters: tuple[str, ...] = ()
    """of the server that strangers connect to, in order"""
    back: tuple[str, ...] = ()
    """of the server that spamnb returns mail to"""
    policy: bool = False
    is_late: bool = False
    """whether the verifiers come after the scan"""


OPEN = (OPENDKIM, OPENDMARC)
PLACES = {
    "milter": Place("milter", (BORDER, *OPEN, FILTER)),
    "milter, rspamd": Place("milter", (BORDER, RSPAMD, FILTER)),
    "milter in front of the verifiers": Place("milter", (BORDER, FILTER, *OPEN), is_late=True),
    "milter in front of rspamd": Place("milter", (BORDER, FILTER, RSPAMD), is_late=True),
    "after the queue": Place("after", (BORDER, *OPEN)),
    "after the queue, without a border": Place("after", OPEN),
    "after the queue, rspamd": Place("after", (BORDER, RSPAMD)),
    "lmtp": Place("lmtp", (BORDER, *OPEN)),
    "lmtp, rspamd": Place("lmtp", (BORDER, RSPAMD)),
    "before the queue": Place("before", policy=True),
    "before the queue and the verifiers": Place("before", back=OPEN, is_late=True),
}
UNPROVEN = {
    "milter without a border": Place("milter", (*OPEN, FILTER)),
    "rspamd without a border": Place("after", (RSPAMD,)),
    "border after the verifiers": Place("milter", (*OPEN, BORDER, FILTER)),
}
"""places that the documentation warns of: nothing is believed there"""


class Site:
    """Postfix, Dovecot, the verifiers of a place and the daemon."""

    def __init__(self, place, folder):
        self.place, self.rig = place, Rig()
        port = self.rig.port
        (self.border,) = free_ports(1)
        self._stack = ExitStack()
        here = {
            "127.0.0.1:10024": f"127.0.0.1:{self.border}",
            "127.0.0.1:10025": f"127.0.0.1:{port['filter']}",
            "127.0.0.1:10026": f"127.0.0.1:{port['back']}",
        }
        self._here = here
        allow = folder / "allow"
        allow.write_text(f"domain {DOMAIN}\n")
        toml = self._settings() + ALLOWED.format(allow=allow)
        self.rig.daemon = Daemon(folder, toml.replace("{store}", socket.gethostname()))

    def _settings(self):
        section = "Results of authentication"
        host = f'hosts = ["{SITE}"]'
        local = changed(
            snippet("milter.md", section, "spamnb.toml"),
            {
                "127.0.0.1:10024": f"127.0.0.1:{self.border}",
                host: f'hosts = ["{SITE}", "{{store}}"]',
            },
        )
        file = {
            "milter": ("milter.md", "The listener"),
            "after": ("postfix.md", "After the queue"),
            "lmtp": ("postfix.md", "In front of an LMTP server"),
        }.get(self.place.way)
        if file is None:
            text = snippet("postfix.md", "After the queue", "spamnb.toml")
            text = changed(text, {'queue = "after"': 'queue = "before"'})
        else:
            text = snippet(*file, "spamnb.toml")
        lmtp = {"127.0.0.1:24": f"127.0.0.1:{self.rig.port['lmtp']}"}
        used = {old: new for old, new in {**self._here, **lmtp}.items() if old in text}
        return changed(text, used) + local

    def _port(self, milter):
        folder = Path(tempfile.mkdtemp(dir=self.rig.root))
        folder.chmod(0o755)
        if milter == BORDER:
            return self.border
        if milter == FILTER:
            return self.rig.port["filter"]
        run = {
            OPENDKIM: lambda: opendkim(folder, [DOMAIN, "evil.example"]),
            OPENDMARC: lambda: opendmarc(folder),
            RSPAMD: lambda: rspamd_milter(folder, ZONE),
        }[milter]
        return self._stack.enter_context(run())

    def _milters(self, names):
        return ",".join(f"inet:127.0.0.1:{self._port(name)}" for name in names)

    def _write(self):
        rig, place, port = self.rig, self.place, self.rig.port
        mx = {"smtp            inet": f"127.0.0.1:{port['mx']} inet"}
        rig.master = f"127.0.0.1:{port['mx']} inet n - n - - smtpd\n"
        rig.main = POLICY if place.policy else ""
        if place.way in ("after", "before"):
            name = "After the queue" if place.way == "after" else "Before the queue"
            front = {old: new for old, new in self._here.items() if old.endswith("10025")}
            front = (
                front
                if place.way == "before"
                else {"[127.0.0.1]:10025": f"[127.0.0.1]:{port['filter']}"}
            )
            rig.master = changed(snippet("postfix.md", name, "master.cf"), mx | front)
            back = {"127.0.0.1:10026": self._here["127.0.0.1:10026"]}
            text = changed(snippet("postfix.md", "The return listener", "master.cf"), back)
            if place.back:
                text = changed(
                    text,
                    {
                        "smtpd_milters=": f"smtpd_milters={self._milters(place.back)}",
                        ",no_milters": "",
                    },
                )
            rig.master += text
        if place.way == "lmtp":
            line = snippet("postfix.md", "In front of an LMTP server", "main.cf")
            rig.main += changed(line, {"127.0.0.1:10025": f"127.0.0.1:{port['filter']}"})
        if place.milters:
            rig.main += f"smtpd_milters = {self._milters(place.milters)}\n"

    @property
    def local(self):
        """The names of the site, as its settings have them."""
        return LocalHosts(hosts=(SITE, socket.gethostname()), authserv_ids=(SITE,))

    def history(self):
        """The stored verdicts."""
        lines = self.rig.daemon.spamnb("history", "--json", "--limit", "0").splitlines()
        return [json.loads(line) for line in lines]

    def __enter__(self):
        with ExitStack() as stack:
            stack.enter_context(self._stack)
            self._started = started(self.rig)
            rig = self.rig
            sample = Path(__file__).resolve().parents[2] / "corpora" / "sample"
            rig.daemon.spamnb("train", sample / "ham", sample / "spam")
            self._write()
            stack.enter_context(self._started)
            self._all = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._all.__exit__(*error)
