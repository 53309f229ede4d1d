"""Connections and patience, shared by the stores that talk to something."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from task_contract.errors import StoreUnavailable
from task_contract.forking import after_fork

C = TypeVar("C")
T = TypeVar("T")

#: A verb is tried this often in all. With a client timeout of 1 s that stays far below a reservation's 30 s.
TRIES = 3
PAUSE = 0.05


class Pool(Generic[C]):
    """Connections, opened when first needed, last in first out, never shared with a forked child.

    The drivers' own pools cost as much as the round trip they serve, or start threads that do not survive a fork.
    """

    def __init__(
        self, connect: Callable[[], C], close: Callable[[C], None], *, size: int = 20, timeout: float = 1.0
    ) -> None:
        self._connect, self._close, self._size, self._timeout = connect, close, size, timeout
        self._inherited: list[C] = []
        self._renew(deque())
        after_fork(self._leave_to_parent)

    @contextmanager
    def borrow(self) -> Iterator[C]:
        """A connection for one conversation. Whatever goes wrong in it, that connection is not used again."""
        places, idle = self._places, self._idle
        if not places.acquire(timeout=self._timeout):
            raise StoreUnavailable(f"all {self._size} connections to the store are in use; raise `max_connections`")
        try:
            connection = self._take(idle)
            try:
                yield connection
            except BaseException:
                self._close(connection)
                raise
            idle.append(connection)
        finally:
            places.release()

    def _take(self, idle: deque[C]) -> C:
        try:
            return idle.pop()
        except IndexError:
            return self._connect()

    def clear(self) -> None:
        """Close what is idle: after an error that others will meet too, and at the end."""
        with suppress(IndexError):
            while True:
                self._close(self._idle.pop())

    def _renew(self, idle: deque[C]) -> None:
        self._idle = idle
        self._places = threading.BoundedSemaphore(self._size)

    def _leave_to_parent(self) -> None:
        # Kept alive and untouched: closing one here would say goodbye on the parent's socket.
        self._inherited.extend(self._idle)
        self._renew(deque())


def patiently(operation: Callable[[], T], recover: Callable[[Exception], bool], what: str) -> T:
    """Repeat on transient errors, with exponential backoff and full jitter (A13), then say that the store is away.

    `recover` says whether an error is transient, after doing what helps the next try.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return operation()
        except Exception as error:
            if not recover(error):
                raise
            if attempt == TRIES:
                raise StoreUnavailable(f"the store did not answer {what}: {error}") from error
        time.sleep(random.uniform(0, PAUSE * 2**attempt))  # noqa: S311  (jitter)
    raise AssertionError("unreachable")
