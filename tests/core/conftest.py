"""What the tests of the core share: a contract on a store in memory, a clock, and a tiny runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from task_contract import Contract, Policy
from task_contract.events import Event
from task_contract.running import Handled, Message
from task_contract.sending import Call, Prepared, confirm, prepare
from task_contract.stores.memory import MemoryStore


class Bench:
    """A contract, its events, and time that moves when told to."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.time = 1_700_000_000.0
        self.store.now = lambda: self.time
        self.contract = Contract(self.store, source="shop")
        self.events: list[Event] = []
        self.contract.subscribe(self.events.append)

    def send(self, fn: Callable[..., Any], policy: Policy, *args: Any, **kwargs: Any) -> Prepared:
        prepared = prepare(self.contract, Call(fn.__name__, policy, fn, args, kwargs))
        if prepared.duplicate is None:
            confirm(self.contract, prepared)
        return prepared

    def message(self, fn: Callable[..., Any], policy: Policy, *args: Any, **kwargs: Any) -> Message:
        prepared = self.send(fn, policy, *args, **kwargs)
        return Message(prepared.envelope, prepared.message_id, args, kwargs, queue="orders", framework="test")

    def deliver(self, message: Message, fn: Callable[..., Any], policy: Policy) -> Handled:
        return self.contract.handle(message, fn, policy)

    def names(self) -> list[str]:
        return [event.name for event in self.events]


@pytest.fixture
def bench() -> Bench:
    return Bench()
