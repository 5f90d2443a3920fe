"""A small IMAP server whose users' names say how it fails: `u7;hide=MOVE,IDLE;cut=120`.

    hide=A,B      does not announce these
    cut=N         closes the user's first connection after N bytes
    drop=N        closes it before the Nth command is carried out
    lose=N        closes it after the Nth command was carried out, before its reply
    broken=N      cannot read the message with that UID in the inbox
    say=NAME      answers with this text of `SAYINGS`

It runs in a process of its own. `Server.ask` reads and changes mailboxes as other programs would.
"""

import base64
import json
import os
import re
import select
import signal
import socket
import threading
from contextlib import closing, suppress
from itertools import count

CAPABILITIES = "IMAP4rev1 SASL-IR IDLE MOVE UIDPLUS AUTH=PLAIN AUTH=XOAUTH2"
FLOOD = b"* OK nothing to do here\r\n" * 1000
SAYINGS = {
    "literal": ("UID FETCH", b"* 1 FETCH (UID 1 BODY[] {4294967296}\r\n"),
    "growing": ("UID FETCH", b"* 1 FETCH (UID 1 BODY[]<0> {1048576}\r\n" + b"x" * 65536),
    "line": ("UID SEARCH", b"* SEARCH " + b"1 " * (3 << 20)),
    "endless": ("LIST", b"* LIST (" + b"\\x " * (1 << 18)),
    "deep": ("LIST", b"* LIST " + b"(" * 1000 + b"\r\n"),
    "many": ("LIST", b'* LIST () "/" x\r\n' * 11_000),
    "words": ("LIST", b"hello, I am no IMAP server\r\n"),
    "tag": ("STATUS", b"s9999 OK done\r\n"),
    "bye": ("UID SEARCH", b"* BYE too many of you\r\n"),
    "number": ("UID SEARCH", b"* SEARCH 4294967296 -1\r\n"),
    "silence": ("UID SEARCH", None),
    "idle": ("IDLE", b"+ idling\r\n" + FLOOD * 100),
    "deaf": ("DONE", None),
    "others": ("UID FETCH", b'* 1 FETCH (UID 99 BODY[]<0> "x")\r\n* 2 FETCH (FLAGS ())\r\n'),
}


class Folder:
    def __init__(self, number):
        self.uidvalidity, self.next, self.messages = number, 1, {}

    def add(self, raw, flags=()):
        self.messages[self.next] = [raw, set(flags)]
        self.next += 1
        return self.next - 1


class Box:
    """A user's mailbox."""

    def __init__(self, user):
        self.options = dict(part.split("=") for part in user.split(";")[1:])
        self.folders = {
            name: Folder(n) for n, name in enumerate(("INBOX", "Junk", "Work", "Trash"))
        }
        self.connections, self.total = 0, 0
        self.lock = threading.RLock()

    def option(self, name):
        """A number that counts for the first connection only."""
        return int(self.options.get(name, 0)) if self.connections == 1 else 0

    def fail_next(self, name, number):
        """Make the next connection fail as the user's name says for the first one."""
        self.options[name], self.connections = number, 0

    def fill(self, count):
        """Deliver many messages."""
        for number in range(count):
            self.add(f"old-{number}", "INBOX", "spam")

    def commands(self):
        """How many commands were given."""
        return self.total

    def add(self, ident, folder, body):
        """Deliver a message."""
        text = f"Message-ID: <{ident}>\r\nFrom: a@example.org\r\nSubject: {ident}\r\n\r\n{body}\r\n"
        self.folders[folder].add(text.encode())

    def move(self, ident, source, target):
        """Move a message as another mail program."""
        found = self.folders[source].messages
        (uid,) = [uid for uid, (raw, _) in found.items() if f"<{ident}>".encode() in raw]
        self.folders[target].add(*found.pop(uid))

    def renew(self, folder):
        """Give all messages of a folder new UIDs."""
        old = self.folders[folder]
        self.folders[folder] = new = Folder(old.uidvalidity + 100)
        for raw, flags in old.messages.values():
            new.add(raw, flags)

    def rename(self, folder, name):
        self.folders[name] = self.folders.pop(folder)

    def dump(self):
        """The Message-IDs in each folder; with ! if it has a flag."""
        return {
            name: [
                re.search(rb"<(.*?)>", raw)[1].decode() + "!" * bool(flags)
                for raw, flags in folder.messages.values()
            ]
            for name, folder in self.folders.items()
        }


class CutError(Exception):
    """The connection ends here."""


class Conversation:
    """One connection."""

    def __init__(self, sock, boxes):
        self.sock, self.boxes, self.file = sock, boxes, sock.makefile("rb")
        self.box, self.selected, self.sent, self.commands = None, None, 0, 0
        self.seen = 0
        """the end of the selected folder when the client was told of it"""

    def run(self):
        with closing(self.sock), closing(self.file), suppress(CutError, OSError, ValueError):
            self.send(b"* OK ready\r\n")
            while line := self.file.readline():
                tag, _, rest = line.decode().strip().partition(" ")
                self.handle(tag, rest)

    def send(self, data):
        cut = self.box.option("cut") if self.box else 0
        if cut and self.sent + len(data) >= cut:
            self.sock.sendall(data[: cut - self.sent])
            raise CutError
        if self.box:
            self.sent += len(data)
        self.sock.sendall(data)

    def handle(self, tag, line):
        words = line.split(" ")
        name = " ".join(words[:2]).upper() if words[0].upper() == "UID" else words[0].upper()
        if name == "ADMIN":
            self.admin(json.loads(line.partition(" ")[2]))
            return
        if self.box:
            self.commands += 1
            self.box.total += 1
            if self.commands == self.box.option("drop"):
                raise CutError
            self.say(name)
        method = getattr(self, "do_" + name.replace(" ", "_").lower())
        free = not self.box or name == "IDLE"
        reply = method(line) if free else self.locked(method, line)
        if self.commands and self.commands == self.box.option("lose"):
            raise CutError
        self.send(f"{tag} {reply or 'OK done'}\r\n".encode())

    def locked(self, method, line):
        with self.box.lock:
            return method(line)

    def say(self, name):
        when, text = SAYINGS.get(self.box.options.get("say"), ("", b""))
        if when == name:
            if text is None:
                threading.Event().wait(3600)
            self.send(text)

    def admin(self, order):
        user, method, *arguments = order
        box = self.boxes.setdefault(user, Box(user))
        with box.lock:
            found = getattr(box, method)(*arguments)
        self.send(json.dumps(found).encode() + b"\n")

    # -- commands -------------------------------------------------------------------------------

    def do_capability(self, _):
        hidden = self.box.options.get("hide", "").split(",") if self.box else []
        words = [word for word in CAPABILITIES.split() if word not in hidden]
        self.send(f"* CAPABILITY {' '.join(words)}\r\n".encode())

    def do_authenticate(self, line):
        mechanism, encoded = [*line.split(), ""][1:3]
        if not encoded:
            self.send(b"+ \r\n")
            encoded = self.file.readline()
        text = base64.b64decode(encoded).decode()
        if mechanism == "XOAUTH2":
            user, password = re.fullmatch("user=(.*)\1auth=Bearer (.*)\1\1", text).groups()
        else:
            _, user, password = text.split("\0")
        if password != "secret" and mechanism == "XOAUTH2":
            self.send(b"+ eyJzdGF0dXMiOiI0MDEifQ==\r\n")
            assert self.file.readline() == b"\r\n"
        if password != "secret":
            return f"NO [AUTHENTICATIONFAILED] {password} is wrong"
        self.box = self.boxes.setdefault(user, Box(user))
        self.box.connections += 1
        return None

    def do_list(self, _):
        for name in self.box.folders:
            flags = "\\Junk" if name.startswith("Junk") else "\\HasNoChildren"
            self.send(f'* LIST ({flags}) "/" "{name}"\r\n'.encode())

    def do_status(self, line):
        folder = self.box.folders.get(line.split('"')[1])
        if folder is None:
            return "NO [NONEXISTENT] no such folder"
        self.send(
            f"* STATUS x (UIDVALIDITY {folder.uidvalidity + 1} UIDNEXT {folder.next})\r\n".encode()
        )
        return None

    def do_select(self, line):
        self.selected = self.box.folders[line.split('"')[1]]
        self.seen = self.selected.next
        self.send(
            f"* {len(self.selected.messages)} EXISTS\r\n"
            f"* OK [UIDVALIDITY {self.selected.uidvalidity + 1}] valid\r\n"
            f"* OK [UIDNEXT {self.selected.next}] next\r\n".encode()
        )

    do_examine = do_select

    def uids(self, text):
        """The UIDs of a set that exist."""
        found = []
        for part in text.split(","):
            first, _, last = part.partition(":")
            end = 1 << 32 if last == "*" else int(last or first)
            found += [uid for uid in self.selected.messages if int(first) <= uid <= end]
        return found

    def do_uid_search(self, line):
        found = self.uids(line.rpartition(" ")[2])
        self.seen = self.selected.next
        if "UNDELETED" in line:
            found = [uid for uid in found if "\\Deleted" not in self.selected.messages[uid][1]]
        self.send(f"* SEARCH {' '.join(map(str, found))}".rstrip().encode() + b"\r\n")

    def do_uid_fetch(self, line):
        whole, broken = "BODY.PEEK[]" in line, int(self.box.options.get("broken", 0))
        uids = self.uids(line.split(" ")[2])
        if whole and self.selected is self.box.folders["INBOX"] and broken in uids:
            return "NO the message is broken"
        for uid in uids:
            raw = self.selected.messages[uid][0]
            part = raw if whole else raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            section = b"" if whole else b"HEADER.FIELDS (MESSAGE-ID)"
            self.send(
                b"* 1 FETCH (UID %d BODY[%s]<0> {%d}\r\n%s)\r\n" % (uid, section, len(part), part)
            )
        return None

    def do_uid_move(self, line):
        for uid in self.uids(line.split(" ")[2]):
            self.target(line).add(*self.selected.messages.pop(uid))
            self.send(b"* 1 EXPUNGE\r\n")

    def do_uid_copy(self, line):
        for uid in self.uids(line.split(" ")[2]):
            self.target(line).add(*self.selected.messages[uid])

    def target(self, line):
        return self.box.folders[line.split('"')[1]]

    def do_uid_store(self, line):
        for uid in self.uids(line.split(" ")[2]):
            self.selected.messages[uid][1].add(line.rpartition("(")[2][:-1])

    def do_uid_expunge(self, line):
        for uid in self.uids(line.split(" ")[2]):
            if "\\Deleted" in self.selected.messages[uid][1]:
                del self.selected.messages[uid]

    def do_noop(self, _):
        pass

    def do_idle(self, _):
        if self.box.options.get("say") != "idle":
            self.send(b"+ idling\r\n")
        while not select.select([self.sock], [], [], 0.02)[0]:
            if self.selected.next != self.seen:
                self.seen = self.selected.next
                self.send(f"* {len(self.selected.messages)} EXISTS\r\n".encode())
        self.file.readline()
        self.say("DONE")

    def do_logout(self, _):
        self.send(b"* BYE\r\n")


class Server:
    """The server's process."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._names = count(1)
        self.pid = os.fork()
        if self.pid == 0:
            self._serve()
        self._socket.close()

    def _serve(self):
        boxes: dict[str, Box] = {}
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(BaseException):
            while True:
                sock, _ = self._socket.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=Conversation(sock, boxes).run, daemon=True).start()
        os._exit(0)

    def user(self, **options):
        """Return the name of a new user, for which the server fails in this way."""
        return ";".join([f"u{next(self._names)}", *(f"{k}={v}" for k, v in options.items())])

    def ask(self, user, method, *arguments):
        """Do something with a user's mailbox."""
        with (
            socket.create_connection(("127.0.0.1", self.port)) as sock,
            sock.makefile("rb") as file,
        ):
            file.readline()
            sock.sendall(b"x ADMIN " + json.dumps([user, method, *arguments]).encode() + b"\n")
            return json.loads(file.readline())

    def stop(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
