"""The contract: one store, its settings, and everything that attaches to them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from task_contract import envelope
from task_contract.check import Finding, check
from task_contract.classify import Rules
from task_contract.dead_letters import DeadLetters, Publisher, worker_name
from task_contract.envelope import Context, Upgrades
from task_contract.errors import ConfigurationError
from task_contract.events import Event, Listener, Listeners
from task_contract.leases import LeaseKeeper
from task_contract.policy import Policy
from task_contract.running import Handled, Message, handle
from task_contract.runs import Run
from task_contract.sending import Breaker
from task_contract.settings import Settings
from task_contract.stores import open_store, sqlite_url
from task_contract.stores.base import DeadLetter, Store

log = logging.getLogger(__name__)
HookT = TypeVar("HookT", bound=Callable[[DeadLetter], object])


class Contract:
    """What the tasks of one app agree on.

    `store` is a URL or a store; left out, `TASK_CONTRACT_STORE`, else an SQLite file of this host. `default` is the
    policy of tasks that have none. Settings are keywords here or `TASK_CONTRACT_*` in the environment.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        source: str | None = None,
        default: Policy | None = None,
        fallback: str | None = None,
        **settings: Any,
    ) -> None:
        url = store if isinstance(store, str) else None
        self.settings = Settings.load(store=url, source=source, fallback=fallback, **settings)
        self.source = self.settings.source or "task-contract"
        self.default = default
        self.policies: dict[str, Policy] = {}
        self.rules = Rules()
        self.upgrades = Upgrades()
        self.breaker = Breaker()
        self.dead_letters = DeadLetters(self)
        self.leases = LeaseKeeper(lambda: self.store, self.lease_lost)
        #: Owners of claims that the store did not answer, by record and message.
        self.unanswered: dict[tuple[str, str], str] = {}
        #: How a replayed message gets back to its queue; the adapters set it.
        self.publisher: Publisher | None = None
        #: Where to look for a store when none is given; the adapters know the app's own Redis.
        self.find_store: Callable[[], str | None] = lambda: None
        self._given = store if isinstance(store, Store) else None
        self._listeners = Listeners()
        self._hooks: list[Callable[[DeadLetter], object]] = []

    @cached_property
    def store(self) -> Store:
        settings = self.settings
        chosen = self._given or settings.store or self.find_store() or self._host_store()
        return open_store(chosen, namespace=settings.namespace, timeout=settings.store_timeout)

    def _host_store(self) -> str:
        path = default_path(self.source)
        if self.settings.strict:
            raise ConfigurationError(
                "strict=True needs a store that all hosts share: pass store=, or set TASK_CONTRACT_STORE"
            )
        log.warning("no store given: records are kept in %s, and claims are shared on this host only", path)
        return sqlite_url(path)

    def context(
        self, correlation_id: str | None = None, causation_id: str | None = None
    ) -> AbstractContextManager[Context]:
        """What is sent inside belongs to this job, and was caused by this."""
        return envelope.context(correlation_id, causation_id)

    def handle(
        self, message: Message, fn: Callable[..., Any], policy: Policy | None = None, *, patience: float | None = None
    ) -> Handled:
        """Run a function for a delivery of any push source; the verdict says what to tell the source (D13)."""
        return handle(self, message, fn, policy or self.default or Policy(), patience=patience)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of every event; the function that comes back unsubscribes it."""
        return self._listeners.subscribe(listener)

    def on_dead_letter(self, hook: HookT) -> HookT:
        """A decorator: `hook` is called with each dead letter after it is written. Its failure harms nothing (D8)."""
        self._hooks.append(hook)
        return hook

    def check(self) -> list[Finding]:
        """What is missing for the guarantees to hold (A18), the worst first."""
        return check(self)

    def close(self) -> None:
        """Give back connections. The contract may be used again afterwards."""
        if "store" in self.__dict__:
            self.store.close()

    # For the two hot paths.

    def emit(self, event: Event) -> None:
        self._listeners.emit(event)

    def told_of(self, letter: DeadLetter) -> None:
        for hook in self._hooks:
            try:
                hook(letter)
            except Exception:  # noqa: PERF203  (each hook on its own)
                log.exception("an on_dead_letter hook failed; the dead letter %s is safe", letter.id)

    def lease_lost(self, run: Run) -> None:
        work = run.hold.work
        self.emit(
            Event(
                "lease_lost",
                message_id=work.message_id,
                message_type=work.message_type,
                idempotency_key=work.key,
                correlation_id=work.correlation_id,
                causation_id=work.causation_id,
                subject=work.subject,
                source=self.source,
                worker=worker_name(),
                attempt=run.attempt,
            )
        )


def default_path(source: str) -> Path:
    """Where records are kept if nothing else is said: `$XDG_STATE_HOME/task-contract/SOURCE.db`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in source)
    return Path(state).absolute() / "task-contract" / f"{name}.db"
