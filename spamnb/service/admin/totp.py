"""One-time codes of a second factor: TOTP (RFC 6238) with SHA-1, six digits and steps of 30 s.

The secret has 160 bits, in base32 as authenticator apps take it. Must not know logins or clocks.
"""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import b32decode, b32encode
from typing import Final
from urllib.parse import quote, urlencode

SECRET: Final = re.compile(r"[A-Z2-7]{32}")
STEP_S: Final = 30
_SECRET_BYTES: Final = 20
_WINDOW: Final = 1
"""steps before and after the present one: clocks differ, and people type slowly"""
_DIGITS: Final = 6
_CODE: Final = re.compile(rf"[0-9]{{{_DIGITS}}}")


def new_secret() -> str:
    """Return a random secret."""
    return b32encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def uri_of(login: str, secret: str) -> str:
    """Return the address that authenticator apps read, also as a QR code."""
    fields = urlencode({"secret": secret, "issuer": "spamnb"})
    return f"otpauth://totp/{quote(f'spamnb:{login}')}?{fields}"


def code_at(secret: str, step: int) -> str:
    """Return the code of a step."""
    mac = hmac.digest(b32decode(secret), step.to_bytes(8, "big"), "sha1")
    at = mac[-1] & 0x0F
    number = int.from_bytes(mac[at : at + 4], "big") & 0x7FFF_FFFF
    return f"{number % 10**_DIGITS:0{_DIGITS}d}"


def step_of(secret: str, code: str, now_s: int) -> int | None:
    """Return the step that a code belongs to, near the present one; None for a wrong code.

    Each step is compared, so the time says nothing about the code.
    """
    now = now_s // STEP_S
    given = code if _CODE.fullmatch(code) else "-" * _DIGITS
    steps = range(max(now - _WINDOW, 0), now + _WINDOW + 1)
    right = [step for step in steps if hmac.compare_digest(code_at(secret, step), given)]
    return max(right, default=None)
