"""Every program in `scripts/` runs from a clone, here with short options.

Programs that other tests run are listed in `ELSEWHERE`. `scripts/test` runs this file.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
ELSEWHERE = {
    "bench/chain": "bench-smtp runs it",
    "bench/burst": "tests/faults/test_daemon_burst.py",
    "bench/console": "tests/full/test_figures.py",
    "bench/hold": "tests/faults/test_daemon_hold.py",
    "console-pictures": "tests/browser/test_pictures.py",
    "dovecot": "tests/mail/test_dovecot.py",
    "fetch-corpora": "tests/endpoints/test_fetch.py",
    "install": "tests/test_install.py",
    "make-sample": "tests/unit/test_sample.py",
    "man": "tests/test_man.py",
    "package": "tests/test_package.py",
    "record": "test_two_records_of_one_version_are_equal",
    "release": "tests/test_package.py",
    "run": "tests/test_run.py",
    "setup.sh": "tests/test_run.py",
    "site": "tests/test_site.py",
    "test": "scripts/test runs this file",
}
SHORT = {
    "make-prior": ([str(PROJECT / "corpora/sample"), "--to", os.devnull], "features", (0,)),
    "bench-smtp": (["--rounds", "1", "--messages", "20"], "messages/s, TCP relay", (0, 1)),
    "bench/accuracy": (["--orders", "7", "--noise-seeds", "1", "--alone"], "delayed mean", (0,)),
    "bench/console": (
        ["--messages", "500", "--rounds", "1", "--seconds", "1"],
        "console process",
        (0, 1),
    ),
    "bench/console_flood": (["--pairs", "1"], "console_share", (0, 1)),
    "bench/decisions": (["--alone"], "full", (0,)),
    "bench/threshold_attack": (["--short"], "full    1.0 up, accomplice", (0,)),
    "bench/endpoints": (
        ["--rounds", "1", "--messages", "20"],
        "idle scanner connection",
        (0, 1),
    ),
    "bench/fairness": (["--short"], "done", (0,)),
    "bench/fleet": (["--short"], "load when it ended", (0,)),
    "bench/fleet_hour": (["--seconds", "5", "--train", "30"], "export", (0,)),
    "bench/fleet_capacity": (["--short"], "done", (0,)),
    "bench/instructions": (["--count", "1"], "forget", (0,)),
    "bench/foreign": (["--short", "--orders", "1"], "replayed", (0,)),
    "bench/labels": (["--short"], "LinearSVC, tf-idf  each against rest", (0,)),
    "bench/memory": (["--messages", "2000"], "RssAnon, all processes", (0,)),
    "bench/mixed": (["--cases", "2000", "--rounds", "1"], "of scikit-learn's together", (0,)),
    "bench/identity": ([], "log_loss", (0,)),
    "bench/growth": (["--short"], "done", (0,)),
    "bench/start": (["--runs", "1", "--messages", "3"], "(medians)", (0,)),
    "bench/senders": (["--count", "20"], "ask nothing", (0,)),
    "bench/persons": (["--persons", "20", "--labels", "1"], "1000 recipients", (0,)),
    "bench/evasion": (["--most", "2"], "all first", (0,)),
    "bench/path_length": ([], "correction ", (0,)),
    "bench/prior": (["--short"], "prior of the other half", (0,)),
    "bench/speed": (["--short"], "score one.eml", (0,)),
    "bench/store": (["--short"], "bytes_a_feature", (0,)),
    "bench/worlds": (
        [
            "conflict",
            *(str(PROJECT / "corpora/sample" / one) for one in ("ham", "spam")),
            "--people",
            "4",
            "--seeds",
            "1",
        ],
        "personal corrections",
        (0,),
    ),
    "fuzz": (["--seed", "0", "--cases", "101"], "no failure", (0,)),
    "bench/streams": (["--short", "--set", "eta=6"], "shuffled", (0,)),
}
"""program -> options, last text printed, allowed exit statuses (1: a figure is missed)"""


def run(name, arguments, **more):
    """Run a script without the settings of this machine."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPAMNB_")} | more
    program = [sys.executable, PROJECT / "scripts" / name]
    return subprocess.run(
        [*program, *arguments],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


SLOW = {
    *("bench/instructions", "bench-smtp", "bench/console_flood", "bench/endpoints"),
    *("bench/evasion", "bench/fleet_hour", "bench/accuracy", "bench/console", "bench/prior"),
    *("bench/worlds", "make-prior", "bench/senders", "bench/decisions", "bench/fleet", "fuzz"),
    *("bench/threshold_attack", "bench/fleet_capacity", "bench/memory", "bench/labels"),
    *("bench/identity", "bench/path_length", "bench/persons"),
}
"""They take 40 to 120 s each on a busy machine (valgrind runs a program fifty times as long)."""


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.full if one in SLOW else ()) for one in SHORT]
)
def test_it_runs_to_its_end(name):
    """A program prints its last figure, or reports which tool is not installed."""
    arguments, last, codes = SHORT[name]
    done = run(name, arguments, SPAMNB_CORPUS=str(PROJECT / "corpora" / "sample"))
    assert done.returncode in codes, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert last in done.stdout or "skipped: " in done.stdout, done.stdout


def test_every_program_is_run_by_a_test():
    """Each executable script is in one of the two tables."""
    known = {PROJECT / "scripts" / name for name in (*SHORT, *ELSEWHERE)}
    programs = [
        path
        for path in (PROJECT / "scripts").rglob("*")
        if path.is_file() and path.suffix in ("", ".sh") and path.stat().st_mode & 0o100
    ]
    assert len(programs) >= len(SHORT)
    assert [path for path in programs if not known & {path, *path.parents}] == []


@pytest.mark.full
def test_two_records_of_one_version_are_equal(tmp_path):
    """What `record` leaves out is all that changes; a home is copied, and not changed."""
    sample = PROJECT / "corpora" / "sample"
    home, mail = tmp_path / "home", tmp_path / "mail"
    mail.mkdir()
    for path in sorted(sample.glob("*/*"))[:15]:
        shutil.copy(path, mail / path.name)
    train = [sys.executable, "-m", "spamnb", "--home", home, "train", mail, sample / "spam"]
    subprocess.run(train, check=True, capture_output=True)
    trees = []
    for name in ("one", "two"):
        done = run("record", [tmp_path / name, "--home", home, "--mail", mail])
        assert done.returncode == 0, done.stderr
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        trees.append({str(path.relative_to(tmp_path / name)): path.read_text() for path in files})
    assert trees[0] == trees[1]
    assert '"event"' in trees[0]["correct-001"]
    assert len(trees[0]) > 40


def test_benchmarks_use_no_folder_outside_the_project():
    """Benchmarks read the clone, fetched corpora, or a folder given by the caller."""
    for path in (PROJECT / "scripts").rglob("*"):
        if path.is_file() and path.suffix in ("", ".py", ".sh"):
            assert "PROJECT.parent" not in path.read_text("utf-8"), path


def test_a_fetched_corpus_is_read_by_its_folders(tmp_path):
    """Folder names give labels; `cmds` files are ignored; headers of other filters are removed."""
    sys.path.insert(0, str(PROJECT / "scripts" / "bench"))
    try:
        from labelled_mail import messages
    finally:
        del sys.path[0]
    for name, text in {
        "easy_ham/1": "X-Spam-Status: No\n\tmore\nSubject: a\n\nham\n",
        "hard_ham_2/2": "From x Mon\nSubject: b\n\nham\n",
        "20030228_spam/3": "Subject: c\nStatus: RO\n\nspam\nFrom me\n",
        "spam_2/4": "Subject: d\n\nspam\n",
        "spam_2/cmds": "mv a b\n",
        "other/5": "Subject: e\n\nneither\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert sorted(messages(tmp_path)) == [
        (b"Subject: a\n\nham\n", "ham"),
        (b"Subject: b\n\nham\n", "ham"),
        (b"Subject: c\n\nspam\n>From me\n", "spam"),
        (b"Subject: d\n\nspam\n", "spam"),
    ]
