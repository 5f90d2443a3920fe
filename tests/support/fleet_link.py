"""A network between the hosts of a fleet and the server of its log, with faults.

It is a separate program, because the test stops and kills the hosts. It reads orders from its
input, one in a line: the number of a link, and one of these:

    open   all bytes arrive
    cut    there are no connections
    mute   requests arrive, answers do not
    slow   all bytes arrive later
    lossy  some bytes arrive later, like those of a packet that TCP sends again
"""

import asyncio
import contextlib
import random
import subprocess
import sys
from pathlib import Path

DELAY_S = 0.1
"""in each direction, while a link is slow"""
LOSS, RESENT_S = 0.1, 0.2
"""Share of lost packets, and the least time after which TCP sends one again."""


class FleetLinks:
    """Links from sockets `folder/0/NAME`, `folder/1/NAME`, ... to a socket of this name."""

    def __init__(self, folder, target, count):
        self.paths = [Path(folder) / str(number) / target.name for number in range(count)]
        for path in self.paths:
            path.parent.mkdir(parents=True)
        command = [sys.executable, __file__, str(target), *map(str, self.paths)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._process.stdout.readline()

    def set(self, number, mode):
        self._process.stdin.write(f"{number} {mode}\n")
        self._process.stdin.flush()

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class _Link:
    def __init__(self, path, target):
        self.path, self.target = path, target
        self.mode = "open"
        self.writers = set()

    async def listen(self):
        await asyncio.start_unix_server(self._serve, self.path)

    def set(self, mode):
        self.mode = mode
        for writer in list(self.writers) if mode == "cut" else ():
            writer.close()

    async def _serve(self, reader, writer):
        if self.mode == "cut":
            writer.close()
            return
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_unix_connection(self.target)
            self.writers |= {writer, back}
            requests = asyncio.create_task(self._copy(reader, back, "cut"))
            await asyncio.gather(requests, self._copy(there, writer, "mute"))
            self.writers -= {writer, back}
        writer.close()

    async def _copy(self, reader, writer, swallows):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.mode == "slow":
                    await asyncio.sleep(DELAY_S)
                elif self.mode == "lossy" and random.random() < LOSS:
                    await asyncio.sleep(RESENT_S)
                if self.mode not in ("cut", swallows):
                    writer.write(data)
                    await writer.drain()
        writer.close()


async def _main(target, *paths):
    links = [_Link(path, target) for path in paths]
    for link in links:
        await link.listen()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while order := await loop.run_in_executor(None, sys.stdin.readline):
        number, mode = order.split()
        links[int(number)].set(mode)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
