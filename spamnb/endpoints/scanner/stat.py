"""The daemon's status with the names that `rspamc stat` reads. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_VERSION: str = sys.modules["spamnb"].__version__


def stat_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to /stat from the learner's status."""
    facts = header.get("status") or {}
    counters = facts.get("counters") or {}

    def count(name: str) -> int:
        return int(counters.get(name, 0))

    model = facts.get("model") or {}
    return {
        "version": _VERSION,
        "uptime": int(facts.get("up_s", 0)),
        "read_only": False,
        "scanned": count("scanned"),
        "learned": count("learned_spam") + count("learned_ham") + count("learned_other"),
        "actions": {
            "reject": count("decision_reject"),
            "soft reject": count("unscanned_deferred"),
            "rewrite subject": count("mail_action_tag"),
            "add header": count("decision_junk"),
            "greylist": 0,
            "no action": count("decision_deliver") + count("decision_unsure"),
        },
        "spam_count": count("decision_junk") + count("decision_reject"),
        "ham_count": count("decision_deliver") + count("decision_unsure"),
        "connections": count("connections"),
        "control_connections": 0,
        "pools_allocated": 0,
        "pools_freed": 0,
        "bytes_allocated": 0,
        "chunks_allocated": 0,
        "shared_chunks_allocated": 0,
        "chunks_freed": 0,
        "chunks_oversized": 0,
        "fragmented": 0,
        "total_learns": sum(_trained(model)),
        "statfiles": [],
        "fuzzy_hashes": {},
    }


def _trained(model: Mapping[str, Any]) -> list[int]:
    messages = model.get("messages")
    if isinstance(messages, Mapping):
        return [int(number) for number in messages.values()]
    return [int(messages)] if isinstance(messages, int) else []
