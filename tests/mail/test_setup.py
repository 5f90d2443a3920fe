"""`spamnb setup` on a machine with a real Postfix and a real Dovecot."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support import dovecot_versions
from support.cli import forked
from support.docs_snippets import snippet
from support.dovecot import Person
from support.imap_rig import ImapRig, sample
from support.postfix import PROJECT, needs_rig
from support.setup_site import Site, done_by
from support.waiting import LIMIT_S, until

from spamnb.errors import UserError
from spamnb.setup import dovecot, postfix
from spamnb.setup import run as module
from spamnb.setup.edits import blocks, without_blocks

pytestmark = needs_rig


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("setup"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def _as_before(request):
    """Each test leaves the machine as it was."""
    if "site" not in request.fixturenames:
        yield
        return
    there = request.getfixturevalue("site")
    before = there.files()
    yield
    there.setup("--remove")
    assert there.files() == before


def test_from_bare_to_filed_and_taught(site):
    """Mail is scanned and filed, a move teaches, and removing leaves no byte."""
    before = site.files()
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))
    output = done_by(site.setup("--yes", "--answer", "act=file"))
    assert "Done. Next:" in output
    spam = site.send("spam")
    assert b"X-Spam-Flag: YES" in site.arrives(spam, ".Junk")
    assert b"label=ham" in site.arrives(site.send("ham"))
    site.moves_out_of_junk(spam)

    site.is_done_and_taken_out(before)
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))
    assert "nothing to take out" in done_by(site.setup("--remove"))


def test_observing_first_and_filing_later(site):
    """By default mail is scanned without marks, until `spamnb live on` or another answer."""
    done_by(site.setup("--yes"))
    spam = site.send("spam")
    assert b"X-Spam-Flag" not in site.arrives(spam)
    until(lambda: spam.strip("<>") in site.daemon.spamnb("history", "--json"), "the verdict")
    assert "observing" in site.daemon.spamnb("status")
    site.daemon.spamnb("live", "on")
    until(lambda: '"live": true' in site.daemon.spamnb("status", "--json"), "the switch")
    assert b"X-Spam-Flag: YES" in site.arrives(site.send("spam"), ".Junk")
    assert "live off" in done_by(site.setup("--yes", "--answer", "act=observe"))
    until(lambda: '"live": false' in site.daemon.spamnb("status", "--json"), "the switch")
    assert b"X-Spam-Flag" not in site.arrives(site.send("spam"))
    changed = json.loads(done_by(site.setup("--yes", "--json", "--answer", "act=file")))
    assert [Path(one["path"]).name for one in changed["files"]] == ["spamnb.toml"]
    until(site.files_spam, what="the new settings in the worker")


def test_in_front_of_the_lmtp_server(site):
    """Each recipient gets the verdict in the own copy; the LMTP server is asked directly again."""
    before = site.files()
    done_by(site.setup("--yes", "--way", "lmtp"))
    spam = site.send("spam")
    assert b"X-Spam-Flag" not in site.arrives(spam)
    until(lambda: spam.strip("<>") in site.daemon.spamnb("history", "--json"), "the verdict")
    chosen = ("--yes", "--way", "lmtp", "--answer", "act=file")
    assert "Done. Next:" in done_by(site.setup(*chosen))
    site.files_and_teaches()
    assert "nothing to do" in done_by(site.setup(*chosen))
    site.is_done_and_taken_out(before)
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))


def test_from_the_milter_to_the_lmtp_server(site):
    """The way is an answer like others: a later run changes it, and mail is scanned once."""
    before = site.files()
    done_by(site.setup(*FILING))
    done_by(site.setup(*FILING, "--way", "lmtp"))
    until(site.files_spam, what="the new settings in the worker")
    assert site.arrives(site.send("ham")).count(b"X-Spamnb-Verdict") == 1
    main = (site.rig.root / "postfix" / "main.cf").read_text()
    assert "smtpd_milters" not in main
    done_by(site.setup(*FILING, "--way", "milter"))
    until(site.files_spam, what="the new settings in the worker")
    site.is_done_and_taken_out(before)


def test_a_test_message_is_sent_and_moved(site):
    """It comes by SMTP, is moved in the user's mailbox without a password, and is forgotten."""
    before = site.daemon.spamnb("stats", "--json")
    output = done_by(
        site.setup("--yes", "--answer", "act=file", "--test", "alice@example.org", "--json")
    )
    test = json.loads(output)["test"]
    states = {check["check"]: check["state"] for check in test["checks"]}
    assert states["learning"] == states["learning again"] == states["marked mail"] == "ok"
    assert "broken" not in states.values()
    trained = json.loads(site.daemon.spamnb("stats", "--json"))["messages"]
    assert trained == json.loads(before)["messages"]


def test_the_mail_that_users_have_sorted_is_learnt(site):
    """Junk, answered and filed mail of a mailbox, without files of the mail server being named."""
    conf = site.rig.root / "dovecot" / "dovecot.conf"
    bob = Person(site.rig, "bob")
    with bob.imap as imap:
        imap.create("Sent")
        for kind, folder, flags in (
            ("spam", "Junk", ""), ("ham", "Work", r"\Seen"), ("ham", "INBOX", r"\Answered"),
            ("ham", "INBOX", r"\Seen"), ("spam", "Trash", r"\Seen"), ("ham", "Work", ""),
        ):  # fmt: skip
            raw = f"Subject: {kind} in {folder} {flags}\r\n\r\nold words, {folder} {flags}\r\n"
            imap.append(folder, flags, None, raw.encode())
        letter = "From: bob@example.org\r\nTo: eve@example.com\r\nMessage-ID: <1@b>\r\n\r\nhi\r\n"
        imap.append("Sent", None, None, letter.encode())
    program = f"doveadm -c {conf} exec imap -u {{user}}"
    learn = ("train", "--mailbox", "bob", "--mailbox-program", program)
    output = site.daemon.spamnb(*learn)
    assert "bob: 2 ham, 1 spam, 1 sent" in output
    assert "3 learnt" in output
    assert "1 correspondents" in output
    assert "3 already known" in site.daemon.spamnb(*learn)
    copies = Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory() as folder:  # a home of another user, as in an installation
        home = Path(folder, "home")
        home.mkdir()
        for path in (Path(folder), home):
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        assert "3 learnt" in done_by(forked(home, *learn))
        assert not list(copies.glob("spamnb-*/0"))
    missing = site.daemon.command("train", "--mailbox", "x", "--mailbox-program", "nowhere")
    assert missing.err.startswith("spamnb: the program nowhere is not here")
    subjects = site.daemon.command("train", "--mailbox", "x", "--mailbox-program", "false")
    assert subjects.code == 4
    assert "Traceback" not in subjects.err


def test_the_plan_changes_nothing(site):
    """It shows each file as a diff, and each command."""
    before = site.files()
    plan = json.loads(done_by(site.setup("--plan", "--json")))
    assert plan["done"] is False
    assert plan["answers"]["act"] == "observe"
    names = {Path(one["path"]).name for one in plan["files"]}
    assert names >= {"spamnb.toml", "dovecot.conf", "main.cf", "spamnb-junk.sieve", "spamnb-teach"}
    assert plan["commands"][0].endswith("config check")
    assert plan["commands"][-1].endswith("reload")
    text = done_by(site.setup("--plan"))
    assert "+smtpd_milters = inet:127.0.0.1:" in text
    assert site.files() == before


def test_the_session_of_the_documentation(site):
    """What an administrator sees on a terminal, with five answers and the confirmation."""
    answers = ["file", "moves", "no", "no", "alice@example.org"]
    before = site.files()
    assert "Nothing was changed" in on_terminal(site, [*answers, "n"])
    assert site.files() == before
    page = (PROJECT / "docs" / "setup.md").read_text()
    (recorded,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert shown(site, on_terminal(site, [*answers, "y"])) == recorded


def shown(site, output):
    """The output with the places of an installation, and without what differs each time."""
    port = re.search(r"inet:127.0.0.1:(\d+)", output)[1]
    places = {
        f"--home {site.daemon.home} --config {site.daemon.config} ": "",
        str(site.daemon.config): "/etc/spamnb/spamnb.toml",
        str(site.rig.root / "postfix"): "/etc/postfix",
        str(site.rig.root / "dovecot/sieve-pipe"): "/usr/lib/spamnb",
        str(site.rig.root / "dovecot"): "/etc/dovecot",
        f"127.0.0.1:{port}": "127.0.0.1:10025",
        f":{site.rig.port['mx']}": ":25",
        os.uname().nodename: "vm",
    }
    for old, new in places.items():
        output = output.replace(old, new)
    output = re.sub(r"\x1b\[\d+m", "", output)
    output = re.sub(r"queued as \w+", "queued as 4BD2C48D1A2", output)
    # The score of the message depends on what other tests taught.
    output = re.sub(r"\d\.\d{4}", "0.5601", output)
    output = re.sub(r"\w+; label=\w+", "unsure; label=spam", output)
    output = re.sub(r"stored as \w+, label \w+", "stored as unsure, label spam", output)
    output = re.sub(r"events? \d+", "event 402", output)
    output = re.sub(r"(\d+) (ham|spam)\b", r"200 \2", output)
    output = re.sub(r"with \d+ processes", "with 5 processes", output)
    output = re.sub(r"(?m)^ok       results .*\n", "", output)  # depends on a name server
    output = re.sub(r"(?m)^Note: \w+ has learnt here .*\n", "", output)  # depends on the machine
    # The files that an installation has already, and its spool.
    output = re.sub(r"(?m)^.*/usr/lib/spamnb/(spamnb-teach|spool).*\n", "", output)
    output = re.sub(r" address = .*\n upstream = .*\n", "", output)
    return re.sub(r"(?s)--- /dev/null\n@@.*?\n\n|@@.*?@@\n|(?<=\n)\n+", "", output)


def on_terminal(site, answers):
    """Run setup on a terminal, and type each answer when it is asked for."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "spamnb", "--home", site.daemon.home]
    command += ["--config", site.daemon.config, "setup", *site.places()]
    process = subprocess.Popen(
        list(map(str, command)), stdin=theirs, stdout=theirs, stderr=theirs,
        env=site.daemon.environment,
    )  # fmt: skip
    os.close(theirs)
    output, left = "", list(answers)
    with contextlib.suppress(OSError):  # the terminal ends with the program
        while True:
            output += os.read(ours, 4096).decode(errors="replace")
            if left and output.endswith(": "):
                os.write(ours, f"{left.pop(0)}\n".encode())
    os.close(ours)
    assert process.wait(LIMIT_S) == 0, output
    assert not left
    return output.replace("\r\n", "\n")


def test_without_a_terminal_it_asks_for_answers(site):
    """One line says what to use instead, and nothing is changed."""
    result = site.setup()
    assert (result.code, result.out.count("Traceback")) == (2, 0)
    assert "--yes" in result.err
    assert "act=observe|file" in site.setup("--yes", "--answer", "act=maybe").err


def test_lines_that_others_added_stay(site):
    """Removing takes out the blocks alone; a changed block stops it before anything is removed."""
    done_by(site.setup("--yes"))
    main = site.rig.root / "postfix" / "main.cf"
    main.write_text(main.read_text() + "soft_bounce = yes\n")
    whole = main.read_text()
    main.write_text(whole.replace("smtpd_milters = inet", "smtpd_milters = inet:localhost:1, inet"))
    refused = site.setup("--remove")
    assert refused.code == 2
    assert "main.cf" in refused.err
    assert (site.rig.root / "dovecot" / "sieve" / "spamnb-junk.sieve").exists()
    main.write_text(whole.replace("# <<< spamnb setup: smtpd_milters\n", ""))
    assert "main.cf" in site.setup("--remove").err
    main.write_text(whole)
    done_by(site.setup("--remove"))
    assert main.read_text().endswith("soft_bounce = yes\n")
    assert "spamnb setup" not in main.read_text()
    main.write_text(main.read_text().removesuffix("soft_bounce = yes\n"))


def test_a_failing_check_takes_all_back(site):
    """Here the administrator has limited the extensions of Sieve, so a script does not compile."""
    conf = site.rig.root / "dovecot" / "dovecot.conf"
    whole = conf.read_text()
    conf.write_text(whole + "plugin {\n  sieve_extensions = fileinto mailbox\n}\n")
    before = site.files()
    failed = site.setup("--yes")
    assert failed.code == 2
    assert "sievec" in failed.err
    assert "taken back" in failed.err
    assert site.files() == before
    conf.write_text(whole)
    site.arrives(site.send("ham"))


def test_it_writes_only_what_it_may(site, tmp_path):
    """A user who may not write the files learns which, before anything is changed."""
    config = tmp_path / "spamnb.toml"
    config.write_text("")
    tmp_path.chmod(0o755)
    result = forked(
        tmp_path / "home", "--config", config, "setup", "--yes", *site.places(), user=65534
    )
    assert result.code == 2
    assert "root" in result.err


def killing(site, step, *arguments):
    """Run setup in a process that dies before its step of this number; its exit status."""
    pid = os.fork()
    if pid == 0:
        left = [step]

        def counted(run):
            def once(*given, **named):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return run(*given, **named)

            return once

        put, write = module._put, module.Setup._write
        module._put, module.Setup._write = counted(put), counted(write)
        module.Setup._run = counted(module.Setup._run)
        os._exit(site.setup(*arguments).code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


FILING = ("--yes", "--answer", "act=file")
STEPS = 17
"""writes of the record and of files, and runs of commands"""
USUAL = (("milter", 15),)


@pytest.mark.parametrize(
    ("way", "step"),
    [
        pytest.param(way, n, marks=() if (way, n) in USUAL else pytest.mark.full)
        for way in ("milter", "lmtp")
        for n in range(STEPS)
    ],
)
def test_killed_at_each_step(site, way, step):
    """Mail flows, the next run completes the setup, and removing restores each byte."""
    before = site.files()
    chosen = (*FILING, "--way", way)
    assert killing(site, step, *chosen) != 0
    site.arrives(site.send("ham"))
    done_by(site.setup(*chosen))
    assert b"X-Spam-Flag: YES" in site.arrives(site.send("spam"), ".Junk")
    done_by(site.setup("--remove"))
    assert site.files() == before


@pytest.mark.parametrize(
    "step", [pytest.param(n, marks=() if n == 4 else pytest.mark.full) for n in range(10)]
)
def test_killed_while_it_removes(site, step):
    """Mail flows, and the next `--remove` completes it."""
    before = site.files()
    done_by(site.setup(*FILING))
    assert killing(site, step, "--remove") != 0
    site.arrives(site.send("ham"))
    done_by(site.setup("--remove"))
    assert site.files() == before


MAIN_CF = {
    "no milters": "",
    "one milter": "smtpd_milters = inet:localhost:8891\n",
    "several lines": "smtpd_milters =\n  inet:localhost:1,\n# a comment\n\tinet:localhost:2\n",
    "a macro": "opendkim = inet:localhost:8891\nsmtpd_milters = $opendkim\n",
    "options": "smtpd_milters = { inet:localhost:8891, default_action=accept }\n",
    "twice": "smtpd_milters = inet:localhost:1\nbiff = no\nsmtpd_milters=inet:localhost:2\n",
    "empty": "smtpd_milters =\nmydomain = example.org\n",
    "no line feed": "smtpd_milters = inet:localhost:8891",
    "a comment with it": "# smtpd_milters = inet:localhost:8891\n",
    "blanks at the end": "smtpd_milters = inet:localhost:8891  \n\n\n   \n",
    "in the middle": "smtpd_milters = inet:localhost:8891\nmyhostname = mx.example.net\n",
    "virtual domains": "virtual_mailbox_domains = example.com, example.net\n",
    "a map of domains": "virtual_mailbox_domains = hash:/etc/postfix/domains\n",
    "latin-1": "smtpd_banner = caf\xe9\n",
}


@pytest.mark.parametrize("name", MAIN_CF)
def test_settings_of_postfix(tmp_path, name):
    """Postfix asks the other milters and then spamnb; taken out, the file is what it was."""
    folder = postfix_folder(tmp_path, MAIN_CF[name])
    found = postfix.find(folder)
    assert found.problems == ()
    others = milters_of(folder)
    stage = found.stage("127.0.0.1:10025")
    module._put(stage.edits[0].path, stage.edits[0].after)
    settled(folder)
    assert stage.verify() == ""
    milter = "inet:127.0.0.1:10025"
    assert milters_of(folder) == (f"{others}, {milter}" if others else milter)
    assert postfix.find(folder).stage("127.0.0.1:10025") is None
    assert without_blocks(stage.edits[0].after) == stage.edits[0].before


def milters_of(folder):
    command = ["postconf", "-c", folder, "-h", "smtpd_milters"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def postfix_folder(tmp_path, text, master=""):
    folder = tmp_path / "postfix"
    folder.mkdir()
    (folder / "main.cf").write_bytes(f"compatibility_level = 3.6\n{text}".encode("latin-1"))
    (folder / "master.cf").write_text(f"smtp inet n - n - - smtpd\n{master}")
    return settled(folder)


def settled(folder):
    """Make the files older: Postfix waits until a file has not changed for a second."""
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    return folder


@pytest.mark.parametrize(
    ("text", "master", "why"),
    [
        ("smtpd_proxy_filter = 127.0.0.1:10024\n", "", "milters see no mail"),
        ("", "  -o smtpd_proxy_filter=127.0.0.1:10024\n", "milters see no mail"),
        ("", "  -o smtpd_milters=inet:localhost:8891\n", "milters of its own"),
        ("", "  -o smtpd_milters=\n", "milters of its own"),
    ],
)
def test_a_postfix_that_setup_leaves(tmp_path, text, master, why):
    """A milter in main.cf would not be asked: setup says so, with the line to add."""
    found = postfix.find(postfix_folder(tmp_path, text, master))
    assert why in found.problems[0]
    assert not found.files_junk
    result = forked(
        tmp_path / "home", "--config", tmp_path / "spamnb.toml", "setup", "--plan", "--json",
        "--postfix", tmp_path / "postfix",
    )  # fmt: skip
    notes = " ".join(json.loads(done_by(result))["notes"])
    assert why in notes
    assert "smtpd_milters = inet:127.0.0.1:" in notes


PROXY = "smtpd_proxy_filter = 127.0.0.1:10024\n"
LAST_HOPS = {
    "TCP": ("virtual_transport = lmtp:inet:127.0.0.1:24\n", "127.0.0.1:24", 2),
    "TCP without inet": ("mailbox_transport = lmtp:[127.0.0.1]:24\n", "[127.0.0.1]:24", 2),
    "the usual port": ("virtual_transport = lmtp:mail.example.org\n", "mail.example.org:24", 2),
    "both": (
        "virtual_transport = lmtp:inet:mail:24\nmailbox_transport = $virtual_transport\n",
        "mail:24", 3,
    ),
    "a limit": (
        "lmtp_destination_recipient_limit = 50\nvirtual_transport =\n  lmtp:inet:mail:24\n",
        "mail:24", 2,
    ),
    "a socket": ("virtual_transport = lmtp:unix:{root}/all/lmtp\n", "unix:{root}/all/lmtp", 2),
    "a socket for Postfix alone": ("virtual_transport = lmtp:unix:{root}/private/lmtp\n", "", 0),
    "several servers": (
        "virtual_transport = lmtp:inet:one:24\nmailbox_transport = lmtp:inet:two:24\n", "", 0
    ),
    "a pipe": ("virtual_transport = dovecot\n", "", 0),
}  # fmt: skip
"""settings of main.cf -> the upstream of spamnb, and how many blocks there are"""


@pytest.mark.parametrize("name", LAST_HOPS)
def test_a_postfix_whose_milters_see_no_mail(name):
    """Postfix delivers by LMTP to spamnb, and spamnb to the LMTP server, if there is one."""
    text, upstream, count = LAST_HOPS[name]
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as one:
        root = Path(folder)
        root.chmod(0o755)
        for part, mode in (("all", 0o755), ("private", 0o700)):
            (root / part).mkdir(mode=mode)
            (root / part).chmod(mode)
        one.bind(str(root / "all" / "lmtp"))
        (root / "all" / "lmtp").chmod(0o666)
        made = postfix_folder(root, PROXY + text.replace("{root}", folder))
        found = postfix.find(made)
        assert found.upstream == upstream.replace("{root}", folder)
        assert bool(found.problems) == (not upstream)
        assert postfix.find(made, "lmtp").protocol == ("lmtp" if upstream else "milter")
        if not upstream:
            wanted = postfix.find(made, "lmtp")
            assert "LMTP" in wanted.problems[-1]
            assert "docs/postfix.md" in wanted.by_hand
            return
        stage = found.stage("127.0.0.1:10025")
        module._put(stage.edits[0].path, stage.edits[0].after)
        settled(made)
        assert stage.verify() == ""
        assert len(blocks(stage.edits[0].after)) == count
        again = postfix.find(made)
        assert again.upstream == found.upstream
        assert again.stage("127.0.0.1:10025") is None
        assert without_blocks(stage.edits[0].after) == stage.edits[0].before
        if upstream.startswith("unix:"):
            (root / "all" / "lmtp").unlink()
            with pytest.raises(UserError, match="is not there"):
                postfix.find(made)


@pytest.mark.parametrize(
    ("milters", "act", "other", "note"),
    [
        ("inet:localhost:11332", "observe", "rspamd", "spamnb trial report"),
        ("unix:/run/spamass/spamass.sock", "observe", "spamassassin", "spamnb trial report"),
        ("inet:localhost:11332", "file", "", "marks mail, too"),
        ("inet:localhost:8891", "observe", "", ""),
    ],
)
def test_another_filter_in_front(tmp_path, milters, act, other, note):
    """Its marks stay while spamnb observes; then only one filter may mark mail."""
    folder = postfix_folder(tmp_path, f"smtpd_milters = {milters}\n")
    result = forked(
        tmp_path / "home", "--config", tmp_path / "spamnb.toml", "setup", "--plan", "--json",
        "--answer", f"act={act}", "--postfix", folder,
    )  # fmt: skip
    plan = json.loads(done_by(result))
    diffs = "".join(one["diff"] for one in plan["files"])
    assert (f'other = "{other}"' in diffs) == bool(other)
    assert note in " ".join(plan["notes"])
    assert bool(note) == any(word in " ".join(plan["notes"]) for word in ("marks", "marking"))


IN_23 = pytest.mark.skipif(
    bool(dovecot_versions.missing()) or dovecot_versions.version() != "2.3",
    reason="these settings are those of Dovecot 2.3",
)
DOVECOT_CONF = {
    "nothing": "",
    "sieve is on": "protocol lmtp {\n  mail_plugins = $mail_plugins sieve\n}\n",
    "other plugins": (
        "mail_plugins = quota\nprotocol imap {\n  mail_plugins = $mail_plugins imap_quota\n}\n"
    ),
    "another sieve_before": "plugin {\n  sieve_before = /etc/dovecot/sieve/global\n}\n",
    "rspamd teaches": (
        "protocol imap {\n  mail_plugins = imap_sieve\n}\nplugin {\n"
        "  sieve_plugins = sieve_imapsieve sieve_extprograms\n"
        "  imapsieve_mailbox1_name = Junk\n  imapsieve_mailbox1_causes = COPY\n"
        "  imapsieve_mailbox1_before = file:/etc/dovecot/sieve/learn-spam.sieve\n"
        "  sieve_pipe_bin_dir = {root}/bin\n  sieve_global_extensions = +vnd.dovecot.pipe\n}\n"
    ),
    "no line feed": "mail_home = /srv/mail/%u",
    "one owner": "mail_uid = mail\nfirst_valid_uid = 1\n",
    "another junk folder": (
        "namespace inbox {\n  mailbox Spam {\n    special_use = \\Junk\n  }\n}\n"
    ),
    "dots": "namespace inbox {\n  separator = .\n}\n",
}


@IN_23
@pytest.mark.parametrize("in_folder", [False, True], ids=["one file", "conf.d"])
@pytest.mark.parametrize("name", DOVECOT_CONF)
def test_settings_of_dovecot(tmp_path, name, in_folder):
    """Its own check accepts them, what was set is continued, and a second look changes nothing."""
    file = dovecot_file(tmp_path, DOVECOT_CONF[name], in_folder=in_folder)
    before = file.read_bytes()
    found = dovecot.find(file)
    assert found.problems == ()
    stage = dovecot.stage(found, moves=True, spool="/var/spool/spamnb")
    for edit in stage.edits:
        edit.path.parent.mkdir(parents=True, exist_ok=True)
        module._put(edit.path, edit.after, edit.mode)
    for command in stage.checks:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert stage.verify() == ""
    now = dovecot.find(file)
    assert "imap_sieve" in now.value("mail_plugins", "imap").split()
    for plugin in found.value("mail_plugins", "imap").split():
        assert plugin in now.value("mail_plugins", "imap").split()
    assert f"{found.junk}{found.separator}*" in now.settings
    if name == "another sieve_before":
        assert now.value("plugin/sieve_before2").endswith("spamnb-junk.sieve")
        assert now.value("plugin/sieve_before") == "/etc/dovecot/sieve/global"
    if name == "rspamd teaches":
        assert now.value("plugin/imapsieve_mailbox1_before").endswith("learn-spam.sieve")
        assert now.value("plugin/imapsieve_mailbox2_before").endswith("spamnb-to-junk.sieve")
        assert (tmp_path / "bin" / "spamnb-teach").exists()
    if name == "another junk folder":
        assert '"Spam"' in (file.parent / "sieve" / "spamnb-junk.sieve").read_text()
    assert dovecot.stage(now, moves=True, spool="/var/spool/spamnb") is None
    if in_folder:
        assert file.read_bytes() == before
    else:
        assert without_blocks(file.read_text()) == before.decode()


def dovecot_file(tmp_path, text, *, in_folder):
    """Settings of Dovecot 2.3, in the main file, or in a folder that it includes."""
    folder = tmp_path / "dovecot"
    (folder / "conf.d").mkdir(parents=True)
    common = (
        "protocols = imap lmtp\nmail_location = maildir:~/Maildir\n"
        "namespace inbox {\n  inbox = yes\n}\n"
    )
    text = text.replace("{root}", str(tmp_path))
    file = folder / "dovecot.conf"
    if in_folder:
        (folder / "conf.d" / "10-site.conf").write_text(text)
        file.write_text(f"{common}!include conf.d/*.conf\n")
    else:
        file.write_text(common + text)
    return file


@IN_23
def test_a_later_file_that_hides_the_settings_is_found(tmp_path):
    """Setup verifies what is in force, not only what it wrote."""
    file = dovecot_file(tmp_path, "", in_folder=True)
    (file.parent / "local.conf").write_text("plugin {\n  sieve_before = /other\n}\n")
    file.write_text(file.read_text() + "!include_try local.conf\n")
    # An earlier look did not see the other value.
    found = dovecot.find(file)
    stage = dovecot.stage(found, moves=False, spool="/var/spool/spamnb")
    for edit in stage.edits:
        edit.path.parent.mkdir(parents=True, exist_ok=True)
        module._put(edit.path, edit.after.replace("sieve_before2", "sieve_before"))
    assert "leaves out" in stage.verify()


@pytest.fixture
def person():
    """The home of a user without root; not pytest's folder, which other users cannot enter."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_mailbox_elsewhere(person):
    """A user without root reads a mailbox: it is learnt, judged, and everything is taken out."""
    rig = ImapRig()
    (person / ".config" / "spamnb").mkdir(parents=True)
    password = person / "password"
    try:
        box = rig.mailbox()
        password.write_text(f"pw-{box.user}\n")
        for path in (*person.rglob("*"), person):
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
            path.chmod(0o700 if path.is_dir() else 0o600)
        box.imap.create("Work")
        for number in range(6):
            kind, folder, flag = (("spam", "Junk", None), ("ham", "Work", r"\Seen"))[number % 2]
            box.imap.append(folder, flag, None, sample(kind, number)[0])
        before = files_below(person)

        def spamnb(*arguments):
            more = {"HOME": str(person), "XDG_RUNTIME_DIR": ""}
            return forked(person / "home", *arguments, user=UNPRIVILEGED, cwd=person, **more)

        where = ("--imap", f"127.0.0.1:{rig.port}", "--user", box.user)
        plan = spamnb("setup", *where, "--plan")
        assert "[imap." in done_by(plan)
        assert files_below(person) == before
        output = done_by(spamnb("setup", *where, "--password-file", password, "--yes"))
        assert f"pw-{box.user}" not in output
        config = person / ".config" / "spamnb" / "spamnb.toml"
        learnt = json.loads(done_by(spamnb("--config", config, "stats", "--json")))
        assert learnt["messages"] == {"ham": 3, "spam": 3}
        box.append(sample("spam", 9)[0])
        judged = done_by(spamnb("--config", config, "imap", "--once", "--existing", "--json"))
        assert json.loads(judged)["done"] == "judged"  # observing: nothing is moved
        done_by(spamnb("setup", "--remove"))
        assert files_below(person) == before
        box.imap.logout()
    finally:
        rig.stop()


UNPRIVILEGED = 65534


def files_below(folder):
    """The files of a person, without those of the model."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in found if "home" not in path.parts}


def test_the_lines_for_dovecot_are_those_of_its_page():
    """Settings of 2.4 and the script for junk, which other tests run by the page."""

    def plain(text):
        lines = [line.strip() for line in text.splitlines()]
        return [line for line in lines if line and not line.startswith("#")]

    page = [
        snippet("dovecot.md", section, "dovecot.conf (2.4)")
        for section in ("File spam into Junk", "Learn from moves")
    ]
    found = dovecot.Dovecot(
        Path("/etc/dovecot/dovecot.conf"), "2.4", "", "Junk", "/", "", (), is_running=False
    )
    scripts = ("spamnb-junk", *dovecot._MOVES)
    folders = Path("/etc/dovecot/sieve"), Path("/usr/local/lib/spamnb")
    lines = dovecot._lines_24(found, "", folders[0], scripts, folders[1])
    assert plain("\n".join(lines)) == plain("\n".join(page))
    junk = snippet("dovecot.md", "File spam into Junk", "spamnb-junk.sieve")
    assert plain(junk) == plain(dovecot._JUNK_SIEVE)


def test_nothing_to_edit(tmp_path):
    """On a machine without a known mail server, the page with more is named."""
    result = forked(
        tmp_path / "home", "--config", tmp_path / "spamnb.toml", "setup", "--plan",
        "--postfix", tmp_path,
    )  # fmt: skip
    assert result.code == 2
    assert "no settings of Postfix" in result.err
