"""A zone without a network, for checks of senders that ask nothing else."""

import asyncio

from spamnb.auth.names import NameFault


class Zone:
    """Answers from a table; a name that is in `gone` has no answer."""

    def __init__(self, records=(), gone=()):
        self.records, self.gone, self.asked = dict(records), set(gone), []

    def expect(self, name, kind):
        pass

    async def ask(self, name, kind):
        name = name.lower().rstrip(".")
        self.asked.append((name, kind))
        if name in self.gone:
            raise NameFault(name)
        return tuple(self.records.get((name, kind), ()))


def run(coroutine):
    """The result of a coroutine."""
    return asyncio.run(coroutine)
