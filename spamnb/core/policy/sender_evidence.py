"""The senders of a message: the addresses that it claims, and which are authenticated. Pure.

A sender address can be forged. An address is authentic only if a server of the site
(`LocalHosts.authserv_ids`) found that DKIM or SPF passed for a domain that is aligned with it (the
same, or one within the other), and if it is proven that this server wrote so
(`core.mail.site_results`). Reading never fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from spamnb.core.mail import headers, limits, site_results
from spamnb.core.mail.domains import address_of, domain_of
from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.mail.message import parted
from spamnb.core.mail.results import passed_domains
from spamnb.core.policy.verdict_headers import header_end

_RETURN_PATH = re.compile(rb"(?i)return-path:[ \t]*<([^<>\s]+)>")
"""the first line of a delivered message (RFC 5321 4.4)"""
_SEPARATORS = re.compile(r"[\s<>(),:;]+")
_FROM = re.compile(rb"\nfrom[ \t]*+:((?:[^\n]*+\n[ \t])*+[^\n]*+)")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[()]|[^"()]+|"')


class SenderEvidence:
    """The sender addresses and authentication results of a message; parsed on demand.

    `header` is that of `raw`, without which no list of results (X-Spamnb-Results) can be checked.
    """

    def __init__(self, header: bytes, local: LocalHosts, sender: str, raw: bytes = b"") -> None:
        self._header, self._raw = header, raw or header
        self._local = local
        self._sender = sender

    @cached_property
    def _parted(self) -> tuple[headers.Block, bytes]:
        return parted(self._raw, self._local, set())

    def _values(self, wanted: bytes) -> list[bytes]:
        return [value for name, value in self._parted[0].fields if name == wanted]

    @cached_property
    def claimed(self) -> list[str]:
        """The envelope's sender, if it is not the null one, and all addresses in From."""
        return [*self._of_envelope, *self._authors]

    @cached_property
    def may_claim(self) -> list[str]:
        """All of `claimed` in lower case, maybe more. Takes 10 us; reading all fields takes 40."""
        values = _FROM.findall(b"\n" + self._header.replace(b"\r\n", b"\n").lower())
        return [*self._of_envelope, *_addresses(headers.unfold(one).strip() for one in values)]

    @cached_property
    def single(self) -> list[str]:
        """The envelope's sender, and a single author: only these can be authentic."""
        return [*self._of_envelope, *(self._authors if len(self._authors) == 1 else [])]

    @property
    def author(self) -> str:
        """The one address in From; empty if there is none, or several."""
        return self._authors[0] if len(self._authors) == 1 else ""

    def is_authentic(self, address: str) -> bool:
        """Whether an address of `single` is authenticated."""
        return any(aligned(domain_of(address), one) for one in self._passed)

    @property
    def _of_envelope(self) -> list[str]:
        return [self._sender] if self._sender else []

    @cached_property
    def _authors(self) -> list[str]:
        """All addresses in From, also those in the place of a display name."""
        return _addresses(self._values(b"from"))

    @cached_property
    def _passed(self) -> list[str]:
        """Domains for which DKIM or SPF passed, as servers of the site found."""
        return passed_domains(self._parted[0].results)

    @property
    def statement(self) -> str:
        """The value of X-Spamnb-Results for this message; empty if no result is proven."""
        return site_results.statement(*self._parted, self._local)


def evidence_of(raw: bytes, local: LocalHosts) -> SenderEvidence:
    """Return the senders of a delivered message; the envelope's sender is in Return-Path."""
    end = header_end(raw)
    head = raw if end < 0 else raw[:end]
    path = _RETURN_PATH.match(head)
    return SenderEvidence(head, local, path[1].decode("latin-1") if path else "", raw)


def _addresses(values: Iterable[bytes]) -> list[str]:
    return [
        word
        for value in values
        for word in _SEPARATORS.split(_plain(value[: limits.VALUE_BYTES].decode("latin-1")) or "")
        if "@" in word
    ]


def warning_of(local: LocalHosts, what: str) -> str:
    """Why wanted senders have no effect; empty if they have one."""
    if local.authserv_ids:
        return ""
    return (
        f"{what} never match, because local.authserv_ids is empty: name the server that checks"
        " DKIM and SPF"
    )


def sender_form(text: str) -> str:
    """An address or a domain, in the one form that is compared."""
    return address_of(text, "") if "@" in text else domain_of(f"@{text}")


def _plain(value: str) -> str | None:
    """A value without comments and quoted texts; None if one does not end."""
    depth, kept = 0, []
    for match in _TOKENS.finditer(value):
        part = match[0]
        if part == '"':
            return None
        depth += {"(": 1, ")": -1}.get(part, 0)
        if depth < 0:
            return None
        if depth == 0 and part != ")":
            # A quoted text stays one word, but the sender chose its content: `;` and `=` in it are
            # no syntax, as in `"Ann" <ann@a.example>` and `smtp.mailfrom="a;b"@x`.
            kept.append("_" if part.startswith('"') else part)
    return None if depth else "".join(kept)


def aligned(sender: str, passed: str) -> bool:
    """Whether a pass for one domain authenticates a sender at another (RFC 7489 3.1, relaxed).

    Without a public suffix list two domains are aligned if one is within the other; a pass of a
    bare top-level domain does not count.
    """
    if "." not in passed or "." not in sender:
        return False
    return sender == passed or sender.endswith(f".{passed}") or passed.endswith(f".{sender}")
