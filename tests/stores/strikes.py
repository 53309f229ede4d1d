"""Exceptions that strike a thread in the middle of whatever it does, as Dramatiq's TimeLimit raises them."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Sequence


class Struck(BaseException):
    """What strikes."""


def strike(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Struck))


class Target(threading.Thread):
    """Takes its turn again and again, whatever strikes it, until told to stop or until an ordinary error."""

    def __init__(self, turn: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.turn, self.stop = turn, False
        self.sent = self.felt = self.ready_after = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        while not self.stop and self.failure is None:
            try:
                self._again_and_again()
            except Struck:  # noqa: PERF203  (the point)
                self.felt += 1
            except Exception as error:  # noqa: BLE001  (told by the test)
                self.failure = error

    def _again_and_again(self) -> None:
        self.ready_after = self.felt  # here, where the next one is caught
        while not self.stop:
            self.turn()

    @property
    def ready(self) -> bool:
        return self.ready_after == self.sent

    def strike(self) -> None:
        if self.ready and self.ident is not None:
            self.sent += 1
            strike(self.ident)


def strike_at_random(targets: Sequence[Target], seconds: float) -> None:
    """Start them, strike for so long or until one fails, and stop them."""
    for target in targets:
        target.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not any(target.failure for target in targets):
        random.choice(targets).strike()
        time.sleep(random.uniform(0, 0.0003))
    end = time.monotonic() + 10
    while time.monotonic() < end and not all(target.ready or target.failure for target in targets):
        time.sleep(0.01)
    for target in targets:
        target.stop = True
    for target in targets:
        target.join(20)
