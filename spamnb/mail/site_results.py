"""Which results of authentication in a header the site's own servers wrote. Pure.

    prove(block, body, local)                   adds the proven ones to the fields of the block
    statement(block, body, local) -> str        value of X-Spamnb-Results: it lists the proven ones
    own_statement(block, body, value, local)    the same with results that this program found
    border_mark(block, body, local, queue)      value of X-Spamnb-Border: it stands above all of a
                                                message that came from outside
    place_line(queue) -> bytes                  tells this module of a place without Received

A field under the site's name proves nothing, because a sender can write it. A result counts

* above the first Received field, if a host of the site wrote that one: an MTA puts its Received
  field above all that the client sent. A hop by LMTP in front of it does not count, because only
  the MTA speaks LMTP. A lower Received field "by" a host of the site may be the sender's.
* above an X-Spamnb-Border that was written for this message under this queue id. A milter that
  comes before all others writes it.
* if an X-Spamnb-Results lists it for this message. The scan that proved the result writes this
  field, because in a delivered message another hop may stand above the result. So does this
  program for what it found itself (`spamnb.auth`).

Both fields have a code by the key of the model (BLAKE2b). A client that copies one of them from
another message gains nothing: the code covers the fields below it and the first
`_BODY_BYTES` of the body; that of the border also covers the queue id, which is new for each
message, and that of the list the results, which were true for that message.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from spamnb.mail.envelope import BY, LocalHosts
from spamnb.mail.results import MOST_RESULTS, plain_identities, read_results

if TYPE_CHECKING:
    from spamnb.mail.headers import Block, ReceivedField, Trace

STATEMENT: Final = "X-Spamnb-Results"
BORDER: Final = "X-Spamnb-Border"
PLACE: Final = "X-Spamnb-Place"
PROOF_NAMES: Final = frozenset(one.lower().encode() for one in (STATEMENT, BORDER))
_RESULTS_NAME: Final = b"authentication-results"
_BODY_BYTES: Final = 65_536
"""of the body, that a code covers: a message above the scan limit has at least these"""
_MOST_PROOFS: Final = 8
"""X-Spamnb-Border and X-Spamnb-Results fields that are checked"""
_CODE_BYTES: Final = 16
_QUEUE = re.compile(rb"[0-9A-Za-z-]{1,64}")
_LMTP = re.compile(rb"[ \t]+(?:\([^()]*\)[ \t]+)?with[ \t]+LMTPS?A?\b", re.IGNORECASE)
_ID = re.compile(rb"[ \t]id[ \t]+([0-9A-Za-z-]{1,64})(?![0-9A-Za-z-])")
_RECEIVED = re.compile(rb"(?im)^received[ \t]*+:((?:[^\n]*+\n[ \t])*+[^\n]*+)")
_BY_WORD = re.compile(rb"\bby\b", re.IGNORECASE)
_FOLD = re.compile(rb"[\r\n]")
_RECEIVER = re.compile(rb"\breceiver=[ \t]*+\"?([^\s;\"]++)", re.IGNORECASE)


def prove(block: Block, body: bytes, local: LocalHosts) -> None:
    """Add the results that the site wrote to the fields of a block, each in its place."""
    block.proven = _proven(block, body, local)
    for added, trace in enumerate(block.proven):
        block.fields.insert(trace.field + added, (trace.name, trace.value))
        if trace.name == _RESULTS_NAME:
            block.results += read_results(trace.value, local.authserv_ids) or []


def _proven(block: Block, body: bytes, local: LocalHosts) -> list[Trace]:
    traces = [one for one in block.traces[:MOST_RESULTS] if _is_whole(one, local)]
    if not traces:
        return []
    listed = _listed(block, body, local) if local.key else frozenset()
    signatures = [value for name, value in block.fields if name == b"dkim-signature"]
    border, queue = _first_hop(block) if plain_identities(signatures) else (0, b"")
    if local.key:
        border = max(border, _marked_border(block, body, local, queue))
    return [one for one in traces if one.line < border or _hash(one) in listed]


def _is_whole(trace: Trace, local: LocalHosts) -> bool:
    """Whether a server of the site may have written a field, by its form."""
    if trace.name == _RESULTS_NAME:
        return read_results(trace.value, local.authserv_ids) is not None
    found = _RECEIVER.search(trace.value)
    writer = found[1].lower().decode("latin-1") if found is not None else ""
    return writer in {one.lower() for one in local.authserv_ids}


def _first_hop(block: Block) -> tuple[int, bytes]:
    """The line of the Received field below which a sender may have written, and its queue id.

    Fields above this line are the site's. The line is 0 if no host of the site wrote the field, or
    if it has a second `by`: Postfix copies all words of a client's HELO into its field.
    """
    hops = block.hops
    if block.place is not None and (not hops or block.place.line < hops[0].line):
        return 0, block.place.value
    if not hops or not _is_sites(hops[0]):
        return 0, b""
    is_lmtp = _LMTP.match(hops[0].value, _end_of_by(hops[0].value)) is not None
    hop = hops[1] if is_lmtp and len(hops) > 1 and _is_sites(hops[1]) else hops[0]
    found = _ID.search(hop.value, _end_of_by(hop.value))
    return hop.line, found[1] if found is not None else b""


def _is_sites(hop: ReceivedField) -> bool:
    return hop.is_local and len(_BY_WORD.findall(hop.value)) == 1


def _end_of_by(value: bytes) -> int:
    found = BY.search(value)
    return found.end() if found is not None else len(value)


def _marked_border(block: Block, body: bytes, local: LocalHosts, queue: bytes) -> int:
    """The lowest line with a border that was written for this message; 0 without one."""
    if not queue:
        return 0
    found = 0
    for mark in block.borders[:_MOST_PROOFS]:
        code = _code(local.key, b"border", [queue], block.lines[mark.lines :], body)
        if compare_digest(mark.value, code):
            found = max(found, mark.line)
    return found


def _listed(block: Block, body: bytes, local: LocalHosts) -> frozenset[bytes]:
    """Hashes of the results that a list in this message names."""
    found: set[bytes] = set()
    for mark in block.statements[:_MOST_PROOFS]:
        *hashes, code = mark.value.split() or [b""]
        hashes = hashes[:MOST_RESULTS]
        wanted = _code(local.key, b"results", hashes, block.lines[mark.lines :], body)
        if compare_digest(code, wanted):
            found.update(hashes)
    return frozenset(found)


def statement(block: Block, body: bytes, local: LocalHosts) -> str:
    """The value of X-Spamnb-Results for a proven block; empty if nothing is to be said."""
    if not block.proven or not local.key:
        return ""
    hashes = [_hash(one) for one in block.proven]
    if set(hashes) <= _listed(block, body, local):
        return ""
    code = _code(local.key, b"results", hashes, block.lines, body)
    return b" ".join([*hashes, code]).decode("ascii")


def own_statement(block: Block, body: bytes, results: str, local: LocalHosts) -> str:
    """The value of X-Spamnb-Results for results of this program, above what is proven already."""
    own = _hash_of(_RESULTS_NAME, results.encode("ascii"))
    hashes = [own, *map(_hash, block.proven)]
    return b" ".join([*hashes, _code(local.key, b"results", hashes, block.lines, body)]).decode()


def is_first_hop(header: bytes, queue: str) -> bool:
    """Whether the first Received field of a header names this queue id, which no sender knows."""
    first = _RECEIVED.search(header)
    value = first[1] if first is not None else b""
    value = _FOLD.sub(b" ", value)
    found = _ID.search(value, _end_of_by(value))
    return found is not None and found[1] == queue.encode("ascii", "replace")


def border_mark(block: Block, body: bytes, local: LocalHosts, queue: bytes) -> str:
    """The value of X-Spamnb-Border above this message; empty without a key or a queue id."""
    if not local.key or _QUEUE.fullmatch(queue) is None:
        return ""
    return _code(local.key, b"border", [queue], block.lines, body).decode("ascii")


def place_line(queue: bytes) -> bytes:
    """A line above a message that has no Received field of the site: the parser reads it."""
    return PLACE.encode() + b": " + (queue if _QUEUE.fullmatch(queue) else b"") + b"\r\n"


def _hash(trace: Trace) -> bytes:
    return _hash_of(trace.name, trace.value)


def _hash_of(name: bytes, value: bytes) -> bytes:
    text = name + b":" + b" ".join(value.split())
    return blake2b(text, digest_size=8).hexdigest().encode("ascii")


def _code(key: bytes, kind: bytes, words: list[bytes], lines: list[bytes], body: bytes) -> bytes:
    mac = blake2b(key=key, digest_size=_CODE_BYTES, person=kind)
    for part in (b" ".join(words), b"\n".join(lines), body[:_BODY_BYTES].rstrip(b"\r\n")):
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.hexdigest().encode("ascii")
