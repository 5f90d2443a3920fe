"""Small messages, each with what must be read from it.

An expectation is what `expectation` gives, written beside the message as JSON and reviewed by a
person; the digests hold the canonical form still, since stores know messages by them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import Message, Part, read

HERE = Path(__file__).parent
MESSAGES = sorted(HERE.glob("*.eml"))
HOUSE = LocalHosts(hosts=("mx.example.net",), authserv_ids=("mx.example.net",))


def plain(value: bytes | str) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value


def told_part(part: Part) -> dict[str, Any]:
    """Give what is in a part, without what is empty."""
    values = {
        "kind": part.kind,
        "charset": part.charset,
        "encoding": part.encoding,
        "disposition": part.disposition,
        "name": plain(part.name),
        "size": part.size,
        "digest": part.digest.hex(),
        "head": part.head.hex(),
        "text": plain(part.text),
        "hidden": plain(part.hidden),
        "links": [plain(link) for link in part.links],
        "images": [plain(image) for image in part.images],
        "markup": plain(part.markup),
        "depth": part.depth,
    }
    return {name: value for name, value in values.items() if value}


def expectation(message: Message) -> dict[str, Any]:
    """Give all of a message as plain values."""
    return {
        "headers": [[name.decode("ascii"), plain(value)] for name, value in message.headers],
        "parts": [told_part(part) for part in message.parts],
        "oddities": message.oddities,
        "digest": message.digest.hex(),
        "message_id": message.message_id,
    }


def test_golden_messages_are_found() -> None:
    """A test over files that finds no file would pass in silence."""
    assert len(MESSAGES) >= 12
    assert {path.stem for path in HERE.glob("*.json")} == {path.stem for path in MESSAGES}


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: path.stem)
def test_golden_messages_are_read_as_agreed(path: Path) -> None:
    """What was agreed on for a message stays so, with either line end."""
    raw = path.read_bytes()
    wanted = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert expectation(read(raw, HOUSE)) == wanted
    lf = raw.replace(b"\r\n", b"\n")
    assert expectation(read(lf.replace(b"\n", b"\r\n"), HOUSE)) == wanted
