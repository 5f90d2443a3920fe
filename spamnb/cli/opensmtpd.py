"""`spamnb opensmtpd`: the filter that OpenSMTPD starts."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from spamnb.cli.filter import SOCKET
from spamnb.cli.main import command
from spamnb.cli.options import Number
from spamnb.errors import UserError
from spamnb.net.address import Address

DEADLINE_S: Final = 45.0
"""By default the daemon answers earlier, if need be without a verdict (`timeouts.scan_wait_s`).
SMTP clients wait for ten minutes (RFC 5321 4.5.3.2.6)."""

EXAMPLES = """
spamnb opensmtpd                     with /run/spamnb/scan.sock; in smtpd.conf:
   filter spamnb proc-exec "/usr/local/bin/spamnb opensmtpd" user spamnb
   listen on 0.0.0.0 filter spamnb
spamnb opensmtpd 127.0.0.1:783       ask a daemon on TCP
"""


@command("Run as a filter of OpenSMTPD, which starts it.", EXAMPLES, name="opensmtpd")
@click.argument("address", default=str(SOCKET))
@click.option("--deadline", type=Number(1, 280), default=DEADLINE_S, metavar="SECONDS",
              help="Time limit for a verdict; then the message passes without one. "
              "Default: 45.")  # fmt: skip
def opensmtpd(address: str, deadline: float) -> None:
    """Ask the daemon about each message of OpenSMTPD, and add the verdict to its header.

    ADDRESS is the daemon's scanner listener: a path, or host:port. Default:
    /run/spamnb/scan.sock. A message with the action `reject` is refused with 550. Without an answer
    in time, the message passes with `X-Spamnb-Verdict: unscanned`, and the log says why.

    The program runs until OpenSMTPD closes its input, because OpenSMTPD ends when one of its
    filters ends.
    """
    try:
        Address.parse(address)
    except ValueError as error:
        raise UserError(str(error)) from error
    program = [sys.executable, "-P", "-m", "spamnb.opensmtpd", address, str(deadline)]
    sys.stdout.flush()
    os.execv(sys.executable, program)  # noqa: S606 - the program of this process
