"""Signers of DKIM and ARC for tests: an implementation of its own, so that both sides can be wrong.

signed = Signer("example.com").sign(raw)         raw with a DKIM-Signature in front
Signer(...).zone()                               the TXT records with the key
"""

import base64
import re
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1, sha256

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa


@cache
def rsa_key(bits=2048, number=0):
    """A key; `number` distinguishes several of one size."""
    return rsa.generate_private_key(65537, bits)


@cache
def ed25519_key():
    return ed25519.Ed25519PrivateKey.generate()


def relaxed_body(body):
    lines = [re.sub(rb"[ \t]+", b" ", one).rstrip(b" ") for one in body.split(b"\r\n")]
    while lines and not lines[-1]:
        lines.pop()
    return b"".join(one + b"\r\n" for one in lines)


def simple_body(body):
    lines = body.split(b"\r\n")
    while lines and not lines[-1]:
        lines.pop()
    return b"".join(one + b"\r\n" for one in lines) or b"\r\n"


def relaxed_field(line):
    name, _, value = line.partition(b":")
    return name.strip().lower() + b":" + b" ".join(value.split()) + b"\r\n"


@dataclass
class Signer:
    """Signs as one domain."""

    domain: str = "example.com"
    selector: str = "s1"
    kind: str = "rsa"
    bits: int = 2048
    forms: tuple = ("relaxed", "relaxed")
    names: tuple = ("from", "to", "subject", "date", "message-id")
    tags: dict = field(default_factory=dict)
    """further tags, or others in place of the usual ones; None leaves one out"""
    length: int | None = None
    digest: str = "sha256"

    @property
    def key(self):
        return rsa_key(self.bits) if self.kind == "rsa" else ed25519_key()

    def record(self, **tags):
        """The TXT record of the key."""
        if self.kind == "rsa":
            form = serialization.PublicFormat.SubjectPublicKeyInfo
            data = self.key.public_key().public_bytes(serialization.Encoding.DER, form)
        else:
            data = self.key.public_key().public_bytes_raw()
        found = {"v": "DKIM1", "k": self.kind, "p": base64.b64encode(data).decode()} | tags
        return "; ".join(f"{name}={value}" for name, value in found.items())

    def zone(self, **tags):
        return {(f"{self.selector}._domainkey.{self.domain}", "TXT"): [self.record(**tags)]}

    def sign(self, raw, name=b"DKIM-Signature", **more):
        """The message with a signature in front."""
        return self.signature(raw, name, **more) + raw

    def signature(self, raw, name=b"DKIM-Signature", **more):
        head, _, body = raw.partition(b"\r\n\r\n")
        form = relaxed_body if self.forms[1] == "relaxed" else simple_body
        content = form(body)
        if self.length is not None:
            content = content[: self.length]
        make = sha256 if self.digest == "sha256" else sha1
        tags = {
            "v": "1",
            "a": f"{self.kind}-{self.digest}",
            "c": "/".join(self.forms),
            "d": self.domain,
            "s": self.selector,
            **({"l": str(self.length)} if self.length is not None else {}),
            "h": ":".join(self.names),
            "bh": base64.b64encode(make(content).digest()).decode(),
            **self.tags,
            **more,
            "b": "",
        }
        text = "; ".join(f"{tag}={value}" for tag, value in tags.items() if value is not None)
        line = name + b": " + text.encode() + b"\r\n"
        fields = re.findall(rb"[^\r\n]+\r\n(?:[ \t][^\r\n]*\r\n)*", head + b"\r\n")
        chosen = self._chosen(fields)
        chosen.append(line)
        if self.forms[0] == "relaxed":
            chosen = list(map(relaxed_field, chosen))
        return line[:-2] + self._sign(b"".join(chosen)[:-2]) + b"\r\n"

    def _chosen(self, fields):
        left: dict = {}
        for one in fields:
            left.setdefault(one.partition(b":")[0].strip().lower().decode(), []).append(one)
        return [left[name].pop() for name in self.names if left.get(name)]

    def _sign(self, data):
        if self.kind == "ed25519":
            return base64.b64encode(self.key.sign(sha256(data).digest()))
        chosen = hashes.SHA256() if self.digest == "sha256" else hashes.SHA1()
        return base64.b64encode(self.key.sign(data, padding.PKCS1v15(), chosen))

    def seal(self, raw, number, validity, results="mx.example.net; spf=pass"):
        """The message with one more set of ARC in front."""
        one = Signer(self.domain, self.selector, self.kind, self.bits, self.forms, self.names)
        arrived = f"ARC-Authentication-Results: i={number}; {results}\r\n".encode()
        message = one.signature(raw, b"ARC-Message-Signature", v=None, i=str(number))
        # i= has to come first for some readers; its place is free (RFC 8617 4.1.2).
        seal = (
            f"ARC-Seal: i={number}; a={self.kind}-sha256; cv={validity}; d={self.domain};"
            f" s={self.selector}; b="
        ).encode()
        sets = _sets(raw)
        lines = [line for name in sorted(sets) for line in sets[name]]
        lines += [arrived, message]
        data = b"".join(map(relaxed_field, [*lines, seal + b"\r\n"]))[:-2]
        return seal + self._sign(data) + b"\r\n" + message + arrived + raw


def _sets(raw):
    """The sets of a chain by number, each in the order in which they are signed."""
    head = raw.partition(b"\r\n\r\n")[0] + b"\r\n"
    fields = re.findall(rb"[^\r\n]+\r\n(?:[ \t][^\r\n]*\r\n)*", head)
    order = (b"arc-authentication-results", b"arc-message-signature", b"arc-seal")
    found: dict = {}
    for name in order:
        for line in fields:
            if line.partition(b":")[0].lower() == name:
                number = int(re.search(rb"[:;]\s*i=(\d+)", line)[1])
                found.setdefault(number, []).append(line)
    return found
