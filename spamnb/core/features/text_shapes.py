"""Shapes of what was written: links, style and greeting.

The functions give lines of text, each of which becomes one feature. Must not know locations,
hashing or the model. Invariants: no text raises an exception; the work is bounded by the constants
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

LINKS_READ = 60
"""Links whose shape is read."""
HOST_READ, PATH_READ = 255, 60
"""Bytes of a link's host and path."""
STYLE_READ = 4_000
"""Bytes of the first text in which signs are counted."""
CASE_READ = 1_000
"""Bytes of it in which capitals are counted."""
EDGE_READ = 100
"""Bytes at its start and end in which the greeting is looked for."""

_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTERS = _CAPITALS + _CAPITALS.lower()
_BUT_SIGNS = bytes(symbol for symbol in range(256) if symbol not in b"\n!$<")
_TO_WORDS = bytes(
    symbol if symbol >= 128 or symbol in _CAPITALS.lower() + b"'" else ord(" ")
    for symbol in bytes(range(256)).lower()
)
"""lower case, and a blank for all that is not in a word"""


def hosts_and_paths(targets: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Hosts and paths of the first links, which are without their scheme."""
    parts = [target.partition(b"/") for target in islice(filter(None, targets), LINKS_READ)]
    servers = [server[:HOST_READ].lower().rpartition(b"@")[2] for server, _, _ in parts]
    hosts = [server.partition(b":")[0] for server in servers]
    return hosts, [path[:PATH_READ] for _, _, path in parts]


def link_lines(hosts: Iterable[bytes], domains: Sequence[bytes], author: bytes) -> list[bytes]:
    """Facts about the hosts of links, given their registered domains and the author's."""
    distinct = dict.fromkeys(hosts)
    found = [b"dots %d" % host.count(b".") for host in distinct]
    if any(host.replace(b".", b"").isdigit() for host in distinct):
        found.append(b"address")
    found.append(b"sites %d" % min(len(set(domains)), 9))
    if domains:
        found.append(b"own" if author in domains else b"foreign")
    return found


def style(text: bytes) -> list[bytes]:
    """How a text is written, in steps."""
    text = text[:STYLE_READ]
    signs = text.translate(None, _BUT_SIGNS)  # counts of single bytes are then nearly free
    lines = signs.count(b"\n")
    quotes = text.count(b"\n> ") if b">" in text else 0
    begin = text[:CASE_READ]
    letters = len(begin) - len(begin.translate(None, _LETTERS))
    capitals = len(begin) - len(begin.translate(None, _CAPITALS))
    return [
        b"quotes %d" % min(quotes // 3, 5),
        b"lines %d" % (lines + 1).bit_length(),
        b"caps %d" % (10 * capitals // (letters + 1)),
        b"! %d" % min(signs.count(b"!"), 8),
        b"$ %d" % min(signs.count(b"$"), 6),
        b"< %d" % (signs.count(b"<") + 1).bit_length(),
        b"empty %d" % (10 * text.count(b"\n\n") // (lines + 1)),
        b"ragged %d" % (text.count(b" \n") + 1).bit_length(),
    ]


def greeting(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """The first word and the first two, and the last word."""
    first = text[:EDGE_READ].translate(_TO_WORDS).split(None, 2)[:2]
    last = text[-EDGE_READ:].translate(_TO_WORDS).rsplit(None, 1)[-1:]
    return [first[0], first[0] + b" " + b"".join(first[1:])] if first else [], last
