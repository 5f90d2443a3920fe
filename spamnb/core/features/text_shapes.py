"""Shapes of what was written: links, style and greeting.

The functions give lines of text, each of which becomes one feature. Must not know locations,
hashing or the model. Invariants: no text raises an exception; the work is bounded by the constants
here.
"""

from __future__ import annotations

import re
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
_FIRST = re.compile(rb"[^a-z\x80-\xff']*+([a-z\x80-\xff']++)[^a-z\x80-\xff']*+([a-z\x80-\xff']*+)")
_LAST = re.compile(rb"[a-z\x80-\xff']++")


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
    lines = text.count(b"\n")
    begin = text[:CASE_READ]
    letters, capitals = (
        len(begin) - len(begin.translate(None, signs)) for signs in (_LETTERS, _CAPITALS)
    )
    return [
        b"quotes %d" % min(text.count(b"\n> ") // 3, 5),
        b"lines %d" % (lines + 1).bit_length(),
        b"caps %d" % (10 * capitals // (letters + 1)),
        b"! %d" % min(text.count(b"!"), 8),
        b"$ %d" % min(text.count(b"$"), 6),
        b"< %d" % (text.count(b"<") + 1).bit_length(),
        b"empty %d" % (10 * text.count(b"\n\n") // (lines + 1)),
        b"ragged %d" % (text.count(b" \n") + 1).bit_length(),
    ]


def greeting(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """The first word and the first two, and the last word."""
    first = _FIRST.match(text[:EDGE_READ].lower())
    last = _LAST.findall(text[-EDGE_READ:].lower())[-1:]
    return [first[1], first[1] + b" " + first[2]] if first else [], last
