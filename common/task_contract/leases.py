"""Leases are renewed by one thread per process, all of them in one call per beat."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from task_contract.errors import StoreUnavailable
from task_contract.forking import after_fork
from task_contract.runs import Run
from task_contract.stores.base import Store

log = logging.getLogger(__name__)

#: A lease is renewed this often within its length: two beats may fail before it is lost.
BEATS_PER_LEASE = 3
#: How often the process tidies the store, while it has work.
TIDY_EVERY = 60.0
TIDY_BATCH = 1000
#: The thread ends after so long without work.
IDLE_FOR = 30.0


class LeaseKeeper:
    """Keeps the runs of this process alive, and says when one was lost."""

    def __init__(self, store: Callable[[], Store], on_lost: Callable[[Run], None]) -> None:
        self._store, self._on_lost = store, on_lost
        self.draining = False
        self._renew()
        after_fork(self._renew)

    def _renew(self) -> None:
        self._runs: set[Run] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._next_beat = float("inf")
        self._next_tidying = time.monotonic() + TIDY_EVERY

    def add(self, run: Run) -> None:
        """Keep this lease from now on. Raises if the thread that would keep it cannot be started."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._loop, name="task-contract-leases", daemon=True)
                thread.start()
                self._thread = thread
            self._runs.add(run)
            due = time.monotonic() + run.policy.lease / BEATS_PER_LEASE
            if due < self._next_beat:
                self._next_beat = due
                self._changed.notify()

    def remove(self, run: Run) -> None:
        with self._changed:
            self._runs.discard(run)

    def drain(self) -> None:
        """The process is about to stop: a lease that ends from now on was interrupted, not crashed."""
        self.draining = True
        self.beat()

    def _loop(self) -> None:
        while self._await_beat():
            self._beat_and_tidy()

    def _await_beat(self) -> bool:
        """False once there was nothing to keep for a while: the thread ends, and the next run starts another."""
        with self._changed:
            while (pause := self._next_beat - time.monotonic()) > 0:
                woken = self._changed.wait(min(pause, IDLE_FOR))
                if not woken and not self._runs:
                    self._thread = None
                    return False
        return True

    def _beat_and_tidy(self) -> None:
        try:
            self.beat()
            self._tidy()
        except BaseException:  # whatever a listener threw, the other leases must be kept
            log.exception("a beat failed; going on")

    def beat(self) -> None:
        """Renew all leases now."""
        with self._changed:
            runs = list(self._runs)
            shortest = min((run.policy.lease for run in runs), default=float("inf"))
            self._next_beat = time.monotonic() + shortest / BEATS_PER_LEASE
        if runs:
            self._extend(runs)

    def _extend(self, runs: list[Run]) -> None:
        since = time.monotonic()
        try:
            answers = self._store().extend([run.beat(self.draining) for run in runs])
        except StoreUnavailable as error:
            log.warning("%d leases could not be renewed, trying again at the next beat: %s", len(runs), error)
            return
        except Exception:
            log.exception("%d leases could not be renewed together", len(runs))
            self._extend_each(runs)
            return
        for run, answer in zip(runs, answers, strict=True):
            if answer == "lost":
                self._give_up(run)
            elif answer == "held":
                run.renewed(since)

    def _extend_each(self, runs: list[Run]) -> None:
        """One by one: what spoils the beat of one run must not end the leases of its neighbours."""
        if len(runs) > 1:
            for run in runs:
                self._extend([run])

    def _give_up(self, run: Run) -> None:
        with self._changed:
            known = run in self._runs
            self._runs.discard(run)
        # A run that ended while the beat was under way is not lost, only over.
        if known:
            run.lost = True
            self._on_lost(run)

    def _tidy(self) -> None:
        if time.monotonic() < self._next_tidying:
            return
        self._next_tidying = time.monotonic() + TIDY_EVERY
        try:
            self._tidy_up()
        except Exception:
            log.exception("the store could not be tidied")

    def _tidy_up(self) -> None:
        """Batch after batch while there is more, but not for so long that a beat is missed."""
        while self._store().expire(TIDY_BATCH) == TIDY_BATCH and time.monotonic() < self._next_beat:
            pass
