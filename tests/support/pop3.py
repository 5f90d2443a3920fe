"""A POP3 server with one mailbox, for programs that fetch mail."""

import contextlib
import socketserver
import threading


class _Session(socketserver.StreamRequestHandler):
    """One client; RFC 1939 without its optional commands, and UIDL."""

    server: "_Server"

    def handle(self):
        box = list(self.server.mailbox)
        gone = set()
        self._say("+OK ready")
        while line := self.rfile.readline().decode("ascii", "replace").split():
            verb, *words = line
            reply = getattr(self, f"on_{verb.lower()}", None)
            if verb.upper() == "QUIT":
                self.server.mailbox = [raw for at, raw in enumerate(box, 1) if at not in gone]
                self._say("+OK bye")
                return
            if verb.upper() == "DELE":
                gone.add(int(words[0]))
                self._say("+OK")
            elif reply is None:
                self._say("-ERR unknown")
            else:
                reply(box, words)

    def _say(self, *lines):
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

    def _list(self, box, words, value):
        rows = [f"{at} {value(raw, at)}" for at, raw in enumerate(box, 1)]
        if words:
            self._say(f"+OK {rows[int(words[0]) - 1]}")
        else:
            self._say("+OK", *rows, ".")

    def on_user(self, _box, _words):
        self._say("+OK")

    on_pass = on_noop = on_user

    def on_stat(self, box, _words):
        self._say(f"+OK {len(box)} {sum(map(len, box))}")

    def on_list(self, box, words):
        self._list(box, words, lambda raw, _: len(raw))

    def on_uidl(self, box, words):
        self._list(box, words, lambda raw, _: f"u{hash(raw) & 0xFFFFFF}")

    def on_retr(self, box, words):
        stuffed = box[int(words[0]) - 1].replace(b"\r\n.", b"\r\n..")
        self.wfile.write(b"+OK\r\n" + stuffed + b".\r\n")

    on_top = on_retr
    """with more lines than there are, as fetchmail asks"""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    mailbox: list[bytes]


@contextlib.contextmanager
def pop3_server(*messages):
    """Serve a mailbox; `mailbox` has the remaining messages, and `server_address` the port."""
    with _Server(("127.0.0.1", 0), _Session) as server:
        server.mailbox = [raw.replace(b"\n", b"\r\n") for raw in messages]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
