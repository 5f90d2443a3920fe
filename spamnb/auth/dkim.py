"""DKIM: signatures of domains. RFC 6376, with the algorithms of RFC 8301 and 8463. Pure.

    mail = SignedMail(head, body)
    await check(mail, signature, names, now) -> Signed(result, domain, ...)

A signature is `pass` only if it covers the whole body: one with `l=` that leaves a part out is
`policy`, because other servers may add to such a message. So is one by SHA-1 or by a key below
1,024 bits.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from spamnb.auth.names import Ask, NameFault

DkimResult = Literal["pass", "fail", "policy", "neutral", "permerror", "temperror"]

LEAST_BITS: Final = 1_024
MOST_BITS: Final = 4_096
"""a longer key would cost more time, and no signer needs one"""
MOST_SIGNATURE: Final = 16_384
"""bytes of one signature's field"""
MOST_HASHES: Final = 8
"""of one body: each l= is another one"""
PIECE: Final = 65_536
"""bytes of a body that are hashed at once, so that other threads run in between"""
MOST_NAMES: Final = 256
"""fields that one signature may name"""
_BLANKS = re.compile(rb"[ \t]{2,}|\t")
"""what becomes one blank; a pattern that also finds single ones takes three times as long"""
_INK = re.compile(rb"[^ \t\r\n]")
_BARE_CR = re.compile(rb"\r(?!\n)")
_FIELD = re.compile(rb"[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*")
_TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)+[A-Za-z0-9-]{1,63}")
_OWN_VALUE = re.compile(rb"((?:;|\A[^:;]*:)[ \t\r\n]*b[ \t\r\n]*=)[^;]*")
_ALGORITHMS: Final[Mapping[str, str]] = {"rsa-sha256": "rsa", "ed25519-sha256": "ed25519"}
_REQUIRED: Final = ("a", "b", "bh", "d", "h", "s")
Tags = Mapping[str, str]


class SignatureFault(Exception):  # noqa: N818 - a result, not an error of the program
    """A signature or its key is not usable."""

    def __init__(self, result: DkimResult, reason: str) -> None:
        self.result: DkimResult = result
        self.reason = reason


class Signed(NamedTuple):
    """What became of one signature."""

    result: DkimResult
    domain: str = ""
    selector: str = ""
    algorithm: str = ""
    reason: str = ""


class BodyHash(NamedTuple):
    """The hash of a body, in Base64, and what it covers."""

    digest: str
    hashed: int
    """bytes"""
    size: int
    """bytes of the whole body"""


class SignedMail:
    """A message as signers see it, with CRLF line ends."""

    def __init__(self, head: bytes, body: bytes) -> None:
        lines = _FIELD.findall(_crlf(head.rstrip(b"\r\n") + b"\r\n"))
        self.fields = [(name_of(one), one) for one in lines]
        self._body = _crlf(body)
        self._hashes: dict[tuple[str, int | None], BodyHash] = {}

    def named(self, name: bytes) -> list[bytes]:
        """The fields with a name, in order."""
        return [line for found, line in self.fields if found == name]

    def body_hash(self, form: str, length: int | None) -> BodyHash:
        """The hash of the body, or of its first bytes, in the form `simple` or `relaxed`."""
        key = form, length
        if key not in self._hashes:
            if len(self._hashes) >= MOST_HASHES:
                raise SignatureFault("policy", "too many lengths")
            self._hashes[key] = _hash_of(self._body, form, length)
        return self._hashes[key]


async def check(mail: SignedMail, line: bytes, names: Ask, now: float) -> Signed:
    """What becomes of the signature in one DKIM-Signature field, at a time in seconds."""
    found = Signed("permerror", reason="no signature")
    try:
        tags = tags_of(line)
        found = signed_by(tags)
        host = _check_tags(tags, now)
        await check_content(mail, tags, line, Key(tags, names, host))
    except SignatureFault as fault:
        return found._replace(result=fault.result, reason=fault.reason)
    except NameFault:
        return found._replace(result="temperror", reason="no key in time")
    return found._replace(result="pass")


def signed_by(tags: Tags) -> Signed:
    """Who claims to have signed, by which key."""
    domain, selector = tags.get("d", "").lower(), tags.get("s", "").lower()
    return Signed("permerror", domain[:253], selector[:253], tags.get("a", "").lower()[:40])


def _check_tags(tags: Tags, now: float) -> str:
    """The host of the identity in i=, once the tags of DKIM alone are checked."""
    check_common(tags, now, _REQUIRED)
    if tags.get("v") != "1":
        raise SignatureFault("permerror", "no v=1")
    domain, (_, at, host) = tags["d"].lower(), tags.get("i", "@" + tags["d"]).rpartition("@")
    host = host.lower()
    if not at or not (host == domain or host.endswith(f".{domain}")):
        raise SignatureFault("permerror", "i= is outside d=")
    if b"from" not in _names_of(tags):
        raise SignatureFault("permerror", "From is not signed")
    if "dns/txt" not in _words(tags.get("q", "dns/txt")):
        raise SignatureFault("permerror", "unknown q=")
    return host


async def check_content(mail: SignedMail, tags: Tags, line: bytes, key: Key) -> None:
    """Check the signature of a header and a body. Failure: SignatureFault, NameFault."""
    header_form, body_form, length = _forms_of(tags)
    key.expect()  # the answer may come while the body is hashed
    body = mail.body_hash(body_form, length)
    if length is not None and length > body.size:
        raise SignatureFault("permerror", "l= is longer than the body")
    public = await key.public()
    if body.digest != "".join(tags["bh"].split()):
        raise SignatureFault("fail", "body hash did not verify")
    chosen = [*chosen_fields(mail.fields, _names_of(tags)), without_value(line)]
    verify(public, tags, b"".join([field_form(one, header_form) for one in chosen])[:-2])
    if body.hashed < body.size:
        raise SignatureFault("policy", "a part of the body is not signed")


def _forms_of(tags: Tags) -> tuple[str, str, int | None]:
    """The forms of header and body that are signed, and the length of the signed body."""
    if "l" in tags and not re.fullmatch(r"[0-9]{1,76}", tags["l"]):
        raise SignatureFault("permerror", "l= is no number")
    forms = tags.get("c", "simple").lower().split("/")
    if len(forms) > 2 or not set(forms) <= {"simple", "relaxed"}:
        raise SignatureFault("permerror", "unknown c=")
    header_form, body_form = (*forms, "simple")[:2]
    return header_form, body_form, int(tags["l"]) if "l" in tags else None


def prepare(mail: SignedMail, line: bytes) -> None:
    """Hash the body for a signature in advance, in a thread: this takes long for a large one."""
    with suppress(SignatureFault):
        mail.body_hash(*_forms_of(tags_of(line))[1:])


def check_common(tags: Tags, now: float, required: Sequence[str]) -> None:
    """Check what signatures of DKIM and ARC have in common."""
    missing = next((name for name in required if not tags.get(name)), "")
    if missing:
        raise SignatureFault("permerror", f"no {missing}=")
    algorithm = tags["a"].lower()
    if algorithm == "rsa-sha1":
        raise SignatureFault("policy", "SHA-1")
    if algorithm not in _ALGORITHMS:
        raise SignatureFault("permerror", "unknown a=")
    if not _DOMAIN.fullmatch(tags["d"]) or not _DOMAIN.fullmatch(f"{tags['s']}.x"):
        raise SignatureFault("permerror", "d= or s= is no domain")
    times = [tags.get(name) for name in ("t", "x")]
    if any(one is not None and not re.fullmatch(r"[0-9]{1,12}", one) for one in times):
        raise SignatureFault("permerror", "t= or x= is no time")
    signed, expires = (None if one is None else int(one) for one in times)
    if expires is not None and (expires < now or (signed is not None and expires < signed)):
        raise SignatureFault("fail", "signature expired")


def _names_of(tags: Tags) -> list[bytes]:
    names = [one.strip().lower().encode("latin-1", "replace") for one in tags["h"].split(":")]
    if len(names) > MOST_NAMES or not all(names):
        raise SignatureFault("permerror", "wrong h=")
    return names


def tags_of(line: bytes) -> dict[str, str]:
    """The tags of a field or of a record (RFC 6376 3.2); `permerror` for another form."""
    _, colon, value = line.partition(b":")
    if not colon or len(line) > MOST_SIGNATURE:
        raise SignatureFault("permerror", "signature too long")
    return tags_in(value.decode("latin-1"))


def tags_in(text: str) -> dict[str, str]:
    """The tags of a list; `permerror` for another form, or a tag twice."""
    found: dict[str, str] = {}
    parts = text.split(";")
    if not parts[-1].strip(" \t\r\n"):
        parts.pop()
    for part in parts:
        name, equals, value = part.partition("=")
        name = name.strip(" \t\r\n")
        if not equals or name in found or not _TAG_NAME.fullmatch(name):
            raise SignatureFault("permerror", "wrong list of tags")
        found[name] = value.strip(" \t\r\n")
    return found


# -- what is signed -------------------------------------------------------------------------------


def chosen_fields(fields: Sequence[tuple[bytes, bytes]], names: Sequence[bytes]) -> list[bytes]:
    """The fields that a signature names; a name beyond the last field adds nothing."""
    left: dict[bytes, list[bytes]] = {name: [] for name in names}
    for name, line in fields:
        if name in left:
            left[name].append(line)
    return [left[name].pop() for name in names if left[name]]


def without_value(line: bytes) -> bytes:
    """A signature's field with an empty b=."""
    return _OWN_VALUE.sub(rb"\1", line.removesuffix(b"\r\n"), count=1) + b"\r\n"


def field_form(line: bytes, form: str) -> bytes:
    """A field in the form `simple` or `relaxed`, with its CRLF."""
    if form == "simple":
        return line
    name, _, value = line.partition(b":")
    plain = _BLANKS.sub(b" ", value.replace(b"\r\n", b"")).strip(b" \t")
    return name.strip(b" \t").lower() + b":" + plain + b"\r\n"


def _hash_of(body: bytes, form: str, length: int | None) -> BodyHash:
    """The hash of a body in one of the forms of RFC 6376 3.4."""
    digest, left, size = sha256(), length, 0
    for piece in _pieces(body, form):
        size += len(piece)
        digest.update(piece if left is None else piece[: max(left, 0)])
        left = None if left is None else left - len(piece)
    hashed = size if length is None else min(length, size)
    return BodyHash(base64.b64encode(digest.digest()).decode(), hashed, size)


def _pieces(body: bytes, form: str) -> Iterator[bytes]:
    """A body in one of the forms, without the empty lines at its end."""
    end = len(body.rstrip(b"\r\n" if form == "simple" else b" \t\r\n"))
    end += max((found.end() for found in _BARE_CR.finditer(body[end:])), default=0)
    start = 0
    while start < end:
        ink = _INK.search(body, start + PIECE, end)  # no run of blanks is cut in two
        cut = ink.start() if ink else end
        piece = body[start:cut]
        if form == "relaxed":
            piece = _BLANKS.sub(b" ", piece).replace(b" \r\n", b"\r\n")
        yield piece
        start = cut
    if end or form == "simple":
        yield b"\r\n"


def _crlf(text: bytes) -> bytes:
    if text.count(b"\n") == text.count(b"\r\n"):
        return text
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def name_of(line: bytes) -> bytes:
    """The name of a field, in lower case."""
    return line.partition(b":")[0].strip(b" \t").lower()


# -- keys -----------------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return text.lower().replace(" ", "").split(":")


class Key(NamedTuple):
    """The key that a signature names, not yet asked for."""

    tags: Tags
    names: Ask
    host: str
    """of the signer's identity: some keys are for the domain itself alone"""

    @property
    def name(self) -> str:
        """Where the key is."""
        return f"{self.tags['s']}._domainkey.{self.tags['d']}"

    def expect(self) -> None:
        """Ask already now."""
        self.names.expect(self.name, "TXT")

    async def public(self) -> Any:
        """The public key. Failure: SignatureFault, NameFault."""
        fault = SignatureFault("permerror", "no key")
        for value in (await self.names.ask(self.name, "TXT"))[:4]:
            try:
                return self._in(value)
            except SignatureFault as error:
                fault = error
        raise fault

    def _in(self, record: str) -> Any:
        found = tags_in(record)
        if found.get("v", "DKIM1") != "DKIM1" or "p" not in found:
            raise SignatureFault("permerror", "no key")
        if not found["p"]:
            raise SignatureFault("permerror", "key revoked")
        kind = _ALGORITHMS[self.tags["a"].lower()]
        if found.get("k", "rsa").lower() != kind:
            raise SignatureFault("permerror", "key of another kind")
        is_for_mail = not {"*", "email"}.isdisjoint(_words(found.get("s", "*")))
        if "sha256" not in _words(found.get("h", "sha256")) or not is_for_mail:
            raise SignatureFault("permerror", "key for another use")
        if "s" in _words(found.get("t", "")) and self.host != self.tags["d"].lower():
            raise SignatureFault("permerror", "key for d= alone")
        key = _public_key(kind, "".join(found["p"].split()))
        if isinstance(key, SignatureFault):
            raise SignatureFault(key.result, key.reason)
        return key


@lru_cache(maxsize=512)
def _public_key(kind: str, text: str) -> Any:
    """The key in a record, or the fault of it."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric import ed25519, rsa  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_der_public_key  # noqa: PLC0415

    try:
        data = base64.b64decode(text, validate=True)
        if kind == "ed25519":
            return ed25519.Ed25519PublicKey.from_public_bytes(data)
        key = _rsa_key(data, load_der_public_key)
    except (ValueError, binascii.Error, UnsupportedAlgorithm):
        return SignatureFault("permerror", "broken key")
    if not isinstance(key, rsa.RSAPublicKey):
        return SignatureFault("permerror", "key of another kind")
    if key.key_size < LEAST_BITS:
        return SignatureFault("policy", "key too short")
    if key.key_size > MOST_BITS:
        return SignatureFault("policy", "key too long")
    return key


_RSA: Final = bytes.fromhex("300d06092a864886f70d0101010500")
"""the identifier of RSA's algorithm, in a SubjectPublicKeyInfo"""


def _rsa_key(data: bytes, load: Any) -> Any:
    """A key; RFC 6376 names RSAPublicKey, but signers publish SubjectPublicKeyInfo."""
    try:
        return load(data)
    except ValueError:
        if len(data) > 2_048:
            raise
        bits = b"\x03\x82" + (len(data) + 1).to_bytes(2, "big") + b"\0" + data
        whole = _RSA + bits
        return load(b"\x30\x82" + len(whole).to_bytes(2, "big") + whole)


def verify(key: Any, tags: Tags, signed: bytes) -> None:
    """Check the signature of some bytes. Failure: SignatureFault."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric import padding  # noqa: PLC0415
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

    try:
        signature = base64.b64decode("".join(tags["b"].split()), validate=True)
        if _ALGORITHMS[tags["a"].lower()] == "rsa":
            key.verify(signature, signed, padding.PKCS1v15(), SHA256())
        else:
            key.verify(signature, sha256(signed).digest())
    except (binascii.Error, ValueError) as error:
        raise SignatureFault("permerror", "broken signature") from error
    except InvalidSignature as error:
        raise SignatureFault("fail", "signature did not verify") from error
