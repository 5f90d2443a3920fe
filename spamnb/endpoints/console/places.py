"""Where requests run: in threads, with a limit for each kind of request.

Requests that compute for long or wait for another process do not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeVar

from spamnb.endpoints.console.problems import ApiError

Place = Literal["quick", "heavy", "learner", "next hop", "login"]
PLACES: Final[dict[Place, int]] = {
    "quick": 4,
    "heavy": 2,
    "learner": 4,
    "next hop": 2,
    "login": 2,
}
"""How many requests run in each place. Reading a body needs a place, too, so at most six bodies of
32 MB are in memory; a check of a password takes 32 MB."""
WAIT_S: Final = 10.0
"""for a place"""

Result = TypeVar("Result")


class WorkPlaces:
    """The places of one console."""

    def __init__(self) -> None:
        self._places = {name: asyncio.Semaphore(size) for name, size in PLACES.items()}
        self._threads = ThreadPoolExecutor(sum(PLACES.values()), "console")

    @asynccontextmanager
    async def taken(self, place: Place) -> AsyncIterator[None]:
        """Hold a place for a block; ApiError if none is free in time."""
        try:
            await asyncio.wait_for(self._places[place].acquire(), WAIT_S)
        except TimeoutError as error:
            raise ApiError(503, "too many requests are in progress", hint="try again") from error
        try:
            yield
        finally:
            self._places[place].release()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run work in a thread, in a place that the caller holds."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Let no more work begin."""
        self._threads.shutdown(wait=False, cancel_futures=True)
