"""A home that a release made, with the answers of that release about it.

`python tests/support/release_home.py` (with `tests` and the project in PYTHONPATH) makes the home
of the present version in tests/golden/homes. After a change of the format, the home of a version
without a tag is made again; the home of a tagged version never changes.
tests/golden/test_upgrade.py upgrades each home.
"""

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from spamnb import __version__
from support.cli import PROJECT, SAMPLE, forked
from support.console import KEEP_ALL, Api, console, token, trained_home
from support.daemon import NO_DELIVERY, send, settings_in
from support.sink import Sink

HOMES = PROJECT / "tests" / "golden" / "homes"
MORE = """
[persons]
enabled = true
[store]
limit_bytes = 100_000_000
[local]
hosts = ["mx.example.net"]
[ham_loss]
one_in = 500
"""
MAIL = [f"mail/{label}.{number}.eml" for label in ("ham", "spam") for number in (31, 32)]
QUESTIONS = {
    "export": ("export",),
    "journal": ("journal", "--json", "--limit", "0"),
    "history": ("history", "--json", "--limit", "0"),
    "persons": ("persons", "list", "--json"),
    "senders": ("senders", "list", "--json"),
    "quarantine": ("quarantine", "list", "--json"),
    "review": ("review", "list", "--json"),
    "tokens": ("token", "list", "--json"),
    "score": ("score", "--json", "--clues", "5", *MAIL),
    "ann": ("score", "--json", "--person", "ann@example.org", *MAIL),
    "explain": ("explain", "--json", MAIL[3]),
}
"""what an administrator asks of a home; the answers stay the same after an upgrade"""


class Home:
    """A folder with a home, its settings, and mail that it has not learnt."""

    def __init__(self, folder):
        self.folder = folder

    @property
    def answers(self):
        """The answers of the release that made the home."""
        return json.loads((self.folder / "answers.json").read_text())

    def run(self, *arguments, **variables):
        """Run a command of this source; its output."""
        where = ["--config", self.folder / "spamnb.toml", *arguments]
        done = forked(self.folder / "home", *where, cwd=self.folder, **variables)
        assert done.code == 0, (arguments, done.err)
        return done.out

    def ask(self, question):
        return self.run(*QUESTIONS[question])

    def lines(self, question):
        return [json.loads(line) for line in self.ask(question).splitlines()]


def make(folder):
    """Make a home with an example of everything that a daemon stores."""
    (folder / "mail").mkdir()
    for name in MAIL:
        label, number, _ = Path(name).name.split(".")
        (folder / name).write_bytes((SAMPLE / label / f"{int(number):04}.eml").read_bytes())
    trained_home(folder)
    home = Home(folder)
    sink = Sink()
    with console(folder, **settings(sink)) as (daemon, address):
        home.run("correct", "spam", MAIL[0])
        home.run("correct", "--person", "ann@example.org", "ham", MAIL[3])
        home.run("senders", "add", "--person", "ann@example.org", "wanted", "news@example.com")
        home.run("undo", "7", "--yes")
        home.run("forget", SAMPLE / "ham" / "0003.eml")
        send(daemon.port(), "a message that waits in quarantine")
        alice = Api(address, token(folder / "home", "alice", "teach", user="alice@example.org"))
        waiting = alice.post("/teach", b"Subject: x\r\n\r\nhello\r\n", label="spam")
        assert waiting.status == 202, waiting
        home.run("score", "--remember", MAIL[1])
    sink.close()
    home.run("compact")
    settings_in(folder, **NO_DELIVERY, user="", more=KEEP_ALL + MORE)


def settings(sink):
    """The settings of the home with a next hop."""
    upstream = f'upstream = "{sink.address}"'
    return {"delivery": "", "listener": upstream, "more": KEEP_ALL + MORE}


def pack(folder, answers, path):
    """Write the home and the answers to an archive, without names of this machine."""
    (folder / "answers.json").write_text(json.dumps(answers, indent=1))
    kept = ("answers.json", "home", "mail", "spamnb.toml")

    def anonymous(member):
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        is_left_out = member.isfifo() or member.name.endswith((".lock", ".sock", "lock.mdb"))
        return None if is_left_out else member

    with tarfile.open(path, "w:gz") as archive:
        for name in kept:
            archive.add(folder / name, name, filter=anonymous)


def main():
    path = HOMES / f"{__version__}.tar.gz"
    if path.exists():
        sys.exit(f"{path} exists; delete it if that version has no tag yet")
    HOMES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.chdir(folder)
        make(folder)
        pack(folder, {name: Home(folder).ask(name) for name in QUESTIONS}, path)


if __name__ == "__main__":
    main()
