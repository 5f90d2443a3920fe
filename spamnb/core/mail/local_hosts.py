"""The names of the local site, which identify headers that local delivery wrote. A value."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from spamnb.core.mail import limits

BY = re.compile(rb"\bby[ \t]++([^\s;()]++)", re.IGNORECASE)
"""the host that wrote a Received field"""


class LocalHosts(NamedTuple):
    """Names of the local site; the headers that it adds are not part of a message."""

    hosts: tuple[str, ...] = ()
    """a Received field "by" one of these hosts is dropped"""
    authserv_ids: tuple[str, ...] = ()
    """results of authentication are kept only from these servers, and only if they are proven"""
    domains: tuple[str, ...] = ()
    """domains with mailboxes at this site"""
    key: bytes = b""
    """by which a message proves its results; empty: only the place of a field proves them"""

    test_key: bytes = b""
    """by which the test message of the doctor proves that it must be marked as junk"""

    def keyed(self, secret: bytes) -> LocalHosts:
        """These names with the key of the model that has this secret."""
        test = blake2b(secret[:64], digest_size=32, person=b"spamnb doctor").digest()
        if not self.authserv_ids:
            return self._replace(test_key=test)
        key = blake2b(secret[:64], digest_size=32, person=b"spamnb results")
        return self._replace(key=key.digest(), test_key=test)


def is_local_hop(value: bytes, local: LocalHosts) -> bool:
    """Whether a Received field names a host of the site as its writer.

    An MTA may copy words of the client, also another `by`, in front of its own name.
    """
    found = BY.findall(value[: limits.VALUE_BYTES])
    return not {name.lower().encode() for name in local.hosts}.isdisjoint(map(bytes.lower, found))
