"""A large message waits for the other connections of its process."""

import asyncio
import time

from support.waiting import until_true

from spamnb.net.server import after_others


def turns_before(busy_s):
    """How often another connection had its turn before a large message goes on."""

    async def measured():
        loop, turns, went_on = asyncio.get_running_loop(), [], []

        def turn():
            if not went_on:
                time.sleep(busy_s)
                turns.append(None)
                loop.call_soon(turn)

        if busy_s:
            turn()
        after_others(loop, lambda: went_on.append(len(turns)))
        await until_true(lambda: went_on, "the large message")
        return went_on[0]

    return asyncio.run(measured())


def test_it_goes_on_while_the_others_have_nothing_to_do():
    assert turns_before(0) == 0


def test_it_waits_for_several_turns_of_the_others():
    """At least the one that is measured and one more, however fast the machine is."""
    assert turns_before(0.01) >= 3
