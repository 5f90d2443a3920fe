"""Check one message by SPF, DKIM, DMARC and ARC, within one time limit.

    verifier = Verifier(NameServers.open(), wait_s=2.0, log=log)
    results = await verifier.results(mail)    -> "spf=pass smtp.mailfrom=example.com; dkim=..."
    verifier.start(mail, done)                calls done(results) once; returns what cancels it

The results have the form of RFC 8601, without the name of the server. A check that gets no answer
in time is `temperror`, so a message waits at most `wait_s`. Results name domains only: addresses
of senders are often new for each message.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Final, NamedTuple

from spamnb.auth import arc, dkim, dmarc, lists, spf
from spamnb.auth.dkim import Signed, SignedMail
from spamnb.auth.lists import Role, Subject, Zones
from spamnb.auth.names import Ask, NameServers
from spamnb.mail.envelope import domain_of
from spamnb.mail.message import read
from spamnb.mail.results import MOST_RESULTS
from spamnb.telemetry import Log, incident

MOST_SIGNATURES: Final = 6
"""checked of one message; those of the author's organisation come first"""
MOST_HEAD: Final = 262_144
"""bytes of a header whose signatures are checked: each of them walks through its fields"""
LARGE: Final = 262_144
"""bytes of a body that is hashed in a thread: 64 KB take 0.3 ms"""
MOST_LINKED: Final = 8
"""linked domains of one message that lists are asked for"""
MOST_HOSTS: Final = 200
NO_ZONES: Final = Zones()
_UNSIGNED: Final = ('dkim=permerror reason="header too large"', "dkim=none")
_HOSTS = re.compile(r"://(?:[^\s/@]{0,100}@)?([A-Za-z0-9][A-Za-z0-9.-]{2,252})")
_DOMAIN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
_SIGNED = re.compile(rb"(?im)^(?:dkim-signature|arc-)")
"""Most spam has no signature; then its fields are not split."""
_D_TAG = re.compile(rb"[;:][ \t\r\n]*d[ \t\r\n]*=[ \t\r\n]*([^;\s]{1,253})")


class ReceivedMail(NamedTuple):
    """A whole message, as its client sent it."""

    head: bytes
    body: bytes
    author: str
    """the one address in From; empty if there is none, or several"""
    sender: str | None
    """of the envelope; None if it is not known"""
    client: str
    """the IP address; empty if it is not known"""
    helo: str


class Verifier:
    """Checks the messages of one process, in its event loop."""

    def __init__(
        self, names: NameServers, wait_s: float, log: Log, zones: Zones = NO_ZONES
    ) -> None:
        self._names = names
        self._wait_s = wait_s
        self._log = log
        self._zones = zones

    def start(self, mail: ReceivedMail, done: Callable[[str], None]) -> Callable[[], None]:
        """Check a message; `done` gets its results once, unless the returned callable is called.

        After an internal fault the results are empty.
        """
        task = asyncio.get_running_loop().create_task(self.results(mail))
        ended = partial(self._ended, done)
        task.add_done_callback(ended)

        def cancel() -> None:
            task.remove_done_callback(ended)
            task.cancel()

        return cancel

    def _ended(self, done: Callable[[str], None], task: asyncio.Task[str]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            incident(self._log, "auth", error)
        done("" if task.cancelled() or error is not None else task.result())

    async def results(self, mail: ReceivedMail) -> str:
        """The results of a message."""
        until = asyncio.get_running_loop().time() + self._wait_s
        return await _results(mail, self._zones, self._names.questions(until))

    async def close(self) -> None:
        """Drop the open questions."""
        await self._names.close()


async def _results(mail: ReceivedMail, zones: Zones, names: Ask) -> str:
    author = domain_of(mail.author)
    author = author if _DOMAIN.fullmatch(author) else ""
    is_read = len(mail.head) <= MOST_HEAD and _SIGNED.search(mail.head)
    signed = SignedMail(mail.head, mail.body) if is_read else SignedMail(b"", b"")
    lines = _first_signatures(signed.named(b"dkim-signature"), author)
    if author:
        dmarc.expect(author, names)
    for line in lines:
        _expect_key(line, names)
    subjects = _subjects_of(mail, author, zones)
    lists.expect(subjects, zones, names)
    if lines and len(mail.body) > LARGE:
        for line in lines:
            await asyncio.to_thread(dkim.prepare, signed, line)
    now = time.time()
    found, passed = await _spf(mail, names)
    signatures = [await dkim.check(signed, line, names, now) for line in lines]
    found += [_signature_text(one) for one in signatures] or [
        _UNSIGNED[len(mail.head) <= MOST_HEAD]
    ]
    if author:
        domains = [one.domain for one in signatures if one.result == "pass"]
        finding = await dmarc.check(author, passed, domains, names)
        is_open = any("=temperror" in one for one in found)
        found.append(_dmarc_text(finding, is_open=is_open))
    chain = await arc.check(signed, names, now)
    if chain is not None:
        found.append(_with_domain(f"arc={chain.result}", "policy.sealer", *chain.sealers[-1:]))
    found += await lists.check(subjects, zones, names)
    return "; ".join(found[:MOST_RESULTS])


def _subjects_of(mail: ReceivedMail, author: str, zones: Zones) -> list[Subject]:
    """What the lists are asked for."""
    client = lists.client_subject(mail.client) if zones.client else None
    found = [client] if client else []
    if not zones.domain:
        return found
    domains: dict[Role, list[str]] = {
        "author": [author],
        "sender": [domain_of(mail.sender or "")],
        "link": _linked_domains(mail) if len(mail.body) <= LARGE else [],
    }
    for role, names in domains.items():
        known = dict.fromkeys(dmarc.organization(one) for one in names if _DOMAIN.fullmatch(one))
        found += [Subject(role, name) for name in list(known)[:MOST_LINKED]]
    return found


def _linked_domains(mail: ReceivedMail) -> list[str]:
    """The hosts of links, as a reader of the message sees them."""
    message = read(mail.head + b"\r\n" * (not mail.head.endswith(b"\r\n\r\n")) + mail.body)
    targets = [str(target) for part in message.parts for target in part.links]
    texts = [part.text if isinstance(part.text, str) else part.text.decode("ascii")
             for part in message.parts]  # fmt: skip
    hosts = _HOSTS.findall(" ".join([*targets, *texts]))
    return [host.lower() for host in hosts[:MOST_HOSTS]]


async def _spf(mail: ReceivedMail, names: Ask) -> tuple[list[str], str]:
    """The result of SPF, and the domain that passed; nothing if the client is not known."""
    if mail.sender is None or not mail.client:
        return [], ""
    try:
        ip_address(mail.client.partition("%")[0])
    except ValueError:
        return [], ""
    result, domain = await spf.check(mail.client, mail.sender, mail.helo, names)
    name = "smtp.mailfrom" if "@" in mail.sender else "smtp.helo"
    return [_with_domain(f"spf={result}", name, domain)], domain if result == "pass" else ""


def _first_signatures(lines: Sequence[bytes], author: str) -> list[bytes]:
    """The signatures that are checked: first those of the author's organisation."""
    if len(lines) <= 1:
        return list(lines)

    def is_other(line: bytes) -> bool:
        found = _D_TAG.search(line[: dkim.MOST_SIGNATURE])
        domain = found[1].decode("latin-1") if found else ""
        return not author or dmarc.organization(domain) != dmarc.organization(author)

    return sorted(lines, key=is_other)[:MOST_SIGNATURES]


def _expect_key(line: bytes, names: Ask) -> None:
    with suppress(dkim.SignatureFault):
        tags = dkim.tags_of(line)
        if tags.get("s") and tags.get("d"):
            dkim.Key(tags, names, "").expect()


def _signature_text(one: Signed) -> str:
    shown = f"dkim={one.result}"
    if one.reason:
        shown += f' reason="{one.reason}"'
    shown = _with_domain(shown, "header.d", one.domain)
    return _with_domain(_with_domain(shown, "header.s", one.selector), "header.a", one.algorithm)


def _dmarc_text(finding: dmarc.Finding, *, is_open: bool) -> str:
    result = "temperror" if finding.result == "fail" and is_open else finding.result
    shown = _with_domain(f"dmarc={result}", "header.from", finding.author)
    return f"{shown} policy.dmarc={finding.policy}" if finding.policy else shown


def _with_domain(shown: str, name: str, domain: str = "") -> str:
    """A result with a property, where the sender's text is one of a harmless form."""
    return f"{shown} {name}={domain.lower()}" if _DOMAIN.fullmatch(domain) else shown
