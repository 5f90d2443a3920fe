"""`spamnb train --labels`: mixed mail is trained by the labels that it has already."""

import re
import shutil

import pytest
from support.cli import HAM, SAMPLE, SPAM, spamnb
from support.daemon import serve

from spamnb.model.verdict import SHIPPED


@pytest.fixture
def maildir(tmp_path):
    """Give a Maildir with 12 messages in an own folder, 11 in Junk, and 5 in the inbox."""
    root = tmp_path / "Maildir"
    for folder, label, start, stop in (
        (".Friends", "ham", 0, 12), (".Junk", "spam", 0, 11), ("", "ham", 12, 17),
    ):  # fmt: skip
        (root / folder / "cur").mkdir(parents=True, exist_ok=True)
        (root / folder / "new").mkdir()
        for path in sorted((SAMPLE / label).iterdir())[start:stop]:
            shutil.copy(path, root / folder / "cur" / f"{path.stem}:2,S")
    return root


def test_folders_are_trained_after_a_yes(tmp_path, maildir):
    """The numbers are shown first; without a yes nothing is learnt."""
    home = tmp_path / "home"
    done = spamnb(home, "train", "--labels", "folders", maildir, stdin=b"n\n")
    assert done.code == 130
    assert "12 ham and 11 spam found, 5 messages without a label" in done.out
    assert not home.exists()
    done = spamnb(home, "train", "--labels", "folders", maildir, stdin=b"y\n")
    assert done.code == 0, done.err
    assert "23 messages (12 ham, 11 spam)" in done.out
    [stats] = spamnb(home, "stats", "--json").json
    assert stats["messages"] == {"ham": 12, "spam": 11}


def test_a_list_of_spamassassin_finds_its_messages(tmp_path, maildir):
    """Messages that the backup names are learnt under its labels, wherever they lie."""
    home, backup = tmp_path / "home", tmp_path / "backup.txt"
    ids = [
        line.split("<")[1].split(">")[0]
        for path in sorted((maildir / "cur").iterdir())
        for line in path.read_text(errors="replace").split("\n\n")[0].splitlines()
        if line.lower().startswith("message-id:")
    ]
    assert len(ids) == 5
    backup.write_text("".join(f"s\ts\t{name}\n" for name in ids[:2]) + f"s\th\t{ids[2]}\n")
    done = spamnb(home, "train", "--labels", f"sa:{backup}", "--yes", maildir)
    assert done.code == 0, done.err
    [stats] = spamnb(home, "stats", "--json").json
    assert stats["messages"] == {"ham": 1, "spam": 2}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--labels", "stars"], "give sa:FILE, folders or flags"),
        (["--labels", "flags"], "no message has a label"),
        (["--labels", "folders", "--label", "ham=x"], "--labels takes folders"),
        (["--labels", "folders", "--thresholds"], "--labels takes folders"),
        (["--labels", "sa:/nowhere"], "/nowhere"),
    ],
)
def test_what_gives_no_labels_is_refused(tmp_path, maildir, arguments, reason):
    """Unknown sources and mail without labels train nothing."""
    done = spamnb(tmp_path / "home", "train", *arguments, maildir)
    assert done.code != 0
    assert reason in done.err
    assert not (tmp_path / "home").exists()


EXPECTED = re.compile(
    r"of your ([\d,]+) spam ([\d,]+) would have been filed as junk, of ([\d,]+) ham ([\d,]+|none) "
    r"\(cross-validation; junk from (\d\.\d\d) nats on\)"
)


def test_sorted_mail_sets_the_threshold_and_says_what_to_expect(tmp_path):
    """One sentence, one event that can be undone; the same mail again changes nothing."""
    home, root = tmp_path / "home", tmp_path / "Maildir"
    for folder, label in ((".Friends", "ham"), (".Junk", "spam")):
        (root / folder / "new").mkdir(parents=True)
        shutil.copytree(SAMPLE / label, root / folder / "cur")
    done = spamnb(home, "train", "--labels", "folders", "--yes", root)
    assert done.code == 0, done.err
    spam, filed, ham, lost, nats = EXPECTED.search(done.out).groups()
    assert int(spam) > int(filed) > int(spam) / 2
    assert int(ham) > 100
    assert lost == "none" or int(lost) < int(ham) / 50
    assert float(nats) < SHIPPED
    assert f"junk from {nats} nats on" in spamnb(home, "status").out
    [newest] = spamnb(home, "journal", "--limit", "1", "--json").json
    assert newest["kind"] == "scores"
    again = spamnb(home, "train", "--labels", "folders", "--yes", root)
    assert EXPECTED.search(again.out).groups() == (spam, filed, ham, lost, nats)
    assert spamnb(home, "journal", "--limit", "1", "--json").json == [newest]
    assert spamnb(home, "undo", str(newest["event"])).code == 0
    assert f"junk from {SHIPPED:.2f} nats on" in spamnb(home, "status").out


def test_too_little_mail_says_nothing(tmp_path, maildir):
    """Of eleven spam nothing can be expected, and the threshold stays the shipped one."""
    home = tmp_path / "home"
    done = spamnb(home, "train", "--labels", "folders", "--yes", maildir)
    assert "not enough to say what to expect" in done.err
    assert f"junk from {SHIPPED:.2f} nats on" in spamnb(home, "status").out


def test_a_daemon_stores_the_scores(tmp_path):
    """The daemon writes the model; with --expect, folders of one label are judged, too."""
    home = tmp_path / "home"
    with serve(tmp_path, "--create").ready() as daemon:
        done = spamnb(home, "train", "--expect", "--json", HAM, SPAM)
        assert done.code == 0, done.err
        expected = done.json[0]["expected"]
        assert 0 < expected["spam_filed"] <= expected["spam"]
        assert expected["threshold"] < SHIPPED
        status = spamnb(home, "status").out
        assert f"junk from {expected['threshold']:.2f} nats on" in status
        assert daemon.stop() == 0
