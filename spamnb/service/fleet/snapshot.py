"""A copy of a host's model on the server of the log, with which other hosts join the fleet.

It is the file of a backup in parts, each sealed for its place. The first element is the random name
of the copy and the number of its parts. A copy has the position in the log, so the new host follows
from there.

Failure: FleetError if there is no copy, or it is not sealed with the key of the fleet.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from spamnb.errors import FleetError, RefusedError
from spamnb.service.fleet.fleet_store import Member
from spamnb.store.fleet.seal import Place
from spamnb.store.maintenance import backup, restore

PART_BYTES = 1 << 20
MOST_PARTS = 512
"""A copy takes at most this much of the server's memory; copy a larger model as a file."""


def put_snapshot(home: Path, member: Member, seq: int) -> int:
    """Copy the model of a home, which may be in use, to the server; return the size in bytes.

    `seq` is the number of an event that the copy contains.
    """
    with tempfile.TemporaryDirectory(dir=home) as folder:
        copy = Path(folder) / "copy"
        size = backup(home, copy)
        count = -(-size // PART_BYTES)
        if count > MOST_PARTS:
            raise RefusedError(
                f"the model has {size} bytes, more than a snapshot may have",
                hint="use `spamnb backup` here and `spamnb restore` on the other host",
            )
        with copy.open("rb") as file:
            name = secrets.token_hex(8)
            member.log.put_snapshot(_sealed(file, name, count, member), seq)
    return size


def _sealed(file: BinaryIO, name: str, count: int, member: Member) -> Iterator[bytes]:
    yield f"{name} {count}".encode()
    for index in range(count):
        yield member.sealer.seal(file.read(PART_BYTES), _place(name, index, count))


def take_snapshot(home: Path, member: Member, *, overwrite: bool = False) -> None:
    """Make the model of a home from the copy on the server, after verifying it."""
    parts = member.log.snapshot()
    name, _, count = next(parts, b"").decode("ascii", "replace").partition(" ")
    if not count.isdecimal():
        raise FleetError(
            "the server has no snapshot of the fleet",
            hint="run `spamnb fleet snapshot` on a host of the fleet",
        )
    with tempfile.TemporaryDirectory(dir=home) as folder:
        copy, written = Path(folder) / "copy", 0
        with copy.open("xb") as file:
            for part in parts:
                file.write(member.sealer.open(part, _place(name, written, int(count))))
                written += 1
        if written != int(count):
            raise FleetError("the snapshot is incomplete, or was replaced", hint="try again")
        restore(copy, home, overwrite=overwrite)
    if member.tail is not None:
        # The tail may belong to another history, which may have been erased.
        member.tail.clear()


def _place(name: str, index: int, count: int) -> Place:
    """Return the place of a part; the blank keeps it apart from the name of any host."""
    return Place(name, "a snapshot", index, count, 0)
