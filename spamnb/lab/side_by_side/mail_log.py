"""Count the mail that was stopped before the filters or by other means, from a mail server's log.

Mail that the server refuses at the connection, or that a greylist delays, never reaches a filter
that only observes, so there are no verdicts on it to compare. The table has the lines of Postfix
with its policy servers and milters, Exim, and amavis. Pure: lines in, counts out; other lines are
skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

MOST_LINE: Final = 2000

WAYS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            "greylisted",
            r": (?:NOQUEUE|[0-9A-Za-z]+): (?:milter-)?reject: .*\b4[57][01]\b.*grey ?list",
        ),
        ("greylisted", r"temporarily rejected RCPT .*grey ?list"),
        ("list of addresses", r": NOQUEUE: reject: .*\b[45]\d\d\b.*blocked using "),
        ("list of addresses", r": DNSBL rank \d+ for "),
        ("put off by a milter", r": milter-reject: .*: 4\.\d\.\d "),
        ("rejected by a milter", r": milter-reject: "),
        ("rejected before DATA", r": NOQUEUE: reject: (?:CONNECT|HELO|EHLO|MAIL|RCPT) "),
        ("rejected before DATA", r"\brejected (?:connection|EHLO|HELO|MAIL|RCPT) "),
        ("rejected after DATA", r": (?:NOQUEUE|[0-9A-Za-z]+): reject: (?:DATA|END-OF-MESSAGE) "),
        ("rejected after DATA", r"\brejected (?:after DATA|by local_scan)"),
        ("blocked by amavis", r"amavis\[\d+\]: .*\bBlocked (?:SPAM|INFECTED|BANNED)"),
    )
)
"""(what happened, what its line contains): the first row that matches counts"""


def count_ways(lines: Iterable[str]) -> dict[str, int]:
    """How often a log shows each way to stop mail."""
    found: Counter[str] = Counter()
    for line in lines:
        part = line[:MOST_LINE]
        way = next((name for name, pattern in WAYS if pattern.search(part)), None)
        if way is not None:
            found[way] += 1
    return dict(sorted(found.items()))
