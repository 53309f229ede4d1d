"""So many at a time, in the order of arrival, and no place is ever lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

#: Whoever waits is called when a place is free, and looks by himself this often in case the call was cut short.
LOOK = 0.02


class Turns:
    """A semaphore for threads that may be struck by an exception anywhere, as by a time limit.

    A semaphore counts, and a thread that is struck between the counting and the noting of it loses a place for good.
    Here a place is an object of the caller's, in a set while it is taken. The caller takes it out by himself, with
    `turns.taken.discard(place)` as the first call of a `finally`: Python delivers such exceptions only when a call
    begins in Python or has ended, so nothing can come in between. There is no lock to be held, neither by a thread that
    was struck nor by a signal handler that comes back here, nor across a fork.

    `threading.Semaphore` would also let a thread that has just left come in again before those who wait. With a single
    connection and a busy neighbour, a thread would then wait until it gives up; and so would a fork.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken: set[object] = set()
        self.waiting: deque[threading.Lock] = deque()

    def enter(self, place: object, timeout: float) -> bool:
        """Take a place; False if none was free in time. Struck in here, the caller may have one: see above."""
        return (not self.waiting and self._take(place)) or self._wait(place, timeout)

    def call(self) -> None:
        """Tell the first who waits that a place may be free."""
        # IndexError: nobody waits any more. RuntimeError: called already.
        with suppress(IndexError, RuntimeError):
            self.waiting[0].release()

    def _take(self, place: object) -> bool:
        # First taken, then counted: two may both step back, but they never both come in.
        taken = self.taken
        if len(taken) < self.size:
            taken.add(place)
            if len(taken) <= self.size:
                return True
            taken.discard(place)
        return False

    def _wait(self, place: object, timeout: float) -> bool:
        deadline, waiting = time.monotonic() + timeout, self.waiting
        bell = threading.Lock()
        bell.acquire()
        try:
            waiting.append(bell)
            while not (waiting[0] is bell and self._take(place)):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                bell.acquire(timeout=min(left, LOOK))
            return True
        finally:
            try:  # noqa: SIM105  (to enter `suppress` is a call: struck there, we would stay in everybody's way)
                waiting.remove(bell)
            except ValueError:  # struck before it was in
                pass
            self.call()
