"""The exported conformance suite, on every store there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from task_contract.stores.base import Store
from task_contract.testing import StoreConformance
from tests.stores.opening import Address


class OnStore(StoreConformance):
    kind: ClassVar[str]

    @pytest.fixture
    def store(self, address_of: Callable[[str], Address]) -> Iterator[Store]:
        with address_of(self.kind).opened() as store:
            yield store


class TestMemory(OnStore):
    kind = "memory"


class TestSQLite(OnStore):
    kind = "sqlite"


class TestRedis(OnStore):
    kind = "redis"


class TestRedisCluster(OnStore):
    kind = "cluster"


class TestRedisSentinel(OnStore):
    kind = "sentinel"


class TestPostgres(OnStore):
    kind = "postgres"
