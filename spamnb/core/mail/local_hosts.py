"""The names of the local site, which identify headers that local delivery wrote. A value."""

from __future__ import annotations

import re
from typing import NamedTuple

BY = re.compile(rb"\bby[ \t]++([^\s;()]++)", re.IGNORECASE)
"""the host that wrote a Received field"""


class LocalHosts(NamedTuple):
    """Names of the local site; the headers that it adds are not part of a message."""

    hosts: tuple[str, ...] = ()
    """a Received field "by" one of these hosts is dropped"""
    authserv_ids: tuple[str, ...] = ()
    """Authentication-Results are kept only from these"""
    domains: tuple[str, ...] = ()
    """domains with mailboxes at this site"""
