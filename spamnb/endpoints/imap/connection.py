"""A connection to an IMAP server: TLS, time limits, bytes in and out.

Every wait ends: after `step_s` without a byte, at the end of the command's time, or when the
program is told to stop. Must not know IMAP. Failure: PeerError.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from typing import Final

from spamnb.endpoints.imap.params import ImapParams, ImapTimes
from spamnb.errors import PeerError

_READ_BYTES: Final = 1 << 16


class StopSignal:
    """Tells threads to stop, and wakes those that wait for a socket."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reader, self._writer = socket.socketpair()

    def set(self) -> None:
        """Tell all to stop; safe in a signal handler."""
        self._event.set()
        self._writer.close()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for this time; return True at once when told to stop."""
        return self._event.wait(seconds)

    def fileno(self) -> int:
        """A descriptor that becomes readable when all are told to stop."""
        return self._reader.fileno()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class ImapConnection:
    """A connected socket. Made by `connect`."""

    def __init__(
        self, sock: socket.socket, times: ImapTimes, stop: StopSignal, *, verify: bool
    ) -> None:
        self._socket = sock
        self._verify = verify
        self._times = times
        self._stop = stop

    @classmethod
    def connect(
        cls, params: ImapParams, times: ImapTimes, stop: StopSignal, *, verify: bool
    ) -> ImapConnection:
        """Connect, with TLS from the first byte if the settings say so."""
        try:
            sock = socket.create_connection((params.host, params.effective_port), times.step_s)
        except (OSError, UnicodeError) as error:
            raise PeerError(f"{params.host}: {_reason(error)}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made = cls(sock, times, stop, verify=verify)
        if params.tls == "implicit":
            made.start_tls(params)
        return made

    def start_tls(self, params: ImapParams) -> None:
        """Encrypt; a certificate that is verified must be valid for the host."""
        try:
            context = ssl.create_default_context(cafile=params.ca_file or None)
            if not self._verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._socket.settimeout(self._times.step_s)
            self._socket = context.wrap_socket(self._socket, server_hostname=params.host)
        except (OSError, ValueError) as error:
            self.close()
            raise PeerError(f"{params.host}: no encryption: {_reason(error)}") from error

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        try:
            self._socket.settimeout(self._times.step_s)
            self._socket.sendall(data)
        except OSError as error:
            raise PeerError(f"the connection is lost: {_reason(error)}") from error

    def receive(self, until: float) -> bytes:
        """Return what has arrived, at least one byte; `until` is a time of the monotonic clock."""
        left = min(self._times.step_s, until - time.monotonic())
        if not self.wait(left):
            raise PeerError("the server does not answer")
        try:
            self._socket.settimeout(max(left, 0.01))
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise PeerError(f"the connection is lost: {_reason(error)}") from error
        if not data:
            raise PeerError("the server closed the connection")
        return data

    def wait(self, seconds: float) -> bool:
        """Wait for bytes, for a limited time; False if there are none. Stops early when told to."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        ready = poller.poll(max(seconds, 0.0) * 1000)
        if self._stop.is_set():
            raise PeerError("the program is told to stop")
        return bool(ready)

    def close(self) -> None:
        self._socket.close()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
