"""A queue in one SQLite file, as honest as the big ones: at least once, in no promised order.

A message that was taken and not acknowledged within `visibility` seconds is delivered again, whether its worker died
or is only slow. That is what a contract is for.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import NamedTuple

SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, body BLOB NOT NULL, visible_at REAL NOT NULL, deliveries INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS due ON messages (visible_at);
"""


class Delivery(NamedTuple):
    """A message in a worker's hands. The number of deliveries is its receipt: the next one makes this one stale."""

    id: int
    body: bytes
    deliveries: int


class TinyQueue:
    def __init__(self, path: Path, visibility: float = 1.0) -> None:
        self._visibility = visibility
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=20, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing by this; only a power cut would, and the demo does not survive that either.
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(SCHEMA)

    def push(self, body: bytes) -> None:
        self._run("INSERT INTO messages (body, visible_at) VALUES (?, ?)", body, time.time())

    def take(self) -> Delivery | None:
        """The next message that is due, hidden from the others for a while; None if there is none."""
        while row := self._next():
            number, body, deliveries = row
            hidden_until = time.time() + self._visibility
            taken = self._run(
                "UPDATE messages SET visible_at = ?, deliveries = deliveries + 1 WHERE id = ? AND deliveries = ?",
                hidden_until,
                number,
                deliveries,
            )
            if taken:  # else another worker was faster
                return Delivery(number, body, deliveries + 1)
        return None

    def ack(self, delivery: Delivery) -> None:
        self._run("DELETE FROM messages WHERE id = ? AND deliveries = ?", delivery.id, delivery.deliveries)

    def put_back(self, delivery: Delivery, delay: float) -> None:
        """Deliver it again, in `delay` seconds."""
        self._run(
            "UPDATE messages SET visible_at = ? WHERE id = ? AND deliveries = ?",
            time.time() + delay,
            delivery.id,
            delivery.deliveries,
        )

    def __len__(self) -> int:
        """Waiting, delayed and in a worker's hands."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM messages").fetchone()[0])

    def close(self) -> None:
        self._db.close()

    def _next(self) -> tuple[int, bytes, int] | None:
        due = "SELECT id, body, deliveries FROM messages WHERE visible_at <= ? ORDER BY visible_at LIMIT 1"
        with self._lock:
            row: tuple[int, bytes, int] | None = self._db.execute(due, (time.time(),)).fetchone()
            return row

    def _run(self, statement: str, *values: object) -> int:
        with self._lock:
            return self._db.execute(statement, values).rowcount
