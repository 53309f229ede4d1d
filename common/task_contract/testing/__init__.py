"""The conformance suite: one set of tests for every store, yours included.

    import pytest
    from task_contract.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self):
            return MyStore()        # empty, for each test

Needs pytest. The suite drives time through `store.now`, so it never waits; whatever clock your store has in
production must give way to that one while it is set.
"""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

# A test module outside the user's own folder has bare `assert` messages unless pytest is told beforehand.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from task_contract.testing.clock import Clock  # noqa: E402  (after the rewrite is registered)
from task_contract.testing.suite import StoreConformance  # noqa: E402

__all__ = ["Clock", "StoreConformance"]
