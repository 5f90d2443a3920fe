"""Building blocks of make-sample: seeded choices, MIME parts, encodings, dates.

The bytes must be the same on every Python. Only `random.random()` has a guaranteed sequence, and
the output of the email package changes between versions, so neither `choice` nor `email` is used.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Dice:
    """Choices from one seed, made by random() only, because its sequence is guaranteed."""

    def __init__(self, *seed: object) -> None:
        text = "/".join(map(str, seed))
        self.random = Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))
        self.roll = self.random.random

    def chance(self, p: float) -> bool:
        return self.roll() < p

    def number(self, low: int, high: int) -> int:
        return low + int(self.roll() * (high - low + 1))

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.roll() * len(choices))]

    def some(self, choices: Sequence[Any], count: int) -> list[Any]:
        return [self.pick(choices) for _ in range(count)]

    def hex(self, digits: int) -> str:
        return f"{int(self.roll() * 16**digits):0{digits}x}"


@dataclass
class Part:
    """A MIME part: its header lines and its encoded body."""

    headers: list[str]
    body: bytes


QUOTED = [bytes([b]) if 32 <= b < 127 and b != 61 else b"=%02X" % b for b in range(256)]


def quoted_printable(data: bytes) -> bytes:
    lines = []
    for line in data.split(b"\n"):
        tokens = [QUOTED[b] for b in line]
        if tokens and tokens[-1] == b" ":
            tokens[-1] = b"=20"
        if sum(map(len, tokens)) > 76:
            room, wrapped = 73, []
            for token in tokens:
                if room < len(token):
                    wrapped.append(b"=\n")
                    room = 73
                wrapped.append(token)
                room -= len(token)
            tokens = wrapped
        lines.append(b"".join(tokens))
    return b"\n".join(lines)


def file_part(kind: str, name: str, data: bytes, *, inline: str = "") -> Part:
    how = [f"Content-ID: <{inline}>"] if inline else []
    how.append(f'Content-Disposition: {"inline" if inline else "attachment"}; filename="{name}"')
    headers = [f'Content-Type: {kind}; name="{name}"', "Content-Transfer-Encoding: base64", *how]
    return Part(headers, base64.encodebytes(data))


def encodable(text: str, charset: str) -> bool:
    try:
        text.encode(charset)
    except UnicodeEncodeError:
        return False
    return True


def header_text(text: str, charset: str, dice: Dice) -> str:
    """Return a header value, with RFC 2047 encoded words if it is not ASCII."""
    if text.isascii():
        return text
    charset = charset if encodable(text, charset) else "utf-8"
    quoted = charset != "iso-2022-jp" and dice.chance(0.4)
    words, step = [], 6 if quoted else 11
    for start in range(0, len(text), step):
        data = text[start : start + step].encode(charset)
        if quoted:
            coded = "".join(chr(b) if chr(b).isalnum() and b < 128 else f"={b:02X}" for b in data)
        else:
            coded = base64.b64encode(data).decode()
        words.append(f"=?{charset}?{'Q' if quoted else 'B'}?{coded}?=")
    return "\n ".join(words)


def date(when: datetime, zone: int = 0) -> str:
    """Return a date in RFC 5322 format; strftime depends on the locale."""
    local = when + timedelta(hours=zone)
    clock = f"{local.hour:02d}:{local.minute:02d}:{local.second:02d} {zone:+03d}00"
    return f"{DAYS[local.weekday()]}, {local.day} {MONTHS[local.month - 1]} {local.year} {clock}"
