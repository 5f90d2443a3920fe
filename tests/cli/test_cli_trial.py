"""`spamnb trial maildir`: two filters on the same mail, by marks and by asking the other one."""

import json
import shutil
import subprocess

import pytest
from support.cli import SAMPLE, spamnb

HOST = "mx.example.org"
RECEIVED = b"Received: from a (a [192.0.2.1]) by mx.example.org with ESMTP; %b\n"
SPAM_MARK = b"X-Spam-Status: Yes, score=8.0 required=5.0 tests=RBL_A,HTML autolearn=no\n"
HAM_MARK = b"X-Spam-Status: No, score=0.5 required=5.0 tests=none autolearn=no\n"
MISTAKES = {"ham": 3, "spam": 5}
"""the first so many messages of each label that the other filter judges wrong"""


@pytest.fixture(scope="module")
def maildir(tmp_path_factory):
    """Give a Maildir that another filter filed, with its marks; users moved its mistakes."""
    root = tmp_path_factory.mktemp("trial") / "Maildir"
    for label, folder in (("ham", ".Friends"), ("spam", ".Junk")):
        (root / folder / "cur").mkdir(parents=True)
        (root / folder / "new").mkdir()
        for number, path in enumerate(sorted((SAMPLE / label).iterdir())[:60]):
            wrong = number < MISTAKES[label]
            mark = SPAM_MARK if (label == "spam") != wrong else HAM_MARK
            forged = b"X-Spam-Flag: %b\n" % (b"NO" if label == "spam" else b"YES")
            day = b"%02d Nov 2026 %02d:00:00 +0000" % (1 + number % 28, number // 28)
            message = mark + RECEIVED % day + forged + path.read_bytes()
            (root / folder / "cur" / f"{label}{number}:2,S").write_bytes(message)
    return root


def trial(home, *arguments):
    done = spamnb(home, "trial", "maildir", *arguments, "--json")
    assert done.code == 0, done.err
    [found] = done.json
    return found


def test_marks_of_the_host_are_compared_with_folders(tmp_path, maildir):
    """The other filter's mistakes, which users moved, are counted; forged marks are not."""
    found = trial(tmp_path / "home", "--host", HOST, maildir)
    assert (found["messages"], found["unmarked"]) == (120, 0)
    other = {own: sum(row.values()) for own, row in found["agreement"].items()}
    assert sum(other.values()) == 120
    column = [sum(row[name] for row in found["agreement"].values()) for name in ("ham", "spam")]
    assert column == [60 - 3 + 5, 60 - 5 + 3]
    lost, missed = found["labelled"]["ham_lost"], found["labelled"]["spam_missed"]
    assert (lost["other"]["wrong"], lost["other"]["of"]) == (3, 60)
    assert (missed["other"]["wrong"], missed["other"]["of"]) == (5, 5)
    assert not (tmp_path / "home").exists()


def test_the_report_is_the_same_on_each_run(tmp_path, maildir):
    """The same mail gives the same bytes."""
    runs = [spamnb(tmp_path, "trial", "maildir", "--host", HOST, maildir) for _ in range(2)]
    assert runs[0].out == runs[1].out
    assert "would lie in another folder" in runs[0].out
    assert "RBL_A" in runs[0].out


def test_a_message_is_judged_before_it_is_learnt(tmp_path, maildir):
    """The first messages are never junk; later ones are, by what was learnt before."""
    last = trial(tmp_path, "--host", HOST, "--last", 10, maildir)
    assert last["messages"] == 10
    assert last["decisions"]["junk"] + last["decisions"]["reject"] == 0
    whole = trial(tmp_path, "--host", HOST, maildir)
    assert whole["decisions"]["junk"] + whole["decisions"]["reject"] > 0


def test_answers_bound_the_drawn_messages(tmp_path, maildir):
    """Answers on the drawn messages give an estimate with bounds."""
    found = trial(tmp_path, "--host", HOST, maildir)
    drawn = [one["id"] for row in found["sample"]["strata"] for one in row["drawn"]]
    assert drawn
    answers = tmp_path / "answers"
    answers.write_text("# by hand\n" + "".join(f"spam {one}\n" for one in drawn))
    log = tmp_path / "mail.log"
    log.write_text("mx postfix/smtpd[1]: NOQUEUE: reject: RCPT from a[b]: 550 5.1.1 unknown\n" * 3)
    found = trial(tmp_path, "--host", HOST, "--answers", answers, "--log", log, maildir)
    assert found["sample"]["answered"] == len(drawn)
    assert found["sample"]["low"] <= found["sample"]["own_right"] <= found["sample"]["high"]
    assert found["other_means"] == {"rejected before DATA": 3}
    answers.write_text("maybe 1\n")
    done = spamnb(tmp_path, "trial", "maildir", "--host", HOST, "--answers", answers, maildir)
    assert done.code == 2
    assert "line 1 of" in done.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "any sender can write marks"),
        (["--host", "mx.elsewhere.example"], "none of 120 messages has a verdict"),
        (["--other", "hal9000"], "give any or one of"),
        (["--ask", "hal9000"], "one of bogofilter, spamd, rspamd"),
        (["--ask", "spamd:nowhere"], "write spamd:HOST:PORT"),
        (["--ask", "spamd:127.0.0.1:1"], "no scanner at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_compared_is_an_error(tmp_path, maildir, arguments, reason):
    """The error says what to do."""
    done = spamnb(tmp_path, "trial", "maildir", *arguments, maildir)
    assert done.code in (2, 4)
    assert reason in done.err


@pytest.mark.skipif(shutil.which("bogofilter") is None, reason="bogofilter is not installed")
def test_bogofilter_is_asked(tmp_path, maildir):
    """The verdicts are those that bogofilter itself prints for each message."""
    words = tmp_path / "words"
    words.mkdir()
    for label, option in (("ham", "-n"), ("spam", "-s")):
        names = "".join(f"{path}\n" for path in sorted((SAMPLE / label).iterdir())[100:160])
        subprocess.run(["bogofilter", "-d", words, option, "-b"], input=names.encode(), check=True)
    found = trial(tmp_path / "home", "--ask", f"bogofilter:{words}", maildir)
    printed = {"S": 0, "H": 0, "U": 0}
    for path in sorted(maildir.rglob("cur/*")):
        done = subprocess.run(
            ["bogofilter", "-T", "-d", words, "-I", path], capture_output=True, check=False
        )
        printed[done.stdout.decode()[0]] += 1
    columns = {
        name: sum(row[name] for row in found["agreement"].values())
        for name in ("ham", "unsure", "spam")
    }
    assert columns == {"ham": printed["H"], "unsure": printed["U"], "spam": printed["S"]}
    assert found["labelled"]["spam_missed"]["other"]["of"] == 60
    assert json.dumps(found) == json.dumps(
        trial(tmp_path / "home", "--ask", f"bogofilter:{words}", maildir)
    )
