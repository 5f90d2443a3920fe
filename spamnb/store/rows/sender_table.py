r"""The lists of senders as entries of the table `meta`, one for each owner. Pure.

    senders OWNER       u8 1 | KIND NAME | for each entry \\n SENDER WORD TIME

OWNER is `ListOwner.key`. The value alone names a person in clear, so removing the entry removes the
name. A model without lists has no such entry. Failure: StoreDamagedError for inconsistent bytes,
StoreVersionError for an unknown form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spamnb.core.policy.senders import OWNERS, SenderList
from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.store.rows.id_codec import Buffer

if TYPE_CHECKING:
    from spamnb.store.rows.table import Table

SENDERS = b"senders "
_FORM = b"\1"


def encode_senders(senders: SenderList) -> bytes:
    """Encode a list."""
    return _FORM + f"{senders.kind} {senders.name}".encode() + senders.lines


def decode_senders(data: Buffer) -> SenderList:
    """Decode a list; its entries are read when they are needed."""
    data = bytes(data)
    if data[:1] != _FORM:
        raise StoreVersionError(
            "a list of senders in an unknown form", hint="use the newer program that wrote it"
        )
    head, newline, lines = data[1:].partition(b"\n")
    kind, _, name = head.decode("utf-8", "replace").partition(" ")
    owner_kind = next((one for one in OWNERS if one == kind), None)
    if owner_kind is None or not lines.isascii():
        raise StoreDamagedError("a list of senders is damaged", hint="run spamnb check")
    return SenderList(owner_kind, name, newline + lines)


class SenderTable:
    """The lists of all owners."""

    def __init__(self, meta: Table) -> None:
        self._meta = meta

    def get(self, owner: bytes) -> SenderList | None:
        """Return the list of an owner; None if there is none."""
        value = self._meta.get(SENDERS + owner)
        return None if value is None else decode_senders(value)

    def put(self, owner: bytes, senders: SenderList | None) -> None:
        """Replace the list of an owner; one without entries is removed."""
        if senders:
            self._meta.put(SENDERS + owner, encode_senders(senders))
        else:
            self._meta.delete(SENDERS + owner)

    def all(self) -> Iterator[tuple[bytes, SenderList]]:
        """Yield the lists of all owners, with their keys, in order of these."""
        for key, value in self._meta.scan(SENDERS):
            if not key.startswith(SENDERS):
                return
            yield key[len(SENDERS) :], decode_senders(value)
