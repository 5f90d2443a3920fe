"""procmail, maildrop, getmail, fetchmail and mutt run the filter, as the documentation says."""

import os
import pty
import shutil
import subprocess
import sys

import pytest
from support.cli import ONE_HAM, ONE_SPAM, environment
from support.daemon import let_others_enter
from support.docs_snippets import changed, snippet
from support.filtering import LISTENER, daemon_in, short_home
from support.pop3 import pop3_server
from support.waiting import LIMIT_S, until

PAGE = "pipes.md"
MAILDROP = os.environ.get("MAILDROP") or shutil.which("maildrop")
HAM, SPAM = ONE_HAM.read_bytes(), ONE_SPAM.read_bytes()
FOLDERS = ("", ".Junk")
BREAKS = "#!/bin/sh\nhead -c 300\nexit 75\n"
"""a filter that writes a part of the message and fails"""


def needs(program):
    """Skip without a program."""
    return pytest.mark.skipif(not program, reason="it is not installed")


needs_procmail = needs(shutil.which("procmail"))
needs_maildrop = needs(MAILDROP)
needs_getmail = needs(shutil.which("getmail"))
needs_fetchmail = needs(shutil.which("fetchmail") and shutil.which("procmail"))
needs_mutt = needs(shutil.which("mutt"))


class User:
    """A user's home with a Maildir, and a path on which `spamnb` is the program."""

    def __init__(self, folder, model):
        self.home = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.program = f'#!/bin/sh\nexec {sys.executable} -m spamnb --home {model} "$@"\n'
        self.install(self.program)
        for name in FOLDERS:
            for sub in ("cur", "new", "tmp"):
                (folder / "Maildir" / name / sub).mkdir(parents=True)
        self.path = f"{self.bin}:/usr/bin:/bin"
        self.environment = environment(HOME=str(folder), PATH=self.path)

    def install(self, text):
        """Put a program in the place of spamnb."""
        (self.bin / "spamnb").write_text(text)
        (self.bin / "spamnb").chmod(0o755)

    def file(self, name, text):
        """Write a file that only the user may read."""
        path = self.home / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def give_away(self):
        """Let getmail, which delivers no mail as root, write the Maildir; its setting for that."""
        if os.geteuid() != 0:
            return ""
        let_others_enter(self.home)
        for path in (self.home / "Maildir", *self.home.glob("Maildir/*")):
            shutil.chown(path, "nobody")
        return "user = nobody"

    def mail(self, folder=""):
        """Read the delivered messages."""
        place = self.home / "Maildir" / folder
        return [path.read_bytes() for path in [*place.glob("new/*"), *place.glob("cur/*")]]

    def run(self, *command, stdin=b""):
        """Run a program; return its exit code."""
        done = subprocess.run(
            command, input=stdin, env=self.environment, cwd=self.home,
            capture_output=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
        print(command, done.stdout.decode(), done.stderr.decode())  # shown if the test fails
        return done.returncode


@pytest.fixture(scope="module")
def model(trained):
    """A home with a daemon, which has the listener of the page."""
    here = {"unix:/run/spamnb/scan.sock": "unix:{home}/scan.sock"}
    assert changed(snippet(PAGE, "The filter", "spamnb.toml"), here).endswith(
        LISTENER.removesuffix("{more}")
    )
    with short_home(trained) as home, daemon_in(home):
        yield home


@pytest.fixture
def user(model, tmp_path):
    """A user."""
    return User(tmp_path, model)


def is_marked(raw, flag, message):
    """Whether a message has its fields, and is whole; a delivery may add lines before it."""
    unified = raw.replace(b"\r\n", b"\n")
    return b"X-Spam-Flag: " + flag in unified and unified.rstrip().endswith(message.rstrip())


def text_of(raw):
    """Everything after the header, in which getmail moves lines."""
    return raw.partition(b"\n\n")[2].rstrip()


def filed(user):
    """Whether ham is in the inbox and spam in Junk, both marked."""
    [ham], [junk] = user.mail(), user.mail(".Junk")
    return is_marked(ham, b"NO", HAM) and is_marked(junk, b"YES", SPAM)


# --- procmail ------------------------------------------------------------------------------------


def procmailrc(user, part="~/.procmailrc: file spam"):
    """The user's file, after the lines that name the folders of the test."""
    head = f"HOME={user.home}\nPATH={user.path}\nDEFAULT=$HOME/Maildir/\n"
    return user.file("procmailrc", head + snippet(PAGE, "procmail", part))


@needs_procmail
def test_procmail_files_marked_mail(user):
    """Ham comes to the inbox, spam to Junk."""
    rc = procmailrc(user)
    assert [user.run("procmail", rc, stdin=mail) for mail in (HAM, SPAM)] == [0, 0]
    assert filed(user)


@needs_procmail
@pytest.mark.parametrize("program", [BREAKS, "", None], ids=["fails", "starts not", "is absent"])
def test_procmail_delivers_what_the_filter_did_not_pass(user, program):
    """If the filter fails, or cannot run, the message is delivered as it came."""
    rc = procmailrc(user)
    if program is None:
        (user.bin / "spamnb").unlink()
    else:
        user.install(program or "#!/absent\n")
    assert user.run("procmail", rc, stdin=SPAM) == 0
    assert user.mail() == [SPAM]


@needs_procmail
def test_procmail_tries_again_for_a_verdict(user):
    """With the second recipe, mail without a verdict stays with the mail server."""
    rc = procmailrc(user, "~/.procmailrc: only with a verdict")
    assert user.run("procmail", rc, stdin=HAM) == 0
    assert is_marked(*user.mail(), b"NO", HAM)
    user.install(user.program.replace("--home ", "--home /absent"))
    assert user.run("procmail", rc, stdin=SPAM) == 75
    assert len(user.mail()) == 1


# --- maildrop ------------------------------------------------------------------------------------


@needs_maildrop
def test_maildrop_files_marked_mail(user):
    """Ham comes to the inbox, spam to Junk; if the filter fails, the server tries again."""
    head = f'HOME="{user.home}"\nPATH="{user.path}"\nDEFAULT="$HOME/Maildir"\n'
    rc = user.file("mailfilter", head + snippet(PAGE, "maildrop", "~/.mailfilter"))
    libraries = os.environ.get("MAILDROP_LIBRARIES")
    if libraries:
        user.environment["LD_LIBRARY_PATH"] = libraries
    assert [user.run(MAILDROP, rc, stdin=mail) for mail in (HAM, SPAM)] == [0, 0]
    assert filed(user)
    user.install(BREAKS)
    assert user.run(MAILDROP, rc, stdin=SPAM) == 75
    assert filed(user)


# --- getmail and fetchmail -----------------------------------------------------------------------


GETMAILRC = """
[retriever]
type = SimplePOP3Retriever
server = 127.0.0.1
port = {port}
username = alice
password = secret
timeout = 20
[destination]
type = Maildir
path = {home}/Maildir/
{owner}
[options]
delete = true
{section}
allow_root_commands = true
"""


@needs_getmail
def test_getmail_marks_mail_and_leaves_what_fails(user):
    """Both messages come marked; what the filter does not pass stays on the server.

    If a child of getmail 6.18 ends before getmail waits for it, getmail waits for its timeout and
    ends; it delivers the message again at its next start.
    """
    section = snippet(PAGE, "getmail", "~/.config/getmail/getmailrc")
    section = changed(section, {"/usr/local/bin/spamnb": user.bin / "spamnb"})
    with pop3_server(HAM, SPAM) as server:
        values = {"port": server.server_address[1], "home": user.home, "owner": user.give_away()}
        rc = user.file("getmailrc", GETMAILRC.format(section=section, **values))
        command = ["getmail", f"--getmaildir={user.home}", f"--rcfile={rc}"]

        def fetch():
            user.run(*command)
            return server.mailbox == []

        until(fetch, "the mail")
        for flag, message in ((b"NO", HAM), (b"YES", SPAM)):
            found = [raw for raw in user.mail() if b"X-Spam-Flag: " + flag in raw]
            assert {text_of(raw) for raw in found} == {text_of(message)}
        server.mailbox = [b"Subject: stays\r\n\r\ntext\r\n"]
        user.install(BREAKS)
        assert not fetch()
        user.install(user.program.replace("--home ", "--home /absent"))
        until(fetch, "the mail")
        assert any(b"unscanned; reason=model" in raw for raw in user.mail())


@needs_fetchmail
def test_fetchmail_delivers_by_procmail(user):
    """Mail is filed; without the filter it comes as it is; if procmail fails, it stays."""
    rc = procmailrc(user)
    with pop3_server(HAM, SPAM) as server:
        changes = {
            "pop.example.org": f"127.0.0.1 port {server.server_address[1]}",
            "/usr/bin/procmail": f"{shutil.which('procmail')} {rc}",
        }
        text = changed(snippet(PAGE, "fetchmail", "~/.fetchmailrc"), changes)
        command = ["fetchmail", "--nosyslog", "-f", user.file("fetchmailrc", text)]
        command += ["--pidfile", user.home / "pid", "--auth", "password", "--sslproto", ""]
        assert user.run(*command) == 0
        assert server.mailbox == []
        assert filed(user)
        server.mailbox = [b"Subject: stays\r\n\r\ntext\r\n"]
        procmailrc(user, "~/.procmailrc: only with a verdict")
        user.install(BREAKS)
        user.run(*command)
        assert len(server.mailbox) == 1


# --- mutt ----------------------------------------------------------------------------------------


@needs_mutt
@pytest.mark.parametrize(
    ("key", "label", "start", "end"), [("S", "spam", "", ".Junk"), ("H", "ham", ".Junk", "")]
)
def test_mutt_teaches_and_moves(user, model, key, label, start, end):
    """One key teaches the message in its whole, and moves it."""
    raw = b"Message-ID: <" + key.encode() + b"@a.example>\nSubject: plums\n\nfresh\n"
    (user.home / "Maildir" / start / "new" / "1.host").write_bytes(raw)
    text = f"set folder={user.home}/Maildir\nset mbox_type=Maildir\nset spoolfile=+\nset quit=yes\n"
    text += "set delete=yes\nset confirmappend=no\nset confirmcreate=no\nset move=no\n"
    rc = user.file("muttrc", text + snippet(PAGE, "mutt", "~/.muttrc"))
    command = ["mutt", "-n", "-F", str(rc), "-f", f"={start}", "-e", f"push {key}<quit>"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(user.home)
        os.execvpe("mutt", command, user.environment | {"TERM": "xterm"})
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:
        pass  # its end
    os.waitpid(pid, 0)
    assert [b"plums" in one for one in user.mail(end)] == [True], shown
    assert user.mail(start) == []
    journal = subprocess.run(
        [user.bin / "spamnb", "journal", "--limit", "1", "--json"],
        capture_output=True, env=user.environment, check=True,
    )  # fmt: skip
    assert f'"{label}"'.encode() in journal.stdout
