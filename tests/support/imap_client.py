"""The reader of a mailbox on the scripted server, with a model in a file."""

import re

from spamnb.errors import SpamnbError
from spamnb.feedback.values import Answer
from spamnb.imap.client import StopSignal
from spamnb.imap.sync import AccountReader, ImapPlan, ImapPorts, MailboxState
from spamnb.policy.headers import ScanVerdict
from spamnb.settings.values import ImapParams, ImapTimes

WAYS = {"move": "", "copy": "MOVE", "flag": "MOVE,UIDPLUS"}
"""method of filing junk -> what the server hides to cause this method"""
TIMES = ImapTimes(step_s=20.0, command_s=60.0)


def ident_of(raw):
    return re.search(rb"<(.*?)>", raw)[1].decode()


def verdict_of(raw):
    """A message is junk if its body has the word spam."""
    junk = b"spam" in raw.partition(b"\r\n\r\n")[2]
    return ScanVerdict(
        label="spam" if junk else "ham",
        probability=float(junk),
        log_odds=0.0,
        decision="junk" if junk else "deliver",
    )


class _Stop(StopSignal):
    def __init__(self, box):
        super().__init__()
        self._box = box

    def wait(self, seconds):
        if self._box.waited:
            self._box.waited()
        return super().wait(min(seconds, 0.05))


class Reader:
    """An account with its home; each label is a line in a file, as durable as the model's."""

    def __init__(self, server, user, folder, times=TIMES):
        self.server, self.user, self.home, self.times = server, user, folder, times
        password = folder / "password"
        password.write_text("secret\n")
        password.chmod(0o600)
        self.params = ImapParams(
            host="127.0.0.1", port=server.port, tls="none", user=user, password_file=str(password)
        )
        self.existing = False
        self.waited = None
        """what another program does while the reader waits"""
        self.judged, self.reports, self.troubles, self.read = [], [], [], []
        self.stop = _Stop(self)

    def ask(self, method, *arguments):
        return self.server.ask(self.user, method, *arguments)

    def account(self):
        ports = ImapPorts(self.judge, self.label_of, self.teach, self.reports.append)
        plan = ImapPlan(self.home, ports, self.trouble, self.read.append, self.existing, self.times)
        return AccountReader("box", self.params, plan, self.stop)

    def once(self):
        self.account().once()

    def close(self):
        self.stop.close()

    def trouble(self, *facts):
        self.troubles.append(facts)

    def judge(self, raws, _):
        self.judged += map(ident_of, raws)
        return [verdict_of(raw) for raw in raws]

    def teach(self, feedback):
        assert (feedback.user, feedback.channel) == (self.user, "imap")
        with (self.home / "labels").open("a") as file:
            file.write(f"{ident_of(feedback.raw)} {feedback.label}\n")
        return Answer("learnt")

    def labels(self):
        """What was learnt, in order."""
        path = self.home / "labels"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(line.split()) for line in lines]

    def label_of(self, raw, _):
        return dict(self.labels()).get(ident_of(raw))

    def known(self):
        """How many messages are in each state."""
        state = MailboxState.open(self.home, "box", self.params.place)
        try:
            return state.counts()
        finally:
            state.close()


def begin(box):
    """A first run with old mail; then new mail."""
    box.ask("add", "old", "INBOX", "spam")
    box.ask("add", "filed", "Junk", "by the server")
    box.once()
    for name in ("spam1", "ham1", "spam2", "ham2"):
        box.ask("add", name, "INBOX", name)


def handled(way):
    """Where messages are when all is done."""
    if way == "flag":
        return {"INBOX": ["old", "spam1!", "ham1", "spam2!", "ham2"], "Junk": ["filed"]}
    return {"INBOX": ["old", "ham1", "ham2"], "Junk": ["filed", "spam1", "spam2"]}


def places(box):
    found = box.ask("dump")
    return {name: found[name] for name in ("INBOX", "Junk")}


def user_moves(box):
    """What the user does after that."""
    box.ask("move", "ham1", "INBOX", "Junk")
    box.ask("move", "filed", "Junk", "Work")
    box.ask("move", "ham2", "INBOX", "Trash")
    box.ask("move", "spam1", "Junk", "INBOX")
    box.ask("move", "spam2", "Junk", "Trash")


MOVED = [("filed", "ham"), ("ham1", "spam"), ("spam1", "ham")]


def until_done(box):
    """Repeat runs until one succeeds, as a service does; return how many failed."""
    for failures in range(20):
        try:
            box.once()
        except SpamnbError:
            continue
        return failures
    raise AssertionError("no run succeeds")
