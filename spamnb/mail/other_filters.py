"""The marks of other spam filters in a header: their verdict, score and the tests that matched.

    read_mark(header, hosts=("mx.example.org",))      marks that hosts of the site added
    read_mark(header, other="rspamd")                 marks of the filter in front of spamnb

Any sender can write such fields. A field counts only if one of these is true:

* it stands above the topmost Received field, and that is by one of `hosts`. Each hop adds fields
  above the fields that it received, so fields above that line were added after the message came to
  that host. Of several fields with one name there, the topmost counts. Lower Received fields are
  not read: behind a transparent relay the sender may have written them;
* the caller names the filter that stands in front of spamnb and replaces the marks of others, and
  the field is the only one of its name. So a filter that appends its fields can be read, too.

A value must have the exact form that the filter writes; encoded words and substrings are not
verdicts. One table (`FORMS`) holds all forms. Nothing fails; what cannot be read is no mark. Pure;
imports little, because the settings know the names of the filters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, NamedTuple

from spamnb.mail.envelope import BY

OtherVerdict = Literal["ham", "unsure", "spam"]
OTHER_VERDICTS: Final[tuple[OtherVerdict, ...]] = ("ham", "unsure", "spam")
"""From the mildest to the harshest."""

ANY: Final = "any"
HEADER_BYTES: Final = 65_536
_VALUE_BYTES: Final = 8192
MOST_TESTS: Final = 24
_TEST_CHARS: Final = 40

_NUMBER = rb"(-?\d{1,6}(?:\.\d{1,6})?)"
_TEST = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*+")
_FIELD = re.compile(rb"([!-9;-~]{1,200})[ \t]*+:(.*)", re.DOTALL)

_YES_NO: Final[Mapping[str, OtherVerdict]] = {"yes": "spam", "no": "ham"}
_WORDS: Final[Mapping[str, OtherVerdict]] = {
    "spam": "spam", "ham": "ham", "unsure": "unsure", **_YES_NO,
}  # fmt: skip
_SPAM_ASSASSIN: Final = ("spamassassin", "amavis", "exim", "rspamd", "stalwart")


class FilterMark(NamedTuple):
    """What another filter said of a message."""

    verdict: OtherVerdict
    score: float | None = None
    required: float | None = None
    """the score from which that filter calls a message spam"""
    tests: tuple[str, ...] = ()
    """names of its tests that matched"""

    def text(self) -> str:
        """One line for the notes of the history: `spam 7.5/15 TEST_A,TEST_B`."""
        score = "-" if self.score is None else f"{self.score:g}"
        required = "" if self.required is None else f"/{self.required:g}"
        return f"{self.verdict} {score}{required} {','.join(self.tests)}".rstrip(" ")


@dataclass(frozen=True, slots=True)
class MarkForm:
    """One header field of other filters."""

    name: bytes
    """in lower case"""
    filters: tuple[str, ...]
    """the filters that write the field"""
    pattern: bytes
    """matches the start of the unfolded value; the groups `word`, `score`, `required` and `tests`
    are optional"""
    verdicts: Mapping[str, OtherVerdict]
    """by the word in lower case; other words are no verdict"""
    others: OtherVerdict | None = None
    """the verdict of all other words"""


def _form(
    name: str,
    filters: tuple[str, ...],
    pattern: bytes,
    verdicts: Mapping[str, OtherVerdict],
    others: OtherVerdict | None = None,
) -> MarkForm:
    return MarkForm(name.encode(), filters, pattern, verdicts, others)


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Compiled at the first use: all patterns take 10 ms."""
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


_SCL: Final[Mapping[str, OtherVerdict]] = {
    **dict.fromkeys(("-1", "0", "1", "2", "3", "4"), "ham"),
    **dict.fromkeys(("5", "6", "7", "8", "9"), "spam"),
}
RSPAMD_ACTIONS: Final[Mapping[str, OtherVerdict]] = {
    **dict.fromkeys(("reject", "add header", "rewrite subject", "quarantine"), "spam"),
    **dict.fromkeys(("no action", "greylist", "soft reject"), "ham"),
}
"""Greylisting only delays mail: it is no verdict on the message, so it counts as ham."""
_SCORE_ALONE = rb"(?P<score>" + _NUMBER + rb")(?:\s|$)"

FORMS: Final[tuple[MarkForm, ...]] = (
    _form("x-spam-flag", _SPAM_ASSASSIN, rb"(?P<word>yes|no)\s*\Z", _YES_NO),
    _form("x-spam-status", _SPAM_ASSASSIN,
        rb"(?P<word>yes|no)\b,?(?:\s+(?:score|hits)=(?P<score>" + _NUMBER + rb"))?"
        rb"(?:\s+tagged_above=\S+)?(?:\s+required=(?P<required>" + _NUMBER + rb"))?"
        rb"(?:.*?\btests=(?P<tests>\[[^\]]*|[^\s,]+(?:,\s*[^\s,=]+)*))?", _YES_NO),
    _form("x-spam", ("rspamd",), rb"(?P<word>yes|no)\s*\Z", _YES_NO),
    _form("x-rspamd-action", ("rspamd",), rb"(?P<word>[a-z]+(?: [a-z]+)?)\s*\Z",
        RSPAMD_ACTIONS),
    _form("x-spamd-result", ("rspamd",),
        rb"default: (?P<word>true|false) \[(?P<score>" + _NUMBER + rb") / (?P<required>"
        + _NUMBER + rb")\];?(?P<tests>.*)", {"true": "spam", "false": "ham"}),
    _form("x-bogosity", ("bogofilter",),
        rb"(?P<word>spam|ham|unsure|yes|no),.*?\bspamicity=(?P<score>" + _NUMBER + rb")", _WORDS),
    _form("x-spambayes-classification", ("spambayes",),
        rb"(?P<word>spam|ham|unsure)\b(?:;\s*(?P<score>" + _NUMBER + rb"))?", _WORDS),
    _form("x-text-classification", ("popfile",), rb"(?P<word>[\w-]+)\s*\Z",
        {"spam": "spam", "junk": "spam", "unclassified": "unsure"}, "ham"),
    _form("x-dspam-result", ("dspam",), rb"(?P<word>[a-z]+)\s*\Z", {
        "spam": "spam", "blacklisted": "spam", "blocklisted": "spam", "virus": "spam",
        "innocent": "ham", "whitelisted": "ham",
    }),
    _form("x-mox-reason", ("mox",), rb"(?P<word>[a-z-]+)\s*\Z", {
        "junk-content": "spam", "junk-content-strict": "spam", "no-bad-signals": "ham",
    }),
    _form("x-ms-exchange-organization-scl", ("microsoft",), rb"(?P<word>-?\d)\s*\Z", _SCL),
    _form("x-spam-score", _SPAM_ASSASSIN, _SCORE_ALONE, {}),
    _form("x-spam_score", ("exim",), _SCORE_ALONE, {}),
)  # fmt: skip
"""The fields of other filters. A field without a word only adds its score to another one."""

FILTERS: Final = tuple(sorted({name for form in FORMS for name in form.filters}))
_NAMES: Final = frozenset(form.name for form in FORMS)


def read_mark(header: bytes, hosts: Collection[str] = (), other: str = "") -> FilterMark | None:
    """The verdict of another filter; None if there is none that counts.

    `hosts`: names of the site's own hosts. `other`: the filter in front of spamnb, one of `FILTERS`
    or `ANY`; without it the marks of all filters are read, but only those that `hosts` added.
    Several fields are one mark: the harshest verdict, the first score, all tests.
    """
    lines = _lines(header)
    trusted = dict(reversed(_named(_site_lines(lines, hosts))))
    if other:
        every = _named(lines)
        count = Counter(name for name, _ in every)
        trusted = {name: value for name, value in every if count[name] == 1} | trusted
    marks = [
        mark
        for form in FORMS
        if form.name in trusted and (other in ("", ANY) or other in form.filters)
        for mark in _read(form, trusted[form.name])
    ]
    return _joined(marks)


def _lines(header: bytes) -> list[bytes]:
    """The unfolded lines up to the first blank line."""
    head = header[:HEADER_BYTES].replace(b"\r\n", b"\n")
    if len(header) > HEADER_BYTES:
        head = head[: head.rfind(b"\n") + 1]  # not half a line
    head = b"" if head.startswith(b"\n") else head.partition(b"\n\n")[0]
    return head.replace(b"\n\t", b"\t").replace(b"\n ", b" ").split(b"\n")


def _named(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Names and values of the fields that may be marks."""
    fields = (_FIELD.fullmatch(line) for line in lines)
    named = ((found[1].lower(), found[2].strip()) for found in fields if found)
    return [(name, value) for name, value in named if name in _NAMES]


def _site_lines(lines: list[bytes], hosts: Collection[str]) -> list[bytes]:
    """The lines above the topmost Received field if that is by one of the hosts; else none."""
    known = {host.lower().encode("utf-8", "replace") for host in hosts}
    for number, line in enumerate(lines):
        name, colon, value = line.partition(b":")
        if colon and name.strip().lower() == b"received":
            by = BY.search(value[:_VALUE_BYTES])
            return lines[:number] if by is not None and by[1].lower() in known else []
    return []


class _Reading(NamedTuple):
    """What one field says."""

    verdict: OtherVerdict | None
    score: float | None
    required: float | None
    tests: tuple[str, ...]


def _read(form: MarkForm, value: bytes) -> Iterator[_Reading]:
    found = _compiled(form.pattern).match(value[:_VALUE_BYTES])
    if found is None:
        return
    groups = found.groupdict()
    word = (groups.get("word") or b"").decode("ascii", "replace").lower()
    tests = names_of_tests(_split_tests((groups.get("tests") or b"").decode("ascii", "replace")))
    if any(name.startswith("SPAMNB_") for name in tests):
        return  # this program wrote the field
    verdict = form.verdicts.get(word, form.others if word else None)
    if verdict is not None or not word:
        yield _Reading(verdict, _number(groups, "score"), _number(groups, "required"), tests)


def _split_tests(text: str) -> list[str]:
    """Tests with what follows them: `A,B`, `[A=0.1, B=2]`, or `A(0.10)[options]; B(1.00)[]`."""
    return text.strip("[ \t").split(";" if "(" in text else ",")


def names_of_tests(tests: Iterable[str]) -> tuple[str, ...]:
    """The names at the start of these texts, as far as the limits allow."""
    found = (_TEST.match(text.strip()) for text in tests)
    names = dict.fromkeys(one[0][:_TEST_CHARS] for one in found if one and one[0] != "none")
    return tuple(names)[:MOST_TESTS]


def _number(groups: Mapping[str, bytes | None], name: str) -> float | None:
    text = groups.get(name)
    return float(text) if text else None


def _joined(marks: list[_Reading]) -> FilterMark | None:
    verdicts = [mark.verdict for mark in marks if mark.verdict is not None]
    if not verdicts:
        return None
    scored = next((mark for mark in marks if mark.score is not None), marks[0])
    tests = names_of_tests(name for mark in marks for name in mark.tests)
    harshest = max(verdicts, key=OTHER_VERDICTS.index)
    return FilterMark(harshest, scored.score, scored.required, tests)


_NOTE = re.compile(
    r"(ham|unsure|spam) (?:-|(-?[\d.]+(?:e[+-]\d+)?)(?:/(-?[\d.]+(?:e[+-]\d+)?))?)(?: (\S+))?"
)


def mark_of_text(text: str) -> FilterMark | None:
    """The mark that `FilterMark.text` wrote; None for any other text."""
    found = _NOTE.fullmatch(text)
    if found is None:
        return None
    score, required = (float(one) if one else None for one in (found[2], found[3]))
    tests = tuple(found[4].split(",")) if found[4] else ()
    verdict = next(word for word in OTHER_VERDICTS if word == found[1])
    return FilterMark(verdict, score, required, tests)
