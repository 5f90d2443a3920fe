"""Read a log page by page. Pages begin small and grow, since large entries take much memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spamnb.store.fleet.fleet_log import LogEntry

FIRST_PAGE, LAST_PAGE = 16, 1024
"""entries"""
PAGE_BYTES = 8 << 20


def paged(
    page_of: Callable[[int, int, float], list[LogEntry]], after: int, wait_s: float
) -> Iterator[LogEntry]:
    """Yield the entries after an event; `page_of(after, count, wait_s)` reads at most `count`.

    Only the first page waits for an entry.
    """
    count = FIRST_PAGE
    while found := page_of(after, count, wait_s):
        yield from found
        after, wait_s = found[-1].last, 0.0
        if sum(len(entry.body) for entry in found) < PAGE_BYTES // 2:
            count = min(2 * count, LAST_PAGE)
