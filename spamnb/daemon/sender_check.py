"""Checks who sent the messages of one process: SPF, DKIM, DMARC and ARC (`spamnb.auth`).

The check is off until a name server has answered, and is tried again each minute. The client is
the one that the mail server reports. Where it reports none (after a queue, by LMTP, from spamc),
the client stands in the Received field that a server of the site wrote (RFC 8601 5).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Final

from spamnb.auth.lists import Zones
from spamnb.auth.names import NameServers
from spamnb.auth.verifier import ReceivedMail, Verifier
from spamnb.errors import UserError
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.headers import Block
from spamnb.mail.results import read_results, results_shown
from spamnb.model.tokens import hop_lines, hops_in
from spamnb.policy.headers import header_end, with_results
from spamnb.policy.senders import SenderEvidence, evidence_of
from spamnb.scan.values import CheckedMail, ScanRequest
from spamnb.settings.schema import AuthSettings
from spamnb.telemetry import Log, incident

TRY_AGAIN_S: Final = 60.0
_SLACK_S: Final = 5.0
"""beside two limits of time, that of the first question and that of a check, on a busy machine"""
_PRIVATE: Final = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
"""networks of a site's own servers"""


class SenderCheck:
    """Implements `values.SenderChecker` in an event loop."""

    def __init__(self, settings: AuthSettings, log: Log) -> None:
        self.is_on = False
        self.adds_fields = settings.add_results
        self._settings = settings
        self._log = log
        self._names: NameServers | None = None
        self._verifier: Verifier | None = None
        self._finding: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look for a name server, in a task of the running loop."""
        if self._settings.is_possible:
            self._finding = asyncio.get_running_loop().create_task(self._find())

    async def close(self) -> None:
        """Stop, and drop the open questions."""
        self.is_on = False
        if self._finding is not None:
            self._finding.cancel()
        if self._names is not None:
            await self._names.close()

    async def find(self) -> bool:
        """Turn the check on if a name server answers."""
        settings = self._settings
        if self._names is None:
            self._names = NameServers.open(settings.resolvers)
            zones = Zones(settings.client_lists, settings.domain_lists)
            self._verifier = Verifier(self._names, settings.wait_s, self._log, zones)
        self.is_on = await self._names.answers(settings.wait_s)
        return self.is_on

    async def _find(self) -> None:
        is_known = False
        while True:
            try:
                found = await self.find()
            except Exception as error:  # noqa: BLE001 - the boundary of a task
                if not isinstance(error, UserError):
                    incident(self._log, "auth", error)
                self._log({"event": "senders are not checked", "error": str(error)})
                return
            if found:
                self._log({"event": "senders are checked"})
                return
            if not is_known:
                self._log({"event": "senders are not checked", "error": "no name server answers"})
            is_known = True
            await asyncio.sleep(TRY_AGAIN_S)

    def start(
        self, request: ScanRequest, message: SenderEvidence, done: Callable[[str], None]
    ) -> Callable[[], None]:
        """Check; `done` gets the results later, unless the returned callable is called."""
        assert self._verifier is not None
        return self._verifier.start(received_mail(request, message), done)

    async def results(self, mail: ReceivedMail) -> str:
        """The results of a message."""
        assert self._verifier is not None
        return await self._verifier.results(mail)


class MailboxCheck:
    """Checks messages of mailboxes for threads that wait: an event loop in a thread of its own."""

    def __init__(self, settings: AuthSettings, log: Log) -> None:
        self._check = SenderCheck(settings, log)
        self._is_possible = settings.is_possible
        self._most_s = 2 * settings.wait_s + _SLACK_S
        self._log = log
        self._tried_s = -TRY_AGAIN_S
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        if self._is_possible:
            self._thread.start()

    def checked(self, raws: Sequence[bytes], local: LocalHosts) -> list[CheckedMail]:
        """Each message with its results above it, unless a server of the site has checked it."""
        if not self._is_possible or not local.key:
            return [_checked(raw, local, "") for raw in raws]
        found = asyncio.run_coroutine_threadsafe(self._checked(raws, local), self._loop)
        try:
            return found.result(self._most_s)
        except TimeoutError:
            found.cancel()
            return [_checked(raw, local, "") for raw in raws]

    def close(self) -> None:
        """Stop, and close the sockets."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._check.close(), self._loop).result(self._most_s)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _checked(self, raws: Sequence[bytes], local: LocalHosts) -> list[CheckedMail]:
        if not self._check.is_on and time.monotonic() - self._tried_s >= TRY_AGAIN_S:
            self._tried_s = time.monotonic()
            with suppress(UserError):  # `config check` reports it
                await self._check.find()
        work = (self._results(raw, local) for raw in raws)
        found = await asyncio.gather(*work, return_exceptions=True)
        for one in found:
            if isinstance(one, Exception):
                incident(self._log, "auth", one)
        results = [one if isinstance(one, str) else "" for one in found]
        return [_checked(raw, local, one) for raw, one in zip(raws, results, strict=True)]

    async def _results(self, raw: bytes, local: LocalHosts) -> str:
        message = evidence_of(raw, local)
        block = message.parts[0]
        if not self._check.is_on or block.results:
            return ""
        end, client = _end(raw), _client_in(block)
        mail = ReceivedMail(raw[:end], raw[end:], message.author, message.sender or None, *client)
        return await self._check.results(mail)


def _checked(raw: bytes, local: LocalHosts, results: str) -> CheckedMail:
    message = evidence_of(raw, local)
    if not results:
        return CheckedMail(raw, results_shown(message.parts[0].results))
    site = local.authserv_ids
    shown = results_shown(read_results(f"{site[0]}; {results}".encode(), site) or [])
    return CheckedMail(with_results(raw, _end(raw), message.parts, local, results).raw, shown)


def _end(raw: bytes) -> int:
    end = header_end(raw)
    return len(raw) if end < 0 else end


def received_mail(request: ScanRequest, message: SenderEvidence) -> ReceivedMail:
    """A message and its client, as the site's servers report them."""
    raw, end = request.raw, request.header_bytes
    envelope, client = request.envelope, request.envelope.client
    address, helo = client.address, client.helo
    if not _is_outside(address):
        address, helo = _client_in(message.parts[0]) if request.is_received else ("", "")
    return ReceivedMail(
        raw[:end],
        raw[end:],
        message.author,
        envelope.sender if envelope.sender or envelope.mail_line else None,
        address,
        helo,
    )


def _client_in(block: Block) -> tuple[str, str]:
    """The address and HELO of the client in the first of the site's Received fields with one."""
    for field in block.hops:
        if not field.is_local:
            break
        for hop in hops_in(hop_lines([field.value])):
            address = hop.address.decode("ascii").removeprefix("ipv6:").removeprefix("IPv6:")
            if _is_outside(address):
                return address, hop.helo.decode("latin-1")
    return "", ""


def _is_outside(address: str) -> bool:
    """Whether an address may be that of another site."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    is_near = found.is_loopback or found.is_link_local or found.is_unspecified
    return not is_near and not any(found in one for one in _PRIVATE if one.version == found.version)
