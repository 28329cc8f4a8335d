"""A server that says yes to all that comes and forgets it: `python -m benchmarks.services.sink`."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from overhand.deploy.protocol.wire import ANSWER_MAGIC

_ANSWER = b'{"status": "kept"}'
_AT_MOST = 1 << 20


class Sink(BaseHTTPRequestHandler):
    """Takes bodies of any length."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        left, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        while left:
            read = self.rfile.read(min(left, _AT_MOST))
            digest.update(read)
            left -= len(read)
        kind, answer = "application/json", _ANSWER
        if self.path.startswith("/v1/offers/"):  # of which everything counts
            kind, answer = "application/octet-stream", ANSWER_MAGIC + digest.digest()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        return


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
