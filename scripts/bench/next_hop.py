"""A next hop that accepts and discards every message, for benchmarks."""

import asyncio


class Sink(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport):
        self.transport, self.tail, self.is_data = transport, b"", False
        transport.write(b"220 sink ESMTP\r\n")

    def data_received(self, data):
        data = self.tail + data
        self.tail = b""
        if self.is_data:
            self.is_data = not data.endswith(b"\r\n.\r\n")
            self.tail = data[-5:] if self.is_data else b""
            if not self.is_data:
                self.transport.write(b"250 2.0.0 Ok: queued as 1\r\n")
        elif data.upper().startswith(b"DATA"):
            self.is_data = True
            self.transport.write(b"354 go on\r\n")
        else:
            self.transport.write(b"250 Ok\r\n")


async def serve(listening):
    """Serve a socket for ever."""
    server = await asyncio.get_running_loop().create_server(Sink, sock=listening)
    await server.serve_forever()
