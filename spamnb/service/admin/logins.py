"""Logins by password: names, hashes and addresses in a text file.

One line for each login, in a file that only its owner may read:

    alice@example.org:$scrypt$ln=15,r=8,p=3$SALT$HASH:alice@example.org,postmaster@example.org

Mail to these addresses is the user's; without any, the login is the address. A fourth
field is the secret of a second factor (`totp`), which the pages ask for. Passwords are stored as
scrypt hashes (RFC 7914; ln=15, r=8, p=3 takes 32 MB and a fifth of a second, one of the equivalent
choices of the OWASP cheat sheet). An unknown login takes as much time as a wrong password.
`FailedLogins` delays repeated guesses.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spamnb.core.mail.envelope import network_of
from spamnb.errors import SettingsError, StoreAccessError
from spamnb.service.admin.totp import SECRET
from spamnb.service.engine.clock import now_us
from spamnb.store.files import durable_write, make_folder

MAX_PASSWORD_BYTES = 1_024
"""A longer password is always wrong. scrypt's first step reads all of it."""
LOGIN = re.compile(r"[^\s:,\x00-\x1f\x7f]{1,254}")

_HASH = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})"
    r"\$([A-Za-z0-9+/=]{16,88})\$([A-Za-z0-9+/=]{24,88})"
)
_MAX_COST = 1 << 22
"""N * r * p of a hash that is checked: five times that of the hashes written here"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The scrypt parameters."""

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
    totp: str = ""
    """the secret of the second factor; empty without one"""


def hashed(password: str, cost: Cost | None = None) -> str:
    """A password's hash, with a new salt."""
    cost = cost or Cost()
    salt = secrets.token_bytes(16)
    return _format_hash(cost, salt, _scrypt(password.encode(), salt, cost))


def _dummy_hash(cost: Cost) -> str:
    """A hash that no password matches; checking it takes as long as any other."""
    return _format_hash(cost, secrets.token_bytes(16), secrets.token_bytes(32))


def _format_hash(cost: Cost, salt: bytes, digest: bytes) -> str:
    return (
        f"$scrypt$ln={cost.ln},r={cost.r},p={cost.p}"
        f"${b64encode(salt).decode()}${b64encode(digest).decode()}"
    )


def _scrypt(password: bytes, salt: bytes, cost: Cost) -> bytes:
    most = 128 * cost.r * ((1 << cost.ln) + cost.p + 2) + (1 << 20)
    return hashlib.scrypt(
        password, salt=salt, n=1 << cost.ln, r=cost.r, p=cost.p, dklen=32, maxmem=most
    )


def _parse_hash(secret: str) -> tuple[Cost, bytes, bytes] | None:
    """Cost, salt and digest of a hash; None if it is invalid or too costly."""
    found = _HASH.fullmatch(secret)
    if found is None:
        return None
    cost = Cost(*map(int, found.groups()[:3]))
    if not (0 < cost.ln < 22 and cost.r and cost.p and cost.r * cost.p << cost.ln <= _MAX_COST):
        return None
    try:
        return cost, b64decode(found[4], validate=True), b64decode(found[5], validate=True)
    except Base64Error:
        return None


class Passwords:
    """The logins of a file; read again when the file changes."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._stamp: tuple[int, int, int] | None = None
        self._logins: Mapping[str, Login] = {}
        self._dummy_hash = _dummy_hash(Cost())
        self.logins()

    def logins(self) -> Mapping[str, Login]:
        """All logins, by their names in lower case."""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._logins = read_logins(self._path)
            self._stamp = stamp
            first = next(iter(self._logins.values()), None)
            opened = _parse_hash(first.secret) if first else None
            if opened:  # an unknown login must take as long as a known one
                self._dummy_hash = _dummy_hash(opened[0])
        return self._logins

    def check(self, name: str, password: bytes) -> Login | None:
        """The login, if the password is right. Slow: never call it in an event loop."""
        login = self.logins().get(name.lower())
        opened = _parse_hash(login.secret if login else self._dummy_hash)
        assert opened is not None, "read_logins rejects invalid hashes"
        cost, salt, digest = opened
        right = hmac.compare_digest(_scrypt(password[:MAX_PASSWORD_BYTES], salt, cost), digest)
        return login if right and len(password) <= MAX_PASSWORD_BYTES else None


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise SettingsError(
            f"the password file {path} cannot be read: {error.strerror}",
            hint="create it with `spamnb passwd LOGIN`",
        ) from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_logins(path: Path) -> dict[str, Login]:
    """Read a password file."""
    try:
        if path.stat().st_mode & 0o077:
            raise SettingsError(
                f"the password file {path} is readable by other users", hint=f"chmod 600 {path}"
            )
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the password file {path} cannot be read: {error}") from error
    logins: dict[str, Login] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            login = _login(line, f"{path}:{number}")
            logins[login.name.lower()] = login
    return logins


def _login(line: str, where: str) -> Login:
    name, secret, addresses, totp = [*line.strip().split(":", 3), "", "", ""][:4]
    right = LOGIN.fullmatch(name) and (not totp or SECRET.fullmatch(totp))
    if not right or _parse_hash(secret) is None:
        raise SettingsError(
            f"{where}: the line is not a login, a hash, addresses and a secret",
            hint="write it with `spamnb passwd LOGIN`",
        )
    listed = tuple(one.strip() for one in addresses.split(",") if one.strip())
    return Login(name, secret, listed or (name,), totp)


def write_logins(path: Path, logins: Mapping[str, Login]) -> None:
    """Write a password file atomically: concurrent readers see the old one or the new one."""
    lines = [
        f"{one.name}:{one.secret}:{','.join(one.addresses)}{one.totp and f':{one.totp}'}\n"
        for one in logins.values()
    ]
    try:
        if not path.parent.is_dir():
            make_folder(path.parent)
        durable_write(path, "".join(lines).encode())
    except OSError as error:
        raise StoreAccessError(f"cannot write {path}: {error.strerror}") from error


class FailedLogins:
    """Wrong passwords by client address: after the third, each doubles the delay.

    IPv6 addresses count by /64, the network of one customer.
    """

    FREE = 3
    LONGEST_S = 60.0
    FORGET_S = 900.0
    KNOWN = 10_000

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float, float]] = OrderedDict()
        """address -> (number of wrong passwords, time of the last one, time of the one before)"""

    def wait_s(self, address: str, now: float) -> float:
        """Seconds until this client's next attempt is checked."""
        failed, last, _ = self._known.get(network_of(address), (0, 0.0, 0.0))
        if failed < self.FREE or now - last > self.FORGET_S:
            return 0.0
        pause = min(2.0 ** min(failed - self.FREE, 10), self.LONGEST_S)
        return max(0.0, last + pause - now)

    def wrong(self, address: str, now: float) -> None:
        """Record a wrong password."""
        key = network_of(address)
        failed, last, _ = self._known.pop(key, (0, now, now))
        self._known[key] = (1 if now - last > self.FORGET_S else failed + 1, now, last)
        while len(self._known) > self.KNOWN:
            self._known.popitem(last=False)

    def begin(self, address: str, now: float) -> float:
        """Count an attempt as wrong and return 0; or return the seconds until the next one."""
        wait_s = self.wait_s(address, now)
        if wait_s <= 0:
            self.wrong(address, now)
        return wait_s

    def right(self, address: str) -> None:
        """Undo the last `wrong`, because that password was right. Earlier ones still count.

        Otherwise a user with a valid login could guess another user's password without a limit.
        """
        key = network_of(address)
        failed, _, before = self._known.pop(key, (0, 0.0, 0.0))
        if failed > 1:
            self._known[key] = (failed - 1, before, before)


class FailedByStrangers(FailedLogins):
    """Wrong passwords by login, from addresses where this login was never right.

    However many addresses guess, about 1,500 passwords of a login are checked in a day.
    """

    FREE = 10


class KnownAddresses(Protocol):
    """Remembers from which networks a login was right."""

    def knows(self, login: str, network: str, now_us: int) -> bool:
        """Whether the login was right from this network in the last months."""

    def remember(self, login: str, network: str, now_us: int) -> None:
        """Note that the login was right from this network."""


class LoginGuard:
    """Delays guesses by address, and by login where the address is not known for this login.

    A login that strangers guess at can still be used where it was used before: the delay by login
    is only for unknown addresses. Until a password is checked it counts as wrong, so parallel
    guesses gain nothing.
    """

    def __init__(
        self, known: KnownAddresses | None = None, clock: Callable[[], int] = now_us
    ) -> None:
        self._known, self._clock = known, clock
        self._by_address = FailedLogins()
        self._by_login = FailedByStrangers()

    def begin(self, login: str, address: str, now: float) -> float:
        """Count an attempt as wrong and return 0; or return the seconds until the next one."""
        is_known = self._knows(login, address)
        wait_s = self._by_address.wait_s(address, now)
        if not is_known:
            wait_s = max(wait_s, self._by_login.wait_s(_key(login), now))
        if wait_s > 0:
            return wait_s
        self._by_address.wrong(address, now)
        if not is_known:
            self._by_login.wrong(_key(login), now)
        return 0.0

    def right(self, login: str, address: str) -> None:
        """Undo the last `begin`, because that password was right."""
        self._by_address.right(address)
        if not self._knows(login, address):
            self._by_login.right(_key(login))

    def remember(self, login: str, address: str) -> None:
        """Note that the login was right from this address; may wait for the disk."""
        if self._known is not None:
            self._known.remember(_key(login), network_of(address), self._clock())

    def _knows(self, login: str, address: str) -> bool:
        known, network = self._known, network_of(address)
        return known is not None and known.knows(_key(login), network, self._clock())


def _key(login: str) -> str:
    # `FailedLogins` would count a login that is an IPv6 address by its network.
    return f"login {login[:254].lower()}"


class FailedCodes(FailedLogins):
    """Wrong codes of a second factor, by login: only a client with the password can send a code.

    A random code is right in three of a million cases; about a hundred a day are checked at most.
    """

    LONGEST_S = 900.0
    FORGET_S = 86_400.0
