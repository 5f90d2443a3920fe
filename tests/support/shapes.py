"""Messages of many shapes, including hostile ones, made from messages of the sample."""

import importlib

from support.cli import SAMPLE

FORGED = (
    b"X-Spam-Flag: NO\nx-spam-status: No, score=-9,\n required=5\nX-Spam-Score : -9\n"
    b"X-Spamnb-Verdict: deliver; label=ham; p=0.0000\nX-Spam-Level:\nX-Spamnb-Signature: sabc\n"
)
LONG = b"X-Long: " + b"y" * 900 + b" " + b"word " * 600 + b"\n"
RECIPIENTS = b"Cc: " + b",\n ".join(b"u%d@example.org" % number for number in range(300)) + b"\n"
TRACE = (
    b"Received: from a.example (a.example [192.0.2.1]) by mx.example.org with SMTP id 1;\n"
    b"\tMon, 1 Jan 2024 00:00:00 +0000\n"
)
CONTROLS = bytes(range(1, 9)) + b"\x0b\x0c\x1b\x7f\n"
EIGHT_BIT = "blå grød, Ærø\n".encode() + b"\xff\xfe \x80 latin\n"


def _head(raw):
    return raw.partition(b"\n\n")[0]


def _text(raw):
    return raw.partition(b"\n\n")[2]


def _field(lines, place=1):
    """Put lines before the field with that number; -1: after the last one."""

    def change(raw):
        fields = _head(raw).replace(b"\n ", b"\0 ").replace(b"\n\t", b"\0\t").split(b"\n")
        at = len(fields) if place < 0 else place
        fields.insert(at, lines.removesuffix(b"\n"))
        return b"\n".join(fields).replace(b"\0", b"\n") + b"\n\n" + _text(raw)

    return change


def _added(text):
    return lambda raw: raw + b"\n" + text


SHAPES = {
    "as it is": lambda raw: raw,
    "CRLF": lambda raw: raw.replace(b"\n", b"\r\n"),
    "forged fields first": _field(FORGED, 0),
    "forged fields in the middle": _field(FORGED, 2),
    "forged fields last": _field(FORGED, -1),
    "forged names": _field(b"X-SPAM-LEVEL: *\nX-Spamnb-Clues: none\nX-Spam-Flag\t: NO\n"),
    "forged name with a low line": _field(b"X_Spam-Flag: NO\n"),
    "forged first line": lambda raw: b" X-Spam-Flag: NO\n" + raw,
    "forged fields in the body": _added(FORGED),
    "dots": _added(b".\n..\n.dot\n...\n. \n.\n"),
    "no body": lambda raw: _head(raw) + b"\n",
    "no header": lambda raw: b"\n" + _text(raw),
    "8 bit": lambda raw: _head(raw) + b"\n\n" + EIGHT_BIT,
    "8 bit in the header": _field("Subject: blå grød\nTo: Ærø <a@example.org>\n".encode()),
    "long line": _added(b"word " * 1000 + b"x" * 9000 + b"\n"),
    "long field": _field(LONG),
    "folded fields": _field(b"X-Fold:\n one\n\ttwo\n  three\nSubject: a\n subject\n\tof lines\n"),
    "two subjects": _field(b"Subject: one\nsubject:two\nSUBJECT :three\n"),
    "mbox line": lambda raw: b"From a@example.net Mon Jan  1 00:00:00 2024\n" + raw,
    "line that is no field": _field(b"this line is no field\n", 2),
    "bare CR": _added(b"one\rtwo\r\rthree\n"),
    "NUL": _added(b"zero \0 byte\n"),
    "controls": _added(CONTROLS),
    "empty body": lambda raw: _head(raw) + b"\n\n",
    "no end of line": _added(b"last"),
    "blank lines": lambda raw: _head(raw) + b"\n\n\n\n" + _text(raw) + b"\n\n \n\n",
    "many recipients": _field(RECIPIENTS),
    "body at once": lambda raw: b"This is no header\n" + _text(raw),
    "empty fields": _field(b"Subject:\nX-Empty: \nX-Blank:   \n"),
    "blanks after the colon": _field(b"X-Tab:\tvalue\nX-None:value\nX-Blanks:   value  \n"),
    "From in the body": _added(b"From here on\n>From there\n"),
    "trace of this host": _field(TRACE, 0),
    "first line continues": lambda raw: b" of what\n" + raw,
    "dot in the header": _field(b".X-Test: dot\n"),
    "folded line of blanks": _field(b"X-Fold: one\n   \n two\n"),
}
"""name -> change of a message with LF line ends; the first twenty are those of the short test"""


def messages(count):
    """List (name of the shape, message): ham and spam of the sample in turn."""
    files = [sorted((SAMPLE / label).iterdir()) for label in ("ham", "spam")]
    names = list(SHAPES)
    found = []
    for number in range(count):
        name = names[number % len(names)]
        raw = files[number % 2][number // 2].read_bytes().replace(b"\r\n", b"\n")
        found.append((name, SHAPES[name](raw)))
    return found


def messages_of_corpus(count):
    """List (shape, message) from the corpus, with as much ham as spam; empty without a corpus.

    The messages are spread over the corpus, and have no mbox lines and no marks of other filters.
    """
    mail = importlib.import_module("labelled_mail")
    if mail.is_sample():
        return []
    found = []
    for label in ("ham", "spam"):
        paths = [path for path, side in mail.files() if side == label]
        step = max(1, 2 * len(paths) // count)
        found += [mail.clean(path.read_bytes()) for path in paths[::step][: count // 2]]
    return [("as it is", raw) for raw in found]
