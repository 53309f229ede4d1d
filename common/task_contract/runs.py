"""The run: one attempt at a piece of work, as the code inside it sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from task_contract import envelope as envelopes
from task_contract.envelope import Envelope
from task_contract.errors import ContractError
from task_contract.stores.base import Beat, Hold

if TYPE_CHECKING:
    from task_contract.policy import Policy

_current: ContextVar[Run | None] = ContextVar("task_contract_run", default=None)


@dataclass(eq=False)
class Run:
    """One attempt. `current_run()` gives it to the code that runs."""

    hold: Hold
    envelope: Envelope
    policy: Policy
    #: The payload at the version this worker speaks.
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: The enqueue's reservation, to be released with the work.
    reservation: str = ""
    crashes: int = 0
    started: float = field(default_factory=time.monotonic)
    #: Whether another worker has taken over: what is still done here may be done twice.
    lost: bool = False
    #: The process that claimed: a child that the task forks must not speak for it.
    pid: int = field(default_factory=os.getpid)
    _held_since: float = field(default_factory=time.monotonic)
    _progress: int = -1
    _note: str = ""
    _signed: float | None = None

    @property
    def attempt(self) -> int:
        """Which attempt this is; the first is 1."""
        return self.hold.attempt

    @property
    def fence(self) -> int:
        """Grows with every change of hands: hand it to a system that can refuse a smaller one."""
        return self.hold.fence

    @property
    def deadline(self) -> float:
        """When the lease ends unless it is renewed (`time.monotonic`); never later than the store thinks."""
        return self._held_since + self.policy.lease

    def progress(self, percent: float, note: str = "") -> None:
        """Say how far the work is, 0 to 100; it travels with the next heartbeat."""
        self._progress, self._note = round(min(100.0, max(0.0, percent))), str(note)[:500]
        self.heartbeat()

    def heartbeat(self) -> None:
        """Say that the code is alive. The lease only says that its process is."""
        self._signed = time.monotonic()

    def beat(self, draining: bool) -> Beat:
        """What the next renewal of the lease tells the store."""
        silent_for = -1.0 if self._signed is None else time.monotonic() - self._signed
        return Beat(self.hold, self.policy.lease, draining, self._progress, self._note, silent_for)

    def renewed(self, since: float) -> None:
        self._held_since = since

    @contextmanager
    def active(self) -> Iterator[Run]:
        """Make this the current run, and its envelope the current envelope."""
        before = _current.set(self)
        try:
            with envelopes.use(self.envelope):
                yield self
        finally:
            _current.reset(before)


def current_run() -> Run:
    """The run that this code is part of."""
    run = _current.get()
    if run is None:
        raise ContractError("no task of a contract is running here; call current_run() inside a task")
    return run
