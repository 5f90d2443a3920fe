"""Questions to name servers: cached by their time to live, shared, and limited.

    names = NameServers.open(("192.0.2.53",))      without addresses: those of the system
    questions = names.questions(until)             for one message, until a time of the loop
    await questions.ask("example.org", "TXT")      -> ("v=spf1 -all",); () if there is nothing

The answer comes from the name servers of the sender, so it is as hostile as the mail: its size,
its number of values, the questions of one message and the questions that wait are all limited.
Failure: `NameFault`, always within the time of the message. If several questions in a row got no
answer at all, the servers are not asked for some seconds, so that a site without name servers
delays no mail.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from spamnb.errors import UserError
from spamnb.net.address import address_of_server

Kind = Literal["A", "AAAA", "MX", "PTR", "TXT"]

MOST_QUESTIONS: Final = 64
"""for one message; SPF alone may take 10 terms with 10 hosts each (RFC 7208 4.6.4)"""
MOST_VALUES: Final = 64
MOST_CHARACTERS: Final = 8_192
"""of one value: a key of 4,096 bits takes 740"""
MOST_WAITING: Final = 512
"""questions without an answer yet"""
MOST_CACHED: Final = 20_000
"""answers, of 300 bytes each"""
LONGEST_S: Final = 3_600.0
"""time for which an answer is used, whatever its time to live"""
FAULT_S: Final = 5.0
"""time for which the failure of a name's servers is remembered"""
QUESTION_S: Final = 1.8
SILENT: Final = 5
"""questions in a row without an answer after which nothing is asked for a while"""
REST_S: Final = 10.0


class NameFault(Exception):  # noqa: N818 - no error of this program
    """A question has no answer now; it may have one later."""


class Ask(Protocol):
    """What a check may ask."""

    async def ask(self, name: str, kind: Kind) -> tuple[str, ...]:
        """The values of a name, without a dot at the end; none if there are none."""

    def expect(self, name: str, kind: Kind) -> None:
        """Ask already now, because `ask` will follow."""


class _Answer(NamedTuple):
    values: tuple[str, ...]
    until: float
    is_fault: bool = False


Key = tuple[str, Kind]
Query = Callable[[str, Kind], Awaitable[tuple[Sequence[str], float]]]
"""The values and the seconds for which they hold. Failure: NameFault, TimeoutError."""


class NameServers:
    """The name servers of a process, for one event loop."""

    def __init__(self, query: Query, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._query = query
        self._loop = loop or asyncio.get_running_loop()
        self._answers: dict[Key, _Answer] = {}
        self._waiting: dict[Key, asyncio.Task[_Answer]] = {}
        self._silent = 0
        self._rests_until = 0.0

    @staticmethod
    def open(servers: Sequence[str] = ()) -> NameServers:
        """Use these servers, each an address or ADDRESS:PORT; without any, those of the system."""
        return NameServers(_DnsPython(servers).query)

    def questions(self, until: float) -> Questions:
        """The questions of one message, which must be answered until a time of the loop."""
        return Questions(self, until)

    async def answers(self, wait_s: float) -> bool:
        """Whether a name server answers: the root of all names always has one."""
        try:
            async with asyncio.timeout(wait_s):
                await self._query("", "TXT")
        except (NameFault, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Drop the open questions."""
        tasks = list(self._waiting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def known(self, key: Key) -> _Answer | None:
        """A cached answer that still holds."""
        found = self._answers.get(key)
        return found if found is not None and found.until > self._loop.time() else None

    def start(self, key: Key) -> asyncio.Task[_Answer] | None:
        """The open question for a key, asked now if it is not open; None if it cannot be asked."""
        task = self._waiting.get(key)
        if task is not None:
            return task
        if len(self._waiting) >= MOST_WAITING or self._loop.time() < self._rests_until:
            return None
        task = self._loop.create_task(self._ask(key))
        self._waiting[key] = task
        return task

    async def _ask(self, key: Key) -> _Answer:
        try:
            async with asyncio.timeout(QUESTION_S):
                values, seconds = await self._query(*key)
            answer = _Answer(_limited(values), self._loop.time() + min(seconds, LONGEST_S))
            self._silent = 0
        except TimeoutError:
            self._silent += 1
            if self._silent >= SILENT:
                self._rests_until = self._loop.time() + REST_S
            answer = self._fault()
        except NameFault:
            answer, self._silent = self._fault(), 0
        finally:
            del self._waiting[key]
        if len(self._answers) >= MOST_CACHED:
            self._forget()
        self._answers[key] = answer
        return answer

    def _fault(self) -> _Answer:
        return _Answer((), self._loop.time() + FAULT_S, is_fault=True)

    def _forget(self) -> None:
        """Drop the answers that hold no longer, else the oldest quarter."""
        now = self._loop.time()
        held = {key: one for key, one in self._answers.items() if one.until > now}
        most = 3 * MOST_CACHED // 4
        self._answers = dict(list(held.items())[-most:])


class Questions:
    """What the checks of one message ask."""

    def __init__(self, names: NameServers, until: float) -> None:
        self._names = names
        self._until = until
        self._left = MOST_QUESTIONS

    async def ask(self, name: str, kind: Kind) -> tuple[str, ...]:
        """The values of a name; none if there are none. Failure: NameFault."""
        answer = self._names.known((name, kind))
        if answer is None:
            key = _key(name, kind)
            if key is None:
                return ()
            answer = self._names.known(key) or await self._wait(self._start(key))
        if answer.is_fault:
            raise NameFault(name)
        return answer.values

    def expect(self, name: str, kind: Kind) -> None:
        """Ask already now, because `ask` will follow."""
        if self._names.known((name, kind)) is not None:
            return
        key = _key(name, kind)
        if key is not None and self._names.known(key) is None:
            with contextlib.suppress(NameFault):
                self._start(key)

    def _start(self, key: Key) -> asyncio.Task[_Answer]:
        self._left -= 1
        task = self._names.start(key) if self._left >= 0 else None
        if task is None:
            raise NameFault(key[0])
        return task

    async def _wait(self, task: asyncio.Task[_Answer]) -> _Answer:
        left = self._until - asyncio.get_running_loop().time()
        if left > 0:
            done, _ = await asyncio.wait({task}, timeout=left)
            if done:
                return task.result()
        raise NameFault("no answer in time")


def _key(name: str, kind: Kind) -> Key | None:
    """The name as it is asked; None if no name server can have it."""
    name = name.rstrip(".").lower()
    labels = name.split(".")
    if not name.isascii() or len(name) > 253 or not all(0 < len(one) < 64 for one in labels):
        return None
    return name, kind


def _limited(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in values[:MOST_VALUES] if len(one) <= MOST_CHARACTERS)


class _DnsPython:
    """Asks by dnspython: UDP, then TCP for an answer that was cut."""

    def __init__(self, servers: Sequence[str]) -> None:
        import dns.asyncresolver  # noqa: PLC0415 - an extra
        import dns.exception  # noqa: PLC0415 - an extra
        import dns.nameserver  # noqa: PLC0415 - an extra
        import dns.rdatatype  # noqa: PLC0415 - an extra

        self._dns = dns
        try:
            self._resolver = dns.asyncresolver.Resolver(configure=not servers)
        except (OSError, dns.exception.DNSException) as error:
            raise UserError(
                f"no name server: {error}", hint="set auth.resolvers to the address of one"
            ) from error
        self._resolver.lifetime = QUESTION_S
        self._resolver.timeout = QUESTION_S / 2
        self._resolver.use_edns(0, 0, 1_232)
        if servers:
            self._resolver.nameservers = [
                dns.nameserver.Do53Nameserver(*address_of_server(one)) for one in servers
            ]

    async def query(self, name: str, kind: Kind) -> tuple[list[str], float]:
        """The values of a name, and the seconds for which they hold."""
        errors, resolver = self._dns.exception, self._dns.resolver
        # A name is a sequence of bytes, in which dnspython's own text form gives `\` a meaning.
        labels = [one.encode("ascii") for one in name.split(".") if one]
        try:
            found = await self._resolver.resolve(
                self._dns.name.Name([*labels, b""]), kind, raise_on_no_answer=False, search=False
            )
        except resolver.NXDOMAIN as error:
            least = [one.resolve_chaining().minimum_ttl for one in error.responses().values()]
            return [], float(min(least, default=0))
        except errors.Timeout as error:
            raise TimeoutError from error
        except (errors.DNSException, OSError, ValueError) as error:
            raise NameFault(name) from error
        values = [] if found.rrset is None else [_text(kind, one) for one in found.rrset]
        return values, float(found.chaining_result.minimum_ttl)


def _text(kind: Kind, value: Any) -> str:
    if kind == "TXT":
        return b"".join(value.strings).decode("latin-1")
    if kind == "MX":
        return f"{value.preference} {_name(value.exchange)}"
    return _name(value.target) if kind == "PTR" else str(value.address)


def _name(name: Any) -> str:
    return b".".join(name.labels).decode("latin-1").rstrip(".")
