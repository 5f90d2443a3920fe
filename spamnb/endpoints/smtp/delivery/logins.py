"""Logins: who may say who they are, and by which password.

One line a login in a text file that only its owner reads:

    alice@example.org:$scrypt$ln=15,r=8,p=3$SALT$HASH:alice@example.org,postmaster@example.org

The addresses are those that are delivered to the person; without any, the login is the address.
Passwords are kept as scrypt hashes (RFC 7914; ln=15, r=8, p=3 takes 32 MB and a fifth of a second,
one of the equal choices of the OWASP cheat sheet). An unknown login costs as much time as a wrong
password. `FailedLogins` slows down whoever guesses.

Must not know protocols. Failure: SettingsError with file and line.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spamnb.core.mail.envelope import network_of
from spamnb.errors import SettingsError, StoreAccessError
from spamnb.store.files import durable_write
from spamnb.store.lmdb.sharing import make_folder

MOST_PASSWORD = 1_024
"""Bytes; a longer one is no password. scrypt's first step reads all of it."""
LOGIN = re.compile(r"[^\s:,\x00-\x1f\x7f]{1,254}")

_HASH = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})"
    r"\$([A-Za-z0-9+/=]{16,88})\$([A-Za-z0-9+/=]{24,88})"
)
_MOST_COST = 1 << 22
"""N * r * p of a hash that is tried: five times what we write ourselves"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a guess costs."""

    ln: int = 15
    """N is 2 to this"""
    r: int = 8
    p: int = 3


@dataclass(frozen=True, slots=True)
class Login:
    """One line of the file."""

    name: str
    secret: str
    addresses: tuple[str, ...] = ()


def hashed(password: str, cost: Cost | None = None) -> str:
    """A password's hash, with a salt of its own."""
    cost = cost or Cost()
    salt = secrets.token_bytes(16)
    return _closed(cost, salt, _scrypt(password.encode(), salt, cost))


def _nobody(cost: Cost) -> str:
    """A hash that no password has; trying one costs what the others cost."""
    return _closed(cost, secrets.token_bytes(16), secrets.token_bytes(32))


def _closed(cost: Cost, salt: bytes, digest: bytes) -> str:
    return (
        f"$scrypt$ln={cost.ln},r={cost.r},p={cost.p}"
        f"${b64encode(salt).decode()}${b64encode(digest).decode()}"
    )


def _scrypt(password: bytes, salt: bytes, cost: Cost) -> bytes:
    most = 128 * cost.r * ((1 << cost.ln) + cost.p + 2) + (1 << 20)
    return hashlib.scrypt(
        password, salt=salt, n=1 << cost.ln, r=cost.r, p=cost.p, dklen=32, maxmem=most
    )


def _opened(secret: str) -> tuple[Cost, bytes, bytes] | None:
    """Cost, salt and digest of a hash; None if it is none that we try."""
    found = _HASH.fullmatch(secret)
    if found is None:
        return None
    cost = Cost(*map(int, found.groups()[:3]))
    if not (0 < cost.ln < 22 and cost.r and cost.p and cost.r * cost.p << cost.ln <= _MOST_COST):
        return None
    try:
        return cost, b64decode(found[4], validate=True), b64decode(found[5], validate=True)
    except Base64Error:
        return None


class Passwords:
    """The logins of a file; read again when the file is another."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._stamp: tuple[int, int, int] | None = None
        self._logins: Mapping[str, Login] = {}
        self._nobody = _nobody(Cost())
        self.logins()

    def logins(self) -> Mapping[str, Login]:
        """All logins, by their names in lower case."""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._logins = read_logins(self._path)
            self._stamp = stamp
            first = next(iter(self._logins.values()), None)
            opened = _opened(first.secret) if first else None
            if opened:  # who is not there must cost what the others cost
                self._nobody = _nobody(opened[0])
        return self._logins

    def check(self, name: str, password: bytes) -> Login | None:
        """The login, if the password is right. Takes its time: never call it in an event loop."""
        login = self.logins().get(name.lower())
        opened = _opened(login.secret if login else self._nobody)
        assert opened is not None, "read_logins takes no other"
        cost, salt, digest = opened
        right = hmac.compare_digest(_scrypt(password[:MOST_PASSWORD], salt, cost), digest)
        return login if right and len(password) <= MOST_PASSWORD else None


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise SettingsError(
            f"the file of passwords {path} cannot be read: {error.strerror}",
            hint="`spamnb passwd LOGIN` makes it",
        ) from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_logins(path: Path) -> dict[str, Login]:
    """Read a file of passwords."""
    try:
        if path.stat().st_mode & 0o077:
            raise SettingsError(
                f"others can read the file of passwords {path}", hint=f"chmod 600 {path}"
            )
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the file of passwords {path} cannot be read: {error}") from error
    logins: dict[str, Login] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            login = _login(line, f"{path}:{number}")
            logins[login.name.lower()] = login
    return logins


def _login(line: str, where: str) -> Login:
    name, _, rest = line.strip().partition(":")
    secret, _, addresses = rest.partition(":")
    if not LOGIN.fullmatch(name) or _opened(secret) is None:
        raise SettingsError(
            f"{where}: not a login, a hash and addresses", hint="`spamnb passwd LOGIN` writes lines"
        )
    listed = tuple(one.strip() for one in addresses.split(",") if one.strip())
    return Login(name, secret, listed or (name,))


def write_logins(path: Path, logins: Mapping[str, Login]) -> None:
    """Write a file of passwords; whoever reads it meanwhile sees the old one or the new one."""
    lines = [
        f"{login.name}:{login.secret}:{','.join(login.addresses)}\n" for login in logins.values()
    ]
    try:
        if not path.parent.is_dir():
            make_folder(path.parent)
        durable_write(path, "".join(lines).encode())
    except OSError as error:
        raise StoreAccessError(f"cannot write {path}: {error.strerror}") from error


class FailedLogins:
    """Wrong passwords by client address: after the third, each doubles the time to wait.

    By address and never by login, or anybody could lock a person out. IPv6 counts by /64, which is
    what one customer has.
    """

    FREE = 3
    LONGEST_S = 60.0
    FORGET_S = 900.0
    KNOWN = 10_000

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float, float]] = OrderedDict()
        """how many were wrong, when the last one came, and the one before it"""

    def wait_s(self, address: str, now: float) -> float:
        """How long this client must wait before its next try is looked at."""
        failed, last, _ = self._known.get(network_of(address), (0, 0.0, 0.0))
        if failed < self.FREE or now - last > self.FORGET_S:
            return 0.0
        pause = min(2.0 ** min(failed - self.FREE, 10), self.LONGEST_S)
        return max(0.0, last + pause - now)

    def wrong(self, address: str, now: float) -> None:
        """A wrong password came."""
        key = network_of(address)
        failed, last, _ = self._known.pop(key, (0, now, now))
        self._known[key] = (1 if now - last > self.FORGET_S else failed + 1, now, last)
        while len(self._known) > self.KNOWN:
            self._known.popitem(last=False)

    def right(self, address: str) -> None:
        """It was the right one, so no wrong one after all. Those before it count on.

        Who has a login of their own would otherwise guess at another's for as long as they like.
        """
        key = network_of(address)
        failed, _, before = self._known.pop(key, (0, 0.0, 0.0))
        if failed > 1:
            self._known[key] = (failed - 1, before, before)
