"""`spamnb serve` on models with other labels than ham and spam, also of plain documents."""

import email
import shutil
import smtplib
import subprocess
import sys

import documentcraft
import pytest
from support.daemon import PROJECT, delivered, environment, serve

SAMPLE = PROJECT / "corpora" / "sample"
THREE = {"ham": ("ham", 0), "spam": ("spam", 0), "lists": ("ham", 60)}
NO_SPAM = {"work": ("ham", 0), "private": ("spam", 0), "lists": ("ham", 60)}


def cli(folder, *arguments):
    command = [sys.executable, "-m", "spamnb", "--home", folder / "home", *arguments]
    return subprocess.run(
        list(map(str, command)), env=environment(), capture_output=True, text=True, check=False
    )


def trained(folder, labels):
    """Train a model on parts of the sample, each with its label."""
    arguments = []
    for label, (side, first) in labels.items():
        (folder / label).mkdir()
        for number in range(first, first + 60):
            shutil.copy(SAMPLE / side / f"{number:04}.eml", folder / label)
        arguments.append(f"--label={label}={folder / label}")
    done = cli(folder, "train", *arguments)
    assert done.returncode == 0, done.stderr


def judged(daemon, folder, side, number=119):
    """Send a message of the sample; return the header of the newest delivered copy."""
    raw = (SAMPLE / side / f"{number:04}.eml").read_bytes()
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=30) as client:
        client.sendmail("alice@example.com", ["bob@example.org"], raw)
    ident = email.message_from_bytes(raw)["Message-ID"]
    found = [email.message_from_bytes(one) for one in delivered(folder, ident)]
    return found[-1]


@pytest.mark.parametrize("labels", [THREE, NO_SPAM], ids=["three", "no spam"])
def test_all_labels_but_spam_are_mail(tmp_path, labels):
    """The score of a message falls with the probability of all labels but spam."""
    trained(tmp_path, labels)
    with serve(tmp_path).ready() as daemon:
        scores = {}
        for side in ("ham", "spam"):
            head = judged(daemon, tmp_path, side)
            assert head["X-Spamnb-Verdict"].split("; ")[1].removeprefix("label=") in labels
            assert head["X-Spam-Flag"] == "NO"  # the sample is too small for a sure verdict
            scores[side] = float(head["X-Spam-Score"])
        signature = head["X-Spamnb-Signature"]
        done = cli(tmp_path, "correct", "lists", signature)
        assert done.returncode == 0, done.stderr
        assert "-> lists" in done.stdout
        again = cli(tmp_path, "score", "--json", SAMPLE / "spam" / "0119.eml").stdout
        assert '"label": "lists"' in again
        wrong = cli(tmp_path, "correct", "nonsense", signature)
        assert wrong.returncode == 2
        assert "its labels" in wrong.stderr
        if "spam" in labels:
            assert scores["ham"] < 0 < scores["spam"] < 5
        else:
            assert scores == {"ham": 0.0, "spam": 0.0}
        assert daemon.stop() == 0


def test_a_model_of_documents_takes_corrections_while_it_is_served(tmp_path):
    """Relayed mail is scored as text; a document is corrected by its file."""
    for number, (text, label) in enumerate(documentcraft.collection(120, 3)):
        place = tmp_path / "texts" / label
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.txt").write_text(text)
    done = cli(tmp_path, "train", "--plain", "--classes", tmp_path / "texts")
    assert done.returncode == 0, done.stderr
    with serve(tmp_path).ready() as daemon:
        head = judged(daemon, tmp_path, "ham")
        label = head["X-Spamnb-Verdict"].split("; ")[1].removeprefix("label=")
        assert label in documentcraft.SHARES
        assert head["X-Spam-Score"] == "0.0"
        one = next((tmp_path / "texts" / "trade").iterdir())
        assert "trade -> health" in cli(tmp_path, "correct", "health", one).stdout
        assert cli(tmp_path, "score", one).stdout.split()[1] == "health"
        assert daemon.stop() == 0
