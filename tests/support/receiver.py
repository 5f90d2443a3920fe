"""A receiver of webhooks in tests: a real HTTP server that replies as the test wants."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from support.waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Received(NamedTuple):
    """One request."""

    headers: dict
    raw: bytes

    @property
    def body(self):
        return json.loads(self.raw)

    @property
    def id(self):
        return self.headers["webhook-id"]


class Receiver:
    """Keeps all requests; `status` is that of the next replies, 0 for no reply."""

    def __init__(self, port=0, tls=None, status=200, **reply_headers):
        self.requests: list[Received] = []
        self.status, self.reply_headers = status, reply_headers
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append(Received(dict(self.headers), raw))
                if outer.status:
                    self.send_response(outer.status)
                    for name, value in outer.reply_headers.items():
                        self.send_header(name, value)
                    self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/hook?a=1"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def of(self, kind):
        """All requests with an event of this type."""
        return [one for one in self.requests if one.body["type"] == kind]

    def wait_for(self, kind, number=1):
        """Wait for so many events of a type; the last one."""
        return until(lambda: len(self.of(kind)) >= number and self.of(kind)[number - 1], kind)


def write_secret(folder):
    """Write the file of the secret."""
    path = folder / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return str(path)
