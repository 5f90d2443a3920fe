"""One request to a receiver: POST with a signature (Standard Webhooks). Blocking.

Redirects are not followed and proxies of the environment are not used: a request goes only to the
address in the settings. Certificates are verified. Each step has a time limit. Only the status of
the reply is read. Failure: PeerError if there is no reply.
"""

from __future__ import annotations

import hmac
import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from spamnb.endpoints.console.webhooks.params import WebhookParams, WebhookTarget
from spamnb.errors import PeerError

CONNECT_S: Final = 5.0
"""for each address of the host"""
TOTAL_S: Final = 15.0
"""for the TLS handshake, the request and the status of the reply"""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r\n]")
_STATUS_BYTES: Final = 1_024


def signed(key: bytes, name: str, now_s: int, body: bytes) -> dict[str, str]:
    """Return the header fields of an attempt at this time."""
    mac = hmac.new(key, f"{name}.{now_s}.".encode() + body, sha256).digest()
    return {
        "webhook-id": name,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{b64encode(mac).decode()}",
    }


def post(params: WebhookParams, fields: Mapping[str, str], body: bytes) -> int:
    """Send a body; return the status of the reply."""
    target = params.target
    try:
        with _connected(params, target) as wire:
            until = time.monotonic() + TOTAL_S
            wire.settimeout(TOTAL_S)
            wire.sendall(_head(target, fields, len(body)) + body)
            return _status(wire, until)
    except (OSError, UnicodeError) as error:
        raise PeerError(f"{target.host}: {_reason(error)}") from error


def _connected(params: WebhookParams, target: WebhookTarget) -> socket.socket:
    raw = socket.create_connection((target.host, target.port), CONNECT_S)
    if not target.tls:
        return raw
    try:
        context = ssl.create_default_context(cafile=params.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context.wrap_socket(raw, server_hostname=target.host)
    except BaseException:
        raw.close()
        raise


def _head(target: WebhookTarget, fields: Mapping[str, str], size: int) -> bytes:
    all_fields = {
        "Host": target.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(size),
        "Connection": "close",
        "User-Agent": "spamnb",
        **fields,
    }
    lines = [f"{name}: {value}\r\n" for name, value in all_fields.items()]
    return f"POST {target.path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("ascii")


def _status(wire: socket.socket, until: float) -> int:
    """Read the status of the reply; the total time is limited even if it arrives slowly."""
    read = b""
    while b"\n" not in read and len(read) < _STATUS_BYTES:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        wire.settimeout(left)
        more = wire.recv(_STATUS_BYTES)
        if not more:
            break
        read += more
    found = _STATUS.match(read)
    if found is None:
        raise PeerError("the receiver does not reply in HTTP")
    return int(found[1])


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the receiver does not answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
