"""Logins, tokens and one-time codes. Must not know protocols.

`Passwords` has the logins of a text file, `TokenFile` the tokens of the HTTP API and of clients of
rspamd, `code_at` the codes of a second factor, and `LoginGuard` slows down guessing. Failure:
SettingsError with file and line; UserError and RefError for a token.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from base64 import b32decode, b32encode, b64decode, b64encode
from binascii import Error as Base64Error
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

from spamnb.errors import RefError, SettingsError, StoreAccessError, StoreDamagedError, UserError
from spamnb.mail.envelope import network_of
from spamnb.store.files import durable_write, make_folder, refused
from spamnb.telemetry import iso, now_us

SCOPES: Final = ("score", "teach", "read", "quarantine", "admin", "metrics")
OF_SITE: Final = ("admin", "metrics")
"""scopes for the whole site, which a token of one user cannot have"""
PREFIX: Final = "spamnb_"
FILE: Final = "tokens.json"
MOST_TOKENS: Final = 1000
_TOKEN_SECRET_BYTES: Final = 32
_DAY_US: Final = 86_400_000_000
_MOST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class ApiToken:
    """What is stored of one token."""

    name: str
    hash: str
    scopes: tuple[str, ...]
    user: str
    """the user that it acts for: an address or a login; empty: all messages of the site"""
    created_us: int
    ends_us: int

    def as_dict(self) -> dict[str, Any]:
        """Return the token without its hash, as values of JSON."""
        return {
            "name": self.name,
            "scopes": list(self.scopes),
            "user": self.user,
            "created": iso(self.created_us),
            "ends": iso(self.ends_us),
        }


class TokenFile:
    """The tokens of one home.

        home/console/tokens.json    a record for each token, with the hash of its text

    A token is shown once, when it is created; the file has only its hash. The commands write the
    file, and console and workers read it again when it changes, so that a revoked token is refused
    at its next use. Failure: UserError for a token that is not allowed, RefError for an unknown
    one, StoreError if the file cannot be read or written.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "console"
        self._path = self._folder / FILE
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: Mapping[str, ApiToken] = {}

    def tokens(self) -> Mapping[str, ApiToken]:
        """Return all tokens by the hashes of their texts; read again when the file changes."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise refused(error, self._path) from error
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        if stamp != self._stamp:
            self._tokens, self._stamp = _read(self._path), stamp
        return self._tokens

    def find(self, text: str, now_us: int) -> ApiToken | None:
        """Return the token with this text, unless it has ended."""
        found = self.tokens().get(_hash(text)) if text.startswith(PREFIX) else None
        return found if found is not None and now_us < found.ends_us else None

    def create(self, token: ApiToken) -> str:
        """Add a token, whose hash is made here; return its text."""
        _check(token)
        text = PREFIX + secrets.token_urlsafe(_TOKEN_SECRET_BYTES)
        with self._changing() as tokens:
            if any(one.name == token.name for one in tokens):
                raise UserError(
                    f"there is a token {token.name!r}", hint="revoke it, or choose another name"
                )
            if len(tokens) >= MOST_TOKENS:
                raise UserError(f"there are {len(tokens)} tokens", hint="revoke some")
            tokens.append(ApiToken(**asdict(token) | {"hash": _hash(text)}))
        return text

    def revoke(self, name: str) -> None:
        """Delete a token."""
        with self._changing() as tokens:
            kept = [one for one in tokens if one.name != name]
            if len(kept) == len(tokens):
                raise RefError(f"there is no token {name!r}", hint="see `spamnb token list`")
            tokens[:] = kept

    @contextmanager
    def _changing(self) -> Iterator[list[ApiToken]]:
        """Yield the tokens in a list that is written at the end; one process at a time."""
        try:
            make_folder(self._folder)
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise refused(error, self._folder) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            tokens = list(self.tokens().values())
            yield tokens
            durable_write(self._path, json.dumps(list(map(asdict, tokens)), indent=1).encode())
        except OSError as error:
            raise refused(error, self._path) from error
        finally:
            os.close(handle)


def _hash(text: str) -> str:
    """Return the hash; a text has 256 random bits, so a fast hash is as good as a slow one."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> dict[str, ApiToken]:
    try:
        rows = json.loads(path.read_bytes())
        tokens = [ApiToken(**row | {"scopes": tuple(row["scopes"])}) for row in rows]
    except OSError as error:
        raise refused(error, path) from error
    except (ValueError, TypeError, KeyError) as error:
        raise StoreDamagedError(f"{path} is not a file of tokens", hint="delete it") from error
    return {token.hash: token for token in tokens}


def _check(token: ApiToken) -> None:
    unknown = [scope for scope in token.scopes if scope not in SCOPES]
    if unknown or not token.scopes:
        raise UserError(
            f"there is no scope {unknown[0]!r}" if unknown else "no scope is given",
            hint=f"one or more of {', '.join(SCOPES)}",
        )
    if not (token.name.isprintable() and 0 < len(token.name) <= _MOST_NAME):
        raise UserError(f"{token.name!r} is not a name of 1 to {_MOST_NAME} characters")
    if token.user and (whole := [scope for scope in token.scopes if scope in OF_SITE]):
        raise UserError(
            f"a token of {token.user} cannot have the scope {whole[0]}",
            hint="this scope is for the whole site: leave out --for",
        )


def new_token(
    name: str, scopes: tuple[str, ...], user: str, days: int, now_us: int
) -> ApiToken:  # fmt: skip
    """Return a token that ends after so many days; `TokenFile.create` gives it its text."""
    return ApiToken(name, "", tuple(dict.fromkeys(scopes)), user, now_us, now_us + days * _DAY_US)


SECRET: Final = re.compile(r"[A-Z2-7]{32}")
STEP_S: Final = 30
_CODE_SECRET_BYTES: Final = 20
_WINDOW: Final = 1
"""steps before and after the present one: clocks differ, and people type slowly"""
_DIGITS: Final = 6
_CODE: Final = re.compile(rf"[0-9]{{{_DIGITS}}}")


def new_secret() -> str:
    """Return a random secret.

    It has 160 bits, in base32 as authenticator apps take it.
    """
    return b32encode(secrets.token_bytes(_CODE_SECRET_BYTES)).decode()


def uri_of(login: str, secret: str) -> str:
    """Return the address that authenticator apps read, also as a QR code."""
    fields = urlencode({"secret": secret, "issuer": "spamnb"})
    return f"otpauth://totp/{quote(f'spamnb:{login}')}?{fields}"


def code_at(secret: str, step: int) -> str:
    """Return the code of a step.

    TOTP (RFC 6238) with SHA-1, six digits and steps of 30 s.
    """
    mac = hmac.digest(b32decode(secret), step.to_bytes(8, "big"), "sha1")
    at = mac[-1] & 0x0F
    number = int.from_bytes(mac[at : at + 4], "big") & 0x7FFF_FFFF
    return f"{number % 10**_DIGITS:0{_DIGITS}d}"


def step_of(secret: str, code: str, now_s: int) -> int | None:
    """Return the step that a code belongs to, near the present one; None for a wrong code.

    Each step is compared, so the time says nothing about the code.
    """
    now = now_s // STEP_S
    given = code if _CODE.fullmatch(code) else "-" * _DIGITS
    steps = range(max(now - _WINDOW, 0), now + _WINDOW + 1)
    right = [step for step in steps if hmac.compare_digest(code_at(secret, step), given)]
    return max(right, default=None)


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
    """The logins of a file; read again when the file changes.

    One line for each login, in a file that only its owner may read:

        alice@example.org:$scrypt$ln=15,r=8,p=3$SALT$HASH:alice@example.org,postmaster@example.org

    Mail to these addresses is the user's; without any, the login is the address. A fourth field is
    the secret of a second factor (`totp`), which the pages ask for. Passwords are stored as scrypt
    hashes (RFC 7914; ln=15, r=8, p=3 takes 32 MB and a fifth of a second, one of the equivalent
    choices of the OWASP cheat sheet). An unknown login takes as much time as a wrong password.
    `FailedLogins` delays repeated guesses.
    """

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
