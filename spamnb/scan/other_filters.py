"""Ask rspamd, SpamAssassin's spamd or bogofilter for a verdict on one message.

    ask = asker_of("rspamd:127.0.0.1:11333")       spamd:HOST:PORT, spamd:unix:PATH,
    mark = ask(raw)                                bogofilter, bogofilter:DIR

Blocking, with a deadline for each message, for use in threads and commands. The other filter gets
the bytes of the message, but not the envelope. It is a program of the administrator, so its replies
are trusted, but their size is limited. Failure: PeerError; UserError for an unknown filter.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from spamnb.errors import PeerError, UserError
from spamnb.mail.other_filters import (
    RSPAMD_ACTIONS,
    FilterMark,
    names_of_tests,
    read_mark,
)
from spamnb.net.address import Address
from spamnb.net.clients import connected
from spamnb.scan.shadow import Ask

ASK_S: Final = 10.0
MOST_REPLY: Final = 1 << 20
_PIECE: Final = 65_536
_SPAMD = re.compile(
    rb"SPAMD/[\d.]+ 0 [^\r\n]*\r?\n(?:[^\r\n]+\r?\n)*?"
    rb"Spam: (?P<word>True|False) ; (?P<score>-?\d+(?:\.\d+)?) / (?P<required>-?\d+(?:\.\d+)?)\r?\n"
    rb"(?:[^\r\n]+\r?\n)*\r?\n(?P<tests>[^\r\n]*)",
    re.IGNORECASE,
)


def asker_of(text: str) -> Ask:
    """A function that asks the filter with this name."""
    kind, _, place = text.partition(":")
    if kind not in ASKERS:
        raise UserError(f"{kind!r} cannot be asked", hint=f"one of {', '.join(ASKERS)}")
    try:
        return ASKERS[kind](place)
    except ValueError as error:
        raise UserError(f"{text}: {error}", hint=f"write {kind}:HOST:PORT") from error


# -- bogofilter -----------------------------------------------------------------------------------


def _bogofilter(place: str) -> Ask:
    folder = ["-d", place] if place else []
    return partial(_ask_bogofilter, ["bogofilter", "-v", *folder])


def _ask_bogofilter(command: list[str], raw: bytes) -> FilterMark | None:
    message = raw.replace(b"\r\n", b"\n")
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program
            command, input=message, capture_output=True, timeout=ASK_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"bogofilter did not answer: {error}") from error
    if done.returncode not in (0, 1, 2):
        text = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise PeerError(f"bogofilter failed: {text}")
    return read_mark(done.stdout[:_PIECE], other="bogofilter")


# -- spamd ----------------------------------------------------------------------------------------


def _spamd(place: str) -> Ask:
    return partial(_ask_spamd, Address.parse(place))


def _ask_spamd(address: Address, raw: bytes) -> FilterMark | None:
    head = b"SYMBOLS SPAMC/1.2\r\nContent-length: %d\r\n\r\n" % len(raw)
    deadline = time.monotonic() + ASK_S
    with connected(address, deadline) as peer:
        try:
            peer.settimeout(ASK_S)
            peer.sendall(head + raw)
            reply = _received(peer, deadline)
        except OSError as error:
            raise PeerError(f"spamd at {address} did not answer: {error}") from error
    found = _SPAMD.match(reply)
    if found is None:
        raise PeerError(f"spamd at {address} gave no verdict")
    return FilterMark(
        "spam" if found["word"].lower() == b"true" else "ham",
        float(found["score"]),
        float(found["required"]),
        names_of_tests(found["tests"].decode("ascii", "replace").split(",")),
    )


def _received(peer: socket.socket, deadline: float) -> bytes:
    """All that the peer sends until it closes the connection."""
    reply = bytearray()
    while len(reply) < MOST_REPLY:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        peer.settimeout(left)
        piece = peer.recv(_PIECE)
        if not piece:
            break
        reply += piece
    return bytes(reply)


# -- rspamd ---------------------------------------------------------------------------------------


def _rspamd(place: str) -> Ask:
    return partial(_ask_rspamd, Address.parse(place))


def _ask_rspamd(address: Address, raw: bytes) -> FilterMark | None:
    asked = http.client.HTTPConnection("localhost", timeout=ASK_S)
    asked.sock = connected(address, time.monotonic() + ASK_S)
    try:
        asked.request("POST", "/checkv2", raw)
        reply = json.loads(asked.getresponse().read(MOST_REPLY))
        action, tests = str(reply["action"]), [str(name) for name in reply.get("symbols", ())]
        score, required = float(reply["score"]), float(reply["required_score"])
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as error:
        raise PeerError(f"rspamd at {address} gave no verdict: {error!r}") from error
    finally:
        asked.close()
    verdict = RSPAMD_ACTIONS.get(action)
    if verdict is None:
        return None
    return FilterMark(verdict, score, required, names_of_tests(tests))


ASKERS: Final[Mapping[str, Callable[[str], Ask]]] = {
    "bogofilter": _bogofilter,
    "spamd": _spamd,
    "rspamd": _rspamd,
}
