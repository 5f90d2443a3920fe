"""SpamBayes 1.1b3, which is written for Python 2, converted to run on Python 3.

`SpamBayes.load(source)` takes the folder of its source (with `spambayes/` in it). It converts the
modules of the classifier and the tokenizer with `lib2to3` (Python 3.12 or older) and `CHANGES`, in
a temporary folder. SpamBayes reads bytes as characters; decoding them as Latin-1 gives the same.
"""

import csv
import email
import io
import shutil
import subprocess
import sys
from urllib.parse import quote

MODULES = (
    "__init__", "CostCounter", "ImageStripper", "Options", "OptionsClass", "cdb", "chi2",
    "classifier", "dnscache", "i18n", "mboxutils", "safepickle", "tokenizer",
)  # fmt: skip
CHANGES = (
    ("email.Message", "email.message"),
    ("email.Header", "email.header"),
    ("email.Utils", "email.utils"),
    ("email.Errors", "email.errors"),
    ("email.Parser", "email.parser"),
    ("email.Generator", "email.generator"),
    ("import lockfile", "lockfile = None"),
    ("part.get_payload(decode=True)", 'part.get_payload(decode=True).decode("latin-1")'),
    ("x = x.replace('\\r', ' ')", "x = (x.decode('latin-1') if isinstance(x, bytes) else x)"),
)
"""names that Python 3 has changed, and bytes where the program expects characters"""


class SpamBayes:
    """SpamBayes with an empty database."""

    def __init__(self, classifier, tokenize):
        self._classifier, self._tokenize = classifier(), tokenize

    @classmethod
    def load(cls, source, folder):
        """Return a function that makes a new one; its modules are converted into a folder."""
        package = folder / "spambayes"
        package.mkdir()
        for name in MODULES:
            shutil.copy(source / "spambayes" / f"{name}.py", package)
        command = [sys.executable, "-W", "ignore", "-m", "lib2to3", "-w", "-n", "--no-diffs"]
        subprocess.run([*command, package], check=True, capture_output=True)
        for path in package.iterdir():
            text = path.read_text()
            for old, new in CHANGES:
                text = text.replace(old, new)
            path.write_text(text)
        sys.path.insert(0, str(folder))
        from spambayes.classifier import Classifier
        from spambayes.tokenizer import tokenize

        return lambda: cls(Classifier, tokenize)

    def _words(self, raw):
        return self._tokenize(email.message_from_string(raw.decode("latin-1")))

    def learn(self, rows):
        """Learn messages, (raw, label) pairs."""
        for raw, label in rows:
            self._classifier.learn(self._words(raw), label == "spam")

    def scores(self, raws):
        """Return the probabilities of messages."""
        return [self._classifier.spamprob(self._words(raw)) for raw in raws]

    def dump(self):
        """Return the database as `sb_dbexpimp -e` writes it."""
        found = self._classifier
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow([found.nham, found.nspam])
        for word, counts in found.wordinfo.items():
            shown = quote(word, encoding="latin-1", errors="replace")
            writer.writerow([shown, counts.hamcount, counts.spamcount])
        return text.getvalue().encode()
