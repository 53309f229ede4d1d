"""A bank on a loopback port. It charges whoever asks, as often as they ask: a doubled call is a doubled charge.

It also has its moods, which the demo writes down beforehand, order by order.
"""

from __future__ import annotations

import json
import logging
import socketserver
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from typing import Literal

log = logging.getLogger(__name__)

#: Hangs up, is overloaded, refuses the card, or keeps every caller waiting until it is told to stop that.
Mood = Literal["drop", "busy", "decline", "hold"]
RETRY_AFTER = 1


class Bank(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Till)
        self._lock = threading.Lock()
        self._moods: dict[str, list[Mood]] = {}
        self._calls: dict[str, list[float]] = {}
        self.charges: Counter[str] = Counter()
        self._closing = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), name="bank", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/charges"

    def expect(self, order: str, moods: Iterable[Mood]) -> None:
        """How the next calls about this order will end. The ones after them are charged."""
        with self._lock:
            self._moods[order] = list(moods)

    def calls(self, order: str) -> list[float]:
        """When somebody called about this order (`time.monotonic`)."""
        with self._lock:
            return list(self._calls.get(order, ()))

    def called(self, order: str) -> Mood | None:
        """A call came in: the mood it meets, or None once it is charged."""
        with self._lock:
            self._calls.setdefault(order, []).append(time.monotonic())
            moods = self._moods.get(order)
            if moods:
                return moods[0] if moods[0] == "hold" else moods.pop(0)
            self.charges[order] += 1
            return None

    def hold(self, order: str) -> None:
        while self._moods[order] and not self._closing.wait(0.02):
            pass

    def close(self) -> None:
        self._closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  (socketserver's signature)
        log.warning("a caller hung up: %r", sys.exc_info()[1])


class Till(BaseHTTPRequestHandler):
    server: Bank

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["order"]
        mood = self.server.called(order)
        if mood == "hold":
            self.server.hold(order)
        elif mood == "busy":
            self._answer(503, **{"Retry-After": str(RETRY_AFTER)})
        elif mood == "decline":
            self._answer(402)
        elif mood is None:
            self._answer(200)
        # A call that gets no answer sees the connection close.

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if status == 200:
            self.wfile.write(b'{"charged": true}')

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name is the base class's)
        log.debug(format, *args)
