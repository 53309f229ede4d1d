"""What every group of tests stands on."""

from __future__ import annotations

import pytest

from task_contract.stores.base import Store
from task_contract.testing.clock import Clock


class Conformance:
    """Override `store`: a fixture that gives an empty store to each test."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("give your test class a fixture `store` that returns an empty store")

    @pytest.fixture(autouse=True)
    def clock(self, store: Store) -> Clock:
        """The store's only clock in these tests (D15): nothing here waits for real time to pass."""
        clock = Clock()
        store.now = clock
        return clock
