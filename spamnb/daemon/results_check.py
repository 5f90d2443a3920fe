"""What becomes of a forged result of authentication at each listener, for `spamnb config check`.

A forged message and a true one go through the code that the listener runs before a scan: removal,
place, parser. Pure; no address is opened. Settings with which nothing is ever believed are found
here, because the daemon runs well with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import parted
from spamnb.mail.site_results import BORDER, border_mark
from spamnb.milter.session import MilterMessage
from spamnb.policy.headers import placed, remove_claims
from spamnb.policy.senders import evidence_of
from spamnb.settings import Settings
from spamnb.settings.schema import ListenerSettings

_QUEUE = "4TEST"
_MAIL = b"From: a <a@example.net>\r\nSubject: x\r\nMessage-ID: <x@example.net>\r\n\r\ntext\r\n"
_BORDER_ADVICE = (
    "add a milter listener with border = true, and name it first in the MTA's list of milters, see"
    " docs/milter.md"
)


class ResultsFate(NamedTuple):
    """What one listener does with results of authentication."""

    text: str
    remedy: str = ""
    """what to change; empty if results can be believed, and forged ones cannot"""


def outcomes(settings: Settings) -> Iterator[ResultsFate]:
    """One sentence for each listener; none without names of servers."""
    if not settings.site.authserv_ids:
        return
    local = settings.site.keyed(b"check")
    has_border = any(one.border for one in settings.listener.values())
    for name, listener in settings.listener.items():
        if listener.border:
            yield ResultsFate(f"listener.{name}: {_at_border(local)}")
        else:
            found = _outcome(listener, local, has_border=has_border)
            yield found._replace(text=f"listener.{name}: {found.text}")


def _at_border(local: LocalHosts) -> str:
    message = MilterMessage([b"<>"], 1 << 16, 0.0, site=local.authserv_ids)
    for line in _forged(local).split(b"\r\n")[:2]:
        name, _, value = line.partition(b":")
        message.add_field(name, value)
    count = len(message.claims)
    return f"a forged result of a stranger is {'removed' if count else 'passed on'}"


def _outcome(listener: ListenerSettings, local: LocalHosts, *, has_border: bool) -> ResultsFate:
    hop = _received(local)
    forged, true = _forged(local), _result(local)
    marked = true + _marked(_MAIL, local) + _MAIL
    if listener.protocol == "milter":
        seen, proven = _in_milter(forged), has_border and _is_believed(_in_milter(marked), local)
        where, remedy = f"above {BORDER}", _BORDER_ADVICE
    else:
        before = listener.protocol == "smtp" and listener.queue == "before"
        seen = remove_claims(hop + forged, local, received=True, sent=False) if before else b""
        seen = seen or hop + forged
        proven = _is_believed(true + hop + _MAIL, local)
        where = f"above the first Received field by {', '.join(local.hosts)}"
        where += f", and above {BORDER}" if has_border else ""
        remedy = "set local.hosts to the names after `by` in your servers' Received fields"
    fate = "ignored" if forged.partition(b"\r\n")[0] in seen else "removed"
    fate = "BELIEVED" if _is_believed(seen, local) else fate
    text = f"a forged result of a stranger is {fate}"
    if not proven:
        return ResultsFate(f"{text}; no result is ever believed here", remedy)
    return ResultsFate(f"{text}; a result is believed {where}")


def _is_believed(raw: bytes, local: LocalHosts) -> bool:
    return evidence_of(raw, local).is_authentic("a@example.net")


def _result(local: LocalHosts) -> bytes:
    name = local.authserv_ids[0].encode("ascii", "replace")
    return b"Authentication-Results: %b; spf=pass smtp.mailfrom=a@example.net\r\n" % name


def _received(local: LocalHosts) -> bytes:
    name = (local.hosts or ("localhost",))[0].encode("ascii", "replace")
    return b"Received: from x ([192.0.2.1]) by %b with ESMTP id %b; now\r\n" % (
        name,
        _QUEUE.encode("ascii"),
    )


def _forged(local: LocalHosts) -> bytes:
    """A message in which a stranger claims both a result and a hop of the site."""
    return _result(local) + _received(local) + _MAIL


def _in_milter(raw: bytes) -> bytes:
    return placed(raw, raw.index(b"\r\n\r\n") + 4, _QUEUE)[0]


def _marked(raw: bytes, local: LocalHosts) -> bytes:
    mark = border_mark(*parted(raw, local, set()), local, _QUEUE.encode("ascii"))
    return f"{BORDER}: {mark}\r\n".encode("ascii")
