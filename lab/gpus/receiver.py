"""Record what Alertmanager sends: `python -m lab.gpus.receiver PORT FILE`.

POST /ANYTHING is recorded, GET / gives the records, DELETE / forgets them. PUT / {"status": 500} sets the
answer from then on; what is refused is not recorded.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class RecordingServer(HTTPServer):
    def __init__(self, port: int, file: Path) -> None:
        self.file = file
        self.status = 200
        file.touch()
        super().__init__(("127.0.0.1", port), Handler)


class Handler(BaseHTTPRequestHandler):
    server: RecordingServer

    def do_POST(self) -> None:
        body = json.loads(self._body())
        if self.server.status == 200:
            with self.server.file.open("a") as file:
                file.write(json.dumps({"at": time.time(), "path": self.path, "body": body}) + "\n")
        self._answer(self.server.status)

    def do_GET(self) -> None:
        self._answer(200, f"[{','.join(self.server.file.read_text().splitlines())}]")

    def do_DELETE(self) -> None:
        self.server.file.write_text("")
        self._answer(200)

    def do_PUT(self) -> None:
        self.server.status = int(json.loads(self._body())["status"])
        self._answer(200)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def _answer(self, status: int, text: str = "null") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


if __name__ == "__main__":
    RecordingServer(int(sys.argv[1]), Path(sys.argv[2])).serve_forever()
