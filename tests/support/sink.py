"""A next hop of a daemon in tests."""

import socket
import threading

from support.waiting import LIMIT_S


class Sink:
    """A next hop with a reply to the final dot that the test chooses."""

    def __init__(self, at_dot=b"250 2.0.0 kept\r\n", wait=None):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.messages, self.at_dot, self.wait = [], at_dot, wait
        self.at_end = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._session, args=(connection,), daemon=True).start()

    def _session(self, connection):
        with connection, connection.makefile("rwb") as stream:
            try:
                self._talk(stream)
            except OSError:
                return

    def _talk(self, stream):
        def reply(line):
            stream.write(line)
            stream.flush()

        reply(b"220 sink\r\n")
        while line := stream.readline():
            verb = line[:4].upper()
            if verb != b"DATA":
                reply(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
                continue
            reply(b"354 go\r\n")
            lines = []
            while (line := stream.readline()) not in (b".\r\n", b""):
                lines.append(line)
            if not line:
                return
            self.at_end.set()
            if self.wait is not None:
                assert self.wait.wait(LIMIT_S)
            self.messages.append(b"".join(lines))
            reply(self.at_dot)

    def close(self):
        """End the thread, before another file gets the number of its descriptor."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()
