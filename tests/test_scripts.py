"""Every program of `scripts/` runs from a clone; here in its short form, whose figures say nothing.

What the other tests run is not run again: install, run, setup.sh, fetch-corpora, make-sample and
the scripts for Dovecot. `scripts/test` runs this file.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
ELSEWHERE = {
    "bench/burst": "tests/faults/test_daemon_burst.py",
    "bench/hold": "tests/faults/test_daemon_hold.py",
    "dovecot": "tests/mail/test_dovecot.py",
    "experiments": "tests/unit/test_experiments_lab.py",
    "fetch-corpora": "tests/endpoints/test_fetch.py",
    "install": "tests/test_install.py",
    "make-sample": "tests/unit/test_sample.py",
    "run": "tests/test_run.py",
    "setup.sh": "tests/test_run.py",
    "test": "this very run",
}
SHORT = {
    "bench-smtp": (["--rounds", "1", "--messages", "20"], "The whole chain", (0, 1)),
    "bench/accuracy": (["--orders", "7", "--noise-seeds", "1", "--alone"], "delayed mean", (0,)),
    "bench/chain": (["--pairs", "1", "--messages", "20"], "median", (0, 1)),
    "bench/memory": (["--messages", "6000"], "RssAnon, all processes", (0,)),
    "bench/speed": (["--short"], "score one.eml", (0,)),
    "bench/store": (["--short"], "bytes_a_feature", (0,)),
}
"""program -> its options, what it prints at the end, its exit statuses: 1 is a missed figure"""


def run(name, words, **more):
    """Run a script as a clone has it: without a corpus of the machine's."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPAMNB_")} | more
    program = [sys.executable, PROJECT / "scripts" / name]
    return subprocess.run(
        [*program, *words], cwd="/", env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", SHORT)
def test_it_runs_to_its_end(name):
    """It prints its last figure, or says what is not installed."""
    words, last, codes = SHORT[name]
    done = run(name, words, SPAMNB_CORPUS=str(PROJECT / "corpora" / "sample"))
    assert done.returncode in codes, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert last in done.stdout or done.stdout.startswith("skipped: "), done.stdout


def test_every_program_is_run_by_a_test():
    """A new script has a place in one of the tables."""
    known = {PROJECT / "scripts" / name for name in (*SHORT, *ELSEWHERE)}
    programs = [
        path
        for path in (PROJECT / "scripts").rglob("*")
        if path.is_file() and path.suffix in ("", ".sh") and path.stat().st_mode & 0o100
    ]
    assert len(programs) >= len(SHORT)
    assert [path for path in programs if not known & {path, *path.parents}] == []


def test_the_benches_name_no_folder_outside_of_the_project():
    """What a clone holds, what a script fetched, or a folder that the caller names."""
    for path in (PROJECT / "scripts").rglob("*"):
        if path.is_file() and path.suffix in ("", ".py", ".sh"):
            assert "PROJECT.parent" not in path.read_text("utf-8"), path


def test_a_fetched_corpus_is_read_by_its_folders(tmp_path):
    """The label is in the name of the folder; lists of files are no mail; marks are taken out."""
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
