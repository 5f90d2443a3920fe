"""`spamnb filter`: standard input to standard output with the verdict, for delivery programs.

The output is the first of these that works: the answer of the daemon, a scan in a child process
(`ask_scanner`), the message with `X-Spamnb-Verdict: unscanned`, the unchanged message. All failures
exit with 75, so that the callers keep the message. Imports nothing heavy: if the daemon answers,
the start of the program takes most of the time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from spamnb.cli.ask_scanner import Question, answer_of
from spamnb.cli.main import command
from spamnb.cli.messages import standard_input
from spamnb.cli.options import Number
from spamnb.cli.printing import warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import StoreError, UserError
from spamnb.net.address import Address
from spamnb.net.clients import ScanAnswer
from spamnb.policy.headers import header_end, unscanned_fields

SOCKET: Final = Path("/run/spamnb/scan.sock")
"""of the scanner listener in docs/spamc.md"""
HELD_BYTES: Final = 32 << 20
"""of a message; the rest is copied and not scanned"""
_PIECE_BYTES: Final = 1 << 20
_CODES: Final = {"deliver": 0, "unsure": 2, "junk": 1, "reject": 1}
_NO_VERDICT: Final = 75
_IN, _OUT = 0, 1
_Parts = list[bytes | memoryview]

EXAMPLES = """
:0fw                                     two lines for ~/.procmailrc
| spamnb filter
xfilter "spamnb filter"                  for ~/.mailfilter of maildrop
spamnb filter --exit-code < mail > out   exit code 0 ham, 1 spam, 2 unsure, 75 no verdict
spamnb filter -U 127.0.0.1:783 < mail    ask a daemon on TCP
spamnb --home ~/model filter < mail      ask the daemon of this model, else use the model
"""


@command("Mark the message on standard input, for procmail and others.", EXAMPLES, name="filter")
@click.option("-E", "--exit-code", is_flag=True, help="Return the verdict as the exit code: 0 ham, "
              "1 spam, 2 unsure; 75 without a verdict. The message is written anyway.")  # fmt: skip
@click.option("-x", "--require-verdict", is_flag=True, help="Without a verdict write nothing and "
              "exit with 75, so that the caller tries again.")  # fmt: skip
@click.option("-U", "--socket", "place", metavar="ADDRESS", help="The daemon's scanner listener: a "
              "path, or host:port. Default: /run/spamnb/scan.sock; scan.sock in the home if a home "
              "is given.")  # fmt: skip
@click.option("-t", "--timeout", type=Number(0.1, 3600), default=20.0, metavar="SECONDS",
              help="Time limit for the daemon's answer, and again for a scan without the daemon. "
              "Default: 20.")  # fmt: skip
@click.option("-s", "--limit", type=click.IntRange(1, HELD_BYTES), metavar="BYTES",
              help="Pass a larger message without a scan. Without a limit, the first 32 MB of a "
              "message are scanned.")  # fmt: skip
@click.option("--sender", default="", metavar="ADDRESS", help="The sender of the envelope.")
@click.option("--recipient", "recipients", multiple=True, metavar="ADDRESS", help="A recipient of "
              "the envelope, who may then correct the message by its id. It counts only if the "
              "user that runs this command may name users (serve.delegates). "
              "Repeatable.")  # fmt: skip
@pass_session
@click.pass_context
def filter_(
    ctx: click.Context,
    session: CliSession,
    exit_code: bool,
    require_verdict: bool,
    place: str | None,
    timeout: float,
    limit: int | None,
    sender: str,
    recipients: tuple[str, ...],
) -> None:
    """Write the message on standard input to standard output, with its verdict in the header.

    The added fields are X-Spam-Flag (YES or NO), X-Spam-Status, X-Spam-Score, X-Spam-Level,
    X-Spamnb-Verdict and X-Spamnb-Signature. Forged copies of them are removed. All other bytes
    stay: line ends, an mbox line, the body.

    The daemon is asked first. Without a daemon the message is scanned here, with the model of
    --home. Without a model the message passes with `X-Spamnb-Verdict: unscanned`, and a line on
    standard error says why.

    Exit code: 0 if the whole message was written, with or without a verdict; 75 for every failure
    (disk full, standard output closed, unknown option). The caller must then keep the message and
    ignore what was written, as maildrop and getmail do, and procmail with the flag `w`.
    """
    address = _address(session, place)
    pieces, ended = _held(limit + 1 if limit else HELD_BYTES)
    is_large = limit is not None and not ended
    question = Question(address, timeout, {"From": [sender], "Rcpt": recipients})
    parts, code = _marked(session, None if is_large else question, pieces)
    if code == _NO_VERDICT and require_verdict and not is_large:
        raise StoreError("there is no verdict", hint="nothing was written")
    for part in parts:
        _write(part)
    while not ended and (piece := os.read(_IN, _PIECE_BYTES)):
        _write(piece)
    ctx.exit(code if exit_code else 0)


def _address(session: CliSession, place: str | None) -> Address:
    home = session.home_flag or os.environ.get("SPAMNB_HOME")
    if place is None:
        place = str(Path(home).expanduser().absolute() / SOCKET.name if home else SOCKET)
    try:
        return Address.parse(place)
    except ValueError as error:
        raise UserError(str(error)) from error


def _held(most: int) -> tuple[list[bytes], bool]:
    """Read the message, or its first part; whether it is whole."""
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise UserError("standard input or output is closed")
    standard_input()
    for stream in (_IN, _OUT):
        os.set_blocking(stream, True)
    pieces: list[bytes] = []
    left = most
    while left and (piece := os.read(_IN, min(_PIECE_BYTES, left))):
        pieces.append(piece)
        left -= len(piece)
    if not pieces:
        raise UserError("no message is given", hint="it is read from standard input")
    return pieces, left > 0


def _marked(
    session: CliSession, question: Question | None, pieces: list[bytes]
) -> tuple[_Parts, int]:
    """The parts to write and the exit code; after a failure the parts are the message.

    Without a question the message is larger than the limit.
    """
    try:
        message = b"".join(pieces)
        answer = answer_of(session, question, message) if question else None
        if question is None:
            warn("no verdict: the message is larger than --limit")
        header, body = _split(message)
        reason = "fault" if question else "large"
        return [answer.header if answer else _unscanned(header, reason), body], _code_of(answer)
    except Exception as error:  # noqa: BLE001 - the boundary: the message has to pass
        warn(f"the message passes as it is: {error!r}")
        return [*pieces], _NO_VERDICT


def _split(message: bytes) -> tuple[bytes, memoryview]:
    end = header_end(message)
    header = message if end < 0 else message[:end]
    return header, memoryview(message)[len(header) :]


def _unscanned(header: bytes, reason: str) -> bytes:
    from spamnb.scanner.request import marked

    return marked(header, unscanned_fields(reason), b"")[0]


def _code_of(answer: ScanAnswer | None) -> int:
    if answer is None or answer.outcome.get("verdict") == "unscanned":
        return _NO_VERDICT
    if answer.outcome.get("skipped"):
        return 0  # the listener only observes
    return _CODES.get(str(answer.outcome.get("decision")), _NO_VERDICT)


def _write(data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(_OUT, rest) :]
