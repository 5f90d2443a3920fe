"""Tokens of the HTTP API and of clients of rspamd: scopes, the user that they act for, and an end.

    home/console/tokens.json    a record for each token, with the hash of its text

A token is shown once, when it is created; the file has only its hash. The commands write the file,
and console and workers read it again when it changes, so that a revoked token is refused at its
next use.
Failure: UserError for a token that is not allowed, RefError for an unknown one, StoreError if the
file cannot be read or written.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from spamnb.errors import RefError, StoreDamagedError, UserError
from spamnb.service.engine.clock import iso
from spamnb.store.files import durable_write, make_folder, refused

SCOPES: Final = ("score", "teach", "read", "quarantine", "admin", "metrics")
OF_SITE: Final = ("admin", "metrics")
"""scopes for the whole site, which a token of one user cannot have"""
PREFIX: Final = "spamnb_"
FILE: Final = "tokens.json"
MOST_TOKENS: Final = 1000
_SECRET_BYTES: Final = 32
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
    """The tokens of one home."""

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
        text = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
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
