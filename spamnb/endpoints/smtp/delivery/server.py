"""Run the delivery agent: listen on bound sockets, reload settings, drain.

Must not know processes or settings. It needs asyncio's own event loop, since aiosmtpd's STARTTLS is
built on it. Failure: SettingsError for an unreadable certificate, table or password file, before
anything is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from spamnb.endpoints.net.credentials import server_tls
from spamnb.endpoints.smtp.delivery import replies
from spamnb.endpoints.smtp.delivery.delivery import DeliveryAgent
from spamnb.endpoints.smtp.delivery.params import DeliveryParams
from spamnb.endpoints.smtp.delivery.ports import AgentDeps, Listener
from spamnb.endpoints.smtp.delivery.session import DeliverySession

BACKLOG: Final = 128
DRAIN_S: Final = 30.0


class Server:
    """A listening delivery agent. Created within a running event loop."""

    def __init__(self, config: DeliveryParams, deps: AgentDeps) -> None:
        # aiosmtpd logs a line for each command, with the client's text in it.
        logging.getLogger("mail.log").setLevel(logging.CRITICAL)
        self._tls = server_tls(config.certificate, config.key)
        self.agent = DeliveryAgent(config, deps)
        self._servers: list[asyncio.Server] = []
        self._open_sessions: set[DeliverySession] = set()

    async def listen(self, listeners: Sequence[Listener]) -> None:
        """Serve on bound sockets."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            made = partial(self._session, listener)
            self._servers.append(
                await loop.create_server(made, sock=listener.sock, backlog=BACKLOG)
            )

    def _session(self, listener: Listener) -> DeliverySession:
        return DeliverySession(self.agent, self._tls, listener.protocol, self._open_sessions)

    @property
    def open_sessions(self) -> int:
        """The number of open sessions."""
        return len(self._open_sessions)

    def apply_settings(self, config: DeliveryParams) -> None:
        """Take new settings for new connections and transactions; listeners stay."""
        tls = server_tls(config.certificate, config.key)
        self.agent.apply_settings(config)
        self._tls = tls

    async def drain(self, seconds: float = DRAIN_S) -> None:
        """Accept no new connections, let transactions finish, then close."""
        agent = self.agent
        agent.stopping = True
        for server in self._servers:
            server.close()
        for session in list(self._open_sessions):
            if session.idle:
                session.say_goodbye(replies.STOPPING)
        with suppress(TimeoutError):
            await asyncio.wait_for(agent.empty.wait(), seconds)
        for session in list(self._open_sessions):
            session.say_goodbye(replies.STOPPING)
        await asyncio.sleep(0)
        agent.close()
