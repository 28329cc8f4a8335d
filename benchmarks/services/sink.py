"""A server that says yes to every release and forgets it: `python -m benchmarks.services.sink`."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_ANSWER = b'{"status": "kept"}'
_AT_MOST = 1 << 20


class Sink(BaseHTTPRequestHandler):
    """Takes bodies of any length."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, _AT_MOST)))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(_ANSWER)))
        self.end_headers()
        self.wfile.write(_ANSWER)

    def log_message(self, *_: Any) -> None:
        return


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
