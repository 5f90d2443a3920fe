"""Ask the other hosts of a fleet for verdicts that they have given, and answer them.

    question    u8 1 | u8 key: 1 signature, 2 digest, 3 Message-ID | text
    answer      u8 1 | varint count | count * chunk history entry, newest first

Questions and answers go through the server of the log, sealed: an answer says to whom a message
was delivered, so that the asking host checks rights as for a verdict of its own. The first bytes
of a signature say which host has it (`host_mark`); by digest or Message-ID all hosts are asked.

Failure: LogAwayError and FleetError of `answer_next`; a host that cannot be asked is `silent`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from spamnb.errors import FleetError, LogAwayError, StoreError
from spamnb.service.engine.lookup import Verdicts
from spamnb.service.fleet.fleet_store import Member
from spamnb.store.fleet.fleet_log import DAY_S, FRESH_S, HOST_BYTES, Asked, Beat, host_mark
from spamnb.store.fleet.seal import Place
from spamnb.store.history.entry import HistoryEntry, decode_entry, encode_entry
from spamnb.store.rows.id_codec import ByteCursor, chunk, varint

ASK_S = 2.0
"""how long one correction waits for the answers of other hosts, in all"""
ANSWER_BYTES = 4 << 20
_VERSION = 1
_KEYS = {1: "signature", 2: "digest", 3: "message_id"}


class OtherHosts:
    """The verdicts of this host and of all others; one object serves one correction.

    A host that has failed to answer is not asked again.
    """

    def __init__(self, member: Member, own: Verdicts | None, *, named_only: bool = False) -> None:
        self.silent: set[str] = set()
        """hosts that may have a verdict that was looked for, and did not answer"""
        self._member, self._own = member, own
        self._named_only = named_only
        """ask only the host that a signature names: for strangers, whose questions have no limit"""
        self._end = time.monotonic() + ASK_S
        self._beats: list[Beat] | None = None

    def find(
        self, *, signature: bytes = b"", message_id: str = "", digest: bytes = b""
    ) -> list[HistoryEntry]:
        """Return the entries with one of the three keys, newest first."""
        keys: dict[str, Any] = {
            "signature": signature, "message_id": message_id, "digest": digest
        }  # fmt: skip
        found = self._own.find(**keys) if self._own else []
        if (signature and found) or not any(keys.values()):
            return found
        judges = self._judges(signature)
        self.silent |= {one.host for one in judges if one.age_s > FRESH_S}
        asked = sorted({one.host for one in judges} - self.silent)
        key = next((kind, keys[name]) for kind, name in _KEYS.items() if keys[name])
        entries = [*found, *(self._ask(asked, *key) if asked else ())]
        return sorted(entries, key=lambda entry: -entry.time_us)

    def _judges(self, signature: bytes) -> list[Beat]:
        """Return the hosts that may have the verdict: those of the last day if none is named.

        A signature has the name that its host had then. If that host is silent, it may have another
        name today, so the living hosts are asked, too.
        """
        try:
            if self._beats is None:
                self._beats = self._member.log.beats()
        except (LogAwayError, FleetError):
            self.silent.add("")
            self._beats = []
        others = [one for one in self._beats if one.host != self._member.host]
        mark = signature[:HOST_BYTES]
        named = [one for one in others if mark and host_mark(one.host) == mark]
        if self._named_only or any(one.age_s <= FRESH_S for one in named):
            return named
        return named + [one for one in others if one.age_s <= (FRESH_S if named else DAY_S)]

    def _ask(self, hosts: Sequence[str], kind: int, key: bytes | str) -> list[HistoryEntry]:
        member, ident = self._member, secrets.token_hex(8)
        text = key.encode(errors="surrogatepass") if isinstance(key, str) else key
        body = member.sealer.seal(bytes((_VERSION, kind)) + text, _question_place(ident))
        left_s = max(self._end - time.monotonic(), 0.0)
        found: list[HistoryEntry] = []
        answered: set[str] = set()
        answers: Mapping[str, bytes] = {}
        with suppress(StoreError):  # the log is away
            answers = member.log.ask(hosts, Asked(ident, body), left_s)
        for host, answer in answers.items():
            with suppress(StoreError):  # this answer is not of this fleet, or of a later version
                found += _decoded(member.sealer.open(answer, _answer_place(ident, host)))
                answered.add(host)
        self.silent |= set(hosts) - answered
        return found


def answer_next(member: Member, history: Verdicts | None, wait_s: float) -> bool:
    """Answer the next question to this host; False if none comes."""
    asked = member.log.next_question(member.host, wait_s)
    if asked is None:
        return False
    question = member.sealer.open(asked.body, _question_place(asked.ident))
    if history is None or question[:1] != bytes((_VERSION,)) or question[1] not in _KEYS:
        raise FleetError("a question of another host cannot be answered", hint="upgrade this host")
    name, text = _KEYS[question[1]], question[2:]
    key: Any = text.decode(errors="surrogatepass") if name == "message_id" else text
    found = history.find(**{name: key})
    sealed = member.sealer.seal(_encoded(found), _answer_place(asked.ident, member.host))
    member.log.answer(member.host, Asked(asked.ident, sealed))
    return True


def _encoded(entries: Sequence[HistoryEntry]) -> bytes:
    chunks: list[bytes] = []
    for entry in entries:
        chunks.append(chunk(encode_entry(entry)))
        if len(chunks) > 1 and sum(map(len, chunks)) > ANSWER_BYTES:
            del chunks[-1]
            break
    return bytes((_VERSION,)) + varint(len(chunks)) + b"".join(chunks)


def _decoded(answer: bytes) -> list[HistoryEntry]:
    reader = ByteCursor(answer)
    if reader.byte() != _VERSION:
        raise FleetError("an answer of a later version", hint="upgrade this host")
    return [decode_entry(reader.chunk()) for _ in range(reader.varint())]


def _question_place(ident: str) -> Place:
    """Return the place of a question; the blank keeps it apart from the name of any host."""
    return Place(ident, "a question", 0, 0, 0)


def _answer_place(ident: str, host: str) -> Place:
    return Place(ident, f"an answer of {host}", 0, 0, 0)
