"""The rough shape of texts, in numpy: their signs, and where letters and digits are between them.

It must not know locations, hashing or the model.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_LETTER, _DIGIT = b"a", b"9"
_BETWEEN = b"\xff"
"""separates texts; a byte that no shape contains"""


def _classes() -> bytes:
    table = bytearray(range(128)) + _LETTER * 128
    for symbol in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
        table[symbol] = _LETTER[0]
    for symbol in b"0123456789":
        table[symbol] = _DIGIT[0]
    return bytes(table)


_CLASSES = _classes()
_REPEATS = np.isin(np.arange(256), np.frombuffer(_LETTER + _DIGIT, np.uint8), invert=True)
"""[byte] whether repeats of it are kept"""


def rough(texts: Iterable[bytes]) -> list[bytes]:
    """The texts with `a` for each run of letters, and `9` for each run of digits.

    8 us for 1,300 bytes; two regular expressions take 22, `replace` in steps 27.
    """
    shapes = _BETWEEN.join([b"", *[text.translate(_CLASSES) for text in texts]])
    codes = np.frombuffer(shapes, np.uint8)
    kept = _REPEATS.take(codes[1:])
    kept |= codes[1:] != codes[:-1]
    return codes[1:].compress(kept).tobytes().split(_BETWEEN)
