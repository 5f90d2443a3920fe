"""How a host finds its fleet and its log."""

from __future__ import annotations

from typing import Literal, NamedTuple

Durable = Literal["local", "trust"]


class FleetParams(NamedTuple):
    """A host of a fleet; without a url the host is alone."""

    url: str = ""
    name: str = "spamnb"
    host: str = ""
    key: str = ""
    password_file: str = ""
    durable: Durable = "local"
    seal: str = "chacha20"
    fold_s: float = 0.5
    append_s: float = 1.0
    keep_events: int = 200_000
