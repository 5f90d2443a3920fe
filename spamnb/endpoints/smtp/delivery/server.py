"""Listening, and ending well: the post office as a process runs it.

Must not know processes or settings: bound sockets are given. It needs asyncio's own event loop,
since aiosmtpd's STARTTLS is built on that. Failure: SettingsError for a certificate, table or file
of passwords that cannot be read, before anything is served.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from spamnb.endpoints.smtp.delivery import replies
from spamnb.endpoints.smtp.delivery.delivery import Office
from spamnb.endpoints.smtp.delivery.params import PostOffice
from spamnb.endpoints.smtp.delivery.ports import Links, Listener
from spamnb.endpoints.smtp.delivery.session import Session
from spamnb.errors import SettingsError

BACKLOG: Final = 128
DRAIN_S: Final = 30.0


class Server:
    """A post office that listens. Made within a running event loop."""

    def __init__(self, config: PostOffice, links: Links) -> None:
        # aiosmtpd writes a line a command, with what peers said in it.
        logging.getLogger("mail.log").setLevel(logging.CRITICAL)
        self._tls = tls_context(config)
        self.office = Office(config, links)
        self._servers: list[asyncio.Server] = []

    async def listen(self, listeners: Sequence[Listener]) -> None:
        """Serve on bound sockets."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            made = partial(self._session, listener)
            self._servers.append(
                await loop.create_server(made, sock=listener.sock, backlog=BACKLOG)
            )

    def _session(self, listener: Listener) -> Session:
        return Session(self.office, self._tls, listener.speaks)

    def renew(self, config: PostOffice) -> None:
        """Take other settings, for new connections and transactions. Listeners stay."""
        tls = tls_context(config)
        self.office.renew(config)
        self._tls = tls

    async def drain(self, seconds: float = DRAIN_S) -> None:
        """Take nothing new, let transactions end, then close."""
        office = self.office
        office.stopping = True
        for server in self._servers:
            server.close()
        for session in list(office.sessions):
            if session.idle:
                session.say_goodbye(replies.STOPPING)
        with suppress(TimeoutError):
            await asyncio.wait_for(office.empty.wait(), seconds)
        for session in list(office.sessions):
            session.say_goodbye(replies.STOPPING)
        await asyncio.sleep(0)
        office.close()


def tls_context(config: PostOffice) -> ssl.SSLContext | None:
    """The context for STARTTLS, if there is a certificate."""
    if not config.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An empty passphrase: OpenSSL would ask for one on the terminal, and wait.
        context.load_cert_chain(config.certificate, config.key or None, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"the certificate {config.certificate} cannot be used: {error}",
            hint="PEM files, readable by the user that the daemon runs as",
        ) from error
    return context
