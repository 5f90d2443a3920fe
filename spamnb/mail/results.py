"""Authentication-Results fields, read by the letter of RFC 8601 2.2. Pure.

    read_results(value, ids) -> the results of one of the named servers, or None
    passed_domains(results)  -> domains with a pass of DKIM or SPF
    results_shown(results)   -> "spf=pass shop.example, dkim=none"
    claims(name, value, ids) -> whether some reader may take a field for one of these servers

Verifiers copy texts of the sender into their field, and some do so without quoting: OpenDKIM 2.11
writes the decoded tag `i=` of a signature, so that a stranger adds `; dkim=pass header.d=...` to a
true field; rspamd quotes the sender's address within a comment, where quotes mean nothing. So a
field with anything that is not in the grammar, or that contradicts itself, says nothing at all; and
`plain_identities` looks at the signatures from which those texts come.

The reader is narrower than the grammar where verifiers are: comments neither nest nor contain
quotes, and stand between blanks. Nothing raises; the work is linear, within `limits.VALUE_BYTES`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from spamnb.mail import limits

MOST_RESULTS: Final = 32
"""results of one field, and fields of one message, that are read"""
SHOWN_CHARACTERS: Final = 256

_GAP = r'(?: \([^()"\\]*\))* '
_END = r'(?: \([^()"\\]*\))* ?(?:;|\Z)'
_ATOM = r"[!#$%&'*+\-.0-9A-Z^_`a-z{|}~]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_KEYWORD = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_DOMAIN = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_LOCAL = r"[!#$%&'*+/=?\-.0-9A-Z^_`a-z{|}~]*"
_BASE64 = r"[A-Za-z0-9+/]+"
"""OpenDKIM does not quote the slash in header.b, the first characters of a signature"""
_PRINTABLE = re.compile(rb"[ -~]*")
_HEAD = re.compile(rf"({_ATOM}|{_QUOTED})(?:{_GAP}1)?{_END}")
_NONE = re.compile(rf" ?none{_END}")
_METHOD = re.compile(rf" ?({_KEYWORD})(?:/1)?=({_KEYWORD})")
_REASON = re.compile(rf"{_GAP}reason=(?:{_QUOTED}|{_ATOM})")
_PROPERTY = re.compile(
    rf"{_GAP}((?:smtp|header|body|policy)\.{_KEYWORD})="
    rf"({_QUOTED}(?:@{_DOMAIN})?|{_LOCAL}@{_DOMAIN}|{_ATOM}|{_BASE64})(?=[ ;]|\Z)"
)
_END_OF_RESULT = re.compile(_END)

_PROPERTIES: Final[Mapping[str, frozenset[str]]] = {
    "dkim": frozenset(("header.d", "header.i", "header.s", "header.b", "header.a")),
    "spf": frozenset(("smtp.mailfrom", "smtp.mail", "smtp.helo")),
    "dmarc": frozenset(("header.from",)),
}
"""what a result of these methods may name, beside policy.*"""
_IDENTITY = re.compile(rb"(?:\A|;)[ \t]*i[ \t]*=([^;]*)", re.IGNORECASE)
_PLAIN_IDENTITY = re.compile(rb"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.@-]*")
_HEX = re.compile(rb"=([0-9A-F]{2})", re.IGNORECASE)
_BLANKS = re.compile(rb"[ \t\r\n]+")
_PARENTHESES = re.compile(r"([()])")
_UNSEEN = re.compile(r"[\s\\\"\0-\x1f\x7f]+")
RESULT_NAMES: Final = frozenset((b"authentication-results", b"received-spf", b"x-received-spf"))


class Result(NamedTuple):
    """What a server found by one method."""

    method: str
    result: str
    properties: Mapping[str, str]


def read_results(value: bytes, ids: Collection[str]) -> list[Result] | None:
    """The results in an unfolded value; None if another server wrote it, or a fault is in it."""
    if len(value) > limits.VALUE_BYTES:
        return None
    flat = _BLANKS.sub(b" ", value).strip(b" ")
    if _PRINTABLE.fullmatch(flat) is None:
        return None
    read = _cached if len(flat) <= _CACHED_BYTES else _results_in
    found = read(flat.decode("ascii"), tuple(ids))
    return None if found is None else list(found)


def _results_in(text: str, ids: tuple[str, ...]) -> tuple[Result, ...] | None:
    head = _HEAD.match(text)
    if head is None or _unquoted(head[1]).lower() not in {one.lower() for one in ids}:
        return None
    at = head.end()
    found: list[Result] = []
    none = _NONE.match(text, at)
    if none is not None and none.end() == len(text):
        return ()
    while at < len(text):
        read = _result_at(text, at)
        if read is None or len(found) == MOST_RESULTS:
            return None
        one, at = read
        found.append(one)
    return tuple(found) if found and _agree(found) else None


# A field is read three times on its way, and the results of a sender come back.
_cached = lru_cache(maxsize=256)(_results_in)
_CACHED_BYTES: Final = 1_000


def _result_at(text: str, at: int) -> tuple[Result, int] | None:
    method = _METHOD.match(text, at)
    if method is None:
        return None
    at = method.end()
    reason = _REASON.match(text, at)
    at = reason.end() if reason is not None else at
    properties: dict[str, str] = {}
    while (one := _PROPERTY.match(text, at)) is not None:
        name = one[1].lower()
        if name in properties:
            return None
        properties[name], at = one[2], one.end()
    end = _END_OF_RESULT.match(text, at)
    result = Result(method[1].lower(), method[2].lower(), properties)
    if end is None or not _is_sound(result) or (end[0].endswith(";") and end.end() == len(text)):
        return None
    return result, end.end()


def _is_sound(one: Result) -> bool:
    """Whether the properties fit the method and each other."""
    allowed = _PROPERTIES.get(one.method)
    if allowed is None:
        return True
    if any(name not in allowed and not name.startswith("policy.") for name in one.properties):
        return False
    domain, identity = one.properties.get("header.d"), one.properties.get("header.i")
    if domain is not None and re.fullmatch(_DOMAIN, domain) is None:
        return False
    if identity is None:
        return True
    return "@" in identity and (domain is None or _is_within(_host(identity), _host(domain)))


def _agree(results: list[Result]) -> bool:
    """Whether no method reports twice on the one sender of the envelope, or on the one author."""
    senders = [one for one in results if one.method == "spf" and _mail_from(one)]
    authors = [one for one in results if one.method == "dmarc"]
    return len(senders) <= 1 and len(authors) <= 1


def _mail_from(one: Result) -> str:
    return one.properties.get("smtp.mailfrom", "") or one.properties.get("smtp.mail", "")


def _host(value: str) -> str:
    return _unquoted(value).rpartition("@")[2].rstrip(".").lower()


def _is_within(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def passed_domains(results: Iterable[Result]) -> list[str]:
    """The domains for which DKIM or SPF passed."""
    found = []
    for one in results:
        if one.result != "pass":
            continue
        if one.method == "dkim":
            named = one.properties.get("header.d") or one.properties.get("header.i", "")
        else:
            named = _mail_from(one) if one.method == "spf" else ""
        found += [_host(named)] if named else []
    return found


def results_shown(results: Iterable[Result]) -> str:
    """Results for people, the history and the log: `spf=pass shop.example, dkim=none`."""
    found = []
    for one in results:
        named = one.properties
        domain = named.get("header.d") or named.get("header.from") or _mail_from(one)
        domain = domain or named.get("smtp.helo", "") or named.get("policy.zone", "")
        found.append(f"{one.method}={one.result} {_host(domain)}".strip())
    return ", ".join(dict.fromkeys(found))[:SHOWN_CHARACTERS]


def plain_identities(signatures: Collection[bytes]) -> bool:
    """Whether verifiers can copy `i=` of these DKIM-Signature values into a field unquoted."""
    return len(signatures) <= MOST_RESULTS and all(
        _PLAIN_IDENTITY.fullmatch(_HEX.sub(_decoded, _BLANKS.sub(b"", identity)))
        for value in signatures
        for identity in _IDENTITY.findall(value[: limits.VALUE_BYTES])
    )


def _decoded(code: re.Match[bytes]) -> bytes:
    return bytes.fromhex(code[1].decode("ascii"))


def claims(name: bytes, value: bytes, ids: Collection[str]) -> bool:
    """Whether a field reports results, and any reader may take it for one of these servers.

    `name` is in lower case without what lenient readers skip. Other servers' names in ASCII are no
    claim; comments, quotes and blanks are skipped, and what is not ASCII counts as a claim.
    """
    if name not in RESULT_NAMES or not ids:
        return False
    if not value.isascii():
        return True
    plain = _UNSEEN.sub("", value.decode("ascii").lower())
    bare = _without_comments(plain)
    return any(one.lower() in form for one in ids for form in (plain, bare))


def _without_comments(text: str) -> str:
    depth, kept = 0, []
    for part in _PARENTHESES.split(text):
        if part in ("(", ")"):
            depth = max(0, depth + (1 if part == "(" else -1))
        elif not depth:
            kept.append(part)
    return "".join(kept)
