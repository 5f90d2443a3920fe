"""`spamnb serve` on models with other labels than ham and spam, also of plain documents."""

import email
import shutil
import smtplib

import documentcraft
import pytest
from support.cli import SAMPLE
from support.cli import forked as spamnb
from support.daemon import delivered, serve
from support.waiting import LIMIT_S

THREE = {"ham": ("ham", 0), "spam": ("spam", 0), "lists": ("ham", 60)}
NO_SPAM = {"work": ("ham", 0), "private": ("spam", 0), "lists": ("ham", 60)}


def trained(folder, labels):
    """Train a model on parts of the sample, each with its label."""
    arguments = []
    for label, (side, first) in labels.items():
        (folder / label).mkdir()
        for number in range(first, first + 60):
            shutil.copy(SAMPLE / side / f"{number:04}.eml", folder / label)
        arguments.append(f"--label={label}={folder / label}")
    done = spamnb(folder / "home", "train", *arguments)
    assert done.code == 0, done.err


def judged(daemon, folder, side, number=119):
    """Send a message of the sample; return the header of the newest delivered copy."""
    raw = (SAMPLE / side / f"{number:04}.eml").read_bytes()
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
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
        done = spamnb(tmp_path / "home", "correct", "lists", signature)
        assert done.code == 0, done.err
        assert "-> lists" in done.out
        again = spamnb(tmp_path / "home", "score", "--json", SAMPLE / "spam" / "0119.eml").out
        assert '"label": "lists"' in again
        wrong = spamnb(tmp_path / "home", "correct", "nonsense", signature)
        assert wrong.code == 2
        assert "its labels" in wrong.err
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
    done = spamnb(tmp_path / "home", "train", "--plain", "--classes", tmp_path / "texts")
    assert done.code == 0, done.err
    with serve(tmp_path).ready() as daemon:
        head = judged(daemon, tmp_path, "ham")
        label = head["X-Spamnb-Verdict"].split("; ")[1].removeprefix("label=")
        assert label in documentcraft.SHARES
        assert head["X-Spam-Score"] == "0.0"
        one = next((tmp_path / "texts" / "trade").iterdir())
        assert "trade -> health" in spamnb(tmp_path / "home", "correct", "health", one).out
        assert spamnb(tmp_path / "home", "score", one).out.split()[1] == "health"
        assert daemon.stop() == 0
