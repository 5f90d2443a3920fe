"""A real Dovecot on loopback with one user for each test, and the settings of `spamnb imap`."""

import contextlib
import imaplib
import os
import re
import shutil
import signal
import subprocess
from email.utils import make_msgid
from itertools import count
from pathlib import Path

from support import dovecot_versions
from support.cli import SAMPLE
from support.postfix import Rig
from support.waiting import until

imaplib.Commands.setdefault("MOVE", ("SELECTED",))
FULL = "IMAP4rev1 SASL-IR LITERAL+ ID ENABLE IDLE SPECIAL-USE LIST-EXTENDED MOVE UIDPLUS UNSELECT"
_NUMBERS = count(1)
USERS = 60


def capabilities(*hidden):
    """What the server announces, without some of it."""
    return " ".join(word for word in FULL.split() if word not in hidden)


class ImapRig:
    """Dovecot without Postfix."""

    def __init__(self, *hidden, tls=None, tokens=""):
        """With `tokens`, the address of a server that knows access tokens, XOAUTH2 is a login."""
        self.rig = Rig()
        root = self.rig.root
        for sub in ("mail", "dovecot/run"):
            (root / sub).mkdir(parents=True)
        shutil.chown(root / "mail", "mail", "mail")
        uid = root.joinpath("mail").stat()
        values = self.rig.port | {"root": root, "uid": uid.st_uid, "gid": uid.st_gid}
        text = dovecot_versions.settings(**values)
        text += f"protocol imap {{\n  imap_capability = {capabilities(*hidden)}\n}}\n"
        if tls:
            text = text.replace("ssl = no", dovecot_versions.tls(*tls))
            port = f"port = {self.rig.port['post']}\n    ssl = yes"
            text = text.replace("port = 0", port)
        if tokens:
            text = text.replace("plain login", "plain login xoauth2")
            lines = ("driver = oauth2", "mechanisms = xoauth2", f"args = {root}/tokens")
            text += "passdb {\n" + "\n".join(lines) + "\n}\n"
            (root / "tokens").write_text(
                f"introspection_url = {tokens}/?token=\nintrospection_mode = get\n"
                "username_attribute = user\nactive_attribute = active\nactive_value = true\n"
            )
        (root / "dovecot/dovecot.conf").write_text(text)
        users = "".join(f"user{n}:{{PLAIN}}pw-user{n}::::::\n" for n in range(1, USERS))
        (root / "dovecot/users").write_text(users)
        self.rig.start_dovecot()
        until(lambda: self.rig.answers("imap"), what="Dovecot")
        self.port = self.rig.port["imap"]

    def port_of(self, tls):
        """The port for a kind of encryption."""
        return self.rig.port["post"] if tls == "implicit" else self.port

    def mailbox(self):
        """A new user's mailbox."""
        return Mailbox(self.port, f"user{next(_NUMBERS)}")

    def stop(self):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, TypeError):
            pid = self.rig.dovecot_pid()
            os.kill(pid, signal.SIGTERM)
            until(lambda: not Path(f"/proc/{pid}").exists(), what="Dovecot's end")
        shutil.rmtree(self.rig.root)


class Mailbox:
    """A user's mailbox, as a mail program sees it."""

    def __init__(self, port, user):
        self.port, self.user = port, user
        self.imap = imaplib.IMAP4("127.0.0.1", port)
        self.imap.login(user, f"pw-{user}")

    def append(self, raw, folder="INBOX"):
        """Deliver a message."""
        assert self.imap.append(folder, None, None, raw)[0] == "OK"

    def messages(self, folder="INBOX"):
        """The Message-IDs in a folder, in order."""
        state, (size,) = self.imap.select(folder, readonly=True)
        assert state == "OK"
        if size == b"0":
            return []
        found = self.imap.fetch("1:*", "(BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)])")[1]
        self.imap.unselect()
        fields = [one[1] for one in found if isinstance(one, tuple)]
        return [re.search(rb"<(.*)>", field)[1].decode() for field in fields]

    def move(self, ident, source, target):
        """Move a message as a mail program does."""
        self.imap.select(source)
        assert self.imap._simple_command("MOVE", self._number(ident), target)[0] == "OK"
        self.imap.unselect()

    def flag(self, ident, flag):
        """Set a flag of a message in the inbox."""
        self.imap.select("INBOX")
        self.imap.store(self._number(ident), "+FLAGS", f"({flag})")
        self.imap.unselect()

    def flags(self, ident):
        """The flags of a message in the inbox."""
        self.imap.select("INBOX", readonly=True)
        (found,) = self.imap.fetch(self._number(ident), "(FLAGS)")[1]
        self.imap.unselect()
        return re.search(r"FLAGS \((.*?)\)", str(found))[1].split()

    def _number(self, ident):
        found = self.imap.search(None, "HEADER", "Message-ID", ident)[1][0].split()
        assert len(found) == 1, (ident, found)
        return found[0].decode()

    def settings(self, folder, name="box", more=""):
        """Write settings for it; returns the file."""
        password = folder / f"{self.user}.password"
        password.write_text(f"pw-{self.user}\n")
        password.chmod(0o600)
        file = folder / "spamnb.toml"
        text = file.read_text() if file.exists() else ""
        file.write_text(
            f'{text}[imap.{name}]\nhost = "127.0.0.1"\nport = {self.port}\ntls = "none"\n'
            f'user = "{self.user}"\npassword_file = "{password}"\n{more}'
        )
        return file


def sample(label, number):
    """A message of the sample that no other test has."""
    files = sorted((SAMPLE / label).iterdir())
    raw = files[number % len(files)].read_bytes().replace(b"\r\n", b"\n")
    ident = make_msgid(domain="imap.example")
    raw = re.sub(rb"(?im)^message-id:.*\n(?:[ \t].*\n)*", b"", raw, count=1)
    return f"Message-ID: {ident}\n".encode() + raw, ident.strip("<>")


def certificate(folder):
    """Make a self-signed certificate for localhost."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key
