"""Signed links: one message in quarantine, for one recipient, until a time.

    home/console/link_keys/YYYYMM    32 random bytes, drawn in that month

A link needs no login: its holder may see this message, release it to its recipient, and delete it
for the recipient. The link contains version, key, end, message and recipient, with an HMAC-SHA256
of 128 bits over all of them. A key is deleted when the links of its month have ended; deleting the
folder ends all links. Failure: ApiError for a link that is not valid, StoreError if
the keys cannot be read or written.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from spamnb.endpoints.console.problems import ApiError
from spamnb.store.files import durable_write, make_folder, refused

LIFE_S: Final = 14 * 86_400
_VERSION: Final = 1
_HEAD: Final = Struct(">BIQB")
"""version, month of the key, end in seconds, length of the message's ID"""
_MAC_BYTES: Final = 16
_KEY_BYTES: Final = 32
_MOST_CHARS: Final = 1_000
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]+")
_MONTH: Final = re.compile(r"[0-9]{6}")


class SignedLink(NamedTuple):
    """What a link is for."""

    message: str
    """the ID in quarantine; empty for a link that turns digests off"""
    user: str
    """the recipient's address"""


class SignedLinks:
    """Makes and reads the links of one home."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "console" / "link_keys"

    def make(self, link: SignedLink, now_s: float) -> str:
        """Return the text of a link that ends after `LIFE_S`."""
        if not link.user:  # the link would be valid for all recipients
            raise ValueError("a link is for one recipient")
        month = _month_of(now_s)
        message = link.message.encode("ascii")
        head = _HEAD.pack(_VERSION, month, int(now_s) + LIFE_S, len(message))
        signed = head + message + link.user.encode()
        text = urlsafe_b64encode(signed + _mac(self._key_of_now(month), signed))
        return text.rstrip(b"=").decode("ascii")

    def read(self, text: str, now_s: float) -> SignedLink:
        """Return what a link is for."""
        signed = self._verified(text)
        _, _, end_s, size = _HEAD.unpack_from(signed)
        if now_s >= end_s:
            raise ApiError(410, "this link is too old", hint="log in instead")
        rest = signed[_HEAD.size :]
        return SignedLink(rest[:size].decode("ascii"), rest[size:].decode())

    def _verified(self, text: str) -> bytes:
        """The signed bytes of a link."""
        if len(text) <= _MOST_CHARS and _TEXT.fullmatch(text) and len(text) % 4 != 1:
            found = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            signed, mac = found[:-_MAC_BYTES], found[-_MAC_BYTES:]
            if len(signed) > _HEAD.size and signed[0] == _VERSION:
                key = self._key(_HEAD.unpack_from(signed)[1])
                if key and hmac.compare_digest(_mac(key, signed), mac):
                    return signed
        raise ApiError(404, "this link is not valid", hint="log in instead")

    # -- keys -----------------------------------------------------------------------------------

    def _key(self, month: int) -> bytes:
        """The key of a month; empty if there is none."""
        path = self._folder / f"{month:06d}"
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise refused(error, path) from error
        return found if len(found) == _KEY_BYTES else b""

    def _key_of_now(self, month: int) -> bytes:
        """The key of this month; a missing key is created."""
        found = self._key(month)
        if found:
            return found
        make_folder(self._folder)
        try:
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                # Another process may have created it meanwhile.
                found = self._key(month)
                if not found:
                    found = secrets.token_bytes(_KEY_BYTES)
                    durable_write(self._folder / f"{month:06d}", found)
                    self._delete_old(month)
            finally:
                os.close(handle)
        except OSError as error:
            raise refused(error, self._folder) from error
        return found

    def _delete_old(self, month: int) -> None:
        """Delete the keys whose links have ended: links live for less than a month."""
        before = month - 1 if month % 100 > 1 else month - 89
        for path in self._folder.iterdir():
            if _MONTH.fullmatch(path.name) and int(path.name) < before:
                with suppress(FileNotFoundError):
                    path.unlink()


def _month_of(now_s: float) -> int:
    at = time.gmtime(now_s)
    return at.tm_year * 100 + at.tm_mon


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, b"spamnb link " + signed, sha256).digest()[:_MAC_BYTES]
