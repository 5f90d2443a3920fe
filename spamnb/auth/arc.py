"""ARC: what servers that forwarded a message found before they changed it. RFC 8617. Pure.

    await check(mail, names, now) -> Chain(result, sealers), or None without a chain

A chain says who saw the message before, not that these servers tell the truth: a site learns what
the word of a sealer is worth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from spamnb.auth import dkim
from spamnb.auth.dkim import Key, SignatureFault, SignedMail, Tags, field_form, without_value
from spamnb.auth.names import Ask, NameFault

MOST_SETS: Final = 10
"""of 50 that RFC 8617 allows: each is a signature"""
_RESULTS, _SIGNATURE, _SEAL = (
    b"arc-authentication-results",
    b"arc-message-signature",
    b"arc-seal",
)
_NAMES: Final = (_RESULTS, _SIGNATURE, _SEAL)
_INSTANCE = re.compile(rb"[^:]*:[ \t\r\n]*i[ \t\r\n]*=[ \t\r\n]*([0-9]{1,2})[ \t\r\n]*;")
"""In the list of results the number stands first."""
_NUMBER = re.compile(r"[1-9][0-9]?")
Set = Mapping[bytes, bytes]


class Chain(NamedTuple):
    """What became of a chain."""

    result: Literal["pass", "fail", "temperror"]
    sealers: tuple[str, ...] = ()
    """domains, the first that forwarded the message first"""
    reason: str = ""


async def check(mail: SignedMail, names: Ask, now: float) -> Chain | None:
    """What becomes of the chain in a message, at a time in seconds."""
    if not any(name in _NAMES for name, _ in mail.fields):
        return None
    try:
        sets = _sets_of(mail)
        seals = [_checked_seal(number, one, now) for number, one in enumerate(sets, 1)]
        for tags in seals:
            _key(tags, names).expect()
        await _check_message(mail, sets[-1], names, now)
        for number in range(len(sets), 0, -1):
            await _check_seal(sets[:number], seals[number - 1], names)
    except SignatureFault as fault:
        return Chain("fail", reason=fault.reason)
    except NameFault:
        return Chain("temperror", reason="no key in time")
    return Chain("pass", tuple(tags["d"].lower() for tags in seals))


def _sets_of(mail: SignedMail) -> list[Set]:
    """The sets in order, each with its three fields."""
    found: dict[int, dict[bytes, bytes]] = {}
    for name, line in mail.fields:
        if name in _NAMES:
            here = found.setdefault(_number_of(name, line), {})
            if name in here:
                raise SignatureFault("fail", "a set has a field twice")
            here[name] = line
    last = len(found)
    if last > MOST_SETS or sorted(found) != list(range(1, last + 1)):
        raise SignatureFault("fail", "a set is missing, or there are too many")
    if any(len(one) != len(_NAMES) for one in found.values()):
        raise SignatureFault("fail", "a set has not all of its fields")
    return [found[number] for number in range(1, last + 1)]


def _number_of(name: bytes, line: bytes) -> int:
    """The number of the set that a field belongs to; 0 for a field without one."""
    text = dkim.tags_of(line).get("i", "") if name != _RESULTS else ""
    if name == _RESULTS and (found := _INSTANCE.match(line)):
        text = found[1].decode("ascii")
    return int(text) if _NUMBER.fullmatch(text) else 0


def _checked_seal(number: int, one: Set, now: float) -> Tags:
    tags = dkim.tags_of(one[_SEAL])
    dkim.check_common(tags, now, ("a", "b", "d", "s", "cv"))
    if "h" in tags or tags["cv"].lower() != ("none" if number == 1 else "pass"):
        raise SignatureFault("fail", "a seal says that the chain is broken")
    return tags


async def _check_message(mail: SignedMail, last: Set, names: Ask, now: float) -> None:
    line = last[_SIGNATURE]
    tags = dkim.tags_of(line)
    dkim.check_common(tags, now, ("a", "b", "bh", "d", "h", "s"))
    await dkim.check_content(mail, tags, line, _key(tags, names))


async def _check_seal(sets: list[Set], tags: Tags, names: Ask) -> None:
    lines = [one[name] for one in sets for name in _NAMES]
    lines[-1] = without_value(lines[-1])
    signed = b"".join([field_form(line, "relaxed") for line in lines])[:-2]
    dkim.verify(await _key(tags, names).public(), tags, signed)


def _key(tags: Tags, names: Ask) -> Key:
    return Key(tags, names, tags["d"].lower())
