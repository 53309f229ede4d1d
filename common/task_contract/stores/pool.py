"""Connections and patience, shared by the stores that talk to something."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from task_contract.errors import StoreUnavailable
from task_contract.forking import after_fork, around_fork
from task_contract.stores.turns import Turns

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
        self,
        connect: Callable[[], C],
        close: Callable[[C], None],
        *,
        size: int = 20,
        timeout: float = 1.0,
        inheritable: bool = True,
    ) -> None:
        self._connect, self._close, self._size, self._timeout = connect, close, size, timeout
        self._inherited: list[deque[C]] = []
        self._renew()
        after_fork(self._leave_to_parent)
        if not inheritable:
            around_fork(self._close_before_fork, self._go_on_in_parent)

    def run(self, conversation: Callable[[C], T]) -> T:
        """Have a conversation on a connection. Whatever goes wrong in it, that connection is not used again.

        Not a context manager: an exception that strikes at the entry of `__exit__`, as a time limit's may, would leave
        its place taken for as long as the traceback lives. What this frame's own `finally` calls first is always done.
        """
        turns, idle, place = self._turns, self._idle, object()
        in_doubt: C | None = None
        try:
            if not turns.enter(place, self._timeout):
                raise self._all_in_use(turns)
            in_doubt = self._take(idle)
            answer = conversation(in_doubt)
            trusted, in_doubt = in_doubt, None
            idle.append(trusted)
            return answer
        finally:
            try:
                if in_doubt is not None:
                    self._drop(in_doubt)
            finally:
                turns.taken.discard(place)
                if turns.waiting:
                    turns.call()

    def _all_in_use(self, turns: Turns) -> StoreUnavailable:
        # No fork takes that long: one that still has a place was struck before it could leave.
        turns.taken.difference_update([place for place in [*turns.taken] if isinstance(place, _Forking)])
        return StoreUnavailable(f"all {self._size} connections to the store are in use; raise `max_connections`")

    def _take(self, idle: deque[C]) -> C:
        try:
            return idle.pop()
        except IndexError:
            return self._connect()

    def _drop(self, connection: C) -> None:
        with suppress(Exception):  # the error that made us drop it says more
            self._close(connection)

    def clear(self) -> None:
        """Close what is idle: after an error that others will meet too, and at the end."""
        with suppress(IndexError):
            while True:
                self._drop(self._idle.pop())

    def _renew(self) -> None:
        self._idle: deque[C] = deque()
        self._turns = Turns(self._size)

    def _leave_to_parent(self) -> None:
        # Kept alive and untouched, also what is given back later: closing one here would say goodbye on the parent's
        # socket.
        self._inherited.append(self._idle)
        self._renew()

    def _close_before_fork(self) -> None:
        """Let nothing be inherited: wait for the one who uses the connection, and close it."""
        self._turns.enter(_Forking(threading.get_ident()), self._timeout)
        self.clear()

    def _go_on_in_parent(self) -> None:
        self._turns.taken.discard(_Forking(threading.get_ident()))
        self._turns.call()


class _Forking(NamedTuple):
    """The place of a thread that forks; several may at once."""

    thread: int


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
